"""Effects and labels of tools: what a call does, and which data its result may contain.

A tool that does not tell may write and send data out. Settings (`tools.<pack>.effects`) win over
declarations. `guarded` is a policy about labels: text from outside can contain instructions, so once
a client session has received such text and private data, a person decides about calls that send
data out. Labels belong to the session, not to a run: the model remembers what it has read.
"""

import json
import re
from collections.abc import Collection, Iterable, Mapping
from dataclasses import replace
from fnmatch import fnmatchcase
from functools import cache
from typing import TYPE_CHECKING, NamedTuple, TypeVar

from onetool.core.names import python_name
from onetool.core.tool import Tool
from onetool.util.context import OWN_PACK, Effect, Permission
from onetool_child.json_types import JsonMapping, JsonObject

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
PRIVATE = "private"
UNTRUSTED = "untrusted"
ALL = frozenset({PRIVATE, UNTRUSTED})
SENDING = frozenset({Effect.EXTERNAL, Effect.EXEC})  # a program can send anything
MAX_SOURCES = 100
MODEL_PACK = "llm"
UNKNOWN_SOURCE = ""
UNKNOWN: JsonMapping = {PRIVATE: {UNKNOWN_SOURCE: "an earlier call"}, UNTRUSTED: "an earlier call"}
# Arguments that choose who receives a request. They are compiled when they are needed.
DESTINATION_NAME = r"(?i)ur[il]|host|domain|endpoint|webhook|recipient"
DESTINATION = r"(?i)(?:https?|wss?|ftp):|(?<![\w:/])//\w|www\."
HINTS = ("readOnlyHint", "destructiveHint", "idempotentHint", "openWorldHint")


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
    present = frozenset(effects)
    return [str(effect) for effect in Effect if effect in present]


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


# --- labels ---------------------------------------------------------------------------------------


def get_labels(tool: Tool) -> frozenset[str]:
    """Return the labels of the results of a tool. A tool that declares nothing has both."""
    if tool.labels is not None:
        return tool.labels
    if tool.pack == OWN_PACK:
        return frozenset()
    if tool.effects is None and not tool.permissions:
        return ALL
    effects = get_effects(tool)
    permissions = tool.permissions
    reads = Permission.READ in permissions or (
        Effect.READ in effects and Effect.EXTERNAL not in effects
    )
    is_program = Effect.EXEC in effects
    private = {PRIVATE} if reads or is_program else set[str]()
    return frozenset(
        private | ({UNTRUSTED} if Effect.EXTERNAL in effects or is_program else set[str]())
    )


class SessionLabels:
    """The labels of one client session, with the tools that caused them."""

    __slots__ = ("private", "untrusted")

    def __init__(self) -> None:
        self.private: dict[
            str, str
        ] = {}  # the first tool by source; an empty source if it is unknown
        self.untrusted = ""  # the first tool

    @property
    def names(self) -> frozenset[str]:
        """The labels without their sources."""
        return frozenset(
            name
            for name, sources in ((PRIVATE, self.private), (UNTRUSTED, self.untrusted))
            if sources
        )

    def add(self, labels: Collection[str], tool: str) -> None:
        """Add labels of a value whose sources are unknown; `tool` returned it."""
        if PRIVATE in labels:
            self._add_private(UNKNOWN_SOURCE, tool)
        if UNTRUSTED in labels:
            self.untrusted = self.untrusted or tool

    def to_json(self) -> JsonObject:
        """Return the labels with their sources, to be stored with a result."""
        return {PRIVATE: dict(self.private), UNTRUSTED: self.untrusted}

    def merge(self, stored: JsonMapping | None) -> None:
        """Add the labels of a stored value, as of `to_json`. None: it may contain anything."""
        labels = UNKNOWN if stored is None else stored
        for source, tool in dict(labels.get(PRIVATE) or {}).items():
            self._add_private(source, tool)
        self.untrusted = self.untrusted or str(labels.get(UNTRUSTED) or "")

    def record(self, tool: Tool, args: JsonMapping, is_untrusted_value: bool = False) -> None:
        """Add the labels of a call, also of one that failed: error messages are text of the tool.

        The answer of a language model is as trustworthy as what it was sent, which the session has
        labels for.
        """
        labels = get_labels(tool)
        if PRIVATE in labels:
            self._add_private(_get_source(tool, args), tool.name)
        if UNTRUSTED in labels or (is_untrusted_value and tool.pack != MODEL_PACK):
            self.untrusted = self.untrusted or tool.name

    def _add_private(self, source: str, tool: str) -> None:
        self.private.setdefault(source if len(self.private) < MAX_SOURCES else UNKNOWN_SOURCE, tool)

    def explain_risk(self, tool: Tool, args: JsonMapping) -> str:
        """Return why a call could send private data to somebody else; empty if it cannot.

        A call without arguments carries no data. A call that only reads from the one source of all
        private data tells that source nothing new, unless it names another destination. A call that
        changes something at a private source, such as forwarding a message, can publish data that
        the session has not received.
        """
        effects = get_effects(tool, args)
        if (
            not self.untrusted
            or effects.isdisjoint(SENDING)
            or not (args or Effect.EXEC in effects)
        ):
            return ""
        if effects.isdisjoint(CHANGING):
            here = None if _has_destination(tool, args) else _get_source(tool, args)
            private = next((name for source, name in self.private.items() if source != here), "")
        else:
            private = next(
                iter(self.private.values()), tool.name if PRIVATE in get_labels(tool) else ""
            )
        if not private:
            return ""
        access = "can use" if private == tool.name else "returned"
        return (
            f"it sends data out: {private} {access} private data, and {self.untrusted} returned"
            " untrusted data"
        )


def _get_source(tool: Tool, args: JsonMapping) -> str:
    """Return the source of the data of a call: a pack, or the server whose resources `ot` reads."""
    server = args.get("server") if tool.pack == OWN_PACK else None
    return server if isinstance(server, str) else tool.pack or tool.name


def _has_destination(tool: Tool, args: JsonMapping) -> bool:
    is_named = tool.pack != OWN_PACK and any(re.search(DESTINATION_NAME, name) for name in args)
    return is_named or re.search(DESTINATION, json.dumps(dict(args), default=str)) is not None


# --- hints of MCP tools ---------------------------------------------------------------------------


class Hints(NamedTuple):
    """Effects and idempotence according to annotations. `effects` is None if they tell nothing."""

    effects: frozenset[Effect] | None = None
    is_idempotent: bool = False

    @property
    def labels(self) -> frozenset[str]:
        """The labels of results: a tool that reaches nothing outside returns nothing from outside."""
        return frozenset(
            {UNTRUSTED} if self.effects is None or Effect.EXTERNAL in self.effects else ()
        )

    def combine(self, other: "Hints") -> "Hints":
        """Return the hints with the effects of both."""
        if self == other:
            return self
        effects = (self.effects or UNDECLARED) | (other.effects or UNDECLARED)
        return Hints(effects, self.is_idempotent and other.is_idempotent)


def describe_claims(annotations: JsonMapping | None) -> str:
    """Return the claims of annotations that lower effects; empty if none does."""
    hints = read_hints(annotations)
    if hints.effects is None:
        return ""
    claims = ["it only reads"] if Effect.WRITE not in hints.effects else []
    claims += ["it reaches nothing outside"] if Effect.EXTERNAL not in hints.effects else []
    claims += ["repeating a call changes nothing"] if hints.is_idempotent else []
    return ", ".join(claims)


def read_hints(annotations: JsonMapping | None) -> Hints:
    """Return what annotations tell.

    A missing hint has the default of the MCP specification, which is the worse one.
    """
    hints = {name: (annotations or {}).get(name) for name in HINTS}
    if not any(isinstance(hint, bool) for hint in hints.values()):
        return Hints()
    is_read_only = hints["readOnlyHint"] is True and hints["destructiveHint"] is not True
    reach = set[Effect]() if hints["openWorldHint"] is False else {Effect.EXTERNAL}
    effects = frozenset({Effect.READ if is_read_only else Effect.WRITE} | reach)
    return Hints(effects, hints["idempotentHint"] is True)
