"""Authorization of calls by the state of the tool and the permissions, tool list and budget of the
agent.

Paths and hosts are checked when they are opened, in `onetool.sources.files` and `onetool.net`.
"""

from dataclasses import replace

from onetool.core.tool import Tool
from onetool.errors import ArgumentError, PermissionDenied, ToolError
from onetool.util.context import Permission, ToolContext, sort_permissions
from onetool.util.text import describe_unknown_account
from onetool_child.json_types import JsonMapping


def authorize(tool: Tool, args: JsonMapping, context: ToolContext) -> None:
    """Raise an error if the agent may not make this call."""
    if not tool.enabled:
        raise ToolError(describe_disabled(tool.name, tool.disabled_reason), tool=tool.name)
    if not context.admits(tool):
        allowed = list(context.tools or ())
        wanted = ", ".join([*allowed, tool.name])
        setting = f"agents: {{{context.agent_id}: {{tools: [{wanted}]}}}}"
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
    """Return the context with the account of the call: the default account of the server if none is
    named.
    """
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
