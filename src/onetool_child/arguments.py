"""Arguments as a function wants them: a path where it says `Path`, a date where it says `date`. Standard library only.

What arrives is JSON data that fits the schema made of the same annotations; what no annotation explains stays as it
is.
"""

from __future__ import annotations

import types
from functools import lru_cache

from onetool_child.errors import ArgumentError, message_of

TYPE_CHECKING = False  # to load `typing` takes a worker longer than all of its own modules
if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from typing import Any

    Convert = Callable[[Any], Any]

PLAIN = frozenset({str, int, float, bool, list, dict, None, types.NoneType, "str", "int", "float", "bool", "None"})
LONGEST_SHOWN = 100
OUTER: dict[str, Convert] = {"set": set, "frozenset": frozenset, "tuple": tuple, "Set": set}


def bound(function: Callable[..., Any], args: Mapping[str, Any]) -> tuple[list[Any], dict[str, Any]]:
    """What to pass by place, and what by name."""
    converters = _converters(function)
    named = {name: _made(name, converters[name], args[name]) if name in converters else args[name] for name in args}
    by_place = _by_place(function)
    return (_placed(by_place, named), named) if by_place else ([], named)


def _made(name: str, convert: Convert, value: Any) -> Any:
    try:
        return convert(value)
    except (ArithmeticError, AttributeError, LookupError, TypeError, ValueError) as error:
        shown = repr(value)[:LONGEST_SHOWN]
        raise ArgumentError(f"{name}={shown} cannot be used: {message_of(error)}", argument=name) from None


# --- parameters without a name ----------------------------------------------------------------------------------------


def _placed(by_place: Mapping[str, Any], named: dict[str, Any]) -> list[Any]:
    """Those up to the last that was given. One that is left out before it gets the default that it has anyway."""
    given = [name in named for name in by_place]
    count = len(given) - given[::-1].index(True) if any(given) else 0
    return [named.pop(name, by_place[name]) for name in list(by_place)[:count]]


@lru_cache(maxsize=1024)
def _by_place(function: Callable[..., Any]) -> Mapping[str, Any]:
    """Each with its default, or None where it must be given and therefore is."""
    inner = _unwrapped(function)
    code = getattr(inner, "__code__", None)
    if code is None or not code.co_posonlyargcount:
        return {}
    defaults = inner.__defaults__ or ()
    padding = (None,) * (code.co_argcount - len(defaults))
    values = (*padding, *defaults)[: code.co_posonlyargcount]
    return dict(zip(code.co_varnames, values, strict=False))


def _unwrapped(function: Any) -> Any:
    """What `functools.wraps` and `lru_cache` wrap: the names are there."""
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
    except Exception:  # noqa: BLE001 - one may be known to type checkers alone; the others still say something
        scope = getattr(_unwrapped(function), "__globals__", {})
        return {name: _hint(hint, scope) for name, hint in function.__annotations__.items()}


def _hint(hint: Any, scope: dict[str, Any]) -> Any:
    import typing

    try:
        return typing.get_type_hints(types.SimpleNamespace(__annotations__={"x": hint}), scope)["x"]
    except Exception:  # noqa: BLE001 - then there is nothing to go by
        return typing.Any


def _converter(hint: Any) -> Convert | None:
    import typing

    origin, parts = typing.get_origin(hint), typing.get_args(hint)
    if origin in {typing.Union, types.UnionType}:
        # `Path | None` is a path where there is something; where more is possible, the data is left alone.
        real = [part for part in parts if part is not types.NoneType]
        convert = _converter(real[0]) if len(real) == 1 else None
        return None if convert is None else lambda value: value if value is None else convert(value)
    if isinstance(origin, type):
        return _of_collection(origin, parts)
    return _of_class(hint) if isinstance(hint, type) else None


def _of_collection(kind: type, parts: tuple[Any, ...]) -> Convert | None:
    """`set[str]`, `list[Path]`, `tuple[int, date]`, `dict[str, Decimal]`: itself, and what is in it."""
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
        return lambda value: _member(kind, value)
    if issubclass(kind, decimal.Decimal):
        return lambda value: kind(str(value))  # 0.1 is meant as it is written
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


def _member(kind: Any, value: Any) -> Any:
    """By its value, as it crosses a pipe, or by its name, as a person writes it."""
    try:
        return kind(value)
    except ValueError:
        if isinstance(value, str) and value in kind.__members__:
            return kind[value]
        raise ValueError(f"it is one of {', '.join(repr(member.value) for member in kind)}") from None


def _decoded(value: str) -> bytes:
    import base64

    try:
        return base64.b64decode("".join(value.split()), validate=True)
    except ValueError:
        raise ValueError("bytes are passed as base64") from None
