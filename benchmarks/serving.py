"""`run("1+1")` over HTTP against an echo of the bare SDK server on the same uvicorn: time, p99,
concurrent clients.

All contestants use the same small asyncio client. Each connection sends the next request after the
response.
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

from benchmarks.lib import (
    ONETOOL,
    SERVERS,
    TIMEOUT_SECONDS,
    Command,
    Row,
    WrongAnswer,
    interleave_async,
)

BARE: Command = (sys.executable, SERVERS / "bare_sdk_http.py")
OURS: Command = (*ONETOOL, "serve", "--http", "--port", "0", "--json")
VERSION = "2026-07-28"
CROWDS = (1, 8, 64)
REQUESTS = 200
CALLS = 20
PAUSE_SECONDS = 0.02  # enough for the next cell to be ready
MAX_ROUNDS = 5
TARGET = 1 / 0.7  # ratio of times: at least 0.7 of the requests per second
ECHO, RUN, REST, CHECK = "echo", "run over MCP", "run over REST", "GET /healthz"


@dataclass(frozen=True, slots=True)
class RequestKind:
    """One kind of request, and the text that a correct response contains."""

    port: int
    request: bytes
    right: bytes


@dataclass(frozen=True, slots=True)
class Load:
    """Milliseconds per response, and the 99th percentile of the latency."""

    each: float
    p99: float


def measure(rounds: int) -> list[Row]:
    with start_server(BARE) as bare, start_server(OURS) as ours:
        return asyncio.run(measure_loads(min(rounds, MAX_ROUNDS), make_contestants(bare, ours)))


def make_contestants(bare: int, ours: int) -> dict[str, RequestKind]:
    run = json.dumps({"command": "1+1"}).encode()
    return {
        ECHO: RequestKind(bare, make_mcp_request("echo", {"text": "1+1"}), b'"text":"1+1"'),
        RUN: RequestKind(ours, make_mcp_request("run", {"command": "1+1"}), b'"text":"2"'),
        REST: RequestKind(ours, make_post("/api/run", run), b'"blocks":["2"]'),
        CHECK: RequestKind(ours, b"GET /healthz HTTP/1.1\r\nHost: localhost\r\n\r\n", b"ok"),
    }


async def measure_loads(rounds: int, all_asked: dict[str, RequestKind]) -> list[Row]:
    rows = [await measure_with_pauses(rounds, all_asked)]
    for size in CROWDS:
        turns = {name: partial(measure_load, asked, size) for name, asked in all_asked.items()}
        found = await interleave_async(rounds, turns)
        rows += list(make_rows(size, found))
    return rows


async def measure_with_pauses(rounds: int, all_asked: dict[str, RequestKind]) -> Row:
    """Measure with a pause before each request, like the pause between two turns of a model."""
    found = await interleave_async(
        rounds * CALLS, {name: partial(time_paused, all_asked[name]) for name in (RUN, ECHO)}
    )
    ours, theirs = (
        [statistics.median(some) for some in split_batches(found[name])] for name in (RUN, ECHO)
    )
    return Row(f"HTTP, 1 client: {RUN}, a pause before each", ours, theirs, target=TARGET)


def split_batches(values: Sequence[float]) -> list[Sequence[float]]:
    return [values[start : start + CALLS] for start in range(0, len(values), CALLS)]


async def time_paused(asked: RequestKind) -> float:
    reader, writer = await asyncio.open_connection("127.0.0.1", asked.port)
    with contextlib.closing(writer):
        await time_request(reader, writer, asked)
        await asyncio.sleep(PAUSE_SECONDS)
        return await time_request(reader, writer, asked) * 1e3


def make_rows(size: int, found: dict[str, list[Load]]) -> Iterator[Row]:
    who = "1 client" if size == 1 else f"{size} clients"
    for name in (RUN, REST, CHECK):
        each, theirs = ([one.each for one in found[kind]] for kind in (name, ECHO))
        yield Row(
            f"HTTP, {who}: {name}, per request",
            each,
            theirs,
            target=TARGET if name == RUN else None,
        )
    slowest, theirs = ([one.p99 for one in found[kind]] for kind in (RUN, ECHO))
    yield Row(f"HTTP, {who}: {RUN}, p99", slowest, theirs)


# --- concurrent clients ---------------------------------------------------------------------------


async def measure_load(asked: RequestKind, size: int) -> Load:
    started = time.perf_counter()
    waits = await asyncio.gather(
        *(run_client(asked, max(1, REQUESTS // size)) for _ in range(size))
    )
    took = time.perf_counter() - started
    every = [wait for some in waits for wait in some]
    return Load(took / len(every) * 1e3, statistics.quantiles(every, n=100)[-1] * 1e3)


async def run_client(asked: RequestKind, count: int) -> list[float]:
    reader, writer = await asyncio.open_connection("127.0.0.1", asked.port)
    with contextlib.closing(writer):
        return [await time_request(reader, writer, asked) for _ in range(count)]


async def time_request(
    reader: asyncio.StreamReader, writer: asyncio.StreamWriter, asked: RequestKind
) -> float:
    started = time.perf_counter()
    writer.write(asked.request)
    body = await asyncio.wait_for(read_response(reader), TIMEOUT_SECONDS)
    if asked.right not in body:
        raise WrongAnswer(body.decode(errors="replace"))
    return time.perf_counter() - started


async def read_response(reader: asyncio.StreamReader) -> bytes:
    head = (await reader.readuntil(b"\r\n\r\n")).lower()
    length = head.partition(b"content-length: ")[2].partition(b"\r\n")[0]
    if length:
        return await reader.readexactly(int(length))
    body = b""
    while size := int(await reader.readuntil(b"\r\n"), 16):  # chunks
        body += (await reader.readexactly(size + 2))[:-2]
    await reader.readexactly(2)
    return body


# --- requests and servers -------------------------------------------------------------------------


def make_mcp_request(tool: str, arguments: dict[str, Any]) -> bytes:
    about = {
        "protocolVersion": VERSION,
        "clientInfo": {"name": "bench", "version": "0"},
        "clientCapabilities": {},
    }
    meta = {f"io.modelcontextprotocol/{key}": value for key, value in about.items()}
    params = {"_meta": meta, "name": tool, "arguments": arguments}
    body = json.dumps(
        {"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": params}
    ).encode()
    accept = "Accept: application/json, text/event-stream"
    return make_post(
        "/mcp",
        body,
        accept,
        f"MCP-Protocol-Version: {VERSION}",
        "Mcp-Method: tools/call",
        f"Mcp-Name: {tool}",
    )


def make_post(path: str, body: bytes, *fields: str) -> bytes:
    lines = [
        f"POST {path} HTTP/1.1",
        "Host: localhost:80",
        "Content-Type: application/json",
        *fields,
    ]
    return "\r\n".join([*lines, f"Content-Length: {len(body)}", "", ""]).encode() + body


@contextlib.contextmanager
def start_server(command: Sequence[Any]) -> Iterator[int]:
    """Return the port that the server prints, alone or in a line of JSON."""
    quiet = subprocess.DEVNULL
    server = subprocess.Popen(
        command, stdin=quiet, stdout=subprocess.PIPE, stderr=quiet, env=dict(os.environ)
    )
    try:
        assert server.stdout is not None
        said = json.loads(server.stdout.readline())
        yield said["port"] if isinstance(said, dict) else said
    finally:
        server.terminate()
        server.wait(TIMEOUT_SECONDS)
        if server.stdout is not None:
            server.stdout.close()
