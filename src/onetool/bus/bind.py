"""From what a caller wrote to named arguments: positional ones, abbreviated names, what is configured, defaults.

Nothing is checked here. What is configured for a tool beats its defaults and is beaten by the call, except where it is
a limit: a call may set that lower, never higher. An abbreviated name is the first parameter, in signature order, that
begins with it. A name that fits no parameter stays as it is, and is an error only where the tool takes no such one.
"""

from collections.abc import Iterable, Mapping, Sequence
from types import MappingProxyType
from typing import Any, Final

from onetool._tool import Tool
from onetool.errors import ArgumentError
from onetool.signature import signature

MAX_SHOWN = 200  # characters of the name of an argument
MAX_ARGUMENTS = 1_000  # of one call
NOTHING: Final[Mapping[str, Any]] = MappingProxyType({})


def bind(
    tool: Tool, positional: Sequence[Any], named: Mapping[str, Any], configured: Mapping[str, Any] = NOTHING
) -> dict[str, Any]:
    names = list(tool.input.properties)
    count, most = len(positional) + len(named), max(MAX_ARGUMENTS, len(names))
    if count > most:
        raise wrong_call(tool, f"{tool.name}() takes at most {most} arguments, {count} were given")
    bound = _positional(tool, names, positional) if positional else {}
    for key, value in named.items():
        name = full_name(key, names)
        if name in bound:
            raise wrong_call(tool, f"{tool.name}() got two values for {_shown(name)}")
        bound[name] = value
    unknown = [name for name in bound if name not in names]
    if unknown and not tool.input.open:
        raise wrong_call(tool, f"{tool.name}() has no argument {_shown(unknown[0])}")
    if configured:
        own = {name: thawed(configured[name]) for name in names if name in configured}
        bound = {**own, **{name: _limited(tool, name, value, own) for name, value in bound.items()}}
    if missing := [name for name in names if name in tool.input.required and name not in bound]:
        raise wrong_call(tool, f"{tool.name}() needs {' and '.join(map(repr, missing))}")
    if (most_text := tool.max_text) is not None:
        for name, value in bound.items():
            if isinstance(value, str) and len(value) > most_text:
                raise ArgumentError(f"{tool.name}(): {name} has {len(value)} characters, the limit is {most_text}")
    return {**{name: value for name, value in tool.input.defaults.items() if name not in bound}, **bound}


def _limited(tool: Tool, name: str, value: Any, configured: Mapping[str, Any]) -> Any:
    limit = configured.get(name)
    if name not in tool.limits or limit is None:
        return value
    if value is None or not _is_number(limit):  # no limit at all would be the highest; a wrong one is found wrong
        return limit
    return value if not _is_number(value) or value <= limit else limit  # what is no number at all is not below


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def thawed(value: Any) -> Any:
    """What is frozen in a context, as the lists and dicts that tools take."""
    if isinstance(value, Mapping):
        return {key: thawed(item) for key, item in value.items()}
    return [thawed(item) for item in value] if isinstance(value, tuple) else value


def full_name(key: str, names: Iterable[str]) -> str:
    names = list(names)
    return key if key in names else next((name for name in names if name.startswith(key)), key)


def _positional(tool: Tool, names: list[str], values: Sequence[Any]) -> dict[str, Any]:
    by_position = [name for name in names if name not in tool.input.keyword_only]
    if len(values) > len(by_position):
        how = "" if len(by_position) == len(names) else " by position"
        raise wrong_call(tool, f"{tool.name}() takes {len(by_position)} arguments{how}, {len(values)} were given")
    return dict(zip(by_position, values, strict=False))


def _shown(name: str) -> str:
    return repr(name) if len(name) <= MAX_SHOWN else f"{name[:MAX_SHOWN]!r}... ({len(name)} characters)"


def wrong_call(tool: Tool, message: str, **fields: Any) -> ArgumentError:
    """What was wrong, and how the tool is called."""
    return ArgumentError(f"{message}. It is called as {signature(tool)}", signature=signature(tool), **fields)
