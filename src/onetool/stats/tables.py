"""The tables of the statistics in SQLite, and their migration from older versions."""

from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from onetool.stats import details, rollup, spending
from onetool.util.versioning import reject_newer

if TYPE_CHECKING:
    from sqlite3 import Connection

VERSION = 5
# The tables of version 1. Version 2 added aggregates and call counts of stored tools, version 3 the run history,
# version 4 the actors of runs, version 5 values, failures, spending, and an index for each order of runs.
ROWS = """
CREATE TABLE calls (
    name TEXT, agent TEXT, session TEXT, run_id TEXT, seconds REAL, error_type TEXT, result_tokens INTEGER, at REAL
);
CREATE INDEX calls_at ON calls (at);
CREATE INDEX calls_run ON calls (run_id);
CREATE TABLE runs (
    run_id TEXT, agent TEXT, session TEXT, seconds REAL, error_type TEXT, calls INTEGER, answer_tokens INTEGER,
    result_tokens INTEGER, at REAL
);
CREATE INDEX runs_at ON runs (at);
CREATE TABLE sessions (
    session TEXT PRIMARY KEY, agent TEXT, catalogue TEXT, definition_tokens INTEGER, own_tokens INTEGER, at REAL
);
CREATE TABLE definitions (catalogue TEXT, name TEXT, tokens INTEGER, PRIMARY KEY (catalogue, name)) WITHOUT ROWID;
"""
USAGE = "CREATE TABLE usage (tool TEXT PRIMARY KEY, calls INTEGER, last REAL) WITHOUT ROWID"
HISTORY = """
ALTER TABLE runs RENAME COLUMN calls TO round_trips;
ALTER TABLE runs ADD COLUMN kind TEXT DEFAULT 'run';
ALTER TABLE runs ADD COLUMN name TEXT DEFAULT 'run';
ALTER TABLE runs ADD COLUMN client TEXT DEFAULT '';
ALTER TABLE runs ADD COLUMN command TEXT DEFAULT '';
ALTER TABLE runs ADD COLUMN calls INTEGER DEFAULT 0;
ALTER TABLE runs ADD COLUMN failed INTEGER DEFAULT 0;
UPDATE runs SET calls = round_trips;
DELETE FROM runs WHERE rowid NOT IN (SELECT max(rowid) FROM runs GROUP BY run_id);
CREATE UNIQUE INDEX runs_id ON runs (run_id);
CREATE INDEX runs_agent ON runs (agent, at)
"""
ACTORS = "ALTER TABLE runs ADD COLUMN actor TEXT DEFAULT ''"
# Runs are listed by time or duration: all, or those of one agent or actor.
ORDERS = """
CREATE INDEX runs_by_time ON runs (at, run_id);
CREATE INDEX runs_by_duration ON runs (seconds, run_id);
CREATE INDEX runs_of_agent_by_time ON runs (agent, at, run_id);
CREATE INDEX runs_of_agent_by_duration ON runs (agent, seconds, run_id);
CREATE INDEX runs_of_actor_by_time ON runs (actor, at, run_id);
CREATE INDEX runs_of_actor_by_duration ON runs (actor, seconds, run_id);
"""
VALUES = f"""
ALTER TABLE runs ADD COLUMN directory TEXT DEFAULT '';
ALTER TABLE runs ADD COLUMN cost DOUBLE PRECISION DEFAULT 0;
ALTER TABLE calls ADD COLUMN call_id BIGINT DEFAULT 0;
DROP INDEX runs_at;
DROP INDEX runs_agent;
{ORDERS}{details.SCHEMA}{spending.SCHEMA}
"""
FILL_SPENDING = """
INSERT INTO spending SELECT strftime('%Y-%m', at, 'unixepoch'), actor, agent, sum(kind = 'run'), sum(calls),
count(error_type), sum(answer_tokens), sum(result_tokens), 0, max(at) FROM runs GROUP BY 1, 2, 3
"""
COUNT_USE = f"""
INSERT INTO usage VALUES (?, ?, ?) ON CONFLICT (tool) DO UPDATE SET calls = usage.calls + excluded.calls,
last = {rollup.greater("usage.last", "excluded.last")}
"""  # noqa: S608 - constants


def read_version(database: "Connection", file: Path) -> int:
    """Return the version of the tables, 0 if there are none. Without a version number, it follows from the tables."""
    version = int(database.execute("PRAGMA user_version").fetchone()[0])
    reject_newer(version, VERSION, file)
    known = """
        SELECT (SELECT count(*) FROM sqlite_master WHERE name IN ('calls', 'rollups', 'runs_id'))
        + (SELECT count(*) FROM pragma_table_info('runs') WHERE name IN ('actor', 'directory'))
    """
    return version or int(database.execute(known).fetchone()[0])


def migrate(database: "Connection", version: int, uses: Iterable[tuple[Any, ...]] = ()) -> None:
    """Migrate the tables: version 0 has none, 1 has no aggregates, 2 has no run history, 3 no actors, 4 no values.

    `uses` are call counts of stored tools.
    """
    if version == 0:
        database.execute("PRAGMA journal_mode = WAL")
    database.execute("BEGIN IMMEDIATE")
    steps = (ROWS, f"{USAGE};{rollup.SCHEMA}", HISTORY, ACTORS, VALUES)
    for statement in ";".join(steps[version:]).split(";"):
        database.execute(statement)
    if version:
        database.execute(FILL_SPENDING)
    database.executemany(COUNT_USE, uses)
    if version == 1:
        rollup.add(database, call=0, run=0)
    database.execute(f"PRAGMA user_version = {VERSION}")
    database.execute("COMMIT")
