"""The backend of functions in this process.

Coroutines run on the event loop, other functions in threads.

Arguments arrive as JSON data that fits the schema. They are converted here for parameters with
richer annotations, such as a date, a path or a model.
"""

import inspect
import os
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import cached_property
from types import GenericAlias
from typing import Any

from onetool.core.schema import PLAIN_TYPES, get_signature
from onetool.core.threads import ToolThreads
from onetool.core.tool import Tool
from onetool.errors import ToolError
from onetool.util.context import ToolContext
from onetool.util.version import __version__
from onetool_child.arguments import get_converter
from onetool_child.error_report import report_error
from onetool_child.interface import ItemReporter
from onetool_child.json_types import JsonMapping
from onetool_child.media import MAX_MEDIA, describe_media, find_media

MAX_MEDIA_BYTES = 100 << 20
OWN_DIRECTORY = os.path.dirname(os.path.dirname(__file__))  # noqa: PTH120 - a prefix of file names


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
    """Return the context with the settings of this pack, not those of a caller, if there is a
    running application.
    """
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
