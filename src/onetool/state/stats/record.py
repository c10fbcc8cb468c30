"""Records of calls and runs, written in the background.

`onetool.state.stats.history` and `summary` read them.

`add` puts a record in a queue and returns; a thread writes queued records to the database, about
once a second. Each process adds its own rows, so that counts are exact with any number of
processes. If the database cannot be written, `problem` says so, and calls do not fail. Rows are
deleted in small batches when they are too old or too many. Each transaction also updates the
aggregates (`onetool.state.stats.rollup`) that reports use. `at` is the start time; 0 means now.
"""

import time
from collections import deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from onetool.errors import ToolError
from onetool.state.run_records import RunRecord, StoredValues, get_end_state
from onetool.state.sqlite_database import Transaction
from onetool.state.stats import details, rollup
from onetool.state.stats.database import COUNT_USE, StatisticsDatabase
from onetool.state.stats.details import FailureRecord, Redact
from onetool.state.stats.rollup import DAY
from onetool.util.background import Background
from onetool.util.clock_watch import Clock, ClockWatch, Sweep
from onetool.util.redact import Redactor
from onetool.util.tasks import SharedFlight
from onetool_child.json_types import JsonObject

if TYPE_CHECKING:
    from onetool.settings.model import RunHistory, Stats
    from onetool.state.stats.summary import StatsSummary

MAX_TEXT_CHARS = {"code": 5000}  # all other texts are names, which may come from untrusted code
MAX_PENDING = 100_000  # records to keep while the file cannot be written: about 30 MB
DEFAULT_KEEP_DAYS = 365
MAX_ROWS = {
    "calls": 2_000_000,
    "runs": 200_000,
    "sessions": 200_000,
}  # about 300 MB each; runs include their code
# rows per batch; time limit after one write
PRUNE_ROWS = 2_000
PRUNE_SECONDS = 0.5
DEFAULT_VALUE_DAYS = 7
DEFAULT_MAX_VALUE_BYTES = 256 << 20
SPENDING_DAYS = 31  # by which sums of a month are kept longer than its runs
PRUNE_INTERVAL_SECONDS = 60.0
LAST_ROWS = (
    "SELECT coalesce((SELECT max(rowid) FROM calls), 0), coalesce((SELECT max(rowid) FROM runs), 0)"
)
# Each statement uses an index, so that a batch costs only the rows it deletes.
PRUNE = tuple(
    f"DELETE FROM {table} WHERE rowid IN (SELECT rowid FROM {table} WHERE {surplus} LIMIT :rows)"  # noqa: S608 - constants
    for table in ("calls", "runs", "sessions")
    for surplus in (
        "at < :before",
        f"rowid <= (SELECT max(rowid) FROM {table}) - :{table}",  # noqa: S608 - constants only
    )
)
PRUNE_DEFINITIONS = "DELETE FROM definitions WHERE catalog NOT IN (SELECT catalog FROM sessions)"
# Calls of one context without a run are one row: that of the last one that ended, which is the
# outermost call. A run that was continued later, after an approval, has its last outcome.
EARLIER = "CASE WHEN runs.kind = 'call' THEN runs.{} ELSE 0 END"
INSERT_RUN = f"""
{{insert}} ON CONFLICT (id) DO UPDATE
SET seconds = excluded.seconds, error_type = excluded.error_type, name = excluded.name,
calls = {EARLIER.format("calls")} + excluded.calls, failed = {EARLIER.format("failed")} + excluded.failed,
answer_tokens = excluded.answer_tokens, result_tokens = excluded.result_tokens,
at = {rollup.lesser("runs.at", "excluded.at")} WHERE runs.kind = excluded.kind
"""
INSERT_DEFINITION = "INSERT INTO definitions VALUES (?, ?, ?) ON CONFLICT DO NOTHING"
# A session that is recorded again, because more tools were added, counts once, with its largest
# number of tokens.
INSERT_SESSION = """
INSERT INTO sessions VALUES (?, ?, ?, ?, ?, ?) ON CONFLICT (session) DO UPDATE
SET catalog = excluded.catalog, definition_tokens = excluded.definition_tokens, own_tokens = excluded.own_tokens
WHERE excluded.definition_tokens > sessions.definition_tokens
"""


@dataclass(slots=True)
class CallRecord:
    """One tool call."""

    name: str
    agent: str
    session: str
    run_id: str
    seconds: float | None  # None while it is in progress; such records are not written
    error_type: str | None
    result_tokens: int
    at: float = 0.0
    call_id: int = 0  # unique in its run
    values: StoredValues | None = None


# The columns of the tables are the first fields of the records.
CALL_COLUMNS: Sequence[str] = CallRecord.__slots__[:-1]
RUN_COLUMNS: Sequence[str] = RunRecord.__slots__[: RunRecord.__slots__.index("values")]


@dataclass(slots=True)
class SessionRecord:
    """One client session: the tokens of each tool's definition, if loaded directly, and of the
    definition of `run`.
    """

    session: str
    agent: str
    definitions: Mapping[str, int]
    own_tokens: int
    at: float = 0.0


@dataclass(slots=True)
class UseRecord:
    """A call of a stored tool, which is counted by ID even if statistics are disabled."""

    tool: str
    at: float = 0.0


Record = CallRecord | RunRecord | SessionRecord | UseRecord | FailureRecord


class Recorder:
    """Statistics that are written in the background: all records that wait, in one transaction."""

    enabled = True
    keep_days: float = DEFAULT_KEEP_DAYS
    keeps_values = True
    value_days: float = DEFAULT_VALUE_DAYS
    max_value_bytes = DEFAULT_MAX_VALUE_BYTES
    redact: Redact = Redactor().redact_prefix

    def __init__(
        self,
        database: StatisticsDatabase,
        *,
        max_rows: Mapping[str, int] = MAX_ROWS,
        clock: Clock = time.time,
    ) -> None:
        """Create the recorder without disk access."""
        self.database = database
        self._max_rows = max_rows
        self._clock = clock
        self.clock_watch = ClockWatch(clock)
        self._sweep = Sweep(self.clock_watch, PRUNE_INTERVAL_SECONDS)
        self._pending: deque[Record] = deque(maxlen=MAX_PENDING)
        self._pending_bytes = 0
        self._background = Background("onetool-stats", self._write_pending)
        self.problem: str | None = None
        self.summaries: SharedFlight[StatsSummary] = SharedFlight()  # that callers share

    def configure(self, stats: "Stats", runs: "RunHistory", redact: Redact) -> None:
        """Use these settings; `redact` removes secrets from values and messages."""
        self.enabled = stats.enabled
        self.keep_days = stats.keep_days
        self.keeps_values = runs.values
        self.value_days = runs.value_days
        self.max_value_bytes = runs.max_value_bytes
        self.redact = redact

    def add(self, record: Record) -> None:
        """Queue the record for the next write. Returns at once."""
        if not self.enabled and not isinstance(record, UseRecord):
            return
        if isinstance(record, CallRecord | RunRecord) and record.values is not None:
            if self.keeps_values and self._pending_bytes <= details.MAX_PENDING_BYTES:
                self._pending_bytes += sum(len(text) for text in record.values if text)
            else:
                record.values = None
        record.at = record.at or self._clock()
        self._pending.append(record)
        self._background.wake()

    def flush(self) -> None:
        """Write all queued records before returning."""
        self._background.flush()

    def close(self) -> None:
        self._background.close()

    # --- in the thread ----------------------------------------------------------------------------

    def _write_pending(self) -> bool:
        records = [self._pending.popleft() for _ in range(len(self._pending))]
        self._pending_bytes = 0
        if not records:
            return True
        try:
            now = self._clock()
            self.database.write(lambda tables: insert_records(tables, records, now, self.redact))
        except ToolError as error:
            self.problem = f"cannot write statistics to {self.database.place}: {error.message}"
            # Code and values would take too much memory while the file cannot be written.
            for record in records:
                if isinstance(record, CallRecord | RunRecord):
                    record.values = None
                if isinstance(record, RunRecord):
                    record.code = ""
            self._pending.extendleft(reversed(records))
            return False
        self.problem = self.database.notice
        self._prune_sometimes()
        return True

    def _prune_sometimes(self) -> None:
        if not self._sweep.is_due():
            return
        try:
            is_done = self.database.write(self._prune)
        except ToolError as error:
            self.problem = f"cannot delete old statistics in {self.database.place}: {error.message}"
        else:
            if not is_done:
                self._sweep.repeat()

    def _prune(self, tables: Transaction) -> bool:
        """Delete old rows for a limited time. Return False if the next write must continue."""
        now = self._clock()
        before = now - self.keep_days * DAY
        limits = {**self._max_rows, "before": before, "rows": PRUNE_ROWS}
        end = time.monotonic() + PRUNE_SECONDS
        for statement in PRUNE:
            while time.monotonic() < end and tables.execute(statement, limits).rowcount:
                pass
        tables.execute(PRUNE_DEFINITIONS)
        rollup.prune(tables, now, self.keep_days * DAY)
        details.prune(tables, now - self.value_days * DAY, self.max_value_bytes, before)
        tables.execute(rollup.DELETE_OLD_SPENDING, {"before": before - SPENDING_DAYS * DAY})
        return time.monotonic() < end


def insert_records(
    tables: Transaction, records: Sequence[Record], now: float, redact: Redact
) -> None:
    """Insert the records and update the aggregates, in the current transaction."""
    last_call, last_run = tables.execute(LAST_ROWS).fetchone()
    calls = [record for record in records if isinstance(record, CallRecord)]
    runs = [record for record in records if isinstance(record, RunRecord)]
    tables.executemany(_insert_into("calls", CALL_COLUMNS), _read_rows(calls, CALL_COLUMNS))
    insert_run = INSERT_RUN.format(insert=_insert_into("runs", RUN_COLUMNS))
    tables.executemany(insert_run, _read_rows(runs, RUN_COLUMNS))
    values = [(call.run_id, call.call_id, call.values, call.at) for call in calls if call.values]
    values += [(run.id, 0, run.values, run.at) for run in runs if run.values]
    detail_rows = [details.build_row(*row, redact) for row in values]
    tables.executemany(details.INSERT_DETAIL, detail_rows)
    failures = [record for record in records if isinstance(record, FailureRecord)]
    failure_rows = [details.build_failure_row(failure, redact) for failure in failures]
    tables.executemany(details.COUNT_FAILURE, failure_rows)
    rollup.add_spending(tables, runs)
    uses = ((record.tool, 1, record.at) for record in records if isinstance(record, UseRecord))
    tables.executemany(COUNT_USE, uses)
    for record in records:
        if isinstance(record, SessionRecord):
            _insert_session(tables, record)
    rollup.add(tables, last_call, last_run, now)


def read_run(row: Sequence[Any]) -> RunRecord:
    """Return the run with these values of `RUN_COLUMNS`."""
    run = RunRecord(*row)
    run.state = get_end_state(run.error_type)
    return run


def _insert_into(table: str, columns: Sequence[str]) -> str:
    values = ", ".join(f":{name}" for name in columns)
    return f"INSERT INTO {table} ({', '.join(columns)}) VALUES ({values})"  # noqa: S608


def _read_rows(
    records: Iterable[CallRecord | RunRecord], columns: Sequence[str]
) -> Iterator[JsonObject]:
    for record in records:
        row = {}
        for name in columns:
            max_chars = MAX_TEXT_CHARS.get(name, details.MAX_NAME_CHARS)
            row[name] = details.to_column(getattr(record, name), max_chars)
        yield row


def _insert_session(tables: Transaction, record: SessionRecord) -> None:
    tokens = {details.to_column(name): count for name, count in record.definitions.items()}
    catalog = _digest(tokens)
    definitions = [(catalog, name, count) for name, count in tokens.items()]
    tables.executemany(INSERT_DEFINITION, definitions)
    total = sum(tokens.values())
    row = (record.session, record.agent, catalog, total, record.own_tokens, record.at)
    tables.execute(INSERT_SESSION, tuple(map(details.to_column, row)))


def _digest(tokens: Mapping[Any, int]) -> str:
    """Return a digest of the tools, so that a catalog is stored once for many sessions."""
    from hashlib import sha256

    return sha256(repr(sorted(tokens.items())).encode()).hexdigest()[:16]
