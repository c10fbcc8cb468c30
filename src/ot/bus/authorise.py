"""Whether a call may happen. The one place that says no; everything it needs is in the tool and in the context."""

from collections.abc import Mapping
from typing import Any

from ot.context import Permission, ToolContext
from ot.errors import PermissionDenied, ToolError
from ot.tool import Tool


def authorise(tool: Tool, args: Mapping[str, Any], context: ToolContext) -> None:
    _enabled(tool)
    _permitted(tool, args, context)


def _enabled(tool: Tool) -> None:
    if not tool.enabled:
        raise ToolError(f"{tool.name} is disabled", tool=tool.name)


def _permitted(tool: Tool, args: Mapping[str, Any], context: ToolContext) -> None:
    required = tool.permissions.union(*(needed for name, needed in tool.argument_permissions.items() if args.get(name)))
    missing = required - context.permissions
    if not missing:
        return
    granted = in_order(context.permissions)
    raise PermissionDenied(
        f"Tool requires {' and '.join(in_order(missing))} permission but agent only has [{', '.join(granted)}]. "
        f"To allow it, add this to onetool.yaml: {_line(required, context)}",
        required=in_order(required),
        granted=granted,
    )


def _line(required: frozenset[Permission], context: ToolContext) -> str:
    wanted = ", ".join(in_order(required | context.permissions))
    return f"agents: {{{context.agent_id}: {{permissions: [{wanted}]}}}}"


def in_order(permissions: frozenset[Permission]) -> list[str]:
    return [str(permission) for permission in Permission if permission in permissions]
