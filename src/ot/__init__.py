"""OneTool: every tool there is, behind one. This file is the shop window; nothing heavy is imported by it."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

# Not lazy: it is small, and a lazy name would be hidden by the module `ot.tool`, which bears it too.
from ot.tool import tool

if TYPE_CHECKING:
    from ot.app import OneTool
    from ot.bus.bus import ToolBus
    from ot.context import Permission, ToolContext
    from ot.errors import ToolError
    from ot.tool import Result

__all__ = ["OneTool", "Permission", "Result", "ToolBus", "ToolContext", "ToolError", "tool"]

_HOMES = {
    "OneTool": "ot.app",
    "Permission": "ot.context",
    "Result": "ot.tool",
    "ToolBus": "ot.bus.bus",
    "ToolContext": "ot.context",
    "ToolError": "ot.errors",
}


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'ot' has no attribute {name!r}")
    return getattr(import_module(_HOMES[name]), name)
