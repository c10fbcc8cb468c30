"""The statistics tables, and their database in a file; `state.replica_kinds` has that in PostgreSQL.

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
from onetool.state.stats import details, rollup
from onetool.util.background import exclusive, is_unchanged, put_aside, remember_state
from onetool.util.problem import Location

if TYPE_CHECKING:
    from sqlite3 import Connection


T = TypeVar("T")
VERSION = 1
# Runs are listed by time or duration: all, or those of one agent, actor or token. In SQLite, tables
# have a `rowid`.
SCHEMA = f"""
CREATE TABLE calls (
    name TEXT, agent TEXT, session TEXT, run_id TEXT, seconds DOUBLE PRECISION, error_type TEXT, result_tokens BIGINT,
    at DOUBLE PRECISION, call_id BIGINT{{rowid}}
);
CREATE INDEX calls_at ON calls (at);
CREATE INDEX calls_run ON calls (run_id);
CREATE TABLE runs (
    id TEXT, agent TEXT, session TEXT, seconds DOUBLE PRECISION, error_type TEXT, round_trips BIGINT,
    answer_tokens BIGINT, result_tokens BIGINT, at DOUBLE PRECISION, kind TEXT, name TEXT, client TEXT, code TEXT,
    calls BIGINT, failed BIGINT, actor TEXT, token_id TEXT, directory TEXT, cost DOUBLE PRECISION{{rowid}}
);
CREATE UNIQUE INDEX runs_id ON runs (id);
CREATE INDEX runs_by_time ON runs (at, id);
CREATE INDEX runs_by_duration ON runs (seconds, id);
CREATE INDEX runs_of_agent_by_time ON runs (agent, at, id);
CREATE INDEX runs_of_agent_by_duration ON runs (agent, seconds, id);
CREATE INDEX runs_of_actor_by_time ON runs (actor, at, id);
CREATE INDEX runs_of_actor_by_duration ON runs (actor, seconds, id);
CREATE INDEX runs_of_token_by_time ON runs (token_id, at, id);
CREATE INDEX runs_of_token_by_duration ON runs (token_id, seconds, id);
CREATE TABLE sessions (
    session TEXT UNIQUE, agent TEXT, catalog TEXT, definition_tokens BIGINT, own_tokens BIGINT,
    at DOUBLE PRECISION{{rowid}}
);
CREATE TABLE definitions (catalog TEXT, name TEXT, tokens BIGINT, PRIMARY KEY (catalog, name)){{in_order}};
CREATE TABLE usage (tool TEXT PRIMARY KEY, calls BIGINT, last DOUBLE PRECISION){{in_order}};
CREATE TABLE shapes (tool TEXT PRIMARY KEY, shape TEXT){{in_order}};
{rollup.SCHEMA}{details.SCHEMA}{rollup.SPENDING_SCHEMA}
"""
SQLITE_SCHEMA = SCHEMA.format(rowid="", in_order=" WITHOUT ROWID")
POSTGRES_SCHEMA = SCHEMA.format(rowid=", rowid bigserial PRIMARY KEY", in_order="")
ADD_USES = f"""
ON CONFLICT (tool) DO UPDATE SET calls = usage.calls + excluded.calls,
last = {rollup.greater("usage.last", "excluded.last")}
"""
COUNT_USE = f"INSERT INTO usage VALUES (?, ?, ?) {ADD_USES}"  # noqa: S608 - constants


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
