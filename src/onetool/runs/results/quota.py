"""Limits on the disk space of stored results, and which results are removed to make room for a new
one.
"""

from collections.abc import Iterable
from typing import NamedTuple

from onetool.errors import StorageError

DEFAULT_MAX_BYTES = 1 << 30
DEFAULT_MAX_AGENT_BYTES = 1 << 28
# of the results are removed beyond need, so that the next ones do not look at all others again
SPARE_SHARE = 20


class Stored(NamedTuple):
    """A result on disk. Results sort by age, the oldest first."""

    modified_at: float
    handle: str
    agent: str
    size: int


class Quota(NamedTuple):
    max_bytes: int = DEFAULT_MAX_BYTES
    max_agent_bytes: int = DEFAULT_MAX_AGENT_BYTES

    def check_size(self, size: int) -> None:
        """Raise StorageError for a result that would not fit even if it were the only one."""
        setting = (
            "max_stored_bytes"
            if self.max_bytes < self.max_agent_bytes
            else "max_stored_bytes_per_agent"
        )
        limit = min(self.max_bytes, self.max_agent_bytes)
        if size > limit:
            raise StorageError(
                f"the result is too large to be stored: output.{setting} is {limit} bytes",
                hint=f"return a smaller part of it, or raise output.{setting} in onetool.yaml",
                limit=limit,
            )

    def find_surplus(
        self, results: Iterable[Stored], new: Stored, unfinished: int = 0
    ) -> list[Stored]:
        """Return the results that the new one evicts: the oldest of its agent, then the oldest of
        all.

        `unfinished` is the size of results that are being written, which count and are not evicted.
        """
        oldest_first = sorted(result for result in results if result.handle != new.handle)
        same_agent = [result for result in oldest_first if result.agent == new.agent]
        oldest = _add_spare(select_oldest(same_agent, new.size, self.max_agent_bytes), same_agent)
        evicted = {result.handle for result in oldest}
        remaining = [result for result in oldest_first if result.handle not in evicted]
        surplus = select_oldest(remaining, new.size + unfinished, self.max_bytes)
        return [*oldest, *_add_spare(surplus, remaining)]


def select_oldest(oldest_first: Iterable[Stored], size: int, limit: int) -> list[Stored]:
    """Return the results to remove, so that the others and a new one of this size are within the
    limit.
    """
    oldest_first = list(oldest_first)
    surplus = size + sum(result.size for result in oldest_first) - limit
    selected: list[Stored] = []
    for result in oldest_first:
        if surplus <= 0:
            break
        selected.append(result)
        surplus -= result.size
    return selected


def _add_spare(selected: list[Stored], oldest_first: list[Stored]) -> list[Stored]:
    spare = len(oldest_first) // SPARE_SHARE if selected else 0
    return oldest_first[: len(selected) + spare]
