"""Words, the same for documents and queries: tokenization, stems and word vectors.

Tokenization ignores case and diacritics; names are split at dots, underscores, hyphens and
capitals, and also kept whole. A table of SQLite FTS5 with one word per row shows the stem of each.

Word vectors compare meanings: `RAM` is near `memory`. `word_vectors.bin` has 64 dimensions of 4
bits for each of 16,100 English words. `benchmarks/word_vectors.py` derives it from GloVe (public
domain), trained further on summaries and descriptions of public APIs. The vector of a text is the
sum of its words. A sum is computed on integers that hold all dimensions: importing numpy takes
longer than a search.
"""

import re
import sqlite3
import unicodedata
from array import array
from collections.abc import Iterable, Sequence
from functools import cache, lru_cache
from itertools import islice
from math import sqrt
from operator import mul
from pathlib import Path
from threading import Lock

from onetool.util.bounded_dict import BoundedDict

PLAIN_RUN = re.compile(r"[a-z\d]+")
# In scripts without spaces between words, every character is a word.
RUN = re.compile(
    r"[\u3040-\u30ff\u3400-\u9fff\uf900-\ufaff]|[^\W_\u3040-\u30ff\u3400-\u9fff\uf900-\ufaff]+"
)
HUMP = re.compile(r"(?<=[a-z\d])(?=[A-Z])|(?<=[A-Z])(?=[A-Z][a-z])")
# Words without meaning in a query.
STOP_WORDS = """
a about above after again against all also am an and any anyone anything are as at be because been before being
below between both but by can cannot could did do does doing down during each especially ever everything exactly
few for from further going got had has have having he her here hers herself him himself his how i if in into is
it its itself just let lot lots many maybe me might mind more most much must my myself no nor not now of off on
once only or other ought our ours ourselves out over own possible possibly quite rather really regarding same
she should so some someone something stuff such sure than that the their theirs them themselves then there these
they thing things this those through to too under until up very was way ways we well were what when where
whether which while who whom why will with within without would yes yet you your yours yourself yourselves
assist assistance curious currently give heard hello help hey hi hope idea interested interesting kindly know
like looking need okay please right seek seeking seem seems specifically tell thank thanks think today tomorrow
try trying upcoming want wanted wants wondering
aren couldn d didn doesn don hadn hasn haven isn ll m mustn o re s shan shouldn t ve wasn weren won wouldn y
"""
STOP = frozenset(STOP_WORDS.split())
BETWEEN_INTENTS = re.compile(
    r"[;\n]|,\s++and\s++|(?:,|(?<!\s)\s)\s*+(?:and\s++)?then\s++|(?<!\s)\s++and\s++(?:also|afterwards|finally)\s++",
    re.IGNORECASE,
)
# Words that tools have other words for. If a word is in no document, the other one is searched for.
# Word vectors find words of similar meaning: this list is for what they do not know.
OTHER_WORDS = {
    "uncommitted": "status",
    "untracked": "status",
    "ram": "memory",
    "cpu": "processor",
    "processor": "cpu",
    "repo": "repository",
    "repos": "repository",
    "db": "database",
    "env": "environment",
    "config": "configuration",
    "auth": "authentication",
    "dir": "directory",
    "pic": "image",
    "postgres": "postgresql",
    "k8s": "kubernetes",
}
NEGATION = re.compile(r"(?:un|non)(?=[a-z]{4})")
MIN_INTENT_WORDS = 2  # fewer words say too little
MAX_INTENTS = 4  # more searches take too long
MIN_TYPO_LENGTH = 4  # letters of a word that may be misspelled
MAX_TYPO_LENGTH = 32
HIDDEN = "\ue000"  # starts internal words of the index: a letter to FTS5, and never part of a query
MAX_STEMS = 20_000  # to remember
STEM_SCHEMA = """
create virtual table words using fts5(word, tokenize = 'porter unicode61 remove_diacritics 0');
create virtual table stems using fts5vocab(words, instance);
"""
FILE = Path(__file__).with_name("word_vectors.bin")
DIMENSIONS = 64
FIELD_WEIGHTS = (1.0, 1.0, 0.5)  # name, description, arguments
LANE_BYTES = 4  # of a dimension in a sum
OFFSET = 8 * 255  # added to each dimension, so that sums have no carries
MAX_FIELD_WORDS = 400  # of a field
MAX_CACHED = 4_000  # words
SCALE = 127  # of a stored dimension
SIGNS = b"0" * 128 + b"1" * 128  # binary digits for the bytes of a vector
Vector = Sequence[float]


def fold(text: str) -> str:
    """Remove case and diacritics."""
    if text.isascii():
        return text.lower()
    marked = unicodedata.normalize("NFKD", text)
    return "".join(letter for letter in marked if not unicodedata.combining(letter)).casefold()


def plain(text: str) -> list[str]:
    """Return all words of the text, without splitting names."""
    folded = fold(text)
    return (PLAIN_RUN if folded.isascii() else RUN).findall(folded)


def words(text: str) -> list[str]:
    """Return all words of the text; `getUserName` yields itself and its parts."""
    whole = plain(text)
    apart = HUMP.sub(" ", text)
    if len(apart) == len(text):
        return whole
    whole_words = set(whole)
    return whole + [word for word in plain(apart) if word not in whole_words]


def squeeze(text: str) -> str:
    """Join all words of the text: `get-sum`, `getSum` and `get sum` are all `getsum`."""
    return "".join(plain(text))


def drop_stop_words(text_words: Iterable[str]) -> list[str]:
    """Return the words without stop words and numbers, unless there is nothing else."""
    listed = list(text_words)
    return [word for word in listed if word not in STOP and not word.isdecimal()] or listed


def split_names(text: str) -> list[str]:
    """Return all words of the text, with `getUserName` only as its parts."""
    return plain(HUMP.sub(" ", text))


def split_intents(text: str) -> list[str]:
    """Return the parts of a request that may each need a tool; empty if there is only one.

    A part without enough words of its own belongs to the part before it.
    """
    parts: list[str] = []
    for part in BETWEEN_INTENTS.split(text):
        if parts and min(map(_count_words, (part, parts[-1]))) < MIN_INTENT_WORDS:
            parts[-1] += f" {part}"
        elif part.strip():
            parts.append(part)
    return parts[:MAX_INTENTS] if len(parts) > 1 else []


def _count_words(text: str) -> int:
    return sum(word not in STOP and not word.isdecimal() for word in split_names(text))


def strip_negation(word: str) -> str:
    """Return the word without a negation: `uncommitted` yields `committed`."""
    match = NEGATION.match(word)
    return word[match.end() :] if match else word


def may_be_misspelled(word: str) -> bool:
    """Return whether the word may be misspelled.

    Numbers are not: `v12` is not a typing error for `v13`.
    """
    return MIN_TYPO_LENGTH <= len(word) <= MAX_TYPO_LENGTH and word.isalpha()


def deletions(word: str) -> set[str]:
    """Return the word and its one-letter deletions.

    Words that are one typing error apart share one of these.
    """
    return {word, *(word[:at] + word[at + 1 :] for at in range(len(word)))}


def is_one_typo_away(word: str, other: str) -> bool:
    """Return whether one letter is missing, added or wrong, or two neighbors are swapped."""
    from rapidfuzz.distance import OSA

    return (
        may_be_misspelled(word)
        and may_be_misspelled(other)
        and OSA.distance(word, other, score_cutoff=1) <= 1
    )


# --- stems ----------------------------------------------------------------------------------------


class Stemmer:
    """Stems of words. Thread-safe."""

    def __init__(self) -> None:
        self._database = sqlite3.connect(":memory:", check_same_thread=False, isolation_level=None)
        self._database.executescript(STEM_SCHEMA)
        self._stems: BoundedDict[str, str] = BoundedDict(MAX_STEMS)
        self._lock = Lock()

    def __del__(self) -> None:
        self._database.close()  # Python warns about databases that are left open

    def stem(self, words: Sequence[str]) -> list[str]:
        """Return the stem of each word. Words with digits have no suffixes."""
        try:
            return [self._stems[word] if word.isalpha() else word for word in words]
        except KeyError:
            with self._lock:
                self._learn(filter(str.isalpha, words))
                return [self._stems.get(word, word) for word in words]

    def _learn(self, words: Iterable[str]) -> None:
        unknown = sorted(set(words).difference(self._stems))
        self._database.execute("begin")
        insert = "insert into words (rowid, word) values (?, ?)"
        self._database.executemany(insert, enumerate(unknown))
        stems = dict(self._database.execute("select doc, term from stems"))
        self._database.execute("rollback")
        for place, word in enumerate(unknown):
            self._stems[word] = stems.get(place, word)


@cache
def load_stemmer() -> Stemmer:
    return Stemmer()


# --- vectors --------------------------------------------------------------------------------------


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
        listed = drop_stop_words(text_words)
        named = (word if word in places else strip_negation(word) for word in listed)
        vector_words = [word for word in named if word in places][:MAX_FIELD_WORDS]
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
        halves = (half for pair in pairs for half in (pair & 15, pair >> 4))
        values = ((half - 8) * scale + OFFSET for half in halves)
        return int.from_bytes(array("I", values).tobytes(), "little")


class NearestVectors:
    """Document vectors, searched by the signs of their dimensions."""

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
