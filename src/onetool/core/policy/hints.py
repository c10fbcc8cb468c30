"""Effects of MCP tools, from the annotations of their definitions."""

from typing import NamedTuple

from onetool.core.policy.effects import UNDECLARED
from onetool.core.policy.labels import UNTRUSTED
from onetool.util.context import Effect
from onetool_child.json_types import JsonMapping

HINTS = ("readOnlyHint", "destructiveHint", "idempotentHint", "openWorldHint")


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
    """Return what annotations claim that lowers effects, for a person who accepts them; empty if
    nothing does.
    """
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
