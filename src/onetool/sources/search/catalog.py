"""The order of hits: names first (misspelled names last among them), then words and meaning.

The index finds candidates: documents with the rarest query words, and documents with a similar
meaning. Scores by words and by meaning are each divided by their best and added with a weight.
"""

import sqlite3
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from itertools import chain, islice
from pathlib import Path
from threading import Lock

from onetool.sources.search import (
    KINDS,
    MAX_TEXT_SCORE,
    Key,
    Kind,
    Match,
    Scored,
    SearchDocument,
    SearchHit,
    sort_key,
)
from onetool.sources.search.index import (
    LOW_SIMILARITY,
    MAX_IMPACT,
    NAME_PREFIX,
    Rarities,
    combine,
    compute_rarity,
)
from onetool.sources.search.index_reader import (
    Candidate,
    Content,
    IndexFiles,
    IndexReader,
    compute_digest,
    has_words,
)
from onetool.sources.search.words import (
    OTHER_WORDS,
    Vector,
    drop_stop_words,
    load_stemmer,
    load_word_vectors,
    plain,
    split_intents,
    strip_negation,
    words,
)
from onetool.util.bounded_dict import BoundedDict

MAX_QUERY_CHARACTERS = 4_000
MAX_WORDS = 64
MAX_SMALL = 8  # indexes of a few documents
MAX_NAME_WORDS = 4
CANDIDATES = 64  # of each reader, at least
CANDIDATE_FACTOR = 2  # times as many candidates as requested, because some may be hidden
MEANING_WEIGHT = 1.0  # of the best similarity; the best score of words counts 1
MIN_SIMILARITY = 0.5  # of meaning, for a document with none of the words
# The same, if no document has any of the words, or only one of two or three.
MIN_ONLY_SIMILARITY = 0.35
MAX_FEW_TERMS = 3
INTENT_WEIGHT = 0.5  # of the best document for a part of the query; the best for all of it counts 1
SCORES: Mapping[Match, tuple[float, float]] = {
    "exact": (1.0, 1.0),
    "prefix": (0.9, 1.0),
    "word": (0.8, 0.9),
    "fuzzy": (0.6, 0.8),
    "text": (0.0, MAX_TEXT_SCORE),
}

RankedMatch = tuple[Match, Key, float]
SmallIndex = tuple[IndexFiles, list[IndexReader]]


class Search:
    """The documents of this process, searched together with other readers. Thread-safe.

    `directory` is created when needed and may be shared by processes; None keeps the index in
    memory.
    """

    def __init__(self, directory: Path | None) -> None:
        self._lock = Lock()
        self._latest: Mapping[Key, SearchDocument] = {}
        self._files = IndexFiles(directory)
        self._documents: Mapping[Key, SearchDocument] = {}
        self._digests: dict[SearchDocument, bytes] = {}
        self._content: Content = {}
        self._readers: list[IndexReader] = []
        self._small: BoundedDict[tuple[SearchDocument, ...], SmallIndex] = BoundedDict(MAX_SMALL)

    def update(self, documents: Iterable[SearchDocument]) -> None:
        """Replace all documents, without waiting. The index is updated at the next query."""
        self._latest = {document.key: document for document in documents}

    def close(self) -> None:
        """Close the index. The next query opens it again."""
        with self._lock:
            self._files.close()
            self._readers = []
            self._small.clear()

    def search(
        self,
        query: str,
        limit: int = 20,
        kinds: Collection[Kind] = KINDS,
        readers: Sequence[IndexReader] = (),
        more: Iterable[SearchDocument] = (),
    ) -> list[SearchHit]:
        """Return the best hits first, from these documents, from `readers` and from `more`.

        A query has no syntax. `more` are a few documents, which are indexed in memory.
        """
        text = query[:MAX_QUERY_CHARACTERS]
        with self._lock:
            self._set_documents(self._latest)
            return self._search(text, limit, KINDS.intersection(kinds), readers, tuple(more))

    def _set_documents(self, documents: Mapping[Key, SearchDocument]) -> None:
        """Replace the documents. Unchanged documents are neither hashed nor written again."""
        if documents is self._documents:
            return
        digests = self._digests
        self._documents = documents
        self._digests = {
            document: digests.get(document) or compute_digest(document)
            for document in documents.values()
        }
        content = {digest: document for document, digest in self._digests.items()}
        if content.keys() != self._content.keys():
            self._readers = []
        self._content = content

    def _search(
        self,
        text: str,
        limit: int,
        kinds: frozenset[Kind],
        others: Sequence[IndexReader],
        more: tuple[SearchDocument, ...],
    ) -> list[SearchHit]:
        readers = [*others, *self._load_small(more)]
        limit = min(limit, len(self._content) + sum(reader.size for reader in readers))
        if limit < 1 or not kinds or not plain(text):
            return []
        try:
            return self._find_hits(text, limit, kinds, readers)
        except sqlite3.Error:  # the file was damaged while it was open
            self._files.delete()
            self._readers = []
            return self._find_hits(text, limit, kinds, readers)

    def _load_small(self, documents: tuple[SearchDocument, ...]) -> list[IndexReader]:
        """Return an index of these documents, which is kept for the next query."""
        if not documents:
            return []
        if documents not in self._small:
            files = IndexFiles(None)
            content = {compute_digest(document): document for document in documents}
            self._small[documents] = files, files.readers(content)
        return self._small[documents][1]

    def _find_hits(
        self, query: str, limit: int, kinds: frozenset[Kind], others: Sequence[IndexReader]
    ) -> list[SearchHit]:
        self._readers = self._readers or self._files.readers(self._content)
        parsed = _Query(query, [*self._readers, *others], kinds)
        matches = parsed.find(max(CANDIDATE_FACTOR * limit, CANDIDATES))
        return list(islice(_unique_hits(matches), limit))


class _Query:
    """A query over several readers: hits by match type, the best first in each, some repeated."""

    def __init__(self, query: str, readers: Sequence[IndexReader], kinds: frozenset[Kind]) -> None:
        self._query = query
        self._readers = readers
        self._kinds = kinds
        self._with_all: set[Key] = set()  # documents with all words of the query

    def find(self, limit: int) -> Iterator[RankedMatch]:
        ranked = self._rank_intents(limit)
        if len(self._query.split()) <= MAX_NAME_WORDS:
            yield from self._find_by_name(limit, ranked)
        yield from _to_fractions("text", ranked)

    def _rank_intents(self, limit: int) -> Scored:
        """Rank documents for the whole query, and move up the best ones for each part of it."""
        ranked = self._rank(self._query, limit)
        best = ranked[0][1] if ranked else 1.0
        bonus: dict[Key, float] = {}
        for part in split_intents(self._query):
            scored = self._rank(part, CANDIDATES)
            for key, score in scored:
                bonus[key] = max(bonus.get(key, 0.0), INTENT_WEIGHT * best * score / scored[0][1])
        if not bonus:
            return ranked
        totals = dict(ranked)
        for key, amount in bonus.items():
            totals[key] = totals.get(key, 0.0) + amount
        return sort_scores(totals.items())

    def _rank(self, text: str, limit: int) -> Scored:
        """Return the documents by their words and meaning, the best first."""
        query_words = words(text)
        # Outside of names, a number is a value.
        numbers = [NAME_PREFIX + word for word in query_words if word.isdecimal()]
        listed = drop_stop_words(query_words)[:MAX_WORDS]
        other_words = [OTHER_WORDS.get(word, word) for word in listed]
        positive_words = list(map(strip_negation, listed))
        stem = load_stemmer().stem
        stems = [stem(listed), stem(other_words), stem(positive_words)]
        counts = self._count([*chain.from_iterable(stems), *numbers])
        choices = zip(*stems, strict=True)
        terms = [next(filter(counts.__getitem__, forms), forms[0]) for forms in choices]
        return self._rank_terms(text, dict.fromkeys([*terms, *numbers]), counts, limit)

    def _rank_terms(
        self, text: str, terms: Collection[str], counts: Counter[str], limit: int
    ) -> Scored:
        size = sum(reader.size for reader in self._readers)
        rarities = {term: compute_rarity(size, counts[term]) for term in terms if counts[term]}
        unknown = sum(not counts[term] and not term.startswith(NAME_PREFIX) for term in terms)
        expected = 0.0
        if unknown and len(terms) <= MAX_FEW_TERMS:
            # A document with one of two words may be far from the query.
            expected = MAX_IMPACT * (sum(rarities.values()) + unknown * compute_rarity(size, 0))
        vector = load_word_vectors().encode_query(text)
        return self._rank_candidates(rarities, vector, limit, expected)

    def _rank_candidates(
        self, rarities: Rarities, vector: Vector, limit: int, expected: float
    ) -> Scored:
        """Return the candidates, the best first. Word scores are divided by at least `expected`."""
        candidates: list[Candidate] = []
        for reader in self._readers:
            listed = reader.find(rarities, vector, limit)
            candidates += [candidate for candidate in listed if candidate.key[0] in self._kinds]
        self._with_all.update(candidate.key for candidate in candidates if candidate.has_all)
        nearness = [max(0.0, candidate.similarity) for candidate in candidates]
        by_words = (1.0, expected or 1.0, [candidate.words for candidate in candidates])
        totals = combine([by_words, (MEANING_WEIGHT, LOW_SIMILARITY, nearness)])
        minimum = MIN_SIMILARITY if rarities and not expected else MIN_ONLY_SIMILARITY
        return sort_scores(
            (candidate.key, total)
            for candidate, total, near in zip(candidates, totals, nearness, strict=True)
            if candidate.words or near >= minimum
        )

    def _find_by_name(self, limit: int, ranked: Scored) -> Iterator[RankedMatch]:
        query = self._query
        keys = chain.from_iterable(reader.find_exact(query) for reader in self._readers)
        exact = [key for key in keys if key[0] in self._kinds]
        exact.sort(key=lambda key: (key[1] != query, sort_key(key)))
        yield from (("exact", key, 1.0) for key in exact)
        prefixed = self._query_all(lambda reader: reader.find_by_prefix(query, limit))
        yield from (("prefix", key, share) for key, share in prefixed)
        query_words = drop_stop_words(plain(query))
        stems = load_stemmer().stem(query_words)
        groups = [{stem} for stem in stems]
        by_words = [
            (key, score)
            for key, score in ranked
            if key in self._with_all and has_words(key[1], groups)
        ]
        yield from _to_fractions("word", by_words)
        counts = self._count(stems)
        pairs = zip(query_words, stems, strict=True)
        unknown = [word for word, stem in pairs if stem not in counts]
        if unknown:
            similar = self._query_all(lambda reader: reader.find_similar([query]))
            similar = similar or self._query_all(lambda reader: reader.find_similar(unknown))
            yield from (("fuzzy", key, similarity) for key, similarity in similar)

    def _count(self, terms: Sequence[str]) -> Counter[str]:
        """Return the number of documents with each term; terms that no document has are omitted."""
        return sum((Counter(reader.count(terms)) for reader in self._readers), Counter())

    def _query_all(self, query: Callable[[IndexReader], Scored]) -> Scored:
        pairs = chain.from_iterable(map(query, self._readers))
        return sort_scores((key, score) for key, score in pairs if key[0] in self._kinds)


def _unique_hits(matches: Iterator[RankedMatch]) -> Iterator[SearchHit]:
    seen: set[Key] = set()
    for match, key, share in matches:
        if key not in seen:
            seen.add(key)
            low, high = SCORES[match]
            yield SearchHit(*key, round(low + share * (high - low), 4), match)


def _to_fractions(match: Match, scored: Scored) -> Iterator[RankedMatch]:
    """Yield the scores as fractions of the best one."""
    best = max((score for _, score in scored), default=1.0)
    yield from ((match, key, score / best) for key, score in scored)


def sort_scores(scored: Iterable[tuple[Key, float]]) -> Scored:
    """Sort by descending score, then by name."""
    return sorted(scored, key=lambda pair: (-pair[1], sort_key(pair[0])))
