"""Conversion of JSON arguments to the annotated types of a function, such as `Path` and `date`. Standard library only.

Arguments are already valid for the schema made from the same annotations; values without a known annotation are
unchanged.
"""

from __future__ import annotations

import types
from functools import lru_cache

from onetool_child.errors import ArgumentError, get_message
from onetool_child.interface import Context

TYPE_CHECKING = False  # importing `typing` would double the start-up time of a worker
if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from typing import Any

    Convert = Callable[[Any], Any]

PLAIN = frozenset({str, int, float, bool, list, dict, None, types.NoneType, "str", "int", "float", "bool", "None"})
MAX_QUOTED_CHARS = 100
# The annotation of a context that cannot be resolved, for example because only type checkers import its name.
CONTEXT_ANNOTATION = r"(?:(?:\w+\.)*Optional\[)?(?:\w+\.)*(?:Tool)?Context\]?(?:\s*\|\s*None)?"
COLLECTIONS: dict[str, Convert] = {"set": set, "frozenset": frozenset, "tuple": tuple, "Set": set}


def bind(function: Callable[..., Any], args: Mapping[str, Any]) -> tuple[list[Any], dict[str, Any]]:
    """Return the positional and the keyword arguments for a function."""
    converters = _get_converters(function)
    named = {name: _convert(name, converters[name], args[name]) if name in converters else args[name] for name in args}
    positional = _get_positional_parameters(function)
    return (_bind_positional(positional, named), named) if positional else ([], named)


def _convert(name: str, convert: Convert, value: Any) -> Any:
    try:
        return convert(value)
    except (ArithmeticError, AttributeError, LookupError, TypeError, ValueError) as error:
        quoted = repr(value)[:MAX_QUOTED_CHARS]
        raise ArgumentError(f"invalid value {name}={quoted}: {get_message(error)}", argument=name) from None


@lru_cache(maxsize=1024)
def find_context_names(function: Callable[..., Any]) -> tuple[str, ...]:
    """Return the parameters annotated `Context`, which the worker fills in."""
    annotations = getattr(function, "__annotations__", {})
    candidates = [name for name, hint in annotations.items() if name != "return" and "Context" in str(hint)]
    if not candidates:
        return ()
    hints = _get_hints(function)
    return tuple(name for name in candidates if _is_context(hints.get(name), annotations[name]))


def _is_context(hint: Any, annotation: Any) -> bool:
    import re
    import typing

    if hint is typing.Any:
        return isinstance(annotation, str) and re.fullmatch(CONTEXT_ANNOTATION, annotation) is not None
    parts = typing.get_args(hint) if typing.get_origin(hint) in {typing.Union, types.UnionType} else (hint,)
    return any(isinstance(part, type) and issubclass(part, Context) for part in parts)


# --- positional-only parameters ---------------------------------------------------------------------------------------


def _bind_positional(positional: Mapping[str, Any], named: dict[str, Any]) -> list[Any]:
    """Return the positional arguments up to the last one passed; omitted ones get their default."""
    is_passed = [name in named for name in positional]
    count = len(is_passed) - is_passed[::-1].index(True) if any(is_passed) else 0
    return [named.pop(name, positional[name]) for name in list(positional)[:count]]


@lru_cache(maxsize=1024)
def _get_positional_parameters(function: Callable[..., Any]) -> Mapping[str, Any]:
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


# --- conversion to annotated types -------------------------------------------------------------------------------


@lru_cache(maxsize=1024)
def _get_converters(function: Callable[..., Any]) -> dict[str, Convert]:
    if all(map(_is_plain, getattr(function, "__annotations__", {}).values())):
        return {}
    found = {name: _get_converter(hint) for name, hint in _get_hints(function).items() if name != "return"}
    return {name: convert for name, convert in found.items() if convert is not None}


def _is_plain(hint: Any) -> bool:
    try:
        return hint in PLAIN
    except TypeError:  # an annotation may be any expression
        return False


def _get_hints(function: Callable[..., Any]) -> dict[str, Any]:
    import typing

    try:
        return typing.get_type_hints(function)
    except Exception:  # noqa: BLE001 - some names may exist only for type checkers
        scope = getattr(_unwrap(function), "__globals__", {})
        return {name: _resolve_hint(hint, scope) for name, hint in function.__annotations__.items()}


def _resolve_hint(hint: Any, scope: dict[str, Any]) -> Any:
    import typing

    try:
        return typing.get_type_hints(types.SimpleNamespace(__annotations__={"x": hint}), scope)["x"]
    except Exception:  # noqa: BLE001 - no usable annotations
        return typing.Any


def _get_converter(hint: Any) -> Convert | None:
    import typing

    origin, parts = typing.get_origin(hint), typing.get_args(hint)
    if origin in {typing.Union, types.UnionType}:
        # `Path | None` converts anything but None; other unions leave the data unchanged.
        real = [part for part in parts if part is not types.NoneType]
        convert = _get_converter(real[0]) if len(real) == 1 else None
        return None if convert is None else lambda value: value if value is None else convert(value)
    if isinstance(origin, type):
        return _get_collection_converter(origin, parts)
    return _get_class_converter(hint) if isinstance(hint, type) else None


def _get_collection_converter(kind: type, parts: tuple[Any, ...]) -> Convert | None:
    """Return a converter for collections such as `set[str]`, `tuple[int, date]` and `dict[str, Decimal]`."""
    from collections import abc

    items = [_get_converter(part) for part in parts]
    if issubclass(kind, tuple) and parts and Ellipsis not in parts:
        return lambda value: tuple(item(each) if item else each for item, each in zip(items, value, strict=True))
    if issubclass(kind, abc.Mapping):
        if len(items) != 2 or not any(items):  # noqa: PLR2004 - keys and values
            return None
        to_key, to_item = (convert or (lambda same: same) for convert in items)
        return lambda value: {to_key(name): to_item(each) for name, each in value.items()}
    outer: Convert | None = COLLECTIONS.get(kind.__name__)
    item = items[0] if issubclass(kind, abc.Iterable) and items else None
    return outer if item is None else lambda value: (outer or list)(map(item, value))


def _get_class_converter(kind: type) -> Convert | None:
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
        bytes: _decode_base64,
        bytearray: lambda value: bytearray(_decode_base64(value)),
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
        if isinstance(value, str) and value in kind.__members__:
            return kind[value]
        raise ValueError(f"expected one of {', '.join(repr(member.value) for member in kind)}") from None


def _decode_base64(value: str) -> bytes:
    import base64

    try:
        return base64.b64decode("".join(value.split()), validate=True)
    except ValueError:
        raise ValueError("expected base64 for bytes") from None
