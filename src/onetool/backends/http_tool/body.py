"""The body of an HTTP tool: data that is sent as JSON, or a string template.

In data, a string that is a single placeholder becomes the value with its type, and a missing value removes its key. In
a string template, each value is escaped for the format that `Content-Type` names. A template that is a single
placeholder is the value: as JSON if that is the format, else as text; without a value there is no body.
"""

import json
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any
from xml.sax.saxutils import escape

from onetool.backends.http_tool.entries import encoded, entries_of
from onetool.backends.http_tool.placeholders import (
    MISSING,
    Parts,
    Placeholder,
    Values,
    fixed,
    parse,
    placeholders_in,
    text_of,
)
from onetool.errors import ArgumentError

JSON_TYPE = "application/json"
_FORM = "application/x-www-form-urlencoded"
_MARK = "\ufdd0"  # stands for a value while a template is checked; it occurs in no valid text
_TOKENS = re.compile(r'\\.?|"', re.DOTALL)
_SPACE = re.compile(r"\s*")
_SEQUENCES = ("ndjson", "jsonl", "jsonlines", "json-lines", "json-seq", "json-stream", "stream+json")
# With the white space that XML parsers normalize
_QUOTES = {'"': "&quot;", "'": "&apos;", "\r": "&#13;", "\n": "&#10;", "\t": "&#9;"}


@dataclass(frozen=True, slots=True)
class BodyTemplate:
    fill: Callable[[Values], bytes | None]
    placeholders: list[Placeholder]
    content_type: str | None = None  # if the headers of the tool do not set it


def parse_body(body: Any, content_type: str) -> BodyTemplate:
    if isinstance(body, str):
        return _of_text(body, content_type.partition(";")[0].strip().lower())
    if content_type and "json" not in content_type.lower():
        raise ValueError(
            f"is sent as JSON, but Content-Type is {content_type}; write the body as a string, or remove Content-Type"
        )
    found: list[Placeholder] = []
    try:
        data = _of_data(body, found)
        return BodyTemplate(
            _constant(dumps(data)) if not callable(data) else lambda values: dumps(data(values)), found, JSON_TYPE
        )
    except RecursionError:
        raise ValueError("is nested too deeply") from None


def dumps(value: Any) -> bytes:
    """Serialize to JSON. `json` writes what orjson rejects: large integers, lone surrogates, more than 254 levels."""
    import orjson

    try:
        return orjson.dumps(value)
    except TypeError:
        pass
    try:
        return json.dumps(value, separators=(",", ":"), allow_nan=False).encode()
    except (TypeError, ValueError, RecursionError) as error:
        reason = "it is nested too deeply" if isinstance(error, RecursionError) else error
        raise ArgumentError(f"cannot serialize a value as JSON: {reason}") from None


def _constant(content: bytes) -> Callable[[Values], bytes]:
    return lambda _values: content


# --- data ----------------------------------------------------------------------------------------------------------


def _of_data(node: Any, found: list[Placeholder]) -> Any:
    """Return the node itself if it has no placeholders, else a function that fills them in."""
    if isinstance(node, str):
        return _of_string(parse(node), found)
    if not isinstance(node, dict | list):
        return node
    is_list = isinstance(node, list)
    pairs = enumerate(node) if isinstance(node, list) else node.items()
    items = {key if is_list else fixed(str(key), "a key"): _of_data(item, found) for key, item in pairs}
    if not any(map(callable, items.values())):
        return list(items.values()) if is_list else items

    def fill(values: Values) -> Any:
        made = {key: item(values) if callable(item) else item for key, item in items.items()}
        kept = {key: item for key, item in made.items() if item is not MISSING}
        return list(kept.values()) if is_list else kept

    return fill


def _of_string(parts: Parts, found: list[Placeholder]) -> Any:
    own = placeholders_in(parts)
    found += own
    if not own:
        return "".join(map(str, parts))

    def sentence(values: Values) -> Any:
        texts = [part if isinstance(part, str) else _in_sentence(part, values) for part in parts]
        return MISSING if MISSING in texts else "".join(map(str, texts))

    return (lambda values: values.of(own[0])) if len(parts) == 1 else sentence


def _in_sentence(placeholder: Placeholder, values: Values) -> Any:
    found = values.of(placeholder)
    if found is None or found is MISSING:
        return MISSING
    return dumps(found).decode() if isinstance(found, dict | list | tuple) else text_of(found, placeholder)


# --- text ----------------------------------------------------------------------------------------------------------


def _of_text(body: str, kind: str) -> BodyTemplate:
    parts = parse(body)
    found = placeholders_in(parts)
    if not found:
        return BodyTemplate(_constant("".join(map(str, parts)).encode()), [])
    if kind == _FORM:
        entries = entries_of(body)
        return BodyTemplate(lambda values: encoded(entries, values).encode(), found)
    if kind.startswith("multipart/"):
        raise ValueError("cannot contain placeholders: multipart bodies are not supported")
    if len(parts) == 1:
        return BodyTemplate(_whole(found[0], is_json=is_json(kind)), found)
    writers = _writers(parts, kind)
    return BodyTemplate(lambda values: _written(parts, writers, values), found)


def is_json(kind: str) -> bool:
    """Return whether the content type is a single JSON document, not a sequence of them."""
    return "json" in kind and not kind.endswith(_SEQUENCES)


def _whole(placeholder: Placeholder, *, is_json: bool) -> Callable[[Values], bytes | None]:
    """Return a function that writes a body which is a single value."""

    def as_json(values: Values) -> bytes | None:
        found = values.of(placeholder)
        return None if found is MISSING else dumps(found)

    def as_text(values: Values) -> bytes | None:
        text = values.text(placeholder)
        return None if text is None else text.encode()

    return as_json if is_json else as_text


Writer = Callable[[Placeholder, Values], str]


def _written(parts: Parts, writers: list[Writer], values: Values) -> bytes:
    following = iter(writers)
    return "".join(part if isinstance(part, str) else next(following)(part, values) for part in parts).encode()


def _writers(parts: Parts, kind: str) -> list[Writer]:
    """Return a function for each placeholder that writes its value in the format of the template."""
    if "json" in kind or (not kind and _looks_like_json(parts)):
        _check_json(parts)
        return [_inside_string if inside else _as_json for inside in _positions(parts)]
    return [_as_xml if "xml" in kind else _as_text] * len(placeholders_in(parts))


def _as_text(placeholder: Placeholder, values: Values) -> str:
    return values.text(placeholder) or ""


def _as_xml(placeholder: Placeholder, values: Values) -> str:
    return escape(_as_text(placeholder, values), _QUOTES)


def _as_json(placeholder: Placeholder, values: Values) -> str:
    found = values.of(placeholder)
    return "null" if found is MISSING else dumps(found).decode()


def _inside_string(placeholder: Placeholder, values: Values) -> str:
    found = _in_sentence(placeholder, values)
    return "" if found is MISSING else dumps(found).decode()[1:-1]


def _looks_like_json(parts: Parts) -> bool:
    if not _sample(parts).lstrip().startswith(("{", "[")):
        return False
    try:
        _check_json(parts)
    except ValueError:
        return False
    return True


def _check_json(parts: Parts) -> None:
    """Raise if a placeholder is not at the position of a value: in a key, in an escape, next to a number."""

    def refuse_marked_keys(pairs: list[tuple[str, Any]]) -> None:
        if any(_MARK in key for key, _ in pairs):
            raise ValueError("has a placeholder in a key, which is not supported")

    text = _sample(parts)
    decoder, at = json.JSONDecoder(object_pairs_hook=refuse_marked_keys), _after_space(text, 0)
    try:
        while at < len(text):
            at = _after_space(text, decoder.raw_decode(text, at)[1])
    except (json.JSONDecodeError, RecursionError):
        raise ValueError("is not valid JSON for any values of its placeholders") from None


def _after_space(text: str, at: int) -> int:
    return _SPACE.match(text, at).end()  # type: ignore[union-attr]  # it always matches


def _sample(parts: Parts) -> str:
    inside = iter(_positions(parts))
    return "".join(part if isinstance(part, str) else _MARK if next(inside) else f'"{_MARK}"' for part in parts)


def _positions(parts: Parts) -> Iterator[bool]:
    """Yield for each placeholder whether it is inside a JSON string."""
    inside = False
    for part in parts:
        if isinstance(part, Placeholder):
            yield inside
        else:
            inside ^= _TOKENS.findall(part).count('"') % 2 == 1
