"""The backend of functions in this process, and the tools that are made of functions and objects.

Coroutines run on the event loop, other functions in threads. Arguments arrive as JSON data that
fits the schema. They are converted here for parameters with richer annotations, such as a date, a
path or a model.
"""

import inspect
import os
from collections.abc import Awaitable, Callable, Iterator, Mapping
from dataclasses import replace
from functools import cached_property
from types import GenericAlias
from typing import Any

from onetool.core.functions import description, example, get_signature
from onetool.core.policy.effects import read_hints
from onetool.core.schema import ANY_OBJECT, PLAIN_TYPES, Schema, schema_of_returns
from onetool.core.threads import ToolThreads
from onetool.core.tool import Tool, get_declaration
from onetool.errors import ToolError
from onetool.util.context import Result, ToolContext, permissions as permission_set
from onetool.util.version import __version__
from onetool_child.arguments import get_converter
from onetool_child.errors import report_error
from onetool_child.interface import ItemReporter, check_params, unwrap
from onetool_child.json_types import JsonMapping, JsonObject
from onetool_child.media import MAX_MEDIA, describe_media, find_media

MAX_MEDIA_BYTES = 100 << 20
OWN_DIRECTORY = os.path.dirname(os.path.dirname(__file__))  # noqa: PTH120 - a prefix of file names
Invoke = Callable[[JsonObject], Awaitable[Any]]


class PythonBackend:
    """The backend of one function. A function that is not a coroutine runs in one of `threads`."""

    def __init__(self, function: Callable[..., Any], threads: ToolThreads | None = None) -> None:
        self.function = function
        self._threads = threads or ToolThreads()
        self._is_async = inspect.iscoroutinefunction(function)
        self.module = getattr(function, "__module__", None)

    def identify(self, _tool: Tool) -> Any:
        """Return the version of OneTool, and the code of the function."""
        function = inspect.unwrap(self.function)
        code = getattr(function, "__code__", None)
        name = f"{getattr(function, '__module__', '')}.{getattr(function, '__qualname__', '')}"
        return [__version__, name, *([] if code is None else [code.co_code.hex(), code.co_names])]

    async def invoke(self, tool: Tool, args: JsonMapping, context: ToolContext) -> Any:
        converters = self._converters
        rest = self._rest_converter
        converted = {name: make(args[name]) for name, make in converters.items() if name in args}
        if rest is not None:
            converted |= {
                name: rest(value) for name, value in args.items() if name not in self._names
            }
        if self._context_names:
            converted |= dict.fromkeys(self._context_names, _add_settings(context, tool.pack))
        arguments = {**args, **converted}
        positional: tuple[Any, ...] = ()
        if self._has_positional:
            positional, arguments = self._split_positional(arguments)
        try:
            value = await self._run(positional, arguments, context)
        except Exception as error:
            await self._add_trace(error)
            raise
        if context.run.store_media is None or not _may_be_media(value):
            return value
        return await self._threads.run(_store_media, value, context.run.store_media)

    async def _run(
        self, positional: tuple[Any, ...], arguments: dict[str, Any], context: ToolContext
    ) -> Any:
        if self._is_async:
            value = await self.function(*positional, **arguments)
        else:
            value = await self._threads.run(self.function, *positional, **arguments)
            value = await value if inspect.isawaitable(value) else value
        if inspect.isasyncgen(value):
            return [item async for item in ItemReporter(context).iterate_async(value)]
        if isinstance(value, Iterator):
            return await self._threads.run(list, ItemReporter(context).iterate(value))
        return value

    async def _add_trace(self, error: Exception) -> None:
        """Add the lines of the author's files to an unexpected error, for the answer."""
        code = getattr(inspect.unwrap(self.function), "__code__", None)
        directory = os.path.dirname(code.co_filename) if code is not None else ""  # noqa: PTH120 - a prefix, as below
        if (
            directory
            and not directory.startswith(OWN_DIRECTORY)
            and not isinstance(error, ToolError)
        ):
            trace = await self._threads.run(report_error, error, directory)  # it reads the files
            if trace and hasattr(error, "__dict__"):
                error.__dict__["trace"] = trace

    @cached_property
    def _parameters(self) -> list[inspect.Parameter]:
        return list(inspect.signature(self.function).parameters.values())

    @cached_property
    def _names(self) -> frozenset[str]:
        return frozenset(
            parameter.name
            for parameter in self._parameters
            if parameter.kind is not parameter.VAR_KEYWORD
        )

    @cached_property
    def _has_positional(self) -> bool:
        """Whether some arguments can only be passed by position."""
        return any(
            parameter.kind in {parameter.POSITIONAL_ONLY, parameter.VAR_POSITIONAL}
            for parameter in self._parameters
        )

    def _split_positional(
        self, arguments: dict[str, Any]
    ) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """Return the positional and the named arguments; omitted ones get their defaults."""
        positional: list[Any] = []
        for parameter in self._parameters:
            if parameter.kind is parameter.VAR_POSITIONAL:
                positional += arguments.pop(parameter.name, ())
            elif parameter.kind in {parameter.POSITIONAL_ONLY, parameter.POSITIONAL_OR_KEYWORD}:
                positional.append(arguments.pop(parameter.name, parameter.default))
        return tuple(positional), arguments

    @cached_property
    def _context_names(self) -> list[str]:
        visible = get_signature(self.function).parameters
        return [parameter.name for parameter in self._parameters if parameter.name not in visible]

    @cached_property
    def _converters(self) -> dict[str, Callable[[Any], Any]]:
        parameters = get_signature(self.function).parameters.values()
        kinds = {
            parameter.name: _get_type(parameter)
            for parameter in parameters
            if parameter.kind is not parameter.VAR_KEYWORD
        }
        return {
            name: make
            for name, kind in kinds.items()
            if (make := _make_converter(kind)) is not None
        }

    @cached_property
    def _rest_converter(self) -> Callable[[Any], Any] | None:
        """The converter of arguments without a parameter of their own (`**options: date`)."""
        parameters = get_signature(self.function).parameters.values()
        rest = next(
            (parameter for parameter in parameters if parameter.kind is parameter.VAR_KEYWORD), None
        )
        return None if rest is None else _make_converter(rest.annotation)


def _get_type(parameter: inspect.Parameter) -> Any:
    annotation = parameter.annotation
    if parameter.kind is not parameter.VAR_POSITIONAL or isinstance(annotation, str):
        return annotation
    return list if annotation is parameter.empty else GenericAlias(list, (annotation,))


def _make_converter(annotation: Any) -> Callable[[Any], Any] | None:
    if isinstance(annotation, str):
        return None
    if _is_plain(annotation):
        return get_converter(annotation)  # only for floats: 1 is valid JSON for them
    from pydantic import PydanticSchemaGenerationError, TypeAdapter

    try:
        return TypeAdapter(annotation).validate_python
    except PydanticSchemaGenerationError:  # such as a class of attrs
        return get_converter(annotation)


def _add_settings(context: ToolContext, pack: str) -> ToolContext:
    """Return the context with the settings of this pack instead of the caller's."""
    if context.run.get_settings is None:
        return context
    settings = context.run.get_settings(pack)
    return replace(context, settings=settings) if settings or context.settings else context


def _may_be_media(value: Any) -> bool:
    is_data = value is None or isinstance(value, str | int | float | dict)
    return any(map(_may_be_media, value[:MAX_MEDIA])) if isinstance(value, list) else not is_data


def _store_media(value: Any, store: Callable[[bytes, str], str]) -> Any:
    """Return the value with images, audio and files replaced by handles; a list may contain them."""
    if isinstance(value, list):
        return [_store_media(item, store) for item in value]
    media = find_media(value, MAX_MEDIA_BYTES)
    if media is None:
        return value
    data, mime_type, name = media
    return describe_media(data, mime_type, name, store(data, mime_type))


def _is_plain(annotation: Any) -> bool:
    """Return whether the function takes JSON data of this type without conversion."""
    inner = getattr(annotation, "__args__", ())
    origin = getattr(annotation, "__origin__", annotation)
    try:
        is_known = origin in PLAIN_TYPES or (
            inner and origin.__name__ in {"Union", "UnionType", "Literal", "Optional"}
        )
    except (TypeError, AttributeError):
        return False
    return bool(is_known) and all(
        isinstance(part, str | int | float) or _is_plain(part) for part in inner
    )


# --- adapting functions ---------------------------------------------------------------------------


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
    json_schema: JsonObject = (
        dict(schema) if isinstance(schema, Mapping) else schema.model_json_schema()
    )
    return json_schema


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
