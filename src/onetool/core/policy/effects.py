"""The effects of tools: what a call does besides returning a value.

A tool that does not tell may write and send data out. Settings (`tools.<pack>.effects`) win over
declarations.
"""

from collections.abc import Iterable, Mapping
from dataclasses import replace
from fnmatch import fnmatchcase
from functools import cache
from typing import TYPE_CHECKING, TypeVar

from onetool.core.names import python_name
from onetool.core.tool import Tool
from onetool.util.context import Effect, Permission
from onetool_child.json_types import JsonMapping

if TYPE_CHECKING:
    from onetool.settings.model import PackSettings

Value = TypeVar("Value")
READ_ONLY = frozenset({Effect.READ})
CHANGING = frozenset({Effect.WRITE, Effect.EXEC})
UNDECLARED = frozenset({Effect.WRITE, Effect.EXTERNAL})
BY_PERMISSION = {
    Permission.READ: Effect.READ,
    Permission.WRITE: Effect.WRITE,
    Permission.EXEC: Effect.EXEC,
    Permission.NETWORK: Effect.EXTERNAL,
}


def get_effects(tool: Tool, args: JsonMapping | None = None) -> frozenset[Effect]:
    """Return the effects of a tool, with those that its arguments add."""
    effects = tool.effects
    if effects is None:
        effects = _infer(tool.permissions) or UNDECLARED
    if args and tool.argument_permissions:
        added = (needed for name, needed in tool.argument_permissions.items() if args.get(name))
        effects = effects.union(*(map(BY_PERMISSION.__getitem__, needed) for needed in added))
    return effects


def get_implied_permissions(effects: frozenset[Effect] | None) -> frozenset[Permission]:
    """Return the permissions that an agent needs for declared effects. Reading implies none."""
    implied = {
        permission for permission, effect in BY_PERMISSION.items() if effect in (effects or ())
    }
    return frozenset(implied - {Permission.READ})


def has_effect(tool: Tool, args: JsonMapping | None = None) -> bool:
    """Return whether a call does anything but read."""
    return not get_effects(tool, args) <= READ_ONLY


def changes_something(tool: Tool, args: JsonMapping | None = None) -> bool:
    """Return whether a call writes or executes, so that repeating it may do harm."""
    return not get_effects(tool, args).isdisjoint(CHANGING)


def is_declared(tool: Tool) -> bool:
    """Return whether the tool, its permissions or the settings tell its effects."""
    return tool.effects is not None or _infer(tool.permissions) is not None


def sort_effects(effects: Iterable[Effect]) -> list[str]:
    found = frozenset(effects)
    return [str(effect) for effect in Effect if effect in found]


def describe_effects(tool: Tool, args: JsonMapping | None = None) -> str:
    """Return the effects of a tool for readers, such as `write, external (not declared)`."""
    notes = [
        *([] if is_declared(tool) else ["not declared"]),
        *(["idempotent"] if tool.is_idempotent else []),
    ]
    return ", ".join(sort_effects(get_effects(tool, args))) + (
        f" ({', '.join(notes)})" if notes else ""
    )


@cache
def _infer(permissions: frozenset[Permission]) -> frozenset[Effect] | None:
    """Return the effects that permissions imply.

    A tool that uses the network may also change something there.
    """
    if permissions <= {Permission.READ, Permission.NETWORK} and permissions != {Permission.READ}:
        return None
    return frozenset(BY_PERMISSION[permission] for permission in permissions)


def apply_settings(tool: Tool, pack: "PackSettings | None") -> Tool:
    """Return the tool with the effects, labels and idempotence of the settings `tools.<pack>`."""
    if pack is None or not (pack.effects or pack.labels or pack.idempotent):
        return tool
    return replace(
        tool,
        effects=_find(pack.effects, tool, tool.effects),
        labels=_find(pack.labels, tool, tool.labels),
        is_idempotent=_find(dict.fromkeys(pack.idempotent, True), tool, tool.is_idempotent),
    )


def _find(values: Mapping[str, Value], tool: Tool, default: Value) -> Value:
    """Return the value for the name of the tool, or for the first pattern that matches it."""
    names = dict.fromkeys((tool.short_name, python_name(tool.short_name), tool.name))
    exact = (values[name] for name in names if name in values)
    matching = (
        value
        for pattern, value in values.items()
        if any(fnmatchcase(name, pattern) for name in names)
    )
    return next(exact, next(matching, default))
