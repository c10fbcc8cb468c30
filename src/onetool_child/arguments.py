"""Conversion of JSON arguments to the annotated types of a function, such as `Path` and `date`. Standard library only.

Arguments are already valid for the schema made from the same annotations; values without a known annotation are
unchanged.
"""

from __future__ import annotations

import types
from functools import lru_cache

from onetool_child.errors import ArgumentError, message_of

TYPE_CHECKING = False  # importing `typing` would double the start-up time of a worker
if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from typing import Any

    Convert = Callable[[Any], Any]

PLAIN = frozenset({str, int, float, bool, list, dict, None, types.NoneType, "str", "int", "float", "bool", "None"})
MAX_SHOWN_CHARS = 100
OUTER: dict[str, Convert] = {"set": set, "frozenset": frozenset, "tuple": tuple, "Set": set}


def bound(function: Callable[..., Any], args: Mapping[str, Any]) -> tuple[list[Any], dict[str, Any]]:
    """Return the positional and the keyword arguments for a function."""
    converters = _converters(function)
    named = {name: _made(name, converters[name], args[name]) if name in converters else args[name] for name in args}
    by_place = _positional_parameters(function)
    return (_bind_positional(by_place, named), named) if by_place else ([], named)


def _made(name: str, convert: Convert, value: Any) -> Any:
    try:
        return convert(value)
    except (ArithmeticError, AttributeError, LookupError, TypeError, ValueError) as error:
        shown = repr(value)[:MAX_SHOWN_CHARS]
        raise ArgumentError(f"invalid value {name}={shown}: {message_of(error)}", argument=name) from None


# --- parameters without a name ----------------------------------------------------------------------------------------


def _bind_positional(by_place: Mapping[str, Any], named: dict[str, Any]) -> list[Any]:
    """Return the positional arguments up to the last one passed; omitted ones get their default."""
    given = [name in named for name in by_place]
    count = len(given) - given[::-1].index(True) if any(given) else 0
    return [named.pop(name, by_place[name]) for name in list(by_place)[:count]]


@lru_cache(maxsize=1024)
def _positional_parameters(function: Callable[..., Any]) -> Mapping[str, Any]:
    """Return the positional parameters with their defaults; None for required ones."""
    inner = _unwrap(function)
    code = getattr(inner, "__code__", None)
    if code is None or not code.co_posonlyargcount:
        return {}
    defaults = inner.__defaults__ or ()
    padding = (None,) * (code.co_argcount - len(defaults))
    values = (*padding, *defaults)[: code.co_posonlyargcount]
    return dict(zip(code.co_varnames, values, strict=False))


def _unwrap(function: Any) -> Any:
    """Return the function inside `functools.wraps` and `lru_cache`, which has the names."""
    while hasattr(function, "__wrapped__"):
        function = function.__wrapped__
    return function


# --- from data to what is annotated -------------------------------------------------------------------------------


@lru_cache(maxsize=1024)
def _converters(function: Callable[..., Any]) -> dict[str, Convert]:
    if all(map(_is_plain, getattr(function, "__annotations__", {}).values())):
        return {}
    found = {name: _converter(hint) for name, hint in _hints(function).items() if name != "return"}
    return {name: convert for name, convert in found.items() if convert is not None}


def _is_plain(hint: Any) -> bool:
    try:
        return hint in PLAIN
    except TypeError:  # an annotation may be any expression
        return False


def _hints(function: Callable[..., Any]) -> dict[str, Any]:
    import typing

    try:
        return typing.get_type_hints(function)
    except Exception:  # noqa: BLE001 - some names may exist only for type checkers
        scope = getattr(_unwrap(function), "__globals__", {})
        return {name: _hint(hint, scope) for name, hint in function.__annotations__.items()}


def _hint(hint: Any, scope: dict[str, Any]) -> Any:
    import typing

    try:
        return typing.get_type_hints(types.SimpleNamespace(__annotations__={"x": hint}), scope)["x"]
    except Exception:  # noqa: BLE001 - no usable annotations
        return typing.Any


def _converter(hint: Any) -> Convert | None:
    import typing

    origin, parts = typing.get_origin(hint), typing.get_args(hint)
    if origin in {typing.Union, types.UnionType}:
        # `Path | None` converts anything but None; other unions leave the data unchanged.
        real = [part for part in parts if part is not types.NoneType]
        convert = _converter(real[0]) if len(real) == 1 else None
        return None if convert is None else lambda value: value if value is None else convert(value)
    if isinstance(origin, type):
        return _collection_converter(origin, parts)
    return _of_class(hint) if isinstance(hint, type) else None


def _collection_converter(kind: type, parts: tuple[Any, ...]) -> Convert | None:
    """Return a converter for collections such as `set[str]`, `tuple[int, date]` and `dict[str, Decimal]`."""
    from collections import abc

    items = [_converter(part) for part in parts]
    if issubclass(kind, tuple) and parts and Ellipsis not in parts:
        return lambda value: tuple(item(each) if item else each for item, each in zip(items, value, strict=True))
    if issubclass(kind, abc.Mapping):
        if len(items) != 2 or not any(items):  # noqa: PLR2004 - keys and values
            return None
        to_key, to_item = (convert or (lambda same: same) for convert in items)
        return lambda value: {to_key(name): to_item(each) for name, each in value.items()}
    outer: Convert | None = OUTER.get(kind.__name__)
    item = items[0] if issubclass(kind, abc.Iterable) and items else None
    return outer if item is None else lambda value: (outer or list)(map(item, value))


def _of_class(kind: type) -> Convert | None:
    import datetime as dt
    import decimal
    import enum
    import pathlib
    import uuid

    if issubclass(kind, enum.Enum):
        return lambda value: _find_member(kind, value)
    if issubclass(kind, decimal.Decimal):
        return lambda value: kind(str(value))  # keep 0.1 exact
    if issubclass(kind, pathlib.PurePath | uuid.UUID):
        return kind
    others: dict[type, Convert] = {
        dt.date: dt.date.fromisoformat,
        dt.datetime: dt.datetime.fromisoformat,
        dt.time: dt.time.fromisoformat,
        bytes: _decoded,
        bytearray: lambda value: bytearray(_decoded(value)),
        set: set,
        frozenset: frozenset,
        tuple: tuple,
    }
    return others.get(kind)


def _find_member(kind: Any, value: Any) -> Any:
    """Return the member of an enum by value or by name."""
    try:
        return kind(value)
    except ValueError:
        if isinstance(value, str) and value in kind.__find_members__:
            return kind[value]
        raise ValueError(f"expected one of {', '.join(repr(member.value) for member in kind)}") from None


def _decoded(value: str) -> bytes:
    import base64

    try:
        return base64.b64decode("".join(value.split()), validate=True)
    except ValueError:
        raise ValueError("expected base64 for bytes") from None
