"""Labels of the policy `guarded`: which private and untrusted data the client of a session has
received.

Text from outside can contain instructions. Once a session has received such text and private data,
a call that sends data out may be what the text asked for, so a person decides. Labels belong to the
session, not to a run: the model remembers what it has read.
"""

import json
import re
from collections.abc import Collection

from onetool.core.policy.effects import CHANGING, get_effects
from onetool.core.tool import Tool
from onetool.util.context import OWN_PACK, Effect, Permission
from onetool_child.json_types import JsonMapping, JsonObject

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
            name for name, found in ((PRIVATE, self.private), (UNTRUSTED, self.untrusted)) if found
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
        found = UNKNOWN if stored is None else stored
        for source, tool in dict(found.get(PRIVATE) or {}).items():
            self._add_private(source, tool)
        self.untrusted = self.untrusted or str(found.get(UNTRUSTED) or "")

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
