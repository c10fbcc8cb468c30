"""Copy statistics from a SQLite file to the database: rows, aggregates and call counts of stored tools."""

import json
import socket
import time
from pathlib import Path
from typing import Any

from onetool.errors import StorageError
from onetool.state.sqlite_database import Transaction
from onetool.state.storage import State
from onetool.stats import rollup, spending
from onetool.stats.database import StatisticsFile
from onetool.stats.record import LAST_ROWS, CallRecord, Record, RunRecord, insert_records
from onetool.stats.tables import ADD_USES

# The tables, and what happens to rows that exist.
TABLES = {
    "calls": "",
    "runs": "ON CONFLICT DO NOTHING",
    "sessions": "ON CONFLICT DO NOTHING",
    "definitions": "ON CONFLICT DO NOTHING",
    "rollups": rollup.ADD_ROLLUP,
    "times": rollup.ADD_TIMES,
    "details": "ON CONFLICT DO NOTHING",
    "failures": "ON CONFLICT DO NOTHING",
    "spending": spending.MERGE,
    "usage": ADD_USES,
}
# ruff: noqa: S608 - statements are built from the constants above
ALL_CALLS = f"SELECT coalesce(sum(count), 0) FROM rollups WHERE width = {rollup.BLOCK} AND kind = {rollup.ALL_CALLS}"
MARKER = "SELECT version, content FROM onetool.documents WHERE kind = 'migrated' AND name = ?"
PUT_MARKER = """
INSERT INTO onetool.documents VALUES ('migrated', ?, ?, ?)
ON CONFLICT (kind, name) DO UPDATE SET version = excluded.version, content = excluded.content
"""


def copy_statistics(file: Path, state: State) -> int:
    """Copy the statistics of a file, or what was added to it since it was last copied. Return its number of calls."""
    if not file.exists():
        return 0
    name = f"{socket.gethostname()}:{file}"
    with StatisticsFile(file).reading() as source:
        last = source.execute(LAST_ROWS).fetchone()
        count = _count_calls(source)

        def copy(target: Transaction) -> None:
            marker = target.execute(MARKER, (name,)).fetchone()
            if marker is None:
                version = 1
                _copy_tables(source, target)
            else:
                version = marker[0] + 1
                insert_records(target, _read_later(source, *json.loads(marker[1])), time.time())
            target.execute(PUT_MARKER, (name, version, json.dumps(last).encode()))
            copied = _count_calls(target)
            if copied < count:
                raise StorageError(f"the copy of statistics has {copied} of {count} calls", hint="repeat it")

        state.recorder.database.write(copy)
    return count


def _count_calls(tables: Transaction) -> int:
    row: Any = tables.execute(ALL_CALLS).fetchone()
    return int(row[0])


def _copy_tables(source: Transaction, target: Transaction) -> None:
    for table, conflict in TABLES.items():
        rows: Any = source.execute(f"SELECT * FROM {table}")
        names = [column[0] for column in rows.description]
        marks = ", ".join("?" * len(names))
        insert = f"INSERT INTO {table} ({', '.join(names)}) VALUES ({marks}) {conflict}"
        target.executemany(insert, rows.fetchall())


def _read_later(source: Transaction, call: int, run: int) -> list[Record]:
    """Return the calls and runs that were recorded after these rows."""
    records: list[Record] = []
    for table, kind, last in (("calls", CallRecord, call), ("runs", RunRecord, run)):
        query = f"SELECT {', '.join(kind._fields)} FROM {table} WHERE rowid > ? ORDER BY rowid"
        rows: list[Any] = source.execute(query, (last,)).fetchall()
        records += [kind(*row) for row in rows]
    return records
