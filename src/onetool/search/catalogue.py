"""How a question is answered: names first, names with a typing error last among them, then what the text is about.

Full text and word vectors, if they are installed, are two rankings made one: each score is divided by the best of its
kind, and the vectors count less.
"""

import sqlite3
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import islice
from pathlib import Path
from typing import Final

from onetool.search.documents import Document, Hit, Key, Kind, Match, Scored, by_name
from onetool.search.index import Shelf, affordable, idf, merged
from onetool.search.store import Content, Store, digest
from onetool.search.vectors import Vectors, load_embedder
from onetool.search.words import apart, plain, telling, words

MAX_QUERY_CHARACTERS: Final = 4_000
MAX_WORDS: Final = 64
MAX_WORDS_OF_A_NAME: Final = 4
CANDIDATES: Final = 200
SCORES: Final[Mapping[Match, tuple[float, float]]] = {
    "exact": (1.0, 1.0),
    "prefix": (0.9, 1.0),
    "word": (0.8, 0.9),
    "fuzzy": (0.6, 0.8),
    "text": (0.0, 0.6),
}

Found = tuple[Match, Key, float]


class Catalogue:
    """The documents of this process, and what is needed to find them together with those on other shelves."""

    def __init__(self, folder: Path | None, *, semantic: bool) -> None:
        self._store = Store(folder)
        self._content = Content({}, {}, load_embedder() if semantic else None)
        self._shelf: Shelf | None = None
        self._vectors: Vectors | None = None

    def hold(self, documents: Mapping[Key, Document]) -> None:
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
            self._shelf = None

    def close(self) -> None:
        self._store.close()

    def search(self, query: str, limit: int, kinds: frozenset[Kind], shelves: Sequence[Shelf]) -> list[Hit]:
        text = query[:MAX_QUERY_CHARACTERS]
        most = min(limit, len(self._content.documents) + sum(shelf.size for shelf in shelves))
        if most < 1 or not kinds or not plain(text):
            return []
        try:
            return self._search(text, most, kinds, shelves)
        except sqlite3.Error:  # the file broke while it was open
            self._store.forget(self._content)
            self._shelf = None
            return self._search(text, most, kinds, shelves)

    def _search(self, query: str, limit: int, kinds: frozenset[Kind], others: Sequence[Shelf]) -> list[Hit]:
        if self._shelf is None:
            self._vectors = None
            self._shelf = self._store.shelf(self._content)
        found = _Question(query, [self._shelf, *others], kinds, self._blend).found(max(limit, CANDIDATES))
        return list(islice(_each_once(found), limit))

    def _blend(self, query: str, scored: Scored, question: "_Question") -> Scored:
        """The scores with nearness in meaning added, if word vectors are installed."""
        embedder = self._content.embedder
        if embedder is None:
            return scored
        if self._vectors is None:
            self._vectors = Vectors(embedder, self._store.vectors(self._content))
        text = " ".join(telling(apart(query)))
        return self._vectors.blended(text, scored, question.kinds, question.passages)


class _Question:
    """Everything that fits a question, class by class and the best first in each; what fits twice comes twice."""

    def __init__(
        self,
        query: str,
        shelves: Sequence[Shelf],
        kinds: frozenset[Kind],
        blend: "Callable[[str, Scored, _Question], Scored]",
    ) -> None:
        self._query, self._shelves, self.kinds, self._blend = query, shelves, kinds, blend

    def found(self, limit: int) -> Iterator[Found]:
        if len(self._query.split()) <= MAX_WORDS_OF_A_NAME:
            yield from self._by_name(limit)
        spoken = words(self._query)
        numbers = (f"name : {word}" for word in spoken if word.isdecimal())  # elsewhere it is a value
        terms = list(dict.fromkeys([*telling(spoken), *numbers]))[:MAX_WORDS]
        counts = {term: self._count(term) for term in terms}
        size = sum(shelf.size for shelf in self._shelves)
        rarities = {term: idf(size, counts[term]) for term in affordable(counts)}
        scored = self._from_all(lambda shelf: shelf.best(rarities, limit))[:limit]
        yield from _shares("text", self._blend(self._query, scored, self)[:limit])

    def passages(self, keys: Sequence[Key]) -> list[str]:
        """What stored tools are about: their vectors are made when they are needed, and not kept."""
        texts = (shelf.passages(keys) for shelf in self._shelves[1:])
        return [next(filter(None, several), "") for several in zip(*texts, strict=True)]

    def _by_name(self, limit: int) -> Iterator[Found]:
        query, shelves = self._query, self._shelves
        exact = [key for shelf in shelves for key in shelf.exact(query) if key[0] in self.kinds]
        exact.sort(key=lambda key: (key[1] != query, by_name(key)))
        yield from (("exact", key, 1.0) for key in exact)
        begun = self._from_all(lambda shelf: shelf.beginning(query, limit))
        yield from (("prefix", key, share) for key, share in begun)
        wanted = telling(plain(query))
        yield from _shares("word", self._from_all(lambda shelf: shelf.named(wanted)))
        if unknown := [word for word in wanted if not self._count(word)]:
            alike = self._from_all(lambda shelf: shelf.alike([query]))
            alike = alike or self._from_all(lambda shelf: shelf.alike(unknown))
            yield from (("fuzzy", key, likeness) for key, likeness in alike)

    def _count(self, term: str) -> int:
        return sum(shelf.count(term) for shelf in self._shelves)

    def _from_all(self, ask: Callable[[Shelf], Scored]) -> Scored:
        return merged(pair for shelf in self._shelves for pair in ask(shelf) if pair[0][0] in self.kinds)


def _each_once(found: Iterator[Found]) -> Iterator[Hit]:
    seen: set[Key] = set()
    for match, key, share in found:
        if key not in seen:
            seen.add(key)
            low, high = SCORES[match]
            yield Hit(*key, round(low + share * (high - low), 4), match)


def _shares(match: Match, scored: Scored) -> Iterator[Found]:
    """The scores as shares of the best one."""
    best = max((score for _, score in scored), default=1.0)
    yield from ((match, key, score / best) for key, score in scored)
