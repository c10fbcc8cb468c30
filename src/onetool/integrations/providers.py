"""The tools of a bus in the formats of OpenAI and Anthropic, and the execution of calls that their
models make.

No package of a provider is imported: definitions and results are plain data, and calls may be
objects or data.
"""

import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import replace
from hashlib import sha256
from typing import Any, Literal, NamedTuple

from anyio.to_thread import run_sync as run_in_thread

from onetool.core.bus.bus import ToolBus
from onetool.core.tool import Tool
from onetool.errors import ToolError
from onetool.util.context import Foreign, ToolContext
from onetool.util.render import render
from onetool.util.sanitize import sanitize_text
from onetool_child.data import NotData, as_data
from onetool_child.errors import get_message
from onetool_child.json_types import JsonMapping, JsonObject

MAX_NAME_CHARS = 64
DIGEST_CHARS = 16
DIGEST_MARK = "---"  # never part of another name
READABLE = re.compile(r"\w+(?:[.-]\w+)*", re.ASCII)
INVALID_CHARACTERS = re.compile(r"[^A-Za-z0-9_]+")
# Keywords that providers reject at the top level of a schema. The bus checks the arguments against
# the whole schema.
REJECTED_KEYWORDS = frozenset({"allOf", "anyOf", "enum", "not", "oneOf"})


class ModelTool(NamedTuple):
    """The definition of a tool for a model."""

    name: str
    description: str
    schema: JsonObject
    tool: Tool


class ModelResult(NamedTuple):
    text: str
    is_error: bool


def list_tools(bus: ToolBus, context: ToolContext | None = None) -> list[ModelTool]:
    """Return the enabled tools, or those that calls with the context may use.

    Stored tools are read from disk.
    """
    return [_describe(tool) for tool in _find_tools(bus, context)]


def _find_tools(bus: ToolBus, context: ToolContext | None) -> Iterator[Tool]:
    for entry in bus.registry.entries():
        if entry.enabled and (context is None or context.admits(entry)):
            tool = bus.registry.find(entry.name)
            if context is None or tool.permissions <= context.permissions:
                yield tool


def _describe(tool: Tool) -> ModelTool:
    schema = {key: part for key, part in tool.input.json.items() if key not in REJECTED_KEYWORDS}
    schema = {**schema, "type": "object", "properties": schema.get("properties", {})}
    return ModelTool(encode_name(tool.name), tool.description, schema, tool)


def encode_name(name: str) -> str:
    """Return the name of a tool for models, the same for all providers."""
    encoded = name.replace("-", "--").replace(".", "-")
    if READABLE.fullmatch(name) and len(encoded) <= MAX_NAME_CHARS:
        return encoded
    start = INVALID_CHARACTERS.sub("_", name)[: MAX_NAME_CHARS - len(DIGEST_MARK) - DIGEST_CHARS]
    return f"{start}{DIGEST_MARK}{sha256(name.encode()).hexdigest()[:DIGEST_CHARS]}"


def decode_name(encoded: str, bus: ToolBus) -> str:
    """Return the name of the tool that a model calls. A name that ends with a digest is looked up."""
    if DIGEST_MARK in encoded:
        names = (
            entry.name for entry in bus.registry.entries() if encode_name(entry.name) == encoded
        )
        return next(names, encoded)
    return "-".join(part.replace("-", ".") for part in encoded.split("--"))


async def call_tool(
    bus: ToolBus, encoded: str, args: JsonMapping, context: ToolContext | None = None
) -> ModelResult:
    """Call a tool by its name for models. Return its value or its error as text, without secrets."""
    is_untrusted = False

    def record(foreign: Foreign) -> None:
        nonlocal is_untrusted
        is_untrusted |= foreign.is_untrusted
        run.record_foreign(foreign)

    context = context or ToolContext()
    run = context.run
    name = await run_in_thread(decode_name, encoded, bus)
    result = await bus.call_tool(
        name, args, replace(context, run=run._replace(record_foreign=record))
    )
    try:
        text = render(as_data(result.unwrap()))
    except NotData as error:
        text = f"cannot serialize the value of {name}: {error}"
        is_error = True
    except Exception as error:  # noqa: BLE001 - a tool may raise anything; the model reads what
        hint = f"\nHint: {error.hint}" if isinstance(error, ToolError) and error.hint else ""
        text = f"{type(error).__name__}: {get_message(error)}{hint}"
        is_error = True
    else:
        is_error = False
    text = bus.events.redact(text)
    return ModelResult(sanitize_text(text, name) if is_untrusted else text, is_error)


# --- OpenAI and Anthropic ---------------------------------------------------------------------


def to_openai_tools(
    bus: ToolBus, context: ToolContext | None = None, *, api: Literal["chat", "responses"] = "chat"
) -> list[JsonObject]:
    """Return the tools of the bus for `tools=` of OpenAI: of chat completions, or of the Responses
    API.

    With a context, return only the tools that calls with it may use.
    """
    functions = [
        {
            "name": definition.name,
            "description": definition.description,
            "parameters": definition.schema,
        }
        for definition in list_tools(bus, context)
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
        {
            "name": definition.name,
            "description": definition.description,
            "input_schema": definition.schema,
        }
        for definition in list_tools(bus, context)
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
