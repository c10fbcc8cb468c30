"""A hundred concurrent runs over one stdio server: correctness of the answers, and time per run."""

import time
from dataclasses import dataclass
from typing import Any

from benchmarks.lib import (
    BARE_SDK,
    ONETOOL,
    Client,
    Row,
    WrongAnswer,
    find_children,
    get_result,
    get_text,
    interleave,
)

RUNS = 100
SLEEP_SECONDS = 1.0  # long enough for all runs to be active at the same time
MAX_ROUNDS = 4
SLEEPERS = f"import time\ntime.sleep({SLEEP_SECONDS})\n[{{number}}, len(machine.now())]"


@dataclass(frozen=True, slots=True)
class Batch:
    """The outcome of a hundred calls: failures, milliseconds per call, and processes seen halfway."""

    failed: int
    each: float
    at_once: int


def measure(rounds: int) -> list[Row]:
    found = measure_batches(min(rounds, MAX_ROUNDS))
    ours = [*found["sleepers"], *found["brief"]]
    failed = sum(one.failed for one in ours)
    times = [one.each for one in found["brief"]], [one.each for one in found["bare"]]
    at_once = [one.at_once for one in found["sleepers"]]
    return [
        Row(
            f"{RUNS} runs in flight at once: failures among {RUNS * len(ours)}",
            [failed],
            unit="",
            target=0,
        ),
        Row(f"{RUNS} runs in flight at once: cells alive halfway", at_once, unit=""),
        Row(f"{RUNS} runs sent at once, time for each, against echoes", *times),
    ]


def measure_batches(rounds: int) -> dict[str, list[Batch]]:
    with Client(BARE_SDK) as bare, Client(ONETOOL) as ours:
        bare.open()
        ours.open()
        contestants = {
            "sleepers": lambda: measure_batch(
                ours, SLEEPERS, "[{number},25]", SLEEP_SECONDS * 0.75
            ),
            "brief": lambda: measure_batch(ours, "{number}+1-1", "{number}"),
            "bare": lambda: measure_batch(bare, "{number}", "{number}"),
        }
        return interleave(rounds, contestants)


def measure_batch(client: Client, text: str, right: str, look_after: float = 0.0) -> Batch:
    """Send all calls, then receive all answers."""
    started = time.perf_counter()
    expected = {
        client.send_call(text.format(number=number)): right.format(number=number)
        for number in range(RUNS)
    }
    time.sleep(look_after)
    at_once = (
        sum(len(find_children(zygote)) for zygote in find_children(client.pid)) if look_after else 0
    )
    failed = sum(not is_right(client.receive(), expected) for _ in range(RUNS))
    return Batch(failed, (time.perf_counter() - started) / RUNS * 1e3, at_once)


def is_right(message: dict[str, Any], expected: dict[int, str]) -> bool:
    try:
        return get_text(get_result(message)) == expected[message["id"]]
    except WrongAnswer:
        return False
