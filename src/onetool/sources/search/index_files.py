"""Storage of search indexes: immutable files, named by a digest of their content.

Any number of processes can share the directory without a lock, and a crash leaves no partial file.
A few documents that changed since a file was written are indexed in memory, beside the file. If
there are more, a new file is written, which starts as a copy of the newest one. The files are a
cache: a file that cannot be read is rebuilt, and if nothing can be written, the index is kept in
memory.
"""

import os
import shutil
import sqlite3
import tempfile
from collections.abc import Callable, Mapping, Sequence
from contextlib import closing, suppress
from hashlib import blake2b
from pathlib import Path

from onetool.sources.search.documents import Key, SearchDocument
from onetool.sources.search.index import FORMAT, SCHEMA, TABLES, drop, index_rows, learn, put
from onetool.sources.search.index_reader import IndexReader

MAX_FILES = 4
STAMP = blake2b(f"{FORMAT} {SCHEMA}".encode(), digest_size=4).hexdigest()  # of the rules for rows
MAX_CHANGES = 64  # documents that differ from a file; if there are more, a new file is written


Content = Mapping[bytes, SearchDocument]  # the documents of a database by their digests


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

    def _find_keys(self, numbers: Sequence[int]) -> dict[int, Key]:
        keys = {number: self._visible[number] for number in numbers if number in self._visible}
        if len(keys) < len(numbers) and not set(numbers) <= set(self.numbers.values()):
            raise sqlite3.DatabaseError("the index refers to missing documents")
        return keys


class IndexFiles:
    """The index of the current documents: a file, and in memory what changed since it was written."""

    def __init__(self, directory: Path | None) -> None:
        self._directory = directory
        self._file: IndexFile | None = None
        self._memory: sqlite3.Connection | None = None

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
        with suppress(
            OSError, sqlite3.Error
        ):  # full disk or missing permission: use memory instead
            _build(self._directory, content)
            return _open(path, content, exact=True)
        return None

    def _build_in_memory(self, content: Content) -> IndexReader:
        if self._memory is None:
            self._memory = sqlite3.connect(":memory:", check_same_thread=False)
        write(self._memory, content)
        rows = {
            number: content[digest].key for digest, number in _read_numbers(self._memory).items()
        }
        return _make_reader(
            self._memory, lambda numbers: {number: rows[number] for number in numbers}, len(rows)
        )


def _make_reader(
    connection: sqlite3.Connection,
    find_keys: Callable[[Sequence[int]], Mapping[int, Key]],
    size: int,
) -> IndexReader:
    return IndexReader(
        lambda work: work(connection), lambda _, numbers: find_keys(numbers), size, in_memory=True
    )


def write(connection: sqlite3.Connection, content: Content) -> None:
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


def _read_numbers(connection: sqlite3.Connection) -> dict[bytes, int]:
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
    """Return the file; None if it cannot be read or its content differs (with `exact`) or differs
    too much.
    """
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
        connection.execute(
            "pragma journal_mode = off"
        )  # the file is not used before it is complete
        connection.execute("pragma synchronous = off")
        write(connection, content)


def _read_mtime(path: Path) -> float:
    try:
        return path.stat().st_mtime
    except OSError:  # another process deleted it
        return 0.0
