"""Request bodies: a size limit, and strict JSON.

Duplicate keys, NaN, and infinite or oversized numbers are errors. Other errors take precedence over
those of the body, so it is a mapping that is parsed on first access.
"""

import json
from collections import Counter
from collections.abc import Iterator, Mapping
from functools import cached_property
from math import isfinite
from typing import Any, NoReturn, Self

from starlette.datastructures import Headers
from starlette.requests import Request
from starlette.types import Message, Receive

from onetool.server.http.errors import ApiError
from onetool.sources.bundles.model import MAX_NESTING
from onetool_child.json_types import JsonObject
from onetool_child.messages import MAX_VALUES, has_few_values

MEDIA_TYPE = "application/json"
MAX_DIGITS = 300
MAX_BODY_BYTES = 4 << 20
MAX_IMPORT_BYTES = 64 << 20
MAX_TOTAL_BYTES = 256 << 20
IMPORTS = frozenset({"/api/import"})
MAX_LENGTH_DIGITS = 18


class RequestBody(Mapping[str, Any]):
    """The body of a request. It is parsed when it is first read, and then raises its errors.

    Parsing a large body takes long: do not read it on the event loop.
    """

    def __init__(self, headers: Headers, content: bytes) -> None:
        self._headers = headers
        self.content = content

    @classmethod
    async def from_request(cls, request: Request) -> Self:
        return cls(request.headers, await request.body())

    @cached_property
    def _members(self) -> JsonObject:
        _check_media_type(
            self._headers.get("content-type", ""), self._headers.get("content-encoding", "")
        )
        data = parse_json(self.content)
        if not isinstance(data, dict):
            raise _invalid("the request body must be a JSON object")
        return data

    def __getitem__(self, name: str) -> Any:
        return self._members[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._members)

    def __len__(self) -> int:
        return len(self._members)


def _check_media_type(media_type: str, encoding: str) -> None:
    kind, _, parameters = media_type.partition(";")
    charset = parameters.replace(" ", "").replace('"', "").lower()
    if kind.strip().lower() != MEDIA_TYPE or charset not in {"", "charset=utf-8"}:
        problem = (
            f"unsupported Content-Type {media_type!r}" if media_type else "missing Content-Type"
        )
        raise ApiError(
            "unsupported_media_type", problem, hint=f"send the header Content-Type: {MEDIA_TYPE}"
        )
    if encoding.strip().lower() not in {"", "identity"}:
        message = f"unsupported Content-Encoding {encoding!r}"
        raise ApiError("unsupported_media_type", message, hint="remove the Content-Encoding header")


def parse_json(content: bytes) -> Any:
    """Parse JSON strictly. Raise an ApiError about the request body."""
    if not has_few_values(content):
        raise ApiError(
            "too_large",
            f"the request body has more than {MAX_VALUES:,} values",
            {"limit": MAX_VALUES},
        )
    try:
        text = content.decode()
        return json.loads(
            text,
            object_pairs_hook=_build_object,
            parse_constant=_reject_constant,
            parse_int=_parse_integer,
            parse_float=_parse_number,
        )
    except UnicodeDecodeError:
        raise _invalid("the request body is not valid UTF-8") from None
    except json.JSONDecodeError as error:
        position = f"line {error.lineno}, column {error.colno}"
        raise _invalid(f"the request body is not valid JSON: {error.msg} at {position}") from None
    except RecursionError:
        raise _invalid(f"the request body is nested more than {MAX_NESTING} levels deep") from None


def _build_object(pairs: list[tuple[str, Any]]) -> JsonObject:
    members = dict(pairs)
    if len(members) < len(pairs):
        ((name, _count),) = Counter(name for name, _ in pairs).most_common(1)
        raise _invalid(f"duplicate key {name!r} in the request body")
    return members


def _reject_constant(word: str) -> NoReturn:
    raise _invalid(f"{word} is not valid JSON: use null or a number")


def _parse_integer(digits: str) -> int:
    if len(digits) > MAX_DIGITS:
        raise _invalid(
            f"number with {len(digits)} digits in the request body (maximum {MAX_DIGITS})"
        )
    return int(digits)


def _parse_number(text: str) -> float:
    number = float(text)
    if not isfinite(number):
        raise _invalid(f"number {text[:40]} in the request body is too large")
    return number


def _invalid(message: str) -> ApiError:
    return ApiError("invalid", message)


# --- body limit -----------------------------------------------------------------------------------


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
        if length.isdecimal() and (
            len(length) > MAX_LENGTH_DIGITS or int(length) > self._max_bytes
        ):
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
