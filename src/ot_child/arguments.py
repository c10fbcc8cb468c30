"""Arguments as a function wants them: a path where it says `Path`, a date where it says `date`. Standard library only.

What arrives is JSON data that fits the schema made of the same annotations; what no annotation explains stays as it
is.
"""

import types
from collections.abc import Callable, Mapping
from functools import lru_cache
from typing import Any

Convert = Callable[[Any], Any]
PLAIN = frozenset({str, int, float, bool, list, dict, None, types.NoneType, "str", "int", "float", "bool", "None"})


def bound(function: Callable[..., Any], args: Mapping[str, Any]) -> tuple[list[Any], dict[str, Any]]:
    """What to pass by place, and what by name."""
    converters = _converters(function)
    named = {name: converters[name](value) if name in converters else value for name, value in args.items()}
    return [named.pop(name) for name in _by_place(function) if name in named], named


@lru_cache(maxsize=1024)
def _by_place(function: Callable[..., Any]) -> tuple[str, ...]:
    code = getattr(function, "__code__", None)
    return code.co_varnames[: code.co_posonlyargcount] if code is not None else ()


@lru_cache(maxsize=1024)
def _converters(function: Callable[..., Any]) -> dict[str, Convert]:
    if all(hint in PLAIN for hint in getattr(function, "__annotations__", {}).values() if _is_hashable(hint)):
        return {}
    import typing

    try:
        hints = typing.get_type_hints(function)
    except Exception:  # noqa: BLE001 - an annotation may be any expression; then there is nothing to go by
        return {}
    found = {name: _converter(hint) for name, hint in hints.items() if name != "return"}
    return {name: convert for name, convert in found.items() if convert is not None}


def _is_hashable(hint: Any) -> bool:
    return type(hint).__hash__ is not None


def _converter(hint: Any) -> Convert | None:
    import typing

    if typing.get_origin(hint) in {typing.Union, types.UnionType}:
        return _of_union(typing.get_args(hint))
    return _of_class(hint) if isinstance(hint, type) else None


def _of_union(parts: tuple[Any, ...]) -> Convert | None:
    """`Path | None` is a path where there is something; where more is possible, the data is left alone."""
    real = [part for part in parts if part is not types.NoneType]
    convert = _converter(real[0]) if len(real) == 1 else None
    return None if convert is None else lambda value: value if value is None else convert(value)


def _of_class(kind: type) -> Convert | None:
    import base64
    import datetime as dt
    import decimal
    import enum
    import pathlib
    import uuid

    if issubclass(kind, enum.Enum | pathlib.PurePath | decimal.Decimal | uuid.UUID):
        return kind
    others: dict[type, Convert] = {
        dt.date: dt.date.fromisoformat,
        dt.datetime: dt.datetime.fromisoformat,
        dt.time: dt.time.fromisoformat,
        bytes: base64.b64decode,
        set: set,
        frozenset: frozenset,
        tuple: tuple,
    }
    return others.get(kind)
