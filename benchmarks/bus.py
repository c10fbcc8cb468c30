"""Overhead of the bus for a call, in process, with few and with many registered tools."""

import asyncio
import statistics
import time
from collections.abc import Awaitable, Callable
from functools import partial

from benchmarks.lib import Row, WrongAnswer, interleave_async

from onetool.app import OneTool
from onetool.core.bus.bus import ToolBus
from onetool.core.python_backend import function_tool
from onetool.util.context import ToolContext

FEW, MANY = 10, 10_000
TOOL = "bench.tool_5"
BATCHES, CALLS = 9, 100
AT_ONCE = 10_000


def measure(rounds: int) -> list[Row]:
    samples = asyncio.run(measure_all(rounds))
    return [
        Row(
            "call_tool of an async function, against awaiting it",
            samples["few"],
            samples["function"],
            "us",
        ),
        Row(
            "the same on the server's bus, which logs", samples["logged"], samples["function"], "us"
        ),
        Row(
            f"call_tool among {MANY:,} tools, against {FEW}",
            samples["many"],
            samples["few"],
            "us",
            target=1.1,
        ),
        Row(
            f"call among {AT_ONCE:,} concurrent ones, against one alone",
            samples["at once"],
            samples["few"],
            "us",
        ),
    ]


async def measure_all(rounds: int) -> dict[str, list[float]]:
    few, many = make_bus(FEW), make_bus(MANY)
    async with OneTool() as app:
        app.bus.register_tool(function_tool(do_nothing, TOOL))
        contestants = {
            "function": partial(time_call, do_nothing),
            "few": partial(time_call, make_caller(few)),
            "many": partial(time_call, make_caller(many)),
            "logged": partial(time_call, make_caller(app.bus)),
            "at once": partial(time_concurrent_calls, make_caller(few)),
        }
        return await interleave_async(rounds, contestants)


async def do_nothing() -> None:
    """Do nothing."""


def make_bus(size: int) -> ToolBus:
    bus = ToolBus()
    for number in range(size):
        bus.register_tool(function_tool(do_nothing, f"bench.tool_{number}"))
    return bus


def make_caller(bus: ToolBus) -> Callable[[], Awaitable[None]]:
    context = ToolContext()  # a run has one for all its calls

    async def call() -> None:
        result = await bus.call_tool(TOOL, {}, context)
        if not result.ok:
            raise WrongAnswer(str(result.error))

    return call


async def time_call(call: Callable[[], Awaitable[None]]) -> float:
    """Return the median of several batches, so that interrupted batches do not count."""
    seconds = []
    for _ in range(BATCHES):
        started = time.perf_counter()
        for _ in range(CALLS):
            await call()
        seconds.append((time.perf_counter() - started) / CALLS)
    return statistics.median(seconds) * 1e6


async def time_concurrent_calls(call: Callable[[], Awaitable[None]]) -> float:
    started = time.perf_counter()
    await asyncio.gather(*(call() for _ in range(AT_ONCE)))
    return (time.perf_counter() - started) / AT_ONCE * 1e6
