"""Finding tool functions in files: the packs that ship with the product, each a module `onetool.tools.<pack>_tools`.

The module decides what is a tool: the names in its `__all__`, else its public functions. They run in this process,
so only our own files are loaded here; a user's files go to workers.
"""

import importlib
import pkgutil
from collections.abc import Iterator
from types import ModuleType

import onetool.tools
from onetool._tool import Tool
from onetool.backends.threads import ToolThreads
from onetool.bus.adapt import function_tool
from onetool.bus.sources import SUFFIX, functions_of


def shipped_tools(threads: ToolThreads | None = None) -> Iterator[Tool]:
    for module in pkgutil.iter_modules(onetool.tools.__path__):
        if module.name.endswith(SUFFIX):
            yield from tools_of(importlib.import_module(f"{onetool.tools.__name__}.{module.name}"), threads)


def tools_of(module: ModuleType, threads: ToolThreads | None = None) -> Iterator[Tool]:
    for name, function in functions_of(module):
        yield function_tool(function, name, threads)
