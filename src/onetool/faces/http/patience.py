"""How long we wait for whom: connections that are slow, silent, or too many are cut.

uvicorn closes idle connections and h11 rejects long heads. But both wait for ever for the rest of a request and for a
client to read, and `limit_concurrency` counts silent connections, so that a few of them keep everybody out. So here a
head has its seconds, a body has to come at some speed and an answer to be taken at some, and where there are too many
connections, those that only wait go first. All are looked at together, once a second: a timer for each request would
cost every one of them.
"""

import socket
import time
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, Final

import h11
from uvicorn.protocols.http.h11_impl import STATUS_PHRASES, H11Protocol

from onetool.faces.http.errors import ApiError
from onetool.faces.http.gate import FIXED

HEAD_SECONDS: Final = 10.0
LINGER_SECONDS: Final = 5.0  # for a body that nobody wants, because its request has been answered
REFUSED_SECONDS: Final = 1.0  # for the rest of what a client sends that was refused
MOST_REFUSED: Final = 256  # of those, at once; the others are hung up on
WINDOW_SECONDS: Final = 10.0  # in which a body has to bring, and an answer to lose, so many bytes
LEAST_BYTES: Final = 10 << 10
MOST_CONNECTIONS: Final = 2048
MOST_OF_ONE_ADDRESS: Final = 1536
MALFORMED: Final = "this is no HTTP request that can be read, or its head is longer than 16 KiB"
CROWDED: Final = "too many connections are open; try again in a moment"
ANSWERABLE: Final = (h11.IDLE, h11.SEND_RESPONSE)


class Crowd:
    """All connections of a server, by where they come from."""

    def __init__(self, most: int = MOST_CONNECTIONS, most_of_one: int = MOST_OF_ONE_ADDRESS) -> None:
        self._most, self._most_of_one = most, most_of_one
        self._addresses: Counter[str] = Counter()
        self._all: dict[PatientProtocol, None] = {}  # who came first is first
        self.refused: set[PatientProtocol] = set()

    def take(self, newcomer: "PatientProtocol") -> bool:
        """Whether there is room, or could be made."""
        address = newcomer.address
        if self._addresses[address] >= self._most_of_one:
            is_free = self._make_room(one for one in self._all if one.address == address)
        else:
            is_free = len(self._all) < self._most or self._make_room(self._all)
        if is_free:
            self._all[newcomer] = None
            self._addresses[address] += 1
        return is_free

    def leave(self, one: "PatientProtocol") -> None:
        self.refused.discard(one)
        if one in self._all:
            del self._all[one]
            self._addresses[one.address] -= 1
            if not self._addresses[one.address]:
                del self._addresses[one.address]

    def look(self) -> None:
        """Cut those whose time is over."""
        now = time.monotonic()
        for one in tuple(self._all):
            if one.is_overdue(now):
                one.cut()

    def _make_room(self, among: Iterable["PatientProtocol"]) -> bool:
        """Whoever has asked for nothing goes, the one that has been silent for longest first."""
        idle = min((one for one in among if one.is_idle), key=lambda one: one.silent_since, default=None)
        if idle is not None:
            idle.cut()
            self.leave(idle)
        return idle is not None


@dataclass(slots=True)
class Pace:
    """Whether enough bytes have passed, window by window."""

    since: float
    at: int = 0

    def is_too_slow(self, now: float, passed: int) -> bool:
        if now - self.since < WINDOW_SECONDS:
            return False
        is_slow = passed - self.at < LEAST_BYTES
        self.since, self.at = now, passed
        return is_slow


class PatientProtocol(H11Protocol):
    """uvicorn's connection, with an end to its patience."""

    def __init__(self, *given: Any, crowd: Crowd, **named: Any) -> None:
        super().__init__(*given, **named)
        self._crowd, self._received, self._is_refused = crowd, 0, False
        self._body: Pace | None = None
        self._answer: Pace | None = None
        self.silent_since = time.monotonic()  # or the beginning of half a head

    @property
    def address(self) -> str:
        return self.client[0] if self.client else ""

    # --- what happens --------------------------------------------------------------------------------------------

    def connection_made(self, transport: Any) -> None:
        super().connection_made(transport)
        # asyncio does this only where it has opened the listening socket; without it many answers take 40 ms longer
        transport.get_extra_info("socket").setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        if not self._crowd.take(self):
            self._refuse(ApiError("busy", CROWDED))

    def connection_lost(self, exc: Exception | None) -> None:
        self._crowd.leave(self)
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        if self._is_refused or self.transport.is_closing():
            return
        self._received += len(data)
        if self._is_between_requests and self.conn.their_state is not h11.SEND_BODY and not self.conn.trailing_data[0]:
            self.silent_since = time.monotonic()
        super().data_received(data)

    def on_response_complete(self) -> None:
        self.silent_since = time.monotonic()
        super().on_response_complete()

    def send_400_response(self, msg: str) -> None:  # noqa: ARG002 - ours says more
        """What cannot be read. Where an answer has begun already, there is nothing left to say."""
        if self._has_asked:
            self.cycle.disconnected = True
            self.cycle.message_event.set()
        if self.conn.our_state in ANSWERABLE:
            self._refuse(ApiError("invalid", MALFORMED))
        else:
            self.transport.close()

    def _refuse(self, refused: ApiError) -> None:
        """A client that is hung up on while it sends never sees what we said: so for a moment it may go on."""
        self._is_refused = True
        if len(self._crowd.refused) >= MOST_REFUSED:
            self.cut()
            return
        self._crowd.refused.add(self)
        self.transport.write(written(refused))
        self.transport.write_eof()
        self.loop.call_later(REFUSED_SECONDS, self.cut)

    def shutdown(self) -> None:
        if self._is_refused:
            self.cut()
        else:
            super().shutdown()

    def cut(self) -> None:
        self.transport.abort()

    # --- whose time is over ----------------------------------------------------------------------------------------

    @property
    def _has_asked(self) -> bool:
        """By its types uvicorn says that there is always a request, which is not so."""
        found: object = self.cycle
        return found is not None

    @property
    def _is_between_requests(self) -> bool:
        return not self._has_asked or self.cycle.response_complete

    @property
    def is_idle(self) -> bool:
        return self._is_between_requests and not self.transport.get_write_buffer_size()

    def is_overdue(self, now: float) -> bool:
        left = self.transport.get_write_buffer_size()
        self._answer = (self._answer or Pace(now, -left)) if left else None
        reads_too_slowly = self._answer is not None and self._answer.is_too_slow(now, -left)
        return reads_too_slowly or self._sends_too_slowly(now)

    def _sends_too_slowly(self, now: float) -> bool:
        """While we do not read, it is not the client who is slow."""
        is_sending = self.conn.their_state is h11.SEND_BODY
        if self._is_between_requests:
            self._body = None
            if is_sending:  # a body that nobody wants, because its request has been answered
                return now - self.silent_since > LINGER_SECONDS
            is_waited_for = not self._has_asked or bool(self.conn.trailing_data[0])
            return is_waited_for and now - self.silent_since > HEAD_SECONDS
        self._body = (self._body or Pace(now, self._received)) if is_sending and not self.flow.read_paused else None
        return self._body is not None and self._body.is_too_slow(now, self._received)


def written(refused: ApiError) -> bytes:
    """A refusal as it goes over the wire, for where there is no request that it would answer."""
    status, body = refused.status, bytes(refused.response.body)
    fields = {
        b"content-type": b"application/json",
        b"content-length": str(len(body)).encode(),
        b"connection": b"close",
        **{name.encode(): value.encode() for name, value in refused.headers.items()},
        **FIXED,
    }
    head = b"".join(b"%s: %s\r\n" % field for field in fields.items())
    return b"HTTP/1.1 %d %s\r\n%s\r\n%s" % (status, STATUS_PHRASES[status], head, body)
