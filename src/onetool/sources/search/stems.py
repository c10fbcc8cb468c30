"""Word stems: a table of SQLite FTS5 with one word per row shows the stem of each."""

import sqlite3
from collections.abc import Iterable, Sequence
from functools import cache
from threading import Lock

from onetool.util.bounded_dict import BoundedDict

MAX_WORDS = 20_000  # to remember
SCHEMA = """
create virtual table words using fts5(word, tokenize = 'porter unicode61 remove_diacritics 0');
create virtual table stems using fts5vocab(words, instance);
"""


class Stemmer:
    """Stems of words. Thread-safe."""

    def __init__(self) -> None:
        self._database = sqlite3.connect(":memory:", check_same_thread=False, isolation_level=None)
        self._database.executescript(SCHEMA)
        self._stems: BoundedDict[str, str] = BoundedDict(MAX_WORDS)
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
        self._database.executemany(
            "insert into words (rowid, word) values (?, ?)", enumerate(unknown)
        )
        stems = dict(self._database.execute("select doc, term from stems"))
        self._database.execute("rollback")
        for place, word in enumerate(unknown):
            self._stems[word] = stems.get(place, word)


@cache
def load_stemmer() -> Stemmer:
    return Stemmer()
