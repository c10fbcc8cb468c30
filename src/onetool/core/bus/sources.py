"""Registered tools: functions of modules, tools of installed packages in programs, and reloading.

A reload executes the source of a module again beside the old module: if it fails, the old one
stays, and calls in progress finish with the old code.
"""

import importlib.machinery
import importlib.util
import inspect
import sys
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import replace
from operator import attrgetter
from types import ModuleType
from typing import TYPE_CHECKING, Any, NamedTuple

from onetool.core.policy.effects import apply_settings, get_effects, get_implied_permissions
from onetool.core.python_backend import as_tool, function_tool
from onetool.core.threads import ToolThreads
from onetool.core.tool import DECLARED, HeldTools, Tool, get_declaration
from onetool.errors import ToolError
from onetool.util.context import permissions as permission_set

if TYPE_CHECKING:
    from onetool.settings.load import Loaded
    from onetool.settings.model import PackSettings

SUFFIX = "_tools"
GROUP = "onetool.packs"


class Origin(NamedTuple):
    """The module and the path in it where a tool is defined."""

    module: str
    path: str  # within the module, with dots
    is_instance: bool = False


class RegisteredTools(HeldTools):
    """Built-in tools, and tools that programs and installed packages register."""

    def __init__(self, threads: ToolThreads) -> None:
        super().__init__()
        self._threads = threads
        self._origins: dict[str, Origin] = {}
        self._builtin: frozenset[str] = frozenset()
        self._declared: dict[str, Tool] = {}  # as they were registered, without settings
        self._packs: Mapping[str, PackSettings] = {}

    def add_builtin(self, tools: Iterable[Tool]) -> None:
        self._declared = {tool.name: tool for tool in tools}
        self._builtin = frozenset(self._declared)
        for tool in self._declared.values():
            self.add(tool)

    def configure(self, loaded: "Loaded", /) -> None:
        """Apply the settings `tools.<pack>`; timeouts and permissions only to built-in packs."""
        self._packs = loaded.settings.tools
        for name, tool in self._declared.items():
            if name in self.held:
                self.replace(self._configure(tool))

    def _configure(self, tool: Tool) -> Tool:
        pack = self._packs.get(tool.pack or tool.name)
        configured = apply_settings(tool, pack)
        if pack is None or tool.name not in self._builtin:
            return configured
        timeout = tool.timeout if pack.timeout is None else pack.timeout
        granted = tool.permissions | (pack.permissions or frozenset())
        return replace(
            configured, timeout=timeout, permissions=granted, effects=get_effects(configured)
        )

    async def refresh(self, _words: Collection[str] | None = None, /) -> None:
        """Do nothing: the tools are registered."""
        return

    async def close(self) -> None:
        """Do nothing: this source starts nothing."""
        return

    def register_installed(self) -> list[str]:
        """Register the tools of installed packages. Return the problems."""
        problems = []
        for name, load in find_installed():
            try:
                self._imply_permissions(self.register(load()))
            except (
                Exception,  # noqa: BLE001 - anything may be raised
                SystemExit,
            ) as error:
                problems.append(f"cannot load the tools of {name}: {type(error).__name__}: {error}")
        return problems

    def _imply_permissions(self, registered: Tool | list[Tool]) -> None:
        """Require the permissions that the declared effects of tools imply."""
        for tool in registered if isinstance(registered, list) else [registered]:
            needed = tool.permissions | get_implied_permissions(tool.effects)
            self._declared[tool.name] = replace(tool, permissions=needed)
            self.replace(self._declared[tool.name])

    def register(
        self, thing: object, name: str = "", permissions: Collection[str] = ()
    ) -> Tool | list[Tool]:
        """Register a tool, or all tools of a module (all or none); `name` and `permissions` replace
        those of a tool.
        """
        if not isinstance(thing, ModuleType):
            tool = as_tool(thing, self._threads)
            if name or permissions:
                granted = permission_set(list(permissions)) or tool.permissions
                tool = replace(tool, name=name or tool.name, permissions=granted)
            return self._register(tool, thing)
        if name or permissions:
            raise ToolError(
                "a module has several tools: set their names and permissions with @tool"
            )
        prepared = [
            (function_tool(function, name, self._threads), function)
            for name, function in find_functions(thing)
        ]
        registered: list[Tool] = []
        try:
            for tool, function in prepared:
                registered.append(self._register(tool, function))
        except ToolError:
            for tool in registered:
                self.remove(tool.name)
            raise
        return registered

    def _register(self, tool: Tool, thing: object) -> Tool:
        if "<lambda>" in tool.name:
            raise ToolError(
                "a lambda has no name to register it by", hint="use def, or @tool('pack.tool')"
            )
        self.add(self._configure(tool))
        self._declared[tool.name] = tool
        if (origin := find_origin(thing)) is not None:
            self._origins[tool.name] = origin
        return self.held[tool.name]

    def remove(self, name: str) -> None:
        if name not in self.held:
            raise ToolError(f"cannot unregister {name}: it was not registered by a program")
        super().remove(name)
        self._declared.pop(name, None)
        self._origins.pop(name, None)

    def reload(self, name: str) -> Tool:
        """Replace the tool by a reloaded one. If that fails, the old one stays."""
        if (origin := self._origins.get(name)) is None:
            raise ToolError(
                f"cannot reload {name}: it was not registered as a function, class or object"
            )
        tool = reload_from(
            origin, name, lambda thing: replace(as_tool(thing, self._threads), name=name)
        )
        self._declared[name] = tool
        return self.replace(self._configure(tool))


def find_origin(thing: object) -> Origin | None:
    """Return where a tool is defined; None for a `Tool` that a program created."""
    if inspect.isfunction(thing) or isinstance(thing, type):
        return Origin(thing.__module__, thing.__qualname__)
    kind = type(thing)
    return (
        Origin(kind.__module__, kind.__qualname__, is_instance=True)
        if hasattr(thing, "call")
        else None
    )


def find_functions(module: ModuleType) -> Iterator[tuple[str, Callable[..., Any]]]:
    """Yield the tools of a module with their names: those in `__all__`, or its public functions."""
    declared = getattr(module, "pack", None)
    pack = (
        declared
        if isinstance(declared, str)
        else module.__name__.rpartition(".")[2].removesuffix(SUFFIX)
    )
    functions = inspect.getmembers(module, inspect.isfunction)
    defined = {
        name: function for name, function in functions if function.__module__ == module.__name__
    }
    exported = getattr(module, "__all__", None) or [
        name for name in defined if not name.startswith("_")
    ]
    for name in defined.keys() - set(exported):  # a function with @tool would be missing silently
        if hasattr(defined[name], DECLARED):
            raise ToolError(
                f"{module.__name__} defines the @tool {name!r}, but __all__ does not list it:"
                " add it"
            )
    for name in exported:
        function = getattr(module, name, None)
        if not inspect.isfunction(function):
            raise ToolError(f"{module.__name__} lists {name!r} in __all__, which is not a function")
        yield get_declaration(function).name or (f"{pack}.{name}" if pack else name), function


def find_installed() -> Iterator[tuple[str, Callable[[], object]]]:
    """Yield the entry points of installed packages and how to load each.

    Unreadable packages are skipped.
    """
    from importlib.metadata import distributions

    seen = set()
    for package in distributions():
        if package.name in seen:  # Python imports the first on the path
            continue
        seen.add(package.name)
        try:
            entries = package.entry_points.select(group=GROUP)
        except Exception:  # noqa: BLE001, S112 - broken metadata
            continue
        for entry in entries:
            yield f"{entry.name} = {entry.value}", entry.load


def reload_from(origin: Origin, name: str, make: Callable[[object], Tool]) -> Tool:
    """Return the tool from a new execution of its module.

    If that fails, the old module stays imported.
    """
    old = sys.modules.get(origin.module)
    try:
        module = _execute(origin.module, old)
        tool = make(_resolve(origin, module))
    except BaseException as error:
        if old is not None:
            sys.modules[origin.module] = old
        if not isinstance(error, Exception | SystemExit):
            raise
        reason = (
            error.message if isinstance(error, ToolError) else f"{type(error).__name__}: {error}"
        )
        hint = error.hint if isinstance(error, ToolError) else ""
        raise ToolError(f"cannot reload {name}: {reason}", hint=hint) from error
    package, _, module_name = origin.module.rpartition(".")
    if package in sys.modules:  # `from package import module` looks there
        setattr(sys.modules[package], module_name, module)
    return tool


def _resolve(origin: Origin, module: ModuleType) -> object:
    try:
        thing: Any = attrgetter(origin.path)(module)
    except AttributeError:
        raise ToolError(f"{origin.module} has no {origin.path}") from None
    return thing() if origin.is_instance else thing


def _execute(name: str, old: ModuleType | None) -> ModuleType:
    spec = getattr(old, "__spec__", None)
    if spec is None or not isinstance(spec.loader, importlib.machinery.SourceFileLoader):
        raise ToolError(f"its module {name} was not loaded from a source file")
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module  # the source may look up its own module
    path = spec.loader.get_filename(name)
    code = spec.loader.source_to_code(spec.loader.get_data(path), path)  # never cached bytecode
    exec(code, module.__dict__)  # noqa: S102 - as import does
    return module
