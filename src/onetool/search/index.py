"""The database schema of the search, and its queries: names, similar names, and full text.

A `Shelf` queries one database. Registered tools, snippets and aliases are on one shelf (`onetool.search.index_files`),
stored tools on the shelves of the bundle store. SQLite FTS5 provides BM25, stemming and the full-text index.
"""

import sqlite3
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from heapq import nlargest
from math import log
from typing import Any, Final, NamedTuple

from onetool.search.documents import Key, Scored, SearchDocument, sort_key
from onetool.search.word_vectors import DIMENSIONS, NearestVectors, Vector, load_word_vectors
from onetool.search.words import (
    MIN_TYPO_LENGTH,
    deletions,
    drop_stop_words,
    is_one_typo_away,
    may_be_misspelled,
    plain,
    squeeze,
    words,
)

FORMAT: Final = "6"  # increase it with every change of what is written, here or in `words`
SCHEMA: Final = """
create table if not exists passages (number integer primary key, digest blob, vector blob, meaning blob, name text,
    description text, arguments text, instructions text, form text);
create virtual table if not exists documents using fts5(name, description, arguments, instructions,
    content = 'passages', content_rowid = 'number', tokenize = 'porter unicode61 remove_diacritics 0');
create table if not exists names (form text, document integer, primary key (form, document)) without rowid;
create index if not exists names_of_documents on names (document);
create table if not exists vocabulary (word text primary key) without rowid;
create table if not exists near (cut text, word text, primary key (cut, word)) without rowid;
create virtual table if not exists forms using fts5(form, content = 'passages', content_rowid = 'number',
    tokenize = 'trigram case_sensitive 1', detail = none);
"""
TABLES: Final = {"documents": "name, description, arguments, instructions", "forms": "form"}  # of FTS5
WEIGHTS: Final = "4.0, 1.0, 0.5, 0.25"  # to find candidates, which `scoring` ranks
MAX_CHARACTERS: Final = 20_000  # of a field
MAX_ROWS: Final = 1_500  # read for one query
MAX_KNOWN_WORDS: Final = 10_000  # words to remember during bulk writes; each slows down garbage collections
MAX_COUNTS: Final = 20_000  # to cache
MAX_CANDIDATES: Final = 200
MAX_COMPARED: Final = 5_000  # documents; comparing the meaning of more takes too long
CANDIDATE_FACTOR: Final = 2  # times as many candidates as requested, because some may be hidden
MAX_NEAR: Final = 64  # similar words for one word
MAX_TRIGRAM_DOCUMENTS: Final = 500  # documents; a trigram that more documents have is ignored
MIN_SIMILARITY: Final = 0.8
MIN_IDF: Final = 1e-6  # as in FTS5
LAST_CHARACTER: Final = "\U0010ffff"

Read = Callable[[Callable[[sqlite3.Connection], Any]], Any]
FIELDS: Final = "name, description, arguments, instructions"
GetKeys = Callable[[sqlite3.Connection, Sequence[int]], Mapping[int, Key]]


class IndexRow(NamedTuple):
    """A document as stored: the words of its fields, and the vector of its meaning."""

    number: int
    key: Key
    fields: tuple[str, ...]
    meaning: bytes


# --- writing -----------------------------------------------------------------------------------------------------


def put(
    connection: sqlite3.Connection,
    number: int,
    document: SearchDocument,
    *,
    digest: bytes = b"",
    vector: bytes | None = None,
) -> list[str]:
    """Write a document and return the words of its name. It is found after `index_rows`."""
    fields = (document.name, document.description, document.arguments, document.instructions)
    texts = [words(field[:MAX_CHARACTERS]) for field in fields]
    name, about, *others = (field[:MAX_CHARACTERS] for field in fields)
    meaning = load_word_vectors().encode_document((name, about, " ".join(others)))
    row = (number, digest, vector, meaning, *map(" ".join, texts), squeeze(document.name))
    connection.execute("insert into passages values (?, ?, ?, ?, ?, ?, ?, ?, ?)", row)
    names = ((form, number) for form in name_forms(document.name))
    connection.executemany("insert into names values (?, ?)", names)
    return texts[0]


def index_rows(connection: sqlite3.Connection, first: int, last: int) -> None:
    """Add these documents to the full-text tables, in ascending order: otherwise FTS5 flushes each time."""
    for table, columns in TABLES.items():
        insert = f"insert into {table} (rowid, {columns}) select number, {columns} from passages"  # noqa: S608
        connection.execute(f"{insert} where number between ? and ? order by number", (first, last))


def learn(connection: sqlite3.Connection, found: Iterable[str], known_words: set[str]) -> None:
    """Add words to the vocabulary for misspelled queries. `known_words` are some that were written before."""
    if len(known_words) > MAX_KNOWN_WORDS:
        known_words.clear()
    for word in filter(may_be_misspelled, set(found) - known_words):
        known_words.add(word)
        if connection.execute("insert or ignore into vocabulary values (?)", (word,)).rowcount:
            connection.executemany("insert into near values (?, ?)", ((cut, word) for cut in deletions(word)))


def drop(connection: sqlite3.Connection, number: int) -> None:
    connection.execute("delete from names where document = ?", (number,))
    for table in TABLES:  # before the passages, which FTS5 reads to delete its entries
        connection.execute(f"delete from {table} where rowid = ?", (number,))  # noqa: S608 - names of ours
    connection.execute("delete from passages where number = ?", (number,))


def name_forms(name: str) -> set[str]:
    """Return the forms by which a name is found: all of it, the part after the last dot, and the part before it."""
    return {squeeze(name), *map(squeeze, name.rpartition("."))} - {""}


# --- reading -----------------------------------------------------------------------------------------------------


class Shelf:
    """The queries of one database.

    `read(work)` calls `work` with the database; `get_keys` returns the visible documents of rows. `in_memory` says that
    something of each document may be kept in memory. Scores use the document frequencies of all shelves, so that scores
    of different shelves are comparable.
    """

    def __init__(self, read: Read, get_keys: GetKeys, size: int, *, in_memory: bool = False) -> None:
        self._read, self._get_keys, self.size, self._in_memory = read, get_keys, size, in_memory
        self._counts: dict[str, int] = {}
        self._nearest: NearestVectors | None = None

    def count(self, term: str) -> int:
        """Return the number of documents with the term."""
        if term not in self._counts:
            if len(self._counts) >= MAX_COUNTS:
                self._counts.clear()
            query = "select count(*) from documents(?)"
            self._counts[term] = self._read(lambda db: db.execute(query, (_quote(term),)).fetchone()[0])
        return self._counts[term]

    def find_exact(self, query: str) -> list[Key]:
        wanted = squeeze(query)
        rows = "select document from names where form = ? limit ?"
        found = self._keys(rows, (wanted, MAX_CANDIDATES)).values()
        return [key for key in found if squeeze(key[1]) == wanted]

    def find_by_prefix(self, query: str, limit: int) -> Scored:
        """Return names that start with the query, scored by the fraction of the name that it covers."""
        wanted = squeeze(query)
        rows = "select document from names where form >= ? and form < ? order by form limit ?"
        found = self._keys(rows, (wanted, wanted + LAST_CHARACTER, limit)).values()
        shares = ([len(wanted) / len(form) for form in name_forms(key[1]) if form.startswith(wanted)] for key in found)
        return [(key, max(share)) for key, share in zip(found, shares, strict=True) if share]

    def find_by_words(self, wanted: Iterable[str]) -> Scored:
        """Return the documents with all these words in their names, with their scores."""
        expression = _match_names([word] for word in wanted)
        return list(self._read(lambda db: self._to_scored(db, dict(_rank(db, expression, MAX_CANDIDATES)))))

    def find_similar(self, texts: Iterable[str]) -> Scored:
        """Return documents with similar names, or names that contain one of the texts, with a similarity up to 1."""
        best: dict[Key, float] = {}
        for text in texts:
            wanted = squeeze(text)
            if len(wanted) >= MIN_TYPO_LENGTH:
                for key in self._read(partial(self._find_candidates, text, wanted)):
                    best[key] = max(best.get(key, 0.0), _similarity(wanted, key[1]))
        return [(key, similarity) for key, similarity in best.items() if similarity]

    def _find_candidates(self, text: str, wanted: str, db: sqlite3.Connection) -> list[Key]:
        """Return candidates: names that share most trigrams with the wanted one, or have its words, corrected."""
        parts = {wanted[at : at + 3] for at in range(len(wanted) - 2)}
        query = "select rowid from forms(?) limit ?"
        found = [db.execute(query, (f'"{part}"', MAX_TRIGRAM_DOCUMENTS)).fetchall() for part in parts]
        shared = Counter(number for rows in found if len(rows) < MAX_TRIGRAM_DOCUMENTS for (number,) in rows)
        corrected = _match_names([word, *find_similar_words(db, word)] for word in drop_stop_words(plain(text)))
        numbers = [number for number, _ in shared.most_common(MAX_CANDIDATES)]
        numbers += [number for number, _ in _rank(db, corrected, MAX_CANDIDATES)]
        return list(self._get_keys(db, list(dict.fromkeys(numbers))).values())

    def find_by_terms(self, rarities: Mapping[str, float], limit: int) -> list[tuple[int, float]]:
        """Return the rows with any of these terms, the best first; `rarities` are those of all shelves."""
        counts = {term: count for term in rarities if (count := self.count(term))}

        def work(db: sqlite3.Connection) -> list[tuple[int, float]]:
            totals: dict[int, float] = {}
            for term, count in counts.items():
                factor = rarities[term] / _idf(self.size, count)
                for number, score in _rank(db, _quote(term), MAX_ROWS):
                    totals[number] = totals.get(number, 0.0) + score * factor
            best = nlargest(CANDIDATE_FACTOR * limit, totals, key=totals.__getitem__)
            return [(number, totals[number]) for number in best]

        return list(self._read(work))

    def find_by_meaning(self, query: Vector, limit: int) -> list[int]:
        """Return the rows that may have the nearest meaning, if this shelf has few enough documents in memory."""
        if not self._in_memory or self.size > MAX_COMPARED or not any(query):
            return []
        if self._nearest is None:
            rows = self._read(lambda db: db.execute("select number, meaning from passages").fetchall())
            if any(len(meaning) != DIMENSIONS for _, meaning in rows):
                raise sqlite3.DatabaseError("the vectors have different sizes")
            self._nearest = NearestVectors(rows)
        return self._nearest.find(query, limit)

    def read_rows(self, numbers: Sequence[int]) -> list[IndexRow]:
        """Return the visible documents of these rows."""
        marks = ", ".join("?" * len(numbers))
        query = f"select number, {FIELDS}, meaning from passages where number in ({marks})"  # noqa: S608 - marks

        def work(db: sqlite3.Connection) -> list[IndexRow]:
            keys = self._get_keys(db, numbers)
            found = db.execute(query, numbers).fetchall()
            return [IndexRow(row[0], keys[row[0]], row[1:-1], row[-1]) for row in found if row[0] in keys]

        return list(self._read(work))

    def read_keys(self, numbers: Sequence[int]) -> Mapping[int, Key]:
        found: Mapping[int, Key] = self._read(lambda db: self._get_keys(db, numbers))
        return found

    def _keys(self, query: str, values: Sequence[object]) -> Mapping[int, Key]:
        def work(db: sqlite3.Connection) -> Mapping[int, Key]:
            return self._get_keys(db, list(dict.fromkeys(number for (number,) in db.execute(query, values))))

        found: Mapping[int, Key] = self._read(work)
        return found

    def _to_scored(self, db: sqlite3.Connection, scores: Mapping[int, float]) -> Scored:
        return [(key, scores[number]) for number, key in self._get_keys(db, list(scores)).items()]


def rarity(size: int, count: int) -> float:
    """Return the weight of a term that `count` of `size` documents have. It is positive even if all have it."""
    return log(1 + (max(size, count) - count + 0.5) / (count + 0.5))


def _idf(size: int, count: int) -> float:
    """Return the inverse document frequency by which FTS5 multiplies its scores."""
    return max(log((max(size, count) - count + 0.5) / (count + 0.5)), MIN_IDF)


def select_terms(counts: Mapping[str, int]) -> list[str]:
    """Return the rarest terms: frequent terms are the least specific and the most expensive."""
    chosen: list[str] = []
    rows = 0
    for count, term in sorted((count, term) for term, count in counts.items() if count):
        if rows == 0 or rows + count <= MAX_ROWS:
            chosen.append(term)
            rows += count
    return chosen


def sort_scores(scored: Iterable[tuple[Key, float]]) -> Scored:
    """Sort by descending score, then by name."""
    return sorted(scored, key=lambda pair: (-pair[1], sort_key(pair[0])))


def find_similar_words(db: sqlite3.Connection, word: str) -> list[str]:
    """Return the known words that are one typing error away from this one. They share a deletion with it."""
    if not may_be_misspelled(word):
        return []
    cuts = sorted(deletions(word))
    query = f"select distinct word from near where cut in ({', '.join('?' * len(cuts))})"  # noqa: S608 - marks
    found = sorted(other for (other,) in db.execute(query, cuts) if is_one_typo_away(word, other))
    return [other for other in found if other != word][:MAX_NEAR]


def _match_names(wanted: Iterable[Sequence[str]]) -> str:
    """Return an FTS5 expression: names that contain at least one word of each group."""
    groups = (" OR ".join(f'name : "{word}"' for word in group) for group in wanted)
    return " AND ".join(f"({group})" for group in groups)


def _quote(term: str) -> str:
    column, colon, word = term.rpartition(" : ")
    return f'{column}{colon}"{word}"'


def _rank(db: sqlite3.Connection, expression: str, limit: int) -> list[tuple[int, float]]:
    if not expression:
        return []
    query = f"select rowid, -bm25(documents, {WEIGHTS}) from documents(?) order by 2 desc, 1 limit ?"  # noqa: S608
    return db.execute(query, (expression, limit)).fetchall()


def _similarity(wanted: str, name: str) -> float:
    from rapidfuzz import fuzz

    forms = name_forms(name)
    best = max((fuzz.ratio(wanted, form) / 100 for form in forms), default=0.0)
    if best >= MIN_SIMILARITY:
        return best
    return MIN_SIMILARITY if any(wanted in form for form in forms) else 0.0
