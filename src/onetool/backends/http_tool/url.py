"""The URL template of an HTTP tool. The host is fixed; placeholders are allowed in the path and the query.

Values in the path are percent-encoded, and a segment with a value cannot be empty, `.` or `..`. So no value can change
the number or the order of the segments.
"""

import re
from dataclasses import dataclass
from urllib.parse import unquote

from onetool.backends.http_tool.entries import Entry, entries_of, literal
from onetool.backends.http_tool.placeholders import IN_A_URL, Parts, Placeholder, Values, parse, placeholders_in, unfit

_SHAPE = re.compile(r"(?P<scheme>https?)://(?P<authority>[^/?#\\]*)(?P<path>[^?#]*)(?:\?(?P<query>[^#]*))?(?P<rest>#?)")
_AUTHORITY = re.compile(
    r"(?:\[[0-9A-Fa-f:.]+\]|[^\x00-\x20\x7f\[\]:@%$&'()*+,;={}<>^`|\"!]+)(?::(?P<port>[0-9]{1,5}))?"
)
_HIGHEST_PORT = 65_535
_LITERAL = ":@!$&'()*+,;=%"
_MOVES = {"", ".", ".."}


@dataclass(frozen=True, slots=True)
class UrlTemplate:
    text: str
    origin: str
    segments: tuple[str | Parts, ...]  # without placeholders: as sent
    query: tuple[Entry, ...]

    @property
    def placeholders(self) -> list[Placeholder]:
        in_path = [placeholder for segment in self.segments for placeholder in placeholders_in(segment)]
        return [*in_path, *(placeholder for entry in self.query for placeholder in entry.placeholders)]

    def path(self, values: Values) -> str:
        return "".join([f"/{part if isinstance(part, str) else _filled(part, values)}" for part in self.segments])


def _filled(parts: Parts, values: Values) -> str:
    text = "".join([part if isinstance(part, str) else values.needed(part, IN_A_URL) for part in parts])
    if unquote(text) in _MOVES:
        raise unfit(placeholders_in(parts), "would make a path segment empty, . or .., which changes the path")
    return text


def parse_url(text: str) -> UrlTemplate:
    shape = _SHAPE.match(text)
    if shape is None:
        raise ValueError("must start with http:// or https://")
    if shape["rest"]:
        raise ValueError("has a fragment, which is never sent; write %23 for a literal #")
    _check_authority(shape["authority"])
    segments = tuple(map(_segment, shape["path"].removeprefix("/").split("/")))
    origin = f"{shape['scheme']}://{shape['authority']}"
    return UrlTemplate(text, origin, segments, entries_of(shape["query"] or ""))


def _check_authority(authority: str) -> None:
    if "${" in authority:
        raise ValueError("has a placeholder in the host; placeholders are only allowed in the path and the query")
    if "@" in authority:
        raise ValueError("has a user name or password; use auth instead")
    match = _AUTHORITY.fullmatch(authority)
    if match is None or int(match["port"] or 0) > _HIGHEST_PORT:
        raise ValueError("has no valid host (expected one like api.example.com or api.example.com:8080)")


def _segment(text: str) -> str | Parts:
    parts = tuple(part if isinstance(part, Placeholder) else literal(part, _LITERAL) for part in parse(text))
    if placeholders_in(parts):
        return parts
    segment = "".join(map(str, parts))
    if unquote(segment) in {".", ".."}:
        raise ValueError("has a . or .. segment in its path; write the resolved path")
    return segment
