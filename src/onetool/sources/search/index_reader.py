"""Queries of one search database (names, similar names, words and meaning), and index files.

Index files are immutable and named by a digest of their content. Any number of processes can share
the directory without a lock, and a crash leaves no partial file. A few documents that changed since
a file was written are indexed in memory, beside the file. If there are more, a new file is written,
which starts as a copy of the newest one. The files are a cache: a file that cannot be read is
rebuilt, and if nothing can be written, the index is kept in memory.
"""

import os
import shutil
import sqlite3
import tempfile
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import closing, suppress
from functools import partial
from hashlib import blake2b
from heapq import nlargest
from pathlib import Path
from sqlite3 import Connection
from typing import Any, NamedTuple

from onetool.sources.search import Key, Scored, SearchDocument
from onetool.sources.search.index import (
    FORMAT,
    SCHEMA,
    TABLES,
    Rarities,
    drop,
    find_similar_words,
    index_rows,
    learn,
    name_forms,
    put,
    score_words,
)
from onetool.sources.search.words import (
    DIMENSIONS,
    MIN_TYPO_LENGTH,
    NearestVectors,
    Vector,
    compare,
    drop_stop_words,
    load_stemmer,
    plain,
    squeeze,
    words,
)

MAX_ENTRIES = 1_600  # of postings, read for one query
MAX_CANDIDATES = 200
MAX_SIMILAR = 20  # names to compare with a misspelled one, because of their letters
MAX_CORRECTED = 12  # the same because of their words
MAX_CORRECTED_ENTRIES = 240  # read for them
MAX_COMPARED = 5_000  # documents; comparing the meaning of more takes too long
MAX_NEAREST = 32  # candidates by meaning
MAX_TRIGRAMS = 8  # of a misspelled name, evenly distributed; about 8 if it is long
MAX_TRIGRAM_DOCUMENTS = 150  # documents; a trigram that more documents have is ignored
MIN_SIMILARITY = 0.8
LAST_CHARACTER = "\U0010ffff"
MAX_FILES = 4
STAMP = blake2b(f"{FORMAT} {SCHEMA}".encode(), digest_size=4).hexdigest()  # of the rules for rows
MAX_CHANGES = 64  # documents that differ from a file; if there are more, a new file is written

Read = Callable[[Callable[[Connection], Any]], Any]
GetKeys = Callable[[Connection, Sequence[int]], Mapping[int, Key]]
Content = Mapping[bytes, SearchDocument]  # the documents of a database by their digests


class Candidate(NamedTuple):
    """A document that may be a hit, with its scores by words and by meaning."""

    number: int
    key: Key
    words: float
    similarity: float
    has_all: bool  # all terms of the query that any document has


class IndexReader:
    """The queries of one database.

    `read(work)` calls `work` with the database; `get_keys` returns the visible documents of rows.
    `in_memory` says that something of each document may be kept in memory. Scores use the document
    frequencies of all readers, so that scores of different readers are comparable.
    """

    def __init__(
        self, read: Read, get_keys: GetKeys, size: int, *, in_memory: bool = False
    ) -> None:
        self._read = read
        self._get_keys = get_keys
        self.size = size
        self.in_memory = in_memory
        self._meanings: NearestVectors | None = None

    def count(self, terms: Iterable[str]) -> dict[str, int]:
        """Return the number of documents with each term; terms that no document has are omitted."""
        counts: dict[str, int] = self._read(lambda db: _count(db, list(terms)))
        return counts

    def find_exact(self, query: str) -> list[Key]:
        form = squeeze(query)
        rows = "select document from names where form = ? limit ?"
        keys = self._find_keys(rows, (form, MAX_CANDIDATES))
        return [key for key in keys if squeeze(key[1]) == form]

    def find_by_prefix(self, query: str, limit: int) -> Scored:
        """Return names that start with the query, scored by the fraction that it covers."""
        start = squeeze(query)
        rows = "select document from names where form >= ? and form < ? order by form limit ?"
        keys = self._find_keys(rows, (start, start + LAST_CHARACTER, limit))
        scored = []
        for key in keys:
            lengths = [len(form) for form in name_forms(key[1]) if form.startswith(start)]
            if lengths:
                scored.append((key, len(start) / min(lengths)))
        return scored

    def find_similar(self, texts: Iterable[str]) -> Scored:
        """Return names similar to a text or containing it, with a similarity up to 1."""
        best: dict[Key, float] = {}
        for text in texts:
            form = squeeze(text)
            if len(form) >= MIN_TYPO_LENGTH:
                for key in self._read(partial(self._find_similar, text, form)):
                    best[key] = max(best.get(key, 0.0), _compare_names(form, key[1]))
        return [(key, similarity) for key, similarity in best.items() if similarity]

    def _find_similar(self, text: str, form: str, db: Connection) -> list[Key]:
        """Return candidates: names that share many trigrams, or have the text's corrected words."""
        starts = range(0, len(form) - 2, max(1, len(form) // MAX_TRIGRAMS))
        parts = sorted({form[at : at + 3] for at in starts})
        query = "select rowid from forms(?) limit ?"
        shared: Counter[int] = Counter()
        for part in parts:
            rows = db.execute(query, (f'"{part}"', MAX_TRIGRAM_DOCUMENTS)).fetchall()
            if len(rows) < MAX_TRIGRAM_DOCUMENTS:
                shared.update(number for (number,) in rows)
        numbers = [number for number, _ in shared.most_common(MAX_SIMILAR)]
        numbers += self._find_corrected(drop_stop_words(plain(text)), db)
        return list(self._get_keys(db, list(dict.fromkeys(numbers))).values())

    def _find_corrected(self, query_words: Sequence[str], db: Connection) -> list[int]:
        """Return documents that have each word, or a word that is similar to it."""
        stemmer = load_stemmer()
        groups = [set(stemmer.stem([word, *find_similar_words(db, word)])) for word in query_words]
        weights = {stem: 1.0 / len(group) for group in groups for stem in sorted(group)}
        counts = _count(db, list(weights))
        if not all(counts.keys() & group for group in groups):
            return []
        rarities = {stem: weights[stem] for stem in counts}
        return _find_by_terms(db, rarities, MAX_CORRECTED, MAX_CORRECTED_ENTRIES)

    def find(self, rarities: Rarities, vector: Vector, limit: int) -> list[Candidate]:
        """Return candidates by words and by meaning. `rarities` are those of all readers."""
        near = self._find_by_meaning(vector)

        def work(db: Connection) -> list[Candidate]:
            numbers = [*_find_by_terms(db, rarities, limit), *near]
            return self._read_candidates(db, list(dict.fromkeys(numbers)), rarities, vector)

        candidates: list[Candidate] = self._read(work)
        return candidates

    def _find_by_meaning(self, query: Vector) -> list[int]:
        """Return the rows that may have the nearest meaning; none if there are too many rows."""
        if not self.in_memory or self.size > MAX_COMPARED or not any(query):
            return []
        if self._meanings is None:
            self._meanings = self._read(_read_meanings)
        return self._meanings.find(query, MAX_NEAREST)

    def _read_candidates(
        self, db: Connection, numbers: Sequence[int], rarities: Rarities, vector: Vector
    ) -> list[Candidate]:
        keys = self._get_keys(db, numbers)
        marks = ", ".join("?" * len(keys))
        query = f"select number, terms, impacts, meaning from passages where number in ({marks})"  # noqa: S608 - marks
        candidates = []
        for number, terms, impacts, meaning in db.execute(query, list(keys)):
            term_impacts = dict(zip(terms.split(" "), impacts, strict=False))
            score, has_all = score_words(rarities, term_impacts)
            similarity = compare(vector, meaning)
            candidates.append(Candidate(number, keys[number], score, similarity, has_all))
        return candidates

    def _find_keys(self, query: str, values: Sequence[object]) -> list[Key]:
        def work(db: Connection) -> Mapping[int, Key]:
            numbers = dict.fromkeys(number for (number,) in db.execute(query, values))
            return self._get_keys(db, list(numbers))

        return list(self._read(work).values())


def _count(db: Connection, terms: Sequence[str]) -> dict[str, int]:
    marks = ", ".join("?" * len(terms))
    query = f"select term, count from frequencies where count > 0 and term in ({marks})"  # noqa: S608 - marks
    return dict(db.execute(query, terms).fetchall())


def has_words(name: str, groups: Iterable[set[str]]) -> bool:
    """Return whether a name has at least one stem of each group."""
    stems = set(load_stemmer().stem(words(name)))
    return all(not stems.isdisjoint(group) for group in groups)


def _find_by_terms(
    db: Connection, rarities: Rarities, limit: int, max_entries: int = MAX_ENTRIES
) -> list[int]:
    """Return the rows with any of these terms, the best first.

    The rarest terms are read first and completely, unless there are too many entries; of frequent
    terms, only the entries with the highest impact are read.
    """
    totals: dict[int, float] = {}
    left = len(rarities)
    read = 0
    for term in sorted(rarities, key=lambda term: (-rarities[term], term)):
        share = max((max_entries - read) // left, limit)
        query = "select number, impact from postings where term = ? order by impact desc limit ?"
        rows = db.execute(query, (term, share)).fetchall()
        weight = rarities[term]
        for number, impact in rows:
            totals[number] = totals.get(number, 0.0) + weight * impact
        left = left - 1
        read = read + len(rows)
    return nlargest(limit, totals, key=totals.__getitem__)


def _read_meanings(db: Connection) -> NearestVectors:
    rows = db.execute("select number, meaning from passages").fetchall()
    if any(len(meaning) != DIMENSIONS for _, meaning in rows):
        raise sqlite3.DatabaseError("the vectors have different sizes")
    return NearestVectors(rows)


def _compare_names(query: str, name: str) -> float:
    from rapidfuzz import fuzz

    forms = name_forms(name)
    cutoff = 100 * MIN_SIMILARITY
    best = max((fuzz.ratio(query, form, score_cutoff=cutoff) for form in forms), default=0.0)
    if best:
        return best / 100
    return MIN_SIMILARITY if any(query in form for form in forms) else 0.0


# --- files ----------------------------------------------------------------------------------


def compute_digest(document: SearchDocument) -> bytes:
    return blake2b(repr(tuple(document)).encode(), digest_size=16).digest()


class IndexFile:
    """An open index file.

    It may lack some documents of the content, and have others, which are hidden.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        address = f"{path.absolute().as_uri()}?mode=ro&immutable=1"
        self.connection = sqlite3.connect(address, uri=True, check_same_thread=False)
        try:
            self.numbers = _read_numbers(self.connection)
        except sqlite3.Error:
            self.connection.close()
            raise
        self._visible: dict[int, Key] = {}
        self.reader = _make_reader(self.connection, self._find_keys, len(self.numbers))

    def is_near(self, content: Content) -> bool:
        """Return whether few documents are missing here, and there are few others."""
        return len(self.numbers.keys() ^ content.keys()) <= min(MAX_CHANGES, len(content) // 2)

    def show(self, content: Content) -> Content:
        """Show only documents of this content, and return those that are missing."""
        numbers = self.numbers
        self._visible = {
            numbers[digest]: document.key
            for digest, document in content.items()
            if digest in numbers
        }
        if len(self._visible) == len(content):
            return {}
        return {digest: document for digest, document in content.items() if digest not in numbers}

    def _find_keys(self, _: Connection, numbers: Sequence[int]) -> dict[int, Key]:
        keys = {number: self._visible[number] for number in numbers if number in self._visible}
        if len(keys) < len(numbers) and not set(numbers) <= set(self.numbers.values()):
            raise sqlite3.DatabaseError("the index refers to missing documents")
        return keys


class IndexFiles:
    """The index of the current documents: a file, and in memory what changed since it was written."""

    def __init__(self, directory: Path | None) -> None:
        self._directory = directory
        self._file: IndexFile | None = None
        self._memory: Connection | None = None

    def readers(self, content: Content) -> list[IndexReader]:
        """Return the readers with this content. Earlier readers must not be used afterwards."""
        if self._file is None or not self._file.is_near(content):
            opened = self._open_or_build(content)
            self.close()
            self._file = opened
        missing = content if self._file is None else self._file.show(content)
        readers = [] if self._file is None else [self._file.reader]
        if missing or not readers:
            readers.append(self._build_in_memory(missing))
        return readers

    def delete(self) -> None:
        """Delete the index, which is damaged."""
        path = self._file.path if self._file else None
        self.close()
        if path is not None:
            with suppress(OSError):
                path.unlink()

    def close(self) -> None:
        if self._file is not None:
            self._file.connection.close()
        if self._memory is not None:
            self._memory.close()
        self._file = self._memory = None

    def __del__(self) -> None:
        self.close()  # Python warns about databases that are left open

    def _open_or_build(self, content: Content) -> IndexFile | None:
        if self._directory is None:
            return None
        path = _make_path(self._directory, content)
        with suppress(OSError, sqlite3.Error):
            for candidate in [path, *_list_files(self._directory)]:
                if (file := _open(candidate, content, exact=candidate == path)) is not None:
                    return file
        # On a full disk, or without permission, the index is kept in memory.
        with suppress(OSError, sqlite3.Error):
            _build(self._directory, content)
            return _open(path, content, exact=True)
        return None

    def _build_in_memory(self, content: Content) -> IndexReader:
        if self._memory is None:
            self._memory = sqlite3.connect(":memory:", check_same_thread=False)
        write(self._memory, content)
        numbers = _read_numbers(self._memory)
        keys = {number: content[digest].key for digest, number in numbers.items()}
        return _make_reader(
            self._memory, lambda _, numbers: {number: keys[number] for number in numbers}, len(keys)
        )


def _make_reader(connection: Connection, get_keys: GetKeys, size: int) -> IndexReader:
    return IndexReader(lambda work: work(connection), get_keys, size, in_memory=True)


def write(connection: Connection, content: Content) -> None:
    """Update the database to this content; unchanged rows are not written."""
    connection.executescript(SCHEMA)
    present = _read_numbers(connection)
    surplus = [number for digest, number in present.items() if digest not in content]
    if len(surplus) > len(present) // 2:  # mostly different content: rebuilding is cheaper
        for table in TABLES:
            connection.execute(f"drop table {table}")
        connection.executescript(SCHEMA)
        present = {}
        surplus = []
    missing = {digest: document for digest, document in content.items() if digest not in present}
    first = max(present.values(), default=0) + 1
    with connection:
        for number in surplus:
            drop(connection, number)
        learned: set[str] = set()
        for number, (digest, document) in enumerate(missing.items(), first):
            learn(connection, put(connection, number, document, digest), learned)
        index_rows(connection)


def _read_numbers(connection: Connection) -> dict[bytes, int]:
    """Return the rows of the documents by their digests."""
    return dict(connection.execute("select digest, number from passages").fetchall())


def _build(directory: Path, content: Content) -> None:
    """Create the file, starting from the newest one if that can be read."""
    directory.mkdir(parents=True, exist_ok=True)
    path = _make_path(directory, content)
    newest = next(iter(_list_files(directory)), None)
    handle, name = tempfile.mkstemp(prefix="search-", suffix=".tmp", dir=directory)
    os.close(handle)
    file = Path(name)
    try:
        try:
            if newest is not None:
                shutil.copyfile(newest, file)
            _write(file, content)
        except (OSError, sqlite3.Error):
            file.write_bytes(b"")
            _write(file, content)
        file.replace(path)
    finally:
        file.unlink(missing_ok=True)
    for old in sorted(directory.glob("search-*"), key=_read_mtime)[:-MAX_FILES]:
        with suppress(OSError):
            old.unlink()


def _make_path(directory: Path, content: Content) -> Path:
    digest = blake2b(b"".join(sorted(content)), digest_size=16).hexdigest()
    return directory / f"search-{STAMP}-{digest}.db"


def _list_files(directory: Path) -> list[Path]:
    """Return the files with the same rules, the newest first."""
    return sorted(directory.glob(f"search-{STAMP}-*.db"), key=_read_mtime, reverse=True)


def _open(path: Path, content: Content, *, exact: bool) -> IndexFile | None:
    """Return the file; None if it is damaged, or differs too much (with `exact`: at all)."""
    if not path.is_file():
        return None
    with suppress(sqlite3.Error):  # it is damaged
        file = IndexFile(path)
        if file.numbers.keys() == content.keys() if exact else file.is_near(content):
            with suppress(OSError):
                os.utime(path)  # files that are in use are not deleted
            return file
        file.connection.close()
    return None


def _write(file: Path, content: Content) -> None:
    with closing(sqlite3.connect(file)) as connection:
        # The file is not used before it is complete.
        connection.execute("pragma journal_mode = off")
        connection.execute("pragma synchronous = off")
        write(connection, content)


def _read_mtime(path: Path) -> float:
    try:
        return path.stat().st_mtime
    except OSError:  # another process deleted it
        return 0.0
