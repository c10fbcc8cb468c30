"""The tools of a bus as LangChain tools. Needs the extra `langchain`."""

from functools import partial
from typing import Any

from langchain_core.tools import BaseTool, StructuredTool, ToolException

from onetool.adapters.model_tools import ModelResult, ModelTool, call_tool, list_tools
from onetool.backends.threads import call_blocking
from onetool.bus.bus import ToolBus
from onetool.context import ToolContext


def to_langchain_tools(bus: ToolBus, context: ToolContext | None = None) -> list[BaseTool]:
    """Return the tools of the bus as LangChain tools; with a context, those that calls with it may use.

    A failed call raises `ToolException`; set `handle_tool_error` of a tool to pass the error to the model.
    """
    return [_convert(each, bus, context) for each in list_tools(bus, context)]


def _convert(each: ModelTool, bus: ToolBus, context: ToolContext | None) -> BaseTool:
    async def call(**args: Any) -> str:
        return _unwrap(await call_tool(bus, each.name, args, context))

    def call_sync(**args: Any) -> str:
        waiting = partial(call_tool, bus, each.name, args, context)
        return _unwrap(call_blocking(waiting, bus.portal, "await tool.ainvoke(...)"))

    return StructuredTool(
        name=each.name,
        description=each.description or each.name,
        args_schema=each.schema,
        coroutine=call,
        func=call_sync,
    )


def _unwrap(result: ModelResult) -> str:
    if result.is_error:
        raise ToolException(result.text)
    return result.text
