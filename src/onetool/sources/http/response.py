"""Convert a response to the result of a call: parse it, redact secrets, apply the selector.

The server is not trusted: the depth of its data and the size of the result of a selector are
limited.
"""

import base64
import html
import json
from collections.abc import AsyncIterator, Callable, Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import quote, quote_plus, urljoin

import anyio

from onetool.errors import ToolError
from onetool.net.client import EVENT_STREAM, Response
from onetool.sources.http.body import OTHER_TYPE
from onetool.util.large_data import LARGE_CHARS
from onetool.util.redact import REDACTED, Redactor
from onetool.util.secret_finder import is_secret_name
from onetool.util.text import pluralize
from onetool_child.json_types import JsonObject
from onetool_child.messages import has_few_values

MAX_DEPTH = 200
MIN_VALUE_BYTES = 4  # counted for a value that is not a string
PAGING_WORDS = frozenset({"next", "page", "pagination", "continuation", "cursor"})
TEXT_TYPES = (
    "xml",
    "javascript",
    "ecmascript",
    "yaml",
    "toml",
    "csv",
    "graphql",
    "x-www-form-urlencoded",
)
StoreBinary = Callable[[bytes, str], Any]  # content and media type -> value


class ResponseRedactor(Redactor):
    """A redactor for responses, also for binary ones.

    Responses are redacted before a selector reads them: it could rearrange a secret so that nothing
    recognizes it.
    """

    def __init__(self, secrets: Iterable[str]) -> None:
        super().__init__(secrets)
        forms = self._values | set(self._encoded_forms)
        for value in self._values:
            forms.add(quote(value, safe=""))
            forms.add(quote_plus(value))
            forms.add(html.escape(value))
        self._binary_forms = sorted((form.encode() for form in forms), key=len, reverse=True)

    def redact_bytes(self, content: bytes) -> bytes:
        for form in self._binary_forms:
            content = content.replace(form, REDACTED.encode())
        return content

    def may_redact(self, body: bytes) -> bool:
        """Return whether JSON may contain a secret, also with escapes or in another charset."""
        if not body.isascii() or any(mark in body for mark in (b"\\", b"\0", b"\x1b")):
            return True
        text = body.decode("ascii")
        return self(text) != text


def encode_binary(content: bytes, media_type: str) -> Any:
    return {"content_type": media_type or OTHER_TYPE, "base64": base64.b64encode(content).decode()}


@dataclass(frozen=True, slots=True)
class ResponseReader:
    """Converts a response by the mode and the selector of a tool. `store` stores a binary body."""

    mode: str
    selector: str | None
    redactor: ResponseRedactor
    max_bytes: int
    store: StoreBinary = encode_binary

    def is_slow(self, response: Response) -> bool:
        """Return whether reading the response takes long, or stores it."""
        is_stored = self.mode == "auto" and not _is_text(response)
        size = len(response.body) + sum(len(name) + len(value) for name, value in response.headers)
        return size >= LARGE_CHARS or self.selector is not None or is_stored

    def read(self, response: Response) -> Any:
        return self._apply_selector(self._parse(response))

    def read_events(self, events: list[Any]) -> Any:
        """Return the value of the events of a stream."""
        _check_limits(events, self.max_bytes * 8, "the response")
        return self._apply_selector(self.redactor.redact_data(events))

    def _apply_selector(self, value: Any) -> Any:
        if self.selector is None or value is None:
            return value
        from onetool.sources.http.selector import select

        selected = select(self.selector, value)
        _check_limits(selected, self.max_bytes, "the result of the selector")
        return selected

    def _parse(self, response: Response) -> Any:
        if response.compression:  # it cannot be parsed, and secrets in it cannot be redacted
            raise ToolError(
                f"unsupported compression {response.compression[:40]!r} of the response (expected"
                " gzip or deflate)",
                hint="remove Accept-Encoding from the headers of the tool, or set it to identity",
            )
        media_type = response.media_type
        if self.mode == "base64":
            return encode_binary(self.redactor.redact_bytes(response.body), media_type)
        if self.mode == "text":
            return self.redactor(response.text())
        if not response.body.strip():
            return None
        is_json = media_type.endswith(("/json", "+json"))
        if self.mode == "json" or self.selector is not None or is_json:
            return self._parse_json(response)
        if _is_text(response):
            return self.redactor(response.text())
        return self.store(self.redactor.redact_bytes(response.body), media_type)

    def _parse_json(self, response: Response) -> Any:
        data = _load_json(response)
        if response.body.count(b"[") + response.body.count(b"{") > MAX_DEPTH:
            _check_limits(data, len(response.body) * 8, "the response")
        return self.redactor.redact_data(data) if self.redactor.may_redact(response.body) else data


def _is_text(response: Response) -> bool:
    media_type = response.media_type
    if media_type:
        is_text = media_type.startswith("text/") or media_type.endswith(TEXT_TYPES)
        return is_text or "json" in media_type
    try:
        return "\0" not in response.body.decode()
    except UnicodeDecodeError:
        return False


def _load_json(response: Response) -> Any:
    """Parse JSON, also lone surrogates, NaN (as null), other charsets and a BOM."""
    import orjson

    try:
        return orjson.loads(response.body)
    except orjson.JSONDecodeError:
        pass
    try:
        return json.loads(response.text(), parse_constant=lambda _: None)
    except RecursionError:
        raise _too_deep_error("the response") from None
    except ValueError as error:
        raise ToolError(
            f"the response is not valid JSON: {error}",
            hint="set response.mode to text to get it as text",
        ) from None


def _check_limits(value: Any, max_bytes: int, name: str) -> None:
    """Check depth and size level by level, so that the work is bounded by the limits."""
    level: list[Any] = [[value]]
    size = 0
    for _ in range(MAX_DEPTH + 1):
        items = [
            item for node in level for item in (node.values() if isinstance(node, dict) else node)
        ]
        size += sum(len(item) if isinstance(item, str) else MIN_VALUE_BYTES for item in items)
        if size > max_bytes:
            raise ToolError(f"{name} is larger than {max_bytes:,} bytes")
        level = [item for item in items if isinstance(item, dict | list)]
        if not level:
            return
    raise _too_deep_error(name)


def _too_deep_error(name: str) -> ToolError:
    return ToolError(f"{name} is nested more than {MAX_DEPTH} levels deep")


# --- headers --------------------------------------------------------------------------------------


def join_headers(response: Response) -> dict[str, str]:
    """Return the headers by lower-case name; repeated ones are joined by commas."""
    headers: dict[str, str] = {}
    for name, value in response.headers:
        key = name.lower()
        headers[key] = f"{headers[key]}, {value}" if key in headers else value
    return headers


def read_headers(response: Response) -> JsonObject:
    """Return `status`, `headers` and `links` of a full response.

    Headers that may hold credentials are redacted.
    """
    headers = join_headers(response)
    for name in filter(_may_hold_credential, headers):
        headers[name] = REDACTED
    return {"status": response.status, "headers": headers, "links": dict(_iterate_links(response))}


def _may_hold_credential(name: str) -> bool:
    """Return whether a header may hold a credential. Tokens of the next page are not credentials."""
    return is_secret_name(name) and PAGING_WORDS.isdisjoint(name.split("-"))


def _iterate_links(response: Response) -> Iterator[tuple[str, str]]:
    """Yield the relation and the URL of each link in the Link header."""
    import httpx2

    values = [("Link", value) for name, value in response.headers if name.lower() == "link"]
    for relation, link in httpx2.Response(200, headers=values).links.items():
        for name in str(relation).split():
            yield name, urljoin(response.url, str(link.get("url", "")))


def read_cookies(response: Response) -> dict[str, str]:
    """Return the cookies that the response sets, for later steps of the tool."""
    values = [value for name, value in response.headers if name.lower() == "set-cookie"]
    pairs = [value.partition(";")[0].partition("=") for value in values]
    return {name.strip(): value.strip() for name, sign, value in pairs if sign}


# --- event streams --------------------------------------------------------------------------------


@dataclass(slots=True)
class EventCollector:
    """The events of one response.

    The stream is closed when a limit is reached; incomplete events are dropped.
    """

    max_events: int
    max_bytes: int
    seconds: float
    events: list[Any] = field(default_factory=list)
    is_stream: bool = False
    limit: str = ""  # that ended the stream

    async def read(self, chunks: AsyncIterator[bytes]) -> None:
        import httpx2

        size = 0

        async def count() -> AsyncIterator[bytes]:
            nonlocal size
            async for chunk in chunks:
                size += len(chunk)
                yield chunk

        self.is_stream = True
        request = httpx2.Request("GET", "http://stream.invalid")  # the library requires one
        response = httpx2.Response(
            200, headers={"Content-Type": EVENT_STREAM}, content=count(), request=request
        )
        with anyio.move_on_after(self.seconds) as scope:
            async for event in httpx2.EventSource(response, max_event_size=None):
                self.events.append(event)
                if len(self.events) == self.max_events:
                    self.limit = pluralize(self.max_events, "event")
                    break
        if scope.cancelled_caught:
            self.limit = f"{self.seconds:g} s"
        elif size >= self.max_bytes:
            self.limit = f"{self.max_bytes:,} bytes"

    def parse(self) -> list[JsonObject]:
        """Return the events as data. Call it in a thread: the parsing of large events takes long."""
        return [_parse_event(event) for event in self.events]


def _parse_event(event: Any) -> JsonObject:
    """Return an event.

    Data that is JSON is parsed, unless it has so many values that others would wait.
    """
    data = event.data
    if has_few_values(data):
        with suppress(ValueError, RecursionError):
            data = json.loads(data, parse_constant=lambda _: None)
    return {"event": event.event, "data": data, **({"id": event.id} if event.id else {})}
