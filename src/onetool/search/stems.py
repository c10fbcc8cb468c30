"""Word stems, as in the full-text index: a table of SQLite FTS5 with one word per row shows the stem of each."""

import sqlite3
from collections.abc import Collection
from typing import Final

MAX_WORDS: Final = 20_000  # to remember
SCHEMA: Final = """
create virtual table words using fts5(word, tokenize = 'porter unicode61 remove_diacritics 0');
create virtual table stems using fts5vocab(words, instance);
"""


class Stemmer:
    """Stems of words, and the words of a stem. Not thread-safe."""

    def __init__(self) -> None:
        self._database = sqlite3.connect(":memory:", check_same_thread=False, isolation_level=None)
        self._database.executescript(SCHEMA)
        self._stems: dict[str, str] = {}
        self._forms: dict[str, list[str]] = {}

    def close(self) -> None:
        self._database.close()

    def __del__(self) -> None:
        self.close()  # Python warns about databases that are left open

    def stem(self, word: str) -> str:
        self.learn([word])
        return self._stems[word]

    def learn(self, words: Collection[str]) -> None:
        """Remember the stems of these words, at least until the next call."""
        unknown = sorted(set(words).difference(self._stems))
        if not unknown:
            return
        if len(self._stems) > MAX_WORDS:
            self._stems.clear()
            self._forms.clear()
            unknown = sorted(set(words))
        self._database.execute("begin")
        self._database.executemany("insert into words (rowid, word) values (?, ?)", enumerate(unknown))
        found = dict(self._database.execute("select doc, term from stems"))
        self._database.execute("rollback")
        for place, word in enumerate(unknown):
            stem = found.get(place, word)
            self._stems[word] = stem
            self._forms.setdefault(stem, []).append(word)

    def list_forms(self, stem: str) -> list[str]:
        """Return the known words with this stem."""
        return self._forms.get(stem, [])
