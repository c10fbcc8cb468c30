"""Measure policies and the journal: questions, what they cost, and runs that are killed at each
step of the journal.

    uv run python benchmarks/approvals.py [--rounds 200] [--programs 100]

Contestants alternate, so that the load of the machine affects all of them. Tools and runs are in
this process.
"""

import argparse
import asyncio
import os
import random
import statistics
import sys
import tempfile
import time
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager, closing
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent.parent))

from benchmarks.lib import interleave_async
from tests.journal_support import make_program
from tests.unit.test_journal import kill_and_resume

from onetool import tool
from onetool.app import OneTool
from onetool.runs import runs
from onetool.runs.questions import APPROVE, APPROVE_SIMILAR, COUNT, VARYING, Approver, Question
from onetool.runs.run_output import ClientChannel, RunOutput
from onetool.settings.model import Settings
from onetool.state.run_records import Decision, Grant
from onetool.state.run_rows import RunQuota
from onetool.state.run_store import RunStore
from onetool.util.context import Caller, RunScope, ToolContext
from onetool.util.logging import Log

LOOP = "[bench.write(text=f'note {i}') for i in range(50)]\n'done'"
CALLS = 20  # of one sample
MAX_STEPS = 1000  # of the journal of one program


@tool("bench.write", effects=["write"])
async def write(text: str = "") -> None:
    """Write nothing."""


@asynccontextmanager
async def open_app(directory: Path, policy: str) -> AsyncIterator[OneTool]:
    settings = Settings.model_validate({"agents": {"default": {"policy": policy}}})
    async with OneTool(settings, folder=directory, log=Log()) as app:
        app.bus.register_tool(write)
        yield app


async def count_questions(app: OneTool) -> int:
    asked: list[Question] = []

    async def answer(question: Question) -> Mapping[str, Any]:
        asked.append(question)
        return (
            {"decision": APPROVE_SIMILAR, COUNT: CALLS, VARYING: "text"}
            if len(asked) > 1
            else {"decision": APPROVE}
        )

    channel = ClientChannel(approve=Approver(answer, "ann", "stdio"))
    result = await app.runs.run(LOOP, Caller(), RunOutput(channel))
    if result.blocks != ("done",):
        raise SystemExit(f"wrong answer: {result.blocks}")
    return len(asked)


async def time_calls(
    app: OneTool, get_context: Callable[[], ToolContext], calls: int = CALLS
) -> float:
    """Return the median milliseconds of some calls in one run."""
    context, seconds = get_context(), list[float]()
    for number in range(calls):
        started = time.perf_counter()
        result = await app.bus.call_tool("bench.write", {"text": str(number)}, context)
        seconds.append(time.perf_counter() - started)
        result.unwrap()
    return statistics.median(seconds) * 1000


async def time_run(app: OneTool) -> float:
    started = time.perf_counter()
    answer = await app.run("1+1")
    if answer.blocks != ("2",):
        raise SystemExit(f"wrong answer: {answer.blocks}")
    return (time.perf_counter() - started) * 1000


async def time_granted_calls(app: OneTool) -> float:
    """Time calls that a person must approve and a grant covers: they survive a power failure."""
    gate = app.runs.open_gate(Caller(), "run", hold=app.settings.approvals.wait)
    context = replace(app.context(), run=RunScope(gate=gate))
    store = app.runs.journal.store
    asked = asyncio.ensure_future(app.bus.call_tool("bench.write", {"text": "first"}, context))
    while not await asyncio.to_thread(store.list_calls, gate.id):  # noqa: ASYNC110 - the store has no events
        await asyncio.sleep(0.001)
    grant = Grant(f"g_{os.urandom(8).hex()}", "bench.write", varying=("*",), left=CALLS)
    await app.runs.decide(
        gate.id, Decision(True, "ann", grants=(grant,)), via="cli", transport="cli"
    )
    (await asked).unwrap()
    return await time_calls(app, lambda: context)


def print_times(samples: Mapping[str, list[float]]) -> None:
    (first, baseline), *others = samples.items()
    print(f"  {first}: {statistics.median(baseline):.3f} ms")
    for name, values in others:
        pairs = list(zip(values, baseline, strict=True))
        ratio, added = (
            statistics.median(a / b for a, b in pairs),
            statistics.median(a - b for a, b in pairs),
        )
        print(f"  {name}: {statistics.median(values):.3f} ms, {ratio:.2f}x, {added:+.3f} ms")


async def measure_times(directory: Path, rounds: int) -> None:
    async with (
        open_app(directory / "open", "open") as free,
        open_app(directory / "ask", "ask-writes") as asking,
    ):
        print(f"questions for a loop of 50 writes: {await count_questions(asking)}")
        without = partial(time_calls, free, lambda: replace(free.context(), run=RunScope()))
        allowed = partial(
            time_calls,
            free,
            lambda: replace(
                free.context(), run=RunScope(gate=free.runs.open_gate(Caller(), "run"))
            ),
        )
        print("a write in a run:")
        contestants: dict[str, Callable[[], Awaitable[float]]] = {
            "without a gate": without,
            "with the journal, under allow": allowed,
            "with the journal, the first of a run": partial(allowed, calls=1),
        }
        print_times(await interleave_async(rounds, contestants))
        print("a write that a person must approve, and a grant covers:")
        contestants = {"under allow": allowed, "under ask": partial(time_granted_calls, asking)}
        print_times(await interleave_async(rounds, contestants))
        print('run("1+1"):')
        contestants = {"open": partial(time_run, free), "ask-writes": partial(time_run, asking)}
        print_times(await interleave_async(rounds, contestants))
        started = time.perf_counter()
        for _ in range(1000):
            free.runs.open_gate(Caller(), "run")
        print(f"  the gate of a run: {(time.perf_counter() - started) * 1000:.1f} us")


def measure_kills(directory: Path, programs: int) -> None:
    """Kill each program at each step of its journal, before and after it is written."""
    runs.RESULT_POLL_SECONDS = 0.002
    kills, failures = 0, Counter[str]()
    with closing(RunStore(directory, quota=RunQuota(total=10**6))) as store:
        for seed in range(programs):
            program = make_program(random.Random(seed))
            for step in range(MAX_STEPS):
                killed = 0
                for is_written in (False, True):
                    try:
                        killed += kill_and_resume(store, program, seed, step, is_written=is_written)
                    except AssertionError as error:
                        killed += 1
                        failures[str(error).splitlines()[0]] += 1
                kills += killed
                if not killed:
                    break
    print(
        f"random programs: {programs}, killed processes: {kills}, unapproved, doubled or lost:"
        f" {failures.total()}"
    )
    for text, count in failures.most_common(10):
        print(f"  {count}x {text}")


def main() -> None:
    parser = argparse.ArgumentParser(description="Measure policies and the journal")
    parser.add_argument("--rounds", type=int, default=200)
    parser.add_argument("--programs", type=int, default=100)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as directory:
        asyncio.run(measure_times(Path(directory), options.rounds))
        measure_kills(Path(directory) / "kills", options.programs)


if __name__ == "__main__":
    main()
