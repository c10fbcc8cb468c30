"""Timeouts and limits for connections: slow, idle and excess connections are closed.

uvicorn closes idle connections and h11 rejects long heads, but both wait indefinitely for the rest
of a request and for a client to read, and `limit_concurrency` counts idle connections, so that a
few of them block everyone. Here, a head must arrive in time, a body and a response must be
transferred at a minimum rate, and when there are too many connections, idle ones are closed first.
All connections are checked once a second, which is cheaper than a timer for each request.
"""

import asyncio
import socket
import time
from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

import h11
from uvicorn.protocols.http.h11_impl import STATUS_PHRASES, H11Protocol

from onetool.server.http.auth import RAW_SECURITY_HEADERS
from onetool.server.http.errors import ApiError

HEAD_SECONDS = 10.0
LINGER_SECONDS = 30.0  # for the rest of a body whose request was already answered
MAX_LINGER_BYTES = 512 << 20
REJECTED_SECONDS = 1.0  # for the rest of a rejected request
MAX_REJECTED = 256  # concurrent rejected connections; others are closed at once
WINDOW_SECONDS = 10.0  # in which MIN_BYTES must be transferred
MIN_BYTES = 10 << 10
MAX_CONNECTIONS = 2048
MAX_CONNECTIONS_PER_ADDRESS = 1536
MALFORMED = "malformed HTTP request, or its head exceeds 16 KiB"
TOO_MANY_CONNECTIONS = "too many open connections: retry later"
ANSWERABLE = (h11.IDLE, h11.SEND_RESPONSE)
MAX_HELD_BYTES = 64 << 10  # more is sent immediately: it may take several packets anyway


class ConnectionLimiter:
    """All connections of a server. Limits their number in total and per address."""

    def __init__(
        self,
        max_connections: int = MAX_CONNECTIONS,
        max_per_address: int = MAX_CONNECTIONS_PER_ADDRESS,
    ) -> None:
        self._max_connections = max_connections
        self._max_per_address = max_per_address
        self._addresses: Counter[str] = Counter()
        self._all: dict[TimeoutProtocol, None] = {}  # in order of arrival
        self.rejected: set[TimeoutProtocol] = set()

    def __len__(self) -> int:
        return len(self._all)

    def add(self, connection: "TimeoutProtocol") -> bool:
        """Add a connection if there is room or an idle connection can be closed.

        Return whether it was added.
        """
        address = connection.address
        if self._addresses[address] >= self._max_per_address:
            is_free = self._make_room(other for other in self._all if other.address == address)
        else:
            is_free = len(self._all) < self._max_connections or self._make_room(self._all)
        if is_free:
            self._all[connection] = None
            self._addresses[address] += 1
        return is_free

    def remove(self, connection: "TimeoutProtocol") -> None:
        self.rejected.discard(connection)
        if connection in self._all:
            del self._all[connection]
            self._addresses[connection.address] -= 1
            if not self._addresses[connection.address]:
                del self._addresses[connection.address]

    def close_expired(self) -> None:
        """Close connections that timed out."""
        now = time.monotonic()
        for connection in tuple(self._all):
            if connection.is_overdue(now):
                connection.abort()

    def _make_room(self, connections: Iterable["TimeoutProtocol"]) -> bool:
        """Close the connection that has been idle longest. Return whether there was one."""
        idle = min(
            (connection for connection in connections if connection.is_idle),
            key=lambda connection: connection.silent_since,
            default=None,
        )
        if idle is not None:
            idle.abort()
            self.remove(idle)
        return idle is not None


@dataclass(slots=True)
class TransferRate:
    """A minimum transfer rate, checked in windows of WINDOW_SECONDS."""

    since: float
    start: int = 0

    def is_too_slow(self, now: float, transferred: int) -> bool:
        if now - self.since < WINDOW_SECONDS:
            return False
        is_slow = transferred - self.start < MIN_BYTES
        self.since = now
        self.start = transferred
        return is_slow


class TimeoutProtocol(H11Protocol):
    """uvicorn's connection with timeouts."""

    def __init__(self, *args: Any, limiter: ConnectionLimiter, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._limiter = limiter
        self._received = 0
        self._is_rejected = False
        self._received_before = 0  # the last response was complete
        self._body_rate: TransferRate | None = None
        self._response_rate: TransferRate | None = None
        self.silent_since = time.monotonic()  # or the start of an incomplete head

    @property
    def address(self) -> str:
        return self.client[0] if self.client else ""

    # --- events -----------------------------------------------------------------------------------

    def connection_made(self, transport: Any) -> None:
        joined: Any = JoinedWrites(transport, self.loop, self._close_later)
        super().connection_made(joined)
        # asyncio does this only for listening sockets it opened itself; without it many responses
        # take 40 ms longer
        transport.get_extra_info("socket").setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        if not self._limiter.add(self):
            self._reject(ApiError("busy", TOO_MANY_CONNECTIONS))

    def connection_lost(self, exc: Exception | None) -> None:
        self._limiter.remove(self)
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        self._received += len(data)
        if self._is_rejected or self.transport.is_closing():
            return
        if (
            self._is_between_requests
            and self.conn.their_state is not h11.SEND_BODY
            and not self.conn.trailing_data[0]
        ):
            self.silent_since = time.monotonic()
        super().data_received(data)

    def on_response_complete(self) -> None:
        self.silent_since = time.monotonic()
        self._received_before = self._received
        super().on_response_complete()

    def send_400_response(self, msg: str) -> None:  # noqa: ARG002 - MALFORMED is more specific
        """Reject a malformed request, or close the connection if a response has begun."""
        if self._has_request:
            self.cycle.disconnected = True
            self.cycle.message_event.set()
        if self.conn.our_state in ANSWERABLE:
            self._reject(ApiError("invalid", MALFORMED))
        else:
            self.transport.close()

    def _reject(self, error: ApiError) -> None:
        """Send the error and close later."""
        if not self._discard_rest():
            self.abort()
            return
        self.transport.write(render_raw(error))
        self.transport.write_eof()
        self.loop.call_later(REJECTED_SECONDS, self.abort)

    def _close_later(self) -> bool:
        """Close only the sending side if the client still sends the body of an answered request."""
        if not self._is_lingering or not self._discard_rest():
            return False
        self.transport.write_eof()
        return True

    def _discard_rest(self) -> bool:
        """Discard what is received from now on, if there is room for another such connection.

        Return whether there is.

        A client never sees a response if the connection closes while it sends.
        """
        self._is_rejected = True
        if len(self._limiter.rejected) >= MAX_REJECTED:
            return False
        self._limiter.rejected.add(self)
        return True

    def shutdown(self) -> None:
        if self._is_rejected or self._is_lingering:
            self.abort()
        else:
            super().shutdown()

    def abort(self) -> None:
        self.transport.abort()

    # --- timeouts ---------------------------------------------------------------------------------

    @property
    def _has_request(self) -> bool:
        """Whether a request has begun. uvicorn's type hints claim that there always is one."""
        cycle: object = self.cycle
        return cycle is not None

    @property
    def _is_between_requests(self) -> bool:
        return not self._has_request or self.cycle.response_complete

    @property
    def _is_lingering(self) -> bool:
        """Whether the client still sends the body of a request that was answered."""
        return self._is_between_requests and self.conn.their_state is h11.SEND_BODY

    @property
    def is_idle(self) -> bool:
        return self._is_between_requests and not self.transport.get_write_buffer_size()

    def is_overdue(self, now: float) -> bool:
        left = self.transport.get_write_buffer_size()
        self._response_rate = (self._response_rate or TransferRate(now, -left)) if left else None
        reads_too_slowly = self._response_rate is not None and self._response_rate.is_too_slow(
            now, -left
        )
        return reads_too_slowly or self._sends_too_slowly(now)

    def _sends_too_slowly(self, now: float) -> bool:
        """Tell whether the client sends too slowly.

        Time in which the server does not read does not count.
        """
        if self.conn.their_state is h11.SEND_BODY and not self.flow.read_paused:
            self._body_rate = self._body_rate or TransferRate(now, self._received)
            return self._body_rate.is_too_slow(now, self._received) or self._lingers_too_long(now)
        self._body_rate = None
        is_expected = not self._has_request or bool(self.conn.trailing_data[0])
        return self._is_between_requests and is_expected and now - self.silent_since > HEAD_SECONDS

    def _lingers_too_long(self, now: float) -> bool:
        is_over = (
            now - self.silent_since > LINGER_SECONDS
            or self._received - self._received_before > MAX_LINGER_BYTES
        )
        return self._is_lingering and is_over


def render_raw(error: ApiError) -> bytes:
    """Return the error as a raw HTTP response, for connections without a request."""
    status = error.status
    body = bytes(error.response.body)
    fields = {
        b"content-type": b"application/json",
        b"content-length": str(len(body)).encode(),
        b"connection": b"close",
        **{name.encode(): value.encode() for name, value in error.headers.items()},
        **RAW_SECURITY_HEADERS,
    }
    head = b"".join(b"%s: %s\r\n" % field for field in fields.items())
    return b"HTTP/1.1 %d %s\r\n%s\r\n%s" % (status, STATUS_PHRASES[status], head, body)


# --- joined writes --------------------------------------------------------------------------------


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
