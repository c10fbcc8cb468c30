"""MCP over HTTP at /mcp, for protocol versions with and without sessions.

The SDK manages sessions and streams.

`auth` has checked origin and size, so the SDK's own checks are disabled. A session (protocols
before 2026) belongs to the agent and the token that opened it; to others it does not exist. The
latest messages are kept, so that a client can resume after a broken connection.

A session is in the memory of one replica. A load balancer that chooses replicas by a random
X-Request-Id finds it in front of the session ID, and sends all requests of the session to the same
replica (`deploy/nginx/onetool.conf`).
"""

import asyncio
import re
from collections import OrderedDict
from contextlib import closing
from itertools import count
from typing import Any, NamedTuple

from mcp.server.auth.middleware.bearer_auth import AuthenticatedUser
from mcp.server.auth.provider import AccessToken
from mcp.server.streamable_http import EventCallback, EventMessage, EventStore
from mcp.server.streamable_http_manager import StreamableHTTPSessionManager
from mcp.server.transport_security import TransportSecuritySettings
from mcp_types import JSONRPCMessage
from starlette.requests import Request
from starlette.routing import Route
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from onetool.app import OneTool
from onetool.server.http.auth import STOPPING, get_token_id
from onetool.server.http.errors import ApiError
from onetool.server.http.json_body import MAX_BODY_BYTES
from onetool.server.mcp.mcp_server import OneToolServer
from onetool.util.http_clients import HttpClient
from onetool_child.messages import MAX_VALUES, has_few_values

PATH = "/mcp"
MAX_SESSIONS = 1000
MAX_EVENTS = 20_000
MAX_BYTES = 32 << 20
EVENT_ID_PATTERN = re.compile(r"[0-9]{1,18}", re.ASCII)
SESSION_HEADER = b"mcp-session-id"
ROUTE = re.compile(rb"[0-9a-f]{32}")


def route(endpoint: "McpEndpoint") -> Route:
    return Route(PATH, endpoint=endpoint)


class _Sent(NamedTuple):
    session: int
    stream: str
    message: JSONRPCMessage | None  # None at the start of a stream
    size: int


class ReplayBuffer:
    """The latest messages to all sessions, oldest first.

    A client that resumes too late gets an empty stream.
    """

    def __init__(self, max_events: int = MAX_EVENTS, max_bytes: int = MAX_BYTES) -> None:
        self._max_events = max_events
        self._max_bytes = max_bytes
        self.sent: OrderedDict[int, _Sent] = OrderedDict()
        self._numbers = count(1)
        self._sessions = count(1)
        self._bytes = 0

    def open_session(self) -> EventStore:
        return _SessionStore(self, next(self._sessions))

    def add(self, sent: _Sent) -> int:
        number = next(self._numbers)
        self.sent[number] = sent
        self._bytes += sent.size
        while len(self.sent) > self._max_events or self._bytes > self._max_bytes:
            self._bytes -= self.sent.popitem(last=False)[1].size
        return number


class _SessionStore(EventStore):
    """The messages of one session. The SDK's stream ids are unique only within a session."""

    def __init__(self, replays: ReplayBuffer, session: int) -> None:
        self._replays = replays
        self._session = session

    async def store_event(self, stream_id: str, message: JSONRPCMessage | None) -> str:
        size = 0 if message is None else len(message.model_dump_json())
        return str(self._replays.add(_Sent(self._session, stream_id, message, size)))

    async def replay_events_after(
        self, last_event_id: str, send_callback: EventCallback
    ) -> str | None:
        number = int(last_event_id) if EVENT_ID_PATTERN.fullmatch(last_event_id) else 0
        last = self._replays.sent.get(number)
        if last is None or last.session != self._session:
            return None
        for session, sent in list(self._replays.sent.items()):
            if session > number and sent[:2] == last[:2] and sent.message is not None:
                await send_callback(EventMessage(sent.message, str(session)))
        return last.stream


class ResumableSessions(StreamableHTTPSessionManager):
    """The SDK's session manager with a separate `event_store` for each session."""

    _replays: ReplayBuffer

    @property
    def session_ids(self) -> list[str]:
        return list(self._server_instances)

    async def end_session(self, session_id: str) -> bool:
        """End a session: its streams close, and its next request gets 404.

        Return whether it was open.
        """
        transport = self._server_instances.get(session_id)
        if transport is not None:
            await self._discard_session(session_id, transport)
        return transport is not None

    @property
    def event_store(self) -> EventStore:
        return self._replays.open_session()

    @event_store.setter
    def event_store(self, _none: Any) -> None:
        self._replays = ReplayBuffer()


class McpEndpoint:
    """The ASGI endpoint for MCP. It starts with the first request and ends with the event loop."""

    def __init__(self, app: OneTool) -> None:
        self._server = OneToolServer(app)
        self._manager = ResumableSessions(
            self._server,
            security_settings=TransportSecuritySettings(enable_dns_rebinding_protection=False),
            max_request_body_size=MAX_BODY_BYTES,
            max_sessions=MAX_SESSIONS,
        )
        self._is_ready = asyncio.Event()
        self._running: asyncio.Task[None] | None = None
        self._stop_task: asyncio.Future[Any] | None = None

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if not self._is_ready.is_set():
            self._running = self._running or asyncio.ensure_future(self._run())
            await self._is_ready.wait()
        scope, send = _route_session(scope, send)
        state = scope.get("state", {})
        if state.get("agent") is not None:
            owner = f"{state['agent']}:{get_token_id(scope)}"  # of the session, for the SDK
            scope["user"] = AuthenticatedUser(AccessToken(token="", client_id=owner, scopes=[]))
        stopping = state.get(STOPPING)
        if stopping is not None:
            if self._stop_task is None:
                self._stop_task = asyncio.ensure_future(stopping.wait())
                self._stop_task.add_done_callback(lambda _: self._server.end_streams())
            if scope["method"] == "GET":
                await _serve_until(stopping, self._manager.handle_request, scope, receive, send)
                return
        if scope["method"] == "POST":
            receive = await _check_values(scope, receive)
        await self._manager.handle_request(scope, receive, send)

    def list_clients(self) -> list[HttpClient]:
        return self._server.http_clients.list_clients(self._manager.session_ids)

    async def disconnect(self, client: HttpClient) -> bool:
        """End the session of a client. Return False if it has none."""
        return client.session is not None and await self._manager.end_session(client.session)

    async def _run(self) -> None:
        with closing(self._server):
            async with self._manager.run():
                self._is_ready.set()
                await asyncio.Event().wait()


async def _check_values(scope: Scope, receive: Receive) -> Receive:
    """Return a function that receives the body again.

    Raise if parsing its values would delay other requests.
    """
    body = await Request(scope, receive).body()
    if not has_few_values(body):
        raise ApiError(
            "too_large",
            f"the request body has more than {MAX_VALUES:,} values",
            {"limit": MAX_VALUES},
        )
    messages: list[Message] = [{"type": "http.request", "body": body}]

    async def receive_again() -> Message:
        return messages.pop() if messages else await receive()

    return receive_again


def _route_session(scope: Scope, send: Send) -> tuple[Scope, Send]:
    """Remove the route from the request's session ID, and add it to that of the response.

    The route of a new session is the ID that the load balancer gave to the request. It proves
    nothing, and the rest of the session ID is as random as without it.
    """
    headers = dict(scope["headers"])
    session_id = headers.get(SESSION_HEADER)
    new = headers.get(b"x-request-id", b"")
    route, separator, session = (session_id or new + b"-").partition(b"-")
    if not separator or not ROUTE.fullmatch(route):
        return scope, send
    if session_id is not None:
        others = [header for header in scope["headers"] if header[0] != SESSION_HEADER]
        scope = {**scope, "headers": [*others, (SESSION_HEADER, session)]}

    async def send_with_route(message: Message) -> None:
        if message["type"] == "http.response.start":
            message["headers"] = [
                (name, route + b"-" + value if name.lower() == SESSION_HEADER else value)
                for name, value in message["headers"]
            ]
        await send(message)

    return scope, send_with_route


async def _serve_until(
    stopping: asyncio.Event, handle: ASGIApp, scope: Scope, receive: Receive, send: Send
) -> None:
    """Handle a request, but end its stream cleanly when the server shuts down."""
    has_started = False

    async def send_and_note(message: Message) -> None:
        nonlocal has_started
        has_started = has_started or message["type"] == "http.response.start"
        await send(message)

    async def receive_or_stop() -> Message:
        receiving: asyncio.Future[Any] = asyncio.ensure_future(receive())
        waiting: asyncio.Future[Any] = asyncio.ensure_future(stopping.wait())
        try:
            await asyncio.wait((receiving, waiting), return_when=asyncio.FIRST_COMPLETED)
            return receiving.result() if receiving.done() else {"type": "http.disconnect"}
        finally:
            receiving.cancel()
            waiting.cancel()

    await handle(scope, receive_or_stop, send_and_note)
    if has_started and stopping.is_set():
        await send({"type": "http.response.body", "body": b"", "more_body": False})
