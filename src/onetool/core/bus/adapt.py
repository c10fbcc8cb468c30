"""Conversion of functions and objects to `Tool`.

An object must have `name`, `permissions` and `call(params, context)`, and may have `param_schema`, `effects`,
`idempotent` and `validate_params(params)`, which raises or returns an error. Each may be an attribute or a method.
"""

import inspect
from collections.abc import Callable
from typing import Any

from onetool.backends.python import PythonBackend
from onetool.backends.threads import ToolThreads
from onetool.core.bus.framework_tools import framework_tool
from onetool.core.context import ToolContext, permissions as permission_set
from onetool.core.schema import ANY_OBJECT, Schema, get_signature, schema_of_returns
from onetool.core.tool import Result, Tool, get_declaration
from onetool.errors import ToolError
from onetool.util.docstring import description, example
from onetool_child.json_types import JsonMapping, JsonObject
from onetool_child.tool_object import check_params, unwrap


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
            hint="register a function, an object with name, permissions and call(params, context), "
            "or a tool of LangChain, pydantic-ai or FastMCP",
        )
    return object_tool(thing, threads)


def _instantiate(kind: type) -> object:
    try:
        return kind()
    except TypeError as error:
        raise ToolError(f"cannot create {kind.__name__} without arguments ({error}); register an instance") from None


def function_tool(
    function: Callable[..., Any], name: str | None = None, threads: ToolThreads | None = None, **overrides: Any
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
