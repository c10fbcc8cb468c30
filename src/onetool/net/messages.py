"""Requests and responses of the HTTP client."""

import codecs
import datetime as dt
import json
import re
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from dataclasses import dataclass
from email.utils import parsedate_to_datetime

from onetool_child.json_types import JsonObject
from onetool_child.messages import has_few_values

# Prefixes of the supported codecs. Other codecs of Python take quadratic time, or are not text encodings.
CHARSET_PREFIXES = (
    *("utf-8", "utf-16", "utf-32", "ascii", "iso8859", "cp", "koi8", "mac-"),
    *("gb", "big5", "euc_", "shift_jis", "iso2022", "tis-620"),
)
CHARSET_PATTERN = r"""(?i);[ \t]*charset[ \t]*=[ \t]*["']?([A-Za-z0-9_.:-]{1,40})"""
# Every request of a tool has this header, so that a OneTool server recognizes it.
OUTGOING_HEADER = "OneTool-Outgoing"
MAX_RETRY_DIGITS = 9  # more digits would exceed any timeout
EVENT_STREAM = "text/event-stream"
# Reads the body of an event stream as far as it wants.
ReadStream = Callable[[AsyncIterator[bytes]], Awaitable[None]]
Resolve = Callable[[str, int], Awaitable[Sequence[str]]]  # host and port -> addresses


@dataclass(frozen=True, slots=True)
class Request:
    method: str
    url: str
    headers: Sequence[tuple[str, str]] = ()
    content: bytes | None = None
    credentials: frozenset[str] = frozenset()  # lower-case names of further headers that are only sent to the origin
    secret_query: frozenset[str] = frozenset()  # parameters whose values are never shown


@dataclass(frozen=True, slots=True)
class Response:
    status: int
    headers: tuple[tuple[str, str], ...]
    body: bytes
    url: str
    seconds: float
    compression: str = ""  # of the body, if it is not supported

    def header(self, name: str) -> str | None:
        """Return the first header with this lower-case name."""
        return next((value for key, value in self.headers if key.lower() == name), None)

    @property
    def media_type(self) -> str:
        return (self.header("content-type") or "").partition(";")[0].strip().lower()

    @property
    def charset(self) -> str:
        """The codec that Content-Type names if it is a text encoding, else UTF-8."""
        match = re.search(CHARSET_PATTERN, self.header("content-type") or "")
        return _find_codec(match[1] if match else "")

    def text(self) -> str:
        """Return the body as text. Invalid bytes are replaced; it never raises."""
        return self.body.decode(self.charset, "replace")

    def parse_retry_after(self, now: dt.datetime | None = None) -> float:
        """Return the seconds of the Retry-After header, a number or a date; 0 without one."""
        text = (self.header("retry-after") or "").strip()
        if text.isascii() and text.isdecimal():
            return float(text[:MAX_RETRY_DIGITS])
        try:
            date = parsedate_to_datetime(text)
            wait = date.replace(tzinfo=date.tzinfo or dt.UTC) - (now or dt.datetime.now(dt.UTC))
        except (TypeError, ValueError, IndexError, OverflowError):
            return 0.0
        return max(0.0, wait.total_seconds())

    def parse_object(self) -> JsonObject | None:
        """Return the body if it is a JSON object, or None. One with very many values is not parsed."""
        text = self.text()
        try:
            data = json.loads(text) if has_few_values(text) else None
        except (ValueError, RecursionError):
            return None
        return data if isinstance(data, dict) else None


def _find_codec(name: str) -> str:
    try:
        codec = codecs.lookup(name).name
    except (LookupError, ValueError):
        codec = "utf-8"
    return "utf-8-sig" if codec == "utf-8" or not codec.startswith(CHARSET_PREFIXES) else codec
