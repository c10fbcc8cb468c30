"""Tools of agent frameworks as tools of the bus: LangChain, pydantic-ai and FastMCP (also the SDK's server).

They are recognized by their attributes; none of these packages is imported. They run in this process.
"""

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import replace
from typing import Any

from onetool.core.context import ToolContext
from onetool.core.policy.hints import read_hints
from onetool.core.schema import Schema
from onetool.core.tool import Result, Tool
from onetool.errors import ToolError
from onetool_child.json_types import JsonMapping, JsonObject

Invoke = Callable[[JsonObject], Awaitable[Any]]


def framework_tool(thing: Any) -> Tool | None:
    """Return the tool of a framework as a tool of the bus; None if it is something else."""
    if hasattr(thing, "tool_call_schema") and hasattr(thing, "ainvoke"):
        return _make_tool(thing, _read_model_schema(thing.tool_call_schema), thing.ainvoke)
    if hasattr(thing, "function_schema") and hasattr(thing, "takes_ctx"):
        return _from_pydantic_ai(thing)
    if isinstance(getattr(thing, "parameters", None), dict) and hasattr(thing, "run"):
        return _from_mcp(thing)
    return None


def _make_tool(thing: Any, schema: JsonObject, invoke: Invoke) -> Tool:
    return Tool(
        name=str(thing.name),
        backend=_FrameworkBackend(invoke),
        input=Schema.from_json(schema),
        description=str(thing.description or ""),
        source=f"package:{type(thing).__module__.partition('.')[0]}",
    )


class _FrameworkBackend:
    def __init__(self, invoke: Invoke) -> None:
        self._invoke = invoke

    async def invoke(self, _tool: Tool, args: JsonMapping, _context: ToolContext) -> Any:
        return await self._invoke(dict(args))


def _context_error(thing: Any, what: str, where: str) -> ToolError:
    message = f"cannot register {thing.name}: it takes {what}, which exists only in {where}"
    return ToolError(message, hint="register a function without that parameter")


# --- LangChain and pydantic-ai -------------------------------------------------------------------------------------


def _read_model_schema(schema: Any) -> JsonObject:
    """Return the schema of a LangChain tool, which is JSON or a pydantic model."""
    found: JsonObject = dict(schema) if isinstance(schema, Mapping) else schema.model_json_schema()
    return found


def _from_pydantic_ai(thing: Any) -> Tool:
    if thing.takes_ctx:
        raise _context_error(thing, "a RunContext", "a run of pydantic-ai")
    schema = thing.function_schema

    async def invoke(args: JsonObject) -> Any:
        return await schema.call(schema.validator.validate_python(args), None)

    return _make_tool(thing, schema.json_schema, invoke)


# --- FastMCP -------------------------------------------------------------------------------------------------------


def _from_mcp(thing: Any) -> Tool:
    is_of_sdk = hasattr(thing, "context_kwarg")  # its `run` takes a context
    if is_of_sdk and thing.context_kwarg is not None:
        raise _context_error(thing, "a Context", "a request to its server")

    async def invoke(args: JsonObject) -> Any:
        return _read_mcp_result(thing, await thing.run(args, *([None] if is_of_sdk else [])))

    tool = _make_tool(thing, thing.parameters, invoke)
    annotations = getattr(thing, "annotations", None)
    hints = read_hints(None if annotations is None else _to_json(annotations))
    return replace(tool, effects=hints.effects, is_idempotent=hints.is_idempotent)


def _read_mcp_result(thing: Any, result: Any) -> Any:
    if not hasattr(result, "content"):  # the value itself
        return result
    texts = [block.text for block in result.content if isinstance(getattr(block, "text", None), str)]
    if getattr(result, "is_error", False):
        return Result(ok=False, error=ToolError("\n".join(texts) or f"{thing.name} failed without a message"))
    data = getattr(result, "structured_content", None)
    if data is None:
        return "\n".join(texts) if len(texts) == len(result.content) else [_to_json(block) for block in result.content]
    is_wrapped = bool((getattr(thing, "output_schema", None) or {}).get("x-fastmcp-wrap-result"))
    return data["result"] if is_wrapped else data


def _to_json(block: Any) -> Any:
    return block.model_dump(mode="json", by_alias=True, exclude_none=True)
