"""A JSON value that the server passes on without parsing it.

Parsing holds the interpreter lock, even in a thread, so a large result of a worker or an upstream
server is passed to the run unparsed, and is parsed there. Code that needs Python objects in this
process calls `parse`.
"""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from onetool_child.errors import ToolError
from onetool_child.messages import count_values, parse_without_gc, split_text

MAX_PARSED_VALUES = 500_000


@dataclass(frozen=True, slots=True)
class RawJson:
    """JSON as UTF-8 in pieces. With `or_text`, invalid JSON is parsed as a string."""

    pieces: Sequence[bytes]
    or_text: bool = False

    @classmethod
    def from_text(cls, text: str) -> "RawJson":
        return cls(tuple(split_text(text)), or_text=True)

    @property
    def size(self) -> int:
        return sum(map(len, self.pieces))

    def parse(self, name: str) -> Any:
        """Return the value; call it in a thread. `name` is the tool that returned it."""
        if count_values(self.pieces, MAX_PARSED_VALUES) > MAX_PARSED_VALUES:
            raise ToolError(
                f"the result of {name} is too large for a direct call: it has more than"
                f" {MAX_PARSED_VALUES:,} values",
                hint="call it in code that `run` executes, and return a part of it",
            )
        text = b"".join(self.pieces)
        try:
            return parse_without_gc(json.loads, text)
        except (ValueError, RecursionError):
            if self.or_text:
                return text.decode("utf-8", "replace")
            raise ToolError(f"the result of {name} is not valid JSON") from None
