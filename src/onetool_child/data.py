"""Serialization of values to JSON: dates as ISO strings, bytes as base64, sets as lists.

Objects are serialized in the process whose code created them, never in the server, so that a
hostile `__str__` runs in its own cell.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable, Iterator, Mapping
from math import isfinite
from types import SimpleNamespace

TYPE_CHECKING = False  # importing `typing` would double the start-up time of a worker
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

MAX_DEPTH = 200
MAX_INDENTATION_BYTES = 1 << 24
FORMATS = (
    "json",
    "json_h",
    "yml",
    "yml_h",
    "raw",
)  # of `__format__`; `onetool.util.render` writes them


MAX_RECORD_CHARS = 1_000  # a longer record is split into its items
MAX_RECORD_DEPTH = 6
HEAP_TYPE = 1 << 9  # the flag of classes that Python code defines, unlike functions and modules
# Dates; arrays and numbers of NumPy; tables and columns of PyArrow and Polars.
CONVERSION_METHODS = ("isoformat", "tolist", "to_pylist", "to_dicts", "to_list")
_READABLE = json.JSONEncoder(ensure_ascii=False, allow_nan=False, separators=(",", ":"))


DURATION = (
    r"(?P<sign>[+-]?)P(?:(?P<weeks>\d+)W|(?:(?P<days>\d+)D)?"
    r"(?:T(?=\d)(?:(?P<hours>\d+)H)?(?:(?P<minutes>\d+)M)?(?:(?P<seconds>\d+(?:\.\d+)?)S)?)?)"
)


class NotData(ValueError):
    """The value cannot be serialized."""


class _ObjectFailed(Exception):
    """An object of the value raised the error, not the encoder."""

    def __init__(self, error: Exception) -> None:
        self.error = error


class Reference:
    """An object of a cell that is sent as data which the server knows."""

    __slots__ = ()

    def to_data(self) -> Any:
        raise NotImplementedError


def _reject_object(_value: Any) -> Any:
    raise TypeError


_ENCODER = json.JSONEncoder(default=_reject_object, separators=(",", ":"))


def encode(value: Any, convert: Callable[[Any], Any] | None = None) -> str:
    """Return the value as one line of ASCII JSON.

    NaN and Infinity are kept for the formats of the server.

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
        return _encode_with(encoder, value, plain)
    except _ObjectFailed as failure:
        error = failure.error
    except RecursionError:
        error = NotData("the value is nested too deeply; return a part of it")
    except ValueError as failure:
        is_circle = "Circular" in str(failure)
        reason = (
            "the value refers to itself and cannot be returned; return a part of it"
            if is_circle
            else str(failure)
        )
        error = NotData(reason)
    raise error


def _encode_with(encoder: json.JSONEncoder, value: Any, plain: _Converter) -> str:
    try:
        return encoder.encode(value)
    except TypeError:  # an unsupported key
        return encoder.encode(_convert_keys(value, plain))


class _Converter:
    """A serializer that remembers the items of iterators, which can be consumed only once."""

    def __init__(self, convert: Callable[[Any], Any] | None) -> None:
        self._convert = convert
        self._seen: dict[int, tuple[Any, Any]] = {}

    def __call__(self, value: Any) -> Any:
        converted = self._seen.get(id(value))
        if converted is None:
            converted = self._seen[id(value)] = value, self._convert_once(value)
        return converted[1]

    def _convert_once(self, value: Any) -> Any:
        try:
            converted = None if self._convert is None else self._convert(value)
            return _plain(value) if converted is None else converted
        except RecursionError:
            raise
        except Exception as error:  # noqa: BLE001 - raised again by `encode`
            raise _ObjectFailed(error) from None


def text(value: Any, indent: int | None = None) -> str:
    """Return the value as readable JSON: nothing escaped, NaN and Infinity as null."""
    separators = (",", ":") if indent is None else (",", ": ")
    try:
        return json.dumps(
            value,
            ensure_ascii=False,
            allow_nan=False,
            indent=indent,
            separators=separators,
            default=_reject_object,
        )
    except (TypeError, ValueError):  # objects, keys that are not strings, or NaN
        return json.dumps(
            replace_non_finite(as_data(value)),
            ensure_ascii=False,
            indent=indent,
            separators=separators,
        )


def record_lines(value: Any, depth: int = 0) -> str:
    """Return the value as JSON with line breaks only between items of long collections.

    Without line breaks it is compact JSON, because JSON strings have none. The value is data
    without NaN.
    """
    if not isinstance(value, dict | list | tuple) or not value or depth > MAX_RECORD_DEPTH:
        return _READABLE.encode(value)
    if (
        depth == 0
        and len(value) < MAX_RECORD_CHARS
        and len(text := _READABLE.encode(value)) < MAX_RECORD_CHARS
    ):
        return text
    start, end = ("{", "}") if isinstance(value, dict) else ("[", "]")
    return f"{start}\n" + ",\n".join(_format_records(value, depth)) + f"\n{end}"


def _format_records(value: Any, depth: int) -> Iterator[str]:
    for key, item in value.items() if isinstance(value, dict) else ((None, item) for item in value):
        text = _READABLE.encode(item)
        if len(text) > MAX_RECORD_CHARS:
            text = record_lines(item, depth + 1)
        yield text if not isinstance(value, dict) else f"{_READABLE.encode({key: 0})[1:-2]}{text}"


def replace_non_finite(value: Any, replacement: float | None = None) -> Any:
    """Return data with this replacement of NaN and infinity."""
    if isinstance(value, dict):
        return {key: replace_non_finite(item, replacement) for key, item in value.items()}
    if isinstance(value, list):
        return [replace_non_finite(item, replacement) for item in value]
    return replacement if isinstance(value, float) and not isfinite(value) else value


def is_deeper_than(value: Any, max_depth: int) -> bool:
    """Return whether data is nested deeper than `max_depth`, without recursion."""
    level = [value]
    for _ in range(max_depth):
        collections = [item for item in level if isinstance(item, dict | list)]
        level = [
            inner
            for item in collections
            for inner in (item.values() if isinstance(item, dict) else item)
        ]
    return any(isinstance(item, dict | list) for item in level)


def has_too_much_indentation(value: Any) -> bool:
    """Return whether nesting makes indentation too large: 1 MB of brackets makes 500 MB."""
    indentation = 0
    queue = [(value, 1)]
    while queue and indentation <= MAX_INDENTATION_BYTES:
        item, depth = queue.pop()
        if isinstance(item, dict | list | tuple):
            indentation += 2 * depth * (1 + len(item))
            queue += [
                (child, depth + 1) for child in (item.values() if isinstance(item, dict) else item)
            ]
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

    if isinstance(value, type):
        return str(value)
    if isinstance(value, enum.Enum):
        return value.value
    is_dataclass = dataclasses.is_dataclass(type(value))
    fields = (
        dataclasses.fields(value) if is_dataclass else getattr(type(value), "__attrs_attrs__", None)
    )
    if fields is not None:
        return {getattr(field, "alias", field.name): getattr(value, field.name) for field in fields}
    if hasattr(value, "model_dump"):
        return _dump_model(value)
    return _convert_library_object(value)


def _convert_library_object(value: Any) -> Any:
    if (pandas := sys.modules.get("pandas")) is not None:
        if isinstance(value, pandas.DataFrame | pandas.Series):
            return _convert_table(value, pandas)
        if value is pandas.NaT or value is pandas.NA:
            return None
    if (
        type(value).__module__ == "numpy" and value.dtype.name == "datetime64[ns]"
    ):  # its list has only numbers
        value = value.astype("datetime64[us]")
    for method in CONVERSION_METHODS:
        if hasattr(value, method):
            return getattr(value, method)()
    if isinstance(value, Iterable) and not hasattr(value, "__fspath__"):
        return list(value)
    return _convert_to_text(value)


def _convert_to_text(value: Any) -> str:
    kind: Any = type(value)
    if hasattr(kind, "__await__"):
        raise NotData(f"cannot return a {kind.__name__} inside another value; await it")
    if hasattr(kind, "__anext__"):
        raise NotData(
            "cannot return an async generator inside another value; use [item async for item in"
            " ...]"
        )
    is_own_class = kind is object or kind.__flags__ & HEAP_TYPE
    if is_own_class and kind.__str__ is object.__str__:  # its text would be its `repr`
        name = (
            kind.__qualname__
            if kind.__module__ == "__main__"
            else f"{kind.__module__}.{kind.__qualname__}"
        )
        raise NotData(
            f"cannot return an object of type {name}; return its data, such as a dict of its"
            " attributes"
        )
    return str(value)


def _convert_table(table: Any, pandas: Any) -> Any:
    """Return a DataFrame as records, or a Series as a mapping."""
    is_series = isinstance(table, pandas.Series)
    labels = table.index if is_series else table.columns
    if not labels.is_unique:
        place = "index" if is_series else "columns"
        raise NotData(
            f"cannot return a {type(table).__name__} with duplicate labels in its {place}; rename"
            " them first"
        )
    if is_series:
        return dict(zip(labels.tolist(), table.tolist(), strict=True))
    has_labels = not isinstance(table.index, pandas.RangeIndex) or table.index.name is not None
    return (table.reset_index() if has_labels else table).to_dict(orient="records")


def _dump_model(model: Any) -> Any:
    """Return a pydantic model as it serializes itself; `_plain` handles binary bytes."""
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
    (
        Reference,
        lambda value: type(value).to_data(value),
    ),  # first: inspecting a placeholder ends the run
    ((set, frozenset), _sort_if_possible),
    (bytes, _encode_base64),
    ((bytearray, memoryview), lambda value: _encode_base64(bytes(value))),
    (Mapping, dict),
    (SimpleNamespace, vars),
    (complex, str),
    (BaseException, lambda value: f"{type(value).__name__}: {value}"),
)


def _convert_keys(value: Any, plain: _Converter, depth: int = 0) -> Any:
    if depth > MAX_DEPTH:
        raise NotData("the value is nested too deeply; return a part of it")
    if isinstance(value, Mapping):
        return {
            _convert_key(key): _convert_keys(item, plain, depth + 1) for key, item in value.items()
        }
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


def parse_duration(value: Any) -> Any:
    """Return a duration from ISO 8601 text or from a number of seconds."""
    import datetime as dt
    import re

    if isinstance(value, int | float):
        return dt.timedelta(seconds=value)
    match = (
        re.fullmatch(DURATION, value, re.ASCII | re.IGNORECASE) if len(value) > len("P") else None
    )
    if match is None or not any(match.groups()[1:]):
        raise ValueError("expected an ISO 8601 duration such as PT1H30M, or a number of seconds")
    parts = {
        name: float(text) for name, text in match.groupdict().items() if text and name != "sign"
    }
    return dt.timedelta(**parts) * (-1 if match["sign"] == "-" else 1)


def decode_base64(value: str) -> bytes:
    import base64

    try:
        return base64.b64decode("".join(value.split()), validate=True)
    except ValueError:
        raise ValueError("expected base64 for bytes") from None


def render_value(value: Any, line: str, indent: int | None) -> tuple[str, Any]:
    """Return the text of a value that `line` already contains, and the value as data."""
    if isinstance(value, str):
        return value, value
    try:
        if indent is None:
            return record_lines(value), value
        return (
            json.dumps(
                value, ensure_ascii=False, allow_nan=False, indent=indent, separators=(",", ": ")
            ),
            value,
        )
    except (TypeError, ValueError):  # it contains objects, which may be iterable only once
        decoded = json.loads(line)["result"]["value"]
    return decoded if isinstance(decoded, str) else text(decoded, indent), decoded
