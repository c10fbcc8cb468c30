"""One call over stdio: `run` of a little code against the bare server's echo, after a pause and without one."""

import statistics
import time
from collections.abc import Callable, Sequence
from functools import partial

from benchmarks.lib import BARE_SDK, ONETOOL, Client, Row, WrongAnswer, interleave

PAUSE_SECONDS = 0.01  # a model takes longer between two turns; it is enough for a cell to wait again
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
        paused = with_pauses(rounds, bare, ours)
        rushed = interleave(rounds, contestants(bare, ours, back_to_back))
    return [
        Row(f"{what}, {when}", samples[what], samples[ECHO], target=TARGET)
        for when, samples in (("a pause before each", paused), ("back to back", rushed))
        for what in CODES
    ]


def check(bare: Client, ours: Client) -> None:
    """That both do what they are timed for."""
    for client, code, right in ((bare, "1+1", "1+1"), (ours, "1+1", "2"), (ours, "len(machine.now())", "25")):
        if (text := client.call(code)) != right:
            raise WrongAnswer(f"{code} gave {text}")


def contestants(bare: Client, ours: Client, timed: Callable[[Client, str], float]) -> dict[str, Callable[[], float]]:
    return {ECHO: partial(timed, bare, "1+1"), **{what: partial(timed, ours, code) for what, code in CODES.items()}}


def with_pauses(rounds: int, bare: Client, ours: Client) -> dict[str, list[float]]:
    """Turns of one call each, so that all meet the same neighbours; a round is the median of its turns."""
    samples = interleave(rounds * CALLS, contestants(bare, ours, after_a_pause))
    return {what: [statistics.median(some) for some in chunks(found)] for what, found in samples.items()}


def chunks(values: Sequence[float]) -> list[Sequence[float]]:
    return [values[start : start + CALLS] for start in range(0, len(values), CALLS)]


def after_a_pause(client: Client, text: str) -> float:
    time.sleep(PAUSE_SECONDS)
    return timed_call(client, text)


def back_to_back(client: Client, text: str) -> float:
    """The mean, because a call that has to wait for what the one before it left undone belongs to the picture."""
    return statistics.fmean(timed_call(client, text) for _ in range(CALLS_BACK_TO_BACK))


def timed_call(client: Client, text: str) -> float:
    started = time.perf_counter()
    client.call(text)
    return (time.perf_counter() - started) * 1e3
