"""The URL template of an HTTP tool. The host is literal; placeholders are allowed in the path and the query.

Values in the path are percent-encoded, and a segment with a value cannot be empty, `.` or `..`. So no value can change
the number or the order of the segments.
"""

import re
from dataclasses import dataclass
from urllib.parse import unquote

from onetool.backends.http_tool.placeholders import (
    URL_ENCODED,
    Parts,
    Placeholder,
    Values,
    invalid_value_error,
    list_placeholders,
    parse,
)
from onetool.backends.http_tool.query import ParameterTemplate, encode_literal, parse_query

_URL_PATTERN = re.compile(
    r"(?P<scheme>https?)://(?P<authority>[^/?#\\]*)(?P<path>[^?#]*)(?:\?(?P<query>[^#]*))?(?P<rest>#?)"
)
_AUTHORITY_PATTERN = re.compile(
    r"(?:\[[0-9A-Fa-f:.]+\]|[^\x00-\x20\x7f\[\]:@%$&'()*+,;={}<>^`|\"!]+)(?::(?P<port>[0-9]{1,5}))?"
)
_MAX_PORT = 65_535
_SAFE_CHARS = ":@!$&'()*+,;=%"
_UNSAFE_SEGMENTS = {"", ".", ".."}


@dataclass(frozen=True, slots=True)
class UrlTemplate:
    text: str
    origin: str
    segments: tuple[str | Parts, ...]  # a string is sent as it is
    query: tuple[ParameterTemplate, ...]

    @property
    def placeholders(self) -> list[Placeholder]:
        in_path = [placeholder for segment in self.segments for placeholder in list_placeholders(segment)]
        return [*in_path, *(placeholder for parameter in self.query for placeholder in parameter.placeholders)]

    def fill_path(self, values: Values) -> str:
        return "".join([f"/{part if isinstance(part, str) else _fill_segment(part, values)}" for part in self.segments])


def _fill_segment(parts: Parts, values: Values) -> str:
    text = "".join([part if isinstance(part, str) else values.require_text(part, URL_ENCODED) for part in parts])
    if unquote(text) in _UNSAFE_SEGMENTS:
        raise invalid_value_error(
            list_placeholders(parts), "would make a path segment empty, . or .., which changes the path"
        )
    return text


def parse_url(text: str) -> UrlTemplate:
    match = _URL_PATTERN.match(text)
    if match is None:
        raise ValueError("must start with http:// or https://")
    if match["rest"]:
        raise ValueError("has a fragment, which is never sent; write %23 for a literal #")
    _check_authority(match["authority"])
    segments = tuple(map(_parse_segment, match["path"].removeprefix("/").split("/")))
    origin = f"{match['scheme']}://{match['authority']}"
    return UrlTemplate(text, origin, segments, parse_query(match["query"] or ""))


def _check_authority(authority: str) -> None:
    if "${" in authority:
        raise ValueError("has a placeholder in the host; placeholders are only allowed in the path and the query")
    if "@" in authority:
        raise ValueError("has a user name or password; use auth instead")
    match = _AUTHORITY_PATTERN.fullmatch(authority)
    if match is None or int(match["port"] or 0) > _MAX_PORT:
        raise ValueError("has no valid host (expected one like api.example.com or api.example.com:8080)")


def _parse_segment(text: str) -> str | Parts:
    parts = tuple(part if isinstance(part, Placeholder) else encode_literal(part, _SAFE_CHARS) for part in parse(text))
    if list_placeholders(parts):
        return parts
    segment = "".join(map(str, parts))
    if unquote(segment) in {".", ".."}:
        raise ValueError("has a . or .. segment in its path; write the resolved path")
    return segment
