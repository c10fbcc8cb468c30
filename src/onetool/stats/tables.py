"""The tables of the statistics in SQLite."""

from typing import TYPE_CHECKING

from onetool.stats import details, rollup, spending

if TYPE_CHECKING:
    from sqlite3 import Connection

VERSION = 1
# Runs are listed by time or duration: all, or those of one agent or actor.
RUN_INDEXES = """
CREATE UNIQUE INDEX runs_id ON runs (run_id);
CREATE INDEX runs_by_time ON runs (at, run_id);
CREATE INDEX runs_by_duration ON runs (seconds, run_id);
CREATE INDEX runs_of_agent_by_time ON runs (agent, at, run_id);
CREATE INDEX runs_of_agent_by_duration ON runs (agent, seconds, run_id);
CREATE INDEX runs_of_actor_by_time ON runs (actor, at, run_id);
CREATE INDEX runs_of_actor_by_duration ON runs (actor, seconds, run_id);
"""
SCHEMA = f"""
CREATE TABLE calls (
    name TEXT, agent TEXT, session TEXT, run_id TEXT, seconds REAL, error_type TEXT, result_tokens INTEGER, at REAL,
    call_id INTEGER
);
CREATE INDEX calls_at ON calls (at);
CREATE INDEX calls_run ON calls (run_id);
CREATE TABLE runs (
    run_id TEXT, agent TEXT, session TEXT, seconds REAL, error_type TEXT, round_trips INTEGER, answer_tokens INTEGER,
    result_tokens INTEGER, at REAL, kind TEXT, name TEXT, client TEXT, command TEXT, calls INTEGER, failed INTEGER,
    actor TEXT, directory TEXT, cost REAL
);
{RUN_INDEXES}
CREATE TABLE sessions (
    session TEXT PRIMARY KEY, agent TEXT, catalog TEXT, definition_tokens INTEGER, own_tokens INTEGER, at REAL
);
CREATE TABLE definitions (catalog TEXT, name TEXT, tokens INTEGER, PRIMARY KEY (catalog, name)) WITHOUT ROWID;
CREATE TABLE usage (tool TEXT PRIMARY KEY, calls INTEGER, last REAL) WITHOUT ROWID;
{rollup.SCHEMA}{details.SCHEMA}{spending.SCHEMA}
"""
COUNT_USE = f"""
INSERT INTO usage VALUES (?, ?, ?) ON CONFLICT (tool) DO UPDATE SET calls = usage.calls + excluded.calls,
last = {rollup.greater("usage.last", "excluded.last")}
"""  # noqa: S608 - constants


def create_tables(database: "Connection") -> None:
    database.execute("PRAGMA journal_mode = WAL")
    database.execute("BEGIN IMMEDIATE")
    for statement in SCHEMA.split(";"):
        database.execute(statement)
    database.execute(f"PRAGMA user_version = {VERSION}")
    database.execute("COMMIT")
