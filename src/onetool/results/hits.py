"""What a search finds, which of it is shown, and how long it may take. How to search is known to others."""

import time
from collections.abc import Iterable
from heapq import heappush, heappushpop
from typing import NamedTuple

from onetool.errors import ToolTimeout


class Hit(NamedTuple):
    """In the order of rank: `back` is the position with its sign turned, so that of equals the first comes first."""

    score: float
    back: int
    text: str


class Deadline:
    """Asked before every step, and a step is short: linear time alone would let a search of minutes through."""

    def __init__(self, seconds: float) -> None:
        self._end = time.monotonic() + seconds

    def check(self) -> None:
        if time.monotonic() > self._end:
            raise ToolTimeout("The search took too long. Search for something simpler.")


def first(hits: Iterable[Hit], offset: int, limit: int) -> tuple[list[Hit], int]:
    chosen, total = [], 0
    for hit in hits:
        total += 1
        if offset <= total < offset + limit:
            chosen.append(hit)
    return chosen, total


def best(hits: Iterable[Hit], offset: int, limit: int) -> tuple[list[Hit], int]:
    kept: list[Hit] = []
    total = 0
    for hit in hits:
        total += 1
        (heappush if total < offset + limit else heappushpop)(kept, hit)
    return sorted(kept, reverse=True)[offset - 1 :], total
