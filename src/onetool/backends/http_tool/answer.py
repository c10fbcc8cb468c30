"""From the answer of a server to the value of a call: read by its kind, without secrets, and the part that is wanted.

The server is a stranger. How deep its data may go is bounded here, and so is what a selector may make of it.
"""

import base64
import json
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final

from onetool.errors import ToolError
from onetool.net.bodies import Plain, decoder_for, encodings_of
from onetool.net.exchange import Response
from onetool.redact import REDACTED, Redactor

DEEPEST: Final = 200
_SMALLEST: Final = 4  # bytes of a value in a list
_TEXTUAL: Final = ("xml", "javascript", "ecmascript", "yaml", "toml", "csv", "graphql", "x-www-form-urlencoded")


@dataclass(frozen=True, slots=True)
class Hiding:
    """What takes secrets out of answers; `forms` are the spellings that are looked for in bytes."""

    redact: Redactor
    forms: tuple[bytes, ...]

    def is_needed_in(self, body: bytes) -> bool:
        """Whether there may be a secret in this JSON: it is spelt out, or escapes or another charset could spell it."""
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
        _check(selected, max_bytes, "what the selector takes of the answer")
        return selected

    def _read(self, response: Response, hiding: Hiding | None) -> Any:
        if packing := packed_as(response):  # it could hide a secret from redaction
            raise ToolError(
                f"the answer is compressed as {packing[:40]!a}, and only gzip and deflate can be read; "
                "leave Accept-Encoding out of the tool's headers, or set it to identity"
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


def packed_as(response: Response) -> str:
    """The compression that the body is still in, because it is one that nobody asked for; empty where there is none."""
    encodings = encodings_of(response.headers)
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
        _check(data, len(response.body) * 8, "the answer")
    return hiding.redact.in_data(data) if hiding and hiding.is_needed_in(response.body) else data


def _parsed(response: Response) -> Any:
    """What orjson refuses (lone surrogates, NaN, other charsets, a mark at the start), json may read; NaN is null."""
    import orjson

    try:
        return orjson.loads(response.body)
    except orjson.JSONDecodeError:
        pass
    try:
        return json.loads(response.text(), parse_constant=lambda _: None)
    except RecursionError:
        raise _too_deep("the answer") from None
    except ValueError as error:
        raise ToolError(f"the answer is no JSON ({error}); set response.mode to text to have it as it is") from None


def _too_deep(what: str) -> ToolError:
    return ToolError(f"{what} is nested more than {DEEPEST} levels deep")


def _check(value: Any, max_bytes: int, what: str) -> None:
    """Bounded work, whatever the value is: level by level, and no further than the limits."""
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
            raise ToolError(f"the selector {selector} does not fit the answer: {error}") from None

    return select
