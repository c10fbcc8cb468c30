"""Serialization of values to JSON: dates as ISO strings, bytes as base64, sets as lists.

Objects are serialized in the process whose code created them, never in the server, so that a hostile `__str__` runs in
its own cell.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from math import isfinite

TYPE_CHECKING = False  # importing `typing` would double the start-up time of a worker
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

MAX_DEPTH = 200
MAX_INDENTATION_BYTES = 1 << 24
FORMATS = ("json", "json_h", "yml", "yml_h", "raw")  # of `__format__`; `onetool.render` writes them


MAX_RECORD_CHARS = 1_000  # a longer record is split into its items
MAX_RECORD_DEPTH = 6
_READABLE = json.JSONEncoder(ensure_ascii=False, allow_nan=False, separators=(",", ":"))


class NotData(ValueError):
    """The value cannot be serialized."""


class Reference:
    """An object of a cell that is sent as data which the server knows."""

    __slots__ = ()

    def to_data(self) -> Any:
        raise NotImplementedError


def _reject_object(_value: Any) -> Any:
    raise TypeError


_ENCODER = json.JSONEncoder(default=_reject_object, separators=(",", ":"))


def encode(value: Any, convert: Callable[[Any], Any] | None = None) -> str:
    """Return the value as one line of ASCII JSON. NaN and Infinity are kept for the formats of the server.

    `convert` returns the data for an object, or None to use the default.
    """
    try:
        return _ENCODER.encode(value)
    except (TypeError, ValueError, RecursionError):  # it contains objects
        return _encode_objects(value, convert)


def _encode_objects(value: Any, convert: Callable[[Any], Any] | None) -> str:
    plain = _Converter(convert)
    encoder = json.JSONEncoder(default=plain, separators=(",", ":"))
    try:
        return encoder.encode(value)
    except TypeError:  # an unsupported key, or an object whose methods failed
        return encoder.encode(_convert_keys(value, plain))
    except RecursionError:
        raise NotData("the value is nested too deeply; return a part of it") from None
    except ValueError as error:
        is_circle = "Circular" in str(error)
        reason = "the value refers to itself and cannot be returned; return a part of it" if is_circle else str(error)
        raise NotData(reason) from None


class _Converter:
    """A serializer that remembers the items of iterators, which can be consumed only once."""

    def __init__(self, convert: Callable[[Any], Any] | None) -> None:
        self._convert = convert
        self._seen: dict[int, tuple[Any, Any]] = {}

    def __call__(self, value: Any) -> Any:
        known = self._seen.get(id(value))
        if known is None:
            converted = None if self._convert is None else self._convert(value)
            known = self._seen[id(value)] = value, _plain(value) if converted is None else converted
        return known[1]


def text(value: Any, indent: int | None = None) -> str:
    """Return the value as readable JSON: nothing escaped, NaN and Infinity as null."""
    separators = (",", ":") if indent is None else (",", ": ")
    try:
        return json.dumps(
            value, ensure_ascii=False, allow_nan=False, indent=indent, separators=separators, default=_plain
        )
    except (TypeError, ValueError):  # keys that are not strings, or NaN
        return json.dumps(_replace_nan(as_data(value)), ensure_ascii=False, indent=indent, separators=separators)


def record_lines(value: Any, depth: int = 0) -> str:
    """Return the value as JSON with line breaks only between records, the items of long collections.

    Without line breaks it is compact JSON, because JSON strings have none. The value is data without NaN.
    """
    if not isinstance(value, dict | list | tuple) or not value or depth > MAX_RECORD_DEPTH:
        return _READABLE.encode(value)
    if depth == 0 and len(value) < MAX_RECORD_CHARS and len(text := _READABLE.encode(value)) < MAX_RECORD_CHARS:
        return text
    start, end = ("{", "}") if isinstance(value, dict) else ("[", "]")
    return f"{start}\n" + ",\n".join(_format_records(value, depth)) + f"\n{end}"


def _format_records(value: Any, depth: int) -> Iterator[str]:
    for key, item in value.items() if isinstance(value, dict) else ((None, item) for item in value):
        text = _READABLE.encode(item)
        if len(text) > MAX_RECORD_CHARS:
            text = record_lines(item, depth + 1)
        yield text if not isinstance(value, dict) else f"{_READABLE.encode({key: 0})[1:-2]}{text}"


def _replace_nan(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _replace_nan(item) for key, item in value.items()}
    if isinstance(value, list):
        return [_replace_nan(item) for item in value]
    return None if isinstance(value, float) and not isfinite(value) else value


def has_too_much_indentation(value: Any) -> bool:
    """Return whether indentation is too large: a megabyte of nested brackets makes 500 MB of whitespace."""
    indentation, queue = 0, [(value, 1)]
    while queue and indentation <= MAX_INDENTATION_BYTES:
        item, depth = queue.pop()
        if isinstance(item, dict | list | tuple):
            indentation += 2 * depth * (1 + len(item))
            queue += [(child, depth + 1) for child in (item.values() if isinstance(item, dict) else item)]
    return indentation > MAX_INDENTATION_BYTES


def as_data(value: Any) -> Any:
    """Return the value as it is received over a pipe."""
    return json.loads(encode(value))


def _plain(value: Any) -> Any:
    """Return the data for an object that JSON does not support."""
    for kinds, convert in _CONVERSIONS:
        if isinstance(value, kinds):
            return convert(value)
    return _convert_object(value)


def _convert_object(value: Any) -> Any:
    import dataclasses
    import enum

    if isinstance(value, enum.Enum):
        return value.value
    is_dataclass = dataclasses.is_dataclass(type(value))
    fields = dataclasses.fields(value) if is_dataclass else getattr(type(value), "__attrs_attrs__", None)
    if fields is not None:
        return {getattr(field, "alias", field.name): getattr(value, field.name) for field in fields}
    if hasattr(value, "model_dump"):
        return _dump_model(value)
    for method in ("isoformat", "tolist"):  # dates; arrays and numbers of NumPy
        if hasattr(value, method):
            return getattr(value, method)()
    if isinstance(value, Iterable) and not isinstance(value, type) and not hasattr(value, "__fspath__"):
        return list(value)
    return str(value)


def _dump_model(model: Any) -> Any:
    """Return the data of a pydantic model as it serializes itself; bytes that are not text are left to `_plain`."""
    try:
        return model.model_dump(mode="json")
    except (TypeError, ValueError):
        return model.model_dump()


def _encode_base64(value: bytes) -> str:
    import base64

    return base64.b64encode(value).decode("ascii")


def _sort_if_possible(value: Iterable[Any]) -> list[Any]:
    """Return a set as a list, sorted if possible, so that equal values give equal texts."""
    try:
        return sorted(value)
    except TypeError:
        return list(value)


_CONVERSIONS: tuple[tuple[Any, Any], ...] = (
    (Reference, lambda value: type(value).to_data(value)),  # first: inspecting a placeholder ends the run
    ((set, frozenset), _sort_if_possible),
    (bytes, _encode_base64),
    ((bytearray, memoryview), lambda value: _encode_base64(bytes(value))),
    (Mapping, dict),
    (complex, str),
    (BaseException, lambda value: f"{type(value).__name__}: {value}"),
)


def _convert_keys(value: Any, plain: _Converter, depth: int = 0) -> Any:
    if depth > MAX_DEPTH:
        raise NotData("the value is nested too deeply; return a part of it")
    if isinstance(value, Mapping):
        return {_convert_key(key): _convert_keys(item, plain, depth + 1) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_convert_keys(item, plain, depth + 1) for item in value]
    if value is None or isinstance(value, str | int | float):
        return value
    return _convert_keys(plain(value), plain, depth + 1)


def _convert_key(key: Any) -> Any:
    if key is None or isinstance(key, str | int | float):
        return key
    plain = _plain(key) if not isinstance(key, tuple) else str(key)
    return plain if isinstance(plain, str | int | float) else str(key)
