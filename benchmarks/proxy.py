"""Servers behind `run` against the same servers connected directly: time of a call, start-up time,
and tokens.

The servers are public ones, installed once for tests and benchmarks. The baseline is the SDK's
client connected to the server. OneTool is measured twice: `run` in this process (its own overhead),
and through the SDK's client.
"""

import asyncio
import json
import logging
import os
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from functools import partial
from pathlib import Path
from typing import Any, TextIO

from benchmarks import lib
from benchmarks.lib import ONETOOL, Row, WrongAnswer, interleave, interleave_async
from mcp import Client, StdioServerParameters
from mcp.client.stdio import stdio_client
from tests.proxy_support import HOSTILE, node_server, python_server

from onetool.app import OneTool
from onetool.settings.model import Settings
from onetool.state.stats.details import count_tokens
from onetool.util.logging import Log

CALLS = 20
SIDE_BY_SIDE = 20
TEN = 10
CODE = "every.echo(message='hello')"
IN_TURN = f"for n in range({SIDE_BY_SIDE}): {CODE}"
PARALLEL = (
    f"len(ot.parallel([lambda n=n: every.echo(message=str(n)) for n in range({SIDE_BY_SIDE})]))"
)
WAIT = "every.trigger_long_running_operation(duration=0.1, steps=1)"
WAITS = f"len(ot.parallel([lambda: {WAIT} for n in range({SIDE_BY_SIDE})]))"


def measure(rounds: int) -> list[Row]:
    logging.getLogger("mcp.client").addHandler(logging.NullHandler())  # one of the servers is noisy
    with tempfile.TemporaryDirectory() as folder:
        return [
            *asyncio.run(measure_calls(rounds, Path(folder))),
            *measure_starts(rounds, Path(folder)),
            measure_tokens(Path(folder)),
        ]


# --- calls ----------------------------------------------------------------------------------------


async def measure_calls(rounds: int, folder: Path) -> list[Row]:
    server = node_server("everything")
    home = configure(folder / "calls", {"every": server})
    settings = Settings.model_validate({"servers": {"every": server}})
    async with (
        connect_directly(server) as bare,
        connect_through_onetool(home) as ours,
        OneTool(settings, folder=folder / "here", log=Log()) as app,
    ):
        await check(bare, ours)
        await app.run(WAIT)
        samples = await interleave_async(
            rounds,
            {
                "direct": partial(median, partial(bare.call_tool, "echo", {"message": "hello"})),
                "directly in turn": partial(median, partial(time_sequential_calls, bare), 5),
                "directly at once": partial(median, partial(time_concurrent_calls, bare), 5),
                "in turn": partial(median, partial(app.run, IN_TURN), 5),
                "at once": partial(median, partial(app.run, PARALLEL), 5),
                "here": partial(median, partial(app.run, CODE)),
                "by the bus": partial(median, partial(time_bus_call, app)),
                "one": partial(median, partial(run, ours, CODE)),
                "many": partial(median, partial(run, ours, PARALLEL)),
                "wait": partial(median, partial(app.run, WAIT), 3),
                "waits": partial(median, partial(app.run, WAITS), 3),
            },
        )
    return [
        Row(
            "proxied call through run, against a direct call",
            samples["here"],
            samples["direct"],
            target=1.5,
        ),
        Row("the same by the bus, without a run", samples["by the bus"], samples["direct"]),
        Row(
            "the same, over the client's connection to OneTool",
            samples["one"],
            samples["direct"],
            target=1.5,
        ),
        Row(
            f"{SIDE_BY_SIDE} sequential calls in one run, against {SIDE_BY_SIDE} direct calls",
            samples["in turn"],
            samples["directly in turn"],
            target=1.5,
        ),
        Row(
            f"{SIDE_BY_SIDE} concurrent calls of 100 ms in one run, against one",
            samples["waits"],
            samples["wait"],
            target=2,
        ),
        Row(
            f"{SIDE_BY_SIDE} concurrent echo calls in one run, against one",
            samples["many"],
            samples["one"],
            target=2,
        ),
        Row(
            "the same in process, against as many direct calls",
            samples["at once"],
            samples["directly at once"],
        ),
        Row("as many direct calls, against one", samples["directly at once"], samples["direct"]),
    ]


async def time_bus_call(app: OneTool) -> None:
    result = await app.bus.call_tool("every.echo", {"message": "hello"}, app.context())
    if result.unwrap() != "Echo: hello":
        raise WrongAnswer(str(result))


async def time_sequential_calls(bare: Client) -> None:
    for _ in range(SIDE_BY_SIDE):
        await bare.call_tool("echo", {"message": "hello"})


async def time_concurrent_calls(bare: Client) -> None:
    await asyncio.gather(
        *(bare.call_tool("echo", {"message": str(number)}) for number in range(SIDE_BY_SIDE))
    )


async def check(bare: Client, ours: Client) -> None:
    """Check that all contestants return the right answer."""
    answers = [
        await bare.call_tool("echo", {"message": "hello"}),
        await run(ours, CODE),
        await run(ours, PARALLEL),
    ]
    texts = [getattr(answer.content[0], "text", "") for answer in answers]
    if texts != ["Echo: hello", "Echo: hello", str(SIDE_BY_SIDE)]:
        raise WrongAnswer(str(texts))


def run(client: Client, code: str) -> Awaitable[Any]:
    return client.call_tool("run", {"command": code})


async def median(call: Callable[[], Awaitable[Any]], calls: int = CALLS) -> float:
    """Return the median of several calls in milliseconds, with a pause before each so that a cell
    is ready.
    """
    taken = []
    for _ in range(calls):
        await asyncio.sleep(0.01)
        started = time.perf_counter()
        await call()
        taken.append((time.perf_counter() - started) * 1e3)
    return sorted(taken)[len(taken) // 2]


@asynccontextmanager
async def connect_directly(server: dict[str, Any]) -> AsyncIterator[Client]:
    start = StdioServerParameters(
        command=server["command"], args=server["args"], env=server.get("env")
    )
    with discard_stderr() as nothing:
        async with Client(stdio_client(start, nothing)) as client:
            yield client


def discard_stderr() -> TextIO:
    return Path(os.devnull).open("w")


@asynccontextmanager
async def connect_through_onetool(home: Path) -> AsyncIterator[Client]:
    async with Client(
        StdioServerParameters(command=str(ONETOOL[0]), env={"HOME": str(home)}, cwd=home)
    ) as client:
        yield client


def configure(home: Path, servers: dict[str, Any]) -> Path:
    (home / ".onetool").mkdir(parents=True)
    (home / ".onetool" / "onetool.yaml").write_text(json.dumps({"servers": servers}))
    return home


# --- starts ---------------------------------------------------------------------------------------


def measure_starts(rounds: int, folder: Path) -> list[Row]:
    server = {"command": sys.executable, "args": [str(HOSTILE), "good"]}
    ten = configure(folder / "ten", {f"server{number}": server for number in range(TEN)})
    none = configure(folder / "none", {})
    starts = interleave(rounds, {"ten": partial(start, ten), "none": partial(start, none)})
    return [
        Row(
            f"start-up to tools/list, {TEN} servers against none",
            starts["ten"],
            starts["none"],
            target=1.1,
        )
    ]


def start(home: Path) -> float:
    with lib.Client(("env", f"HOME={home}", *ONETOOL)) as client:
        client.open()
        return (time.perf_counter() - client.spawned) * 1e3


# --- tokens ---------------------------------------------------------------------------------------


def measure_tokens(folder: Path) -> Row:
    """Count the tokens that a client loads before its first request."""
    servers = {
        "everything": node_server("everything"),
        "filesystem": node_server("filesystem", str(folder)),
        "memory": node_server("memory"),
        "time": python_server("mcp-server-time"),
        "git": python_server("mcp-server-git"),
        "word": python_server("word_mcp_server", cwd=str(folder)),
    }
    return asyncio.run(
        _measure_tokens(configure(folder / "tokens", servers), list(servers.values()))
    )


async def _measure_tokens(home: Path, servers: list[dict[str, Any]]) -> Row:
    async with AsyncExitStack() as stack:
        ours = await count_client_tokens(
            await stack.enter_async_context(connect_through_onetool(home))
        )
        clients = [await stack.enter_async_context(connect_directly(server)) for server in servers]
        theirs = sum([await count_client_tokens(client) for client in clients])
    return Row(
        f"tokens a client loads, {len(servers)} real servers",
        [ours],
        [theirs],
        "tokens",
        target=0.1,
    )


async def count_client_tokens(client: Client) -> int:
    listed = await client.list_tools()
    tools = sum(
        count_tokens(tool.model_dump(mode="json", by_alias=True, exclude_none=True))
        for tool in listed.tools
    )
    return tools + count_tokens(client.instructions or "")
