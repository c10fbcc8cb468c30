"""A call that a worker of a queue makes, from submission to the result, against the same call of a
local worker.

`uv run python benchmarks/run.py --only queues` starts a PostgreSQL that writes durably, one
`onetool worker` and OneTool, and makes the calls one after another.
"""

import asyncio
import os
import statistics
import subprocess
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from pathlib import Path

from benchmarks.lib import ONETOOL, Row, WrongAnswer, interleave_async
from tests.postgres_support import run_postgres

from onetool.app import OneTool

CALLS = 60
AT_ONCE = 200
SOURCE = '''\
def echo(text: str) -> str:
    """Return the same text."""
    return text
'''
SETTINGS = "tools: {far: {queue: far}}\n"


def measure(rounds: int) -> list[Row]:
    with run_postgres(is_durable=True) as server:
        url = server.url(server.create_database())
        variables = {**os.environ, "ONETOOL_STORE": url, "ONETOOL_KEY": "a1" * 32}
        with (
            _write_home(Path("replica"), variables) as replica,
            _write_home(Path("worker"), variables) as worker,
        ):
            samples = asyncio.run(measure_all(rounds, replica, worker))
    return [
        Row(
            "call through a queue, submit to done, against a local worker",
            samples["far"],
            samples["near"],
        ),
        Row(
            f"{AT_ONCE} calls at once through a queue, time for each",
            samples["many"],
            samples["many near"],
        ),
    ]


@contextmanager
def _write_home(home: Path, variables: Mapping[str, str]) -> Iterator[dict[str, str]]:
    """Write settings and packs, and yield the environment of a process with this home."""
    for pack in ("near", "far"):
        folder = home / ".onetool" / "tools" / pack
        folder.mkdir(parents=True)
        (folder / f"{pack}_tools.py").write_text(SOURCE)
    (home / ".onetool" / "onetool.yaml").write_text(SETTINGS)
    yield {**variables, "HOME": str(home.absolute())}


async def measure_all(
    rounds: int, replica: Mapping[str, str], worker: Mapping[str, str]
) -> dict[str, list[float]]:
    os.environ["HOME"] = replica["HOME"]
    async with OneTool.from_files(environment=replica) as app:
        await app.discover()
        process = start_worker(worker)
        try:
            return await interleave_async(
                rounds,
                {
                    "far": partial(time_calls, app, "far.echo"),
                    "near": partial(time_calls, app, "near.echo"),
                    "many": partial(time_calls_at_once, app, "far.echo"),
                    "many near": partial(time_calls_at_once, app, "near.echo"),
                },
            )
        finally:
            process.terminate()
            process.wait()


def start_worker(environment: Mapping[str, str]) -> "subprocess.Popen[bytes]":
    """Start a worker, and wait until it takes jobs."""
    command = [*ONETOOL, "worker", "--queue", "far", "--concurrency", "8", "--json"]
    process = subprocess.Popen(
        command, env=dict(environment), stdout=subprocess.PIPE, stderr=subprocess.DEVNULL
    )
    assert process.stdout is not None
    if not process.stdout.readline():
        raise WrongAnswer("the worker did not start")
    return process


async def call(app: OneTool, tool: str, text: str) -> None:
    answer = (await app.bus.call_tool(tool, {"text": text}, app.context())).unwrap()
    if answer != text:
        raise WrongAnswer(answer)


async def time_calls(app: OneTool, tool: str) -> float:
    seconds = []
    for number in range(CALLS):
        started = time.perf_counter()
        await call(app, tool, str(number))
        seconds.append(time.perf_counter() - started)
    return statistics.median(seconds) * 1e3


async def time_calls_at_once(app: OneTool, tool: str) -> float:
    started = time.perf_counter()
    await asyncio.gather(*(call(app, tool, str(number)) for number in range(AT_ONCE)))
    return (time.perf_counter() - started) / AT_ONCE * 1e3
