"""Hits of a search, selection of the hits to return, and the deadline of a search."""

import time
from collections.abc import Iterable
from heapq import heappush, heappushpop
from typing import NamedTuple

from onetool.errors import ToolTimeout


class Hit(NamedTuple):
    """A hit. Hits sort by rank; `back` is the negated position, so the first of equal hits ranks
    higher.
    """

    score: float
    back: int
    text: str


class Deadline:
    """The end of a search, checked before each short step; even a search in linear time may take
    minutes.
    """

    def __init__(self, seconds: float) -> None:
        self._end = time.monotonic() + seconds

    def check(self) -> None:
        if time.monotonic() > self._end:
            raise ToolTimeout("the search took too long; use a simpler pattern")


def select_first(hits: Iterable[Hit], offset: int, limit: int) -> tuple[list[Hit], int]:
    selected = []
    total = 0
    for hit in hits:
        total += 1
        if offset <= total < offset + limit:
            selected.append(hit)
    return selected, total


def select_best(hits: Iterable[Hit], offset: int, limit: int) -> tuple[list[Hit], int]:
    best: list[Hit] = []
    total = 0
    for hit in hits:
        total += 1
        (heappush if total < offset + limit else heappushpop)(best, hit)
    return sorted(best, reverse=True)[offset - 1 :], total
