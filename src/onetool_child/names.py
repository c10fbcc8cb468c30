"""Names in the code of a run: which are reserved, and which the code reads without binding them."""

import builtins
import keyword
from collections.abc import Iterator
from opcode import opmap
from types import CodeType

from onetool_child.errors import TREE

FILENAME = "<run>"
OWN_PACK = "ot"
PROJECTS = "proj"
# Functions of `ot` that run completely or partly in the cell.
IN_CODE = frozenset({"account", "call", "pack", "parallel", "snippet", "load", "session"})
# `site` adds these to the server's builtins; a cell does not have them.
_ONLY_IN_SERVER = frozenset({"_", "copyright", "credits", "license"})
_IN_CELL = (OWN_PACK, PROJECTS, "exit", "quit", "help", *TREE)
RESERVED = frozenset({*vars(builtins), *keyword.kwlist, *_IN_CELL}) - _ONLY_IN_SERVER

_EXTENDED_ARG = opmap["EXTENDED_ARG"]
_LOAD_GLOBAL = opmap["LOAD_GLOBAL"]  # the lowest bit of its argument is not part of the index
_LOADS = {
    opmap[name]
    for name in ("LOAD_NAME", "LOAD_GLOBAL", "LOAD_FROM_DICT_OR_GLOBALS")
    if name in opmap
}
_STORE_NAME = opmap["STORE_NAME"]
_STORE_GLOBAL = opmap["STORE_GLOBAL"]
_NAME_OPERATIONS = {*_LOADS, _STORE_NAME, _STORE_GLOBAL}


def is_reserved(name: str) -> bool:
    """Return whether a name in code always means something other than a pack, an alias or a tool."""
    return name in RESERVED or (name.startswith("__") and name.endswith("__"))


def find_used_names(*modules: CodeType) -> set[str]:
    """Return all global names and attributes that the compiled code and its functions use."""
    return {name for module in modules for code in _walk_code(module) for name in code.co_names}


def find_unbound_names(*modules: CodeType) -> set[str]:
    """Return the global names that the code reads before or without binding them.

    Bytecode has this exactly, at a tenth of the cost of walking the syntax tree.
    """
    unbound: set[str] = set()
    bound: set[str] = set()
    for module in modules:
        for code in _walk_code(module):
            first, stored = _find_global_names(
                code, _STORE_NAME if code is module else _STORE_GLOBAL
            )
            unbound |= {name for name, is_store in first.items() if not is_store}
            bound |= stored - unbound
    return unbound - bound


def _find_global_names(code: CodeType, store_name: int) -> tuple[dict[str, bool], set[str]]:
    """Return whether each global name is stored first, and those that are stored at all."""
    first: dict[str, bool] = {}
    stored: set[str] = set()
    for operation, index in _find_operations(code):
        name = code.co_names[index]
        is_store = operation in {store_name, _STORE_GLOBAL}
        if is_store:
            stored.add(name)
        if is_store or operation in _LOADS:
            first.setdefault(name, is_store)
    return first, stored


def _find_operations(code: CodeType) -> Iterator[tuple[int, int]]:
    """Yield the operations on names, with the index of the name."""
    content = code.co_code
    high = 0
    for operation, argument in zip(content[::2], content[1::2], strict=True):
        if operation == _EXTENDED_ARG:
            high = (high | argument) << 8
            continue
        if operation in _NAME_OPERATIONS:
            index = high | argument
            yield operation, index >> 1 if operation == _LOAD_GLOBAL else index
        high = 0


def _walk_code(module: CodeType) -> Iterator[CodeType]:
    left = [module]
    while left:
        code = left.pop()
        yield code
        left.extend(part for part in code.co_consts if isinstance(part, CodeType))
