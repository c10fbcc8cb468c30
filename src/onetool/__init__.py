"""OneTool: one MCP server with one tool that can call all others. The public names are imported lazily."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

# Imported eagerly, because it is small.
from onetool._tool import tool

if TYPE_CHECKING:
    from onetool._tool import Result
    from onetool.app import OneTool
    from onetool.bus.bus import ToolBus
    from onetool.context import Context, Permission, ToolContext
    from onetool.errors import Cancelled, CannotAsk, ToolError
    from onetool_child.interface import File

__all__ = [
    "Cancelled",
    "CannotAsk",
    "Context",
    "File",
    "OneTool",
    "Permission",
    "Result",
    "ToolBus",
    "ToolContext",
    "ToolError",
    "tool",
]

_MODULES = {
    "Cancelled": "onetool.errors",
    "CannotAsk": "onetool.errors",
    "Context": "onetool.context",
    "File": "onetool_child.interface",
    "OneTool": "onetool.app",
    "Permission": "onetool.context",
    "Result": "onetool._tool",
    "ToolBus": "onetool.bus.bus",
    "ToolContext": "onetool.context",
    "ToolError": "onetool.errors",
}


def __getattr__(name: str) -> Any:
    if name not in _MODULES:
        raise AttributeError(f"module 'onetool' has no attribute {name!r}")
    return getattr(import_module(_MODULES[name]), name)
