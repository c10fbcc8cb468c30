"""Placeholders for the results of calls that a plan does not make.

A placeholder can be assigned and passed on to tools. Everything else needs the result, so it ends
the plan: the server, which receives the number of the call, ends the run.
"""

from __future__ import annotations

import sys

from onetool_child.capture import FILENAME
from onetool_child.data import Reference

TYPE_CHECKING = False  # importing `typing` would double the start-up time of a worker
if TYPE_CHECKING:
    from collections.abc import Callable
    from types import FrameType
    from typing import Any

    from onetool_child.json_types import JsonObject

UNARY = (
    "abs await bool bytes call ceil complex copy deepcopy dir enter exit float floor format fspath"
    " hash index int"
)
ACCESS = (
    "invert iter len neg next pos repr reversed round str trunc contains delattr delitem getitem"
    " setattr setitem"
)
COMPARISONS = "eq ge gt le lt ne"
OPERATORS = "add and divmod floordiv lshift matmul mod mul or pow rshift sub truediv xor"


class UnknownResult(Reference):
    """The unknown result of a call.

    `inspect` is called with the line of code that uses it, and does not return.
    """

    __slots__ = ("_data", "_inspect")

    def __init__(self, data: JsonObject, inspect: Callable[[int | None], None]) -> None:
        object.__setattr__(self, "_data", data)
        object.__setattr__(self, "_inspect", inspect)

    def __getattribute__(self, name: str) -> Any:
        _use(self)

    def to_data(self) -> JsonObject:
        """Return the marker that the server sent for it."""
        data: JsonObject = object.__getattribute__(self, "_data")
        return data


def _use(self: UnknownResult, *_args: Any, **_kwargs: Any) -> None:
    frame: FrameType | None = sys._getframe(1)  # noqa: SLF001
    while frame is not None and frame.f_code.co_filename != FILENAME:
        frame = frame.f_back
    object.__getattribute__(self, "_inspect")(frame.f_lineno if frame else None)


for _name in f"{UNARY} {ACCESS} {COMPARISONS}".split():
    setattr(UnknownResult, f"__{_name}__", _use)
for _name in OPERATORS.split():
    for _prefix in ("", "r", "i"):
        setattr(UnknownResult, f"__{_prefix}{_name}__", _use)
