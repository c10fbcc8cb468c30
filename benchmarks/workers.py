"""Extensions: a call to a worker, its start with and without an environment, concurrent calls, and
an idle server.

Packages come from uv's cache, which a first call fills, so the network is not measured.
"""

import asyncio
import json
import os
import statistics
import subprocess
import sys
import time
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from benchmarks.lib import ONETOOL, SERVERS, Row, WrongAnswer, interleave, interleave_async
from benchmarks.startup import start

from onetool.app import OneTool
from onetool.sources.extensions.environments import make_uv_environment

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

CALLS = 300
CONCURRENT, WORKERS = 1000, 4
PACKS = 50
DEPENDENCY = "six"
SOURCE = '''\
{header}"""A pack of the benchmark."""

import six  # noqa


def echo(text: str) -> str:
    """Return the same text."""
    return text
'''
HEADER = """\
# /// script
# requires-python = ">=3.11"
# dependencies = ["six"]  # {mark}
# ///
"""


def measure(rounds: int) -> list[Row]:
    samples = asyncio.run(measure_all(rounds))
    starts = interleave(
        rounds, {"packs": partial(time_start, PACKS), "none": partial(time_start, 0)}
    )
    few = samples["crossed"]
    return [
        Row(
            "warm call through bus and worker, against a bare line",
            samples["call"],
            samples["line"],
            "us",
            target=2,
        ),
        Row(
            "the same, against a bare line to an asyncio parent",
            samples["call"],
            samples["aline"],
            "us",
        ),
        Row(
            "first call, new environment, against uv run",
            samples["cold"],
            samples["uv run"],
            target=1.3,
        ),
        Row(
            "first call, existing environment, against its python",
            samples["warm"],
            samples["python"],
            target=1.5,
        ),
        Row(
            f"{CONCURRENT} calls at once over {WORKERS} workers: lost or mixed up",
            few,
            unit="",
            target=0,
        ),
        Row(
            f"start-up to tools/list with {PACKS} packs, against none",
            starts["packs"],
            starts["none"],
            target=1.1,
        ),
    ]


async def measure_all(rounds: int) -> dict[str, list[float]]:
    echo = start_echo()
    aecho = await asyncio.create_subprocess_exec(
        sys.executable, SERVERS / "echo_lines.py", stdin=subprocess.PIPE, stdout=subprocess.PIPE
    )
    async with OneTool() as app:
        for number in range(WORKERS):
            pack(f"known{number}", "known")
            await call(app, f"known{number}.echo", "there")
        contestants: dict[str, Callable[[], Awaitable[float]]] = {
            "call": partial(time_warm_calls, app),
            "line": partial(time_lines, echo),
            "aline": partial(time_async_lines, aecho),
            "cold": partial(time_cold_start, app),
            "uv run": time_uv_run,
            "warm": partial(time_warm_start, app),
            "python": time_python_start,
            "crossed": partial(count_crossed, app),
        }
        samples = await interleave_async(rounds, contestants)
    echo.kill()
    aecho.kill()
    await aecho.wait()
    return samples


def start_echo() -> "subprocess.Popen[bytes]":
    return subprocess.Popen(
        [sys.executable, SERVERS / "echo_lines.py"], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    )


# --- a call ---------------------------------------------------------------------------------------


async def call(app: OneTool, name: str, text: str) -> Any:
    return (await app.bus.call_tool(name, {"text": text}, app.context())).unwrap()


async def time_warm_calls(app: OneTool) -> float:
    context, seconds = app.context(), []
    for _ in range(CALLS):
        started = time.perf_counter()
        await app.bus.call_tool("known0.echo", {"text": "x"}, context)
        seconds.append(time.perf_counter() - started)
    return statistics.median(seconds) * 1e6


async def time_lines(echo: "subprocess.Popen[bytes]") -> float:
    assert echo.stdin is not None
    assert echo.stdout is not None
    seconds = []
    for ident in range(CALLS):
        started = time.perf_counter()
        echo.stdin.write(json.dumps(make_request(ident)).encode() + b"\n")
        echo.stdin.flush()
        json.loads(echo.stdout.readline())
        seconds.append(time.perf_counter() - started)
    return statistics.median(seconds) * 1e6


async def time_async_lines(echo: asyncio.subprocess.Process) -> float:
    assert echo.stdin is not None
    assert echo.stdout is not None
    seconds = []
    for ident in range(CALLS):
        started = time.perf_counter()
        echo.stdin.write(json.dumps(make_request(ident)).encode() + b"\n")
        json.loads(await echo.stdout.readline())
        seconds.append(time.perf_counter() - started)
    return statistics.median(seconds) * 1e6


def make_request(ident: int) -> dict[str, Any]:
    return {
        "jsonrpc": "2.0",
        "id": ident,
        "method": "call",
        "params": {"function": "echo", "args": {"text": "x"}},
    }


async def count_crossed(app: OneTool) -> float:
    """Count the concurrent calls that got no answer, or the answer of another call."""
    texts = [f"{number}-{os.urandom(4).hex()}" for number in range(CONCURRENT)]
    calls = [call(app, f"known{number % WORKERS}.echo", text) for number, text in enumerate(texts)]
    answers = await asyncio.gather(*calls, return_exceptions=True)
    return float(sum(answer != text for answer, text in zip(answers, texts, strict=True)))


# --- a start --------------------------------------------------------------------------------------


def pack(name: str, mark: str) -> Path:
    file = Path.home() / ".onetool" / "tools" / name / f"{name}_tools.py"
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(SOURCE.format(header=HEADER.format(mark=mark)), encoding="utf-8")
    return file


async def time_first_call(app: OneTool, mark: str) -> float:
    """Measure the first call of a new pack."""
    name = f"new{os.urandom(4).hex()}"
    file = pack(name, mark)
    started = time.perf_counter()
    if await call(app, f"{name}.echo", "there") != "there":
        raise WrongAnswer(name)
    seconds = time.perf_counter() - started
    file.unlink()
    await app.discover()
    return seconds * 1e3


async def time_cold_start(app: OneTool) -> float:
    return await time_first_call(app, os.urandom(4).hex())


async def time_warm_start(app: OneTool) -> float:
    return await time_first_call(app, "known")


async def time_uv_run() -> float:
    from uv import find_uv_bin

    return time_call(
        [
            find_uv_bin(),
            "run",
            "-q",
            "--script",
            str(pack(f"run{os.urandom(4).hex()}", os.urandom(4).hex())),
        ]
    )


async def time_python_start() -> float:
    """Run the same file with the interpreter of its environment."""
    known = next((Path.home() / ".onetool" / "environments").glob("*.path")).read_text(
        encoding="utf-8"
    )
    return time_call([known, str(pack("known0", "known"))])


def time_call(command: list[str]) -> float:
    started = time.perf_counter()
    subprocess.run(command, check=True, env=make_uv_environment(os.environ))
    return (time.perf_counter() - started) * 1e3


def time_start(packs: int) -> float:
    """Measure the time to `tools/list` with this many packs in the directory."""
    tools = Path.home() / ".onetool" / "tools"
    aside = tools.with_name("tools-aside")
    if tools.exists():
        tools.rename(aside)
    for number in range(packs):
        pack(f"idle{number}", "known")
    try:
        return start(ONETOOL).listed
    finally:
        if tools.exists():
            subprocess.run(["rm", "-rf", str(tools)], check=True)
        if aside.exists():
            aside.rename(tools)
