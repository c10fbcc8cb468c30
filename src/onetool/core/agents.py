"""The agents of the settings, and the permissions and limits that they give to calls.

The transport chooses the agent, by client name or token. Budgets are counted from the start of the
server and survive a reload. Paths and hosts are checked when they are opened, in
`onetool.sources.files` and `onetool.net`.
"""

from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from typing import Any

from onetool.core.policy.rules import Policy
from onetool.core.tool import Tool
from onetool.errors import ArgumentError, PermissionDenied, ToolError
from onetool.settings.access import Agent, Budgets, Sandbox
from onetool.settings.load import Loaded
from onetool.settings.model import Settings
from onetool.settings.paths import Directories, resolve_path
from onetool.settings.programs import Protection, compute_protection
from onetool.state.counters import BudgetGuard, Limits
from onetool.util.context import Permission, ToolContext, freeze, sort_permissions
from onetool.util.problem import UNTRUSTED
from onetool.util.text import describe_unknown_account
from onetool_child.json_types import JsonMapping

DEFAULT = "default"
CLIENT_WAYS = frozenset({"client", "app"})  # where the client answers, which could do so by itself


class Agents:
    """The agents of the current settings. `warn` is called when a budget is nearly used up."""

    def __init__(self, warn: Callable[[str, str], None]) -> None:
        self._warn = warn
        self._guards: dict[str, BudgetGuard] = {}
        self._make_guard: Callable[..., BudgetGuard] = BudgetGuard

    def configure(
        self,
        loaded: Loaded,
        projects: Mapping[str, str],
        make_guard: Callable[..., BudgetGuard] = BudgetGuard,
    ) -> None:
        """Apply new settings. What was spent still counts, unless `make_guard` counts it elsewhere."""
        if make_guard != self._make_guard:
            self._guards = {}
        self._make_guard = make_guard
        self._settings = loaded.settings
        self._project_approvals = loaded.project_approvals
        protection = compute_protection(loaded)
        self._ignored = next(
            (problem for problem in loaded.problems if problem.code == UNTRUSTED), None
        )
        self._sandboxes = {
            name: freeze(_sandbox(agent.sandbox, loaded.directories, projects, protection))
            for name, agent in loaded.settings.agents.items()
        }
        self._policies = {
            name: Policy.from_settings(agent) for name, agent in loaded.settings.agents.items()
        }
        for name, guard in self._guards.items():
            if name in loaded.settings.agents:
                guard.set_limits(_limits(loaded.settings.agents[name].budgets))

    def for_client(self, client: str | None) -> str:
        """Return the name of the agent that lists this client."""
        return find_client_agent(self._settings, client)

    def context_fields(self, name: str) -> dict[str, Any]:
        """Return the fields of a call context that depend on the agent."""
        agent = self._find(name)
        return {
            "agent_id": name,
            "agent_config": agent.tool_config,
            "permissions": agent.permissions,
            "tools": agent.tools,
            "hosts": agent.hosts,
            "sandbox": self._sandboxes[name],
            "budget_guard": self._guard(name, agent.budgets),
        }

    def get_policy(self, name: str) -> tuple[Policy, frozenset[str]]:
        """Return the policy of an agent, and where its calls may be approved."""
        ways = frozenset(self._find(name).approvals.via)
        return self._policies[name], (
            ways - CLIENT_WAYS if self._settings.approvals.by == "token" else ways
        )

    def accepts_http_answers(self, name: str) -> bool:
        """Return whether clients over HTTP may approve without a token of scope `approve`."""
        is_chosen = "via" in self._find(name).approvals.model_fields_set
        return is_chosen and name not in self._project_approvals

    def get_cost(self, tool: Tool) -> float:
        pack = self._settings.tools.get(tool.pack)
        return pack.cost_per_call if pack else 0

    def _find(self, name: str) -> Agent:
        agents = self._settings.agents
        if name not in agents:
            ignored = self._ignored
            message = f"unknown agent {name!r}: expected {', '.join(sorted(agents))}"
            raise (
                ToolError(f"{message}. {ignored.message}", hint=ignored.hint)
                if ignored
                else ToolError(message)
            )
        return agents[name]

    def _guard(self, name: str, budgets: Budgets) -> BudgetGuard | None:
        limits = _limits(budgets)
        if name not in self._guards:
            if limits == Limits():
                return None
            self._guards[name] = self._make_guard(
                limits, agent=name, warn=partial(self._warn, name)
            )
        return self._guards[name]


def find_client_agent(settings: Settings, client: str | None) -> str:
    """Return the name of the agent that lists this client, by default the agent `default`."""
    return next(
        (name for name, agent in settings.agents.items() if client in agent.clients), DEFAULT
    )


def _limits(budgets: Budgets) -> Limits:
    return Limits(budgets.time_seconds, budgets.calls, budgets.tokens, budgets.cost)


def _sandbox(
    sandbox: Sandbox, directories: Directories, projects: Mapping[str, str], protection: Protection
) -> JsonMapping:
    """Return the file access rules of a context.

    Files that OneTool loads or stores are always protected.
    """
    return {
        "enabled": sandbox.enabled,
        "allowed_paths": [
            str(resolve_path(path, directories.root, directories.home))
            for path in sandbox.allowed_paths or (str(directories.working_dir),)
        ],
        "denied_patterns": sandbox.denied_patterns,
        "readable_paths": list(projects.values()),
        "hidden_names": protection.names,
        "hidden_paths": protection.hidden,
        "protected_paths": protection.protected,
        "protected_names": protection.protected_names,
        "pack_directories": protection.pack_directories,
    }


# --- authorization --------------------------------------------------------------------------------


def authorize(tool: Tool, args: JsonMapping, context: ToolContext) -> None:
    """Raise an error if the agent may not make this call."""
    if not tool.enabled:
        raise ToolError(describe_disabled(tool.name, tool.disabled_reason), tool=tool.name)
    if not context.admits(tool):
        allowed = list(context.tools or ())
        extended_list = ", ".join([*allowed, tool.name])
        setting = f"agents: {{{context.agent_id}: {{tools: [{extended_list}]}}}}"
        raise PermissionDenied(
            f"agent {context.agent_id} may not call {tool.name}: its tools are"
            f" [{', '.join(allowed)}]. {context.explain_setting(setting, 'tools')}",
            tool=tool.name,
            tools=allowed,
        )
    _check_permissions(tool, args, context)
    if context.budget_guard is not None:
        context.budget_guard.check_remaining()


def choose_account(tool: Tool, context: ToolContext) -> ToolContext:
    """Return the context with the call's account, by default the first of the server."""
    accounts: tuple[str, ...] = getattr(tool.backend, "accounts", ())
    if context.account in accounts or not (context.account or accounts):
        return context
    if context.account:
        raise ArgumentError(
            describe_unknown_account(tool.pack, context.account, accounts),
            hint=f"a person can add it to accounts of {tool.pack} in onetool.yaml",
        )
    return replace(context, account=accounts[0])


def describe_disabled(name: str, reason: str | None) -> str:
    """Return the message for a call of a disabled tool. Without a reason, a user disabled it."""
    return f"{name} is disabled: {reason}" if reason else f"{name} is disabled"


def required_permissions(tool: Tool, args: JsonMapping) -> frozenset[Permission]:
    """Return the permissions that a call needs; some arguments need more than the tool itself."""
    if not tool.argument_permissions:
        return tool.permissions
    return tool.permissions.union(
        *(needed for name, needed in tool.argument_permissions.items() if args.get(name))
    )


def _check_permissions(tool: Tool, args: JsonMapping, context: ToolContext) -> None:
    needed = required_permissions(tool, args)
    missing = needed - context.permissions
    if not missing:
        return
    lacking = " and ".join(sort_permissions(missing))
    raise context.permission_error(needed, f"Tool requires {lacking} permission")
