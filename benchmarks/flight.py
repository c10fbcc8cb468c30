"""A hundred runs at once over one stdio server: that all end well, and what one costs in such a crowd."""

import time
from dataclasses import dataclass
from typing import Any

from benchmarks.lib import BARE_SDK, ONETOOL, Client, Row, WrongAnswer, children, interleave, result_of, text_of

RUNS = 100
SLEEP_SECONDS = 1.0  # long enough for all to be there at once
MOST_ROUNDS = 4
SLEEPERS = f"import time\ntime.sleep({SLEEP_SECONDS})\n[{{number}}, len(machine.now())]"


@dataclass(frozen=True, slots=True)
class Crowd:
    """What became of a hundred calls: how many failed, the milliseconds for each, the processes seen half-way."""

    failed: int
    each: float
    at_once: int


def measure(rounds: int) -> list[Row]:
    found = crowds(min(rounds, MOST_ROUNDS))
    ours = [*found["sleepers"], *found["brief"]]
    failed = sum(one.failed for one in ours)
    times = [one.each for one in found["brief"]], [one.each for one in found["bare"]]
    at_once = [one.at_once for one in found["sleepers"]]
    return [
        Row(f"{RUNS} runs in flight at once: failures among {RUNS * len(ours)}", [failed], unit="", target=0),
        Row(f"{RUNS} runs in flight at once: cells alive half-way", at_once, unit=""),
        Row(f"{RUNS} runs sent at once, time for each, against echoes", *times),
    ]


def crowds(rounds: int) -> dict[str, list[Crowd]]:
    with Client(BARE_SDK) as bare, Client(ONETOOL) as ours:
        bare.open()
        ours.open()
        contestants = {
            "sleepers": lambda: crowd(ours, SLEEPERS, "[{number},25]", SLEEP_SECONDS * 0.75),
            "brief": lambda: crowd(ours, "{number}+1-1", "{number}"),
            "bare": lambda: crowd(bare, "{number}", "{number}"),
        }
        return interleave(rounds, contestants)


def crowd(client: Client, text: str, right: str, look_after: float = 0.0) -> Crowd:
    """Send all calls, then take all answers."""
    started = time.perf_counter()
    expected = {client.send_call(text.format(number=number)): right.format(number=number) for number in range(RUNS)}
    time.sleep(look_after)
    at_once = sum(len(children(zygote)) for zygote in children(client.pid)) if look_after else 0
    failed = sum(not is_right(client.receive(), expected) for _ in range(RUNS))
    return Crowd(failed, (time.perf_counter() - started) / RUNS * 1e3, at_once)


def is_right(message: dict[str, Any], expected: dict[int, str]) -> bool:
    try:
        return text_of(result_of(message)) == expected[message["id"]]
    except WrongAnswer:
        return False
