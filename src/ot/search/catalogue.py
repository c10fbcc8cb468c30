"""How a question is answered: names first, names with a typing error last among them, then what the text is about.

Full text and word vectors, where they are installed, are two rankings made one: each score is divided by the best of
its kind, and the vectors count less.
"""

import sqlite3
from collections.abc import Iterator, Mapping
from itertools import islice
from pathlib import Path
from typing import Final

from ot.search.documents import Document, Hit, Key, Kind, Match, Scored
from ot.search.index import Content, Index, digest
from ot.search.names import Names
from ot.search.store import Store
from ot.search.vectors import Vectors, load_embedder
from ot.search.words import apart, plain, telling, topics, words

MOST_CHARACTERS: Final = 4_000  # of a question
MOST_WORDS: Final = 64
MOST_WORDS_OF_A_NAME: Final = 4
CANDIDATES: Final = 200
SCORES: Final[Mapping[Match, tuple[float, float]]] = {
    "exact": (1.0, 1.0),
    "prefix": (0.9, 1.0),
    "word": (0.8, 0.9),
    "fuzzy": (0.6, 0.8),
    "text": (0.0, 0.6),
}

Documents = Mapping[Key, Document]
Found = tuple[Match, Key, float]


class Catalogue:
    """All documents of now, and what is needed to find them."""

    def __init__(self, folder: Path | None, *, semantic: bool) -> None:
        self._store = Store(folder)
        self._names = Names(())
        self._content = Content({}, {}, load_embedder() if semantic else None)
        self._index: Index | None = None
        self._vectors: Vectors | None = None

    def hold(self, documents: Documents) -> None:
        """Make these the documents. What is as it was is neither hashed nor written again."""
        before = self._content
        if documents is before.documents:
            return
        digests = {
            key: before.digests[key] if before.documents.get(key) == document else digest(document)
            for key, document in documents.items()
        }
        self._content = Content(documents, digests, before.embedder)
        if digests != before.digests:
            self._index = None

    def close(self) -> None:
        self._store.close()

    def search(self, query: str, limit: int, kinds: frozenset[Kind]) -> list[Hit]:
        text, most = query[:MOST_CHARACTERS], min(limit, len(self._content.documents))
        if most < 1 or not kinds or not plain(text):
            return []
        try:
            return list(islice(self._hits(text, most, kinds), most))
        except sqlite3.Error:  # the file broke while it was open
            self._store.forget(self._content)
            self._index = None
            return list(islice(self._hits(text, most, kinds), most))

    def _loaded(self) -> Index:
        if self._index is None:
            self._vectors = None
            if not self._names.are(self._content.documents.keys()):
                self._names = Names(self._content.documents)
            self._index = self._store.index(self._content)
        return self._index

    def _hits(self, query: str, limit: int, kinds: frozenset[Kind]) -> Iterator[Hit]:
        seen: set[Key] = set()
        for match, key, share in self._found(self._loaded(), query, limit, kinds):
            if key not in seen and key[0] in kinds:
                seen.add(key)
                low, high = SCORES[match]
                yield Hit(*key, round(low + share * (high - low), 4), match)

    def _found(self, index: Index, query: str, limit: int, kinds: frozenset[Kind]) -> Iterator[Found]:
        """Everything that fits, class by class and the best first in each; what fits twice comes twice."""
        if len(query.split()) <= MOST_WORDS_OF_A_NAME:
            yield from self._by_name(index, query, kinds)
        terms = list(dict.fromkeys(telling(words(query))))[:MOST_WORDS]
        most = max(limit, CANDIDATES)
        scored = index.best([*terms, *topics(terms)], kinds, most)
        embedder = self._content.embedder
        if embedder is not None:
            self._vectors = self._vectors or Vectors(embedder, index.vectors())
            scored = self._vectors.blended(" ".join(telling(apart(query))), scored, kinds, most)
        yield from _shares("text", scored)

    def _by_name(self, index: Index, query: str, kinds: frozenset[Kind]) -> Iterator[Found]:
        yield from (("exact", key, 1.0) for key in self._names.exact(query))
        yield from (("prefix", key, share) for key, share in self._names.beginning(query))
        wanted = telling(plain(query))
        yield from _shares("word", index.named(wanted, kinds, CANDIDATES))
        if unknown := [word for word in wanted if not index.count(word)]:
            alike = self._names.alike([query]) or self._names.alike(unknown)
            yield from (("fuzzy", key, likeness) for key, likeness in alike)


def _shares(match: Match, scored: Scored) -> Iterator[Found]:
    """The scores as shares of the best one."""
    best = max((score for _, score in scored), default=1.0)
    yield from ((match, key, score / best) for key, score in scored)
