"""The backend of functions in this process. Coroutines run on the event loop, other functions in threads.

Arguments arrive as JSON data that fits the schema. They are converted here for parameters with richer annotations, such
as a date, a path or a model.
"""

import functools
import inspect
from collections.abc import Callable, Mapping
from typing import Any

from onetool._tool import Tool
from onetool.backends.threads import ToolThreads
from onetool.context import ToolContext
from onetool.schema import PLAIN_TYPES, get_signature, takes_context


class PythonBackend:
    """The backend of one function. A function that is not a coroutine runs in one of `threads`."""

    def __init__(self, function: Callable[..., Any], threads: ToolThreads | None = None) -> None:
        self.function, self._threads = function, threads or ToolThreads()
        self._is_async = inspect.iscoroutinefunction(function)

    async def invoke(self, _tool: Tool, args: Mapping[str, Any], context: ToolContext) -> Any:
        converted = {name: make(args[name]) for name, make in self._converters.items() if name in args}
        arguments = {**args, **converted, **dict.fromkeys(self._context_names, context)}
        positional = [arguments.pop(name) for name in self._positional_only if name in arguments]
        if self._is_async:
            value = await self.function(*positional, **arguments)
        else:
            value = await self._threads.run(self.function, *positional, **arguments)
            value = await value if inspect.isawaitable(value) else value
        if inspect.isasyncgen(value):
            return [item async for item in value]
        return await self._threads.run(list, value) if inspect.isgenerator(value) else value

    @functools.cached_property
    def _parameters(self) -> list[inspect.Parameter]:
        return list(inspect.signature(self.function).parameters.values())

    @functools.cached_property
    def _positional_only(self) -> list[str]:
        return [parameter.name for parameter in self._parameters if parameter.kind is parameter.POSITIONAL_ONLY]

    @functools.cached_property
    def _context_names(self) -> list[str]:
        return [parameter.name for parameter in self._parameters if takes_context(parameter)]

    @functools.cached_property
    def _converters(self) -> dict[str, Callable[[Any], Any]]:
        rich = {
            name: parameter.annotation
            for name, parameter in get_signature(self.function).parameters.items()
            if not isinstance(parameter.annotation, str) and not _is_plain(parameter.annotation)
        }
        if not rich:
            return {}
        from pydantic import TypeAdapter

        return {name: TypeAdapter(annotation).validate_python for name, annotation in rich.items()}


def _is_plain(annotation: Any) -> bool:
    """Return whether the function takes JSON data of this type without conversion."""
    inner = getattr(annotation, "__args__", ())
    origin = getattr(annotation, "__origin__", annotation)
    try:
        known = origin in PLAIN_TYPES or (inner and origin.__name__ in {"Union", "UnionType", "Literal", "Optional"})
    except (TypeError, AttributeError):
        return False
    return bool(known) and all(isinstance(part, str | int | float) or _is_plain(part) for part in inner)
