"""The tools of a bus in the formats of OpenAI and Anthropic, and the execution of calls that their
models make.

No package of a provider is imported: definitions and results are plain data, and calls may be
objects or data.
"""

import json
from collections.abc import Mapping
from typing import Any, Literal

from onetool.core.bus.bus import ToolBus
from onetool.integrations.model_tools import ModelResult, call_tool, list_tools
from onetool.util.context import ToolContext
from onetool_child.json_types import JsonObject


def to_openai_tools(
    bus: ToolBus, context: ToolContext | None = None, *, api: Literal["chat", "responses"] = "chat"
) -> list[JsonObject]:
    """Return the tools of the bus for `tools=` of OpenAI: of chat completions, or of the Responses
    API.

    With a context, return only the tools that calls with it may use.
    """
    functions = [
        {"name": each.name, "description": each.description, "parameters": each.schema}
        for each in list_tools(bus, context)
    ]
    if api == "chat":
        return [{"type": "function", "function": function} for function in functions]
    return [{"type": "function", **function, "strict": False} for function in functions]


async def call_openai_tool(
    bus: ToolBus, call: object, context: ToolContext | None = None
) -> JsonObject:
    """Execute a tool call of an OpenAI model.

    Return the message, or the input item, that answers it.

    An error is part of the message, because the model reads it.
    """
    function = _get(call, "function")
    result = await _call_with_json(bus, call if function is None else function, context)
    if function is None:
        return {
            "type": "function_call_output",
            "call_id": _get(call, "call_id"),
            "output": result.text,
        }
    return {"role": "tool", "tool_call_id": _get(call, "id"), "content": result.text}


def to_anthropic_tools(bus: ToolBus, context: ToolContext | None = None) -> list[JsonObject]:
    """Return the tools of the bus for `tools=` of Anthropic's Messages API.

    With a context, return only the tools that calls with it may use.
    """
    return [
        {"name": each.name, "description": each.description, "input_schema": each.schema}
        for each in list_tools(bus, context)
    ]


async def call_anthropic_tool(
    bus: ToolBus, call: object, context: ToolContext | None = None
) -> JsonObject:
    """Execute a `tool_use` block of an Anthropic model.

    Return the `tool_result` block that answers it.
    """
    result = await _call_with_data(bus, call, _get(call, "input") or {}, context)
    answer = {"type": "tool_result", "tool_use_id": _get(call, "id"), "content": result.text}
    return {**answer, "is_error": True} if result.is_error else answer


async def _call_with_json(bus: ToolBus, call: object, context: ToolContext | None) -> ModelResult:
    try:
        args = json.loads(_get(call, "arguments") or "{}")
    except (ValueError, RecursionError) as error:
        return ModelResult(
            f"ArgumentError: the arguments are not valid JSON: {error}", is_error=True
        )
    return await _call_with_data(bus, call, args, context)


async def _call_with_data(
    bus: ToolBus, call: object, args: object, context: ToolContext | None
) -> ModelResult:
    if not isinstance(args, Mapping):
        return ModelResult("ArgumentError: the arguments must be a JSON object", is_error=True)
    return await call_tool(bus, str(_get(call, "name")), args, context)


def _get(thing: object, name: str) -> Any:
    return thing.get(name) if isinstance(thing, Mapping) else getattr(thing, name, None)
