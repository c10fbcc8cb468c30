"""The function `help` in a cell: Python's own, which also explains tools and packs."""

import _sitebuiltins
import builtins
import keyword
import sys
from typing import Any

from onetool_child.pack_proxy import HELP, Call, PackProxy, ToolProxy
from onetool_child.project_path import ProjectsProxy


class HelpFunction(_sitebuiltins._Helper):  # noqa: SLF001 - `site` makes `help` of it
    """Print the help of a tool or pack, given as an object or by name, or Python's help."""

    def __init__(self, call: Call) -> None:
        self._call = call

    def __call__(self, *args: Any, **kwargs: Any) -> None:
        if not args and not kwargs:
            sys.stdout.write(f"{self._call(HELP, (), {})}\n")
        elif len(args) == 1 and isinstance(args[0], ToolProxy | PackProxy | ProjectsProxy):
            sys.stdout.write(f"{self._call(HELP, (), {'query': repr(args[0])})}\n")
        elif len(args) == 1 and isinstance(args[0], str) and not _is_python(args[0]):
            sys.stdout.write(f"{self._call(HELP, (), {'query': args[0]})}\n")
        else:
            super().__call__(*args, **kwargs)


def _is_python(name: str) -> bool:
    first = name.partition(".")[0]
    return (
        first in sys.stdlib_module_names
        or hasattr(builtins, first)
        or first in keyword.kwlist
        or name.isupper()
    )
