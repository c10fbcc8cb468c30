"""The queries of one database of the search: names, similar names, words and meaning."""

import sqlite3
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from heapq import nlargest
from typing import Any, NamedTuple, TypeVar

from onetool.sources.search.documents import Key, Scored
from onetool.sources.search.index import find_similar_words, name_forms
from onetool.sources.search.scoring import Rarities, score_words
from onetool.sources.search.stems import load_stemmer
from onetool.sources.search.word_vectors import DIMENSIONS, NearestVectors, Vector, compare
from onetool.sources.search.words import MIN_TYPO_LENGTH, drop_stop_words, plain, squeeze, words

MAX_ENTRIES = 1_600  # of postings, read for one query
MAX_CANDIDATES = 200
MAX_SIMILAR = 20  # names to compare with a misspelled one, because of their letters
MAX_CORRECTED = 12  # the same because of their words
MAX_CORRECTED_ENTRIES = 240  # read for them
MAX_COMPARED = 5_000  # documents; comparing the meaning of more takes too long
MAX_NEAREST = 32  # candidates by meaning
MAX_TRIGRAMS = 8  # of a misspelled name, evenly distributed; about 8 if it is long
MAX_TRIGRAM_DOCUMENTS = 150  # documents; a trigram that more documents have is ignored
MIN_SIMILARITY = 0.8
LAST_CHARACTER = "\U0010ffff"

T = TypeVar("T")
Read = Callable[[Callable[[sqlite3.Connection], Any]], Any]
GetKeys = Callable[[sqlite3.Connection, Sequence[int]], Mapping[int, Key]]


class Candidate(NamedTuple):
    """A document that may be a hit, with its scores by words and by meaning."""

    number: int
    key: Key
    words: float
    similarity: float
    has_all: bool  # all terms of the query that any document has


class IndexReader:
    """The queries of one database.

    `read(work)` calls `work` with the database; `get_keys` returns the visible documents of rows.
    `in_memory` says that something of each document may be kept in memory. Scores use the document
    frequencies of all readers, so that scores of different readers are comparable.
    """

    def __init__(
        self, read: Read, get_keys: GetKeys, size: int, *, in_memory: bool = False
    ) -> None:
        self._read = read
        self._get_keys = get_keys
        self.size = size
        self.in_memory = in_memory
        self._meanings: NearestVectors | None = None

    def count(self, terms: Iterable[str]) -> dict[str, int]:
        """Return the number of documents with each term; terms that no document has are omitted."""
        counts: dict[str, int] = self._read(lambda db: _count(db, list(terms)))
        return counts

    def find_exact(self, query: str) -> list[Key]:
        form = squeeze(query)
        rows = "select document from names where form = ? limit ?"
        keys = self._find_keys(rows, (form, MAX_CANDIDATES))
        return [key for key in keys if squeeze(key[1]) == form]

    def find_by_prefix(self, query: str, limit: int) -> Scored:
        """Return names that start with the query, scored by the fraction of the name that it
        covers.
        """
        start = squeeze(query)
        rows = "select document from names where form >= ? and form < ? order by form limit ?"
        keys = self._find_keys(rows, (start, start + LAST_CHARACTER, limit))
        shares = (
            [len(start) / len(form) for form in name_forms(key[1]) if form.startswith(start)]
            for key in keys
        )
        return [(key, max(share)) for key, share in zip(keys, shares, strict=True) if share]

    def find_similar(self, texts: Iterable[str]) -> Scored:
        """Return documents with similar names, or names that contain one of the texts, with a
        similarity up to 1.
        """
        best: dict[Key, float] = {}
        for text in texts:
            form = squeeze(text)
            if len(form) >= MIN_TYPO_LENGTH:
                for key in self._read(partial(self._find_similar, text, form)):
                    best[key] = max(best.get(key, 0.0), _compare_names(form, key[1]))
        return [(key, similarity) for key, similarity in best.items() if similarity]

    def _find_similar(self, text: str, form: str, db: sqlite3.Connection) -> list[Key]:
        """Return candidates: names that share most trigrams with the wanted one, or have its words,
        corrected.
        """
        starts = range(0, len(form) - 2, max(1, len(form) // MAX_TRIGRAMS))
        parts = sorted({form[at : at + 3] for at in starts})
        query = "select rowid from forms(?) limit ?"
        matches = [
            db.execute(query, (f'"{part}"', MAX_TRIGRAM_DOCUMENTS)).fetchall() for part in parts
        ]
        shared = Counter(
            number for rows in matches if len(rows) < MAX_TRIGRAM_DOCUMENTS for (number,) in rows
        )
        numbers = [number for number, _ in shared.most_common(MAX_SIMILAR)]
        numbers += self._find_corrected(drop_stop_words(plain(text)), db)
        return list(self._get_keys(db, list(dict.fromkeys(numbers))).values())

    def _find_corrected(self, query_words: Sequence[str], db: sqlite3.Connection) -> list[int]:
        """Return documents that have each word, or a word that is similar to it."""
        groups = [
            set(load_stemmer().stem([word, *find_similar_words(db, word)])) for word in query_words
        ]
        weights = {stem: 1.0 / len(group) for group in groups for stem in sorted(group)}
        counts = _count(db, list(weights))
        if not all(counts.keys() & group for group in groups):
            return []
        return _find_by_terms(
            db, {stem: weights[stem] for stem in counts}, MAX_CORRECTED, MAX_CORRECTED_ENTRIES
        )

    def find(self, rarities: Rarities, vector: Vector, limit: int) -> list[Candidate]:
        """Return candidates by words and by meaning. `rarities` are those of all readers."""
        near = self._find_by_meaning(vector)

        def work(db: sqlite3.Connection) -> list[Candidate]:
            numbers = [*_find_by_terms(db, rarities, limit), *near]
            return self._read_candidates(db, list(dict.fromkeys(numbers)), rarities, vector)

        candidates: list[Candidate] = self._read(work)
        return candidates

    def _find_by_meaning(self, query: Vector) -> list[int]:
        """Return the rows that may have the nearest meaning, if this reader has few enough
        documents in memory.
        """
        if not self.in_memory or self.size > MAX_COMPARED or not any(query):
            return []
        if self._meanings is None:
            self._meanings = self._read(_read_meanings)
        return self._meanings.find(query, MAX_NEAREST)

    def _read_candidates(
        self, db: sqlite3.Connection, numbers: Sequence[int], rarities: Rarities, vector: Vector
    ) -> list[Candidate]:
        keys = self._get_keys(db, numbers)
        marks = ", ".join("?" * len(keys))
        query = f"select number, terms, impacts, meaning from passages where number in ({marks})"  # noqa: S608 - marks
        candidates = []
        for number, terms, impacts, meaning in db.execute(query, list(keys)):
            score, has_all = score_words(
                rarities, dict(zip(terms.split(" "), impacts, strict=False))
            )
            candidates.append(
                Candidate(number, keys[number], score, compare(vector, meaning), has_all)
            )
        return candidates

    def _find_keys(self, query: str, values: Sequence[object]) -> list[Key]:
        def work(db: sqlite3.Connection) -> Mapping[int, Key]:
            return self._get_keys(
                db, list(dict.fromkeys(number for (number,) in db.execute(query, values)))
            )

        return list(self._read(work).values())


def _count(db: sqlite3.Connection, terms: Sequence[str]) -> dict[str, int]:
    marks = ", ".join("?" * len(terms))
    query = f"select term, count from frequencies where count > 0 and term in ({marks})"  # noqa: S608 - marks
    return dict(db.execute(query, terms).fetchall())


def has_words(name: str, groups: Iterable[set[str]]) -> bool:
    """Return whether a name has at least one stem of each group."""
    stems = set(load_stemmer().stem(words(name)))
    return all(not stems.isdisjoint(group) for group in groups)


def _find_by_terms(
    db: sqlite3.Connection, rarities: Rarities, limit: int, max_entries: int = MAX_ENTRIES
) -> list[int]:
    """Return the rows with any of these terms, the best first.

    The rarest terms are read first and completely, unless there are too many entries; of frequent
    terms, only the entries with the highest impact are read.
    """
    totals: dict[int, float] = {}
    left = len(rarities)
    read = 0
    for term in sorted(rarities, key=lambda term: (-rarities[term], term)):
        share = max((max_entries - read) // left, limit)
        query = "select number, impact from postings where term = ? order by impact desc limit ?"
        rows = db.execute(query, (term, share)).fetchall()
        weight = rarities[term]
        for number, impact in rows:
            totals[number] = totals.get(number, 0.0) + weight * impact
        left = left - 1
        read = read + len(rows)
    return nlargest(limit, totals, key=totals.__getitem__)


def _read_meanings(db: sqlite3.Connection) -> NearestVectors:
    rows = db.execute("select number, meaning from passages").fetchall()
    if any(len(meaning) != DIMENSIONS for _, meaning in rows):
        raise sqlite3.DatabaseError("the vectors have different sizes")
    return NearestVectors(rows)


def _compare_names(query: str, name: str) -> float:
    from rapidfuzz import fuzz

    forms = name_forms(name)
    best = max(
        (fuzz.ratio(query, form, score_cutoff=100 * MIN_SIMILARITY) / 100 for form in forms),
        default=0.0,
    )
    if best:
        return best
    return MIN_SIMILARITY if any(query in form for form in forms) else 0.0
