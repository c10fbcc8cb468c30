"""Size limits for request bodies: for each body and for all open requests together.

`timeouts` enforces the transfer rate.
"""

from starlette.datastructures import Headers
from starlette.types import Message, Receive

from onetool.server.http.errors import ApiError

MAX_BODY_BYTES = 4 << 20
MAX_IMPORT_BYTES = 64 << 20
MAX_TOTAL_BYTES = 256 << 20
IMPORTS = frozenset({"/api/import"})
MAX_DIGITS = 18


class BodyLimiter:
    """The total size of the bodies of open requests."""

    def __init__(self, max_bytes: int = MAX_TOTAL_BYTES) -> None:
        self.max_bytes = max_bytes
        self.held_bytes = 0

    def body(self, path: str, receive: Receive) -> "LimitedBody":
        return LimitedBody(self, receive, MAX_IMPORT_BYTES if path in IMPORTS else MAX_BODY_BYTES)


class LimitedBody:
    """The `receive` function of one request with a size limit. Call `end` when the request is over."""

    def __init__(self, limiter: BodyLimiter, receive: Receive, max_bytes: int) -> None:
        self._limiter = limiter
        self._receive = receive
        self._max_bytes = max_bytes
        self._received = 0

    def check_content_length(self, headers: Headers) -> None:
        length = headers.get("content-length", "")
        if length.isdecimal() and (len(length) > MAX_DIGITS or int(length) > self._max_bytes):
            raise self._too_large_error()

    async def __call__(self) -> Message:
        message = await self._receive()
        size = len(message.get("body", b""))
        self._received += size
        self._limiter.held_bytes += size
        if self._received > self._max_bytes:
            raise self._too_large_error()
        if self._limiter.held_bytes > self._limiter.max_bytes:
            problem = "too much data is being sent to this server at once: retry later"
            raise ApiError("busy", problem)
        return message

    def end(self) -> None:
        self._limiter.held_bytes -= self._received
        self._received = 0

    def _too_large_error(self) -> ApiError:
        return ApiError(
            "too_large",
            f"the request body exceeds {self._max_bytes} bytes",
            {"limit": self._max_bytes},
        )
