"""`run("1+1")` over HTTP against an echo of the bare SDK server on the same uvicorn: time, the slowest, many clients.

The client is a few lines over asyncio, the same for all. Each of its connections asks again as soon as it is answered.
"""

import asyncio
import contextlib
import json
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from benchmarks.lib import ONETOOL, PATIENCE_SECONDS, SERVERS, Command, Row, WrongAnswer, interleave_async

BARE: Command = (sys.executable, SERVERS / "bare_sdk_http.py")
OURS: Command = (*ONETOOL, "serve", "--http", "--port", "0", "--json")
VERSION = "2026-07-28"
CROWDS = (1, 8, 64)
REQUESTS = 200
CALLS = 20
PAUSE_SECONDS = 0.02  # enough for a cell to wait again
MOST_ROUNDS = 5
TARGET = 1 / 0.7  # of the time that a request takes, where 0.7 is that of the requests in a second
ECHO, RUN, REST, CHECK = "echo", "run over MCP", "run over REST", "a look at /healthz"


@dataclass(frozen=True, slots=True)
class Asked:
    """One kind of request: what is sent, and what an answer that is right has in it."""

    port: int
    request: bytes
    right: bytes


@dataclass(frozen=True, slots=True)
class Crowd:
    """Milliseconds: how often there was an answer, and how long the slowest of a hundred waited."""

    each: float
    p99: float


def measure(rounds: int) -> list[Row]:
    with serving(BARE) as bare, serving(OURS) as ours:
        return asyncio.run(of_crowds(min(rounds, MOST_ROUNDS), contestants(bare, ours)))


def contestants(bare: int, ours: int) -> dict[str, Asked]:
    run = json.dumps({"command": "1+1"}).encode()
    return {
        ECHO: Asked(bare, over_mcp("echo", {"text": "1+1"}), b'"text":"1+1"'),
        RUN: Asked(ours, over_mcp("run", {"command": "1+1"}), b'"text":"2"'),
        REST: Asked(ours, posted("/api/run", run), b'"blocks":["2"]'),
        CHECK: Asked(ours, b"GET /healthz HTTP/1.1\r\nHost: localhost\r\n\r\n", b"ok"),
    }


async def of_crowds(rounds: int, all_asked: dict[str, Asked]) -> list[Row]:
    rows = [await with_pauses(rounds, all_asked)]
    for size in CROWDS:
        turns = {name: partial(crowd, asked, size) for name, asked in all_asked.items()}
        found = await interleave_async(rounds, turns)
        rows += list(as_rows(size, found))
    return rows


async def with_pauses(rounds: int, all_asked: dict[str, Asked]) -> Row:
    """A model takes its time between two turns."""
    found = await interleave_async(rounds * CALLS, {name: partial(paused, all_asked[name]) for name in (RUN, ECHO)})
    ours, theirs = ([statistics.median(some) for some in batched(found[name])] for name in (RUN, ECHO))
    return Row(f"HTTP, 1 client: {RUN}, a pause before each", ours, theirs, target=TARGET)


def batched(values: Sequence[float]) -> list[Sequence[float]]:
    return [values[start : start + CALLS] for start in range(0, len(values), CALLS)]


async def paused(asked: Asked) -> float:
    reader, writer = await asyncio.open_connection("127.0.0.1", asked.port)
    with contextlib.closing(writer):
        await timed(reader, writer, asked)
        await asyncio.sleep(PAUSE_SECONDS)
        return await timed(reader, writer, asked) * 1e3


def as_rows(size: int, found: dict[str, list[Crowd]]) -> Iterator[Row]:
    who = "1 client" if size == 1 else f"{size} clients"
    for name in (RUN, REST, CHECK):
        each, theirs = ([one.each for one in found[kind]] for kind in (name, ECHO))
        yield Row(f"HTTP, {who}: {name}, for each request", each, theirs, target=TARGET if name == RUN else None)
    slowest, theirs = ([one.p99 for one in found[kind]] for kind in (RUN, ECHO))
    yield Row(f"HTTP, {who}: {RUN}, p99", slowest, theirs)


# --- a crowd -------------------------------------------------------------------------------------------------------


async def crowd(asked: Asked, size: int) -> Crowd:
    started = time.perf_counter()
    waits = await asyncio.gather(*(client(asked, max(1, REQUESTS // size)) for _ in range(size)))
    took = time.perf_counter() - started
    every = [wait for some in waits for wait in some]
    return Crowd(took / len(every) * 1e3, statistics.quantiles(every, n=100)[-1] * 1e3)


async def client(asked: Asked, count: int) -> list[float]:
    reader, writer = await asyncio.open_connection("127.0.0.1", asked.port)
    with contextlib.closing(writer):
        return [await timed(reader, writer, asked) for _ in range(count)]


async def timed(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, asked: Asked) -> float:
    started = time.perf_counter()
    writer.write(asked.request)
    body = await asyncio.wait_for(answer(reader), PATIENCE_SECONDS)
    if asked.right not in body:
        raise WrongAnswer(body.decode(errors="replace"))
    return time.perf_counter() - started


async def answer(reader: asyncio.StreamReader) -> bytes:
    head = (await reader.readuntil(b"\r\n\r\n")).lower()
    length = head.partition(b"content-length: ")[2].partition(b"\r\n")[0]
    if length:
        return await reader.readexactly(int(length))
    body = b""
    while size := int(await reader.readuntil(b"\r\n"), 16):  # chunks
        body += (await reader.readexactly(size + 2))[:-2]
    await reader.readexactly(2)
    return body


# --- requests and servers ------------------------------------------------------------------------------------------


def over_mcp(tool: str, arguments: dict[str, Any]) -> bytes:
    about = {"protocolVersion": VERSION, "clientInfo": {"name": "bench", "version": "0"}, "clientCapabilities": {}}
    meta = {f"io.modelcontextprotocol/{key}": value for key, value in about.items()}
    params = {"_meta": meta, "name": tool, "arguments": arguments}
    body = json.dumps({"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": params}).encode()
    accept = "Accept: application/json, text/event-stream"
    return posted(
        "/mcp", body, accept, f"MCP-Protocol-Version: {VERSION}", "Mcp-Method: tools/call", f"Mcp-Name: {tool}"
    )


def posted(path: str, body: bytes, *fields: str) -> bytes:
    lines = [f"POST {path} HTTP/1.1", "Host: localhost:80", "Content-Type: application/json", *fields]
    return "\r\n".join([*lines, f"Content-Length: {len(body)}", "", ""]).encode() + body


@contextlib.contextmanager
def serving(command: Sequence[Any]) -> Iterator[int]:
    """The server's port, which it prints, alone or in a line of JSON."""
    quiet = subprocess.DEVNULL
    server = subprocess.Popen(command, stdin=quiet, stdout=subprocess.PIPE, stderr=quiet, env=dict(os.environ))
    try:
        assert server.stdout is not None
        said = json.loads(server.stdout.readline())
        yield said["port"] if isinstance(said, dict) else said
    finally:
        server.terminate()
        server.wait(PATIENCE_SECONDS)
        if server.stdout is not None:
            server.stdout.close()
