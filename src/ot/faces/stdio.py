"""The two files that the MCP transport reads and writes, as the event loop's own instead of threads'.

The SDK takes any pair of asynchronous text files; its default hands every line to a thread and back, which costs
more than the rest of a small call. Where standard input or output is no pipe (a file, a terminal), the default is
used.
"""

import asyncio
import contextlib
import os
import stat
import sys
from collections.abc import AsyncIterator
from typing import Any

MAX_LINE = 256 << 20


class _Lines:
    def __init__(self, reader: asyncio.StreamReader) -> None:
        self._reader = reader

    def __aiter__(self) -> "_Lines":
        return self

    async def __anext__(self) -> str:
        line = await self._reader.readline()
        if not line:
            raise StopAsyncIteration
        return line.decode("utf-8", "replace")


class _Writer:
    def __init__(self, writer: asyncio.StreamWriter) -> None:
        self._writer = writer

    async def write(self, text: str) -> None:
        self._writer.write(text.encode("utf-8", "backslashreplace"))

    async def flush(self) -> None:
        with contextlib.suppress(ConnectionError):  # the client is gone; the reader will notice
            await self._writer.drain()


@contextlib.asynccontextmanager
async def protocol_streams() -> AsyncIterator[tuple[Any, ...]]:
    """The arguments for `stdio_server`: none where the default must do."""
    if not (_is_pipe(0) and _is_pipe(1)):
        yield ()
        return
    # What any code prints by mistake must not reach the client: descriptor 1 becomes the error stream's.
    incoming, outgoing = os.dup(0), os.dup(1)
    null = os.open(os.devnull, os.O_RDONLY)
    os.dup2(null, 0)
    os.close(null)
    os.dup2(2, 1)
    loop = asyncio.get_running_loop()
    reader = asyncio.StreamReader(limit=MAX_LINE)
    read_transport, _ = await loop.connect_read_pipe(
        lambda: asyncio.StreamReaderProtocol(reader), os.fdopen(incoming, "rb", 0)
    )
    write_transport, protocol = await loop.connect_write_pipe(
        asyncio.streams.FlowControlMixin, os.fdopen(outgoing, "wb", 0)
    )
    writer = asyncio.StreamWriter(write_transport, protocol, None, loop)
    try:
        yield _Lines(reader), _Writer(writer)
    finally:
        read_transport.close()
        write_transport.close()


def _is_pipe(descriptor: int) -> bool:
    if sys.platform == "win32":
        return False
    mode = os.fstat(descriptor).st_mode
    return stat.S_ISFIFO(mode) or stat.S_ISSOCK(mode)
