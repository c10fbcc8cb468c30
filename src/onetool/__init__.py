"""OneTool: every tool there is, behind one. This file is the shop window; nothing heavy is imported by it."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

# Not lazy: it is small.
from onetool._tool import tool

if TYPE_CHECKING:
    from onetool._tool import Result
    from onetool.app import OneTool
    from onetool.bus.bus import ToolBus
    from onetool.context import Permission, ToolContext
    from onetool.errors import ToolError

__all__ = ["OneTool", "Permission", "Result", "ToolBus", "ToolContext", "ToolError", "tool"]

_HOMES = {
    "OneTool": "onetool.app",
    "Permission": "onetool.context",
    "Result": "onetool._tool",
    "ToolBus": "onetool.bus.bus",
    "ToolContext": "onetool.context",
    "ToolError": "onetool.errors",
}


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'onetool' has no attribute {name!r}")
    return getattr(import_module(_HOMES[name]), name)
