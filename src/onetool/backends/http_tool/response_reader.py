"""Convert the response of a server to the result of a call: parse it, redact secrets and apply the selector.

The server is not trusted: the depth of its data and the size of the result of a selector are limited.
"""

import base64
import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, Final
from urllib.parse import urljoin

from onetool.errors import ToolError
from onetool.net.messages import Response
from onetool.net.response_body import PlainDecoder, get_decoder, get_encodings
from onetool.util.redact import REDACTED, Redactor
from onetool.util.secret_finder import is_secret_name

MAX_DEPTH: Final = 200
OTHER_TYPE: Final = "application/octet-stream"
_MIN_VALUE_BYTES: Final = 4  # counted for a value that is not a string
_PAGING_WORDS: Final = frozenset({"next", "page", "pagination", "continuation", "cursor"})
StoreBinary = Callable[[bytes, str], Any]  # content and media type -> value
_TEXT_TYPES: Final = ("xml", "javascript", "ecmascript", "yaml", "toml", "csv", "graphql", "x-www-form-urlencoded")


@dataclass(frozen=True, slots=True)
class SecretRedactor:
    """A redactor for responses. It searches binary content for `encoded_secrets`.

    Responses are redacted before a selector reads them: it could rearrange a secret so that nothing recognizes it.
    """

    redact: Redactor
    encoded_secrets: tuple[bytes, ...]

    def may_contain_secret(self, body: bytes) -> bool:
        """Return whether this JSON may contain a secret in any encoding; with escapes or another charset, it may."""
        if not body.isascii() or any(mark in body for mark in (b"\\", b"\0", b"\x1b")):
            return True
        text = body.decode("ascii")
        return self.redact(text) != text

    def redact_bytes(self, content: bytes) -> bytes:
        for secret in self.encoded_secrets:
            content = content.replace(secret, REDACTED.encode())
        return content


class ResponseReader:
    """A reader that converts responses by the mode and the selector of a tool."""

    def __init__(self, mode: str, selector: str | None) -> None:
        self._mode, self._select = mode, _compile_selector(selector)

    def read(
        self, response: Response, redactor: SecretRedactor | None, max_bytes: int, store: StoreBinary | None = None
    ) -> Any:
        """Return the value of a response. `store` stores a binary body; otherwise, it is returned as base64."""
        return self._apply_selector(self._parse(response, redactor, store or _encode_binary), max_bytes)

    def read_events(self, events: list[Any], redactor: SecretRedactor | None, max_bytes: int) -> Any:
        """Return the value of the events of a stream."""
        _check_limits(events, max_bytes * 8, "the response")
        return self._apply_selector(redactor.redact.redact_data(events) if redactor else events, max_bytes)

    @property
    def has_selector(self) -> bool:
        return self._select is not None

    def is_binary(self, response: Response) -> bool:
        return self._mode == "auto" and self._select is None and not _is_text(response.media_type, response.body)

    def _apply_selector(self, value: Any, max_bytes: int) -> Any:
        if self._select is None or value is None:
            return value
        selected = self._select(value)
        _check_limits(selected, max_bytes, "the result of the selector")
        return selected

    def _parse(self, response: Response, redactor: SecretRedactor | None, store: StoreBinary) -> Any:
        if encoding := get_unsupported_encoding(response):  # it cannot be parsed, and secrets in it cannot be redacted
            raise ToolError(
                f"unsupported compression {encoding[:40]!r} of the response (expected gzip or deflate)",
                hint="remove Accept-Encoding from the headers of the tool, or set it to identity",
            )
        media_type = response.media_type
        if self._mode == "base64":
            return _encode_binary(redact_body(response, redactor), media_type)
        if self._mode == "text":
            return _read_text(response, redactor)
        if not response.body.strip():
            return None
        if self._mode == "json" or self._select is not None or media_type.endswith(("/json", "+json")):
            return _read_json(response, redactor)
        if _is_text(media_type, response.body):
            return _read_text(response, redactor)
        return store(redact_body(response, redactor), media_type)


def redact_body(response: Response, redactor: SecretRedactor | None) -> bytes:
    return redactor.redact_bytes(response.body) if redactor else response.body


def _encode_binary(content: bytes, media_type: str) -> dict[str, str]:
    return {"content_type": media_type or OTHER_TYPE, "base64": base64.b64encode(content).decode()}


# --- headers -------------------------------------------------------------------------------------------------------


def join_headers(response: Response) -> dict[str, str]:
    """Return the headers by lower-case name; repeated ones are joined by commas."""
    headers: dict[str, str] = {}
    for name, value in response.headers:
        key = name.lower()
        headers[key] = f"{headers[key]}, {value}" if key in headers else value
    return headers


def read_headers(response: Response, redactor: SecretRedactor | None) -> dict[str, Any]:
    """Return `status`, `headers` and `links` of a full response. Headers that may hold credentials are redacted."""
    headers = {
        name: REDACTED if _may_hold_credential(name) else value for name, value in join_headers(response).items()
    }
    data = {"status": response.status, "headers": headers, "links": dict(_iterate_links(response))}
    redacted: dict[str, Any] = redactor.redact.redact_data(data) if redactor else data
    return redacted


def _may_hold_credential(name: str) -> bool:
    """Return whether a header may hold a credential. Tokens of the next page are not credentials."""
    return is_secret_name(name) and _PAGING_WORDS.isdisjoint(name.split("-"))


def _iterate_links(response: Response) -> Iterator[tuple[str, str]]:
    """Yield the relation and the URL of each link in the Link header."""
    import httpx2

    values = [("Link", value) for name, value in response.headers if name.lower() == "link"]
    for relation, link in httpx2.Response(200, headers=values).links.items():
        for name in str(relation).split():
            yield name, urljoin(response.url, str(link.get("url", "")))


def read_cookies(response: Response) -> dict[str, str]:
    """Return the cookies that the response sets, for later steps of the tool."""
    values = (value for name, value in response.headers if name.lower() == "set-cookie")
    pairs = (value.partition(";")[0].partition("=") for value in values)
    return {name.strip(): value.strip() for name, sign, value in pairs if sign}


def get_unsupported_encoding(response: Response) -> str:
    """Return the compression that the body still has because it is not supported, or an empty string."""
    encodings = get_encodings(response.headers)
    return encodings[0] if response.body and encodings and isinstance(get_decoder(encodings), PlainDecoder) else ""


def _is_text(media_type: str, body: bytes) -> bool:
    if media_type:
        return media_type.startswith("text/") or media_type.endswith(_TEXT_TYPES) or "json" in media_type
    try:
        return "\0" not in body.decode()
    except UnicodeDecodeError:
        return False


def _read_text(response: Response, redactor: SecretRedactor | None) -> str:
    return redactor.redact(response.text()) if redactor else response.text()


def _read_json(response: Response, redactor: SecretRedactor | None) -> Any:
    data = _parse_json(response)
    if response.body.count(b"[") + response.body.count(b"{") > MAX_DEPTH:
        _check_limits(data, len(response.body) * 8, "the response")
    return redactor.redact.redact_data(data) if redactor and redactor.may_contain_secret(response.body) else data


def _parse_json(response: Response) -> Any:
    """Parse JSON. `json` accepts what orjson rejects: lone surrogates, NaN (as null), other charsets and a BOM."""
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
            f"the response is not valid JSON: {error}", hint="set response.mode to text to get it as text"
        ) from None


def _too_deep_error(name: str) -> ToolError:
    return ToolError(f"{name} is nested more than {MAX_DEPTH} levels deep")


def _check_limits(value: Any, max_bytes: int, name: str) -> None:
    """Check depth and size level by level, so that the work is bounded by the limits."""
    level: list[Any] = [[value]]
    size = 0
    for _ in range(MAX_DEPTH + 1):
        items = [item for node in level for item in (node.values() if isinstance(node, dict) else node)]
        size += sum(len(item) if isinstance(item, str) else _MIN_VALUE_BYTES for item in items)
        if size > max_bytes:
            raise ToolError(f"{name} is larger than {max_bytes:,} bytes")
        level = [item for item in items if isinstance(item, dict | list)]
        if not level:
            return
    raise _too_deep_error(name)


def _compile_selector(selector: str | None) -> Callable[[Any], Any] | None:
    if selector is None:
        return None
    from jmespath.exceptions import JMESPathError

    from onetool.backends.http_tool.selector import select as select_limited

    def select(data: Any) -> Any:
        try:
            return select_limited(selector, data)
        except (JMESPathError, ArithmeticError, LookupError, TypeError, ValueError, RecursionError) as error:
            raise ToolError(f"the selector {selector} failed on the response: {error}") from None

    return select
