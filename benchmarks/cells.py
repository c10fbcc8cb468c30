"""Cost of a cell without a server, against starting a bare Python process."""

import asyncio
import statistics
import subprocess
import sys
import time
from collections.abc import Awaitable, Callable, Mapping
from functools import partial
from typing import Any

from benchmarks.lib import TIMEOUT_SECONDS, Row, WrongAnswer, interleave_async

from onetool.errors import ToolError
from onetool.processes.channel import Channel
from onetool.runs.cells import CellLimits
from onetool.runs.launch import Launcher, launcher_for
from onetool.util.context import Result

CELLS = 10
PROCESSES = 3
PAUSE_SECONDS = 0.01
LIMITS = CellLimits()
OPTIONS = {
    "memory_bytes": LIMITS.memory_mb << 20,
    "file_bytes": LIMITS.max_output_bytes,
    "isolation": LIMITS.isolation,
}
RUN: dict[str, Any] = {
    "code": "1+1",
    "names": {"packs": {}, "tools": {}},
    "format": None,
    "timeout": LIMITS.timeout,
    "seconds_left": LIMITS.timeout,
    "max_output": LIMITS.max_output_bytes,
}


def measure(rounds: int) -> list[Row]:
    samples = asyncio.run(measure_all(rounds))
    against = samples["python"]
    return [
        Row("cell: fork to ready, against starting python -I -S", samples["ready"], against),
        Row("cell: run to answer with a waiting cell", samples["waiting"], against),
        Row("cell: run to answer without one (fork, ready, run)", samples["fresh"], against),
        Row("cell: first run (zygote start, fork, ready, run)", samples["first"], against),
    ]


async def measure_all(rounds: int) -> dict[str, list[float]]:
    nursery = BareLauncher()
    contestants: Mapping[str, Callable[[], Awaitable[float]]] = {
        "ready": partial(compute_median, CELLS, partial(time_ready, nursery)),
        "waiting": partial(compute_median, CELLS, partial(time_waiting, nursery)),
        "fresh": partial(compute_median, CELLS, partial(time_fresh, nursery)),
        "first": partial(compute_median, 1, time_first),
        "python": partial(compute_median, PROCESSES, time_bare_python),
    }
    samples = await interleave_async(rounds, contestants)
    await nursery.close()
    return samples


class BareLauncher:
    """A launcher of cells without a pool: each cell is started on request."""

    def __init__(self) -> None:
        self._launcher: Launcher = launcher_for(sys.platform)(
            OPTIONS, self._on_gone, lambda _text: None
        )
        self._gone: dict[int, asyncio.Future[None]] = {}

    async def start(self) -> tuple[int, Channel]:
        """Start a cell and wait until it is ready."""
        ident = len(self._gone) + 1
        loop = asyncio.get_running_loop()
        said: asyncio.Future[None] = loop.create_future()
        self._gone[ident] = loop.create_future()
        channel = Channel(
            reject_request,
            lambda _method, _params: said.set_result(None),
            lambda _kind, _data: None,
        )
        await self._launcher.start(ident, channel, lambda _text: None)
        await asyncio.wait_for(said, TIMEOUT_SECONDS)
        return ident, channel

    async def end(self, ident: int, channel: Channel) -> None:
        """Wait until the process is gone, so that its end does not disturb other measurements."""
        channel.close()
        self._launcher.kill(ident)
        await asyncio.wait_for(self._gone[ident], TIMEOUT_SECONDS)

    async def close(self) -> None:
        await self._launcher.close()

    def _on_gone(self, ident: int, *_how: object) -> None:
        if not self._gone[ident].done():
            self._gone[ident].set_result(None)


async def reject_request(method: str, _params: dict[str, Any]) -> Result:
    return Result(ok=False, error=ToolError(f"nobody is here to answer {method}"))


async def time_ready(nursery: BareLauncher) -> float:
    started = time.perf_counter()
    cell = await nursery.start()
    seconds = time.perf_counter() - started
    await nursery.end(*cell)
    return seconds


async def time_waiting(nursery: BareLauncher) -> float:
    ident, channel = await nursery.start()
    await asyncio.sleep(PAUSE_SECONDS)
    started = time.perf_counter()
    await run(channel)
    seconds = time.perf_counter() - started
    await nursery.end(ident, channel)
    return seconds


async def time_fresh(nursery: BareLauncher) -> float:
    started = time.perf_counter()
    ident, channel = await nursery.start()
    await run(channel)
    seconds = time.perf_counter() - started
    await nursery.end(ident, channel)
    return seconds


async def time_first() -> float:
    nursery = BareLauncher()
    seconds = await time_fresh(nursery)
    await nursery.close()
    return seconds


async def run(channel: Channel) -> None:
    answer = await channel.request("run", RUN)
    if answer["value"] != 2:
        raise WrongAnswer(str(answer))


async def time_bare_python() -> float:
    started = time.perf_counter()
    start_python()
    return time.perf_counter() - started


def start_python() -> None:
    subprocess.run([sys.executable, "-I", "-S", "-c", "pass"], check=True)


async def compute_median(times: int, once: Callable[[], Awaitable[float]]) -> float:
    return statistics.median([await once() for _ in range(times)]) * 1e3
