"""Loader of tools: the built-in packs, and the names of all tools that the code of a run uses.

Built-in packs are the modules `onetool.sources.builtin.<pack>_tools`. Their tools are the names in
`__all__`, or the public functions. They run in the server process, so only built-in modules are
loaded here; extensions run in workers.
"""

import importlib
import pkgutil
import re
import unicodedata
from collections.abc import Collection, Iterator, Mapping
from types import ModuleType

import onetool.sources.builtin
from onetool.core.bus.sources import SUFFIX, find_functions
from onetool.core.python_backend import function_tool
from onetool.core.registry import Registry
from onetool.core.threads import ToolThreads
from onetool.core.tool import Tool
from onetool_child.json_types import JsonObject
from onetool_child.names import OWN_PACK, PROJECTS, is_reserved

IDENTIFIER = re.compile(r"[^\W\d]\w*")


def load_builtin_tools(threads: ToolThreads | None = None) -> Iterator[Tool]:
    for module in pkgutil.iter_modules(onetool.sources.builtin.__path__):
        if module.name.endswith(SUFFIX):
            yield from load_tools(
                importlib.import_module(f"{onetool.sources.builtin.__name__}.{module.name}"),
                threads,
            )


def load_tools(module: ModuleType, threads: ToolThreads | None = None) -> Iterator[Tool]:
    for name, function in find_functions(module):
        yield function_tool(function, name, threads, output=None)


def find_names(code: str, registry: Registry, projects: Mapping[str, str]) -> JsonObject:
    """Return the known packs, tools, aliases and projects whose names occur anywhere in the code.

    They are sent with the code, so that the cost depends on the code and not on the catalog. Python
    binds them like any other name; the cell requests names that are unknown here.
    """
    words = set(IDENTIFIER.findall(code if code.isascii() else unicodedata.normalize("NFKC", code)))
    return bind_names(words, words, registry, projects)


def bind_names(
    names: Collection[str], used: Collection[str], registry: Registry, projects: Mapping[str, str]
) -> JsonObject:
    """Return the meaning of these names in code.

    Reserved names, such as Python's builtins, are never bound.
    """
    used = set(used)
    free = [name for name in names if not is_reserved(name)]
    built_in = [OWN_PACK] if OWN_PACK in names else []
    packs = {
        name: sorted(registry.words(name, used))
        for name in (*built_in, *free)
        if registry.is_pack(name)
    }
    aliases = {
        name: registry.aliases[name]
        for name in free
        if name in registry.aliases and name not in packs
    }
    bare = {
        name: tool.name
        for name in registry.words("", set(free))
        if (tool := registry.peek(name)) is not None
    }
    proj = {"projects": dict(projects)} if PROJECTS in names else {}
    return {"packs": packs, "tools": {**bare, **aliases}, **proj}
