"""Imports of packs in a cell: `import ot`, `from brave import search`.

Modules of the standard library are found first, so a pack never replaces one.
"""

import sys
from collections.abc import Callable
from importlib.machinery import ModuleSpec
from typing import Any


class PackFinder:
    """A finder and loader of packs, for `sys.meta_path`. `find` returns a pack by name, or None."""

    def __init__(self, find: Callable[[str], Any]) -> None:
        self._find = find

    def find_spec(
        self, name: str, _path: object = None, _target: object = None
    ) -> ModuleSpec | None:
        pack, *rest = name.split(".")
        if pack in sys.stdlib_module_names:
            return None
        found = (
            self._find(pack)
            if not rest
            else getattr(sys.modules[pack], rest[0], None)
            if len(rest) == 1
            else None
        )
        return None if found is None else ModuleSpec(name, self, loader_state=found)  # type: ignore[arg-type]

    def create_module(self, spec: ModuleSpec) -> Any:
        return spec.loader_state

    def exec_module(self, _module: Any) -> None:
        """Do nothing: a pack has no code of its own."""
