"""A transport that sends what is written in one iteration of the event loop at once.

uvicorn writes the head and the body of a response separately. A process that is killed in between
has sent a head without a body, which no load balancer can turn into an error. One write also wakes
up the reader once.
"""

import asyncio
from collections.abc import Callable
from typing import Any

MAX_HELD_BYTES = 64 << 10  # more is sent immediately: it may take several packets anyway


class JoinedWrites:
    """The transport of a connection.

    It is an `asyncio.Transport` for its users, without the abstract methods.

    `close` does nothing if `close_later` returns True.
    """

    def __init__(
        self,
        inner: asyncio.Transport,
        loop: asyncio.AbstractEventLoop,
        close_later: Callable[[], bool],
    ) -> None:
        self._inner = inner
        self._loop = loop
        self._close_later = close_later
        self._held: list[bytes] = []
        self._held_bytes = 0

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)

    def write(self, data: bytes) -> None:
        if self._held_bytes + len(data) > MAX_HELD_BYTES:
            self._flush()
            self._inner.write(data)
        elif data:
            if not self._held:
                self._loop.call_soon(self._flush)
            self._held.append(data)
            self._held_bytes += len(data)

    def _flush(self) -> None:
        if self._held:
            held = self._held
            self._held = []
            self._held_bytes = 0
            self._inner.write(b"".join(held))

    def write_eof(self) -> None:
        self._flush()
        self._inner.write_eof()

    def close(self) -> None:
        if not self._close_later():
            self._flush()
            self._inner.close()

    def abort(self) -> None:
        self._held = []
        self._held_bytes = 0
        self._inner.abort()

    def get_write_buffer_size(self) -> int:
        return self._held_bytes + self._inner.get_write_buffer_size()
