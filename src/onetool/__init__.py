"""OneTool: one MCP server with one tool that can call all others.

The public names are imported lazily.
"""

TYPE_CHECKING = (
    False  # as in `typing`, which takes longer to import than the client of the daemon to start
)
if TYPE_CHECKING:
    from typing import Any

    from onetool.app import OneTool
    from onetool.core.bus.bus import ToolBus
    from onetool.core.tool import tool
    from onetool.errors import Cancelled, CannotAsk, ToolError
    from onetool.integrations.providers import (
        call_anthropic_tool,
        call_openai_tool,
        to_anthropic_tools,
        to_openai_tools,
    )
    from onetool.runs.answer import Answer
    from onetool.server.http.mounted_app import asgi
    from onetool.settings.model import Settings
    from onetool.util.context import CallClient, Context, Permission, Result, ToolContext
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

# Where each public name is defined. No module of this package has the name of one of them, because
# importing such a module would replace the name.
_MODULES = {
    "Answer": "onetool.runs.answer",
    "CallClient": "onetool.util.context",
    "Cancelled": "onetool.errors",
    "CannotAsk": "onetool.errors",
    "Context": "onetool.util.context",
    "File": "onetool_child.interface",
    "OneTool": "onetool.app",
    "Permission": "onetool.util.context",
    "Result": "onetool.util.context",
    "Settings": "onetool.settings.model",
    "ToolBus": "onetool.core.bus.bus",
    "ToolContext": "onetool.util.context",
    "ToolError": "onetool.errors",
    "asgi": "onetool.server.http.mounted_app",
    "call_anthropic_tool": "onetool.integrations.providers",
    "call_openai_tool": "onetool.integrations.providers",
    "to_anthropic_tools": "onetool.integrations.providers",
    "to_openai_tools": "onetool.integrations.providers",
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
