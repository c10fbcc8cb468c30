"""Binding of arguments: positional arguments, abbreviated names, configured values and defaults.

Configured values override defaults, and arguments of the call override both; limits can only be
lowered by a call. An abbreviated name means the first parameter, in signature order, that starts
with it. Unknown names are an error unless the tool accepts additional arguments.
"""

from collections.abc import Iterable, Sequence
from types import MappingProxyType
from typing import Any

from onetool.core.foreign_schema import find_arguments
from onetool.core.names import nearest
from onetool.core.signature import signature
from onetool.core.tool import Tool
from onetool.errors import ArgumentError
from onetool.util.context import unfreeze
from onetool.util.text import pluralize, suggestion_hint
from onetool_child.json_types import JsonMapping, JsonObject

MAX_QUOTED_CHARS = 200  # characters of an argument name
MAX_ARGUMENTS = 1_000  # of one call
NO_ARGUMENTS: JsonMapping = MappingProxyType({})


def bind(
    tool: Tool,
    positional: Sequence[Any],
    named: JsonMapping,
    configured: JsonMapping = NO_ARGUMENTS,
    *,
    is_exact: bool = False,
) -> JsonObject:
    """Return the arguments by their full names.

    With `is_exact`, names must be complete and declared.
    """
    names = list(tool.input.properties)
    count = len(positional) + len(named)
    limit = max(MAX_ARGUMENTS, len(names))
    if count > limit:
        raise call_error(tool, f"{tool.name}() takes at most {limit} arguments, got {count}")
    bound = _bind_positional(tool, names, positional) if positional else {}
    for key, value in named.items():
        name = key if is_exact or key in names else expand_name(key, names)
        if name in bound:
            raise call_error(tool, f"{tool.name}() got multiple values for {_quote_name(name)}")
        bound[name] = value
    if not bound.keys() <= tool.input.properties.keys():
        _reject_unknown(tool, bound, names, is_exact=is_exact)
    if configured:
        defaults = {name: unfreeze(configured[name]) for name in names if name in configured}
        bound = {
            **defaults,
            **{name: _apply_limit(tool, name, value, defaults) for name, value in bound.items()},
        }
    if not tool.input.required <= bound.keys():
        _reject_missing(tool, bound, names)
    if (max_text := tool.max_text) is not None:
        for name, value in bound.items():
            if isinstance(value, str) and len(value) > max_text:
                raise ArgumentError(
                    f"{tool.name}(): {name} has {len(value)} characters, the limit is {max_text}"
                )
    return {
        **{name: value for name, value in tool.input.defaults.items() if name not in bound},
        **bound,
    }


def _reject_missing(tool: Tool, bound: JsonObject, names: Sequence[str]) -> None:
    """Raise for missing arguments. The validator reports those that are required and not declared."""
    missing = [name for name in names if name in tool.input.required and name not in bound]
    if missing:
        raise call_error(tool, f"{tool.name}() requires {' and '.join(map(repr, missing))}")


def _reject_unknown(
    tool: Tool, bound: Iterable[str], names: Sequence[str], *, is_exact: bool
) -> None:
    """Raise for undeclared arguments, unless the tool accepts them.

    With `is_exact`, a schema that declares arguments accepts others only if it says so.
    """
    unknown = [name for name in bound if name not in names]
    declared = names
    if tool.input.open:
        if not is_exact or "additionalProperties" in tool.input.json:
            return
        schema_arguments, patterns = find_arguments(tool.input.json)
        unknown = [name for name in unknown if name not in schema_arguments]
        if patterns or not schema_arguments or not unknown:
            return
        declared = sorted(schema_arguments)
    suggestion = suggestion_hint(nearest(unknown[0], [*declared])[:1]) if is_exact else ""
    suffix = f" ({suggestion})" if suggestion else ""
    raise call_error(tool, f"{tool.name}() has no argument {_quote_name(unknown[0])}{suffix}")


def _apply_limit(tool: Tool, name: str, value: Any, configured: JsonMapping) -> Any:
    limit = configured.get(name)
    if name not in tool.limits or limit is None:
        return value
    if value is None or not _is_number(
        limit
    ):  # None would mean no limit; an invalid limit is rejected later
        return limit
    return (
        value if not _is_number(value) or value <= limit else limit
    )  # validation rejects other types


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def expand_name(key: str, names: Iterable[str]) -> str:
    names = list(names)
    return key if key in names else next((name for name in names if name.startswith(key)), key)


def _bind_positional(tool: Tool, names: list[str], values: Sequence[Any]) -> JsonObject:
    variadic = tool.input.variadic
    by_position = [
        name for name in names if name not in tool.input.keyword_only and name != variadic
    ]
    by_position.sort(key=lambda name: name not in tool.input.required)  # the order of the signature
    if variadic is not None and len(values) > len(by_position):
        return {
            **dict(zip(by_position, values, strict=False)),
            variadic: list(values[len(by_position) :]),
        }
    if len(values) > len(by_position):
        suffix = "" if len(by_position) == len(names) else " by position"
        raise call_error(
            tool,
            f"{tool.name}() takes {pluralize(len(by_position), 'argument')}{suffix}, got"
            f" {len(values)}",
        )
    return dict(zip(by_position, values, strict=False))


def _quote_name(name: str) -> str:
    return (
        repr(name)
        if len(name) <= MAX_QUOTED_CHARS
        else f"{name[:MAX_QUOTED_CHARS]!r}... ({len(name)} characters)"
    )


def call_error(tool: Tool, message: str, **fields: Any) -> ArgumentError:
    """Return an error with the signature of the tool."""
    return ArgumentError(
        f"{message}. Signature: {signature(tool)}", signature=signature(tool), **fields
    )
