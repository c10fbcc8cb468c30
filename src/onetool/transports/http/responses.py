"""JSON responses with ETags and conditional requests.

The ETag of a tool or pack has two parts: one for editable fields and one for fields that change by themselves (call
counts, states). `If-None-Match` on a read compares both parts; `If-Match` on a write compares the first.
"""

import hashlib
from collections.abc import Callable, Mapping
from typing import Any

from starlette.datastructures import Headers
from starlette.responses import Response

from onetool.admin.errors import AdminError
from onetool.admin.precondition import Precondition
from onetool.bundles.model import Bundle, StoredTool
from onetool_child.data import text
from onetool_child.json_types import JsonObject

MEDIA_TYPE = "application/json"
NO_CACHE = "no-cache"
# Fields of tools and packs that change without an edit.
VOLATILE_FIELDS = frozenset(
    {
        "callCount",
        "lastCalledAt",
        "disabledReason",
        "usage",
        "observedShape",
        "versions",
        "toolCount",
        "state",
        "problem",
        "problems",
    }
)


def json_response(data: Any, status: int = 200, headers: Mapping[str, str] | None = None) -> Response:
    return Response(_encode(data), status, headers, MEDIA_TYPE)


def stored_response(item: Bundle | StoredTool, status: int = 200) -> Response:
    """Return the stored item with its ETag."""
    data = item.as_json()
    return json_response(data, status, {"etag": compute_etag(data)})


def conditional_response(data: Any, request_headers: Headers) -> Response:
    """Return the data with its ETag, or 304 if the client already has it."""
    headers = {"etag": compute_etag(data), "cache-control": NO_CACHE}
    if _matches_any(headers["etag"], _parse_etags(request_headers, "if-none-match", is_weak_allowed=True)):
        return Response(None, 304, headers)
    return Response(_encode(data), 200, headers, MEDIA_TYPE)


def read_precondition(request_headers: Headers) -> Precondition:
    unexpected = _parse_etags(request_headers, "if-none-match", is_weak_allowed=True)
    return Precondition(_parse_etags(request_headers, "if-match"), unexpected)


def build_precondition(request_headers: Headers) -> Callable[[Bundle | StoredTool | JsonObject | None], None]:
    """Return a function that checks `If-Match` and `If-None-Match` of a write."""
    precondition = read_precondition(request_headers)

    def check(current: Bundle | StoredTool | JsonObject | None) -> None:
        tag = None if current is None else compute_etag(current if isinstance(current, dict) else current.as_json())
        if header := precondition.find_failed(tag):
            state = "it does not exist" if tag is None else f"its ETag is {tag} now"
            message = f"precondition {header} failed: {state}"
            raise AdminError("precondition_failed", message, {"etag": tag}, hint="read it again, then retry the change")

    return check


def compute_etag(data: Any) -> str:
    if not isinstance(data, dict) or VOLATILE_FIELDS.isdisjoint(data):
        return f'"{_digest(data)}"'
    stable = {key: value for key, value in data.items() if key not in VOLATILE_FIELDS}
    return f'"{_digest(stable)}-{_digest([data.get(key) for key in sorted(VOLATILE_FIELDS)])}"'


def _parse_etags(request_headers: Headers, name: str, *, is_weak_allowed: bool = False) -> list[str]:
    """Return the ETags of a header. Weak ETags match only on reads."""
    tags = [tag.strip() for line in request_headers.getlist(name) for tag in line.split(",") if tag.strip()]
    return [tag.removeprefix("W/") if is_weak_allowed else tag for tag in tags]


def _matches_any(tag: str, tags: Any) -> bool:
    known = list(tags)
    return tag in known or "*" in known


def _digest(data: Any) -> str:
    return hashlib.sha256(_encode(data)).hexdigest()[:32]


def _encode(data: Any) -> bytes:
    """Encode data as JSON. Lone surrogates in results of tools are replaced."""
    return text(data).encode("utf-8", "replace")
