"""The two files that the MCP transport reads and writes, as the event loop's own instead of threads'.

The SDK takes any pair of asynchronous text files; its default hands every line to a thread and back, which costs more
than the rest of a small call, and leaves what is no message without an answer. Where standard input or output is no
pipe (a file, a terminal), the default is used.
"""

import asyncio
import contextlib
import json
import os
import stat
import sys
from collections import deque
from collections.abc import AsyncIterator, Callable
from typing import Any

import orjson

from onetool.children.collector import Collector, find_id

MAX_LINE_BYTES = 16 << 20  # a command has 1 MB; arguments of a published tool may have more
READ_SIZE = 1 << 16  # asyncio's own, four times as much, is allocated anew for every read
SETTLE_SECONDS = 2.0  # for requests that were read before the end of input
PARSE_ERROR, INVALID_REQUEST = -32700, -32600


class _Writer:
    def __init__(self, writer: asyncio.StreamWriter) -> None:
        self._writer, self._is_over = writer, False
        self._owed: set[str | int] = set()  # requests that are answered at once, whatever becomes of the client

    def owe(self, message: dict[str, Any]) -> None:
        """Note a request, unless it is a call, which may take long and have effects."""
        method, ident, params = message.get("method"), message.get("id"), message.get("params")
        if isinstance(ident, str | int) and method not in {None, "tools/call"}:
            self._owed.add(ident)
        elif method == "notifications/cancelled" and isinstance(params, dict):
            self._owed = {each for each in self._owed if each != params.get("requestId")}

    async def write(self, text: str) -> None:
        is_owed = False
        if self._owed and (ident := orjson.loads(text).get("id")) in self._owed:
            self._owed.discard(ident)
            is_owed = True
        if is_owed or not self._is_over:
            self._writer.write(text.encode("utf-8", "backslashreplace"))

    async def end(self) -> None:
        """Write what was asked for before the end of input, and no more: a client that is gone expects no answer."""
        self._is_over = True
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(SETTLE_SECONDS):
                while self._owed:  # noqa: ASYNC110 - an event would cost every answer
                    await asyncio.sleep(0.01)
        await self.flush()

    async def flush(self) -> None:
        with contextlib.suppress(ConnectionError):  # the client is gone; the reader will notice
            await self._writer.drain()


class _Lines:
    """The messages that come in. What is none is answered here, because the SDK passes over it in silence."""

    def __init__(self, reader: asyncio.StreamReader, writer: _Writer, on_end: Callable[[], None]) -> None:
        self._reader, self._writer, self._on_end = reader, writer, on_end
        self._collector = Collector(MAX_LINE_BYTES)
        self._complete: deque[tuple[bytes, str | None]] = deque()

    def __aiter__(self) -> "_Lines":
        return self

    async def __anext__(self) -> str:
        while line := await self._next():
            message, refusal = _read(*line)
            if refusal is None:
                self._writer.owe(message)
                return line[0].decode()
            await self._writer.write(json.dumps(refusal) + "\n")
            await self._writer.flush()
        await self._writer.end()
        self._on_end()
        raise StopAsyncIteration

    async def _next(self) -> tuple[bytes, str | None] | None:
        """Return the next line that is not empty, and what is wrong with its size; None at the end of input."""
        while not self._complete:
            chunk = await self._reader.read(READ_SIZE)
            if not chunk:
                return None
            *ends, start = chunk.split(b"\n")
            for end in ends:
                self._collector.add(end)
                line, problem = self._collector.take()
                if line.strip():
                    self._complete.append((line, problem))
            self._collector.add(start)
        return self._complete.popleft()


def _read(line: bytes, problem: str | None) -> tuple[Any, dict[str, Any] | None]:
    """Return the message, and the error that answers it if it is none."""
    if problem is not None:
        return None, _error({"id": find_id(line)}, INVALID_REQUEST, f"The message is too large: {problem}")
    try:
        message = orjson.loads(line)
    except ValueError as error:
        return None, _error(_leniently(line), PARSE_ERROR, f"This is not JSON in UTF-8: {error}")
    if isinstance(message, dict) and message.get("jsonrpc") == "2.0" and message.keys() & {"method", "result", "error"}:
        return message, None
    wrong = 'This is not a JSON-RPC 2.0 message: send {"jsonrpc": "2.0", "method": …}'
    return None, _error(message, INVALID_REQUEST, wrong)


def _leniently(line: bytes) -> Any:
    """What can be read of a message that is wrong, so that its sender can be told by its id."""
    try:
        return json.loads(line.decode("utf-8", "replace"))
    except (ValueError, RecursionError):
        return None


def _error(message: Any, code: int, text: str) -> dict[str, Any]:
    ident = message.get("id") if isinstance(message, dict) else None
    known = ident if isinstance(ident, str | int) else None
    return {"jsonrpc": "2.0", "id": known, "error": {"code": code, "message": text}}


@contextlib.asynccontextmanager
async def protocol_streams(on_end: Callable[[], None]) -> AsyncIterator[tuple[Any, ...]]:
    """The arguments for `stdio_server`: none where the default must do. `on_end` is called at the end of input."""
    if not (_is_pipe(0) and _is_pipe(1)):
        yield ()
        return
    incoming, outgoing = _claimed()
    loop = asyncio.get_running_loop()
    reader = asyncio.StreamReader(limit=READ_SIZE)
    source, _ = await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(reader), os.fdopen(incoming, "rb", 0))
    source.max_size = READ_SIZE  # type: ignore[attr-defined]
    sink, protocol = await loop.connect_write_pipe(asyncio.streams.FlowControlMixin, os.fdopen(outgoing, "wb", 0))
    writer = _Writer(asyncio.StreamWriter(sink, protocol, None, loop))
    try:
        yield _Lines(reader, writer, on_end), writer
    finally:
        source.close()
        sink.close()


def _claimed() -> tuple[int, int]:
    """The client's pipes under new numbers. What any code prints by mistake goes to the error stream instead."""
    incoming, outgoing = os.dup(0), os.dup(1)
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
