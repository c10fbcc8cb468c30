"""Summaries of recorded calls and runs.

Every number follows the filters; tokens are estimated as four bytes each.

    context_saved = Σ sessions (tokens of all tool definitions - tokens of our own)
                  + Σ runs max(0, tokens of the results of its calls - tokens of its answer)
    time_saved_ms = Σ runs max(0, calls - 1) * round_trip_ms

Sessions, runs and calls count when they began. With `tool=`, a session counts that tool's
definition less the same fraction of our own; a run counts the fraction of its result tokens (for
time: of its calls) that are that tool's. So the shares of all tools add up to the whole. p50 and
p95 count failed calls too.

A period is computed from the aggregates of `onetool.state.stats.rollup`: whole blocks, days and
hours, and the rows of the hour in which it begins. Names are chosen by code, so only the tools with
the most calls are listed.
"""

# ruff: noqa: S608 - queries are built from the constants below; external values are bound

import math
import time
from collections.abc import Iterable, Mapping
from datetime import UTC, datetime, timedelta
from typing import NamedTuple, TypedDict

from onetool.errors import ToolError
from onetool.state.sqlite_database import Transaction
from onetool.state.stats import rollup
from onetool.state.stats.database import StatisticsDatabase
from onetool.state.stats.details import to_column
from onetool.state.stats.rollup import BLOCK, DAY, HOUR
from onetool_child.json_types import JsonMapping

# Length of a period, and width of its bars. All time uses the first width with few enough bars.
PERIODS: Mapping[str, tuple[float, int]] = {
    "day": (DAY, HOUR),
    "week": (7 * DAY, 6 * HOUR),
    "month": (30 * DAY, DAY),
}
WIDTHS = (HOUR, 3 * HOUR, 6 * HOUR, DAY, 7 * DAY, 28 * DAY, 364 * DAY)
MIN_BARS = 24
MAX_BARS = 48
OLDEST = 10 * 364 * DAY  # older rows are in the first bar: a clock may have been wrong
ROUND_TRIP_MS = 4000
MAX_TOOLS = 500
FOREVER = 1 << 60  # seconds, before and after

# The selected rows: aggregates of some widths, each in a time range, and the hour in which the
# period begins.
RANGES = "CREATE TEMP TABLE ranges (width BIGINT, low BIGINT, high BIGINT)"
PARTS = tuple(
    f"""CREATE TEMP VIEW chosen_{table} AS SELECT {columns} FROM ranges CROSS JOIN {table} AS sums
    WHERE sums.width = ranges.width AND start >= low AND start < high
    UNION ALL SELECT {columns} FROM fresh_{table} AS sums"""
    for table, columns in (
        (
            "rollups",
            "sums.width, start, kind, name, agent, error, count, tokens, trips, least, most, last",
        ),
        ("times", "kind, name, agent, bucket, count"),
    )
)
FILTERS = "kind = :kind AND coalesce(name = :tool, true) AND coalesce(agent = :agent, true)"
COUNT = "cast(coalesce(sum(count), 0) AS BIGINT)"
FAILED = "cast(coalesce(sum(count) FILTER (WHERE error <> ''), 0) AS BIGINT)"
ERRORS = f"SELECT error, {COUNT} FROM chosen_rollups WHERE {FILTERS} GROUP BY 1 ORDER BY 2 DESC, 1"
TOP = f"""
CREATE TEMP TABLE top AS
SELECT name, {COUNT} AS calls, {FAILED} AS failed, coalesce(sum(tokens), 0) AS tokens, min(least) AS least,
max(most) AS most FROM chosen_rollups WHERE {FILTERS} GROUP BY 1 ORDER BY 2 DESC, 1 LIMIT {MAX_TOOLS}
"""
TOOLS = "SELECT * FROM top ORDER BY calls DESC, name"
IN_TOP = f"{FILTERS} AND name IN (SELECT name FROM top)"
TOOL_ERRORS = f"""
SELECT name, error, {COUNT} FROM chosen_rollups WHERE {IN_TOP} AND error <> '' GROUP BY 1, 2 ORDER BY 3 DESC, 2
"""
TIMES = f"SELECT name, bucket, {COUNT} FROM chosen_times WHERE {IN_TOP} GROUP BY 1, 2"
RUNS = f"""
SELECT {COUNT}, {FAILED}, coalesce(sum(tokens), 0), coalesce(sum(trips), 0), min(least), max(most)
FROM chosen_rollups WHERE {FILTERS}
"""
RUN_TIMES = f"SELECT '', bucket, {COUNT} FROM chosen_times WHERE {FILTERS} GROUP BY 2"
FIRST = f"SELECT start FROM rollups WHERE width = :width AND {FILTERS} ORDER BY start LIMIT 1"
# A UTC day belongs to the bar that contains its noon; hours are never split.
BAR = rollup.lesser(
    f"({rollup.greater('(start + width / 2 - :start) / :bar_width', '0')})", ":last"
)
BARS = f"SELECT {BAR}, {COUNT}, {FAILED} FROM chosen_rollups WHERE {FILTERS} GROUP BY 1"
TOOL_BARS = f"SELECT name, {BAR}, {COUNT} FROM chosen_rollups WHERE {IN_TOP} GROUP BY 1, 2"
BY_TOOL = f"FROM rollups WHERE width = {BLOCK} AND {FILTERS}"
USAGE = f"SELECT {COUNT}, {FAILED}, max(last), min(least), max(most) {BY_TOOL}"
LAST_ERROR = f"SELECT error, last {BY_TOOL} AND error <> '' ORDER BY last DESC LIMIT 1"
USAGE_TIMES = f"SELECT bucket, {COUNT} FROM times WHERE width = {BLOCK} AND {FILTERS} GROUP BY 1"
SESSIONS = "sessions.at >= :since AND coalesce(agent = :agent, true)"
SESSION_SAVINGS = f"""
SELECT count(*), coalesce(sum(definition_tokens), 0), coalesce(sum(own_tokens), 0) FROM sessions WHERE {SESSIONS}
"""
SESSION_SHARES = f"""
SELECT count(*), coalesce(sum(tokens), 0), coalesce(sum(1.0 * own_tokens * tokens / nullif(definition_tokens, 0)), 0)
FROM sessions JOIN definitions USING (catalog) WHERE name = :tool AND {SESSIONS}
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


class RunSummary(Percentiles):
    total: int
    failed: int
    success_rate: float | None


class Savings(TypedDict):
    """The parts of `context_saved` (`definition_tokens - own_tokens + result_tokens`) and of the
    time saved.
    """

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


class StatsSummary(TypedDict):
    generated_at: str
    period: str
    tool: str | None
    agent: str | None
    total_calls: int
    success_rate: float | None
    context_saved: int
    time_saved_ms: int
    runs: RunSummary
    errors: dict[str, int]
    savings: Savings
    tools: list[ToolSummary]
    series: Series


def summarize(
    statistics: StatisticsDatabase,
    period: str = "all",
    tool: str | None = None,
    *,
    agent: str | None = None,
    now: float | None = None,
    round_trip_ms: int = ROUND_TRIP_MS,
) -> StatsSummary:
    """Return the statistics of the last day, week (7 days), month (30 days), or of all time."""
    now = time.time() if now is None else now
    filters = {
        "since": _period_start(period, now),
        "tool": to_column(tool),
        "agent": to_column(agent),
    }
    with statistics.reading() as database:
        hour, day, block = (
            _first_complete_start(filters["since"], width) for width in rollup.WIDTHS
        )
        rollup.sum_range(database, filters["since"], hour, now)
        for statement in (RANGES, *PARTS):
            database.execute(statement)
        _select_ranges(database, (HOUR, hour, day), (DAY, day, block), (BLOCK, block, FOREVER))
        runs, savings = _summarize_runs(database, filters, round_trip_ms)
        tools = _summarize_tools(database, filters)
        errors = dict(database.execute(ERRORS, {**filters, "kind": _call_kind(filters)}).fetchall())
        calls = sum(errors.values())
        succeeded = errors.pop("", 0)
        return {
            "generated_at": _to_local(now).isoformat(timespec="seconds"),
            "period": period,
            "tool": tool,
            "agent": agent,
            "total_calls": calls,
            "success_rate": _compute_success_rate(calls, calls - succeeded),
            "context_saved": (
                savings["definition_tokens"] - savings["own_tokens"] + savings["result_tokens"]
            ),
            "time_saved_ms": round(savings["round_trips"] * round_trip_ms),
            "runs": runs,
            "errors": errors,
            "savings": savings,
            "tools": tools,
            "series": _make_series(database, filters, period, now),
        }


class ToolCounts(NamedTuple):
    """The usage of one tool; times are seconds since 1970."""

    calls: int
    errors: int
    p50_ms: float | None = None
    last_at: float | None = None
    last_error: tuple[str, float] | None = None


def get_usage(statistics: StatisticsDatabase, tool: str, agent: str | None = None) -> ToolCounts:
    """Return the usage of a tool by one agent, or by all."""
    filters = {"kind": rollup.CALLS_OF_TOOL, "tool": to_column(tool), "agent": to_column(agent)}
    with statistics.reading() as database:
        calls, errors, last, *bounds = database.execute(USAGE, filters).fetchone()
        times = _compute_percentiles(
            dict(database.execute(USAGE_TIMES, filters).fetchall()), *bounds
        )
        return ToolCounts(
            int(calls),
            int(errors),
            times["p50_ms"],
            last,
            database.execute(LAST_ERROR, filters).fetchone(),
        )


def _period_start(period: str, now: float) -> float:
    if period in PERIODS:
        return now - PERIODS[period][0]
    if period == "all":
        return -FOREVER
    raise ToolError(
        f"Error: Invalid period '{period}'. Valid: day, week, month, all. Example:"
        " ot.stats(period='day')"
    )


def _first_complete_start(since: float, width: int) -> int:
    """Return the start of the first aggregate row that lies completely after `since`."""
    return math.ceil(since / width) * width


def _select_ranges(database: Transaction, *ranges: tuple[int, int, int]) -> None:
    database.execute("DELETE FROM ranges")
    database.executemany("INSERT INTO ranges VALUES (?, ?, ?)", ranges)


def _call_kind(filters: JsonMapping) -> int:
    return rollup.ALL_CALLS if filters["tool"] is None else rollup.CALLS_OF_TOOL


def _summarize_tools(database: Transaction, filters: JsonMapping) -> list[ToolSummary]:
    filters = {**filters, "kind": rollup.CALLS_OF_TOOL}
    database.execute(TOP, filters)
    errors: dict[str, dict[str, int]] = {}
    for name, kind, count in database.execute(TOOL_ERRORS, filters):
        errors.setdefault(name, {})[kind] = count
    times = _group_by_name(database.execute(TIMES, filters))
    return [
        {
            "name": name,
            "calls": calls,
            "success_rate": _compute_success_rate(calls, failed),
            **_compute_percentiles(times[name], least, most),
            "result_tokens": round(tokens),
            "errors": errors.get(name, {}),
        }
        for name, calls, failed, tokens, least, most in database.execute(TOOLS)
    ]


def _summarize_runs(
    database: Transaction, filters: JsonMapping, round_trip_ms: int
) -> tuple[RunSummary, Savings]:
    """Return the runs, or those that called the tool, and the savings of these runs and of
    sessions.
    """
    kind = rollup.ALL_RUNS
    query = SESSION_SAVINGS
    if filters["tool"] is not None:
        kind = rollup.RUNS_OF_TOOL
        query = SESSION_SHARES
    filters = {**filters, "kind": kind}
    sessions, definitions, own = database.execute(query, filters).fetchone()
    total, failed, results, round_trips, *bounds = database.execute(RUNS, filters).fetchone()
    times = _compute_percentiles(
        _group_by_name(database.execute(RUN_TIMES, filters)).get("", {}), *bounds
    )
    runs: RunSummary = {
        "total": int(total),
        "failed": int(failed),
        "success_rate": _compute_success_rate(total, failed),
        **times,
    }
    return runs, {
        "definition_tokens": round(definitions),
        "own_tokens": round(own),
        "result_tokens": round(results),
        "sessions": sessions,
        "round_trips": round(round_trips, 6),  # enough for exact times of shares
        "round_trip_ms": round_trip_ms,
    }


def _make_series(database: Transaction, filters: JsonMapping, period: str, now: float) -> Series:
    filters = {**filters, "kind": _call_kind(filters)}
    start, width, count = _choose_bars(database, filters, period, now)
    calls = [0] * count
    errors = [0] * count
    tools: dict[str, list[int]] = {}
    bars = {**filters, "start": start, "bar_width": width, "last": count - 1}
    hour, day = (_first_complete_start(filters["since"], each) for each in (HOUR, DAY))
    _select_ranges(database, (HOUR, hour, FOREVER) if width <= DAY else (DAY, day, FOREVER))
    for bar, total, failed in database.execute(BARS, bars):
        calls[bar], errors[bar] = total, int(failed)
    if width >= DAY:  # hourly rows of each tool would be too many
        _select_ranges(database, (HOUR, hour, day), (DAY, day, FOREVER))
    for name, bar, total in database.execute(TOOL_BARS, {**bars, "kind": rollup.CALLS_OF_TOOL}):
        tools.setdefault(name, [0] * count)[bar] = total
    return {
        "start": datetime.fromtimestamp(start, _to_local(now).tzinfo).isoformat(timespec="seconds"),
        "width_seconds": width,
        "calls": calls,
        "errors": errors,
        "tools": tools,
    }


def _choose_bars(
    database: Transaction, filters: JsonMapping, period: str, now: float
) -> tuple[int, int, int]:
    """Return the start of the first bar, the width and the number of bars.

    Bars start at full local hours or days.
    """
    if period in PERIODS:
        first = filters["since"]
        width = PERIODS[period][1]
    else:
        first = _find_first_time(database, filters, now)
        width = next((width for width in WIDTHS if now - first < MAX_BARS * width), WIDTHS[-1])
        first = min(first, now - (MIN_BARS - 1) * width)
    offset = (
        int((_to_local(now).utcoffset() or timedelta()).total_seconds()) // HOUR * HOUR
    )  # bars do not split UTC hours
    start = int((first + offset) // width * width - offset)
    return start, width, int((now - start) // width) + 1


def _find_first_time(database: Transaction, filters: JsonMapping, now: float) -> float:
    """Return the approximate time of the first call, or now: to the hour if it is recent, otherwise
    to the day.
    """
    for width, reach in ((DAY, MAX_BARS * DAY), (HOUR, 0)):
        found = database.execute(FIRST, {**filters, "width": width}).fetchone()
        first = now if found is None else float(found[0])
        if now - first > reach:
            break
    return max(first, now - OLDEST)


def _to_local(moment: float) -> datetime:
    return datetime.fromtimestamp(moment, UTC).astimezone()


def _compute_success_rate(total: float, failed: float) -> float | None:
    """Return the success rate in percent; None without calls, and 100 only if nothing failed."""
    if not total:
        return None
    return min(round(100 * (total - failed) / total, 2), 99.99 if failed else 100.0)


def _group_by_name(rows: "Iterable[tuple[str, int, int]]") -> dict[str, dict[int, int]]:
    found: dict[str, dict[int, int]] = {}
    for name, bucket, count in rows:
        found.setdefault(name, {})[bucket] = count
    return found


def _compute_percentiles(counts: Mapping[int, int], least: float, most: float) -> Percentiles:
    if not counts:
        return {"p50_ms": None, "p95_ms": None}
    p50, p95 = (
        round(rollup.percentile(counts, percent, least, most) * 1000, 2) for percent in (50, 95)
    )
    return {"p50_ms": p50, "p95_ms": p95}
