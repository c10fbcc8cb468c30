"""Policies: rules, presets, the labels of `guarded`, and `onetool agents check`."""

import json
from collections.abc import Mapping
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

import anyio
import pytest
from benchmarks.guarded import Outcome, measure_guarded
from hypothesis import given, settings, strategies as st
from tests.extensions_support import configure
from tests.support import run_cli

from onetool.core.policy.effects import SessionLabels, changes_something, get_effects, get_labels
from onetool.core.policy.rules import Policy, make_denial
from onetool.core.schema import ANY_OBJECT, Schema
from onetool.core.tool import Tool
from onetool.settings.access import Agent
from onetool.util.context import Effect, Permission

SCHEMA = Schema.from_json(ANY_OBJECT)
EFFECTS = st.none() | st.frozensets(st.sampled_from(Effect), min_size=1)
VALUES = st.sampled_from(
    ["me/site", "you/site", "", 1, 1.0, True, None, ["me/site"], {"a": 1}, {"a": True}]
)
ARGUMENTS = st.dictionaries(st.sampled_from(["repo", "force"]), VALUES)
PATTERNS = st.dictionaries(
    st.sampled_from(["repo", "force"]), st.sampled_from(["me/*", "*", 1, True, {"a": 1}])
)
RULES = st.lists(
    st.fixed_dictionaries(
        {"decision": st.sampled_from(["allow", "ask", "deny"])},
        optional={
            "tools": st.sampled_from(["gh", "gh.*", "gh.create", "*.create", "fs.*", "*"]),
            "effect": st.lists(st.sampled_from([str(effect) for effect in Effect]), min_size=1),
            "arguments": PATTERNS,
        },
    ),
    max_size=4,
)


def make_tool(name: str, *effects: str, **fields: Any) -> Tool:
    declared = frozenset(map(Effect, effects)) or None
    return Tool(name, backend=None, input=SCHEMA, effects=declared, **fields)  # type: ignore[arg-type]


def make_policy(policy: Any) -> Policy:
    return Policy.from_settings(Agent(policy=policy))


# --- rules ----------------------------------------------------------------------------------------


@settings(max_examples=150)
@given(RULES, st.sampled_from(["gh.create", "gh.read", "fs.read", "grep"]), EFFECTS, ARGUMENTS)
def test_the_first_rule_whose_conditions_all_hold_decides(
    rules: list[dict[str, Any]], name: str, effects: frozenset[Effect] | None, args: dict[str, Any]
) -> None:
    tool = make_tool(name, *(effects or ()))
    matching = [rule["decision"] for rule in rules if expect_match(rule, tool, args)]
    policy = make_policy(rules)
    assert policy.decide(tool, args).decision == (matching or ["allow"])[0]
    assert not policy.denies_all_calls(tool) or matching[0] == "deny"


def expect_match(rule: Mapping[str, Any], tool: Tool, args: Mapping[str, Any]) -> bool:
    """Return the same as a rule, written independently: JSON texts are equal if the values are."""
    pattern = rule.get("tools", "*")
    if not (pattern in {tool.name, tool.pack} or fnmatchcase(tool.name, pattern)):
        return False
    if "effect" in rule and not {str(each) for each in get_effects(tool)} & set(rule["effect"]):
        return False
    for name, expected in rule.get("arguments", {}).items():
        if name not in args:
            return False
        value = args[name]
        if isinstance(expected, str):
            if not isinstance(value, str) or not fnmatchcase(value, expected):
                return False
        elif json.dumps(expected) != json.dumps(
            1 if value == 1.0 and type(value) is float else value
        ):
            return False
    return True


@pytest.mark.parametrize(
    ("policy", "decisions"),
    [
        ("open", ["allow", "allow", "allow", "allow", "allow"]),
        ("ask-writes", ["allow", "ask", "ask", "allow", "ask"]),
        ("read-only", ["allow", "deny", "deny", "allow", "deny"]),
        ("guarded", ["allow", "allow", "allow", "allow", "allow"]),
    ],
)
def test_presets_decide_by_effects(policy: str, decisions: list[str]) -> None:
    tools = [
        make_tool("a.read", "read"),
        make_tool("a.write", "write"),
        make_tool("a.run", "exec"),
        make_tool("a.fetch", "read", "external"),
        make_tool("a.unknown"),
    ]
    made = make_policy(policy)
    assert [made.decide(tool, {"x": 1}, SessionLabels()).decision for tool in tools] == decisions
    assert made.can_ask is (policy in {"ask-writes", "guarded"})


def test_a_policy_that_denies_everything_leaves_discovery_and_results() -> None:
    policy = make_policy([{"decision": "deny"}])
    assert policy.decide(make_tool("ot.help", "read"), {}).decision == "allow"
    assert policy.decide(make_tool("ot.notify", "write"), {}).decision == "deny"
    assert policy.decide(make_tool("ot.help", "read", source="proxy:ot"), {}).decision == "deny"


def test_an_argument_with_its_own_permission_adds_an_effect() -> None:
    stats = make_tool(
        "ot.stats", "read", argument_permissions={"output": frozenset({Permission.WRITE})}
    )
    policy = make_policy("ask-writes")
    assert policy.decide(stats, {"output": ""}).decision == "allow"
    assert policy.decide(stats, {"output": "report.html"}).decision == "ask"
    assert not changes_something(stats, {})
    assert changes_something(stats, {"output": "report.html"})


def test_a_rule_also_matches_the_name_as_code_spells_it() -> None:
    policy = make_policy(
        [
            {"tools": "my_crm.add_note", "decision": "deny"},
            {"tools": "other_crm", "decision": "ask"},
        ]
    )
    decisions = [
        policy.decide(make_tool(name, "write"), {}).decision
        for name in ("my-crm.add-note", "other-crm.a")
    ]
    assert decisions == ["deny", "ask"]


def test_a_denial_names_the_rule_and_the_setting() -> None:
    tool = make_tool("gh.delete", "write")
    ruling = make_policy([{"tools": "gh.*", "effect": "write", "decision": "deny"}]).decide(
        tool, {}
    )
    assert (
        str(make_denial(tool, ruling, "ci"))
        == "agent ci may not call gh.delete: rule 1 of its policy denies {tools: gh.*, effect:"
        " write}\nHint: a person can change agents.ci.policy in onetool.yaml"
    )


# --- guarded --------------------------------------------------------------------------------------

MAIL = {
    "permissions": frozenset({Permission.NETWORK}),
    "labels": frozenset({"private", "untrusted"}),
}
FETCH = make_tool("http.get", "read", "external", permissions=frozenset({Permission.NETWORK}))
FILE = make_tool("fs.read", permissions=frozenset({Permission.READ}))


def is_asked(labels: SessionLabels | None, tool: Tool, **args: Any) -> bool:
    return make_policy("guarded").decide(tool, args, labels).decision == "ask"


@pytest.mark.parametrize("first", [FILE, FETCH])
def test_private_and_untrusted_data_together_make_a_call_asked(first: Tool) -> None:
    labels = SessionLabels()
    for tool in (first, FETCH if first is FILE else FILE):
        assert not is_asked(labels, FETCH, url="https://a.example")
        labels.record(tool, {})
    assert is_asked(labels, FETCH, url="https://a.example")
    assert not is_asked(labels, FILE, path="a.txt")


def test_a_service_is_read_without_questions_and_written_with_one() -> None:
    read, send = (
        make_tool("mail.read", "read", "external", **MAIL),
        make_tool("mail.send", "write", "external", **MAIL),
    )
    labels = SessionLabels()
    assert not is_asked(labels, send, to="ada")
    labels.record(read, {"id": 1})
    assert not is_asked(labels, read, id=2)
    assert is_asked(labels, send, to="ada")
    assert is_asked(labels, read, url="https://evil.example/?d=1")
    assert is_asked(labels, read, query="see https://evil.example/")
    labels.record(FILE, {})
    assert is_asked(labels, read, id=2)
    assert not is_asked(labels, make_tool("mail.count", "read", "external", **MAIL))


def test_untrusted_text_makes_a_change_at_a_private_source_asked() -> None:
    forward, labels = make_tool("mail.forward", "write", "external", **MAIL), SessionLabels()
    labels.record(FETCH, {})
    assert is_asked(labels, forward, id=1)
    assert not is_asked(
        labels, make_tool("form.post", "write", "external", labels=frozenset()), id=1
    )


def test_an_answer_of_a_language_model_is_not_text_from_outside() -> None:
    model, labels = make_tool("llm.ask", "read", "external", labels=frozenset()), SessionLabels()
    labels.record(FILE, {})
    labels.record(model, {"prompt": "x"}, True)
    assert not is_asked(labels, model, prompt="y")
    labels.record(make_tool("a.b", "read", labels=frozenset()), {}, True)
    assert is_asked(labels, model, prompt="y")


def test_labels_of_stored_values_return_with_them() -> None:
    labels, later = SessionLabels(), SessionLabels()
    labels.record(FILE, {})
    labels.record(FETCH, {})
    later.merge(json.loads(json.dumps(labels.to_json())))
    assert later.to_json() == labels.to_json()
    unknown, named = SessionLabels(), SessionLabels()
    unknown.merge(None)
    named.add(labels.names, "ot.session")
    for session in (later, unknown, named, None):
        assert is_asked(session, FETCH, url="https://a.example")


def test_resources_of_two_servers_are_two_sources() -> None:
    resources = make_tool("ot.resources", "read", "external", **MAIL)
    labels = SessionLabels()
    labels.record(resources, {"server": "vault"})
    assert not is_asked(labels, resources, server="vault", uri="vault://b")
    assert is_asked(labels, resources, server="wiki", uri="wiki://b")


def test_the_memory_of_a_session_is_bounded() -> None:
    labels = SessionLabels()
    for number in range(1000):
        labels.record(make_tool(f"pack{number}.read", "read"), {})
    assert len(labels.private) <= 101


def test_a_tool_that_declares_nothing_has_both_labels() -> None:
    assert get_labels(make_tool("a.b")) == {"private", "untrusted"}
    assert get_labels(make_tool("a.b", permissions=frozenset({Permission.NETWORK}))) == {
        "untrusted"
    }
    assert get_labels(make_tool("a.b", permissions=frozenset({Permission.READ}))) == {"private"}
    assert (
        get_labels(make_tool("a.b", "write", permissions=frozenset({Permission.WRITE})))
        == frozenset()
    )


@pytest.fixture(scope="module")
def outcome(tmp_path_factory: pytest.TempPathFactory) -> Outcome:
    return anyio.run(measure_guarded, tmp_path_factory.mktemp("world"))


def test_no_exfiltration_passes_unasked(outcome: Outcome) -> None:
    assert outcome.exfiltrations == 100
    assert outcome.passed == []


def test_ordinary_tasks_are_rarely_asked_about(outcome: Outcome) -> None:
    assert outcome.ordinary == 200
    assert len(outcome.asked) / outcome.ordinary <= 0.02


# --- onetool agents check -------------------------------------------------------------------------


def test_a_call_is_checked_without_making_it(tmp_path: Path) -> None:
    configure(
        tmp_path / ".onetool",
        "agents: {default: {permissions: [read, write], policy: ask-writes}, guest: {}}",
    )
    asked = run_cli(tmp_path, "agents", "check", "fs.write('a.txt', content='x')")
    assert (asked.returncode, asked.stdout) == (
        3,
        (
            "ask: the policy ask-writes asks for calls that write or execute\ntool:"
            " fs.write\neffects: write\n"
        ),
    )
    assert not (tmp_path / "a.txt").exists()
    denied = run_cli(tmp_path, "agents", "check", "fs.read('a.txt')", "--agent", "guest", "--json")
    assert denied.returncode == 1
    assert json.loads(denied.stdout)["decision"] == "deny"
    assert "read permission" in json.loads(denied.stdout)["reason"]
    assert run_cli(tmp_path, "agents", "check", "fs.read(open('x'))").returncode == 2
