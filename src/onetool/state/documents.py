"""JSON documents by kind and name, in SQLite or PostgreSQL.

A document that is deleted leaves a row, so that its version never decreases. PostgreSQL rejects a
lower one.
"""

import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Generic, TypeVar

from onetool.errors import StorageError
from onetool.state.sqlite_database import SqliteDatabase, StateDatabase
from onetool.util.background import SQLITE_SUFFIXES
from onetool.util.problem import STORAGE, NewerVersion
from onetool_child.json_types import JsonMapping, JsonObject

if TYPE_CHECKING:
    from sqlite3 import Connection

DIRECTORY = "state"
VERSION = 1
SCHEMA = """
CREATE TABLE documents (
    kind TEXT, name TEXT, version INTEGER NOT NULL, content BLOB NOT NULL, PRIMARY KEY (kind, name)
) WITHOUT ROWID
"""
GET = "SELECT version, content FROM documents WHERE kind = ? AND name = ?"
LIST = "SELECT name, version, content FROM documents WHERE kind = ? ORDER BY name"
NAMES = "SELECT name FROM documents WHERE kind = ? ORDER BY name"
PUT = """
INSERT INTO documents VALUES (?, ?, ?, ?)
ON CONFLICT (kind, name) DO UPDATE SET version = excluded.version, content = excluded.content
"""
FOREIGN_CODE = "SELECT 1 FROM sqlite_schema WHERE type IN ('view', 'trigger')"
DELETED = b""
VALUES = "values"  # the name of the key of most documents
ALL = "all"  # the name of the only document of a kind
T = TypeVar("T")


class Documents:
    """The documents of one kind. Methods block.

    In PostgreSQL each one is sealed with its name and version. Reading one that somebody without
    the key wrote, or deleted although it is required, raises StorageError.
    """

    def __init__(
        self, database: StateDatabase, kind: str, key: str = VALUES, *, is_announced: bool = True
    ) -> None:
        self.kind = kind
        self.place = database.place
        self._database = database
        self._key = key
        self._is_announced = is_announced  # whether changes notify other replicas

    def get(self, name: str) -> Any:
        """Return a document; None if there is none."""
        self.load()
        rows = self._database.select(GET, self.kind, name)
        return self._parse(name, self._read(name, rows[0] if rows else None))

    def get_all(self) -> JsonObject:
        """Return all documents by name."""
        self.load()
        documents = {}
        rows = self._database.select(LIST, self.kind)
        for name, version, content in rows:
            document = self._parse(name, self.open(name, version, content))
            if document is not None:
                documents[name] = document
        return documents

    def names(self) -> list[str]:
        """Return the names of all documents, also of those that were deleted."""
        return [name for (name,) in self._database.select(NAMES, self.kind)]

    def update(self, name: str, change: Callable[[Any], Any]) -> Any:
        """Change a document, while nobody else can.

        `change` gets the current one or None; None deletes it.
        """

        def change_one(documents: JsonMapping) -> JsonObject:
            return {name: change(documents[name])}

        return self.update_all([name], change_one)[name]

    def update_all(
        self, names: Sequence[str], change: Callable[[JsonMapping], JsonObject]
    ) -> JsonObject:
        """Change several documents in one transaction, while nobody else changes the first one."""
        self.load()
        with self._database.changing(
            self.kind, names[0], is_announced=self._is_announced
        ) as transaction:
            versions: dict[str, int] = {}
            contents: dict[str, bytes] = {}
            for name in names:
                row = transaction.execute(GET, (self.kind, name)).fetchone()
                versions[name] = 0 if row is None else row[0]
                contents[name] = self._read(name, row)
            current = {name: self._parse(name, content) for name, content in contents.items()}
            documents = change(current)
            for name, document in documents.items():
                content = DELETED if document is None else json.dumps(document).encode()
                if content != contents[name]:
                    version = versions[name] + 1
                    sealed = self.seal(name, version, content)
                    transaction.execute(PUT, (self.kind, name, version, sealed))
        return documents

    def load(self) -> None:
        """Load the key before transactions, which would wait for it, and required documents."""
        self._database.prepare_sealer(self._key)

    def seal(self, name: str, version: int, content: bytes) -> bytes:
        sealer = self._database.load_sealer(self._key)
        return sealer.seal(content, describe_document(self.kind, name, version))

    def open(self, name: str, version: int, sealed: bytes) -> bytes:
        sealer = self._database.load_sealer(self._key)
        return sealer.open(sealed, describe_document(self.kind, name, version))

    def _read(self, name: str, row: tuple[int, bytes] | None) -> bytes:
        if row is not None:
            return self.open(name, *row)
        error = self._database.missing_error(self.kind, name)
        if error is not None:
            raise error
        return DELETED

    def _parse(self, name: str, content: bytes) -> Any:
        if content == DELETED:
            return None
        try:
            return json.loads(content)
        except (ValueError, RecursionError):
            message = f"cannot read {self.place}: {self.kind} {name} is damaged"
            raise StorageError(message, hint="restore it from a backup", code=STORAGE) from None


class DocumentFile(SqliteDatabase):
    """The documents of one directory, in a file for its owner only."""

    def __init__(self, directory: Path) -> None:
        super().__init__(directory / DIRECTORY / "documents.db", SCHEMA, VERSION)

    def _check(self, database: "Connection") -> None:
        """Reject views and triggers, which only somebody else adds: a view may be endless."""
        if database.execute(FOREIGN_CODE).fetchone() is not None:
            raise self.damage_error("it contains views or triggers")


class DocumentCache(DocumentFile):
    """Documents that can be created again: a file that cannot be used is deleted."""

    def damage_error(self, message: str) -> StorageError:
        for suffix in (*SQLITE_SUFFIXES, ""):
            Path(f"{self.file}{suffix}").unlink(missing_ok=True)
        return super().damage_error(message)

    def _connect(self, uri: str) -> "Connection":
        try:
            return super()._connect(uri)
        except NewerVersion as error:
            raise self.damage_error(error.message) from None


def describe_document(kind: str, name: str, version: int) -> bytes:
    """Return what a sealed document is bound to."""
    return f"{kind} {name} (version {version})".encode()


class StoreUnavailable(StorageError):
    """The database does not answer. The call may be repeated."""

    CODE: Final = "store_unavailable"


class Cached(Generic[T]):
    """A value that is read again when it has changed.

    While a thread listens to changes, reading it never blocks.
    """

    def __init__(self, database: StateDatabase, kind: str, load: Callable[[], T]) -> None:
        self._database = database
        self._kind = kind
        self._load = load
        self._number: int | None = None  # of the value, while nobody listens
        self._value: T | None = None
        self._error: StorageError | None = None
        self._is_loaded = False
        database.subscribe(kind, self._update)

    def refresh(self) -> T:
        """Read the value. If it was forged, raise StorageError, which `get` does from then on."""
        try:
            self._value = self._load()
        except StoreUnavailable:
            raise
        except StorageError as error:
            self._error = error
            raise
        self._error = None
        self._is_loaded = True
        return self._value

    def get(self) -> T:
        if not self._database.is_listening:
            number = self._database.number(self._kind)
            if number != self._number:
                self.refresh()
                self._number = number
            return self._value  # type: ignore[return-value]
        if self._error is not None:
            raise self._error.with_traceback(None)
        if not self._is_loaded:
            raise self._database.away()
        return self._value  # type: ignore[return-value]

    def _update(self) -> None:
        try:
            self.refresh()
        except StoreUnavailable:
            raise
        except StorageError:
            pass  # `get` raises it
