"""How data goes out: as JSON that every reader takes, and with a tag, so that nobody is sent what they have already.

The tag of a tool or pack has two parts: one for what a person can change, and one for what moves by itself (how often
it was called). `If-None-Match` of a reader compares both, `If-Match` of a writer the first.
"""

import hashlib
from collections.abc import Callable, Mapping
from typing import Any, Final

from starlette.datastructures import Headers
from starlette.responses import Response

from onetool.bundles.model import Bundle, StoredTool
from onetool.faces.http.errors import ApiError
from onetool.schema import JSON
from onetool_child.data import text

MEDIA_TYPE: Final = "application/json"
REVALIDATED: Final = "no-cache"
# What changes without a person's doing, in stored tools, in tools of every kind and in packs.
MOVING: Final = frozenset(
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
    }
)


def answer(data: Any, status: int = 200, headers: Mapping[str, str] | None = None) -> Response:
    return Response(_written(data), status, headers, MEDIA_TYPE)


def stored(item: Bundle | StoredTool, status: int = 200) -> Response:
    """What was just written, with its tag."""
    data = item.as_json()
    return answer(data, status, {"etag": tag_of(data)})


def tagged(data: Any, asked: Headers) -> Response:
    """The data, or only the word that it is still what the asker has."""
    headers = {"etag": tag_of(data), "cache-control": REVALIDATED}
    if _is_among(headers["etag"], _tags(asked, "if-none-match", is_weak_allowed=True)):
        return Response(None, 304, headers)
    return Response(_written(data), 200, headers, MEDIA_TYPE)


def precondition(asked: Headers) -> Callable[[Bundle | StoredTool | JSON | None], None]:
    """Return the check that `If-Match` and `If-None-Match` of a write ask for."""
    wanted, unwanted = _tags(asked, "if-match"), _tags(asked, "if-none-match", is_weak_allowed=True)

    def check(current: Bundle | StoredTool | JSON | None) -> None:
        tag = None if current is None else tag_of(current if isinstance(current, dict) else current.as_json())
        if wanted and (tag is None or not _is_among(_lasting(tag), map(_lasting, wanted))):
            raise _failed("If-Match", tag)
        if unwanted and tag is not None and _is_among(_lasting(tag), map(_lasting, unwanted)):
            raise _failed("If-None-Match", tag)

    return check


def _failed(header: str, tag: str | None) -> ApiError:
    now = "it does not exist" if tag is None else f"its ETag is {tag} now"
    message, hint = f"the precondition {header} failed: {now}", "read it again, then repeat the change"
    return ApiError("precondition_failed", message, {"etag": tag}, hint=hint)


def tag_of(data: Any) -> str:
    if not isinstance(data, dict) or MOVING.isdisjoint(data):
        return f'"{_digest(data)}"'
    lasting = {key: value for key, value in data.items() if key not in MOVING}
    return f'"{_digest(lasting)}-{_digest([data.get(key) for key in sorted(MOVING)])}"'


def _lasting(tag: str) -> str:
    return tag.strip('"').partition("-")[0]


def _tags(asked: Headers, name: str, *, is_weak_allowed: bool = False) -> list[str]:
    """Of the tags, a weak one is good for reading only."""
    given = [one.strip() for line in asked.getlist(name) for one in line.split(",") if one.strip()]
    return [tag.removeprefix("W/") if is_weak_allowed else tag for tag in given]


def _is_among(tag: str, tags: Any) -> bool:
    known = list(tags)
    return tag in known or "*" in known


def _digest(data: Any) -> str:
    return hashlib.sha256(_written(data)).hexdigest()[:32]


def _written(data: Any) -> bytes:
    """A tool may give half a character, which UTF-8 cannot write."""
    return text(data).encode("utf-8", "replace")
