"""What comes in: a body up to its limit, and all bodies that are under way together up to theirs.

How fast it must come is the business of `patience`.
"""

from typing import Final

from starlette.datastructures import Headers
from starlette.types import Message, Receive

from onetool.faces.http.errors import ApiError

MOST_BODY: Final = 4 << 20
MOST_IMPORT: Final = 64 << 20
MOST_AT_ONCE: Final = 256 << 20
IMPORTS: Final = frozenset({"/api/import"})
MOST_DIGITS: Final = 18


class Intake:
    """Bytes that requests under way have sent."""

    def __init__(self, most: int = MOST_AT_ONCE) -> None:
        self.most, self.held = most, 0

    def body(self, path: str, receive: Receive) -> "Body":
        return Body(self, receive, MOST_IMPORT if path in IMPORTS else MOST_BODY)


class Body:
    """`receive` of one request. `end` it when the request is over."""

    def __init__(self, intake: Intake, receive: Receive, most: int) -> None:
        self._intake, self._receive, self._most, self._got = intake, receive, most, 0

    def refuse_announced(self, headers: Headers) -> None:
        length = headers.get("content-length", "")
        if length.isdecimal() and (len(length) > MOST_DIGITS or int(length) > self._most):
            raise self._too_large()

    async def __call__(self) -> Message:
        message = await self._receive()
        size = len(message.get("body", b""))
        self._got += size
        self._intake.held += size
        if self._got > self._most:
            raise self._too_large()
        if self._intake.held > self._intake.most:
            told = "too much is being sent to this server at once; send this again in a moment"
            raise ApiError("busy", told)
        return message

    def end(self) -> None:
        self._intake.held -= self._got
        self._got = 0

    def _too_large(self) -> ApiError:
        return ApiError("too_large", f"the body has more than {self._most} bytes", {"limit": self._most})
