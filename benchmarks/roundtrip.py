"""One call over stdio: a short `run` against an echo of the bare server, with and without a pause
before it.
"""

import statistics
import time
from collections.abc import Callable, Sequence
from functools import partial

from benchmarks.lib import BARE_SDK, ONETOOL, Client, Row, WrongAnswer, interleave

PAUSE_SECONDS = (
    0.01  # enough for the next cell to be ready; a model pauses longer between two turns
)
CALLS = 20
CALLS_BACK_TO_BACK = 40
TARGET = 1.5
ECHO = "echo"
CODES = {
    "run(1+1)": "1+1",
    "run of one async tool call": "machine.now()",
    "run of one sync tool call": "machine.cpu()",
}


def measure(rounds: int) -> list[Row]:
    with Client(BARE_SDK) as bare, Client(ONETOOL) as ours:
        check(bare.open(), ours.open())
        paused = measure_with_pauses(rounds, bare, ours)
        rushed = interleave(rounds, make_contestants(bare, ours, call_back_to_back))
    return [
        Row(f"{what}, {when}", samples[what], samples[ECHO], target=TARGET)
        for when, samples in (("a pause before each", paused), ("back to back", rushed))
        for what in CODES
    ]


def check(bare: Client, ours: Client) -> None:
    """Check that both servers return the right answer."""
    for client, code, right in (
        (bare, "1+1", "1+1"),
        (ours, "1+1", "2"),
        (ours, "len(machine.now())", "25"),
    ):
        if (text := client.call(code)) != right:
            raise WrongAnswer(f"{code} gave {text}")


def make_contestants(
    bare: Client, ours: Client, timed: Callable[[Client, str], float]
) -> dict[str, Callable[[], float]]:
    return {
        ECHO: partial(timed, bare, "1+1"),
        **{what: partial(timed, ours, code) for what, code in CODES.items()},
    }


def measure_with_pauses(rounds: int, bare: Client, ours: Client) -> dict[str, list[float]]:
    """Alternate after each call, so that all contestants see the same load.

    A round is the median of its calls.
    """
    samples = interleave(rounds * CALLS, make_contestants(bare, ours, call_after_pause))
    return {
        what: [statistics.median(some) for some in split_calls(found)]
        for what, found in samples.items()
    }


def split_calls(values: Sequence[float]) -> list[Sequence[float]]:
    return [values[start : start + CALLS] for start in range(0, len(values), CALLS)]


def call_after_pause(client: Client, text: str) -> float:
    time.sleep(PAUSE_SECONDS)
    return time_call(client, text)


def call_back_to_back(client: Client, text: str) -> float:
    """Return the mean, because waiting for the work that the previous call deferred is part of the
    cost.
    """
    return statistics.fmean(time_call(client, text) for _ in range(CALLS_BACK_TO_BACK))


def time_call(client: Client, text: str) -> float:
    started = time.perf_counter()
    client.call(text)
    return (time.perf_counter() - started) * 1e3
