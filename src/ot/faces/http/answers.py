"""How data goes out: as JSON that every reader takes, and with a tag, so that nobody is sent what they have already."""

import hashlib
from collections.abc import Mapping
from typing import Any, Final

from starlette.datastructures import Headers
from starlette.responses import Response

from ot_child.data import text

MEDIA_TYPE: Final = "application/json"
REVALIDATED: Final = "no-cache"


def answer(data: Any, status: int = 200, headers: Mapping[str, str] | None = None) -> Response:
    return Response(_written(data), status, headers, MEDIA_TYPE)


def tagged(data: Any, asked: Headers) -> Response:
    """The data, or only the word that it is still what the asker has."""
    content = _written(data)
    tag = f'"{hashlib.sha256(content).hexdigest()[:32]}"'
    headers = {"etag": tag, "cache-control": REVALIDATED}
    if _has(tag, asked):
        return Response(None, 304, headers)
    return Response(content, 200, headers, MEDIA_TYPE)


def _has(tag: str, asked: Headers) -> bool:
    known = [one.strip().removeprefix("W/") for line in asked.getlist("if-none-match") for one in line.split(",")]
    return tag in known or "*" in known


def _written(data: Any) -> bytes:
    """A tool may give half a character, which UTF-8 cannot write."""
    return text(data).encode("utf-8", "replace")
