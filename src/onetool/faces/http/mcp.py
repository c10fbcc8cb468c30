"""MCP over HTTP at /mcp: both eras, behind the gate. Sessions and streams are the SDK's.

The gate has checked where a request comes from and how large it is, so that the SDK's own rules for that are off. A
session of before 2026 belongs to the agent and the token that opened it: to all others it is not there. What was last
sent to it is kept, so that a client whose connection broke can have the rest.
"""

import asyncio
import contextlib
import re
from collections import OrderedDict
from itertools import count
from typing import Any, Final, NamedTuple

from mcp.server.auth.middleware.bearer_auth import AuthenticatedUser
from mcp.server.auth.provider import AccessToken
from mcp.server.streamable_http import EventCallback, EventMessage, EventStore
from mcp.server.streamable_http_manager import StreamableHTTPSessionManager
from mcp.server.transport_security import TransportSecuritySettings
from mcp_types import JSONRPCMessage
from starlette.routing import Route
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from onetool.app import OneTool
from onetool.faces.http.gate import STOPPING, token_id_of
from onetool.faces.http.intake import MOST_BODY
from onetool.faces.mcp.server import OneToolServer

PATH: Final = "/mcp"
MOST_SESSIONS: Final = 1000
MOST_EVENTS: Final = 20_000
MOST_BYTES: Final = 32 << 20
NUMBER = re.compile(r"[0-9]{1,18}", re.ASCII)


def route(app: OneTool) -> Route:
    return Route(PATH, endpoint=Mcp(app))


class _Sent(NamedTuple):
    session: int
    stream: str
    message: JSONRPCMessage | None  # None where a stream only begins
    size: int


class Replays:
    """What was sent to all sessions, the oldest first: a bounded part. Whoever comes too late gets an empty stream."""

    def __init__(self, most_events: int = MOST_EVENTS, most_bytes: int = MOST_BYTES) -> None:
        self._most_events, self._most_bytes = most_events, most_bytes
        self.sent: OrderedDict[int, _Sent] = OrderedDict()
        self._numbers, self._sessions, self._bytes = count(1), count(1), 0

    def of_new_session(self) -> EventStore:
        return _OfSession(self, next(self._sessions))

    def add(self, sent: _Sent) -> int:
        number = next(self._numbers)
        self.sent[number] = sent
        self._bytes += sent.size
        while len(self.sent) > self._most_events or self._bytes > self._most_bytes:
            self._bytes -= self.sent.popitem(last=False)[1].size
        return number


class _OfSession(EventStore):
    """The SDK names streams by the numbers of requests, which every session begins anew: each sees only its own."""

    def __init__(self, replays: Replays, session: int) -> None:
        self._replays, self._session = replays, session

    async def store_event(self, stream_id: str, message: JSONRPCMessage | None) -> str:
        size = 0 if message is None else len(message.model_dump_json())
        return str(self._replays.add(_Sent(self._session, stream_id, message, size)))

    async def replay_events_after(self, last_event_id: str, send_callback: EventCallback) -> str | None:
        number = int(last_event_id) if NUMBER.fullmatch(last_event_id) else 0
        last = self._replays.sent.get(number)
        if last is None or last.session != self._session:
            return None
        for each, sent in list(self._replays.sent.items()):
            if each > number and sent[:2] == last[:2] and sent.message is not None:
                await send_callback(EventMessage(sent.message, str(each)))
        return last.stream


class ResumableSessions(StreamableHTTPSessionManager):
    """The SDK's sessions. It hands the same `event_store` to all of them: here each gets another."""

    _replays: Replays

    @property
    def event_store(self) -> EventStore:
        return self._replays.of_new_session()

    @event_store.setter
    def event_store(self, _none: Any) -> None:
        self._replays = Replays()


class Mcp:
    """It begins with the first request, and ends with the event loop."""

    def __init__(self, app: OneTool) -> None:
        self._server = OneToolServer(app)
        self._manager = ResumableSessions(
            self._server,
            security_settings=TransportSecuritySettings(enable_dns_rebinding_protection=False),
            max_request_body_size=MOST_BODY,
            max_sessions=MOST_SESSIONS,
        )
        self._is_ready = asyncio.Event()
        self._running: asyncio.Task[None] | None = None
        self._ending: asyncio.Future[Any] | None = None

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if not self._is_ready.is_set():
            self._running = self._running or asyncio.ensure_future(self._run())
            await self._is_ready.wait()
        state = scope.get("state", {})
        if state.get("agent") is not None:
            owner = f"{state['agent']}:{token_id_of(scope)}"  # of the session, to the SDK
            scope["user"] = AuthenticatedUser(AccessToken(token="", client_id=owner, scopes=[]))
        stopping = state.get(STOPPING)
        if stopping is not None:
            if self._ending is None:
                self._ending = asyncio.ensure_future(stopping.wait())
                self._ending.add_done_callback(lambda _: self._server.end_streams())
            if scope["method"] == "GET":
                await _until(stopping, self._manager.handle_request, scope, receive, send)
                return
        await self._manager.handle_request(scope, receive, send)

    async def _run(self) -> None:
        with contextlib.closing(self._server):
            async with self._manager.run():
                self._is_ready.set()
                await asyncio.Event().wait()


async def _until(stopping: asyncio.Event, handle: ASGIApp, scope: Scope, receive: Receive, send: Send) -> None:
    """A stream that only waits for news is no reason to go on: it ends as if its client had gone, but properly."""
    has_started = False

    async def noted(message: Message) -> None:
        nonlocal has_started
        has_started = has_started or message["type"] == "http.response.start"
        await send(message)

    async def received() -> Message:
        gone: asyncio.Future[Any] = asyncio.ensure_future(receive())
        stopped: asyncio.Future[Any] = asyncio.ensure_future(stopping.wait())
        try:
            await asyncio.wait((gone, stopped), return_when=asyncio.FIRST_COMPLETED)
            return gone.result() if gone.done() else {"type": "http.disconnect"}
        finally:
            gone.cancel()
            stopped.cancel()

    await handle(scope, received, noted)
    if has_started and stopping.is_set():
        await send({"type": "http.response.body", "body": b"", "more_body": False})
