"""From what a caller wrote to named arguments: positional ones, abbreviated names, defaults. Nothing is checked here.

An abbreviated name is the first parameter, in signature order, that begins with it. A name that fits no parameter
stays as it is, and is an error only where the tool takes no such argument.
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from ot.errors import ArgumentError
from ot.signature import signature
from ot.tool import Tool


def bind(tool: Tool, positional: Sequence[Any], named: Mapping[str, Any]) -> dict[str, Any]:
    names = list(tool.input.properties)
    bound = _positional(tool, names, positional)
    for key, value in named.items():
        name = full_name(key, names)
        if name in bound:
            raise wrong_call(tool, f"{tool.name}() got two values for {name!r}")
        bound[name] = value
    _refuse_unknown(tool, bound, names)
    _refuse_missing(tool, bound)
    return {**{name: value for name, value in tool.input.defaults.items() if name not in bound}, **bound}


def full_name(key: str, names: Iterable[str]) -> str:
    names = list(names)
    return key if key in names else next((name for name in names if name.startswith(key)), key)


def _positional(tool: Tool, names: list[str], values: Sequence[Any]) -> dict[str, Any]:
    if len(values) > len(names):
        raise wrong_call(tool, f"{tool.name}() takes {len(names)} arguments, {len(values)} were given")
    return dict(zip(names, values, strict=False))


def _refuse_unknown(tool: Tool, bound: Mapping[str, Any], names: list[str]) -> None:
    unknown = [name for name in bound if name not in names]
    if unknown and not tool.input.open:
        raise wrong_call(tool, f"{tool.name}() has no argument {unknown[0]!r}")


def _refuse_missing(tool: Tool, bound: Mapping[str, Any]) -> None:
    missing = [name for name in tool.input.properties if name in tool.input.required and name not in bound]
    if missing:
        raise wrong_call(tool, f"{tool.name}() needs {' and '.join(map(repr, missing))}")


def wrong_call(tool: Tool, message: str) -> ArgumentError:
    """What was wrong, and how the tool is called."""
    return ArgumentError(f"{message}. It is called as {signature(tool)}", signature=signature(tool))
