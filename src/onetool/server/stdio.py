"""Standard streams or a socket for the MCP transport, read and written on the event loop.

The SDK accepts any pair of asynchronous text files. Its default passes every line through a thread,
which costs more than the rest of a small call, and ignores invalid messages. The default is still
used when standard input or output is not a pipe (a file, a terminal).
"""

import asyncio
import json
import os
import socket
import stat
import sys
from collections import deque
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from typing import Any

import orjson

from onetool.processes.channel import Collector, find_id
from onetool.processes.daemon_connection import PING, PONG
from onetool_child.json_types import JsonObject
from onetool_child.messages import MAX_VALUES, has_few_values

# A command is limited to 1 MB; arguments of an exposed tool may be larger.
MAX_LINE_BYTES = 16 << 20
READ_SIZE = 1 << 16  # asyncio's default is four times as large and is allocated for every read
SETTLE_SECONDS = 2.0  # for responses to requests read before end of input
CLOSE_SECONDS = 0.5  # for a client to read the rest
MAX_UNANSWERED = (
    1000  # requests of a client that does not read, before nothing more is read from it
)
PARSE_ERROR = -32700
INVALID_REQUEST = -32600


class _Writer:
    def __init__(
        self, writer: asyncio.StreamWriter, get_last_line: Callable[[], bytes] = bytes
    ) -> None:
        self._writer = writer
        self._has_ended = False
        self._get_last_line = (
            get_last_line  # not empty if the server ends, and what it would say is about that
        )
        self._expected: set[str | int] = set()  # requests to answer even after end of input

    def expect_response(self, message: JsonObject) -> None:
        """Record a request that must be answered.

        Tool calls are excluded: they may be slow and have side effects.
        """
        method = message.get("method")
        ident = message.get("id")
        params = message.get("params")
        if isinstance(ident, str | int) and method not in {None, "tools/call"}:
            self._expected.add(ident)
        elif method == "notifications/cancelled" and isinstance(params, dict):
            self._expected = {
                request_id for request_id in self._expected if request_id != params.get("requestId")
            }

    @property
    def unanswered(self) -> int:
        return len(self._expected)

    async def write(self, text: str) -> None:
        is_expected = False
        if self._expected and (ident := orjson.loads(text).get("id")) in self._expected:
            self._expected.discard(ident)
            is_expected = True
        if (is_expected or not self._has_ended) and not self._get_last_line():
            self._writer.write(text.encode("utf-8", "backslashreplace"))

    async def end(self) -> None:
        """Write the responses that are still expected, then discard all others."""
        self._has_ended = True
        with suppress(TimeoutError):
            async with asyncio.timeout(SETTLE_SECONDS):
                while self._expected:  # noqa: ASYNC110 - an event would slow down every response
                    await asyncio.sleep(0.01)
        await self.flush()

    async def flush(self) -> None:
        with suppress(ConnectionError):  # the client is gone; the reader will notice
            await self._writer.drain()


class _Lines:
    """Incoming messages. Invalid ones are answered here, because the SDK ignores them silently."""

    def __init__(
        self, reader: asyncio.StreamReader, writer: _Writer, on_end: Callable[[], None]
    ) -> None:
        self._reader = reader
        self._writer = writer
        self._on_end = on_end
        self._collector = Collector(MAX_LINE_BYTES)
        self._lines: deque[tuple[bytes, str | None]] = deque()

    def __aiter__(self) -> "_Lines":
        return self

    async def __anext__(self) -> str:
        while line := await self._next():
            if line[0] == PING:
                await self._writer.write(PONG.decode() + "\n")
                continue
            message, error = _read(*line)
            if self._writer.unanswered > MAX_UNANSWERED:
                await self._writer.flush()
            if error is None:
                self._writer.expect_response(message)
                return line[0].decode()
            await self._writer.write(json.dumps(error) + "\n")
            await self._writer.flush()
        await self._writer.end()
        self._on_end()
        raise StopAsyncIteration

    async def _next(self) -> tuple[bytes, str | None] | None:
        """Return the next non-empty line and its size problem, if any, or None at end of input."""
        while not self._lines:
            chunk = await self._reader.read(READ_SIZE)
            if not chunk:
                return None
            *ends, start = chunk.split(b"\n")
            for end in ends:
                self._collector.add(end)
                line, problem = self._collector.take()
                if line.strip():
                    self._lines.append((line, problem))
            self._collector.add(start)
        return self._lines.popleft()


def _read(line: bytes, problem: str | None) -> tuple[Any, JsonObject | None]:
    """Return the message and, if it is invalid, the error response."""
    if problem is None and not has_few_values(line):
        problem = f"the message has more than {MAX_VALUES:,} values"
    if problem is not None:
        return None, _error({"id": find_id(line)}, INVALID_REQUEST, f"message too large: {problem}")
    try:
        message = orjson.loads(line)
    except ValueError as error:
        return None, _error(
            _parse_leniently(line), PARSE_ERROR, f"message is not valid UTF-8 JSON: {error}"
        )
    if (
        isinstance(message, dict)
        and message.get("jsonrpc") == "2.0"
        and message.keys() & {"method", "result", "error"}
    ):
        return message, None
    problem = 'not a JSON-RPC 2.0 message: expected {"jsonrpc": "2.0", "method": …}'
    return None, _error(message, INVALID_REQUEST, problem)


def _parse_leniently(line: bytes) -> Any:
    """Parse an invalid message as far as possible, to find the id for the error response."""
    try:
        return json.loads(line.decode("utf-8", "replace"))
    except (ValueError, RecursionError):
        return None


def _error(message: Any, code: int, text: str) -> JsonObject:
    ident = message.get("id") if isinstance(message, dict) else None
    request_id = ident if isinstance(ident, str | int) else None
    return {"jsonrpc": "2.0", "id": request_id, "error": {"code": code, "message": text}}


@asynccontextmanager
async def protocol_streams(on_end: Callable[[], None]) -> AsyncIterator[tuple[Any, ...]]:
    """Yield the arguments for `stdio_server`: none to use its default.

    `on_end` is called at end of input.
    """
    if not (_is_pipe(0) and _is_pipe(1)):
        yield ()
        return
    incoming, outgoing = _claim_pipes()
    if os.path.samestat(
        os.fstat(incoming), os.fstat(outgoing)
    ):  # asyncio would take input for the end of the output
        os.close(outgoing)
        async with socket_streams(socket.socket(fileno=incoming), on_end, bytes) as streams:
            yield streams
        return
    loop = asyncio.get_running_loop()
    reader = asyncio.StreamReader(limit=READ_SIZE)
    source, _ = await loop.connect_read_pipe(
        lambda: asyncio.StreamReaderProtocol(reader), os.fdopen(incoming, "rb", 0)
    )
    source.max_size = READ_SIZE  # type: ignore[attr-defined]
    sink, protocol = await loop.connect_write_pipe(
        asyncio.streams.FlowControlMixin, os.fdopen(outgoing, "wb", 0)
    )
    writer = _Writer(asyncio.StreamWriter(sink, protocol, None, loop))
    try:
        yield _Lines(reader, writer, on_end), writer
    finally:
        source.close()
        sink.close()


@asynccontextmanager
async def socket_streams(
    connection: socket.socket, on_end: Callable[[], None], get_last_line: Callable[[], bytes]
) -> AsyncIterator[tuple[Any, ...]]:
    """Yield the arguments for `stdio_server` for a socket.

    What `get_last_line` returns is sent at the end.
    """
    reader, writer = await asyncio.open_connection(sock=connection, limit=READ_SIZE)
    output = _Writer(writer, get_last_line)
    try:
        yield _Lines(reader, output, on_end), output
    finally:
        writer.write(get_last_line())
        writer.close()
        try:
            async with asyncio.timeout(CLOSE_SECONDS):
                await writer.wait_closed()
        except (TimeoutError, OSError):  # the client does not read, or is gone
            writer.transport.abort()


def _claim_pipes() -> tuple[int, int]:
    """Move the client's pipes to new descriptors: stray prints go to standard error."""
    incoming = os.dup(0)
    outgoing = os.dup(1)
    null = os.open(os.devnull, os.O_RDONLY)
    os.dup2(null, 0)
    os.close(null)
    os.dup2(2, 1)
    return incoming, outgoing


def _is_pipe(descriptor: int) -> bool:
    if sys.platform == "win32":
        return False
    mode = os.fstat(descriptor).st_mode
    return stat.S_ISFIFO(mode) or stat.S_ISSOCK(mode)
