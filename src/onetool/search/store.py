"""Where indexes are kept: files written once, under the name of what they hold, and never changed afterwards.

So any number of processes share the folder without a lock, each finds its own catalogue there, and a crash leaves
nothing half-written. A new file starts as a copy of the newest one and is written where it differs. All of it is only
a cache: what cannot be read is made again, and where nothing can be written the index lives in memory.
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

from onetool.search.documents import Document, Key
from onetool.search.index import FORMAT, FULL_LENGTH, SCHEMA, TABLES, Shelf, drop, index_rows, learn, passage, put
from onetool.search.vectors import Embedder

FILES_KEPT: Final = 4


@dataclass(frozen=True)
class Content:
    """What a database is to hold."""

    documents: Mapping[Key, Document]
    digests: Mapping[Key, bytes]
    embedder: Embedder | None = None

    @property
    def stamp(self) -> str:
        """Of the rules by which documents become rows."""
        rules = f"{FORMAT} {SCHEMA} {FULL_LENGTH} {self.embedder is not None}"
        return blake2b(rules.encode(), digest_size=4).hexdigest()

    @cached_property
    def digest(self) -> str:
        return blake2b(b"".join(sorted(self.digests.values())), digest_size=16).hexdigest()


def digest(document: Document) -> bytes:
    fields = (document.kind, document.name, document.description, document.arguments, document.instructions)
    return blake2b(repr(fields).encode(), digest_size=16).digest()


class Store:
    def __init__(self, folder: Path | None) -> None:
        self._folder = folder
        self._memory: sqlite3.Connection | None = None
        self._database: sqlite3.Connection | None = None

    def shelf(self, content: Content) -> Shelf:
        """The shelf with this content. The one that was given before is of no use afterwards."""
        kept = self._kept(content)
        if kept is not None or self._memory is None:
            self.close()
        self._database = database = kept or self._in_memory(content)
        rows = _checked_rows(database, content)
        return Shelf(lambda work: work(database), lambda _, numbers: _keys(rows, numbers), len(rows))

    def vectors(self, content: Content) -> list[tuple[Key, bytes]]:
        assert self._database is not None
        rows = _checked_rows(self._database, content)
        found = self._database.execute("select number, vector from passages").fetchall()
        if len({len(vector or b"") for _, vector in found}) != 1:
            raise sqlite3.DatabaseError("the vectors are not what they should be")
        return [(rows[number], vector) for number, vector in found]

    def forget(self, content: Content) -> None:
        """Give up what there is of this content: it turned out to be damaged."""
        self.close()
        if self._folder is not None:
            with suppress(OSError):
                _path(self._folder, content).unlink()

    def close(self) -> None:
        if self._database is not None:
            self._database.close()
        self._database = self._memory = None

    def __del__(self) -> None:
        self.close()  # Python warns of databases that are left open

    def _kept(self, content: Content) -> sqlite3.Connection | None:
        if self._folder is None:
            return None
        with suppress(sqlite3.Error):  # there is none yet, or it is damaged
            return _opened(_path(self._folder, content), content)
        with suppress(OSError, sqlite3.Error):  # a full disk, somebody else's folder: no reason to fail
            return _made(self._folder, content)
        return None

    def _in_memory(self, content: Content) -> sqlite3.Connection:
        if self._memory is None:
            self._memory = sqlite3.connect(":memory:", check_same_thread=False)
        write(self._memory, content)
        return self._memory


def write(connection: sqlite3.Connection, content: Content) -> None:
    """Make the database hold this content; rows that are as they should be are not touched."""
    connection.executescript(SCHEMA)
    wanted = {found: content.documents[key] for key, found in content.digests.items()}
    held = {found: number for number, found in connection.execute("select number, digest from passages")}
    gone = [number for found, number in held.items() if found not in wanted]
    if len(gone) > len(held) // 2:  # another catalogue: a fresh start is cheaper
        for table in ("names", "vocabulary", "near", *TABLES, "passages"):
            connection.execute(f"drop table {table}")
        connection.executescript(SCHEMA)
        held, gone = {}, []
    missing = {found: document for found, document in wanted.items() if found not in held}
    vectors: Iterable[bytes | None] = repeat(None, len(missing))
    if content.embedder is not None:
        vectors = content.embedder.packed([passage(document) for document in missing.values()])
    first = max(held.values(), default=0) + 1
    with connection:
        for number in gone:
            drop(connection, number)
        learned: set[str] = set()
        for number, ((found, document), vector) in enumerate(zip(missing.items(), vectors, strict=True), first):
            learn(connection, put(connection, number, document, digest=found, vector=vector), learned)
        index_rows(connection, first, first + len(missing))


def _checked_rows(connection: sqlite3.Connection, content: Content) -> dict[int, Key]:
    """The documents by their rows."""
    keys = {value: key for key, value in content.digests.items()}
    rows = connection.execute("select number, digest from passages").fetchall()
    if {found for _, found in rows} != keys.keys():
        raise sqlite3.DatabaseError("the database does not hold what it should")
    return {number: keys[found] for number, found in rows}


def _keys(rows: Mapping[int, Key], numbers: Sequence[int]) -> dict[int, Key]:
    if any(number not in rows for number in numbers):
        raise sqlite3.DatabaseError("the index speaks of documents that are not there")
    return {number: rows[number] for number in numbers}


def _made(folder: Path, content: Content) -> sqlite3.Connection:
    """Make the file, starting from the newest one if that is any good."""
    folder.mkdir(parents=True, exist_ok=True)
    path = _path(folder, content)
    newest = max(folder.glob(f"search-{content.stamp}-*.db"), key=_changed, default=None)
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
    for old in sorted(folder.glob("search-*"), key=_changed)[:-FILES_KEPT]:
        with suppress(OSError):
            old.unlink()
    return _opened(path, content)


def _path(folder: Path, content: Content) -> Path:
    return folder / f"search-{content.stamp}-{content.digest}.db"


def _opened(path: Path, content: Content) -> sqlite3.Connection:
    connection = sqlite3.connect(f"{path.absolute().as_uri()}?mode=ro&immutable=1", uri=True, check_same_thread=False)
    try:
        _checked_rows(connection, content)
    except sqlite3.Error:
        connection.close()
        raise
    with suppress(OSError):
        os.utime(path)  # what is used is not swept
    return connection


def _write(file: Path, content: Content) -> None:
    with closing(sqlite3.connect(file)) as connection:
        connection.execute("pragma journal_mode = off")  # nobody sees the file before it is whole
        connection.execute("pragma synchronous = off")
        write(connection, content)


def _changed(path: Path) -> float:
    try:
        return path.stat().st_mtime
    except OSError:  # another process swept it
        return 0.0
