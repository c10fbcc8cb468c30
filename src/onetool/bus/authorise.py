"""Whether a call may happen. The one place that says no; everything it needs is in the tool and in the context.

What a path or a host is really about shows only when it is opened: `ot.files` and `onetool.net` say no there.
"""

from collections.abc import Mapping
from typing import Any

from onetool._tool import Tool
from onetool.context import Permission, ToolContext
from onetool.errors import PermissionDenied, ToolError


def authorise(tool: Tool, args: Mapping[str, Any], context: ToolContext) -> None:
    if not tool.enabled:
        reason = f": {tool.disabled_reason}" if tool.disabled_reason else ""
        raise ToolError(f"{tool.name} is disabled{reason}", tool=tool.name)
    if not context.admits(tool):
        own = list(context.tools or ())
        wanted = ", ".join([*own, tool.name])
        raise PermissionDenied(
            f"The agent {context.agent_id} may not call {tool.name}: its tools are [{', '.join(own)}]. "
            f"To allow it, add this to onetool.yaml: agents: {{{context.agent_id}: {{tools: [{wanted}]}}}}",
            tool=tool.name,
            tools=own,
        )
    _permitted(tool, args, context)
    if context.budget_guard is not None:
        context.budget_guard.refuse_when_used_up()


def required(tool: Tool, args: Mapping[str, Any]) -> frozenset[Permission]:
    """What a call needs; some arguments need more than the tool alone."""
    if not tool.argument_permissions:
        return tool.permissions
    return tool.permissions.union(*(needed for name, needed in tool.argument_permissions.items() if args.get(name)))


def _permitted(tool: Tool, args: Mapping[str, Any], context: ToolContext) -> None:
    needed = required(tool, args)
    missing = needed - context.permissions
    if not missing:
        return
    granted = in_order(context.permissions)
    raise PermissionDenied(
        f"Tool requires {' and '.join(in_order(missing))} permission but agent only has [{', '.join(granted)}]. "
        f"To allow it, add this to onetool.yaml: {line_to_permit(needed, context)}",
        required=in_order(needed),
        granted=granted,
    )


def line_to_permit(needed: frozenset[Permission], context: ToolContext) -> str:
    wanted = ", ".join(in_order(needed | context.permissions))
    return f"agents: {{{context.agent_id}: {{permissions: [{wanted}]}}}}"


def in_order(permissions: frozenset[Permission]) -> list[str]:
    return [str(permission) for permission in Permission if permission in permissions]
