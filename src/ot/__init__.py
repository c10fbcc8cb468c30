"""OneTool: every tool there is, behind one. This file is the shop window; nothing heavy is imported by looking at it."""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from ot.app import OneTool
    from ot.bus.bus import ToolBus
    from ot.context import Permission, ToolContext
    from ot.errors import ToolError
    from ot.tool import Result, tool

__all__ = ["OneTool", "Permission", "Result", "ToolBus", "ToolContext", "ToolError", "tool"]

_HOMES = {
    "OneTool": "ot.app",
    "Permission": "ot.context",
    "Result": "ot.tool",
    "ToolBus": "ot.bus.bus",
    "ToolContext": "ot.context",
    "ToolError": "ot.errors",
}


def tool(*args: Any, **kwargs: Any) -> Any:  # type: ignore[no-redef] - see below
    """Make a function a tool. (It stands here because `ot.tool` is also a module, which would hide a lazy name.)"""
    from ot.tool import tool as declare

    return declare(*args, **kwargs)


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'ot' has no attribute {name!r}")
    from importlib import import_module

    return getattr(import_module(_HOMES[name]), name)
