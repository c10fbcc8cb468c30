"""Runs in WebAssembly sandboxes against runs in cells that the Linux kernel confines.

Needs the extra `wasm`.
"""

import asyncio
import os
import tempfile
import time
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from benchmarks.lib import Row, WrongAnswer, interleave_async, memory, tree

from onetool import OneTool
from onetool.runs.wasm_launcher import find_wasm_problem
from onetool.settings.model import Settings

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

MODES = ("kernel", "wasm")
PAUSE_SECONDS = 0.5  # until a cell is ready
RUNS, CALLS = 10, 100
CALL_CODE = f"[machine.now() for _ in range({CALLS})][-1] and 2"


def measure(rounds: int) -> list[Row]:
    if problem := find_wasm_problem():
        print(f"isolation: skipped: {problem}")
        return []
    samples = asyncio.run(measure_all(rounds))
    what = {
        "waiting": ("run to answer with a waiting cell", "ms"),
        "burst": (f"one of {RUNS} runs back to back", "ms"),
        "call": (f"one of {CALLS} tool calls in a run", "ms"),
        "first": ("start of the application to the first answer", "ms"),
        "memory": ("memory of the child processes, two cells waiting (PSS)", "MB"),
    }
    return [
        Row(
            f"isolation: {text}, WebAssembly against kernel",
            samples[f"{name}-wasm"],
            samples[f"{name}-kernel"],
            unit,
        )
        for name, (text, unit) in what.items()
    ]


async def measure_all(rounds: int) -> dict[str, list[float]]:
    contestants: dict[str, Callable[[], Awaitable[float]]] = {}
    async with open_app("kernel") as kernel, open_app("wasm") as wasm:
        for mode, app in zip(MODES, (kernel, wasm), strict=True):
            contestants[f"waiting-{mode}"] = partial(time_waiting, app)
            contestants[f"burst-{mode}"] = partial(time_burst, app)
            contestants[f"call-{mode}"] = partial(time_call, app)
            contestants[f"first-{mode}"] = partial(time_first, mode)
            contestants[f"memory-{mode}"] = partial(measure_memory, mode)
        return await interleave_async(rounds, contestants)


def open_app(mode: str) -> OneTool:
    settings = Settings.model_validate(
        {"execution": {"isolation": "require" if mode == "kernel" else "wasm"}}
    )
    return OneTool(settings, folder=Path(tempfile.mkdtemp()))


async def run(app: OneTool, code: str = "1+1") -> float:
    """Return the seconds until the answer."""
    started = time.perf_counter()
    answer = await app.run(code)
    if answer.text != "2":
        raise WrongAnswer(answer.text)
    return time.perf_counter() - started


async def time_waiting(app: OneTool) -> float:
    await asyncio.sleep(PAUSE_SECONDS)
    return await run(app) * 1e3


async def time_burst(app: OneTool) -> float:
    await asyncio.sleep(PAUSE_SECONDS)
    return sum([await run(app) for _ in range(RUNS)]) / RUNS * 1e3


async def time_call(app: OneTool) -> float:
    await asyncio.sleep(PAUSE_SECONDS)
    return await run(app, CALL_CODE) / CALLS * 1e3


async def time_first(mode: str) -> float:
    started = time.perf_counter()
    async with open_app(mode) as app:
        await run(app)
        return (time.perf_counter() - started) * 1e3


async def measure_memory(mode: str) -> float:
    """Return the memory of the children of one application, which shares this process with others."""
    before = {*tree(os.getpid())}
    async with open_app(mode) as app:
        await run(app)
        await asyncio.sleep(2 * PAUSE_SECONDS)
        children = [pid for pid in tree(os.getpid()) if pid not in before]
        return sum(memory(pid).share for pid in children)
