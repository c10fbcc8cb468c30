"""Conversion of JSON arguments to the annotated types of a function, such as `Path` and `date`.

Standard library only.

Arguments are already valid for the schema made from the same annotations; values without a known
annotation are unchanged. Pydantic converts to its own types, if the extension has imported it.
"""

from __future__ import annotations

import sys
import types
from functools import lru_cache, partial

from onetool_child.data import decode_base64, parse_duration
from onetool_child.errors import ArgumentError, get_message
from onetool_child.interface import Context

TYPE_CHECKING = False  # importing `typing` would double the start-up time of a worker
if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from typing import Any

    Convert = Callable[[Any], Any]
    Values = dict[str, Any]  # of parameters or fields, by name

PLAIN = frozenset(
    {str, int, float, bool, list, dict, None, types.NoneType, "str", "int", "float", "bool", "None"}
)
FLOATS = (float, "float")
MAX_QUOTED_CHARS = 100
# The annotation of a context that cannot be resolved, for example because only type checkers import
# its name.
CONTEXT_ANNOTATION = r"(?:(?:\w+\.)*Optional\[)?(?:\w+\.)*(?:Tool)?Context\]?(?:\s*\|\s*None)?"
COLLECTIONS: dict[str, Convert] = {"set": set, "frozenset": frozenset, "tuple": tuple, "Set": set}
CONVERSION_ERRORS = (ArithmeticError, AttributeError, LookupError, TypeError, ValueError)
# flags of a code object
HAS_VARIADIC = 0x04
HAS_VARIADIC_KEYWORDS = 0x08


class Mismatch(ValueError):
    """A value that cannot be converted, with its path in the argument, such as `[2].price`."""

    def __init__(self, path: str, value: Any, reason: str) -> None:
        super().__init__(reason)
        self.path = path
        self.value = value


def bind(function: Callable[..., Any], args: Mapping[str, Any]) -> tuple[list[Any], Values]:
    """Return the positional and the keyword arguments for a function."""
    parameters = _get_parameters(function)
    converters = _get_converters(function)
    rest = converters.get(parameters.keywords) if parameters.keywords else None
    named = {}
    for name, value in args.items():
        convert = converters.get(name) if name in parameters.names or not rest else rest
        named[name] = value if convert is None else _convert(name, convert, value)
    for name, default in parameters.computed_defaults.items():
        if name not in named:
            named[name] = default()
    return _bind_positional(parameters, named), named


def _convert(name: str, convert: Convert, value: Any) -> Any:
    try:
        return _convert_part(name, convert, value)
    except Mismatch as error:
        quoted = repr(error.value)[:MAX_QUOTED_CHARS]
        raise ArgumentError(
            f"invalid value {error.path}={quoted}: {error}", argument=name
        ) from None


def _convert_part(step: str, convert: Convert, value: Any) -> Any:
    """Return the converted value. An error has the path to the part of the value that is invalid."""
    try:
        return convert(value)
    except Mismatch as error:
        error.path = f"{step}{error.path}"
        raise
    except CONVERSION_ERRORS as error:
        raise Mismatch(step, value, get_message(error)) from None


@lru_cache(maxsize=1024)
def find_context_names(function: Callable[..., Any]) -> tuple[str, ...]:
    """Return the parameters annotated `Context`, which the worker fills in."""
    annotations = getattr(function, "__annotations__", {})
    candidates = [
        name for name, hint in annotations.items() if name != "return" and "Context" in str(hint)
    ]
    if not candidates:
        return ()
    hints = _get_hints(function)
    return tuple(name for name in candidates if _is_context(hints.get(name), annotations[name]))


def _is_context(hint: Any, annotation: Any) -> bool:
    import re
    from typing import Any, Union, get_args, get_origin

    if hint is Any:
        return (
            isinstance(annotation, str) and re.fullmatch(CONTEXT_ANNOTATION, annotation) is not None
        )
    parts = get_args(hint) if get_origin(hint) in {Union, types.UnionType} else (hint,)
    return any(isinstance(part, type) and issubclass(part, Context) for part in parts)


# --- parameters -----------------------------------------------------------------------------------


class Parameters:
    """The parameters of a function, from its code object: `inspect` is slow to import."""

    def __init__(self, function: Any) -> None:
        inner = _unwrap(function)
        code = getattr(inner, "__code__", None)
        self.positional: Values = {}  # with their defaults; None for required ones
        self.only_positional = 0
        self.variadic = self.keywords = ""
        self.names: frozenset[str] = frozenset()
        self.computed_defaults: dict[
            str, Callable[[], Any]
        ] = {}  # of parameters declared with `= Field(...)`
        if code is None:
            return
        defaults = inner.__defaults__ or ()
        padding = (None,) * (code.co_argcount - len(defaults))
        self.positional = dict(zip(code.co_varnames, (*padding, *defaults), strict=False))
        self.only_positional = code.co_posonlyargcount
        count = code.co_argcount + code.co_kwonlyargcount
        others = list(code.co_varnames[count : count + 2])
        self.variadic = others.pop(0) if code.co_flags & HAS_VARIADIC else ""
        self.keywords = others.pop(0) if code.co_flags & HAS_VARIADIC_KEYWORDS else ""
        self.names = frozenset((*code.co_varnames[:count], self.variadic))
        for name, default in (*self.positional.items(), *(inner.__kwdefaults__ or {}).items()):
            if type(default).__name__ == "FieldInfo":
                self.computed_defaults[name] = partial(
                    default.get_default, call_default_factory=True
                )


@lru_cache(maxsize=1024)
def _get_parameters(function: Callable[..., Any]) -> Parameters:
    return Parameters(function)


def _bind_positional(parameters: Parameters, named: Values) -> list[Any]:
    """Return the positional arguments up to the last one passed; omitted ones get their default."""
    if not parameters.only_positional and not parameters.variadic:
        return []
    values = list(parameters.positional.items())
    rest = named.pop(parameters.variadic, ()) if parameters.variadic else ()
    if not rest:
        values = values[: parameters.only_positional]
        is_passed = [name in named for name, _ in values]
        values = values[: len(is_passed) - is_passed[::-1].index(True)] if any(is_passed) else []
    return [*(named.pop(name, default) for name, default in values), *rest]


def _unwrap(function: Any) -> Any:
    """Return the function inside `functools.wraps` and `lru_cache`, which has the names."""
    while hasattr(function, "__wrapped__"):
        function = function.__wrapped__
    return function


# --- conversion to annotated types ----------------------------------------------------------------


@lru_cache(maxsize=1024)
def _get_converters(function: Callable[..., Any]) -> dict[str, Convert]:
    annotations = getattr(function, "__annotations__", {})
    if all(map(_is_plain, annotations.values())):  # without importing `typing`
        floats = [name for name, hint in annotations.items() if hint in FLOATS and name != "return"]
        by_name: dict[str, Convert | None] = dict.fromkeys(floats, _to_float)
    else:
        others = {"return", *find_context_names(function)}
        by_name = {
            name: get_converter(hint)
            for name, hint in _get_hints(function).items()
            if name not in others
        }
    converters = {name: convert for name, convert in by_name.items() if convert is not None}
    variadic = _get_parameters(function).variadic
    if variadic in converters:
        converters[variadic] = _make_list_converter(list, converters[variadic])
    return converters


def _is_plain(hint: Any) -> bool:
    try:
        return hint in PLAIN
    except TypeError:  # an annotation may be any expression
        return False


def _get_hints(thing: Any) -> Values:
    """Return the annotations of a function or class. Their metadata is only kept for pydantic."""
    from typing import get_type_hints

    extras = "pydantic" in sys.modules
    try:
        return get_type_hints(thing, include_extras=extras)
    except Exception:  # noqa: BLE001 - some names may exist only for type checkers
        module = sys.modules.get(getattr(thing, "__module__", ""))
        scope = getattr(_unwrap(thing), "__globals__", None) or vars(module or types)
        return {
            name: _resolve_hint(hint, scope, extras) for name, hint in thing.__annotations__.items()
        }


def _resolve_hint(hint: Any, scope: Values, extras: bool) -> Any:
    from typing import Any, get_type_hints

    try:
        return get_type_hints(
            types.SimpleNamespace(__annotations__={"x": hint}), scope, None, extras
        )["x"]
    except Exception:  # noqa: BLE001 - no usable annotations
        return Any


def get_converter(hint: Any) -> Convert | None:
    """Return the converter of JSON data to a type; None if the data already has it."""
    from typing import Literal, Union, get_args, get_origin

    if "pydantic" in sys.modules and _is_of_pydantic(hint):
        return _get_pydantic_converter(hint)
    hint = _unwrap_hint(hint)
    origin = get_origin(hint)
    parts = get_args(hint)
    if origin in {Union, types.UnionType}:
        return _get_union_converter(parts)
    if origin is Literal:
        members = {
            part.value: part for part in parts if hasattr(type(part), "__members__")
        }  # of enums
        return (lambda value: members.get(value, value)) if members else None
    if isinstance(origin, type):
        return _get_collection_converter(origin, parts)
    return _get_class_converter(hint) if isinstance(hint, type) else None


def _unwrap_hint(hint: Any) -> Any:
    """Return the type inside `Annotated`, `Required`, `NewType`, `InitVar` and `type X = ...`."""
    from typing import get_args, get_origin

    while True:
        if hasattr(hint, "__metadata__"):
            hint = hint.__origin__
        elif getattr(get_origin(hint), "_name", "") in {
            "Required",
            "NotRequired",
            "ReadOnly",
            "Final",
        }:
            hint = get_args(hint)[0]
        elif hasattr(hint, "__supertype__"):
            hint = hint.__supertype__
        elif type(hint).__name__ == "TypeAliasType":
            hint = hint.__value__
        elif type(hint).__name__ == "InitVar":
            hint = hint.type
        else:
            return hint


def _get_union_converter(parts: tuple[Any, ...]) -> Convert | None:
    """Return a converter that leaves plain data unchanged and tries the others in order."""
    from typing import Literal, get_args, get_origin

    part_converters = [(part, get_converter(part)) for part in parts]
    converters = [convert for _, convert in part_converters if convert is not None]
    plain = [_unwrap_hint(part) for part, convert in part_converters if convert is None]
    literals = [value for part in plain if get_origin(part) is Literal for value in get_args(part)]
    others = [get_origin(part) or part for part in plain if get_origin(part) is not Literal]
    classes = tuple(part for part in others if isinstance(part, type))
    if not converters or len(classes) < len(others):  # `Any` and type variables accept every value
        return None

    def convert(value: Any) -> Any:
        if isinstance(value, classes) or value in literals:
            return value
        errors = []
        for converter in converters:
            try:
                return _convert_part("", converter, value)
            except Mismatch as error:
                errors.append(error)
        if len(errors) == 1:
            raise errors[0]
        raise Mismatch(
            "", value, "; ".join(f"{error.path}: {error}".removeprefix(": ") for error in errors)
        )

    return convert


def _get_collection_converter(kind: type, parts: tuple[Any, ...]) -> Convert | None:
    """Return a converter for collections such as `set[str]` and `dict[str, Decimal]`."""
    from collections import abc

    items = [get_converter(part) for part in parts]
    if issubclass(kind, tuple) and parts and Ellipsis not in parts:
        return lambda value: tuple(
            _convert_part(f"[{index}]", item, member) if item else member
            for index, (item, member) in enumerate(zip(items, value, strict=True))
        )
    if issubclass(kind, abc.Mapping):
        if len(items) != 2 or not any(items):  # noqa: PLR2004 - keys and values
            return None
        to_key, to_item = (convert or (lambda same: same) for convert in items)
        return lambda value: {
            _convert_part(f"[{name!r}]", to_key, name): _convert_part(
                f"[{name!r}]", to_item, member
            )
            for name, member in value.items()
        }
    outer: Convert | None = COLLECTIONS.get(kind.__name__)
    item = items[0] if issubclass(kind, abc.Iterable) and items else None
    return outer if item is None else _make_list_converter(outer or list, item)


def _make_list_converter(outer: Convert, item: Convert) -> Convert:
    return lambda value: outer(
        [_convert_part(f"[{index}]", item, member) for index, member in enumerate(value)]
    )


def _get_class_converter(kind: type) -> Convert | None:  # noqa: PLR0911 - one case per line
    import datetime as dt
    import decimal
    import enum
    import pathlib
    import uuid
    from typing import is_typeddict

    if issubclass(kind, enum.Enum):
        return lambda value: _find_member(kind, value)
    if issubclass(kind, decimal.Decimal):
        return lambda value: _make_decimal(kind, value)
    if issubclass(kind, pathlib.PurePath | uuid.UUID):
        return kind
    if is_typeddict(kind):
        return lambda value: _convert_fields(kind, value)
    if hasattr(kind, "__dataclass_fields__") or hasattr(kind, "__attrs_attrs__"):
        return lambda value: kind(**_convert_fields(kind, value))
    if issubclass(kind, tuple) and hasattr(kind, "_fields"):
        return lambda value: _make_named_tuple(kind, value)
    others: dict[type, Convert] = {
        float: _to_float,
        dt.date: dt.date.fromisoformat,
        dt.datetime: dt.datetime.fromisoformat,
        dt.time: dt.time.fromisoformat,
        dt.timedelta: parse_duration,
        bytes: decode_base64,
        bytearray: lambda value: bytearray(decode_base64(value)),
        set: set,
        frozenset: frozenset,
        tuple: tuple,
    }
    return others.get(kind)


# --- classes --------------------------------------------------------------------------------------


@lru_cache(maxsize=1024)
def _get_field_converters(kind: type) -> dict[str, Convert]:
    """Return the converters of a class, at the first conversion: a class may refer to itself."""
    from typing import Literal, get_args, get_origin

    converters: dict[str, Convert] = {}
    aliases = {
        attribute.name: attribute.alias for attribute in getattr(kind, "__attrs_attrs__", ())
    }  # `_x` is the argument `x`
    for name, hint in _get_hints(kind).items():
        plain = _unwrap_hint(hint)
        convert = get_converter(hint)
        if (
            convert is None and get_origin(plain) is Literal
        ):  # it may distinguish the classes of a union
            convert = _make_literal_check(get_args(plain))
        if convert is not None:
            converters[aliases.get(name, name)] = convert
    return converters


def _make_literal_check(choices: tuple[Any, ...]) -> Convert:
    def check(value: Any) -> Any:
        if value not in choices:
            raise ValueError(f"expected {' or '.join(map(repr, choices))}")
        return value

    return check


def _convert_fields(kind: type, value: Any) -> Values:
    if not isinstance(value, dict):
        raise TypeError(f"expected an object with the fields of {kind.__name__}")
    converters = _get_field_converters(kind)
    return {
        name: _convert_part(f".{name}", converters[name], field) if name in converters else field
        for name, field in value.items()
    }


def _make_named_tuple(kind: Any, value: Any) -> Any:
    values = value if isinstance(value, dict) else dict(zip(kind._fields, value, strict=False))
    if len(values) < len(value):
        raise ValueError(f"expected at most {len(kind._fields)} values")
    return kind(**_convert_fields(kind, values))


def _to_float(value: Any) -> float:
    """Return a JSON number as a float: `1` is an integer in Python."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise TypeError("expected a number")
    return float(value)


def _find_member(kind: Any, value: Any) -> Any:
    """Return the member of an enum by value or by name."""
    try:
        return kind(value)
    except ValueError:
        if isinstance(value, str) and value in kind.__members__:
            return kind[value]
        raise ValueError(
            f"expected one of {', '.join(repr(member.value) for member in kind)}"
        ) from None


def _make_decimal(kind: Any, value: Any) -> Any:
    try:
        return kind(str(value))  # keep 0.1 exact
    except ArithmeticError:
        raise ValueError("expected a decimal number") from None


# --- pydantic, if the extension uses it -----------------------------------------------------------


def _is_of_pydantic(hint: Any) -> bool:
    """Return whether the type is a pydantic class or has constraints."""
    if any(not isinstance(annotation, str) for annotation in getattr(hint, "__metadata__", ())):
        return True
    is_model = isinstance(hint, type) and hasattr(hint, "__pydantic_core_schema__")
    return is_model or str(getattr(hint, "__module__", "")).partition(".")[0] == "pydantic"


def _get_pydantic_converter(hint: Any) -> Convert | None:
    pydantic = sys.modules["pydantic"]
    try:
        adapter = pydantic.TypeAdapter(hint)
    except Exception:  # noqa: BLE001 - a type that pydantic does not know
        return get_converter(_unwrap_hint(hint)) if hasattr(hint, "__metadata__") else None
    inner = (
        get_converter(hint.__origin__) if hasattr(hint, "__metadata__") else None
    )  # bytes are base64

    def convert(value: Any) -> Any:
        try:
            return adapter.validate_python(value if inner is None else inner(value))
        except pydantic.ValidationError as error:
            first = error.errors(include_url=False, include_context=False)[0]
            path = "".join(
                f"[{step}]" if isinstance(step, int) else f".{step}" for step in first["loc"]
            )
            raise Mismatch(path, first["input"], first["msg"]) from None

    return convert
