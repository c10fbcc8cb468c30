"""Loader of the built-in packs, which are the modules `onetool.tools.<pack>_tools`.

Tools are the names in `__all__` of a module, or its public functions. They run in the server process, so only built-in
modules are loaded here; extensions run in workers.
"""

import importlib
import pkgutil
from collections.abc import Iterator
from types import ModuleType

import onetool.tools
from onetool._tool import Tool
from onetool.backends.threads import ToolThreads
from onetool.bus.adapt import function_tool
from onetool.bus.sources import SUFFIX, find_functions


def load_builtin_tools(threads: ToolThreads | None = None) -> Iterator[Tool]:
    for module in pkgutil.iter_modules(onetool.tools.__path__):
        if module.name.endswith(SUFFIX):
            yield from load_tools(importlib.import_module(f"{onetool.tools.__name__}.{module.name}"), threads)


def load_tools(module: ModuleType, threads: ToolThreads | None = None) -> Iterator[Tool]:
    for name, function in find_functions(module):
        yield function_tool(function, name, threads, output=None)
