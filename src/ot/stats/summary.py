"""What the recorded calls and runs add up to. Every figure follows the filters; a token is four bytes, an estimate.

    context_saved = Σ sessions (tokens of all tool definitions - tokens of our own)
                  + Σ runs max(0, tokens of the results of its calls - tokens of its answer)
    time_saved_ms = Σ runs max(0, calls - 1) * round_trip_ms

A session counts when it began, a run when it ended. With `tool=`, a session counts that tool's definition less the
same fraction of our own; a run counts the fraction of its result tokens (for time: of its calls) that are that
tool's. So the shares of all tools add up to the whole. p50 and p95 are measured times, failed calls included.

SQLite adds up and sorts, without the interpreter lock, and gives few rows: Python loops over a million would hold up
every other run. Names come from code, so only the tools with the most calls are listed.
"""
# ruff: noqa: S608 - queries are put together of the constants below; what comes from outside is bound

import time
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, closing, contextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypedDict

from ot.errors import ToolError
from ot.stats.record import SCHEMA, Damaged, opened, stored, version_of

if TYPE_CHECKING:
    from sqlite3 import Connection

HOUR, DAY = 3600, 86_400
# How far back a period reaches, and how wide its bars are. All time takes the first width with few enough bars.
PERIODS: Mapping[str, tuple[float, int]] = {"day": (DAY, HOUR), "week": (7 * DAY, 6 * HOUR), "month": (30 * DAY, DAY)}
WIDTHS = (60, 300, 900, HOUR, 3 * HOUR, 6 * HOUR, DAY, 7 * DAY, 28 * DAY, 364 * DAY)
FEWEST_BARS, MOST_BARS = 24, 48
OLDEST = 10 * 364 * DAY  # what is older stands in the first bar: a clock may have been wrong
ROUND_TRIP_MS = 4000

CALLS = """
WITH chosen AS (
    SELECT * FROM calls
    WHERE at >= :since AND (:tool IS NULL OR name = :tool) AND (:agent IS NULL OR agent = :agent)
)
"""
RUNS = """
WITH chosen AS (
    SELECT * FROM runs
    WHERE at >= :since AND (:agent IS NULL OR agent = :agent)
    AND (:tool IS NULL OR run_id IN (SELECT run_id FROM calls WHERE name = :tool))
)
"""
MAX_TOOLS = 500
CREATE_TOP = """
CREATE TEMP TABLE top (name TEXT PRIMARY KEY, calls INTEGER, failed INTEGER, tokens REAL) WITHOUT ROWID
"""
FILL_TOP = f"""INSERT INTO top {CALLS}
SELECT name, count(*), count(error_type), total(result_tokens)
FROM chosen GROUP BY name ORDER BY 2 DESC, 1 LIMIT {MAX_TOOLS}
"""
IN_TOP = "name IN (SELECT name FROM top)"
TOTALS = f"{CALLS} SELECT count(*), count(error_type) FROM chosen"
TOOLS = "SELECT name, calls, failed, tokens FROM top ORDER BY 2 DESC, 1"
# p50 and p95 by the nearest rank: the least time that at least this part of all did not exceed.
TIMES = f"""{CALLS}, ranked AS (
    SELECT name, seconds, row_number() OVER (PARTITION BY name ORDER BY seconds) AS rank FROM chosen WHERE {IN_TOP}
)
SELECT name, min(seconds), max(seconds) FROM ranked WHERE (name, rank) IN (
    SELECT name, (calls * 50 + 99) / 100 FROM top UNION SELECT name, (calls * 95 + 99) / 100 FROM top
) GROUP BY name
"""
ERROR_TOTALS = f"""{CALLS}
SELECT error_type, count(*) FROM chosen WHERE error_type IS NOT NULL GROUP BY 1 ORDER BY 2 DESC, 1
"""
ERRORS = f"""{CALLS}
SELECT name, error_type, count(*) FROM chosen
WHERE error_type IS NOT NULL AND {IN_TOP} GROUP BY 1, 2 ORDER BY 3 DESC, 2
"""
BAR = "min(max(cast((at - :start) / :width AS INTEGER), 0), :last)"
BARS = f"{CALLS} SELECT {BAR}, count(*), count(error_type) FROM chosen GROUP BY 1"
TOOL_BARS = f"{CALLS} SELECT name, {BAR}, count(*) FROM chosen WHERE {IN_TOP} GROUP BY 1, 2"
RUN_TOTALS = f"{RUNS} SELECT count(*), count(error_type) FROM chosen"
RUN_TIMES = f"""{RUNS}, ranked AS (
    SELECT seconds, row_number() OVER (ORDER BY seconds) AS rank FROM chosen
)
SELECT min(seconds), max(seconds) FROM ranked WHERE rank IN ((:total * 50 + 99) / 100, (:total * 95 + 99) / 100)
"""
RUN_SAVINGS = f"""{RUNS}
SELECT total(max(result_tokens - answer_tokens, 0)), total(max(calls - 1, 0)) FROM chosen
"""
RUN_SHARES = f"""{RUNS}, sums AS (
    SELECT run_id, total(name = :tool) / count(*) AS of_calls,
           total(result_tokens * (name = :tool)) / nullif(sum(result_tokens), 0) AS of_tokens
    FROM calls WHERE run_id IN (SELECT run_id FROM chosen) GROUP BY run_id
)
SELECT total(max(result_tokens - answer_tokens, 0) * coalesce(of_tokens, of_calls)), total(max(calls - 1, 0) * of_calls)
FROM chosen JOIN sums USING (run_id)
"""
SESSIONS = "sessions.at >= :since AND (:agent IS NULL OR agent = :agent)"
SESSION_SAVINGS = f"SELECT count(*), total(definition_tokens), total(own_tokens) FROM sessions WHERE {SESSIONS}"
SESSION_SHARES = f"""
SELECT count(*), total(tokens), total(1.0 * own_tokens * tokens / definition_tokens)
FROM sessions JOIN definitions USING (catalogue) WHERE name = :tool AND {SESSIONS}
"""


class Percentiles(TypedDict):
    p50_ms: float | None
    p95_ms: float | None


class ToolSummary(Percentiles):
    name: str
    calls: int
    success_rate: float | None
    result_tokens: int
    errors: dict[str, int]


class Runs(Percentiles):
    total: int
    failed: int
    success_rate: float | None


class Savings(TypedDict):
    """The parts of the formula: `context_saved` is the first less the second plus the third."""

    definition_tokens: int
    own_tokens: int
    result_tokens: int
    sessions: int
    round_trips: float
    round_trip_ms: int


class Series(TypedDict):
    """Calls over time, in bars of equal width; `tools` has the calls of each tool in the same bars."""

    start: str
    width_seconds: int
    calls: list[int]
    errors: list[int]
    tools: dict[str, list[int]]


class Summary(TypedDict):
    generated_at: str
    period: str
    tool: str | None
    agent: str | None
    total_calls: int
    success_rate: float | None
    context_saved: int
    time_saved_ms: int
    runs: Runs
    errors: dict[str, int]
    savings: Savings
    tools: list[ToolSummary]
    series: Series


def summarise(
    file: Path,
    period: str = "all",
    tool: str | None = None,
    *,
    agent: str | None = None,
    now: float | None = None,
    round_trip_ms: int = ROUND_TRIP_MS,
) -> Summary:
    """The statistics of the last day, week (7 days), month (30 days), or of all time."""
    now = time.time() if now is None else now
    filters = {"since": _since(period, now), "tool": stored(tool), "agent": stored(agent)}
    with _database(file) as database:
        savings = _savings(database, filters, round_trip_ms)
        calls, failed = database.execute(TOTALS, filters).fetchone()
        return {
            "generated_at": _local(now).isoformat(timespec="seconds"),
            "period": period,
            "tool": tool,
            "agent": agent,
            "total_calls": calls,
            "success_rate": _success_rate(calls, failed),
            "context_saved": savings["definition_tokens"] - savings["own_tokens"] + savings["result_tokens"],
            "time_saved_ms": round(savings["round_trips"] * round_trip_ms),
            "runs": _runs(database, filters),
            "errors": dict(database.execute(ERROR_TOTALS, filters).fetchall()),
            "savings": savings,
            "tools": _tools(database, filters),
            "series": _series(database, filters, period, now),
        }


def _since(period: str, now: float) -> float:
    if period in PERIODS:
        return now - PERIODS[period][0]
    if period == "all":
        return float("-inf")
    raise ToolError(f"Error: Invalid period '{period}'. Valid: day, week, month, all. Example: ot.stats(period='day')")


@contextmanager
def _database(file: Path) -> "Iterator[Connection]":
    """The file in one transaction, so that all figures fit each other; an empty database where nothing is recorded."""
    import sqlite3

    try:
        with ExitStack() as stack:
            database = stack.enter_context(opened(file)) if file.exists() else None
            if database is None or version_of(database, file) == 0:
                database = stack.enter_context(closing(sqlite3.connect(":memory:", isolation_level=None)))
                database.executescript(SCHEMA)
            database.execute("BEGIN")
            yield database
    except Damaged as error:
        advice = "It is kept under another name and a new one is begun, at the next start at the latest."
        raise ToolError(f"the statistics file {file} is damaged: {error}. {advice}") from None
    except sqlite3.Error as error:
        raise ToolError(f"the statistics in {file} cannot be read: {error}") from None


def _tools(database: "Connection", filters: Mapping[str, Any]) -> list[ToolSummary]:
    database.execute(CREATE_TOP)
    database.execute(FILL_TOP, filters)
    errors: dict[str, dict[str, int]] = {}
    for name, kind, count in database.execute(ERRORS, filters):
        errors.setdefault(name, {})[kind] = count
    times = {name: _percentiles(*seconds) for name, *seconds in database.execute(TIMES, filters)}
    return [
        {
            "name": name,
            "calls": calls,
            "success_rate": _success_rate(calls, failed),
            **times[name],
            "result_tokens": round(tokens),
            "errors": errors.get(name, {}),
        }
        for name, calls, failed, tokens in database.execute(TOOLS, filters)
    ]


def _runs(database: "Connection", filters: Mapping[str, Any]) -> Runs:
    total, failed = database.execute(RUN_TOTALS, filters).fetchone()
    times = _percentiles(*database.execute(RUN_TIMES, {**filters, "total": total}).fetchone())
    return {"total": total, "failed": failed, "success_rate": _success_rate(total, failed), **times}


def _savings(database: "Connection", filters: Mapping[str, Any], round_trip_ms: int) -> Savings:
    of_sessions, of_runs = (SESSION_SAVINGS, RUN_SAVINGS) if filters["tool"] is None else (SESSION_SHARES, RUN_SHARES)
    sessions, definitions, own = database.execute(of_sessions, filters).fetchone()
    results, round_trips = database.execute(of_runs, filters).fetchone()
    return {
        "definition_tokens": round(definitions),
        "own_tokens": round(own),
        "result_tokens": round(results),
        "sessions": sessions,
        "round_trips": round(round_trips, 6),  # enough for the time of a share to be exact
        "round_trip_ms": round_trip_ms,
    }


def _series(database: "Connection", filters: Mapping[str, Any], period: str, now: float) -> Series:
    start, width, count = _bars(database, filters, period, now)
    calls, errors = [0] * count, [0] * count
    tools: dict[str, list[int]] = {}
    bars = {**filters, "start": start, "width": width, "last": count - 1}
    for bar, made, failed in database.execute(BARS, bars):
        calls[bar], errors[bar] = made, failed
    for name, bar, made in database.execute(TOOL_BARS, bars):
        tools.setdefault(name, [0] * count)[bar] = made
    return {
        "start": datetime.fromtimestamp(start, _local(now).tzinfo).isoformat(timespec="seconds"),
        "width_seconds": width,
        "calls": calls,
        "errors": errors,
        "tools": tools,
    }


def _bars(database: "Connection", filters: Mapping[str, Any], period: str, now: float) -> tuple[float, int, int]:
    """Where the first bar begins, how wide bars are, and how many there are. They begin at full local hours or days."""
    if period in PERIODS:
        first, width = filters["since"], PERIODS[period][1]
    else:
        (first,) = database.execute(f"{CALLS} SELECT min(at) FROM chosen", filters).fetchone()
        first = max(now if first is None else first, now - OLDEST)
        width = next((width for width in WIDTHS if now - first < MOST_BARS * width), WIDTHS[-1])
        first = min(first, now - (FEWEST_BARS - 1) * width)
    offset = _local(now).utcoffset() or timedelta()
    start = (first + offset.total_seconds()) // width * width - offset.total_seconds()
    return start, width, int((now - start) // width) + 1


def _local(moment: float) -> datetime:
    return datetime.fromtimestamp(moment, UTC).astimezone()


def _success_rate(total: int, failed: int) -> float | None:
    """In percent; None where there is nothing that could have succeeded, and 100 only where nothing failed."""
    if not total:
        return None
    return min(round(100 * (total - failed) / total, 2), 99.99 if failed else 100.0)


def _percentiles(p50: float | None, p95: float | None) -> Percentiles:
    return {"p50_ms": _ms(p50), "p95_ms": _ms(p95)}


def _ms(seconds: float | None) -> float | None:
    return None if seconds is None else round(seconds * 1000, 2)
