"""Statistics and shapes of results in PostgreSQL. Each replica writes what it has buffered about once a second."""

import json
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from datetime import UTC, datetime
from typing import Any, Final

from onetool.bundles.model import timestamp
from onetool.bundles.usage import StoredToolUsage
from onetool.errors import StorageError, ToolError
from onetool.state.postgres_database import Database, Statements
from onetool.stats import rollup
from onetool.stats.record import BufferedRecorder, CallRecord, Record, StatisticsTables
from onetool.stats.shapes import NOTHING, Shape, Shapes, from_json, limit_size, merge, to_json

TABLES: Final = "onetool_stats"
LOCK: Final = "statistics"
COPY_CALLS: Final = f"COPY calls ({', '.join(CallRecord._fields)}) FROM STDIN"
SHAPE: Final = "SELECT document FROM documents WHERE kind = 'shape' AND name = ?"
PUT_SHAPE: Final = """
INSERT INTO documents VALUES ('shape', ?, 1, ?)
ON CONFLICT (kind, name) DO UPDATE SET version = documents.version + 1, document = excluded.document
"""


class StatisticsRows(BufferedRecorder):
    """Statistics of all replicas. Writers take turns, so that rows are numbered in the order of their commits."""

    def __init__(self, database: Database, *, enabled: bool, **options: Any) -> None:
        super().__init__(database.place, enabled=enabled, **options)
        self._database = database

    def _write(self, records: list[Record]) -> None:
        with self.writing() as transaction:
            self._insert_records(transaction, records)
        if self._is_check_due:  # not after each write: looking for old rows takes a dozen statements
            with self._open() as transaction:
                if transaction.try_lock(LOCK) and not self._prune(transaction):
                    self._values_checked = 0.0  # the next write continues

    @contextmanager
    def writing(self) -> Iterator[Statements]:
        """Open the tables for one writer at a time."""
        with self._open() as transaction:
            transaction.lock(LOCK)
            yield transaction

    def insert(self, transaction: Statements, records: list[Record]) -> None:
        """Insert records of another store."""
        self._insert_records(transaction, records)

    def _add_to_rollups(self, database: StatisticsTables, call: int, run: int) -> None:
        rollup.add_at_once(database, call, run)

    def _insert_calls(self, database: Any, rows: Iterator[dict[str, Any]]) -> None:
        with database.connection.cursor() as cursor, cursor.copy(COPY_CALLS) as copy:
            for row in rows:
                copy.write_row([_clean(row[name]) for name in CallRecord._fields])

    def _insert_runs(self, database: Any, rows: Iterable[dict[str, Any]]) -> None:
        super()._insert_runs(database, ({name: _clean(value) for name, value in row.items()} for row in rows))

    @contextmanager
    def reading(self) -> Iterator[Statements]:
        """Open the tables for a consistent read. Temporary tables are dropped at the end."""
        try:
            with self._open(is_read_only=True) as transaction:
                yield transaction
                transaction.execute("ROLLBACK")
        except StorageError as error:
            raise ToolError(f"cannot read the statistics: {error.message}", hint=error.hint or "") from None

    def count_uses(self, tool_ids: Iterable[str]) -> dict[str, StoredToolUsage]:
        query = f"SELECT tool, calls, last FROM {TABLES}.usage WHERE tool = ANY(?)"  # noqa: S608 - a constant
        return {
            tool: StoredToolUsage(calls, timestamp(datetime.fromtimestamp(last, UTC)))
            for tool, calls, last in self._database.select(query, list(tool_ids))
        }

    @contextmanager
    def _open(self, *, is_read_only: bool = False) -> Iterator[Statements]:
        with self._database.transaction(is_read_only=is_read_only, search_path=TABLES) as transaction:
            yield transaction


class UsageRows:
    """Call counts of stored tools, with the interface of `UsageCounts`."""

    def __init__(self, statistics: StatisticsRows) -> None:
        self._statistics = statistics
        self.problem: str | None = None

    def of(self, tool_ids: Iterable[str]) -> dict[str, StoredToolUsage]:
        self.problem = None
        try:
            return self._statistics.count_uses(tool_ids)
        except ToolError as error:
            self.problem = f"cannot read call counts of stored tools: {error.message}"
            return {}


class ShapeRows(Shapes):
    """The shapes of the results of all tools. Those of all replicas are merged."""

    def __init__(self, database: Database) -> None:
        super().__init__(database.place)
        self._database = database

    def _write(self, changed: Mapping[str, Shape]) -> None:
        with self._database.transaction() as transaction:
            transaction.lock("shapes")
            for name, shape in sorted(changed.items()):
                found = transaction.execute(SHAPE, (name,)).fetchone()
                known = NOTHING if found is None else from_json(found[0])
                transaction.execute(PUT_SHAPE, (name, json.dumps(to_json(limit_size(merge(known, shape))))))

    def _read(self) -> dict[str, Shape]:
        rows = self._database.select("SELECT name, document FROM documents WHERE kind = 'shape'")
        return {name: from_json(document) for name, document in rows}


def _clean(value: Any) -> Any:
    """Remove what PostgreSQL does not store in text."""
    return value.replace("\0", "") if isinstance(value, str) else value
