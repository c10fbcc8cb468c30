"""Convert the response of a server to the result of a call: parse it, redact secrets and apply the selector.

The server is not trusted: the depth of its data and the size of what a selector returns are limited.
"""

import base64
import json
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final

from onetool.errors import ToolError
from onetool.net.bodies import Plain, decoder_for, get_encodings
from onetool.net.exchange import Response
from onetool.redact import REDACTED, Redactor

DEEPEST: Final = 200
_SMALLEST: Final = 4  # bytes of a value in a list
_TEXTUAL: Final = ("xml", "javascript", "ecmascript", "yaml", "toml", "csv", "graphql", "x-www-form-urlencoded")


@dataclass(frozen=True, slots=True)
class Hiding:
    """A redactor for responses. `forms` are the byte sequences to look for in binary content."""

    redact: Redactor
    forms: tuple[bytes, ...]

    def is_needed_in(self, body: bytes) -> bool:
        """Return whether this JSON may contain a secret: literally, or through escapes or another charset."""
        return not body.isascii() or any(form in body for form in (b"\\", b"\0", b"\x1b", *self.forms))

    def of_bytes(self, content: bytes) -> bytes:
        for form in self.forms:
            content = content.replace(form, REDACTED.encode())
        return content


class Reader:
    def __init__(self, mode: str, selector: str | None) -> None:
        self._mode, self._select = mode, _compiled(selector)

    def value(self, response: Response, hiding: Hiding | None, max_bytes: int) -> Any:
        value = self._read(response, hiding)
        if self._select is None or value is None:
            return value
        selected = self._select(value)
        _check(selected, max_bytes, "the result of the selector")
        return selected

    def _read(self, response: Response, hiding: Hiding | None) -> Any:
        if packing := get_unsupported_encoding(response):  # it cannot be parsed, and secrets in it cannot be redacted
            raise ToolError(
                f"unsupported compression {packing[:40]!a} of the response (expected gzip or deflate)",
                hint="remove Accept-Encoding from the headers of the tool, or set it to identity",
            )
        kind = (response.header("content-type") or "").partition(";")[0].strip().lower()
        if self._mode == "text":
            return _text(response, hiding)
        if not response.body.strip():
            return None
        if self._mode == "json" or self._select is not None or kind.endswith(("/json", "+json")):
            return _data(response, hiding)
        if _is_text(kind, response.body):
            return _text(response, hiding)
        content = hiding.of_bytes(response.body) if hiding else response.body
        return {"content_type": kind or "application/octet-stream", "base64": base64.b64encode(content).decode()}


def get_unsupported_encoding(response: Response) -> str:
    """Return the compression that the body still has because it is not supported, or an empty string."""
    encodings = get_encodings(response.headers)
    return encodings[0] if response.body and encodings and isinstance(decoder_for(encodings), Plain) else ""


def _is_text(kind: str, body: bytes) -> bool:
    if kind:
        return kind.startswith("text/") or kind.endswith(_TEXTUAL) or "json" in kind
    try:
        return "\0" not in body.decode()
    except UnicodeDecodeError:
        return False


def _text(response: Response, hiding: Hiding | None) -> str:
    return hiding.redact(response.text()) if hiding else response.text()


def _data(response: Response, hiding: Hiding | None) -> Any:
    data = _parsed(response)
    if response.body.count(b"[") + response.body.count(b"{") > DEEPEST:
        _check(data, len(response.body) * 8, "the response")
    return hiding.redact.in_data(data) if hiding and hiding.is_needed_in(response.body) else data


def _parsed(response: Response) -> Any:
    """Parse JSON. `json` reads what orjson rejects: lone surrogates, NaN (as null), other charsets and a BOM."""
    import orjson

    try:
        return orjson.loads(response.body)
    except orjson.JSONDecodeError:
        pass
    try:
        return json.loads(response.text(), parse_constant=lambda _: None)
    except RecursionError:
        raise _too_deep("the response") from None
    except ValueError as error:
        raise ToolError(
            f"the response is not valid JSON: {error}", hint="set response.mode to text to get it as text"
        ) from None


def _too_deep(what: str) -> ToolError:
    return ToolError(f"{what} is nested more than {DEEPEST} levels deep")


def _check(value: Any, max_bytes: int, what: str) -> None:
    """Check depth and size level by level, so that the work is bounded by the limits."""
    level: list[Any] = [[value]]
    size = 0
    for _ in range(DEEPEST + 1):
        items = [item for each in level for item in (each.values() if isinstance(each, dict) else each)]
        size += sum(len(item) if isinstance(item, str) else _SMALLEST for item in items)
        if size > max_bytes:
            raise ToolError(f"{what} is larger than {max_bytes:,} bytes")
        level = [item for item in items if isinstance(item, dict | list)]
        if not level:
            return
    raise _too_deep(what)


def _compiled(selector: str | None) -> Callable[[Any], Any] | None:
    if selector is None:
        return None
    import jmespath
    from jmespath.exceptions import JMESPathError

    expression = jmespath.compile(selector)

    def select(data: Any) -> Any:
        try:
            return expression.search(data)
        except (JMESPathError, ArithmeticError, LookupError, TypeError, ValueError, RecursionError) as error:
            raise ToolError(f"the selector {selector} failed on the response: {error}") from None

    return select
