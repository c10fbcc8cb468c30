"""The database of the statistics in a file. `onetool.state.statistics_rows` is the one in PostgreSQL.

The file is opened for each use, because another process may have replaced it. A damaged file is renamed by the next
write, which creates a new one.
"""

import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, closing, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

from onetool.errors import StorageError, ToolError
from onetool.state.sqlite_database import database_uri
from onetool.stats import rollup
from onetool.stats.tables import VERSION, create_tables
from onetool.util.atomic import replacing
from onetool.util.background import exclusive, is_unchanged, put_aside, remember_state
from onetool.util.problem import Location
from onetool.util.versioning import check_tables

if TYPE_CHECKING:
    from sqlite3 import Connection

T = TypeVar("T")
BUSY_SECONDS = 5.0


class StatisticsTables(Protocol):
    """A connection to the tables. Statements are valid in SQLite and PostgreSQL."""

    def execute(self, statement: str, parameters: Any = ..., /) -> Any: ...
    def executemany(self, statement: str, parameters: Any, /) -> object: ...


class StatisticsDatabase(Protocol):
    """The tables of the statistics. Errors are ToolErrors and OSErrors."""

    place: str
    location: Location | None  # of the file
    notice: str | None  # about damaged statistics that a write has put aside

    def exists(self) -> bool:
        """Return whether anything may be stored."""
        ...

    def write(self, change: Callable[[StatisticsTables], T], /) -> T:
        """Change the tables in one transaction, of one writer at a time. `change` may be called twice."""
        ...

    def reading(self) -> AbstractContextManager[StatisticsTables]:
        """Open the tables in one transaction, for consistent reads."""
        ...


class Damaged(Exception):
    """The file is not a database, or is damaged."""


class StatisticsFile:
    """The tables in a file of SQLite, which the first write creates."""

    def __init__(self, file: Path) -> None:
        self.file = file
        self.place = str(file)
        self.location: Location | None = Location(str(file))
        self.notice: str | None = None
        self._is_checked = False

    def exists(self) -> bool:
        return self.file.exists()

    def write(self, change: Callable[[StatisticsTables], T]) -> T:
        import sqlite3

        try:
            with exclusive(self.file):
                try:
                    return self._write(change)
                except Damaged as error:
                    old_file = put_aside(self.file, time.time())
                    self.notice = f"damaged statistics in {self.file} were reset ({error}); old file: {old_file}"
                    return self._write(change)
        except (sqlite3.Error, Damaged) as error:
            raise StorageError(str(error)) from error

    @contextmanager
    def reading(self) -> "Iterator[Connection]":
        """Open the file; an empty database if it does not exist."""
        import sqlite3

        try:
            with ExitStack() as stack:
                if self.file.exists():
                    database = stack.enter_context(_open(self.file))
                    check_tables(database, VERSION, self.file)
                else:
                    database = stack.enter_context(_connect(":memory:"))
                    create_tables(database)
                database.execute("BEGIN")
                yield database
        except Damaged as error:
            hint = "OneTool renames it and starts a new one, at the next start at the latest."
            raise ToolError(f"the statistics file {self.file} is damaged: {error}. {hint}") from None
        except sqlite3.Error as error:
            raise ToolError(f"cannot read the statistics in {self.file}: {error}") from None

    def _write(self, change: Callable[[StatisticsTables], T]) -> T:
        was_unchanged = is_unchanged(self.file)
        if not self.file.exists():
            self._create()
            was_unchanged = True
        with _open(self.file) as database:
            is_intact = self._check(database, was_unchanged=was_unchanged)
            database.execute("BEGIN IMMEDIATE")
            result = change(database)
            database.execute("COMMIT")
        if is_intact:
            remember_state(self.file)
        return result

    def _create(self) -> None:
        """Create the file with its tables, in one step: a file without tables has lost them."""
        with replacing(self.file) as temporary:
            temporary.touch(mode=0o600)
            with _open(temporary) as database:
                create_tables(database)

    def _check(self, database: "Connection", *, was_unchanged: bool) -> bool:
        """Return whether the file is intact, False if that is unknown.

        It is checked once, unless it is as the last write left it: inserts alone do not detect damage.
        """
        is_intact = was_unchanged
        check_tables(database, VERSION, self.file)
        if not was_unchanged and not self._is_checked:
            (result,) = database.execute("PRAGMA quick_check(1)").fetchone()
            if result != "ok":
                raise Damaged(result)
            is_intact = True
        self._is_checked = True
        return is_intact


@contextmanager
def _open(file: Path) -> "Iterator[Connection]":
    """Open the database in an existing file."""
    import sqlite3

    try:
        with _connect(database_uri(file, "rw")) as database:
            yield database
    except sqlite3.DatabaseError as error:
        code = getattr(error, "sqlite_errorcode", 0) & 0xFF  # the low byte is the primary code, the others are details
        if code in {sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB}:
            raise Damaged(str(error)) from error
        raise


def _connect(uri: str) -> "AbstractContextManager[Connection]":
    import sqlite3

    database = sqlite3.connect(uri, uri=True, timeout=BUSY_SECONDS, isolation_level=None)
    rollup.add_functions(database)
    return closing(database)
