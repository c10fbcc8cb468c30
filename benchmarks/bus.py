"""What the bus adds to a call, and that it does not grow with the catalogue. In this process, no pipes."""

import asyncio
import statistics
import time
from collections.abc import Awaitable, Callable
from functools import partial

from benchmarks.lib import Row, WrongAnswer, interleave_async

from onetool.app import OneTool
from onetool.bus.adapt import function_tool
from onetool.bus.bus import ToolBus
from onetool.context import ToolContext

FEW, MANY = 10, 10_000
TOOL = "bench.tool_5"
BATCHES, CALLS = 9, 100
AT_ONCE = 10_000


def measure(rounds: int) -> list[Row]:
    samples = asyncio.run(measured(rounds))
    return [
        Row("call_tool of an async function, against awaiting it", samples["few"], samples["function"], "us"),
        Row("the same on the server's bus, which logs", samples["logged"], samples["function"], "us"),
        Row(f"call_tool among {MANY:,} tools, against {FEW}", samples["many"], samples["few"], "us", target=1.1),
        Row(f"a call of {AT_ONCE:,} side by side, against one alone", samples["at once"], samples["few"], "us"),
    ]


async def measured(rounds: int) -> dict[str, list[float]]:
    few, many = bus_of(FEW), bus_of(MANY)
    async with OneTool() as app:
        app.bus.register_tool(function_tool(nothing, TOOL))
        contestants = {
            "function": partial(per_call, nothing),
            "few": partial(per_call, through(few)),
            "many": partial(per_call, through(many)),
            "logged": partial(per_call, through(app.bus)),
            "at once": partial(side_by_side, through(few)),
        }
        return await interleave_async(rounds, contestants)


async def nothing() -> None:
    """Nothing at all."""


def bus_of(size: int) -> ToolBus:
    bus = ToolBus()
    for number in range(size):
        bus.register_tool(function_tool(nothing, f"bench.tool_{number}"))
    return bus


def through(bus: ToolBus) -> Callable[[], Awaitable[None]]:
    context = ToolContext()  # a run has one for all its calls

    async def call() -> None:
        result = await bus.call_tool(TOOL, {}, context)
        if not result.ok:
            raise WrongAnswer(str(result.error))

    return call


async def per_call(call: Callable[[], Awaitable[None]]) -> float:
    """The median of some batches: a batch that was interrupted does not count."""
    seconds = []
    for _ in range(BATCHES):
        started = time.perf_counter()
        for _ in range(CALLS):
            await call()
        seconds.append((time.perf_counter() - started) / CALLS)
    return statistics.median(seconds) * 1e6


async def side_by_side(call: Callable[[], Awaitable[None]]) -> float:
    started = time.perf_counter()
    await asyncio.gather(*(call() for _ in range(AT_ONCE)))
    return (time.perf_counter() - started) / AT_ONCE * 1e6
