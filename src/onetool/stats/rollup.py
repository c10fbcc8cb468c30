"""Aggregates of recorded calls and runs per hour, day and four weeks, so that reports do not read every row.

A row of `rollups` aggregates `width` seconds from `start` on (UTC): the calls of a tool, of all tools, all runs, or the
runs that called a tool, with the share of that tool. Failures have separate rows with the type of the `error`. `tokens`
are those of results, and of runs those that were saved; `trips` are the round trips saved; `last` is the latest time.
`times` counts durations in buckets, each 26% wider than the previous one: a percentile between 0.1 ms and 1000 s is
accurate to 12%.
"""
# ruff: noqa: S608 - statements are built from the constants below

import math
from bisect import bisect_left
from collections.abc import Mapping
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from sqlite3 import Connection

    from onetool.stats.record import StatisticsTables

HOUR, DAY = 3600, 86_400
BLOCK = 28 * DAY
WIDTHS = (HOUR, DAY, BLOCK)
KEEP_HOURS_SECONDS = 50 * DAY  # longer reports use days
ALL_CALLS, CALLS_OF_TOOL, ALL_RUNS, RUNS_OF_TOOL = range(4)
MAX_DISTINCT = {"name": 10_000, "error": 1_000}  # both are chosen by code; further values are counted together
OTHER = "(other)"
BUCKETS_PER_DECADE = 10
BOUNDS = tuple(
    10 ** (power / BUCKETS_PER_DECADE) for power in range(-4 * BUCKETS_PER_DECADE, 3 * BUCKETS_PER_DECADE + 1)
)
SCHEMA = """
CREATE TABLE rollups (
    width INTEGER, start INTEGER, kind INTEGER, name TEXT, agent TEXT, error TEXT, count INTEGER, tokens REAL,
    trips REAL, least REAL, most REAL, last REAL, PRIMARY KEY (width, start, kind, name, agent, error)
) WITHOUT ROWID;
CREATE TABLE times (
    width INTEGER, start INTEGER, kind INTEGER, name TEXT, agent TEXT, bucket INTEGER, count INTEGER,
    PRIMARY KEY (width, start, kind, name, agent, bucket)
) WITHOUT ROWID;
"""


def lesser(one: str, other: str) -> str:
    """Return the expression for the lesser value: SQLite and PostgreSQL have different functions for it."""
    return f"CASE WHEN {one} < {other} THEN {one} ELSE {other} END"


def greater(one: str, other: str) -> str:
    return f"CASE WHEN {one} > {other} THEN {one} ELSE {other} END"


SAVED = greater("runs.result_tokens - runs.answer_tokens", "0")
TRIPS = greater("runs.round_trips - 1", "0")
# Calls and runs with the columns to aggregate. `which` selects the rows.
CALLS = """
SELECT at, {kind}, {name}, agent, error_type, seconds, result_tokens, 0 FROM calls WHERE {which}
"""
RUNS = f"""
SELECT at, {ALL_RUNS}, '', agent, error_type, seconds, {SAVED}, {TRIPS} FROM runs WHERE {{which}}
"""
SHARES = f"""
SELECT at, {RUNS_OF_TOOL}, name, agent, error_type, seconds,
    saved * coalesce(1.0 * tokens / nullif(sum(tokens) OVER run, 0), 1.0 * made / sum(made) OVER run),
    trips * 1.0 * made / sum(made) OVER run
FROM (
    SELECT runs.rowid AS id, runs.at, calls.name, runs.agent, runs.error_type, runs.seconds, {SAVED} AS saved,
    {TRIPS} AS trips, count(*) AS made, sum(calls.result_tokens) AS tokens
    FROM runs CROSS JOIN calls WHERE calls.run_id = runs.run_id AND {{which}} GROUP BY runs.rowid, calls.name
) AS made WINDOW run AS (PARTITION BY id)
"""
SOURCES = (
    CALLS.format(kind=ALL_CALLS, name="''", which="{calls}"),
    CALLS.format(kind=CALLS_OF_TOOL, name="name", which="{calls}"),
    RUNS.format(which="{runs}"),
    SHARES.format(which="{runs}"),
)
ADDED = {"calls": "rowid > :call", "runs": "runs.kind = 'run' AND runs.rowid > :run"}
BETWEEN = {
    "calls": "at >= :since AND at < :until",
    "runs": "runs.kind = 'run' AND runs.at >= :since AND runs.at < :until",
}
CREATE_FRESH = """
CREATE TEMP TABLE fresh (
    start BIGINT, kind INTEGER, name TEXT, agent TEXT, error TEXT, seconds DOUBLE PRECISION, tokens DOUBLE PRECISION,
    trips DOUBLE PRECISION, at DOUBLE PRECISION
)"""
FILL_FRESH = f"""
INSERT INTO fresh (at, kind, name, agent, error, seconds, tokens, trips, start)
SELECT *, cast(floor(at / {HOUR}) AS BIGINT) * {HOUR} FROM ({{source}}) AS source
"""
SUM_FRESH = (
    f"""CREATE TEMP TABLE fresh_rollups AS
    SELECT {HOUR} AS width, start, kind, name, agent, coalesce(error, '') AS error,
    count(*) AS count, coalesce(sum(tokens), 0) AS tokens, coalesce(sum(trips), 0) AS trips,
    min(seconds) AS least, max(seconds) AS most,
    max(at) AS last FROM fresh GROUP BY 2, 3, 4, 5, 6""",
    f"""CREATE TEMP TABLE fresh_times AS SELECT {HOUR} AS width, start, kind, name, agent, bucket(seconds) AS bucket,
    count(*) AS count FROM fresh WHERE kind <> {ALL_CALLS} GROUP BY 2, 3, 4, 5, 6""",
)
ADD_ROLLUP = f"""
ON CONFLICT (width, start, kind, name, agent, error) DO UPDATE SET count = rollups.count + excluded.count,
tokens = rollups.tokens + excluded.tokens, trips = rollups.trips + excluded.trips,
least = {lesser("rollups.least", "excluded.least")}, most = {greater("rollups.most", "excluded.most")},
last = {greater("rollups.last", "excluded.last")}
"""
ADD_TIMES = """
ON CONFLICT (width, start, kind, name, agent, bucket) DO UPDATE SET count = times.count + excluded.count
"""
MERGE = (
    f"""INSERT INTO rollups SELECT :width, start / :width * :width, kind, name, agent, error, sum(count), sum(tokens),
    sum(trips), min(least), max(most), max(last) FROM fresh_rollups WHERE true GROUP BY 2, 3, 4, 5, 6
    {ADD_ROLLUP}""",
    f"""INSERT INTO times SELECT :width, start / :width * :width, kind, name, agent, bucket, sum(count)
    FROM fresh_times WHERE true GROUP BY 2, 3, 4, 5, 6
    {ADD_TIMES}""",
)
MAX_ROWS = (1 << 63) - 1  # no limit: an OFFSET of SQLite needs one
KNOWN = f"SELECT DISTINCT {{column}} FROM rollups WHERE width = {BLOCK} AND kind = {CALLS_OF_TOOL}"
ROOM = f":limit - (SELECT count(*) FROM ({KNOWN}) AS known)"
SURPLUS = f"""
SELECT {{column}} FROM fresh WHERE kind = {CALLS_OF_TOOL} AND {{column}} NOT IN ({KNOWN})
GROUP BY 1 ORDER BY count(*) DESC LIMIT {MAX_ROWS} OFFSET {greater(ROOM, "0")}"""
# Without temporary tables: creating and dropping them takes PostgreSQL longer than adding up some hundred calls.
ADDED_ROWS = f"""
WITH fresh (at, kind, name, agent, error, seconds, tokens, trips) AS MATERIALIZED (
    {" UNION ALL ".join(source.format(**ADDED) for source in SOURCES)}
), widths (width) AS (SELECT {HOUR} UNION ALL SELECT {DAY} UNION ALL SELECT {BLOCK}),
limited AS (
    SELECT width, cast(floor(at / width) AS BIGINT) * width AS start, kind, at, agent, seconds, tokens, trips,
    {
    ", ".join(
        f"CASE WHEN {column} IN ({SURPLUS.format(column=column).replace(':limit', str(limit))}) "
        f"THEN '{OTHER}' ELSE {column} END AS {column}"
        for column, limit in MAX_DISTINCT.items()
    )
} FROM fresh CROSS JOIN widths
)"""
ADD_AT_ONCE = (
    f"""{ADDED_ROWS}
    INSERT INTO rollups SELECT width, start, kind, name, agent, coalesce(error, ''), count(*),
    coalesce(sum(tokens), 0), coalesce(sum(trips), 0), min(seconds), max(seconds), max(at)
    FROM limited WHERE true GROUP BY 1, 2, 3, 4, 5, 6 {ADD_ROLLUP}""",
    f"""{ADDED_ROWS}
    INSERT INTO times SELECT width, start, kind, name, agent, bucket(seconds), count(*)
    FROM limited WHERE kind <> {ALL_CALLS} GROUP BY 1, 2, 3, 4, 5, 6 {ADD_TIMES}""",
)
PRUNE = tuple(
    f"DELETE FROM {table} WHERE width = :width AND start < :before - :width" for table in ("rollups", "times")
)


def add_functions(database: "Connection") -> None:
    """Add the functions to SQLite that the statements use and PostgreSQL has."""
    database.create_function("bucket", 1, lambda seconds: bisect_left(BOUNDS, seconds), deterministic=True)
    database.create_function("floor", 1, math.floor, deterministic=True)


def add(database: "StatisticsTables", call: int, run: int) -> None:
    """Add the calls and runs that were inserted after these rows."""
    sum_rows(database, ADDED, call=call, run=run)
    for width in WIDTHS:
        for statement in MERGE:
            database.execute(statement, {"width": width})


def add_at_once(database: "StatisticsTables", call: int, run: int) -> None:
    """Do the same with two statements, which takes PostgreSQL less time, and SQLite more."""
    for statement in ADD_AT_ONCE:
        database.execute(statement, {"call": call, "run": run})


def sum_rows(database: "StatisticsTables", which: Mapping[str, str], **bounds: float) -> None:
    """Aggregate calls and runs per hour into the temporary tables `fresh_rollups` and `fresh_times`."""
    for table in ("fresh", "fresh_rollups", "fresh_times"):
        database.execute(f"DROP TABLE IF EXISTS {table}")
    database.execute(CREATE_FRESH)
    for source in SOURCES:
        database.execute(FILL_FRESH.format(source=source.format(**which)), bounds)
    for column, limit in MAX_DISTINCT.items():
        surplus = SURPLUS.format(column=column)
        database.execute(f"UPDATE fresh SET {column} = '{OTHER}' WHERE {column} IN ({surplus})", {"limit": limit})
    for statement in SUM_FRESH:
        database.execute(statement)


def prune(database: "StatisticsTables", now: float, keep_seconds: float) -> None:
    for width in WIDTHS:
        before = now - (min(KEEP_HOURS_SECONDS, keep_seconds) if width == HOUR else keep_seconds)
        for statement in PRUNE:
            database.execute(statement, {"width": width, "before": before})


def percentile(counts: Mapping[int, int], percent: int, least: float, most: float) -> float:
    """Return a percentile of durations: the middle of its bucket, within the measured range."""
    rank, seen = math.ceil(sum(counts.values()) * percent / 100), 0
    for bucket in sorted(counts):
        seen += counts[bucket]
        if seen >= rank:
            break
    if bucket == len(BOUNDS):
        return most
    return min(max(BOUNDS[bucket] * 10 ** (-0.5 / BUCKETS_PER_DECADE), least), most)
