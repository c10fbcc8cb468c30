"""Storage of search indexes: immutable files, named by a digest of their content.

Any number of processes can share the directory without a lock, and a crash leaves no partial file. A new file starts as
a copy of the newest one and is updated. The files are a cache: a file that cannot be read is rebuilt, and if nothing
can be written, the index is kept in memory.
"""

import os
import shutil
import sqlite3
import tempfile
from collections.abc import Iterable, Mapping, Sequence
from contextlib import closing, suppress
from dataclasses import dataclass
from functools import cached_property
from hashlib import blake2b
from itertools import repeat
from pathlib import Path
from typing import Final

from onetool.search.documents import Key, SearchDocument
from onetool.search.index import FORMAT, SCHEMA, TABLES, Shelf, drop, index_rows, learn, put
from onetool.search.vectors import Embedder

MAX_FILES: Final = 4


@dataclass(frozen=True)
class IndexContent:
    """The content of a database."""

    documents: Mapping[Key, SearchDocument]
    digests: Mapping[Key, bytes]
    embedder: Embedder | None = None

    @property
    def stamp(self) -> str:
        """A digest of the rules by which documents become rows."""
        rules = f"{FORMAT} {SCHEMA} {self.embedder is not None}"
        return blake2b(rules.encode(), digest_size=4).hexdigest()

    @cached_property
    def digest(self) -> str:
        return blake2b(b"".join(sorted(self.digests.values())), digest_size=16).hexdigest()


def compute_digest(document: SearchDocument) -> bytes:
    fields = (document.kind, document.name, document.description, document.arguments, document.instructions)
    return blake2b(repr(fields).encode(), digest_size=16).digest()


class IndexFiles:
    def __init__(self, directory: Path | None) -> None:
        self._directory = directory
        self._memory: sqlite3.Connection | None = None
        self._database: sqlite3.Connection | None = None

    def shelf(self, content: IndexContent) -> Shelf:
        """Return the shelf with this content. The previous shelf must not be used afterwards."""
        opened = self._open_or_build(content)
        if opened is not None or self._memory is None:
            self.close()
        self._database = database = opened or self._build_in_memory(content)
        rows = _read_rows(database, content)
        return Shelf(
            lambda work: work(database), lambda _, numbers: _find_keys(rows, numbers), len(rows), in_memory=True
        )

    def vectors(self) -> list[tuple[int, bytes]]:
        assert self._database is not None
        found = self._database.execute("select number, vector from passages").fetchall()
        if len({len(vector or b"") for _, vector in found}) != 1:
            raise sqlite3.DatabaseError("the vectors have different sizes")
        return found

    def delete(self, content: IndexContent) -> None:
        """Delete the damaged index of this content."""
        self.close()
        if self._directory is not None:
            with suppress(OSError):
                _make_path(self._directory, content).unlink()

    def close(self) -> None:
        if self._database is not None:
            self._database.close()
        self._database = self._memory = None

    def __del__(self) -> None:
        self.close()  # Python warns about databases that are left open

    def _open_or_build(self, content: IndexContent) -> sqlite3.Connection | None:
        if self._directory is None:
            return None
        with suppress(sqlite3.Error):  # it does not exist yet, or is damaged
            return _open(_make_path(self._directory, content), content)
        with suppress(OSError, sqlite3.Error):  # full disk or missing permission: use memory instead
            return _build(self._directory, content)
        return None

    def _build_in_memory(self, content: IndexContent) -> sqlite3.Connection:
        if self._memory is None:
            self._memory = sqlite3.connect(":memory:", check_same_thread=False)
        write(self._memory, content)
        return self._memory


def write(connection: sqlite3.Connection, content: IndexContent) -> None:
    """Update the database to this content; unchanged rows are not written."""
    connection.executescript(SCHEMA)
    wanted = {digest: content.documents[key] for key, digest in content.digests.items()}
    present = {digest: number for number, digest in connection.execute("select number, digest from passages")}
    surplus = [number for digest, number in present.items() if digest not in wanted]
    if len(surplus) > len(present) // 2:  # mostly different content: rebuilding is cheaper
        for table in ("names", "vocabulary", "near", *TABLES, "passages"):
            connection.execute(f"drop table {table}")
        connection.executescript(SCHEMA)
        present, surplus = {}, []
    missing = {digest: document for digest, document in wanted.items() if digest not in present}
    vectors: Iterable[bytes | None] = repeat(None, len(missing))
    if content.embedder is not None:
        vectors = content.embedder.pack(missing.values())
    first = max(present.values(), default=0) + 1
    with connection:
        for number in surplus:
            drop(connection, number)
        learned: set[str] = set()
        for number, ((digest, document), vector) in enumerate(zip(missing.items(), vectors, strict=True), first):
            learn(connection, put(connection, number, document, digest=digest, vector=vector), learned)
        index_rows(connection, first, first + len(missing))


def _read_rows(connection: sqlite3.Connection, content: IndexContent) -> dict[int, Key]:
    """Return the documents by row. Raise DatabaseError if the database has other content."""
    keys = {value: key for key, value in content.digests.items()}
    rows = connection.execute("select number, digest from passages").fetchall()
    if {digest for _, digest in rows} != keys.keys():
        raise sqlite3.DatabaseError("the database does not have the expected content")
    return {number: keys[digest] for number, digest in rows}


def _find_keys(rows: Mapping[int, Key], numbers: Sequence[int]) -> dict[int, Key]:
    if any(number not in rows for number in numbers):
        raise sqlite3.DatabaseError("the index refers to missing documents")
    return {number: rows[number] for number in numbers}


def _build(directory: Path, content: IndexContent) -> sqlite3.Connection:
    """Create the file, starting from the newest one if that can be read."""
    directory.mkdir(parents=True, exist_ok=True)
    path = _make_path(directory, content)
    newest = max(directory.glob(f"search-{content.stamp}-*.db"), key=_read_mtime, default=None)
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
    return _open(path, content)


def _make_path(directory: Path, content: IndexContent) -> Path:
    return directory / f"search-{content.stamp}-{content.digest}.db"


def _open(path: Path, content: IndexContent) -> sqlite3.Connection:
    connection = sqlite3.connect(f"{path.absolute().as_uri()}?mode=ro&immutable=1", uri=True, check_same_thread=False)
    try:
        _read_rows(connection, content)
    except sqlite3.Error:
        connection.close()
        raise
    with suppress(OSError):
        os.utime(path)  # files that are in use are not deleted
    return connection


def _write(file: Path, content: IndexContent) -> None:
    with closing(sqlite3.connect(file)) as connection:
        connection.execute("pragma journal_mode = off")  # the file is not used before it is complete
        connection.execute("pragma synchronous = off")
        write(connection, content)


def _read_mtime(path: Path) -> float:
    try:
        return path.stat().st_mtime
    except OSError:  # another process deleted it
        return 0.0
