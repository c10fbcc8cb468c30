"""The names that a file of tools imports from `onetool`: `tool`, `Context` (or `ToolContext`),
`File` and the errors.

Workers offer this module as `onetool`, unless their environment has that package, which exports the
same names.
"""

from __future__ import annotations

import os
import sys
import time
from types import CoroutineType, ModuleType

from onetool_child.errors import (
    TREE,
    ArgumentError,
    Cancelled,
    CannotAsk,
    ToolError,
    get_message,
    make_error,
)

TYPE_CHECKING = False  # importing `typing` would double the start-up time of a worker
if TYPE_CHECKING:
    from collections.abc import (
        AsyncIterable,
        AsyncIterator,
        Callable,
        Collection,
        Generator,
        Iterable,
        Iterator,
    )
    from importlib.machinery import ModuleSpec
    from os import PathLike
    from pathlib import Path
    from typing import Any

    from onetool_child.json_types import JsonMapping

PROGRESS_SECONDS = 0.05  # between two messages
MAX_PROGRESS_CHARS = 500
MAX_LOG_CHARS = 10_000
LOG_LEVELS = (
    "debug",
    "info",
    "notice",
    "warning",
    "error",
    "critical",
    "alert",
    "emergency",
)  # those of MCP
VALIDATION_FAILED = "validate_params rejected the arguments"


MODULE_NAMES = frozenset({"ot", "onetool"})


class Done:
    """A completed operation. It need not be awaited, but may be."""

    __slots__ = ()

    def __await__(self) -> Generator[Any, None, None]:
        return
        yield


DONE = Done()


class Context:
    """The context of a call.

    A parameter annotated `Context` receives it, and callers do not see that parameter.

    `call`, `ask` and `llm` wait in a function; in a coroutine they return an awaitable. The others
    need no `await`.
    """

    __slots__ = ()
    agent_id: str
    agent_config: JsonMapping  # `tool_config` of the agent: settings by tool name
    permissions: Collection[str]  # of the agent
    sandbox: JsonMapping | None
    budget_guard: Any  # only of built-in tools and tools of programs
    correlation_id: str
    metadata: JsonMapping
    settings: JsonMapping  # of the pack: `tools.<pack>` in onetool.yaml

    @property
    def working_dir(self) -> Path:
        raise NotImplementedError

    @property
    def cancelled(self) -> bool:
        """Whether the call was cancelled, for loops in C code or in threads of the tool."""
        raise NotImplementedError

    def progress(self, done: float | str, total: float | None = None, message: str = "") -> Done:
        """Report progress to the client: `progress(3, 10, "resizing")`, or only a message."""
        raise NotImplementedError

    def log(self, message: object, level: str = "info") -> Done:
        """Write to the log, and to a client that called the tool directly or wants messages."""
        raise NotImplementedError

    def debug(self, message: object) -> Done:
        """Write to the log at this level, like `info`, `warning` and `error`."""
        return self.log(message, "debug")

    def info(self, message: object) -> Done:
        """Write to the log; see `debug`."""
        return self.log(message, "info")

    def warning(self, message: object) -> Done:
        """Write to the log; see `debug`."""
        return self.log(message, "warning")

    def error(self, message: object) -> Done:
        """Write to the log; see `debug`."""
        return self.log(message, "error")

    def secret(self, name: str) -> str:
        """Return a secret that the pack declares with `secrets = [...]` or `tools.<pack>.secrets`."""
        raise NotImplementedError

    def call(self, name: str, /, *args: Any, **kwargs: Any) -> Any:
        """Call another tool with the caller's permissions; return its value or raise."""
        raise NotImplementedError

    def ask(self, message: str, schema: Any = None) -> Any:
        """Ask the person at the client. Return the answer as a dict, or None if it is declined.

        `schema` is a JSON Schema of an object with simple properties, or a pydantic model. Raise
        CannotAsk if no client can show the question.
        """
        raise NotImplementedError

    def llm(self, prompt: str, schema: Any = None) -> Any:
        """Ask the language model of the settings. Return text, or data that matches `schema`.

        `schema` is a JSON Schema or a pydantic model.
        """
        return self.call(
            "llm.ask", prompt=prompt, schema=None if schema is None else check_form(schema)
        )


ToolContext = Context  # the name of the same interface in programs


class File:
    """A file as the result of a tool.

    The client receives its content; the type is detected if `mime` is omitted.
    """

    __slots__ = ("mime", "path")

    def __init__(self, path: str | PathLike[str], mime: str | None = None) -> None:
        self.path = path
        self.mime = mime

    def __repr__(self) -> str:
        return f"File({str(self.path)!r})"


def check_level(level: str) -> str:
    if level not in LOG_LEVELS:
        raise ValueError(f"unknown level {level!r}: expected one of {', '.join(LOG_LEVELS)}")
    return level


def check_form(schema: Any) -> JsonMapping:
    """Return the JSON Schema of an answer, also for a pydantic model.

    Without one, a person accepts or declines.
    """
    if schema is None:
        return {"type": "object", "properties": {}}
    schema = schema.model_json_schema() if hasattr(schema, "model_json_schema") else schema
    if not isinstance(schema, dict):
        raise TypeError(f"invalid schema {schema!r}: expected a JSON Schema as a dict")
    return schema


def describe_progress(done: float | str, total: float | None, message: str) -> str:
    """Return progress as text: `resizing (3 of 10)`."""
    if isinstance(done, str):
        return done
    count = f"{done:g} of {total:g}" if total else f"{done:g}"
    return f"{message} ({count})" if message else count


class ItemReporter:
    """A reporter of the items of a generator as progress, at a limited rate."""

    __slots__ = ("_context", "_count", "_reported")

    def __init__(self, context: Context) -> None:
        self._context = context
        self._count = 0
        self._reported = 0.0

    def iterate(self, items: Iterable[Any]) -> Iterator[Any]:
        for item in items:
            self._report(item)
            yield item

    async def iterate_async(self, items: AsyncIterable[Any]) -> AsyncIterator[Any]:
        async for item in items:
            self._report(item)
            yield item

    def _report(self, item: Any) -> None:
        self._count += 1
        if time.monotonic() - self._reported >= PROGRESS_SECONDS:
            import reprlib

            self._reported = time.monotonic()
            self._context.progress(
                self._count, message=item if isinstance(item, str) else reprlib.repr(item)
            )


def tool(*args: Any, **_options: Any) -> Any:
    """Return the function unchanged: `@tool` only matters to the server, which parses the file."""
    return args[0] if args and callable(args[0]) else lambda function: function


# --- tools as objects -----------------------------------------------------------------------------


def make_function(kind: Callable[[], Any]) -> Callable[..., Any]:
    """Return a function that calls an instance of a tool class."""
    thing = kind()
    validate = getattr(thing, "validate_params", None)
    name = str(thing.name() if callable(thing.name) else thing.name)

    def call(call_context: Context, /, **params: Any) -> Any:
        if validate is not None:
            check_params(validate, params)
        value = thing.call(params, call_context)
        return (
            _unwrap_later(value, name) if isinstance(value, CoroutineType) else unwrap(value, name)
        )

    return call


def check_params(validate: Callable[[Any], object], params: Any) -> None:
    """Raise ArgumentError if `validate_params` rejects the arguments."""
    try:
        outcome = validate(params)
    except Exception as error:
        fields = error.fields if isinstance(error, ToolError) else {}
        raise ArgumentError(get_message(error), **fields) from error
    if (problem := _find_problem(outcome)) is not None:
        raise ArgumentError(problem)


def _find_problem(outcome: Any) -> str | None:
    """Return the problem that `validate_params` reports. Anything but a clear success is a problem."""
    if hasattr(outcome, "ok") and hasattr(outcome, "error"):  # a `Result`
        outcome = {"ok": outcome.ok} if outcome.ok is True else {"error": outcome.error}
    match outcome:
        case None | True | ("ok" | True, *_) | {"ok": True}:
            return None
        case str(error) | ("error" | False, str(error)) | {"error": error}:
            return str(error or VALIDATION_FAILED)
        case False:
            return VALIDATION_FAILED
        case CoroutineType():
            outcome.close()
            return "validate_params must not be a coroutine function"
    return f"validate_params returned {type(outcome).__name__}, expected None or an error"


def unwrap(value: Any, name: str) -> Any:
    """Return the value of a `Result` or of `("ok", value)`.

    Raise the error of one, or of `("error", reason)`.
    """
    match value:
        case ("ok", inner) if type(value) is tuple:
            return inner
        case ("error", reason) if type(value) is tuple:
            raise make_error(reason, name)
    is_result = all(hasattr(value, part) for part in ("ok", "value", "error", "unwrap"))
    if is_result and value.ok is not True:
        raise make_error(value.error, name)
    return value.value if is_result else value


async def _unwrap_later(value: Any, name: str) -> Any:
    return unwrap(await value, name)


def import_from(directory: str, package: str) -> None:
    """Import modules next to the file from source, by name or relative to `package`.

    The bytecode cache identifies a module by its size and modification second, so it would miss an
    edit in the same second.
    """
    from importlib import machinery

    class Source(machinery.SourceFileLoader):
        def get_code(self, fullname: str) -> Any:
            path = self.get_filename(fullname)
            return self.source_to_code(self.get_data(path), path)

    class PackageFinder:
        @staticmethod
        def find_spec(name: str, _path: Any = None, _target: Any = None) -> Any:
            if name != package:
                return None
            file = os.path.join(directory, "__init__.py")  # noqa: PTH118 - see above
            loader = Source(name, file) if os.path.exists(file) else None  # noqa: PTH110 - see above
            spec = machinery.ModuleSpec(
                name, loader, origin=file if loader else None, is_package=True
            )
            spec.submodule_search_locations = [directory]
            return spec

    def find(path: str) -> machinery.FileFinder:
        if path != directory and not path.startswith(directory + os.sep):
            raise ImportError(path)
        extensions = (machinery.ExtensionFileLoader, machinery.EXTENSION_SUFFIXES)
        return machinery.FileFinder(path, extensions, (Source, machinery.SOURCE_SUFFIXES))

    sys.path.insert(0, directory)
    sys.path_hooks.insert(0, find)
    sys.path_importer_cache.pop(directory, None)
    sys.meta_path.append(PackageFinder)


class ModuleFinder:
    """Finds the modules `ot` and `onetool`, unless the environment has such packages."""

    def __init__(self, call: Callable[..., Any], settings: dict[str, Any]) -> None:
        public = (Context, File, ToolError, Cancelled, CannotAsk)
        self._names: dict[str, Any] = {
            "tool": tool,
            **{public_class.__name__: public_class for public_class in public},
        }
        self._names["ToolContext"] = ToolContext
        self.ot = ModuleType("ot", "The interface of OneTool for extension files.")
        vars(self.ot).update(self._names, call=call, settings=settings, **TREE)

    def find_spec(
        self, name: str, _path: object = None, _target: object = None
    ) -> ModuleSpec | None:
        from importlib.machinery import ModuleSpec

        return ModuleSpec(name, self) if name in MODULE_NAMES else None  # type: ignore[arg-type]  # it has the methods of a loader

    def create_module(self, spec: ModuleSpec) -> ModuleType | None:
        return self.ot if spec.name == "ot" else None

    def exec_module(self, module: ModuleType) -> None:
        vars(module).update(self._names)
