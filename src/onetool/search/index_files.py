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
from onetool.search.index import FORMAT, FULL_LENGTH, SCHEMA, TABLES, Shelf, drop, index_rows, learn, passage, put
from onetool.search.vectors import Embedder

FILES_KEPT: Final = 4


@dataclass(frozen=True)
class IndexContent:
    """The content of a database."""

    documents: Mapping[Key, SearchDocument]
    digests: Mapping[Key, bytes]
    embedder: Embedder | None = None

    @property
    def stamp(self) -> str:
        """A digest of the rules by which documents become rows."""
        rules = f"{FORMAT} {SCHEMA} {FULL_LENGTH} {self.embedder is not None}"
        return blake2b(rules.encode(), digest_size=4).hexdigest()

    @cached_property
    def digest(self) -> str:
        return blake2b(b"".join(sorted(self.digests.values())), digest_size=16).hexdigest()


def digest(document: SearchDocument) -> bytes:
    fields = (document.kind, document.name, document.description, document.arguments, document.instructions)
    return blake2b(repr(fields).encode(), digest_size=16).digest()


class IndexFiles:
    def __init__(self, folder: Path | None) -> None:
        self._folder = folder
        self._memory: sqlite3.Connection | None = None
        self._database: sqlite3.Connection | None = None

    def shelf(self, content: IndexContent) -> Shelf:
        """Return the shelf with this content. The previous shelf must not be used afterwards."""
        kept = self._open_or_build(content)
        if kept is not None or self._memory is None:
            self.close()
        self._database = database = kept or self._in_memory(content)
        rows = _read_rows(database, content)
        return Shelf(lambda work: work(database), lambda _, numbers: _find_keys(rows, numbers), len(rows))

    def vectors(self, content: IndexContent) -> list[tuple[Key, bytes]]:
        assert self._database is not None
        rows = _read_rows(self._database, content)
        found = self._database.execute("select number, vector from passages").fetchall()
        if len({len(vector or b"") for _, vector in found}) != 1:
            raise sqlite3.DatabaseError("the vectors have different sizes")
        return [(rows[number], vector) for number, vector in found]

    def forget(self, content: IndexContent) -> None:
        """Delete the damaged index of this content."""
        self.close()
        if self._folder is not None:
            with suppress(OSError):
                _path(self._folder, content).unlink()

    def close(self) -> None:
        if self._database is not None:
            self._database.close()
        self._database = self._memory = None

    def __del__(self) -> None:
        self.close()  # Python warns about databases that are left open

    def _open_or_build(self, content: IndexContent) -> sqlite3.Connection | None:
        if self._folder is None:
            return None
        with suppress(sqlite3.Error):  # it does not exist yet, or is damaged
            return _open(_path(self._folder, content), content)
        with suppress(OSError, sqlite3.Error):  # full disk or missing permission: use memory instead
            return _build(self._folder, content)
        return None

    def _in_memory(self, content: IndexContent) -> sqlite3.Connection:
        if self._memory is None:
            self._memory = sqlite3.connect(":memory:", check_same_thread=False)
        write(self._memory, content)
        return self._memory


def write(connection: sqlite3.Connection, content: IndexContent) -> None:
    """Update the database to this content; unchanged rows are not written."""
    connection.executescript(SCHEMA)
    wanted = {found: content.documents[key] for key, found in content.digests.items()}
    held = {found: number for number, found in connection.execute("select number, digest from passages")}
    gone = [number for found, number in held.items() if found not in wanted]
    if len(gone) > len(held) // 2:  # mostly different content: rebuilding is cheaper
        for table in ("names", "vocabulary", "near", *TABLES, "passages"):
            connection.execute(f"drop table {table}")
        connection.executescript(SCHEMA)
        held, gone = {}, []
    missing = {found: document for found, document in wanted.items() if found not in held}
    vectors: Iterable[bytes | None] = repeat(None, len(missing))
    if content.embedder is not None:
        vectors = content.embedder.pack([passage(document) for document in missing.values()])
    first = max(held.values(), default=0) + 1
    with connection:
        for number in gone:
            drop(connection, number)
        learned: set[str] = set()
        for number, ((found, document), vector) in enumerate(zip(missing.items(), vectors, strict=True), first):
            learn(connection, put(connection, number, document, digest=found, vector=vector), learned)
        index_rows(connection, first, first + len(missing))


def _read_rows(connection: sqlite3.Connection, content: IndexContent) -> dict[int, Key]:
    """Return the documents by row. Raise DatabaseError if the database has other content."""
    keys = {value: key for key, value in content.digests.items()}
    rows = connection.execute("select number, digest from passages").fetchall()
    if {found for _, found in rows} != keys.keys():
        raise sqlite3.DatabaseError("the database does not have the expected content")
    return {number: keys[found] for number, found in rows}


def _find_keys(rows: Mapping[int, Key], numbers: Sequence[int]) -> dict[int, Key]:
    if any(number not in rows for number in numbers):
        raise sqlite3.DatabaseError("the index refers to missing documents")
    return {number: rows[number] for number in numbers}


def _build(folder: Path, content: IndexContent) -> sqlite3.Connection:
    """Create the file, starting from the newest one if that can be read."""
    folder.mkdir(parents=True, exist_ok=True)
    path = _path(folder, content)
    newest = max(folder.glob(f"search-{content.stamp}-*.db"), key=_modified_at, default=None)
    handle, name = tempfile.mkstemp(prefix="search-", suffix=".tmp", dir=folder)
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
    for old in sorted(folder.glob("search-*"), key=_modified_at)[:-FILES_KEPT]:
        with suppress(OSError):
            old.unlink()
    return _open(path, content)


def _path(folder: Path, content: IndexContent) -> Path:
    return folder / f"search-{content.stamp}-{content.digest}.db"


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


def _modified_at(path: Path) -> float:
    try:
        return path.stat().st_mtime
    except OSError:  # another process deleted it
        return 0.0
