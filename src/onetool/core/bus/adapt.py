"""Conversion of functions and objects to `Tool`.

An object must have `name`, `permissions` and `call(params, context)`, and may have `param_schema`,
`effects`, `idempotent` and `validate_params(params)`, which raises or returns an error. Each may be
an attribute or a method.

Tools of agent frameworks (LangChain, pydantic-ai, FastMCP and the server of the MCP SDK) are
recognized by their attributes; none of these packages is imported. They run in this process.
"""

import inspect
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import replace
from typing import Any

from onetool.core.policy.hints import read_hints
from onetool.core.python_backend import PythonBackend
from onetool.core.schema import ANY_OBJECT, Schema, get_signature, schema_of_returns
from onetool.core.threads import ToolThreads
from onetool.core.tool import Tool, get_declaration
from onetool.errors import ToolError
from onetool.util.context import Result, ToolContext, permissions as permission_set
from onetool.util.docstring import description, example
from onetool_child.json_types import JsonMapping, JsonObject
from onetool_child.tool_object import check_params, unwrap

Invoke = Callable[[JsonObject], Awaitable[Any]]


def as_tool(thing: object, threads: ToolThreads | None = None) -> Tool:
    if isinstance(thing, Tool):
        return thing
    if inspect.isfunction(thing) or inspect.ismethod(thing):
        return function_tool(thing, threads=threads)
    if isinstance(thing, type):
        return as_tool(_instantiate(thing), threads)
    if (foreign := framework_tool(thing)) is not None:
        return foreign
    missing = [part for part in ("name", "permissions", "call") if not hasattr(thing, part)]
    if missing:
        raise ToolError(
            f"{type(thing).__name__} is not a tool: missing {', '.join(missing)}",
            hint=(
                "register a function, an object with name, permissions and call(params, context), "
                "or a tool of LangChain, pydantic-ai or FastMCP"
            ),
        )
    return object_tool(thing, threads)


def _instantiate(kind: type) -> object:
    try:
        return kind()
    except TypeError as error:
        raise ToolError(
            f"cannot create {kind.__name__} without arguments ({error}); register an instance"
        ) from None


def function_tool(
    function: Callable[..., Any],
    name: str | None = None,
    threads: ToolThreads | None = None,
    **overrides: Any,
) -> Tool:
    """Return the tool for a function, with the options of `@tool` if it has them."""
    declaration = get_declaration(function)
    returns = get_signature(function).return_annotation  # raises now, not at the first call
    docstring = inspect.getdoc(function) or ""
    options = {
        "description": description(docstring),
        "example": example(docstring),
        "docstring": docstring,
        "permissions": declaration.permissions,
        "returns": _format_return_type(function),
        "output": None if returns is Result else schema_of_returns(returns),
        **declaration.options,
        **overrides,
    }
    return Tool(
        name=name or declaration.name or function.__name__,
        backend=PythonBackend(function, threads),
        input=Schema.from_callable(function),
        **options,
    )


def _format_return_type(function: Callable[..., Any]) -> str:
    annotation = inspect.signature(function).return_annotation
    if annotation is inspect.Signature.empty:
        return ""
    text = annotation if isinstance(annotation, str) else inspect.formatannotation(annotation)
    return text.replace("typing.", "")


def object_tool(thing: Any, threads: ToolThreads | None = None) -> Tool:
    schema = _read_part(thing, "param_schema", ANY_OBJECT)
    return Tool(
        name=str(_read_part(thing, "name")),
        backend=_ObjectBackend(thing, threads or ToolThreads()),
        input=_ObjectSchema(schema, getattr(thing, "validate_params", None)),
        description=inspect.getdoc(thing) or "",
        permissions=permission_set(_read_part(thing, "permissions")),
        effects=_read_part(thing, "effects"),
        is_idempotent=bool(_read_part(thing, "idempotent", default=False)),
    )


def _read_part(thing: object, part: str, default: Any = None) -> Any:
    value = getattr(thing, part, default)
    return value() if callable(value) else value


class _ObjectBackend:
    def __init__(self, thing: Any, threads: ToolThreads) -> None:
        self._call = thing.call
        self._threads = threads
        self.module = f"{type(thing).__module__}.{type(thing).__qualname__}"

    async def invoke(self, tool: Tool, args: JsonMapping, context: ToolContext) -> Any:
        if inspect.iscoroutinefunction(self._call):
            return unwrap(await self._call(dict(args), context), tool.name)
        return unwrap(await self._threads.run(self._call, dict(args), context), tool.name)


class _ObjectSchema(Schema):
    """A schema that also calls `validate_params` of the object."""

    def __init__(self, schema: JsonObject, validate: Callable[[JsonObject], object] | None) -> None:
        super().__init__(lambda: schema)
        self._validate = validate

    def check(self, args: JsonObject, *, is_exact: bool = False) -> JsonObject:
        checked = super().check(args, is_exact=is_exact)
        if self._validate is not None:
            check_params(self._validate, checked)
        return checked


# --- agent frameworks -----------------------------------------------------------------------------


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


# --- LangChain and pydantic-ai --------------------------------------------------------------------


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


# --- FastMCP --------------------------------------------------------------------------------------


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
    texts = [
        block.text for block in result.content if isinstance(getattr(block, "text", None), str)
    ]
    if getattr(result, "is_error", False):
        return Result(
            ok=False, error=ToolError("\n".join(texts) or f"{thing.name} failed without a message")
        )
    data = getattr(result, "structured_content", None)
    if data is None:
        return (
            "\n".join(texts)
            if len(texts) == len(result.content)
            else [_to_json(block) for block in result.content]
        )
    is_wrapped = bool((getattr(thing, "output_schema", None) or {}).get("x-fastmcp-wrap-result"))
    return data["result"] if is_wrapped else data


def _to_json(block: Any) -> Any:
    return block.model_dump(mode="json", by_alias=True, exclude_none=True)
