"""MCP over HTTP at /mcp: both eras, behind the gate. Sessions and streams are the SDK's.

The gate has checked where a request comes from and how large it is, so that the SDK's own rules for that are off. A
session of before 2026 belongs to the agent and the token that opened it: to all others it is not there.
"""

import asyncio
import contextlib
from typing import Any, Final

from mcp.server.auth.middleware.bearer_auth import AuthenticatedUser
from mcp.server.auth.provider import AccessToken
from mcp.server.transport_security import TransportSecuritySettings
from starlette.routing import Route
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from ot.app import OneTool
from ot.faces.http.gate import STOPPING, token_id_of
from ot.faces.http.intake import MOST_BODY
from ot.faces.http.replays import ResumableSessions
from ot.faces.mcp.server import OneToolServer

PATH: Final = "/mcp"
MOST_SESSIONS: Final = 1000


def route(app: OneTool) -> Route:
    return Route(PATH, endpoint=Mcp(app))


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
