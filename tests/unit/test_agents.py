"""Agents of a configuration: limits, sandboxes, and budgets that survive a reload."""

from collections.abc import Mapping
from pathlib import Path, PurePath
from typing import Any

import anyio
import pytest

from onetool.core.agents import Agents
from onetool.core.python_backend import as_tool
from onetool.core.tool import tool
from onetool.errors import BudgetExceeded, ToolError
from onetool.settings.clients.catalog import CLIENTS
from onetool.settings.load import Loaded
from onetool.settings.model import Settings
from onetool.settings.paths import Directories
from onetool.settings.programs import ASSISTANT_NAMES, LAUNCHER_FILES
from onetool.sources.files.rules import Denial, Rules
from onetool.util.context import Permission, ToolContext
from onetool.util.problem import UNTRUSTED, Problem

HOME = Path("/home/ada")
WORK = Path("/srv/shop")
DIRECTORIES = Directories(WORK, HOME / ".onetool", WORK / ".onetool", trusted=True)


def make_agents(
    settings: Mapping[str, Any],
    directories: Directories = DIRECTORIES,
    projects: Mapping[str, str] | None = None,
) -> Agents:
    made = Agents(lambda _agent, _text: None)
    configure(made, settings, directories, projects)
    return made


def configure(
    made: Agents,
    settings: Mapping[str, Any],
    directories: Directories = DIRECTORIES,
    projects: Mapping[str, str] | None = None,
) -> None:
    made.configure(
        Loaded(Settings.model_validate(settings), {}, (), (), directories), projects or {}
    )


def get_sandbox(
    sandbox: Mapping[str, Any], directories: Directories = DIRECTORIES, **more: Any
) -> Mapping[str, Any]:
    found: Mapping[str, Any] = make_agents(
        {"agents": {"ci": {"sandbox": sandbox}}, **more}, directories
    ).context_fields("ci")["sandbox"]
    return found


async def spend(made: Agents, name: str = "ci") -> None:
    async def nothing() -> None:
        return None

    await made.context_fields(name)["budget_guard"].spend(nothing)


# --- agent selection ------------------------------------------------------------------------------


def test_a_client_gets_the_agent_that_lists_it() -> None:
    made = make_agents(
        {"agents": {"ci": {"clients": ["bot", "other bot"]}, "desk": {"clients": ["Claude"]}}}
    )
    found = [
        made.for_client(name) for name in ("bot", "other bot", "Claude", "claude", "bo", "", None)
    ]
    assert found == ["ci", "ci", "desk", "default", "default", "default", "default"]


def test_an_unknown_agent_in_an_untrusted_project_suggests_trust() -> None:
    made = Agents(lambda _agent, _text: None)
    hint = "run `onetool trust` in /srv/shop"
    ignored = Problem("/srv/shop/.onetool is not trusted and is ignored", hint, code=UNTRUSTED)
    made.configure(Loaded(Settings(), {}, (ignored,), (), DIRECTORIES), {})
    with pytest.raises(
        ToolError, match=r"unknown agent 'ci': expected default\. .*\nHint: .*onetool trust"
    ):
        made.context_fields("ci")


def test_the_context_has_the_settings_of_the_agent() -> None:
    config = {"fs.read": {"max_size": 5, "deep": {"list": [1]}}}
    agent = {"permissions": ["read", "exec"], "tools": ["fs", "grep"], "tool_config": config}
    context = ToolContext(**make_agents({"agents": {"ci": agent}}).context_fields("ci"))
    assert (context.agent_id, context.tools) == ("ci", ("fs", "grep"))
    assert context.permissions == {Permission.READ, Permission.EXEC}
    assert context.agent_config["fs.read"] == {"max_size": 5, "deep": {"list": (1,)}}
    assert context.budget_guard is None


# --- sandboxes ------------------------------------------------------------------------------------


def test_the_default_sandbox_is_the_working_directory() -> None:
    found = make_agents({}).context_fields("default")["sandbox"]
    assert (found["enabled"], found["allowed_paths"], found["denied_patterns"]) == (
        True,
        ("/srv/shop",),
        (),
    )


def test_settings_are_hidden_even_without_a_sandbox() -> None:
    found = get_sandbox({"enabled": False})
    assert not found["enabled"]
    assert (found["hidden_names"], "/home/ada/.onetool" in found["hidden_paths"]) == (
        (".onetool",),
        True,
    )


def test_paths_are_relative_to_the_working_directory_or_home() -> None:
    found = get_sandbox({"allowed_paths": ["src", "~/notes", "/srv"], "denied_patterns": [".env*"]})
    assert found["allowed_paths"] == ("/srv/shop/src", "/home/ada/notes", "/srv")
    assert found["denied_patterns"] == (".env*",)


def test_projects_are_readable() -> None:
    made = make_agents({"agents": {"ci": {}}}, projects={"shop": "/projects/shop"})
    assert made.context_fields("ci")["sandbox"]["readable_paths"] == ("/projects/shop",)


def test_onetool_files_are_hidden_and_settings_are_protected() -> None:
    for directories in (
        DIRECTORIES,
        Directories(WORK, HOME / ".onetool"),
    ):  # trusted, and untrusted or missing
        found = get_sandbox({}, directories)
        rules = Rules.from_context(
            ToolContext(sandbox={**found, "allowed_paths": ["/"]}, working_dir=WORK)
        )
        for path in (
            "/home/ada/.onetool",
            "/srv/shop/.onetool/onetool.yaml",
            "/srv/shop/sub/.OneTool/secrets.yaml",
        ):
            assert rules.find_denial(path, writing=False) is Denial.HIDDEN
            assert rules.find_denial(path, writing=True) is Denial.HIDDEN


@pytest.mark.parametrize(
    "name", [*LAUNCHER_FILES, ".mcp.json", ".vscode/tasks.json", ".cursor/mcp.json", ".claude"]
)
def test_files_that_start_programs_are_read_and_not_written(name: str) -> None:
    rules = Rules.from_context(ToolContext(sandbox=get_sandbox({}), working_dir=WORK))
    assert rules.find_denial(f"/srv/shop/{name}", writing=False) is None
    assert rules.find_denial(f"/srv/shop/{name}", writing=True) is Denial.PROTECTED
    assert rules.find_denial("/srv/shop/conftest.py", writing=True) is None


def test_files_of_assistants_are_protected_in_every_directory_below_the_working_directory() -> None:
    files = (PurePath(client.project_file) for client in CLIENTS.values() if client.project_file)
    assert {file.parts[0] for file in files} <= set(ASSISTANT_NAMES)
    work = Path("/home/ada/.claude/worktrees/shop")
    sandbox = {**get_sandbox({}), "allowed_paths": [str(work)], "protected_paths": []}
    rules = Rules.from_context(ToolContext(sandbox=sandbox, working_dir=work))
    assert rules.find_denial(f"{work}/deep/.VSCode/tasks.json", writing=True) is Denial.PROTECTED
    assert rules.find_denial(f"{work}/deep/tasks.json", writing=True) is None


def test_the_audit_log_is_hidden_at_any_path() -> None:
    assert "/srv/audit.jsonl" in get_sandbox({}, audit={"file": "/srv/audit.jsonl"})["hidden_paths"]
    assert "/srv/shop/.onetool/logs/audit.jsonl" in get_sandbox({})["hidden_paths"]


def test_a_settings_file_in_the_working_directory_does_not_protect_it() -> None:
    directories = Directories(WORK, HOME / ".onetool", WORK, WORK / "tools.yaml", trusted=True)
    found = get_sandbox({}, directories)
    assert "/srv/shop" not in found["protected_paths"]
    own = ("prompts.yaml", "agents", "tools", "bundles", "environments")
    assert {f"/srv/shop/{name}" for name in own} <= set(found["protected_paths"])
    assert {f"/srv/shop/{name}" for name in ("tools.yaml", "secrets.yaml", "logs")} <= set(
        found["hidden_paths"]
    )


# --- budgets --------------------------------------------------------------------------------------


def test_each_agent_has_its_own_budget() -> None:
    made = make_agents(
        {"agents": {"ci": {"budgets": {"calls": 1}}, "desk": {"budgets": {"calls": 1}}}}
    )
    anyio.run(spend, made, "ci")
    anyio.run(spend, made, "desk")
    with pytest.raises(BudgetExceeded):
        anyio.run(spend, made, "ci")


def test_a_reload_keeps_the_spent_budget() -> None:
    made = make_agents({"agents": {"ci": {"budgets": {"calls": 1}}}})
    anyio.run(spend, made)
    configure(made, {"agents": {"ci": {"budgets": {"calls": 1}}}})
    with pytest.raises(BudgetExceeded):
        anyio.run(spend, made)
    configure(made, {"agents": {"ci": {"budgets": {"calls": 2}}}})
    anyio.run(spend, made)
    with pytest.raises(BudgetExceeded):
        anyio.run(spend, made)


def test_an_agent_that_is_removed_and_added_keeps_its_spent_budget() -> None:
    made = make_agents({"agents": {"ci": {"budgets": {"calls": 1}}}})
    anyio.run(spend, made)
    configure(made, {})
    configure(made, {"agents": {"ci": {"budgets": {"calls": 1}}}})
    with pytest.raises(BudgetExceeded):
        anyio.run(spend, made)


def test_a_removed_budget_is_not_enforced() -> None:
    made = make_agents({"agents": {"ci": {"budgets": {"calls": 0}}}})
    with pytest.raises(BudgetExceeded):
        anyio.run(spend, made)
    configure(made, {"agents": {"ci": {}}})
    anyio.run(spend, made)


def test_the_cost_of_a_call_is_set_by_its_pack() -> None:
    made = make_agents({"tools": {"paid": {"cost_per_call": 0.25}}})
    paid, free = (as_tool(tool(name)(lambda: None)) for name in ("paid.one", "free.one"))
    assert (made.get_cost(paid), made.get_cost(free)) == (0.25, 0)
