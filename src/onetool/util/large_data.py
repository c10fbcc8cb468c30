"""Tells large data from small: work on large data, which others choose, is done in a thread and
delays nobody.
"""

from collections.abc import Callable, Mapping
from typing import Any, TypeVar

from anyio.to_thread import run_sync as run_in_thread

from onetool.util.raw_json import RawJson

T = TypeVar("T")
LARGE_CHARS = 8_192  # redacting more may take milliseconds
MEMBER_CHARS = 20  # that a member of a list or an object counts for


def is_large(value: Any, max_chars: int = LARGE_CHARS) -> bool:
    """Return whether data has more characters on all levels, or contains an object whose size is
    unknown.

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
