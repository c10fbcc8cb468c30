"""Scores of documents: BM25F over words, and similarity of meaning.

BM25F divides the occurrences of a word in each field by the length of the field, adds them with the weight of the
field, and saturates the sum. The usual lengths are constants, so that a score depends only on the document and the
frequencies of words. `benchmarks/search.py` measures the effect of these parameters.
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import Final, NamedTuple

from onetool.search.documents import Key
from onetool.search.index import IndexRow
from onetool.search.stems import Stemmer
from onetool.search.word_vectors import Vector, compare

FIELDS: Final = ((3.0, 5), (1.0, 25), (0.5, 40), (0.5, 40))  # weight and usual length, in the order of the index
LENGTH_EFFECT: Final = 0.6  # `b` of BM25
SATURATION: Final = 1.2  # `k1` of BM25
MEANING_WEIGHT: Final = 0.8  # of the best similarity; the best score of words counts 1
MIN_SIMILARITY: Final = 0.5  # of meaning, for a document with none of the words
MIN_ONLY_SIMILARITY: Final = 0.35  # the same, if no document has any of the words
LOW_SIMILARITY: Final = 0.1  # if no document is nearer than this, similarity has little weight
NAME_PREFIX: Final = "name : "  # of a term that is searched for in names only


class Candidate(NamedTuple):
    key: Key
    words: float
    similarity: float


def score_rows(
    rows: Sequence[IndexRow], rarities: Mapping[str, float], query: Vector, stemmer: Stemmer
) -> list[Candidate]:
    """Return the rows with their scores. `rarities` are the weights of the stems of the query."""
    split = [[text.split() for text in row.fields] for row in rows]
    stemmer.learn({word for fields in split for words in fields for word in words})
    stems = {form: stem for stem in rarities for form in stemmer.list_forms(stem)}
    stems |= {term: term for term in rarities if term.startswith(NAME_PREFIX)}
    scores = (score_words(fields, stems, rarities) for fields in split)
    return [Candidate(row.key, score, compare(query, row.meaning)) for row, score in zip(rows, scores, strict=True)]


def score_words(fields: Sequence[list[str]], stems: Mapping[str, str], rarities: Mapping[str, float]) -> float:
    """Return the BM25F score of a document. `stems` are the stems of the words that count."""
    amounts: dict[str, float] = {}
    for place, (words, (weight, usual)) in enumerate(zip(fields, FIELDS, strict=True)):
        unit = weight / (1 - LENGTH_EFFECT + LENGTH_EFFECT * len(words) / usual)
        found = words if place else [*words, *(NAME_PREFIX + word for word in words if word.isdecimal())]
        for word in stems.keys() & found:
            amounts[stems[word]] = amounts.get(stems[word], 0.0) + unit * found.count(word)
    saturated = ((stem, amount * (SATURATION + 1) / (amount + SATURATION)) for stem, amount in amounts.items())
    return sum(rarities[stem] * amount for stem, amount in saturated)


def combine(parts: Iterable[tuple[float, Sequence[float]]]) -> list[float]:
    """Add scores of different kinds, each divided by its best and multiplied by its weight."""
    scaled = []
    for weight, scores in parts:
        factor = weight / max(LOW_SIMILARITY, max(scores, default=0.0))
        scaled.append([factor * score for score in scores])
    return [sum(several) for several in zip(*scaled, strict=True)]
