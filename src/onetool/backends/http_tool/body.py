"""The body of an HTTP tool: data that is sent as JSON, a form or multipart, or a string template.

In data, a string that is a single placeholder becomes the value with its type, and a missing value removes its key. In
a string template, each value is escaped for the format that `Content-Type` names. A template that is a single
placeholder is the value: as JSON if that is the format, else as text; without a value there is no body. A single
`${file:name}` is the content of a file. An object is a form or multipart if `Content-Type` says so.
"""

import json
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any
from xml.sax.saxutils import escape

from onetool.backends.http_tool.multipart import MultipartTemplate
from onetool.backends.http_tool.placeholders import (
    MISSING,
    Parts,
    Placeholder,
    Values,
    invalid_value_error,
    list_placeholders,
    parse,
    require_literal,
    to_text,
)
from onetool.backends.http_tool.query import ParameterTemplate, encode_fields, encode_query, parse_query
from onetool.backends.http_tool.serialize import dumps, is_json

JSON_TYPE = "application/json"
_FORM = "application/x-www-form-urlencoded"
_MARK = "\ufdd0"  # replaces values while a template is checked; valid text does not contain it
_TOKENS = re.compile(r'\\.?|"', re.DOTALL)
_SPACE = re.compile(r"\s*")
# Including white space that XML parsers normalize
_QUOTES = {'"': "&quot;", "'": "&apos;", "\r": "&#13;", "\n": "&#10;", "\t": "&#9;"}


@dataclass(frozen=True, slots=True)
class BodyTemplate:
    fill: Callable[[Values], bytes | None]
    placeholders: list[Placeholder]
    content_type: str | None = None  # if the headers of the tool do not set it
    is_multipart: bool = False

    @property
    def is_blocking(self) -> bool:
        """Whether filling it reads files."""
        return any(placeholder.is_file for placeholder in self.placeholders)


def parse_body(body: Any, content_type: str) -> BodyTemplate:
    kind = content_type.partition(";")[0].strip().lower()
    if isinstance(body, str):
        return _parse_text(body, kind)
    if isinstance(body, dict) and kind.startswith("multipart/"):
        if "boundary" in content_type.lower():
            raise ValueError("is multipart: remove the boundary from Content-Type, OneTool chooses it")
        parts = MultipartTemplate.of(body, kind)
        return BodyTemplate(parts.fill, parts.placeholders, is_multipart=True)
    if isinstance(body, dict) and kind == _FORM:
        return _parse_form(body)
    if content_type and "json" not in content_type.lower():
        raise ValueError(
            f"is sent as JSON, but Content-Type is {content_type}; write the body as a string, or remove Content-Type"
        )
    placeholders: list[Placeholder] = []
    try:
        data = _parse_data(body, placeholders)
        fill = (lambda values: dumps(data(values))) if callable(data) else _constant(dumps(data))
        return BodyTemplate(fill, placeholders, JSON_TYPE)
    except RecursionError:
        raise ValueError("is nested too deeply") from None


def _constant(content: bytes) -> Callable[[Values], bytes]:
    return lambda _values: content


# --- data ----------------------------------------------------------------------------------------------------------


def _parse_data(node: Any, found: list[Placeholder]) -> Any:
    """Return the node itself if it has no placeholders, else a function that fills them. Add them to `found`."""
    if isinstance(node, str):
        return _parse_string(parse(node), found)
    if not isinstance(node, dict | list):
        return node
    is_list = isinstance(node, list)
    pairs = enumerate(node) if isinstance(node, list) else node.items()
    items = {key if is_list else require_literal(str(key), "a key"): _parse_data(item, found) for key, item in pairs}
    if not any(map(callable, items.values())):
        return list(items.values()) if is_list else items

    def fill(values: Values) -> Any:
        filled = {key: item(values) if callable(item) else item for key, item in items.items()}
        kept = {key: item for key, item in filled.items() if item is not MISSING}
        return list(kept.values()) if is_list else kept

    return fill


def _parse_string(parts: Parts, found: list[Placeholder]) -> Any:
    placeholders = list_placeholders(parts)
    found += placeholders
    if not placeholders:
        return "".join(map(str, parts))

    def fill_text(values: Values) -> Any:
        texts = [part if isinstance(part, str) else _to_embedded_text(part, values) for part in parts]
        return MISSING if MISSING in texts else "".join(map(str, texts))

    return (lambda values: values.get(placeholders[0])) if len(parts) == 1 else fill_text


def _to_embedded_text(placeholder: Placeholder, values: Values) -> Any:
    value = values.get(placeholder)
    if value is None or value is MISSING:
        return MISSING
    return dumps(value).decode() if isinstance(value, dict | list | tuple) else to_text(value, placeholder)


def _parse_form(body: dict[str, Any]) -> BodyTemplate:
    if invalid := [name for name, value in body.items() if not isinstance(value, str)]:
        raise ValueError(f"{invalid[0]}: a field of a form must be a string, such as ${{name}}")
    fields = tuple(ParameterTemplate.of(name, value) for name, value in body.items())
    placeholders = [placeholder for field in fields for placeholder in field.placeholders]
    return BodyTemplate(lambda values: encode_query(fields, values).encode(), placeholders)


# --- text ----------------------------------------------------------------------------------------------------------


def _parse_text(body: str, kind: str) -> BodyTemplate:
    parts = parse(body, allow_file=True)
    placeholders = list_placeholders(parts)
    if not placeholders:
        return BodyTemplate(_constant("".join(map(str, parts)).encode()), [])
    if placeholders[0].is_file:
        return BodyTemplate(lambda values: _read_file(placeholders[0], values), placeholders)
    if kind == _FORM and len(parts) == 1:
        return BodyTemplate(lambda values: _write_fields(placeholders[0], values), placeholders)
    if kind == _FORM:
        parameters = parse_query(body)
        return BodyTemplate(lambda values: encode_query(parameters, values).encode(), placeholders)
    if kind.startswith("multipart/"):
        raise ValueError("cannot contain placeholders: write multipart bodies as an object with one member per part")
    if len(parts) == 1:
        return BodyTemplate(_get_single_writer(placeholders[0], is_json=is_json(kind)), placeholders)
    writers = _get_writers(parts, kind)
    return BodyTemplate(lambda values: _fill_text(parts, writers, values), placeholders)


def _write_fields(placeholder: Placeholder, values: Values) -> bytes | None:
    value = values.get(placeholder)
    return None if value is None or value is MISSING else encode_fields(value, placeholder).encode()


def _read_file(placeholder: Placeholder, values: Values) -> bytes | None:
    files = values.get_files(placeholder)
    if len(files) > 1:
        raise invalid_value_error([placeholder], "is a list: a body is one file")
    return files[0].data if files else None


def _get_single_writer(placeholder: Placeholder, *, is_json: bool) -> Callable[[Values], bytes | None]:
    """Return a function that writes a body which is a single value."""

    def write_json(values: Values) -> bytes | None:
        value = values.get(placeholder)
        return None if value is MISSING else dumps(value)

    def write_text(values: Values) -> bytes | None:
        text = values.get_text(placeholder)
        return None if text is None else text.encode()

    return write_json if is_json else write_text


ValueWriter = Callable[[Placeholder, Values], str]


def _fill_text(parts: Parts, writers: list[ValueWriter], values: Values) -> bytes:
    remaining = iter(writers)
    return "".join(part if isinstance(part, str) else next(remaining)(part, values) for part in parts).encode()


def _get_writers(parts: Parts, kind: str) -> list[ValueWriter]:
    """Return a function for each placeholder that writes its value in the format of the template."""
    if "json" in kind or (not kind and _is_json_template(parts)):
        _check_json(parts)
        return [_write_in_json_string if inside else _write_json for inside in _find_string_positions(parts)]
    return [_write_xml if "xml" in kind else _write_text] * len(list_placeholders(parts))


def _write_text(placeholder: Placeholder, values: Values) -> str:
    return values.get_text(placeholder) or ""


def _write_xml(placeholder: Placeholder, values: Values) -> str:
    return escape(_write_text(placeholder, values), _QUOTES)


def _write_json(placeholder: Placeholder, values: Values) -> str:
    value = values.get(placeholder)
    return "null" if value is MISSING else dumps(value).decode()


def _write_in_json_string(placeholder: Placeholder, values: Values) -> str:
    text = _to_embedded_text(placeholder, values)
    return "" if text is MISSING else dumps(text).decode()[1:-1]


def _is_json_template(parts: Parts) -> bool:
    if not _build_sample(parts).lstrip().startswith(("{", "[")):
        return False
    try:
        _check_json(parts)
    except ValueError:
        return False
    return True


def _check_json(parts: Parts) -> None:
    """Raise if a placeholder is not at the position of a value: in a key, in an escape, next to a number."""

    def reject_marked_keys(pairs: list[tuple[str, Any]]) -> None:
        if any(_MARK in key for key, _ in pairs):
            raise ValueError("has a placeholder in a key, which is not supported")

    text = _build_sample(parts)
    decoder, at = json.JSONDecoder(object_pairs_hook=reject_marked_keys), _skip_space(text, 0)
    try:
        while at < len(text):
            at = _skip_space(text, decoder.raw_decode(text, at)[1])
    except (json.JSONDecodeError, RecursionError):
        raise ValueError("is not valid JSON for any values of its placeholders") from None


def _skip_space(text: str, at: int) -> int:
    return _SPACE.match(text, at).end()  # type: ignore[union-attr]  # it always matches


def _build_sample(parts: Parts) -> str:
    inside = iter(_find_string_positions(parts))
    return "".join(part if isinstance(part, str) else _MARK if next(inside) else f'"{_MARK}"' for part in parts)


def _find_string_positions(parts: Parts) -> Iterator[bool]:
    """Yield for each placeholder whether it is inside a JSON string."""
    inside = False
    for part in parts:
        if isinstance(part, Placeholder):
            yield inside
        else:
            inside ^= _TOKENS.findall(part).count('"') % 2 == 1
