"""What was last sent to each MCP session, so that a client whose connection broke can have the rest of it.

Only sessions of before 2026 can ask for that. The SDK calls streams by the numbers of requests, which every session
begins anew: so each session has an `EventStore` of its own, and can ask for nothing that was sent to another. All of
them together keep a bounded part of the past; whoever comes too late gets an empty stream.
"""

import re
from collections import OrderedDict
from itertools import count
from typing import Any, Final, NamedTuple

from mcp.server.streamable_http import EventCallback, EventMessage, EventStore
from mcp.server.streamable_http_manager import StreamableHTTPSessionManager
from mcp_types import JSONRPCMessage

NUMBER = re.compile(r"[0-9]{1,18}", re.ASCII)
MOST_EVENTS: Final = 20_000
MOST_BYTES: Final = 32 << 20


class _Sent(NamedTuple):
    session: int
    stream: str
    message: JSONRPCMessage | None  # None where a stream only begins
    size: int


class Replays:
    """What was sent to all sessions, the oldest first."""

    def __init__(self, most_events: int = MOST_EVENTS, most_bytes: int = MOST_BYTES) -> None:
        self._most_events, self._most_bytes = most_events, most_bytes
        self._sent: OrderedDict[int, _Sent] = OrderedDict()
        self._numbers, self._sessions, self._bytes = count(1), count(1), 0

    def of_new_session(self) -> EventStore:
        return _OfSession(self, next(self._sessions))

    def add(self, session: int, stream: str, message: JSONRPCMessage | None) -> int:
        size = 0 if message is None else len(message.model_dump_json())
        number = next(self._numbers)
        self._sent[number] = _Sent(session, stream, message, size)
        self._bytes += size
        while len(self._sent) > self._most_events or self._bytes > self._most_bytes:
            self._bytes -= self._sent.popitem(last=False)[1].size
        return number

    def after(self, session: int, number: int) -> tuple[str, list[tuple[int, JSONRPCMessage]]] | None:
        """The stream of which this was a part, and what came in it later."""
        last = self._sent.get(number)
        if last is None or last.session != session:
            return None
        later = (
            (each, sent.message)
            for each, sent in self._sent.items()
            if each > number and sent.session == session and sent.stream == last.stream
        )
        return last.stream, [(each, message) for each, message in later if message is not None]


class _OfSession(EventStore):
    def __init__(self, replays: Replays, session: int) -> None:
        self._replays, self._session = replays, session

    async def store_event(self, stream_id: str, message: JSONRPCMessage | None) -> str:
        return str(self._replays.add(self._session, stream_id, message))

    async def replay_events_after(self, last_event_id: str, send_callback: EventCallback) -> str | None:
        number = NUMBER.fullmatch(last_event_id)
        found = self._replays.after(self._session, int(number[0])) if number else None
        if found is None:
            return None
        stream, messages = found
        for each, message in messages:
            await send_callback(EventMessage(message, str(each)))
        return stream


class ResumableSessions(StreamableHTTPSessionManager):
    """The SDK's sessions. It hands the same `event_store` to all of them: here each gets another."""

    _replays: Replays

    @property
    def event_store(self) -> EventStore:
        return self._replays.of_new_session()

    @event_store.setter
    def event_store(self, _none: Any) -> None:
        self._replays = Replays()
