"""Runs that have ended, of all processes that share the directory: filtered pages of a list, and
one with its calls.

A page is read along an index, in the order of the list, so that its cost does not grow with the
number of runs. Filters that no index helps with (text, tool, state) are applied to a limited number
of rows per page: a page may have fewer runs than were asked for, or none, and still have a position
from which to continue.
"""

import math
from collections.abc import Collection, Iterator
from dataclasses import dataclass
from typing import Literal, NamedTuple

from onetool.state.run_records import ENDED, UNANSWERED, RunRecord, RunState
from onetool.state.sqlite_database import Transaction
from onetool.state.stats import details
from onetool.state.stats.database import StatisticsDatabase
from onetool.state.stats.details import to_column
from onetool.state.stats.record import CALL_COLUMNS, RUN_COLUMNS, CallRecord, read_run
from onetool_child.json_types import JsonObject

MAX_RUNS = 200
MAX_CALLS = 1000  # of one run; further calls are only counted
MAX_SCANNED = 5_000  # rows that one page looks at
EXPORT_RUNS = 200  # in one transaction
COLUMNS = ", ".join(RUN_COLUMNS)
ORDERS = {"newest": ("at", "DESC"), "oldest": ("at", "ASC"), "slowest": ("seconds", "DESC")}
# ruff: noqa: S608 - queries are built from constants
RUN = f"SELECT {COLUMNS} FROM runs WHERE id = ?"
CALLS = (
    f"SELECT {', '.join(CALL_COLUMNS)} FROM calls WHERE run_id = :run_id ORDER BY rowid LIMIT"
    f" {MAX_CALLS}"
)
# Conditions that are checked row by row.
CONDITIONS = {
    "tool": (
        "(name = :tool OR EXISTS (SELECT 1 FROM calls WHERE calls.run_id = scanned.id AND"
        " calls.name = :tool))"
    ),
    "text": (
        "(lower(code) LIKE :text ESCAPE '!' OR lower(name) LIKE :text ESCAPE '!' OR id LIKE :text"
        " ESCAPE '!' OR lower(error_type) LIKE :text ESCAPE '!' OR lower(client) LIKE :text ESCAPE"
        " '!')"
    ),
    "error": "error_type = :error",
    "min_seconds": "seconds >= :min_seconds",
    "max_seconds": "seconds <= :max_seconds",
    "since": "at >= :since",
    "until": "at < :until",
}
STATES = {"done": "error_type IS NULL", "failed": "error_type IS NOT NULL"}
STATE_GROUPS = {
    "running": {RunState.RUNNING},
    "waiting": set(UNANSWERED),
    "done": {RunState.DONE},
    "failed": ENDED - {RunState.DONE},
}
OPEN_SECONDS = 1e9  # in the order by duration, runs that have not ended come first
Order = Literal["newest", "oldest", "slowest"]
StateGroup = Literal["", "running", "waiting", "done", "failed"]
RunWithCalls = tuple[RunRecord, list[CallRecord]]  # the calls in the order in which they started


@dataclass(frozen=True, slots=True, kw_only=True)
class RunFilter:
    """A filter for runs, and their order. None and empty values match everything."""

    agent: str | None = None
    actor: str | None = None
    token_id: str | None = None
    tool: str = ""
    text: str = ""
    state: StateGroup = ""
    error: str = ""
    min_seconds: float | None = None
    max_seconds: float | None = None
    since: float | None = None
    until: float | None = None
    order: Order = "newest"

    @property
    def parameters(self) -> JsonObject:
        escaped = self.text.lower().replace("!", "!!").replace("%", "!%").replace("_", "!_")
        fields = {name: getattr(self, name) for name in CONDITIONS}
        names = {
            name: to_column(getattr(self, name)) for name in ("agent", "actor", "token_id", "tool")
        }
        return {**fields, **names, "text": to_column(f"%{escaped}%", 1000) if escaped else ""}

    @property
    def is_descending(self) -> bool:
        return ORDERS[self.order][1] == "DESC"

    def is_before(self, position: "Position", other: "Position") -> bool:
        """Return whether a position comes before another one in the order."""
        return position > other if self.is_descending else position < other

    def get_position(self, run: RunRecord) -> "Position":
        value = getattr(run, ORDERS[self.order][0])
        return Position(OPEN_SECONDS if value is None else value, run.id)

    def matches_state(self, run: RunRecord) -> bool:
        return not self.state or run.state in STATE_GROUPS[self.state]

    def matches(self, run: RunRecord) -> bool:
        """Return whether a run that is not in the statistics matches. Its duration is not known."""
        if not run.is_visible(self.agent, self.token_id) or self.actor not in {None, run.actor}:
            return False
        if not self.matches_state(run) or self.error not in {"", run.error_type}:
            return False
        if (
            self.tool not in {"", run.name}
            or self.min_seconds is not None
            or self.max_seconds is not None
        ):
            return False
        if not (self.since or 0) <= run.at < (self.until or math.inf):
            return False
        searched = (run.code, run.name, run.id, run.error_type or "", run.client)
        return any(self.text.lower() in text.lower() for text in searched)


class Position(NamedTuple):
    """A place in a list of runs: the value that it is ordered by, and the run."""

    value: float
    run_id: str


class RunPage(NamedTuple):
    runs: list[RunRecord]
    next: Position | None  # the position to continue from; None at the end


def list_page(
    statistics: StatisticsDatabase,
    criteria: RunFilter,
    after: Position | None = None,
    size: int = MAX_RUNS,
) -> RunPage:
    """Return the runs after a position. Blocks on disk access."""
    if criteria.state and criteria.state not in STATES:
        return RunPage([], None)
    with statistics.reading() as database:
        return _read_page(database, criteria, after, size)


def _read_page(
    database: Transaction, criteria: RunFilter, after: Position | None, size: int
) -> RunPage:
    parameters = {
        name: value for name, value in criteria.parameters.items() if value not in (None, "")
    }
    column, direction = ORDERS[criteria.order]
    # One equality and the order are those of an index; everything else is checked row by row.
    indexed = [f"{name} = :{name}" for name in ("token_id", "actor", "agent") if name in parameters]
    if column == "seconds":
        indexed += [
            CONDITIONS[name] for name in ("min_seconds", "max_seconds") if name in parameters
        ]
    else:
        indexed += [CONDITIONS[name] for name in ("since", "until") if name in parameters]
    if after is not None:
        indexed.append(
            f"({column}, id) {'<' if criteria.is_descending else '>'} (:after, :after_id)"
        )
        parameters |= {"after": after.value, "after_id": after.run_id}
    where = f"WHERE {' AND '.join(indexed)}" if indexed else ""
    order = f"ORDER BY {column} {direction}, id {direction}"
    checked = [
        text for name, text in CONDITIONS.items() if name in parameters and text not in indexed
    ]
    checked += [STATES[criteria.state]] if criteria.state else []
    scan = f"SELECT * FROM runs {where} {order} LIMIT {MAX_SCANNED}"
    query = (
        f"SELECT {COLUMNS} FROM ({scan}) AS scanned"
        f" {'WHERE ' if checked else ''}{' AND '.join(checked)} {order}"
    )
    rows = database.execute(f"{query} LIMIT {size}", parameters).fetchall()
    runs = [read_run(row) for row in rows]
    if len(runs) == size:
        return RunPage(runs, criteria.get_position(runs[-1]))
    last = f"SELECT {column}, id FROM runs {where} {order} LIMIT 1 OFFSET {MAX_SCANNED - 1}"
    found = database.execute(last, parameters).fetchone()
    return RunPage(runs, None if found is None else Position(*found))


def find_run(statistics: StatisticsDatabase, run_id: str) -> RunWithCalls | None:
    """Return a run with its calls and values; None if it does not exist."""
    with statistics.reading() as database:
        row = database.execute(RUN, (to_column(run_id),)).fetchone()
        return None if row is None else _read_calls(database, read_run(row))


def find_ids(statistics: StatisticsDatabase, run_ids: Collection[str]) -> set[str]:
    """Return those IDs that are in the statistics."""
    query = f"SELECT id FROM runs WHERE id IN ({', '.join('?' * len(run_ids))})"
    with statistics.reading() as database:
        return {run_id for (run_id,) in database.execute(query, tuple(run_ids))}


def _read_calls(database: Transaction, run: RunRecord) -> RunWithCalls:
    """Return the run with its calls, and add the values of both."""
    values = details.read_values(database, run.id)
    run.values = values.get(0)
    calls = [CallRecord(*row) for row in database.execute(CALLS, {"run_id": run.id})]
    for call in calls:
        call.values = values.get(call.call_id) if call.call_id else None
    return run, sorted(calls, key=lambda call: call.at)


def iter_runs(statistics: StatisticsDatabase, criteria: RunFilter) -> Iterator[list[RunWithCalls]]:
    """Yield all runs of a list with their calls and values, in batches, each read in one
    transaction.
    """
    position: Position | None = None
    if criteria.state and criteria.state not in STATES:
        return
    while True:
        with statistics.reading() as database:
            page = _read_page(database, criteria, position, EXPORT_RUNS)
            batch = [_read_calls(database, run) for run in page.runs]
        yield batch
        if (position := page.next) is None:
            return
