"""The one database schema of search, and the questions that it answers: names, likeness of names, and full text.

`Shelf` asks one database. Registered tools, snippets and aliases stand on one shelf (`onetool.search.store` keeps it),
stored tools on those of the bundle store. BM25, stemming and the index itself are those of FTS5.
"""

import sqlite3
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from heapq import nlargest
from math import log
from typing import Any, Final, TypeVar

from onetool.search.documents import Document, Key, Scored, by_name
from onetool.search.words import (
    HIDDEN,
    SHORTEST_TYPO,
    apart,
    cuts,
    is_one_slip_away,
    may_be_misspelt,
    plain,
    squeezed,
    telling,
    words,
)

T = TypeVar("T")
FORMAT: Final = "5"  # to be changed with every change of what is written, here or in `words`
SCHEMA: Final = """
create table if not exists passages (number integer primary key, digest blob, vector blob, name text, description text,
    arguments text, instructions text, filler text, form text);
create virtual table if not exists documents using fts5(name, description, arguments, instructions, filler,
    content = 'passages', content_rowid = 'number', tokenize = 'porter unicode61 remove_diacritics 0');
create table if not exists names (form text, document integer, primary key (form, document)) without rowid;
create index if not exists names_of_documents on names (document);
create table if not exists vocabulary (word text primary key) without rowid;
create table if not exists near (cut text, word text, primary key (cut, word)) without rowid;
create virtual table if not exists forms using fts5(form, content = 'passages', content_rowid = 'number',
    tokenize = 'trigram case_sensitive 1', detail = none);
"""
TABLES: Final = {"documents": "name, description, arguments, instructions, filler", "forms": "form"}  # of FTS5
WEIGHTS: Final = "2.0, 1.0, 0.5, 0.5, 0"
# FTS5 fixes how much a document loses by being long. A tool that says little is no better than one that explains
# itself, so short rows are filled up to this many words, and neither lose nor gain.
FULL_LENGTH: Final = 100
MAX_CHARACTERS: Final = 20_000  # of a field
MAX_ROWS: Final = 1_500  # to be looked at for one question
MAX_FAMILIAR: Final = 10_000  # words to be remembered while many are written: garbage collections look at each
MAX_COUNTS: Final = 20_000  # to be remembered
MAX_CANDIDATES: Final = 200
SPARE: Final = 2  # times as many as are wanted are looked at: some may be hidden
MAX_NEAR: Final = 64  # words that one word may be a misspelling of
MAX_WITH_PART: Final = 500  # documents: a part that more have tells nothing
LEAST_LIKENESS: Final = 0.8
LEAST_IDF: Final = 1e-6  # as in FTS5
LAST_CHARACTER: Final = "\U0010ffff"

Read = Callable[[Callable[[sqlite3.Connection], Any]], Any]
KeysOf = Callable[[sqlite3.Connection, Sequence[int]], Mapping[int, Key]]


# --- writing -----------------------------------------------------------------------------------------------------


def put(
    connection: sqlite3.Connection, number: int, document: Document, *, digest: bytes = b"", vector: bytes | None = None
) -> list[str]:
    """Write a document and return the words of its name. It is found when `index_rows` was called."""
    fields = (document.name, document.description, document.arguments, document.instructions)
    texts = [words(field[:MAX_CHARACTERS]) for field in fields]
    filler = [HIDDEN] * (FULL_LENGTH - sum(map(len, texts)))
    row = (number, digest, vector, *(" ".join(text) for text in (*texts, filler)), squeezed(document.name))
    connection.execute("insert into passages values (?, ?, ?, ?, ?, ?, ?, ?, ?)", row)
    names = ((form, number) for form in forms_of(document.name))
    connection.executemany("insert into names values (?, ?)", names)
    return texts[0]


def index_rows(connection: sqlite3.Connection, first: int, last: int) -> None:
    """Make these documents found. Many at once and in order: FTS5 writes what it has gathered at every step back."""
    for table, columns in TABLES.items():
        insert = f"insert into {table} (rowid, {columns}) select number, {columns} from passages"  # noqa: S608
        connection.execute(f"{insert} where number between ? and ? order by number", (first, last))


def learn(connection: sqlite3.Connection, found: Iterable[str], familiar: set[str]) -> None:
    """Find these words when they are misspelt. `familiar` are some that were written before."""
    if len(familiar) > MAX_FAMILIAR:
        familiar.clear()
    for word in filter(may_be_misspelt, set(found) - familiar):
        familiar.add(word)
        if connection.execute("insert or ignore into vocabulary values (?)", (word,)).rowcount:
            connection.executemany("insert into near values (?, ?)", ((cut, word) for cut in cuts(word)))


def drop(connection: sqlite3.Connection, number: int) -> None:
    connection.execute("delete from names where document = ?", (number,))
    for table in TABLES:  # before the passages, which they look up to forget them
        connection.execute(f"delete from {table} where rowid = ?", (number,))  # noqa: S608 - names of ours
    connection.execute("delete from passages where number = ?", (number,))


def passage(document: Document) -> str:
    """What the document is about, for vectors. The name counts twice, as it does in full text."""
    return " ".join(telling(apart(f"{document.name} {document.name} {document.description}"[:MAX_CHARACTERS])))


def forms_of(name: str) -> set[str]:
    """`brave.web_search` answers to all of its name, to what stands after the last dot, and to what before it."""
    return {squeezed(name), *map(squeezed, name.rpartition("."))} - {""}


# --- asking ------------------------------------------------------------------------------------------------------


class Shelf:
    """`read(work)` gives what the work finds in the database, `keys_of` what is found by rows, without what is hidden.

    Scores are those of BM25; how rare a term is, is counted over all shelves, so that scores can be compared.
    """

    def __init__(self, read: Read, keys_of: KeysOf, size: int) -> None:
        self._read, self._keys_of, self.size = read, keys_of, size
        self._counts: dict[str, int] = {}

    def count(self, term: str) -> int:
        """How many documents have the term."""
        if term not in self._counts:
            if len(self._counts) >= MAX_COUNTS:
                self._counts.clear()
            query = "select count(*) from documents(?)"
            self._counts[term] = self._read(lambda db: db.execute(query, (_quoted(term),)).fetchone()[0])
        return self._counts[term]

    def exact(self, query: str) -> list[Key]:
        wanted = squeezed(query)
        rows = "select document from names where form = ? limit ?"
        found = self._keys(rows, (wanted, MAX_CANDIDATES)).values()
        return [key for key in found if squeezed(key[1]) == wanted]

    def beginning(self, query: str, limit: int) -> Scored:
        """With the share of the name that the query covers."""
        wanted = squeezed(query)
        rows = "select document from names where form >= ? and form < ? order by form limit ?"
        found = self._keys(rows, (wanted, wanted + LAST_CHARACTER, limit)).values()
        shares = ([len(wanted) / len(form) for form in forms_of(key[1]) if form.startswith(wanted)] for key in found)
        return [(key, max(some)) for key, some in zip(found, shares, strict=True) if some]

    def named(self, wanted: Iterable[str]) -> Scored:
        """Those that have all the words in their names, with their scores."""
        expression = _in_names([word] for word in wanted)
        return list(self._read(lambda db: self._scored(db, dict(_rank(db, expression, MAX_CANDIDATES)))))

    def alike(self, texts: Iterable[str]) -> Scored:
        """With the likeness, 1 at most; a name that contains one of the texts is like it too."""
        best: dict[Key, float] = {}
        for text in texts:
            wanted = squeezed(text)
            if len(wanted) >= SHORTEST_TYPO:
                for key in self._read(partial(self._maybe_alike, text, wanted)):
                    best[key] = max(best.get(key, 0.0), _likeness(wanted, key[1]))
        return [(key, likeness) for key, likeness in best.items() if likeness]

    def _maybe_alike(self, text: str, wanted: str, db: sqlite3.Connection) -> list[Key]:
        """The names that share most parts of three letters with the wanted one, and those with its words, corrected."""
        parts = {wanted[at : at + 3] for at in range(len(wanted) - 2)}
        query = "select rowid from forms(?) limit ?"
        found = [db.execute(query, (f'"{part}"', MAX_WITH_PART)).fetchall() for part in parts]
        shared = Counter(number for rows in found if len(rows) < MAX_WITH_PART for (number,) in rows)
        corrected = _in_names([word, *words_near(db, word)] for word in telling(plain(text)))
        numbers = [number for number, _ in shared.most_common(MAX_CANDIDATES)]
        numbers += [number for number, _ in _rank(db, corrected, MAX_CANDIDATES)]
        return list(self._keys_of(db, list(dict.fromkeys(numbers))).values())

    def best(self, rarities: Mapping[str, float], limit: int) -> Scored:
        """The documents that have any of the terms, with their scores; a rarity is the IDF over all shelves."""
        counts = {term: count for term in rarities if (count := self.count(term))}

        def work(db: sqlite3.Connection) -> Scored:
            totals: dict[int, float] = {}
            for term, count in counts.items():
                factor = rarities[term] / idf(self.size, count)
                for number, score in _rank(db, _quoted(term), MAX_ROWS):
                    totals[number] = totals.get(number, 0.0) + score * factor
            best = nlargest(SPARE * limit, totals, key=totals.__getitem__)
            return self._scored(db, {number: totals[number] for number in best})

        return list(self._read(work))

    def passages(self, keys: Iterable[Key]) -> list[str]:
        """What these documents are about, in words."""
        query = "select p.name, p.description from names n join passages p on p.number = n.document where n.form = ?"

        def work(db: sqlite3.Connection) -> list[str]:
            rows = (db.execute(query, (squeezed(name),)).fetchone() or ("", "") for _, name in keys)
            return [passage(Document("tool", *row)) for row in rows]

        return list(self._read(work))

    def _keys(self, query: str, values: Sequence[object]) -> Mapping[int, Key]:
        def work(db: sqlite3.Connection) -> Mapping[int, Key]:
            return self._keys_of(db, list(dict.fromkeys(number for (number,) in db.execute(query, values))))

        found: Mapping[int, Key] = self._read(work)
        return found

    def _scored(self, db: sqlite3.Connection, scores: Mapping[int, float]) -> Scored:
        return [(key, scores[number]) for number, key in self._keys_of(db, list(scores)).items()]


def idf(size: int, count: int) -> float:
    """How much a term tells that so many of all documents have, as FTS5 reckons it."""
    return max(log((max(size, count) - count + 0.5) / (count + 0.5)), LEAST_IDF)


def affordable(counts: Mapping[str, int]) -> list[str]:
    """The rarest terms: what stands in every other document tells least and costs most."""
    chosen: list[str] = []
    rows = 0
    for count, term in sorted((count, term) for term, count in counts.items() if count):
        if rows == 0 or rows + count <= MAX_ROWS:
            chosen.append(term)
            rows += count
    return chosen


def merged(scored: Iterable[tuple[Key, float]]) -> Scored:
    """The best first; what is equally good by name."""
    return sorted(scored, key=lambda pair: (-pair[1], by_name(pair[0])))


def words_near(db: sqlite3.Connection, word: str) -> list[str]:
    """The known words that are one slip away from this one. They share a cut with it."""
    if not may_be_misspelt(word):
        return []
    own = sorted(cuts(word))
    query = f"select distinct word from near where cut in ({', '.join('?' * len(own))})"  # noqa: S608 - marks
    found = sorted(other for (other,) in db.execute(query, own) if is_one_slip_away(word, other))
    return [other for other in found if other != word][:MAX_NEAR]


def _in_names(wanted: Iterable[Sequence[str]]) -> str:
    """A question for names that have one of several words, for each of the wanted."""
    groups = (" OR ".join(f'name : "{word}"' for word in several) for several in wanted)
    return " AND ".join(f"({group})" for group in groups)


def _quoted(term: str) -> str:
    column, colon, word = term.rpartition(" : ")
    return f'{column}{colon}"{word}"'


def _rank(db: sqlite3.Connection, expression: str, limit: int) -> list[tuple[int, float]]:
    if not expression:
        return []
    query = f"select rowid, -bm25(documents, {WEIGHTS}) from documents(?) order by 2 desc, 1 limit ?"  # noqa: S608
    return db.execute(query, (expression, limit)).fetchall()


def _likeness(wanted: str, name: str) -> float:
    from rapidfuzz import fuzz

    forms = forms_of(name)
    best = max((fuzz.ratio(wanted, form) / 100 for form in forms), default=0.0)
    if best >= LEAST_LIKENESS:
        return best
    return LEAST_LIKENESS if any(wanted in form for form in forms) else 0.0
