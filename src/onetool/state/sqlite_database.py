"""SQLite databases, shared by processes and threads.

One connection writes and another one reads, each with its lock, so that readers never wait for a
writer.
"""

import os
import sqlite3
import stat
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, closing, contextmanager
from pathlib import Path
from shlex import quote
from typing import Any, Protocol

from onetool.errors import StorageError
from onetool.state.sealing import NotSealed, Sealer, sealing_error, sync_directory
from onetool.util.atomic import replacing
from onetool.util.background import exclusive
from onetool.util.problem import STORAGE, Location, check_tables, is_full_disk, storage_error

BUSY_SECONDS = 5.0
DAMAGED = {sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB}
KEY_CHECK = b"the key check"
# The first table of every database shows whether the key is the one that sealed its values.
KEY_SCHEMA = "CREATE TABLE key_check (sealed BLOB)"


Row = tuple[Any, ...]
Callback = Callable[[], object]


class Rows(Protocol):
    """The result of a statement."""

    @property
    def rowcount(self) -> int: ...
    def fetchone(self) -> Any: ...
    def fetchall(self) -> list[Any]: ...
    def __iter__(self) -> Iterator[Any]: ...


class Transaction(Protocol):
    """A connection in a transaction.

    Statements are valid in SQLite and PostgreSQL, with the placeholders of SQLite.
    """

    def execute(self, statement: str, parameters: Any = ..., /) -> Rows: ...
    def executemany(self, statement: str, parameters: Any, /) -> object: ...


class StateDatabase:
    """A database in SQLite or PostgreSQL. Both have the same tables."""

    place: str
    row_lock: str = (
        ""  # the end of a query that locks its rows; in SQLite, a transaction locks everything
    )
    claim_lock: str = ""  # the same, and skips locked rows
    size_query: str  # for the bytes that runs use
    trim_sent_query: str  # deletes the records of calls that were sent before a time

    @property
    def is_listening(self) -> bool:
        """Whether a thread loads what others change. Otherwise a reader compares the number."""
        return False

    def number(self, kind: str, /) -> int:
        """Return a number that changes when this kind of state may have changed."""
        raise NotImplementedError

    def subscribe(self, kind: str, load: Callback, /) -> None:
        """Call the function in the thread that listens, if there is one, before it reports a
        change.
        """

    @property
    def problem(self) -> str | None:
        """The reason why it does not answer; None if it does."""
        return None

    def away(self) -> StorageError:
        """Return the error for a database that does not answer."""
        return StorageError(self.problem or f"the database {self.place} does not answer")

    def start(self) -> None:
        """Listen to the changes of other replicas from now on, if there are any. Returns at once."""

    def wait(self, _seconds: float, /) -> bool:
        """Wait until the changes are known. Return whether they are."""
        return True

    def close(self) -> None:
        raise NotImplementedError

    def now(self) -> float:
        """Return the time, which all who use the database agree on. Never blocks."""
        return time.time()

    def select(self, query: str, /, *values: Any) -> list[Row]:
        """Return rows as last committed; none if nothing is stored."""
        raise NotImplementedError

    def transaction(
        self, *, kind: str = "", is_durable: bool = True, is_announced: bool = False
    ) -> AbstractContextManager[Transaction]:
        """Write in one transaction, which survives the end of the process, and a power failure if
        `is_durable`.

        `kind` is the kind of sealed values that it changes. Other replicas are notified of
        announced changes.
        """
        raise NotImplementedError

    def changing(
        self, _kind: str, _name: str, *, is_announced: bool
    ) -> AbstractContextManager[Transaction]:
        """Begin a transaction. Until its end, nobody else changes this document."""
        return self.transaction(is_durable=is_announced)  # readers depend on what is announced

    def prepare_sealer(self, key: str) -> object:
        """Load the key of this name, if it is not read with the file, before a transaction that
        would wait for it.
        """

    def load_sealer(self, _key: str) -> Sealer:
        """Return the sealer with the key of this name.

        A file has one, which is known once it has been opened.
        """
        return NotSealed()

    def missing_error(self, _kind: str, _name: str) -> StorageError | None:
        """Return the error for a missing document, if it cannot be missing."""
        return None

    def storage_errors(self) -> AbstractContextManager[None]:
        """Raise errors of the database as StorageError."""
        raise NotImplementedError

    def vacuum(self) -> None:
        """Return the space of deleted rows to the disk, unless the database does so by itself."""


class SqliteDatabase(StateDatabase):
    """A database in a file. Nothing is opened before it is needed.

    `schema` has the statements that create the tables. If the file is deleted, it is created again.
    """

    size_query = (
        "SELECT (page_count - freelist_count) * page_size "
        "FROM pragma_page_count, pragma_freelist_count, pragma_page_size"
    )
    trim_sent_query = "DELETE FROM sent_calls WHERE at <= ?"

    def __init__(self, file: Path, schema: str, version: int) -> None:
        self.file = file
        self.place = str(file)
        self._schema = schema
        self._version = version
        self._writing = threading.RLock()
        self._reading = threading.Lock()
        self._writer: sqlite3.Connection | None = None
        self._reader: sqlite3.Connection | None = None
        self._readers = 0  # that were opened
        self._read_identity: tuple[int, int] | None = (
            None  # of the open files, which others may have replaced
        )
        self._written_identity: tuple[int, int] | None = None

    @contextmanager
    def transaction(
        self,
        *,
        kind: str = "",  # noqa: ARG002
        is_durable: bool = False,
        is_announced: bool = False,  # noqa: ARG002
    ) -> Iterator[sqlite3.Connection]:
        with self._writing, self.storage_errors():
            database = self._get_writer()
            if is_durable:
                database.execute("PRAGMA synchronous = FULL")
            try:
                database.execute("BEGIN IMMEDIATE")
                yield database
                database.execute("COMMIT")
            finally:
                if database.in_transaction:
                    database.execute("ROLLBACK")
                if is_durable:
                    database.execute("PRAGMA synchronous = NORMAL")

    def select(self, query: str, /, *values: Any) -> list[Row]:
        with self._reading, self.storage_errors():
            database = self._reader
            if database is None or self._identify() != self._read_identity:
                database = self._open_reader()
            if database is None:
                return []
            try:
                return database.execute(query, values).fetchall()
            finally:
                if database is not self._reader:
                    database.close()

    def number(self, _kind: str, /) -> int:
        """Return a number that changes when any process has written. Takes microseconds."""
        found = self.select(
            "PRAGMA data_version"
        )  # changes by other connections, such as the one that writes
        return (self._readers << 32) + int(found[0][0]) if found else 0

    def exists(self) -> bool:
        """Return whether anything may be stored."""
        return self._identify() is not None

    def _identify(self) -> tuple[int, int] | None:
        """Return the identity of the file; None if it is missing.

        A link that leads nowhere is not a missing file.
        """
        try:
            status = os.lstat(self.place)
        except (FileNotFoundError, NotADirectoryError):
            return None
        return status.st_dev, status.st_ino

    def damage_error(self, message: str) -> StorageError:
        """Return the error for a damaged file."""
        hint = f"restore it from a backup, or stop OneTool and run `rm {quote(str(self.file))}*`"
        return StorageError(
            f"cannot read {self.file}: {message}",
            hint=hint,
            location=Location(self.place),
            code=STORAGE,
        )

    def vacuum(self) -> None:
        with self._writing, self.storage_errors():
            self._get_writer().execute("PRAGMA incremental_vacuum").fetchall()

    def close(self) -> None:
        with self._writing, self._reading:
            for database in (self._writer, self._reader):
                if database is not None:
                    database.close()
            self._writer = self._reader = None

    def __del__(self) -> None:
        self.close()

    @contextmanager
    def storage_errors(self) -> Iterator[None]:
        try:
            yield
        except (OSError, sqlite3.Error) as error:
            directory = self.file.parent
            if getattr(error, "sqlite_errorcode", 0) & 0xFF in DAMAGED:
                raise self.damage_error(str(error)) from error
            raise storage_error(directory, error, StorageError) from error

    def _get_writer(self) -> sqlite3.Connection:
        if self._writer is not None and self._identify() != self._written_identity:
            self._writer.close()
            self._writer = None
        if self._writer is None:
            self._writer = self._open_writer()
            self._written_identity = self._identify()
        return self._writer

    def _open_writer(self) -> sqlite3.Connection:
        if not self.exists():
            with exclusive(self.file):
                if not self.exists():
                    self._create()
        database = self._connect(f"{self.file.absolute().as_uri()}?mode=rw")
        try:
            database.execute("PRAGMA journal_mode = WAL")
            database.execute("PRAGMA synchronous = NORMAL")
            database.execute("PRAGMA secure_delete = ON")
        except BaseException:
            database.close()
            raise
        return database

    def _create(self) -> None:
        """Create the file with its tables, in one step: a file without tables has lost them."""
        with replacing(self.file) as temporary:
            temporary.touch(mode=0o600)  # SQLite gives its other files the same mode
            with closing(self._open(f"{temporary.absolute().as_uri()}?mode=rw")) as database:
                database.execute("PRAGMA auto_vacuum = INCREMENTAL")
                database.execute("PRAGMA journal_mode = OFF")
                database.execute("PRAGMA synchronous = FULL")
                database.execute("BEGIN IMMEDIATE")
                self._create_tables(database)
                database.execute(f"PRAGMA user_version = {self._version}")
                database.execute("COMMIT")
        sync_directory(self.file.parent)

    def _create_tables(self, database: sqlite3.Connection) -> None:
        for statement in self._schema.split(";"):
            database.execute(statement)

    def _open_reader(self) -> sqlite3.Connection | None:
        """Open the file for reading; return None if nothing is stored.

        On a disk that cannot be written, SQLite does not see changes, so the connection is used
        only once.
        """
        if self._reader is not None:
            self._reader.close()
            self._reader = None
        self._read_identity = self._identify()
        if self._read_identity is None:
            return None
        uri = database_uri(self.file, "rw")
        database = self._connect(uri)
        self._readers += 1
        if "immutable" not in uri:
            self._reader = database
        return database

    def _connect(self, uri: str) -> sqlite3.Connection:
        """Open the file. Raise an error of SQLite if it has no tables of this version."""
        if not stat.S_ISREG(self.file.stat().st_mode):
            raise self.damage_error("it is not a regular file")
        database = self._open(uri)
        try:
            check_tables(database, self._version, self.file)
            self._check(database)
        except BaseException:
            database.close()
            raise
        return database

    def _open(self, uri: str) -> sqlite3.Connection:
        return sqlite3.connect(
            uri, uri=True, timeout=BUSY_SECONDS, isolation_level=None, check_same_thread=False
        )

    def _check(self, database: sqlite3.Connection) -> None:
        """Check nothing more."""


class SealedDatabase(SqliteDatabase):
    """A database with its key beside it, which is known once the database has been opened."""

    def __init__(self, file: Path, schema: str, version: int) -> None:
        super().__init__(file, schema, version)
        self.key_file = file.with_suffix(".key")
        self._sealer: Sealer | None = None

    def load_sealer(self, _key: str) -> Sealer:
        assert self._sealer is not None
        return self._sealer

    def damage_error(self, message: str) -> StorageError:
        return sealing_error(f"{self.file} is damaged: {message}", self.file.parent)

    def _create_tables(self, database: sqlite3.Connection) -> None:
        sealer = self._make_sealer(must_exist=False)
        database.execute(KEY_SCHEMA)
        super()._create_tables(database)
        database.execute("INSERT INTO key_check VALUES (?)", (sealer.seal(b"", KEY_CHECK),))

    def _check(self, database: sqlite3.Connection) -> None:
        sealer = self._make_sealer(must_exist=True)
        for (sealed,) in database.execute("SELECT sealed FROM key_check"):
            sealer.open(sealed, KEY_CHECK)
        self._sealer = sealer

    def _make_sealer(self, *, must_exist: bool) -> Sealer:
        return Sealer.from_file(self.key_file, must_exist=must_exist)


def database_uri(file: Path, mode: str) -> str:
    """Return the URI of a database.

    On a read-only or full disk SQLite cannot lock it, so it must be immutable.
    """
    is_used = Path(f"{file}-shm").exists()  # by another process, whose lock files can be used
    can_lock = os.access(file.parent, os.W_OK) and (is_used or not is_full_disk(file.parent))
    options = f"mode={mode}" if can_lock else "mode=ro&immutable=1"
    return f"{file.absolute().as_uri()}?{options}"
