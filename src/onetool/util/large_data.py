"""Large data, which others choose: work on it is done in a thread and delays nobody.

`RawJson` is a value that the server passes on without parsing it. Parsing holds the interpreter
lock, even in a thread, so a large result of a worker or an upstream server is passed to the run
unparsed, and is parsed there. Code that needs Python objects in this process calls `parse`.
"""

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

from anyio.to_thread import run_sync as run_in_thread

from onetool_child.errors import ToolError
from onetool_child.messages import count_values, parse_without_gc, split_text

T = TypeVar("T")
LARGE_CHARS = 8_192  # redacting more may take milliseconds
MEMBER_CHARS = 20  # that a member of a list or an object counts for
MAX_PARSED_VALUES = 500_000


def is_large(value: Any, max_chars: int = LARGE_CHARS) -> bool:
    """Return whether data has more characters on all levels, or parts of unknown size.

    The data may contain pydantic models.
    """
    left = max_chars
    waiting: list[Any] = [value]
    while waiting and left >= 0:
        part = waiting.pop()
        if isinstance(part, str | bytes):
            left -= len(part)
        elif isinstance(part, RawJson):
            left -= part.size
        elif part is not None and not isinstance(part, int | float):
            members = _list_members(part)
            if members is None:
                return True
            left -= MEMBER_CHARS * len(members)
            waiting += members if left >= 0 else ()
    return left < 0


def _list_members(value: Any) -> list[Any] | None:
    if isinstance(value, list | tuple):
        return [*value]
    members = value if isinstance(value, Mapping) else getattr(value, "__dict__", None)
    return None if members is None else [*members, *members.values()]


async def run_in_thread_if(needs_thread: bool, work: Callable[[], T]) -> T:
    return await run_in_thread(work, abandon_on_cancel=True) if needs_thread else work()


# --- raw JSON -------------------------------------------------------------------------------------


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
