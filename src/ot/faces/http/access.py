"""Around the whole door: every request has an id, a line in the log, and an answer even where the server is ending.

The id is the client's own, where it is a sane one, so that both logs can be laid side by side. The line tells the route
and not the path, and nothing of the query: there is no end to what stands in those.
"""

import asyncio
import os
import re
import time
from typing import Final

from starlette.datastructures import Headers
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from ot.faces.http.api.events import STOPPING
from ot.faces.http.errors import ApiError
from ot.logging import Log

REQUEST_ID: Final = "request_id"
HEADER: Final = b"x-request-id"
SANE = re.compile(r"[A-Za-z0-9_.-]{1,64}", re.ASCII)
TRACE = re.compile(r"[0-9a-f]{2}-(?!0{32})([0-9a-f]{32})-[0-9a-f]{16}-[0-9a-f]{2}", re.ASCII)
WRONG: Final = 500
LONGEST_METHOD: Final = 16
CUT_OFF: Final = "the server is ending, and this was not done in time"


class Access:
    def __init__(self, inner: ASGIApp, log: Log) -> None:
        self._inner, self._log = inner, log

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._inner(scope, receive, send)
            return
        request_id, started = _id_of(Headers(scope=scope)), time.perf_counter()
        scope.setdefault("state", {})[REQUEST_ID] = request_id
        answer = _Answer(send, request_id)
        try:
            await self._inner(scope, receive, answer)
        except asyncio.CancelledError:
            if answer.status or not _is_stopping(scope):
                raise
            await ApiError("busy", CUT_OFF).response(scope, receive, answer)
        finally:
            self._write(scope, request_id, answer.status, started)

    def _write(self, scope: Scope, request_id: str, status: int | None, started: float) -> None:
        level = "WARNING" if status is None or status >= WRONG else "INFO"
        self._log.event(
            "http.request",
            level=level,
            correlation_id=request_id,
            method=scope["method"][:LONGEST_METHOD],
            route=getattr(scope.get("route"), "path", None),
            status=status,
            duration_ms=round((time.perf_counter() - started) * 1000, 3),
            agent=scope["state"].get("agent"),
            client=scope["client"][0] if scope.get("client") else None,
        )


class _Answer:
    """`send` that tells the id, and remembers what was answered."""

    def __init__(self, send: Send, request_id: str) -> None:
        self._send, self._id = send, request_id.encode()
        self.status: int | None = None

    async def __call__(self, message: Message) -> None:
        if message["type"] == "http.response.start":
            self.status = message["status"]
            message["headers"] = [*message.get("headers", ()), (HEADER, self._id)]
        await self._send(message)


def _id_of(headers: Headers) -> str:
    own = headers.getlist("x-request-id")
    if len(own) == 1 and SANE.fullmatch(own[0]):
        return own[0]
    traced = TRACE.fullmatch(headers.get("traceparent", ""))
    return traced[1] if traced else os.urandom(8).hex()


def _is_stopping(scope: Scope) -> bool:
    stopping = scope["state"].get(STOPPING)
    return stopping is not None and stopping.is_set()
