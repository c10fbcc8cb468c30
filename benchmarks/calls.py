"""A tool call from a cell against a bare JSON line over pipes.

The parent of both is this asyncio process.

Both callers time themselves, one call after the other, and report the median.
"""

import asyncio
import json
import sys
from asyncio.subprocess import PIPE, Process
from functools import partial

from benchmarks.lib import SERVERS, Row, WrongAnswer, interleave_async

from onetool.app import OneTool
from onetool.core.tool import tool

CALLS = 300
CODE = """
import time
def timed():
    started = time.perf_counter()
    bench.{name}()
    return time.perf_counter() - started
sorted(timed() for _ in range({calls}))[{calls} // 2]
"""


def measure(rounds: int) -> list[Row]:
    samples = asyncio.run(measure_all(rounds))
    return [
        Row("call of an async tool from a cell", samples["async"], samples["line"], "us", target=2),
        Row(
            "call of a sync tool from a cell (one more thread)",
            samples["sync"],
            samples["line"],
            "us",
        ),
    ]


async def measure_all(rounds: int) -> dict[str, list[float]]:
    child = await asyncio.create_subprocess_exec(
        sys.executable, SERVERS / "json_lines.py", stdin=PIPE, stdout=PIPE
    )
    async with OneTool() as app:
        app.bus.register_tool(do_nothing)
        app.bus.register_tool(do_nothing_in_thread)
        contestants = {
            "async": partial(call_from_cell, app, "at_once"),
            "sync": partial(call_from_cell, app, "in_a_thread"),
            "line": partial(call_over_pipes, child),
        }
        samples = await interleave_async(rounds, contestants)
    await end(child)
    return samples


@tool("bench.at_once")
async def do_nothing() -> None:
    """Do nothing on the event loop."""


@tool("bench.in_a_thread")
def do_nothing_in_thread() -> None:
    """Do nothing in a thread."""


async def call_from_cell(app: OneTool, name: str) -> float:
    answer = await app.run(CODE.format(name=name, calls=CALLS))
    if answer.is_error:
        raise WrongAnswer(answer.text)
    return float(answer.text) * 1e6


async def call_over_pipes(child: Process) -> float:
    assert child.stdin is not None
    assert child.stdout is not None
    await send(child.stdin, {"calls": CALLS})
    while "median" not in (message := json.loads(await child.stdout.readline())):
        await send(child.stdin, {"jsonrpc": "2.0", "id": message["id"], "result": None})
    return float(message["median"]) * 1e6


async def send(writer: asyncio.StreamWriter, message: dict[str, object]) -> None:
    writer.write(json.dumps(message).encode() + b"\n")
    await writer.drain()


async def end(child: Process) -> None:
    assert child.stdin is not None
    child.stdin.close()
    await child.wait()
