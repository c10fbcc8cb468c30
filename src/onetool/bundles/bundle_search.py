"""Search for stored tools, rank by rank, and the newest first in each rank.

For each rank the index yields candidates in descending order of keys, and `ranking` decides which of them match. So the
cost of a page does not depend on the number of tools.
"""

import heapq
import sqlite3
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Final

from onetool.bundles.bundle_index import read_meta
from onetool.bundles.listing import IN_USE, get_names_by_key
from onetool.bundles.ranking import FIRST_FUZZY, FIRST_WORD, RANKS, ToolQuery, find_rank
from onetool.bundles.search_text import FIELDS, SearchText
from onetool.search.documents import Key
from onetool.search.index import find_similar_words
from onetool.search.shelf import Read, Shelf

MAX_SORTED_KEYS: Final = 4_000  # with the same prefix; if there are more, a scan by descending key soon finds some
MAX_KEY: Final = (1 << 63) - 1
LAST_LETTER, FIRST_SURROGATE, AFTER_SURROGATES = "\U0010ffff", 0xD800, "\ue000"
MAX_PADDING = 1000  # letters, more than any name has
STARTS: Final = ("slug_start", "name_start")
ROW: Final = f"""
select t.slug_start, t.name_start, x.slug, x.name, x.tags, x.description, x.bundle from tools t
join texts x on x.key = t.key join bundles b on b.id = t.bundle
where t.key = ? and {IN_USE} and b.deleted_at is null
"""  # noqa: S608
CANDIDATES: Final = """
select f.rowid from {table} f join tools t on t.key = f.rowid join bundles b on b.id = t.bundle
where f.{table} match ? and f.rowid < ? and {in_use} and b.deleted_at is null order by f.rowid desc
"""


@dataclass(frozen=True, slots=True)
class RankedHit:
    rank: int
    key: int


class ToolFinder:
    def __init__(self, database: sqlite3.Connection, query: ToolQuery, *, include_disabled: bool) -> None:
        self._database, self._query, self._include_disabled = database, query, include_disabled
        self._words = query.words
        self._similar: dict[str, list[str]] = {}

    def hits(self, after: RankedHit | None) -> Iterator[RankedHit]:
        """Yield the hits after this one, or all."""
        first, before = (after.rank, after.key) if after else (0, MAX_KEY)
        for rank in range(first, len(RANKS)):
            last = None
            for key in self._candidates(rank, before if rank == first else MAX_KEY):
                if key != last:
                    row = self._database.execute(ROW, (key, self._include_disabled)).fetchone()
                    if row and find_rank(self._query, row[0], row[1], SearchText(*row[2:])) == rank:
                        yield RankedHit(rank, key)
                last = key

    def _candidates(self, rank: int, before: int) -> Iterable[int]:
        if rank < FIRST_WORD:
            return self._starting_with(STARTS[rank], before)
        if not self._words:
            return []
        if rank < FIRST_FUZZY:  # all words are in the fields up to this one, but not in those before it
            field = rank - FIRST_WORD
            whole = self._match_fields(field)
            return self._matching(
                "words", f"({whole}) NOT ({self._match_fields(field - 1)})" if field else whole, before
            )
        field = rank - FIRST_FUZZY
        # All words are parts of words here, but not all are whole words. Spaces mark where a word begins and ends.
        parts = " AND ".join(f'"{ {1: f" {word} ", 2: f" {word}"}.get(len(word), word) }"' for word in self._words)
        whole = " AND ".join(f'" {word} "' for word in self._words)
        with_parts = self._matching(f"parts_of_{FIELDS[field]}", f"({parts}) NOT ({whole})", before)
        if not any(map(self._similar_words, self._words)):
            return with_parts
        # The same for misspelled words, unless all words match exactly.
        slips = f"({self._match_fields(field, self._similar_words)}) NOT ({self._match_fields(len(FIELDS) - 1)})"
        return heapq.merge(self._matching("words", slips, before), with_parts, key=lambda key: -key)

    # --- a beginning -------------------------------------------------------------------------------------------

    def _starting_with(self, column: str, before: int) -> Iterable[int]:
        if not self._query.text:
            return []
        condition = f"{column} >= ? and {column} < ? and key < ?"
        span = (self._query.text, _next_prefix(self._query.text), before)
        few = f"select key from tools where {condition} limit ?"  # noqa: S608 - a column of ours
        keys = [key for (key,) in self._database.execute(few, (*span, MAX_SORTED_KEYS + 1))]
        if len(keys) <= MAX_SORTED_KEYS:
            return sorted(keys, reverse=True)
        index = "newest_slugs" if column == "slug_start" else "newest_names"
        many = f"select key from tools indexed by {index} where {condition} order by key desc"  # noqa: S608
        return (key for (key,) in self._database.execute(many, span))

    # --- words -------------------------------------------------------------------------------------------------

    def _matching(self, table: str, wanted: str, before: int) -> Iterable[int]:
        query = CANDIDATES.format(table=table, in_use=IN_USE)
        return (key for (key,) in self._database.execute(query, (wanted, before, self._include_disabled)))

    def _match_fields(self, last: int, near: Callable[[str], list[str]] = lambda _: []) -> str:
        """Return an expression: all words, or words similar to them, are in the fields up to `last`."""
        variants = (
            [f'"{number}{form}"' for number in range(last + 1) for form in (word, *near(word))] for word in self._words
        )
        return " AND ".join(f"({' OR '.join(several)})" for several in variants)

    def _similar_words(self, word: str) -> list[str]:
        if word not in self._similar:
            self._similar[word] = find_similar_words(self._database, word)
        return self._similar[word]


def shelf(read: Read) -> Shelf:
    """Return the tools of one index as documents for `ot.search`."""

    def get_keys(database: sqlite3.Connection, rows: Sequence[int]) -> dict[int, Key]:
        return {row: ("tool", name) for row, name in get_names_by_key(database, rows).items()}

    return Shelf(read, get_keys, read(lambda database: read_meta(database, "tools")))


def _next_prefix(text: str) -> str:
    """Return the first text, in code point order, after all texts that start with this one."""
    start = text.rstrip(LAST_LETTER)
    if not start:
        return LAST_LETTER * (len(text) + MAX_PADDING)
    number = ord(start[-1]) + 1
    return start[:-1] + (AFTER_SURROGATES if number == FIRST_SURROGATE else chr(number))
