"""Similarity of meaning by word vectors that are part of this package: `RAM` is near `memory`.

`word_vectors.bin` has 64 dimensions of 4 bits for each of 16,100 English words.
`benchmarks/word_vectors.py` derives it from GloVe (public domain), trained further on summaries and
descriptions of public APIs. The vector of a text is the sum of its words. A sum is computed on
integers that hold all dimensions: importing numpy takes longer than a search.
"""

from array import array
from collections.abc import Iterable, Sequence
from functools import cache, lru_cache
from itertools import islice
from math import sqrt
from operator import mul
from pathlib import Path

from onetool.sources.search.words import drop_stop_words, split_names, strip_negation

FILE = Path(__file__).with_name("word_vectors.bin")
DIMENSIONS = 64
FIELD_WEIGHTS = (1.0, 1.0, 0.5)  # name, description, arguments
LANE_BYTES = 4  # of a dimension in a sum
OFFSET = 8 * 255  # added to each dimension, so that sums have no carries
MAX_WORDS = 400  # of a field
MAX_CACHED = 4_000  # words
SCALE = 127  # of a stored dimension
SIGNS = b"0" * 128 + b"1" * 128  # binary digits for the bytes of a vector

Vector = Sequence[float]


class WordVectors:
    """The vectors of words.

    `encode_document` and `encode_query` return vectors to be compared with `compare`.
    """

    def __init__(self, content: bytes) -> None:
        listed, _, self._content = content.partition(b"\0")
        self._places = {word: place for place, word in enumerate(listed.decode().split("\n"))}
        self._get_lanes = lru_cache(maxsize=MAX_CACHED)(self._read_lanes)

    def encode_document(self, fields: Iterable[str]) -> bytes:
        """Return the vector of a document, one byte for each dimension.

        Fields count equally, whatever their length.
        """
        total = [0.0] * DIMENSIONS
        for text, weight in zip(fields, FIELD_WEIGHTS, strict=True):
            vector = self._add_words(split_names(text))
            total = [value + weight * part for value, part in zip(total, vector, strict=True)]
        return array("b", [round(SCALE * value) for value in _normalize(total)]).tobytes()

    def encode_query(self, text: str) -> Vector:
        return self._add_words(split_names(text))

    def _add_words(self, text_words: list[str]) -> list[float]:
        places = self._places
        named = (
            word if word in places else strip_negation(word) for word in drop_stop_words(text_words)
        )
        vector_words = [word for word in named if word in places][:MAX_WORDS]
        total = sum(map(self._get_lanes, vector_words))
        lanes = memoryview(total.to_bytes(DIMENSIONS * LANE_BYTES, "little")).cast("I")
        return _normalize([lane - len(vector_words) * OFFSET for lane in lanes])

    def _read_lanes(self, word: str) -> int:
        """Return the vector of a word as an integer with one lane for each dimension."""
        place = self._places[word]
        width = DIMENSIONS // 2
        scale = self._content[place]
        start = len(self._places) + place * width
        pairs = self._content[start : start + width]
        values = (
            half * scale + OFFSET - 8 * scale for pair in pairs for half in (pair & 15, pair >> 4)
        )
        return int.from_bytes(array("I", values).tobytes(), "little")


class NearestVectors:
    """The vectors of many documents, of which the nearest ones are found by the signs of their
    dimensions.
    """

    def __init__(self, rows: Iterable[tuple[int, bytes]]) -> None:
        listed = list(rows)
        self._numbers = [number for number, _ in listed]
        self._signs = [int(vector.translate(SIGNS), 2) for _, vector in listed]

    def find(self, query: Vector, limit: int) -> list[int]:
        """Return about `limit` documents that may be the nearest, at most twice as many."""
        query_signs = int("".join("01"[value < 0] for value in query), 2)
        distances = bytes([(signs ^ query_signs).bit_count() for signs in self._signs])
        count = 0
        farthest = -1
        while count < min(limit, len(distances)):
            farthest += 1
            count += distances.count(farthest)
        near = [place for place, distance in enumerate(distances) if distance < farthest]
        ties = (place for place, distance in enumerate(distances) if distance == farthest)
        return [self._numbers[place] for place in (*near, *islice(ties, limit))]


def compare(query: Vector, document: bytes) -> float:
    """Return the cosine of two vectors."""
    total: float = sum(map(mul, query, memoryview(document).cast("b")))
    return total / SCALE


@cache
def load_word_vectors() -> WordVectors:
    return WordVectors(FILE.read_bytes())


def _normalize(vector: list[float] | list[int]) -> list[float]:
    length = sqrt(sum(map(mul, vector, vector))) or 1.0
    return [value / length for value in vector]
