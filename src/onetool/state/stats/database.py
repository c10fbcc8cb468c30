"""The database of the statistics in a file. `onetool.state.replica_kinds` is the one in PostgreSQL.

The file is opened for each use, because another process may have replaced it. A damaged file is
renamed by the next write, which creates a new one.
"""

import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, closing, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Protocol, TypeVar

from onetool.errors import StorageError, ToolError
from onetool.state.sqlite_database import SqliteDatabase, Transaction, database_uri
from onetool.state.stats import rollup
from onetool.state.stats.tables import SQLITE_SCHEMA, VERSION
from onetool.util.background import exclusive, is_unchanged, put_aside, remember_state
from onetool.util.problem import Location

if TYPE_CHECKING:
    from sqlite3 import Connection

T = TypeVar("T")


class StatisticsDatabase(Protocol):
    """The tables of the statistics. Errors are ToolErrors."""

    place: str
    location: Location | None  # of the file
    notice: str | None  # about damaged statistics that a write has put aside

    def write(self, change: Callable[[Transaction], T], /) -> T:
        """Change the tables in one transaction, of one writer at a time.

        `change` may be called twice.
        """
        ...

    def reading(self) -> AbstractContextManager[Transaction]:
        """Open the tables in one transaction, for consistent reads."""
        ...


class Damaged(StorageError):
    """The file is not a database, or is damaged."""


class StatisticsFile(SqliteDatabase):
    """The tables in a file of SQLite, which the first write creates."""

    def __init__(self, file: Path) -> None:
        super().__init__(file, SQLITE_SCHEMA, VERSION)
        self.location: Location | None = Location(self.place)
        self.notice: str | None = None
        self._is_checked = False

    def write(self, change: Callable[[Transaction], T]) -> T:
        with self.storage_errors(), exclusive(self.file):
            try:
                return self._write(change)
            except Damaged as error:
                old_file = put_aside(self.file, time.time())
                self.notice = (
                    f"damaged statistics in {self.file} were reset ({error}); old file: {old_file}"
                )
                return self._write(change)

    @contextmanager
    def reading(self) -> "Iterator[Connection]":
        """Open the file; an empty database if it does not exist."""
        try:
            with self.storage_errors(), closing(self._open_for_reading()) as database:
                database.execute("BEGIN")
                yield database
        except Damaged as error:
            hint = "run `onetool run 1`: OneTool renames it and starts a new one"
            raise ToolError(
                f"the statistics file {self.file} is damaged: {error}", hint=hint
            ) from None

    def damage_error(self, message: str) -> StorageError:
        return Damaged(message)

    def _open_for_reading(self) -> "Connection":
        if self.exists():
            return self._connect(database_uri(self.file, "rw"))
        database = self._open(":memory:")
        self._create_tables(database)
        return database

    def _write(self, change: Callable[[Transaction], T]) -> T:
        """Change the tables. The file is checked once, unless it is as the last write left it.

        Inserts alone do not detect damage.
        """
        is_intact = is_unchanged(self.file)
        if not self.exists():
            self._create()
            is_intact = True
        with closing(self), self.transaction() as database:
            if not is_intact and not self._is_checked:
                (result,) = database.execute("PRAGMA quick_check(1)").fetchone()
                if result != "ok":
                    raise Damaged(result)
                is_intact = True
            self._is_checked = True
            value = change(database)
        if is_intact:
            remember_state(self.file)
        return value

    def _open(self, uri: str) -> "Connection":
        database = super()._open(uri)
        rollup.add_functions(database)
        return database
