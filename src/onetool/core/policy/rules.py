"""Policies of agents: rules that allow, deny or ask a person about a call.

Start reading at `Policy.decide`.
"""

import re
from collections.abc import Callable, Mapping
from fnmatch import fnmatchcase, translate
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, Self

from onetool.core.names import python_name
from onetool.core.policy.effects import (
    CHANGING,
    READ_ONLY,
    SessionLabels,
    get_effects,
    sort_effects,
)
from onetool.core.tool import Tool
from onetool.errors import PermissionDenied
from onetool.util.context import OWN_PACK, Effect
from onetool_child.json_types import JsonMapping

if TYPE_CHECKING:
    from onetool.settings.access import Agent, Rule as RuleSettings

Choice = Literal["allow", "ask", "deny"]
ALWAYS_ASKED = "ot.save_snippet"  # by every policy that does not deny it
UNKNOWN_SESSION = SessionLabels()
UNKNOWN_SESSION.merge(None)


class Ruling(NamedTuple):
    """The decision of a policy about a call, and why."""

    decision: Choice
    reason: str = ""


ALLOWED = Ruling("allow")
SAVING = "a saved snippet is code that later runs execute; `onetool runs show RUN` shows it"


class _Rule(NamedTuple):
    decision: Choice
    reason: str
    tools: str = "*"
    effects: frozenset[Effect] | None = None
    arguments: tuple[tuple[str, Callable[[Any], bool]], ...] = ()
    account: str | None = None

    @property
    def is_conditional(self) -> bool:
        """Whether it depends on the arguments or the account of a call."""
        return bool(self.arguments) or self.account is not None

    def matches(
        self, tool: Tool, effects: frozenset[Effect], args: JsonMapping, account: str
    ) -> bool:
        if self.account is not None and not (account and fnmatchcase(account, self.account)):
            return False
        if not self.matches_tool(tool, effects):
            return False
        return all(name in args and accepts(args[name]) for name, accepts in self.arguments)

    def matches_tool(self, tool: Tool, effects: frozenset[Effect]) -> bool:
        """Return whether some call of the tool with these effects matches."""
        if self.effects is not None and self.effects.isdisjoint(effects):
            return False
        return self.tools == "*" or _matches_name(self.tools, tool)


PRESETS: Mapping[str, tuple[_Rule, ...]] = {
    "open": (),
    "ask-writes": (
        _Rule(
            "ask", "the policy ask-writes asks for calls that write or execute", effects=CHANGING
        ),
    ),
    "read-only": (
        _Rule("deny", "the policy read-only denies calls that write or execute", effects=CHANGING),
    ),
    "guarded": (),
}


class Policy(NamedTuple):
    """The rules of an agent.

    The first rule that matches a call decides; without one, the call is allowed.
    """

    rules: tuple[_Rule, ...] = ()
    is_guarded: bool = False

    @classmethod
    def from_settings(cls, agent: "Agent") -> Self:
        if isinstance(agent.policy, str):
            return cls(PRESETS[agent.policy], agent.policy == "guarded")
        return cls(tuple(_compile(number, rule) for number, rule in enumerate(agent.policy, 1)))

    @property
    def is_open(self) -> bool:
        """Whether every call is allowed."""
        return not self.rules and not self.is_guarded

    @property
    def can_ask(self) -> bool:
        return self.is_guarded or any(rule.decision == "ask" for rule in self.rules)

    def decide(
        self, tool: Tool, args: JsonMapping, labels: SessionLabels | None = None, account: str = ""
    ) -> Ruling:
        """Decide about a call with bound arguments.

        Without `labels`, the session may have received anything.
        """
        if tool.name == ALWAYS_ASKED and tool.source == "local":
            effects = get_effects(tool, args)
            first = next(
                (rule for rule in self.rules if rule.matches(tool, effects, args, account)), None
            )
            is_denied = first is not None and first.decision == "deny"
            return (
                Ruling("deny", first.reason)
                if first is not None and is_denied
                else Ruling("ask", SAVING)
            )
        if not self.rules and not self.is_guarded:
            return ALLOWED
        effects = get_effects(tool, args)
        if _is_discovery(tool, effects):
            return ALLOWED
        for rule in self.rules:
            if rule.matches(tool, effects, args, account):
                return Ruling(rule.decision, rule.reason)
        if not self.is_guarded:
            return ALLOWED
        risk = (UNKNOWN_SESSION if labels is None else labels).explain_risk(tool, args)
        return Ruling("ask", risk) if risk else ALLOWED

    def denies_all_calls(self, tool: Tool) -> bool:
        """Return whether every call of the tool is denied, whatever its arguments."""
        effects = get_effects(tool)
        if _is_discovery(tool, effects):
            return False
        for rule in self.rules:
            if rule.matches_tool(tool, effects) and (
                rule.decision != "deny" or not rule.is_conditional
            ):
                return rule.decision == "deny"
        return False

    def explain_denied_changes(self) -> str:
        """Return which rule denies writing with every tool; empty if none does."""
        for rule in self.rules:
            is_general = rule.tools == "*" and not rule.is_conditional
            if is_general and (rule.effects is None or Effect.WRITE in rule.effects):
                return rule.reason if rule.decision == "deny" else ""
        return ""

    def depends_on_arguments(self, tool: Tool) -> bool:
        """Return whether the arguments or the account of a call decide whether a rule matches it."""
        effects = get_effects(tool)
        return any(rule.is_conditional and rule.matches_tool(tool, effects) for rule in self.rules)


def _is_discovery(tool: Tool, effects: frozenset[Effect]) -> bool:
    """Return whether every policy allows the tool: for discovery, results or the run itself."""
    return (
        tool.pack == OWN_PACK and effects <= READ_ONLY and tool.source == "local" and not tool.file
    )


def make_denial(tool: Tool, ruling: Ruling, agent: str) -> PermissionDenied:
    """Return the error for a call that a policy denies."""
    return PermissionDenied(
        f"agent {agent} may not call {tool.name}: {ruling.reason}",
        hint=f"a person can change agents.{agent}.policy in onetool.yaml",
        tool=tool.name,
        effects=sort_effects(get_effects(tool)),
    )


def _matches_name(pattern: str, tool: Tool) -> bool:
    """Return whether a name, pack or pattern matches the tool, in either spelling."""
    if pattern in {tool.name, tool.pack} or fnmatchcase(tool.name, pattern):
        return True
    spelled = python_name(tool.name)
    return spelled != tool.name and (
        pattern == spelled.rpartition(".")[0] or fnmatchcase(spelled, pattern)
    )


def _compile(number: int, rule: "RuleSettings") -> _Rule:
    conditions = rule.model_dump(mode="json", exclude_defaults=True, exclude={"decision"})
    if rule.effect is not None:
        conditions["effect"] = " or ".join(sort_effects(rule.effect))
    text = ", ".join(f"{name}: {value}" for name, value in conditions.items()) or "every call"
    tests = tuple((name, _make_test(pattern)) for name, pattern in rule.arguments.items())
    verb = {"allow": "allows", "ask": "asks for", "deny": "denies"}[rule.decision]
    return _Rule(
        rule.decision,
        f"rule {number} of its policy {verb} {{{text}}}",
        rule.tools,
        rule.effect,
        tests,
        rule.account,
    )


def _make_test(pattern: Any) -> Callable[[Any], bool]:
    """Return a function that tests an argument by shell pattern or equality as JSON."""
    if not isinstance(pattern, str):
        return lambda value: _is_equal(pattern, value)
    match = re.compile(translate(pattern)).match
    return lambda value: isinstance(value, str) and match(value) is not None


def _is_equal(expected: Any, value: Any) -> bool:
    if isinstance(expected, bool) or isinstance(value, bool):  # in Python, True equals 1
        return expected is value
    if isinstance(expected, Mapping) and isinstance(value, Mapping):
        return expected.keys() == value.keys() and all(
            _is_equal(expected[key], value[key]) for key in expected
        )
    if isinstance(expected, list | tuple) and isinstance(value, list | tuple):
        return len(expected) == len(value) and all(map(_is_equal, expected, value))
    return bool(expected == value)
