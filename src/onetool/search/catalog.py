"""The order of hits: names first (misspelled names last among them), then words and meaning.

The index finds candidates: documents with the rarest words of the query, and documents with a similar meaning.
`scoring` ranks them. Scores of words and of meaning are each divided by the best of their kind and added with a weight.
"""

import sqlite3
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import islice
from pathlib import Path
from typing import Any, Final

from onetool.search.documents import Key, Kind, Match, Scored, SearchDocument, SearchHit, sort_key
from onetool.search.index import IndexRow, Shelf, rarity, select_terms, sort_scores
from onetool.search.index_files import IndexContent, IndexFiles, compute_digest
from onetool.search.scoring import (
    MEANING_WEIGHT,
    MIN_ONLY_SIMILARITY,
    MIN_SIMILARITY,
    NAME_PREFIX,
    combine,
    score_rows,
)
from onetool.search.stems import Stemmer
from onetool.search.vectors import Embedder, Vectors, load_embedder
from onetool.search.word_vectors import Vector, load_word_vectors
from onetool.search.words import drop_stop_words, plain, split_intents, words

MAX_QUERY_CHARACTERS: Final = 4_000
MAX_WORDS: Final = 64
MAX_NAME_WORDS: Final = 4
CANDIDATES: Final = 200
MAX_RANKED: Final = 64  # candidates of a shelf whose words are read
MAX_NEAREST: Final = 32  # candidates of a shelf by meaning
INTENT_WEIGHT: Final = 0.5  # of the best document for a part of the query; the best for all of it counts 1
SEMANTIC_WEIGHTS: Final = (0.6, 0.8)  # of similarity with the own vectors and with those of the extra `semantic`
SCORES: Final[Mapping[Match, tuple[float, float]]] = {
    "exact": (1.0, 1.0),
    "prefix": (0.9, 1.0),
    "word": (0.8, 0.9),
    "fuzzy": (0.6, 0.8),
    "text": (0.0, 0.6),
}

MIN_SEMANTIC_SIMILARITY: Final = 0.3  # for a document with none of the words; random letters reach 0.2

Found = tuple[Match, Key, float]
Ranked = list[tuple[int, float]]


class SearchCatalog:
    """The documents of this process, searched together with other shelves."""

    def __init__(self, directory: Path | None, *, semantic: bool) -> None:
        self._files = IndexFiles(directory)
        self._content = IndexContent({}, {}, load_embedder() if semantic else None)
        self._shelf: Shelf | None = None
        self._vectors: Vectors | None = None
        self._stemmer = Stemmer()

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
        self._stemmer.close()

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
        found = _Query(query, [self._shelf, *others], kinds, self._stemmer, self._load_similarity(query)).find(
            max(limit, CANDIDATES)
        )
        return list(islice(_unique_hits(found), limit))

    def _load_similarity(self, query: str) -> "_Similarity | None":
        embedder = self._content.embedder
        if embedder is None:
            return None
        if self._vectors is None:
            self._vectors = Vectors(embedder, self._files.vectors())
        return _Similarity(embedder, self._vectors, embedder.encode([query])[0])


class _Similarity:
    """The similarity of documents to a query with the vectors of the extra `semantic`."""

    def __init__(self, embedder: Embedder, vectors: Vectors, query: Any) -> None:
        self._embedder, self._vectors, self._query = embedder, vectors, query

    def find(self, limit: int) -> list[int]:
        """Return the nearest documents of the first shelf."""
        return self._vectors.find(self._query, limit)

    def compare(self, rows: Sequence[IndexRow], *, stored: bool) -> list[float]:
        if not stored:
            return self._vectors.compare(self._query, rows)
        vectors = self._embedder.encode_documents([row.fields[:2] for row in rows])  # computed on demand, not stored
        found: list[float] = (vectors @ self._query).tolist()
        return found


class _Query:
    """A query over several shelves. It yields hits by match type, the best first in each; hits may repeat."""

    def __init__(
        self,
        query: str,
        shelves: Sequence[Shelf],
        kinds: frozenset[Kind],
        stemmer: Stemmer,
        similarity: _Similarity | None,
    ) -> None:
        self._query, self._shelves, self._kinds = query, shelves, kinds
        self._stemmer, self._similarity = stemmer, similarity

    def find(self, limit: int) -> Iterator[Found]:
        if len(self._query.split()) <= MAX_NAME_WORDS:
            yield from self._find_by_name(limit)
        yield from _to_fractions("text", self._rank_intents(limit))

    def _rank_intents(self, limit: int) -> Scored:
        """Return the documents for the whole query, in which the best ones for each part of it move up."""
        ranked = self._rank(self._query, limit)
        best = ranked[0][1] if ranked else 0.0
        bonus: dict[Key, float] = {}
        for part in split_intents(self._query):
            found = self._rank(part, MAX_RANKED)
            for key, score in found[:MAX_RANKED]:
                bonus[key] = max(bonus.get(key, 0.0), INTENT_WEIGHT * best * score / found[0][1])
        if not bonus:
            return ranked
        known = dict(ranked)
        return sort_scores((key, known.get(key, 0.0) + bonus.get(key, 0.0)) for key in {**known, **bonus})

    def _rank(self, text: str, limit: int) -> Scored:
        """Return the documents by their words and meaning, the best first."""
        query_words = words(text)
        numbers = (NAME_PREFIX + word for word in query_words if word.isdecimal())  # elsewhere, a number is a value
        terms = list(dict.fromkeys([*drop_stop_words(query_words), *numbers]))[:MAX_WORDS]
        self._stemmer.learn(terms)
        counts = {term: self._count(term) for term in terms}
        size = sum(shelf.size for shelf in self._shelves)
        by_term = {term: rarity(size, count) for term, count in counts.items() if count}
        selected = {term: by_term[term] for term in select_terms(counts)}
        found = [shelf.find_by_terms(selected, limit) for shelf in self._shelves]
        vector = load_word_vectors().encode_query(text)
        best = self._rank_candidates(found, vector, {self._stem(term): weight for term, weight in by_term.items()})
        return [*best, *self._rank_others(found, best)]

    def _rank_candidates(self, found: "Sequence[Ranked]", vector: Vector, rarities: Mapping[str, float]) -> Scored:
        candidates, similarities = [], []
        for place, shelf in enumerate(self._shelves):
            numbers = [number for number, _ in found[place][:MAX_RANKED]]
            numbers += shelf.find_by_meaning(vector, MAX_NEAREST)
            if self._similarity and place == 0:
                numbers += self._similarity.find(MAX_NEAREST)
            rows = [row for row in shelf.read_rows(list(dict.fromkeys(numbers))) if row.key[0] in self._kinds]
            candidates += score_rows(rows, rarities, vector, self._stemmer)
            similarities += self._similarity.compare(rows, stored=place > 0) if self._similarity and rows else []
        weights = SEMANTIC_WEIGHTS if self._similarity else (MEANING_WEIGHT, 0.0)
        nearness = [max(0.0, one.similarity) for one in candidates]
        more = [max(0.0, similarity) for similarity in similarities or [0.0] * len(candidates)]
        totals = combine([(1.0, [one.words for one in candidates]), (weights[0], nearness), (weights[1], more)])
        minimum = MIN_SIMILARITY if any(one.words for one in candidates) else MIN_ONLY_SIMILARITY
        return sort_scores(
            (one.key, total)
            for one, total, near, semantic in zip(candidates, totals, nearness, more, strict=True)
            if one.words or near >= minimum or semantic >= MIN_SEMANTIC_SIMILARITY
        )

    def _rank_others(self, found: "Sequence[Ranked]", ranked: Scored) -> Scored:
        """Return the documents that were not ranked as candidates, in the order of the index, after those."""
        others: Scored = []
        for shelf, listed in zip(self._shelves, found, strict=True):
            scores = dict(listed[MAX_RANKED:])
            others += [(key, scores[number]) for number, key in shelf.read_keys(list(scores)).items()]
        known = {key for key, _ in ranked}
        others = [(key, score) for key, score in others if key[0] in self._kinds and key not in known]
        factor = min((score for _, score in ranked), default=1.0) / max((score for _, score in others), default=1.0)
        return sort_scores((key, score * factor) for key, score in others)

    def _stem(self, term: str) -> str:
        return term if term.startswith(NAME_PREFIX) else self._stemmer.stem(term)

    def _find_by_name(self, limit: int) -> Iterator[Found]:
        query, shelves = self._query, self._shelves
        exact = [key for shelf in shelves for key in shelf.find_exact(query) if key[0] in self._kinds]
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
        return sort_scores(pair for shelf in self._shelves for pair in query(shelf) if pair[0][0] in self._kinds)


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
