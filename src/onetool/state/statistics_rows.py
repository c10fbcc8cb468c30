"""The database of the statistics in PostgreSQL."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TypeVar

from onetool.errors import StorageError, ToolError
from onetool.state.postgres_database import Database, Statements
from onetool.state.sqlite_database import Transaction
from onetool.util.problem import Location

T = TypeVar("T")
TABLES = "onetool_stats"
LOCK = "statistics"


class StatisticsSchema:
    """The tables of all replicas. Writers take turns, so that rows are numbered in the order of their commits."""

    location: Location | None = None
    notice: str | None = None

    def __init__(self, database: Database) -> None:
        self._database = database
        self.place = database.place

    def exists(self) -> bool:
        return True

    def write(self, change: Callable[[Transaction], T]) -> T:
        with self._database.transaction(search_path=TABLES) as transaction:
            transaction.lock(LOCK)
            return change(transaction)

    @contextmanager
    def reading(self) -> Iterator[Statements]:
        """Open the tables for a consistent read. Temporary tables are dropped at the end."""
        try:
            with self._database.transaction(is_read_only=True, search_path=TABLES) as transaction:
                yield transaction
                transaction.execute("ROLLBACK")
        except StorageError as error:
            raise ToolError(f"cannot read the statistics: {error.message}", hint=error.hint or "") from None
