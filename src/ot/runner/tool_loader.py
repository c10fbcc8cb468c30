"""Finding tool functions in files: the packs that ship with the product, each a module `ot_tools.<pack>_tools`.

The module decides what is a tool: the names in its `__all__`, else its public functions. They run in this process,
so only our own files are loaded here; a user's files go to workers.
"""

import importlib
import inspect
import pkgutil
from collections.abc import Iterator
from types import ModuleType

import anyio

import ot_tools
from ot.bus.adapt import function_tool
from ot.tool import Tool

SUFFIX = "_tools"


def shipped_tools(limiter: anyio.CapacityLimiter | None = None) -> Iterator[Tool]:
    for module in pkgutil.iter_modules(ot_tools.__path__):
        if module.name.endswith(SUFFIX):
            yield from tools_of(importlib.import_module(f"{ot_tools.__name__}.{module.name}"), limiter)


def tools_of(module: ModuleType, limiter: anyio.CapacityLimiter | None = None) -> Iterator[Tool]:
    pack = getattr(module, "pack", module.__name__.rpartition(".")[2].removesuffix(SUFFIX))
    for name in getattr(module, "__all__", None) or _public_functions(module):
        yield function_tool(getattr(module, name), f"{pack}.{name}", limiter=limiter)


def _public_functions(module: ModuleType) -> list[str]:
    functions = inspect.getmembers(module, inspect.isfunction)
    return [name for name, function in functions if function.__module__ == module.__name__ and not name.startswith("_")]
