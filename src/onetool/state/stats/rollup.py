"""Aggregates of calls and runs per hour, day and four weeks, so that reports do not read every row.

A row of `rollups` aggregates `width` seconds from `start` on (UTC): the calls of a tool, of all
tools, all runs, or the runs that called a tool, with the share of that tool. Failures have separate
rows with the type of the `error`. `tokens` are those of results, and of runs those that were saved;
`trips` are the round trips saved; `last` is the latest time. `times` counts durations in buckets,
each 26% wider than the previous one: a percentile between 0.1 ms and 1000 s is accurate to 12%.

A row of `spending` adds up what one token used in one month. Tokens are estimates: those of
answers, which the client's model read, and those of results, which tools returned. The cost is the
sum of `cost_per_call` of the called tools.
"""

# ruff: noqa: S608 - statements are built from the constants below

import math
from bisect import bisect_left
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, NamedTuple

from onetool.state.stats.details import to_column

if TYPE_CHECKING:
    from collections.abc import Iterable
    from sqlite3 import Connection

    from onetool.state.run_records import RunRecord
    from onetool.state.sqlite_database import Transaction
    from onetool.state.stats.database import StatisticsDatabase

HOUR = 3600
DAY = 86_400
BLOCK = 28 * DAY
WIDTHS = (HOUR, DAY, BLOCK)
KEEP_HOURS_SECONDS = 50 * DAY  # longer reports use days
ALL_CALLS, CALLS_OF_TOOL, ALL_RUNS, RUNS_OF_TOOL = range(4)
MAX_DISTINCT = {
    "name": 10_000,
    "error": 1_000,
}  # in a block; code chooses both, and further ones count together
OTHER = "(other)"
BUCKETS_PER_DECADE = 10
BOUNDS = tuple(
    10 ** (power / BUCKETS_PER_DECADE)
    for power in range(-4 * BUCKETS_PER_DECADE, 3 * BUCKETS_PER_DECADE + 1)
)
SCHEMA = """
CREATE TABLE rollups (
    width BIGINT, start BIGINT, kind BIGINT, name TEXT, agent TEXT, error TEXT, count BIGINT, tokens DOUBLE PRECISION,
    trips DOUBLE PRECISION, least DOUBLE PRECISION, most DOUBLE PRECISION, last DOUBLE PRECISION,
    PRIMARY KEY (width, start, kind, name, agent, error)
){in_order};
CREATE TABLE times (
    width BIGINT, start BIGINT, kind BIGINT, name TEXT, agent TEXT, bucket BIGINT, count BIGINT,
    PRIMARY KEY (width, start, kind, name, agent, bucket)
){in_order};
"""
SPENDING_SCHEMA = """
CREATE TABLE spending (
    month TEXT, actor TEXT, agent TEXT, token_id TEXT, runs BIGINT, calls BIGINT, failed BIGINT, answer_tokens BIGINT,
    result_tokens BIGINT, cost DOUBLE PRECISION, last DOUBLE PRECISION, PRIMARY KEY (month, actor, agent, token_id)
);
"""
SPENDING_COLUMNS = (
    "month, actor, agent, token_id, runs, calls, failed, answer_tokens, result_tokens, cost, last"
)
MERGE_SPENDING = """ON CONFLICT (month, actor, agent, token_id) DO UPDATE SET
runs = spending.runs + excluded.runs, calls = spending.calls + excluded.calls,
failed = spending.failed + excluded.failed, answer_tokens = spending.answer_tokens + excluded.answer_tokens,
result_tokens = spending.result_tokens + excluded.result_tokens, cost = spending.cost + excluded.cost,
last = CASE WHEN spending.last > excluded.last THEN spending.last ELSE excluded.last END
"""
ADD_SPENDING = f"INSERT INTO spending ({SPENDING_COLUMNS}) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?) {MERGE_SPENDING}"
# Tokens that had the same name one after the other are shown as one.
READ_SPENDING = """
SELECT month, actor, agent, cast(sum(runs) AS BIGINT), cast(sum(calls) AS BIGINT), cast(sum(failed) AS BIGINT),
    cast(sum(answer_tokens) AS BIGINT), cast(sum(result_tokens) AS BIGINT), sum(cost), max(last)
FROM spending WHERE coalesce(month = :month, true) AND coalesce(agent = :agent, true)
AND coalesce(token_id = :token_id, true)
GROUP BY month, actor, agent ORDER BY month DESC, sum(calls) DESC, actor, agent LIMIT :limit
"""
DELETE_OLD_SPENDING = "DELETE FROM spending WHERE last < :before"
MAX_SPENDING_ROWS = 1_000
MONTH_FORMAT = "%Y-%m"


def lesser(one: str, other: str) -> str:
    """Return the expression for the lesser value: SQLite and PostgreSQL have different functions
    for it.
    """
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
    FROM runs CROSS JOIN calls WHERE calls.run_id = runs.id AND {{which}} GROUP BY runs.rowid, calls.name
) AS made WINDOW run AS (PARTITION BY id)
"""
SOURCES = (
    CALLS.format(kind=ALL_CALLS, name="''", which="{calls}"),
    CALLS.format(kind=CALLS_OF_TOOL, name="name", which="{calls}"),
    RUNS.format(which="{runs}"),
    SHARES.format(which="{runs}"),
)
# The rows that were inserted after two rows, and those of a time range.
ADDED = {"calls": "rowid > :call", "runs": "runs.kind = 'run' AND runs.rowid > :run"}
BETWEEN = {
    "calls": "at >= :since AND at < :until",
    "runs": "runs.kind = 'run' AND runs.at >= :since AND runs.at < :until",
}
MAX_ROWS = (1 << 63) - 1  # no limit: an OFFSET of SQLite needs one
KNOWN = (
    f"SELECT DISTINCT {{column}} FROM rollups WHERE width = {BLOCK} AND start = :block AND kind ="
    f" {CALLS_OF_TOOL}"
)
SURPLUS = f"""
SELECT {{column}} FROM fresh WHERE kind = {CALLS_OF_TOOL} AND {{column}} NOT IN ({KNOWN}) GROUP BY 1
ORDER BY count(*) DESC LIMIT {MAX_ROWS}
OFFSET {greater(f"{{limit}} - (SELECT count(*) FROM ({KNOWN}) AS known)", "0")}
"""
LIMITED_COLUMNS = ", ".join(
    f"CASE WHEN {column} IN ({SURPLUS.format(column=column, limit=limit)}) THEN '{OTHER}' ELSE"
    f" {column} END AS {column}"
    for column, limit in MAX_DISTINCT.items()
)
# Without temporary tables, which take PostgreSQL longer than adding up some hundred calls.
ROWS = f"""
WITH fresh (at, kind, name, agent, error, seconds, tokens, trips) AS MATERIALIZED ({" UNION ALL ".join(SOURCES)}),
widths (width) AS ({{widths}}),
limited AS (
    SELECT width, cast(floor(at / width) AS BIGINT) * width AS start, kind, at, agent, seconds, tokens, trips,
    {LIMITED_COLUMNS} FROM fresh CROSS JOIN widths
)
"""
SUM_ROWS = f"""
{ROWS} SELECT width, start, kind, name, agent, coalesce(error, '') AS error, count(*) AS count,
coalesce(sum(tokens), 0) AS tokens, coalesce(sum(trips), 0) AS trips, min(seconds) AS least, max(seconds) AS most,
max(at) AS last FROM limited GROUP BY 1, 2, 3, 4, 5, 6
"""
SUM_TIMES = f"""
{ROWS} SELECT width, start, kind, name, agent, bucket(seconds) AS bucket, count(*) AS count
FROM limited WHERE kind <> {ALL_CALLS} GROUP BY 1, 2, 3, 4, 5, 6
"""
ADD_ROLLUP = f"""
ON CONFLICT (width, start, kind, name, agent, error) DO UPDATE SET count = rollups.count + excluded.count,
tokens = rollups.tokens + excluded.tokens, trips = rollups.trips + excluded.trips,
least = {lesser("rollups.least", "excluded.least")}, most = {greater("rollups.most", "excluded.most")},
last = {greater("rollups.last", "excluded.last")}
"""
ADD_TIMES = """
ON CONFLICT (width, start, kind, name, agent, bucket) DO UPDATE SET count = times.count + excluded.count
"""
ALL_WIDTHS = " UNION ALL ".join(f"SELECT {width}" for width in WIDTHS)
ADD = (
    f"INSERT INTO rollups {SUM_ROWS.format(widths=ALL_WIDTHS, **ADDED)} {ADD_ROLLUP}",
    f"INSERT INTO times {SUM_TIMES.format(widths=ALL_WIDTHS, **ADDED)} {ADD_TIMES}",
)
SUM_RANGE = (
    f"CREATE TEMP TABLE fresh_rollups AS {SUM_ROWS.format(widths=f'SELECT {HOUR}', **BETWEEN)}",
    f"CREATE TEMP TABLE fresh_times AS {SUM_TIMES.format(widths=f'SELECT {HOUR}', **BETWEEN)}",
)
PRUNE = tuple(
    f"DELETE FROM {table} WHERE width = :width AND start < :before - :width"
    for table in ("rollups", "times")
)


def add_functions(database: "Connection") -> None:
    """Add the functions to SQLite that the statements use and PostgreSQL has."""
    database.create_function(
        "bucket", 1, lambda seconds: bisect_left(BOUNDS, seconds), deterministic=True
    )
    database.create_function("floor", 1, math.floor, deterministic=True)


def add(tables: "Transaction", call: int, run: int, now: float) -> None:
    """Add the calls and runs that were inserted after these rows."""
    for statement in ADD:
        tables.execute(statement, {"call": call, "run": run, "block": _start_of_block(now)})


def sum_range(tables: "Transaction", since: float, until: float, now: float) -> None:
    """Sum calls and runs of a time range into the temporary tables `fresh_rollups` and
    `fresh_times`.
    """
    for statement in SUM_RANGE:
        tables.execute(statement, {"since": since, "until": until, "block": _start_of_block(now)})


def _start_of_block(now: float) -> int:
    return int(now // BLOCK) * BLOCK


def prune(tables: "Transaction", now: float, keep_seconds: float) -> None:
    for width in WIDTHS:
        before = now - (min(KEEP_HOURS_SECONDS, keep_seconds) if width == HOUR else keep_seconds)
        for statement in PRUNE:
            tables.execute(statement, {"width": width, "before": before})


def percentile(counts: Mapping[int, int], percent: int, least: float, most: float) -> float:
    """Return a percentile of durations: the middle of its bucket, within the measured range."""
    rank = math.ceil(sum(counts.values()) * percent / 100)
    seen = 0
    for bucket in sorted(counts):
        seen += counts[bucket]
        if seen >= rank:
            break
    if bucket == len(BOUNDS):
        return most
    return min(max(BOUNDS[bucket] * 10 ** (-0.5 / BUCKETS_PER_DECADE), least), most)


class Spending(NamedTuple):
    """The use of one token or subject in one month (UTC).

    `actor` is empty for clients of this machine.
    """

    month: str
    actor: str
    agent: str
    runs: int
    calls: int
    failed: int
    answer_tokens: int
    result_tokens: int
    cost: float
    last_used: float


def get_month(seconds: float) -> str:
    return datetime.fromtimestamp(seconds, UTC).strftime(MONTH_FORMAT)


def add_spending(database: "Transaction", runs: "Iterable[RunRecord]") -> None:
    """Add the runs to the sums, in the current transaction."""
    sums: dict[tuple[str, ...], list[Any]] = {}
    for run in runs:
        names = map(to_column, (run.actor, run.agent, run.token_id))
        total = sums.setdefault((get_month(run.at), *names), [0, 0, 0, 0, 0, 0.0, 0.0])
        counts = (
            run.kind == "run",
            run.calls,
            run.error_type is not None,
            run.answer_tokens,
            run.result_tokens,
        )
        for index, value in enumerate((*map(int, counts), run.cost)):
            total[index] += value
        total[-1] = max(total[-1], run.at)
    database.executemany(ADD_SPENDING, [(*key, *total) for key, total in sorted(sums.items())])


def list_spending(
    statistics: "StatisticsDatabase",
    month: str | None = None,
    agent: str | None = None,
    token_id: str | None = None,
) -> list[Spending]:
    """Return the use per token, the latest month first."""
    filters = {
        "month": month,
        "agent": to_column(agent),
        "token_id": to_column(token_id),
        "limit": MAX_SPENDING_ROWS,
    }
    with statistics.reading() as database:
        return [Spending(*row) for row in database.execute(READ_SPENDING, filters)]
