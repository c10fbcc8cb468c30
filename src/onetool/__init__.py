"""OneTool: one MCP server with one tool that can call all others. The public names are imported lazily."""

TYPE_CHECKING = False  # as in `typing`, which takes longer to import than the client of the daemon to start
if TYPE_CHECKING:
    from typing import Any

    from onetool.adapters.providers import (
        call_anthropic_tool,
        call_openai_tool,
        to_anthropic_tools,
        to_openai_tools,
    )
    from onetool.app import OneTool
    from onetool.config.model import Settings
    from onetool.core.bus.bus import ToolBus
    from onetool.core.context import CallClient, Context, Permission, Result, ToolContext
    from onetool.core.tool import tool
    from onetool.errors import Cancelled, CannotAsk, ToolError
    from onetool.runner.answer import Answer
    from onetool.transports.http.mounted_app import asgi
    from onetool_child.interface import File

__all__ = [
    "Answer",
    "CallClient",
    "Cancelled",
    "CannotAsk",
    "Context",
    "File",
    "OneTool",
    "Permission",
    "Result",
    "Settings",
    "ToolBus",
    "ToolContext",
    "ToolError",
    "asgi",
    "call_anthropic_tool",
    "call_openai_tool",
    "to_anthropic_tools",
    "to_openai_tools",
    "tool",
]

# Where each public name is defined. No module of this package has the name of one of them, because importing such a
# module would replace the name.
_MODULES = {
    "Answer": "onetool.runner.answer",
    "CallClient": "onetool.core.context",
    "Cancelled": "onetool.errors",
    "CannotAsk": "onetool.errors",
    "Context": "onetool.core.context",
    "File": "onetool_child.interface",
    "OneTool": "onetool.app",
    "Permission": "onetool.core.context",
    "Result": "onetool.core.context",
    "Settings": "onetool.config.model",
    "ToolBus": "onetool.core.bus.bus",
    "ToolContext": "onetool.core.context",
    "ToolError": "onetool.errors",
    "asgi": "onetool.transports.http.mounted_app",
    "call_anthropic_tool": "onetool.adapters.providers",
    "call_openai_tool": "onetool.adapters.providers",
    "to_anthropic_tools": "onetool.adapters.providers",
    "to_openai_tools": "onetool.adapters.providers",
    "tool": "onetool.core.tool",
}


def __getattr__(name: str) -> "Any":
    from importlib import import_module

    if name not in _MODULES:
        raise AttributeError(f"module 'onetool' has no attribute {name!r}")
    value = globals()[name] = getattr(import_module(_MODULES[name]), name)
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
