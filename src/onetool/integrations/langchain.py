"""The tools of a bus as LangChain tools. Needs the extra `langchain`."""

from functools import partial
from typing import Any

from langchain_core.tools import BaseTool, ToolException
from pydantic import PrivateAttr

from onetool.core.bus.bus import ToolBus
from onetool.core.threads import call_blocking
from onetool.integrations.providers import ModelResult, ModelTool, call_tool, list_tools
from onetool.util.context import ToolContext


def to_langchain_tools(bus: ToolBus, context: ToolContext | None = None) -> list[BaseTool]:
    """Return the tools of the bus as LangChain tools; with a context, those that calls with it may
    use.

    A failed call raises `ToolException`; set `handle_tool_error` of a tool to pass the error to the
    model.
    """
    return [_BusTool(definition, bus, context) for definition in list_tools(bus, context)]


class _BusTool(BaseTool):
    """A tool of a bus.

    Unlike with `StructuredTool`, arguments may be named `config`, `run_manager` or `self`.
    """

    _bus: ToolBus = PrivateAttr()
    _context: ToolContext | None = PrivateAttr()

    def __init__(self, tool: ModelTool, bus: ToolBus, context: ToolContext | None) -> None:
        super().__init__(
            name=tool.name, description=tool.description or tool.name, args_schema=tool.schema
        )
        self._bus = bus
        self._context = context

    def _run(self, /, **args: Any) -> str:
        call = partial(call_tool, self._bus, self.name, args, self._context)
        return _unwrap(call_blocking(call, self._bus.portal, "await tool.ainvoke(...)"))

    async def _arun(self, /, **args: Any) -> str:
        return _unwrap(await call_tool(self._bus, self.name, args, self._context))


def _unwrap(result: ModelResult) -> str:
    if result.is_error:
        raise ToolException(result.text)
    return result.text
