"""ETags, and the condition of a write: the ETag that the person has seen. Commands have none.

The ETag of a tool or pack has two parts: one for editable fields and one for fields that change by
themselves (call counts, states). `If-None-Match` on a read compares both parts; `If-Match` on a
write compares the first.
"""

import hashlib
from collections.abc import Collection
from dataclasses import dataclass
from typing import Any

from onetool.admin.model import AdminError
from onetool_child.data import text

ANY = "*"
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


@dataclass(frozen=True, slots=True)
class Precondition:
    """The ETags of `If-Match` and `If-None-Match`."""

    expected: Collection[str] = ()
    unexpected: Collection[str] = ()

    def find_failed(self, tag: str | None) -> str:
        """Return the header whose condition fails for this ETag; None means nothing exists."""
        if self.expected and not _is_among(tag, self.expected):
            return "If-Match"
        return "If-None-Match" if _is_among(tag, self.unexpected) else ""

    def check(self, current: Any) -> None:
        """Raise if the condition fails for JSON, an object with `as_json`, or None."""
        tag = (
            None
            if current is None
            else compute_etag(current if isinstance(current, dict) else current.as_json())
        )
        if header := self.find_failed(tag):
            state = "it does not exist" if tag is None else f"its ETag is {tag} now"
            message = f"precondition {header} failed: {state}"
            raise AdminError(
                "precondition_failed",
                message,
                {"etag": tag},
                hint="read it again, then retry the change",
            )


NO_CONDITION = Precondition()


def compute_etag(data: Any) -> str:
    if not isinstance(data, dict) or VOLATILE_FIELDS.isdisjoint(data):
        return f'"{_digest(data)}"'
    stable = {key: value for key, value in data.items() if key not in VOLATILE_FIELDS}
    return f'"{_digest(stable)}-{_digest([data.get(key) for key in sorted(VOLATILE_FIELDS)])}"'


def _digest(data: Any) -> str:
    return hashlib.sha256(encode(data)).hexdigest()[:32]


def encode(data: Any) -> bytes:
    """Encode data as JSON. Lone surrogates in results of tools are replaced."""
    return text(data).encode("utf-8", "replace")


def _is_among(tag: str | None, tags: Collection[str]) -> bool:
    return tag is not None and (ANY in tags or _stable_part(tag) in map(_stable_part, tags))


def _stable_part(tag: str) -> str:
    return tag.strip('"').partition("-")[0]
