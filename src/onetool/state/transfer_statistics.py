"""Copy statistics from a SQLite file to the database: rows, aggregates and call counts of stored tools."""

import json
import socket
from pathlib import Path
from typing import Any, Final

from onetool.errors import StorageError
from onetool.state.postgres_state import PostgresState
from onetool.stats import rollup, spending
from onetool.stats.record import CallRecord, Record, RunRecord, StatisticsTables, reading
from onetool.stats.spending import Spending
from onetool.stats.tables import COUNT_USE

SESSION_COLUMNS: Final = ("session", "agent", "catalog", "definition_tokens", "own_tokens", "at")
ROLLUP_COLUMNS: Final = (
    *("width", "start", "kind", "name", "agent", "error", "count", "tokens", "trips", "least", "most", "last"),
)
TIMES_COLUMNS: Final = ("width", "start", "kind", "name", "agent", "bucket", "count")
DETAIL_COLUMNS: Final = ("run_id", "call_id", "printed", "arguments", "result", "error", "size", "at")
FAILURE_COLUMNS: Final = (
    *("agent", "actor", "name", "error_type", "pattern", "message", "count", "run_id", "first", "last"),
)
# The columns of each table, and what happens to rows that exist.
TABLES: Final = {
    "calls": (CallRecord._fields, ""),
    "runs": (RunRecord._fields, "ON CONFLICT DO NOTHING"),
    "sessions": (SESSION_COLUMNS, "ON CONFLICT DO NOTHING"),
    "definitions": (("catalog", "name", "tokens"), "ON CONFLICT DO NOTHING"),
    "rollups": (ROLLUP_COLUMNS, rollup.ADD_ROLLUP),
    "times": (TIMES_COLUMNS, rollup.ADD_TIMES),
    "details": (DETAIL_COLUMNS, "ON CONFLICT DO NOTHING"),
    "failures": (FAILURE_COLUMNS, "ON CONFLICT DO NOTHING"),
    "spending": (Spending._fields, spending.MERGE),
}
# ruff: noqa: S608 - statements are built from the constants above
LAST_ROWS: Final = "SELECT coalesce(max(rowid), 0) FROM {table}"
ALL_CALLS: Final = (
    f"SELECT coalesce(sum(count), 0) FROM rollups WHERE width = {rollup.BLOCK} AND kind = {rollup.ALL_CALLS}"
)
MARKER: Final = "SELECT document FROM onetool.documents WHERE kind = 'migrated' AND name = ?"
PUT_MARKER: Final = """
INSERT INTO onetool.documents VALUES ('migrated', ?, 1, ?)
ON CONFLICT (kind, name) DO UPDATE SET document = excluded.document
"""


def copy_statistics(file: Path, state: PostgresState) -> int:
    """Copy the statistics of a file, or what was added to it since it was last copied. Return its number of calls."""
    if not file.exists():
        return 0
    name = f"{socket.gethostname()}:{file}"
    with reading(file) as source, state.recorder.writing() as target:
        found = target.execute(MARKER, (name,)).fetchone()
        if found is None:
            _copy_tables(source, target)
        else:
            state.recorder.insert(target, _read_later(source, **found[0]))
        last = {table: source.execute(LAST_ROWS.format(table=table)).fetchone()[0] for table in ("calls", "runs")}
        target.execute(PUT_MARKER, (name, json.dumps(last)))
        count, copied = _count_calls(source), _count_calls(target)
        if copied < count:
            raise StorageError(f"the copy of statistics has {copied} of {count} calls", hint="repeat it")
    return count


def _count_calls(tables: StatisticsTables) -> int:
    row: Any = tables.execute(ALL_CALLS).fetchone()
    return int(row[0])


def _copy_tables(source: StatisticsTables, target: StatisticsTables) -> None:
    for table, (columns, conflict) in TABLES.items():
        names, marks = ", ".join(columns), ", ".join("?" * len(columns))
        rows = source.execute(f"SELECT {names} FROM {table}").fetchall()
        target.executemany(f"INSERT INTO {table} ({names}) VALUES ({marks}) {conflict}", rows)
    target.executemany(COUNT_USE, source.execute("SELECT tool, calls, last FROM usage").fetchall())


def _read_later(source: StatisticsTables, calls: int, runs: int) -> list[Record]:
    """Return the calls and runs that were recorded after these rows."""
    found: list[Record] = []
    for table, kind, after in (("calls", CallRecord, calls), ("runs", RunRecord, runs)):
        query = f"SELECT {', '.join(kind._fields)} FROM {table} WHERE rowid > ? ORDER BY rowid"
        rows: list[Any] = source.execute(query, (after,)).fetchall()
        found += [kind(*row) for row in rows]
    return found
