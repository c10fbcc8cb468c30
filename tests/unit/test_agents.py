"""What the agents of a configuration come to: limits, sandboxes, budgets that survive a reload."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import anyio
import pytest

from onetool._tool import tool
from onetool.agents import Agents
from onetool.bus.adapt import as_tool
from onetool.config.load import Loaded
from onetool.config.model import Settings
from onetool.context import Permission, ToolContext
from onetool.errors import BudgetExceeded, ToolError
from onetool.files.rules import Denial, Rules
from onetool.paths import Directories
from onetool.problem import UNTRUSTED, Problem

HOME = Path("/home/ada")
WORK = Path("/srv/shop")
FOLDERS = Directories(WORK, HOME / ".onetool", WORK / ".onetool", trusted=True)


def agents(
    settings: Mapping[str, Any], directories: Directories = FOLDERS, projects: Mapping[str, str] | None = None
) -> Agents:
    made = Agents(lambda _agent, _text: None)
    use(made, settings, directories, projects)
    return made


def use(
    made: Agents,
    settings: Mapping[str, Any],
    directories: Directories = FOLDERS,
    projects: Mapping[str, str] | None = None,
) -> None:
    made.configure(Loaded(Settings.model_validate(settings), {}, (), (), directories), projects or {})


def sandbox(said: Mapping[str, Any], directories: Directories = FOLDERS, **more: Any) -> Mapping[str, Any]:
    found: Mapping[str, Any] = agents({"agents": {"ci": {"sandbox": said}}, **more}, directories).context_fields("ci")[
        "sandbox"
    ]
    return found


async def spend(made: Agents, name: str = "ci") -> None:
    async def nothing() -> None:
        return None

    await made.context_fields(name)["budget_guard"].spend(nothing)


# --- which agent -----------------------------------------------------------------------------------------------------


def test_a_client_gets_the_agent_that_names_it() -> None:
    made = agents({"agents": {"ci": {"clients": ["bot", "other bot"]}, "desk": {"clients": ["Claude"]}}})
    found = [made.for_client(name) for name in ("bot", "other bot", "Claude", "claude", "bo", "", None)]
    assert found == ["ci", "ci", "desk", "default", "default", "default", "default"]


def test_an_unknown_agent_in_an_untrusted_project_is_told_to_trust_it() -> None:
    made = Agents(lambda _agent, _text: None)
    hint = "run `onetool trust` in /srv/shop"
    ignored = Problem("/srv/shop/.onetool is not trusted and is ignored", hint, code=UNTRUSTED)
    made.configure(Loaded(Settings(), {}, (ignored,), (), FOLDERS), {})
    with pytest.raises(ToolError, match=r"unknown agent 'ci': expected default\. .*\nHint: .*onetool trust"):
        made.context_fields("ci")


def test_the_facts_are_those_of_the_configuration() -> None:
    config = {"fs.read": {"max_size": 5, "deep": {"list": [1]}}}
    agent = {"permissions": ["read", "exec"], "tools": ["fs", "grep"], "tool_config": config}
    context = ToolContext(**agents({"agents": {"ci": agent}}).context_fields("ci"))
    assert (context.agent_id, context.tools) == ("ci", ("fs", "grep"))
    assert context.permissions == {Permission.READ, Permission.EXEC}
    assert context.agent_config["fs.read"] == {"max_size": 5, "deep": {"list": (1,)}}
    assert context.budget_guard is None


# --- sandboxes -------------------------------------------------------------------------------------------------------


def test_without_a_word_the_sandbox_is_the_working_folder() -> None:
    found = agents({}).context_fields("default")["sandbox"]
    assert (found["enabled"], found["allowed_paths"], found["denied_patterns"]) == (True, ["/srv/shop"], ())


def test_without_a_sandbox_settings_stay_guarded() -> None:
    found = sandbox({"enabled": False})
    assert not found["enabled"]
    assert (found["hidden_names"], "/home/ada/.onetool" in found["hidden_paths"]) == ((".onetool",), True)


def test_paths_start_at_the_working_folder_and_at_home() -> None:
    found = sandbox({"allowed_paths": ["src", "~/notes", "/srv"], "denied_patterns": [".env*"]})
    assert found["allowed_paths"] == ["/srv/shop/src", "/home/ada/notes", "/srv"]
    assert found["denied_patterns"] == (".env*",)


def test_projects_may_be_read() -> None:
    made = agents({"agents": {"ci": {}}}, projects={"shop": "/projects/shop"})
    assert made.context_fields("ci")["sandbox"]["readable_paths"] == ["/projects/shop"]


def test_what_the_product_keeps_is_hidden_and_its_rules_are_protected() -> None:
    for directories in (FOLDERS, Directories(WORK, HOME / ".onetool")):  # trusted, and not trusted or not there
        found = sandbox({}, directories)
        rules = Rules.from_context(ToolContext(sandbox={**found, "allowed_paths": ["/"]}, working_dir=WORK))
        for path in ("/home/ada/.onetool", "/srv/shop/.onetool/onetool.yaml", "/srv/shop/sub/.OneTool/secrets.yaml"):
            assert rules.find_denial(path, writing=False) is Denial.HIDDEN
            assert rules.find_denial(path, writing=True) is Denial.HIDDEN


def test_the_audit_log_is_hidden_wherever_it_is() -> None:
    assert "/srv/audit.jsonl" in sandbox({}, audit={"file": "/srv/audit.jsonl"})["hidden_paths"]
    assert "/srv/shop/.onetool/logs/audit.jsonl" in sandbox({})["hidden_paths"]


def test_a_configuration_file_beside_the_work_does_not_protect_the_work() -> None:
    directories = Directories(WORK, HOME / ".onetool", WORK, WORK / "tools.yaml", trusted=True)
    found = sandbox({}, directories)
    assert "/srv/shop" not in found["protected_paths"]
    own = ("prompts.yaml", "agents", "tools", "bundles", "environments")
    assert {f"/srv/shop/{name}" for name in own} <= set(found["protected_paths"])
    assert {f"/srv/shop/{name}" for name in ("tools.yaml", "secrets.yaml", "logs")} <= set(found["hidden_paths"])


# --- budgets ---------------------------------------------------------------------------------------------------------


def test_each_agent_has_a_budget_of_its_own() -> None:
    made = agents({"agents": {"ci": {"budgets": {"calls": 1}}, "desk": {"budgets": {"calls": 1}}}})
    anyio.run(spend, made, "ci")
    anyio.run(spend, made, "desk")
    with pytest.raises(BudgetExceeded):
        anyio.run(spend, made, "ci")


def test_a_reload_keeps_what_was_spent() -> None:
    made = agents({"agents": {"ci": {"budgets": {"calls": 1}}}})
    anyio.run(spend, made)
    use(made, {"agents": {"ci": {"budgets": {"calls": 1}}}})
    with pytest.raises(BudgetExceeded):
        anyio.run(spend, made)
    use(made, {"agents": {"ci": {"budgets": {"calls": 2}}}})
    anyio.run(spend, made)
    with pytest.raises(BudgetExceeded):
        anyio.run(spend, made)


def test_an_agent_that_was_gone_meanwhile_has_not_been_forgiven() -> None:
    made = agents({"agents": {"ci": {"budgets": {"calls": 1}}}})
    anyio.run(spend, made)
    use(made, {})
    use(made, {"agents": {"ci": {"budgets": {"calls": 1}}}})
    with pytest.raises(BudgetExceeded):
        anyio.run(spend, made)


def test_a_budget_that_is_taken_away_is_none_any_more() -> None:
    made = agents({"agents": {"ci": {"budgets": {"calls": 0}}}})
    with pytest.raises(BudgetExceeded):
        anyio.run(spend, made)
    use(made, {"agents": {"ci": {}}})
    anyio.run(spend, made)


def test_a_call_costs_what_its_pack_says() -> None:
    made = agents({"tools": {"paid": {"cost_per_call": 0.25}}})
    paid, free = (as_tool(tool(name)(lambda: None)) for name in ("paid.one", "free.one"))
    assert (made.get_cost(paid), made.get_cost(free)) == (0.25, 0)
