"""Where registered tools come from in Python: a module's functions, installed packages, and the same again, reloaded.

A reload runs the module's source anew, beside the old module: what fails leaves the old one as it was, and calls that
are under way end in the code they began in.
"""

import asyncio
import importlib.machinery
import importlib.util
import inspect
import sys
from collections.abc import Callable, Collection, Iterable, Iterator
from dataclasses import dataclass, replace
from operator import attrgetter
from types import ModuleType
from typing import TYPE_CHECKING, Any

import anyio.to_thread

from onetool._tool import DECLARED, Tool, declaration_of
from onetool.backends.threads import ToolThreads
from onetool.bus.adapt import as_tool, function_tool
from onetool.errors import ToolError
from onetool.registry import HeldTools

if TYPE_CHECKING:
    from onetool.config.load import Loaded

SUFFIX = "_tools"
GROUP = "onetool.packs"


@dataclass(frozen=True, slots=True)
class Origin:
    """What was registered, by the place where it is written down."""

    module: str
    path: str  # within the module, with dots
    is_instance: bool = False


class RegisteredTools(HeldTools):
    """Tools that ship with us, and those that programs and installed packages register."""

    def __init__(self, threads: ToolThreads) -> None:
        super().__init__()
        self._threads = threads
        self._origins: dict[str, Origin] = {}
        self._shipped: tuple[Tool, ...] = ()
        self.has_installed = False  # whether `refresh` registers what installed packages offer
        self.installed_problems: list[str] = []
        self._installing: asyncio.Future[list[str]] | None = None

    def ship(self, tools: Iterable[Tool]) -> None:
        self._shipped = tuple(tools)
        for tool in self._shipped:
            self.add(tool)

    def configure(self, loaded: "Loaded", /) -> None:
        """Apply what `tools.<pack>` says about packs that ship."""
        for tool in self._shipped:
            configured = tool
            if (pack := loaded.settings.tools.get(tool.pack)) is not None:
                timeout = tool.timeout if pack.timeout is None else pack.timeout
                granted = tool.permissions | (pack.permissions or frozenset())
                configured = replace(tool, timeout=timeout, permissions=granted)
            if tool.name in self.held:
                self.replace(configured)

    async def refresh(self, _words: Collection[str] | None = None, /) -> None:
        """Packages are not installed while we run: once is enough. Who is cancelled leaves it to the others."""
        if self.has_installed:
            if self._installing is None:
                self._installing = asyncio.ensure_future(anyio.to_thread.run_sync(self.register_installed))
            self.installed_problems = await asyncio.shield(self._installing)

    async def close(self) -> None:
        """Nothing was started."""
        return

    def register_installed(self) -> list[str]:
        """Register what installed packages offer; return what is wrong with any."""
        problems = []
        for name, load in installed():
            try:
                self.register(load())
            except (Exception, SystemExit) as error:  # noqa: BLE001 - importing somebody's package may raise anything
                problems.append(f"the tools of {name} cannot be used: {type(error).__name__}: {error}")
        return problems

    def register(self, thing: object) -> Tool | list[Tool]:
        """Register a tool; or all tools of a module, or none."""
        if not isinstance(thing, ModuleType):
            return self._register(as_tool(thing, self._threads), thing)
        made = [(function_tool(function, name, self._threads), function) for name, function in functions_of(thing)]
        done: list[Tool] = []
        try:
            for tool, function in made:
                done.append(self._register(tool, function))
        except ToolError:
            for tool in done:
                self.remove(tool.name)
            raise
        return done

    def _register(self, tool: Tool, thing: object) -> Tool:
        if "<lambda>" in tool.name:
            raise ToolError("a lambda has no name to register it by", hint="use def, or @tool('pack.tool')")
        self.add(tool)
        if (origin := origin_of(thing)) is not None:
            self._origins[tool.name] = origin
        return tool

    def remove(self, name: str) -> None:
        if name not in self.held:
            raise ToolError(f"{name} was not registered by a program, so it cannot be unregistered")
        super().remove(name)
        self._origins.pop(name, None)

    def reload(self, name: str) -> Tool:
        """Put the tool from its source as it is now in its place. If that fails the old one stays."""
        if (origin := self._origins.get(name)) is None:
            raise ToolError(f"{name} cannot be reloaded: it was not registered as a function, a class or an object")
        return self.replace(loaded_anew(origin, name, lambda thing: replace(as_tool(thing, self._threads), name=name)))


def origin_of(thing: object) -> Origin | None:
    """None for what has no place, such as a `Tool` that a program put together itself."""
    if inspect.isfunction(thing) or isinstance(thing, type):
        return Origin(thing.__module__, thing.__qualname__)
    kind = type(thing)
    return Origin(kind.__module__, kind.__qualname__, is_instance=True) if hasattr(thing, "call") else None


def functions_of(module: ModuleType) -> Iterator[tuple[str, Callable[..., Any]]]:
    """The tools of a module with their names: those in its `__all__`, else its public functions."""
    named = getattr(module, "pack", None)
    pack = named if isinstance(named, str) else module.__name__.rpartition(".")[2].removesuffix(SUFFIX)
    functions = inspect.getmembers(module, inspect.isfunction)
    own = {name: function for name, function in functions if function.__module__ == module.__name__}
    offered = getattr(module, "__all__", None) or [name for name in own if not name.startswith("_")]
    for name in own.keys() - set(offered):  # who writes `@tool` means it; without a word it would not be there
        if hasattr(own[name], DECLARED):
            raise ToolError(f"{module.__name__} has the @tool {name!r}, but not in its __all__: add it there")
    for name in offered:
        function = getattr(module, name, None)
        if not inspect.isfunction(function):
            raise ToolError(
                f"{module.__name__} names {name!r} in its __all__, which is no function: it cannot be a tool"
            )
        yield declaration_of(function).name or (f"{pack}.{name}" if pack else name), function


def installed() -> Iterator[tuple[str, Callable[[], object]]]:
    """What installed packages offer, and how to load each. What cannot be read of one says nothing of the others."""
    from importlib.metadata import distributions

    seen = set()
    for package in distributions():
        if package.name in seen:  # the first on the path is the one that is imported
            continue
        seen.add(package.name)
        try:
            entries = package.entry_points.select(group=GROUP)
        except Exception:  # noqa: BLE001, S112 - no proper text; nobody knows whether it was meant for us
            continue
        for entry in entries:
            yield f"{entry.name} = {entry.value}", entry.load


def loaded_anew(origin: Origin, name: str, make: Callable[[object], Tool]) -> Tool:
    """The tool that stands at the place now. Whatever goes wrong, the old module stays the one that is imported."""
    old = sys.modules.get(origin.module)
    try:
        module = _executed(origin.module, old)
        made = make(_thing_at(origin, module))
    except BaseException as error:
        if old is not None:
            sys.modules[origin.module] = old
        if not isinstance(error, Exception | SystemExit):
            raise
        reason = error.message if isinstance(error, ToolError) else f"{type(error).__name__}: {error}"
        raise ToolError(f"{name} was not reloaded: {reason}") from error
    package, _, own_name = origin.module.rpartition(".")
    if package in sys.modules:  # `from package import module` looks there
        setattr(sys.modules[package], own_name, module)
    return made


def _thing_at(origin: Origin, module: ModuleType) -> object:
    try:
        thing: Any = attrgetter(origin.path)(module)
    except AttributeError:
        raise ToolError(f"{origin.module} has no {origin.path} that could be found by its name") from None
    return thing() if origin.is_instance else thing


def _executed(name: str, old: ModuleType | None) -> ModuleType:
    spec = getattr(old, "__spec__", None)
    if spec is None or not isinstance(spec.loader, importlib.machinery.SourceFileLoader):
        raise ToolError(f"it comes from {name}, which is no file that can be read again")
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module  # what the source defines looks for itself there
    path = spec.loader.get_filename(name)
    code = spec.loader.source_to_code(spec.loader.get_data(path), path)  # never a cached one
    exec(code, module.__dict__)  # noqa: S102 - as import does
    return module
