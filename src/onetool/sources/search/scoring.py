"""Scores of documents: BM25F over words, and similarity of meaning.

BM25F divides the occurrences of a word in each field by the length of the field, adds them with the
weight of the field, and saturates the sum. The usual lengths are constants, so the effect of a word
(its impact) depends only on the document, and is stored in the index. A score is the sum of the
impacts of the query's words, multiplied by how rare each word is. `benchmarks/search.py` measures
the effect of these parameters.
"""

from collections.abc import Iterable, Mapping, Sequence
from itertools import islice
from math import log

from onetool.sources.search.stems import load_stemmer

Rarities = Mapping[str, float]  # by term
FIELDS = (
    (3.0, 5),
    (1.0, 25),
    (0.5, 80),
    (0.5, 80),
)  # weight and usual length, in the order of the index
LENGTH_EFFECT = 0.6  # `b` of BM25
SATURATION = 1.2  # `k1` of BM25
MAX_IMPACT = 255
COVERAGE_EFFECT = 0.5  # how much more a document with all words of the query scores
LOW_SIMILARITY = 0.1  # if no document is nearer than this, similarity has little weight
NAME_PREFIX = "name:"  # of a term that is searched for in names only


def compute_impacts(fields: Sequence[Sequence[str]]) -> dict[str, int]:
    """Return the impact of each stem of a document, between 1 and MAX_IMPACT."""
    amounts: dict[str, float] = {}
    stems = iter(load_stemmer().stem([word for words in fields for word in words]))
    for place, (words, (weight, usual)) in enumerate(zip(fields, FIELDS, strict=True)):
        unit = weight / (1 - LENGTH_EFFECT + LENGTH_EFFECT * len(words) / usual)
        numbers = [] if place else [NAME_PREFIX + word for word in words if word.isdecimal()]
        for stem in [*islice(stems, len(words)), *numbers]:
            amounts[stem] = amounts.get(stem, 0.0) + unit
    return {
        stem: max(1, round(MAX_IMPACT * amount / (amount + SATURATION)))
        for stem, amount in amounts.items()
    }


def compute_rarity(size: int, count: int) -> float:
    """Return the weight of a term that `count` of `size` documents have.

    It is positive even if all have it.
    """
    return log(1 + (max(size, count) - count + 0.5) / (count + 0.5))


def score_words(rarities: Rarities, impacts: Mapping[str, int]) -> tuple[float, bool]:
    """Return the score of a document, and whether it has all terms."""
    terms = [term for term in rarities if term in impacts]
    score = sum([rarities[term] * impacts[term] for term in terms])
    coverage = len(terms) / max(1, len(rarities))
    return score * (1 + COVERAGE_EFFECT * coverage) / (1 + COVERAGE_EFFECT), coverage == 1


def combine(parts: Iterable[tuple[float, float, Sequence[float]]]) -> list[float]:
    """Add scores of different kinds, each divided by its best, or by a minimum, and multiplied by
    its weight.
    """
    scaled = []
    for weight, minimum, scores in parts:
        factor = weight / max(minimum, max(scores, default=0.0))
        scaled.append([factor * score for score in scores])
    return [sum(several) for several in zip(*scaled, strict=True)]
