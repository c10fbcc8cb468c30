"""Full text over documents in one SQLite database: writing what differs, and asking for the best.

BM25, stemming and the index itself are those of FTS5. Where databases are kept is the business of `ot.search.store`.
"""

import sqlite3
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from hashlib import blake2b
from itertools import repeat
from typing import Final

from ot.search.documents import KINDS, Document, Key, Kind, Scored, by_name
from ot.search.lexicon import TOPICS
from ot.search.vectors import Embedder
from ot.search.words import HIDDEN, apart, telling, topics, words

FORMAT: Final = "2"  # to be changed with every change of what is written, here or in `words`
SCHEMA: Final = """
create virtual table if not exists documents using fts5(digest unindexed, vector unindexed, kind, name, description,
    arguments, instructions, topics, filler, tokenize = 'porter unicode61 remove_diacritics 0')
"""
WEIGHTS: Final = "0, 0, 0, 2.0, 1.0, 0.5, 0.5, 0.4, 0"
# FTS5 fixes how much a document loses by being long. A tool that says little is no better than one that explains
# itself, so short rows are filled up to this many words, and neither lose nor gain.
FULL_LENGTH: Final = 100
MOST_CHARACTERS: Final = 20_000  # of a field
MOST_ROWS: Final = 1_500  # to be looked at for one question
MOST_COUNTS: Final = 20_000  # to be remembered


@dataclass(frozen=True)
class Content:
    """What an index is to hold."""

    documents: Mapping[Key, Document]
    digests: Mapping[Key, bytes]
    embedder: Embedder | None = None

    @property
    def stamp(self) -> str:
        """Of the rules by which documents become rows."""
        rules = f"{FORMAT} {SCHEMA} {TOPICS} {FULL_LENGTH} {self.embedder is not None}"
        return blake2b(rules.encode(), digest_size=4).hexdigest()

    @cached_property
    def digest(self) -> str:
        return blake2b(b"".join(sorted(self.digests.values())), digest_size=16).hexdigest()


class Index:
    def __init__(self, connection: sqlite3.Connection, digests: Mapping[Key, bytes]) -> None:
        keys = {value: key for key, value in digests.items()}
        rows = connection.execute("select rowid, digest from documents").fetchall()
        if {found for _, found in rows} != keys.keys():
            raise sqlite3.DatabaseError("the database does not hold what it should")
        self._connection = connection
        self._keys = {number: keys[found] for number, found in rows}
        self._counts: dict[str, int] = {}

    def close(self) -> None:
        self._connection.close()

    def count(self, term: str) -> int:
        """How many documents have the term."""
        if term not in self._counts:
            if len(self._counts) >= MOST_COUNTS:
                self._counts.clear()
            found = self._connection.execute("select count(*) from documents(?)", (f'"{term}"',))
            self._counts[term] = found.fetchone()[0]
        return self._counts[term]

    def best(self, terms: Iterable[str], kinds: frozenset[Kind], limit: int) -> Scored:
        """The documents that have any of the terms, with their scores, the best first."""
        return self._ranked(" OR ".join(f'"{term}"' for term in self._affordable(terms)), kinds, limit)

    def named(self, wanted: Iterable[str], kinds: frozenset[Kind], limit: int) -> Scored:
        """The same for those that have all the words in their names."""
        return self._ranked(" AND ".join(f'name : "{word}"' for word in wanted), kinds, limit)

    def vectors(self) -> list[tuple[Key, bytes]]:
        rows = self._connection.execute("select rowid, vector from documents").fetchall()
        if {number for number, _ in rows} != self._keys.keys() or len({len(vector or b"") for _, vector in rows}) != 1:
            raise sqlite3.DatabaseError("the vectors are not what they should be")
        return [(self._keys[number], vector) for number, vector in rows]

    def _affordable(self, terms: Iterable[str]) -> list[str]:
        """The rarest terms: what stands in every other document tells least and costs most."""
        chosen: list[str] = []
        rows = 0
        for count, term in sorted((self.count(term), term) for term in terms):
            if count and (rows == 0 or rows + count <= MOST_ROWS):
                chosen.append(term)
                rows += count
        return chosen

    def _ranked(self, expression: str, kinds: frozenset[Kind], limit: int) -> Scored:
        if not expression:
            return []
        if kinds != KINDS:
            allowed = " OR ".join(f'kind : "{_kind_term(kind)}"' for kind in sorted(kinds))
            expression = f"({allowed}) AND ({expression})"
        ranked = f"select rowid, -bm25(documents, {WEIGHTS}) from documents(?) order by 2 desc, 1 limit ?"  # noqa: S608
        rows = self._connection.execute(ranked, (expression, limit)).fetchall()
        if any(number not in self._keys for number, _ in rows):
            raise sqlite3.DatabaseError("the index speaks of documents that are not there")
        found = [(self._keys[number], score) for number, score in rows if score > 0]
        return sorted(
            found, key=lambda pair: (-pair[1], by_name(pair[0]))
        )  # not by rows: they stand in the order of changes


def digest(document: Document) -> bytes:
    fields = (document.kind, document.name, document.description, document.arguments, document.instructions)
    return blake2b(repr(fields).encode(), digest_size=16).digest()


def write(connection: sqlite3.Connection, content: Content) -> None:
    """Make the database hold this content; rows that are as they should be are not touched."""
    connection.execute(SCHEMA)
    wanted = {found: content.documents[key] for key, found in content.digests.items()}
    held = {found: number for number, found in connection.execute("select rowid, digest from documents")}
    gone = [(number,) for found, number in held.items() if found not in wanted]
    if len(gone) > len(held) // 2:  # another catalogue: a fresh start is cheaper
        connection.execute("drop table documents")
        connection.execute(SCHEMA)
        held, gone = {}, []
    missing = {found: document for found, document in wanted.items() if found not in held}
    with connection:
        connection.executemany("delete from documents where rowid = ?", gone)
        rows = _rows(missing, content.embedder)
        connection.executemany("insert into documents values (?, ?, ?, ?, ?, ?, ?, ?, ?)", rows)


def _rows(missing: Mapping[bytes, Document], embedder: Embedder | None) -> Iterator[tuple[bytes | str | None, ...]]:
    vectors: Iterable[bytes | None] = repeat(None, len(missing))
    if embedder is not None:
        vectors = embedder.packed([_passage(document) for document in missing.values()])
    for (found, document), vector in zip(missing.items(), vectors, strict=True):
        yield found, vector, _kind_term(document.kind), *_texts(document)


def _texts(document: Document) -> list[str]:
    fields = (document.name, document.description, document.arguments, document.instructions)
    texts = [words(field[:MOST_CHARACTERS]) for field in fields]
    texts.append(topics(texts[0]) + topics(texts[1]))
    texts.append([f"{HIDDEN}filling"] * (FULL_LENGTH - sum(len(text) for text in texts)))
    return [" ".join(text) for text in texts]


def _passage(document: Document) -> str:
    """What the document is about, for vectors. The name counts twice, as it does in full text."""
    return " ".join(telling(apart(f"{document.name} {document.name} {document.description}"[:MOST_CHARACTERS])))


def _kind_term(kind: Kind) -> str:
    return f"{HIDDEN}{kind}"
