"""The order of hits: names first (misspelled names last among them), then full text.

Full text and word vectors, if they are installed, are combined into one ranking: each score is divided by the best
score of its kind, and vectors have a lower weight.
"""

import sqlite3
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import islice
from pathlib import Path
from typing import Final

from onetool.search.documents import Key, Kind, Match, Scored, SearchDocument, SearchHit, sort_key
from onetool.search.index import Shelf, idf, select_terms, sort_scores
from onetool.search.index_files import IndexContent, IndexFiles, compute_digest
from onetool.search.vectors import Vectors, load_embedder
from onetool.search.words import drop_stop_words, plain, split_names, words

MAX_QUERY_CHARACTERS: Final = 4_000
MAX_WORDS: Final = 64
MAX_NAME_WORDS: Final = 4
CANDIDATES: Final = 200
SCORES: Final[Mapping[Match, tuple[float, float]]] = {
    "exact": (1.0, 1.0),
    "prefix": (0.9, 1.0),
    "word": (0.8, 0.9),
    "fuzzy": (0.6, 0.8),
    "text": (0.0, 0.6),
}

Found = tuple[Match, Key, float]


class SearchCatalog:
    """The documents of this process, searched together with other shelves."""

    def __init__(self, directory: Path | None, *, semantic: bool) -> None:
        self._files = IndexFiles(directory)
        self._content = IndexContent({}, {}, load_embedder() if semantic else None)
        self._shelf: Shelf | None = None
        self._vectors: Vectors | None = None

    def set_documents(self, documents: Mapping[Key, SearchDocument]) -> None:
        """Replace the documents. Unchanged documents are neither hashed nor written again."""
        before = self._content
        if documents is before.documents:
            return
        digests = {
            key: before.digests[key] if before.documents.get(key) == document else compute_digest(document)
            for key, document in documents.items()
        }
        self._content = IndexContent(documents, digests, before.embedder)
        if digests != before.digests:
            self._shelf = None

    def close(self) -> None:
        self._files.close()

    def search(self, query: str, limit: int, kinds: frozenset[Kind], shelves: Sequence[Shelf]) -> list[SearchHit]:
        text = query[:MAX_QUERY_CHARACTERS]
        limit = min(limit, len(self._content.documents) + sum(shelf.size for shelf in shelves))
        if limit < 1 or not kinds or not plain(text):
            return []
        try:
            return self._search(text, limit, kinds, shelves)
        except sqlite3.Error:  # the file was damaged while it was open
            self._files.delete(self._content)
            self._shelf = None
            return self._search(text, limit, kinds, shelves)

    def _search(self, query: str, limit: int, kinds: frozenset[Kind], others: Sequence[Shelf]) -> list[SearchHit]:
        if self._shelf is None:
            self._vectors = None
            self._shelf = self._files.shelf(self._content)
        found = _Query(query, [self._shelf, *others], kinds, self._blend).find(max(limit, CANDIDATES))
        return list(islice(_unique_hits(found), limit))

    def _blend(self, query: str, scored: Scored, question: "_Query") -> Scored:
        """Return the scores with semantic similarity added, if word vectors are installed."""
        embedder = self._content.embedder
        if embedder is None:
            return scored
        if self._vectors is None:
            self._vectors = Vectors(embedder, self._files.vectors(self._content))
        text = " ".join(drop_stop_words(split_names(query)))
        return self._vectors.blend(text, scored, question.kinds, question.passages)


class _Query:
    """A query over several shelves. It yields hits by match type, the best first in each; hits may repeat."""

    def __init__(
        self,
        query: str,
        shelves: Sequence[Shelf],
        kinds: frozenset[Kind],
        blend: "Callable[[str, Scored, _Query], Scored]",
    ) -> None:
        self._query, self._shelves, self.kinds, self._blend = query, shelves, kinds, blend

    def find(self, limit: int) -> Iterator[Found]:
        if len(self._query.split()) <= MAX_NAME_WORDS:
            yield from self._find_by_name(limit)
        query_words = words(self._query)
        numbers = (
            f"name : {word}" for word in query_words if word.isdecimal()
        )  # outside of names, a number is a value
        terms = list(dict.fromkeys([*drop_stop_words(query_words), *numbers]))[:MAX_WORDS]
        counts = {term: self._count(term) for term in terms}
        size = sum(shelf.size for shelf in self._shelves)
        rarities = {term: idf(size, counts[term]) for term in select_terms(counts)}
        scored = self._query_all(lambda shelf: shelf.rank(rarities, limit))[:limit]
        yield from _to_fractions("text", self._blend(self._query, scored, self)[:limit])

    def passages(self, keys: Sequence[Key]) -> list[str]:
        """Return the texts of stored tools, whose vectors are computed when needed and not stored."""
        texts = (shelf.passages(keys) for shelf in self._shelves[1:])
        return [next(filter(None, variants), "") for variants in zip(*texts, strict=True)]

    def _find_by_name(self, limit: int) -> Iterator[Found]:
        query, shelves = self._query, self._shelves
        exact = [key for shelf in shelves for key in shelf.find_exact(query) if key[0] in self.kinds]
        exact.sort(key=lambda key: (key[1] != query, sort_key(key)))
        yield from (("exact", key, 1.0) for key in exact)
        prefixed = self._query_all(lambda shelf: shelf.find_by_prefix(query, limit))
        yield from (("prefix", key, share) for key, share in prefixed)
        wanted = drop_stop_words(plain(query))
        yield from _to_fractions("word", self._query_all(lambda shelf: shelf.find_by_words(wanted)))
        if unknown := [word for word in wanted if not self._count(word)]:
            similar = self._query_all(lambda shelf: shelf.find_similar([query]))
            similar = similar or self._query_all(lambda shelf: shelf.find_similar(unknown))
            yield from (("fuzzy", key, similarity) for key, similarity in similar)

    def _count(self, term: str) -> int:
        return sum(shelf.count(term) for shelf in self._shelves)

    def _query_all(self, query: Callable[[Shelf], Scored]) -> Scored:
        return sort_scores(pair for shelf in self._shelves for pair in query(shelf) if pair[0][0] in self.kinds)


def _unique_hits(found: Iterator[Found]) -> Iterator[SearchHit]:
    seen: set[Key] = set()
    for match, key, share in found:
        if key not in seen:
            seen.add(key)
            low, high = SCORES[match]
            yield SearchHit(*key, round(low + share * (high - low), 4), match)


def _to_fractions(match: Match, scored: Scored) -> Iterator[Found]:
    """Yield the scores as fractions of the best one."""
    best = max((score for _, score in scored), default=1.0)
    yield from ((match, key, score / best) for key, score in scored)
