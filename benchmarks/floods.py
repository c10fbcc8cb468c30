"""Delay of a run while another run sends the worst allowed messages, over one stdio server.

Rounds alternate between an idle server and one under attack. The attacker also uses a processor, so
a run that only computes is measured too.
"""

import statistics
import time
from dataclasses import dataclass, field

from benchmarks.lib import ONETOOL, Client, Row, WrongAnswer, get_result, get_text, iterate_turns

ROUND_SECONDS = 1.0
MAX_ROUNDS = 3
MAX_ADDED_MS = 100
ALONE, BUSY = "alone", "beside a run that computes"
FORGE = f"""
import os, threading, time
own = next(n for n in range(3, 128) if os.path.lexists(f'/proc/self/fd/{{n}}'))
end = time.monotonic() + {ROUND_SECONDS}
def drain():
    while True: os.read(own, 65536)
def send(data):
    left = memoryview(data)
    while left: left = left[os.write(own, left):]
threading.Thread(target=drain, daemon=True).start()
n = 1
def call(argument, strings=b''):
    global n
    n += 1
    send(b'{{"id":%d,"method":"call","params":{{"name":"ot.version","args":[],"kwargs":{{"x":%s}}}}%s}}\\n' % (
        n, argument, strings))
"""
ATTACKS = {
    BUSY: "while time.monotonic() < end: pass",
    "empty lists": (
        "x = b'[' + b','.join([b'[]'] * 57_000) + b']'\nwhile time.monotonic() < end: call(x)"
    ),
    "objects": (
        "x = b'[' + b','.join([b'{\"a\":1}'] * 57_000) + b']'\nwhile time.monotonic() < end:"
        " call(x)"
    ),
    "long strings": (
        "piece = b'=strings 262144\\n' + b'x' * 262144\nwhile time.monotonic() < end:\n   "
        ' send(piece * 30)\n    call(b\'""\', b\',"strings":[[["kwargs","x"],%d]]\' % (30 *'
        " 262144))"
    ),
    "short messages": (
        "for _ in range(19):\n    send(b'=output 1\\nx' * 10_000)\n    if time.monotonic() > end:"
        " break"
    ),
    "requests": "while time.monotonic() < end and n < 9000: call(b'1')",
}


@dataclass
class ConcurrentRun:
    """A repeated short run and a concurrent attack."""

    client: Client
    delays: dict[str, list[float]] = field(default_factory=dict)

    def measure(self, name: str) -> None:
        """Run for one round, and restart the attack whenever it ends."""
        delays, attack = self.delays.setdefault(name, []), ATTACKS.get(name)
        attacking = 0
        end = time.perf_counter() + ROUND_SECONDS
        while time.perf_counter() < end:
            if attack is not None and not attacking:
                attacking = self.client.send_call(f"{FORGE}{attack}\n'over'")
            started = time.perf_counter()
            asked = self.client.send_call("1+1")
            while (message := self.client.receive()).get("id") != asked:
                attacking = 0 if message.get("id") == attacking else attacking
            delays.append((time.perf_counter() - started) * 1e3)
            if get_text(get_result(message)) != "2":
                raise WrongAnswer(str(message))
        if attacking:
            self.client.answer(attacking)


def measure(rounds: int) -> list[Row]:
    with Client(ONETOOL) as client:
        client.open()
        neighbor = ConcurrentRun(client)
        client.call("1+1")
        for name, counts in iterate_turns(min(rounds, MAX_ROUNDS), [ALONE, *ATTACKS]):
            if counts:
                neighbor.measure(name)
    return [
        row
        for name, delays in neighbor.delays.items()
        for row in make_rows(name, delays, neighbor.delays[ALONE])
    ]


def make_rows(name: str, delays: list[float], alone: list[float]) -> list[Row]:
    """Return rows for p50 and p99, and for the increase over the p99 of an idle server."""
    middle, late = statistics.median(delays), compute_p99(delays)
    found = [Row(f"1+1 {name}: p50", [middle]), Row(f"1+1 {name}: p99", [late])]
    if name in {ALONE, BUSY}:
        return found
    return [
        *found,
        Row(f"1+1 {name}: added to p99 alone", [late - compute_p99(alone)], target=MAX_ADDED_MS),
    ]


def compute_p99(samples: list[float]) -> float:
    return sorted(samples)[int(len(samples) * 0.99)]
