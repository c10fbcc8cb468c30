"""Where registered tools come from in Python: a module's functions, installed packages, and the same again, reloaded.

A reload runs the module's source anew, beside the old module: what fails leaves the old one as it was, and calls that
are under way end in the code they began in.
"""

import importlib.machinery
import importlib.util
import inspect
import sys
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from operator import attrgetter
from types import ModuleType
from typing import Any

from ot.errors import ToolError
from ot.tool import DECLARED, Tool, declaration_of

SUFFIX = "_tools"
GROUP = "onetool.tools"


@dataclass(frozen=True, slots=True)
class Origin:
    """What was registered, by the place where it is written down."""

    module: str
    path: str  # within the module, with dots
    is_instance: bool = False


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
    offered = getattr(module, "__all__", None) or _public_functions(module)
    _refuse_forgotten(module, offered)
    for name in offered:
        function = getattr(module, name, None)
        if not inspect.isfunction(function):
            raise ToolError(
                f"{module.__name__} names {name!r} in its __all__, which is no function: it cannot be a tool"
            )
        yield declaration_of(function).name or (f"{pack}.{name}" if pack else name), function


def _refuse_forgotten(module: ModuleType, offered: Iterable[str]) -> None:
    """Whoever writes `@tool` means it; without a word here the tool would just not be there."""
    for name, function in inspect.getmembers(module, inspect.isfunction):
        if function.__module__ == module.__name__ and name not in offered and hasattr(function, DECLARED):
            raise ToolError(f"{module.__name__} has the @tool {name!r}, but not in its __all__: add it there")


def _public_functions(module: ModuleType) -> list[str]:
    functions = inspect.getmembers(module, inspect.isfunction)
    return [name for name, function in functions if function.__module__ == module.__name__ and not name.startswith("_")]


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
