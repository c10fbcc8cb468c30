"""Finding the tools that fit a question, place by place, the best first and the newest first in each.

For each place the index gives the tools that may stand there, down the keys, and `ranking` says of each whether it
does. So a page costs what it shows, however many tools there are.
"""

import heapq
import sqlite3
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Final

from onetool.bundles.index import meta
from onetool.bundles.listing import IN_USE, names_of_keys
from onetool.bundles.ranking import FIRST_FUZZY, FIRST_WORD, PLACES, Question, locate
from onetool.bundles.texts import FIELDS, Texts
from onetool.search.documents import Key
from onetool.search.index import Read, Shelf, words_near

MOST_TO_SORT: Final = 4_000  # that start alike; if there are more, some are soon met by walking down the keys
AFTER_ALL: Final = (1 << 63) - 1
LAST_LETTER, FIRST_SURROGATE, AFTER_SURROGATES = "\U0010ffff", 0xD800, "\ue000"
LONGER_THAN_ANY = 1000  # letters of a name, of which there is none after the last of all letters
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
class Hit:
    place: int
    key: int


class Finder:
    def __init__(self, database: sqlite3.Connection, question: Question, *, include_disabled: bool) -> None:
        self._database, self._question, self._include_disabled = database, question, include_disabled
        self._words = question.words
        self._misspelt: dict[str, list[str]] = {}

    def hits(self, after: Hit | None) -> Iterator[Hit]:
        """Those after this one, or all, as they are asked for."""
        first, before = (after.place, after.key) if after else (0, AFTER_ALL)
        for place in range(first, len(PLACES)):
            last = None
            for key in self._candidates(place, before if place == first else AFTER_ALL):
                if key != last:
                    row = self._database.execute(ROW, (key, self._include_disabled)).fetchone()
                    if row and locate(self._question, row[0], row[1], Texts(*row[2:])) == place:
                        yield Hit(place, key)
                last = key

    def _candidates(self, place: int, before: int) -> Iterable[int]:
        if place < FIRST_WORD:
            return self._that_start(STARTS[place], before)
        if not self._words:
            return []
        if place < FIRST_FUZZY:  # all words stand in the fields up to this one, and not in those before it
            field = place - FIRST_WORD
            whole = self._within(field)
            return self._that_match("words", f"({whole}) NOT ({self._within(field - 1)})" if field else whole, before)
        field = place - FIRST_FUZZY
        # All words are parts of words here, and not all whole. Spaces say where a word begins and ends.
        parts = " AND ".join(f'"{ {1: f" {word} ", 2: f" {word}"}.get(len(word), word) }"' for word in self._words)
        whole = " AND ".join(f'" {word} "' for word in self._words)
        with_parts = self._that_match(f"parts_of_{FIELDS[field]}", f"({parts}) NOT ({whole})", before)
        if not any(map(self._near, self._words)):
            return with_parts
        # The same for words that may be misspelt, where not all are written as they are asked for.
        slips = f"({self._within(field, self._near)}) NOT ({self._within(len(FIELDS) - 1)})"
        return heapq.merge(self._that_match("words", slips, before), with_parts, key=lambda key: -key)

    # --- a beginning -------------------------------------------------------------------------------------------

    def _that_start(self, column: str, before: int) -> Iterable[int]:
        if not self._question.text:
            return []
        condition = f"{column} >= ? and {column} < ? and key < ?"
        span = (self._question.text, _next_text(self._question.text), before)
        few = f"select key from tools where {condition} limit ?"  # noqa: S608 - a column of ours
        keys = [key for (key,) in self._database.execute(few, (*span, MOST_TO_SORT + 1))]
        if len(keys) <= MOST_TO_SORT:
            return sorted(keys, reverse=True)
        index = "newest_slugs" if column == "slug_start" else "newest_names"
        many = f"select key from tools indexed by {index} where {condition} order by key desc"  # noqa: S608
        return (key for (key,) in self._database.execute(many, span))

    # --- words -------------------------------------------------------------------------------------------------

    def _that_match(self, table: str, wanted: str, before: int) -> Iterable[int]:
        query = CANDIDATES.format(table=table, in_use=IN_USE)
        return (key for (key,) in self._database.execute(query, (wanted, before, self._include_disabled)))

    def _within(self, last: int, near: Callable[[str], list[str]] = lambda _: []) -> str:
        """All words, or words near them, stand in the fields up to the last."""
        variants = (
            [f'"{number}{form}"' for number in range(last + 1) for form in (word, *near(word))] for word in self._words
        )
        return " AND ".join(f"({' OR '.join(several)})" for several in variants)

    def _near(self, word: str) -> list[str]:
        if word not in self._misspelt:
            self._misspelt[word] = words_near(self._database, word)
        return self._misspelt[word]


def shelf(read: Read) -> Shelf:
    """The tools of one index as documents of the search over everything."""

    def keys_of(database: sqlite3.Connection, rows: Sequence[int]) -> dict[int, Key]:
        return {row: ("tool", name) for row, name in names_of_keys(database, rows).items()}

    return Shelf(read, keys_of, read(lambda database: meta(database, "tools")))


def _next_text(text: str) -> str:
    """The first text, in the order of code points, that comes after all that start with this one."""
    start = text.rstrip(LAST_LETTER)
    if not start:
        return LAST_LETTER * (len(text) + LONGER_THAN_ANY)
    number = ord(start[-1]) + 1
    return start[:-1] + (AFTER_SURROGATES if number == FIRST_SURROGATE else chr(number))
