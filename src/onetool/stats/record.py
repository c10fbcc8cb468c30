"""Records of calls and runs, written in the background. `onetool.stats.history` and `summary` read them.

`add` puts a record in a queue and returns; a thread writes queued records to SQLite, about once a second. Each process
adds its own rows, so that counts are exact with any number of processes. If the file cannot be written, `problem` says
so, and calls do not fail. Rows are deleted in small batches when they are too old or too many. Each transaction also
updates the aggregates (`onetool.stats.rollup`) that reports use. `at` is the start time; 0 means now.
"""

import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import AbstractContextManager, ExitStack, closing, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

from onetool.errors import ToolError
from onetool.state.sqlite_database import database_uri
from onetool.stats import details, rollup, spending
from onetool.stats.details import DetailRecord, FailureRecord
from onetool.stats.rollup import DAY
from onetool.stats.tables import COUNT_USE, VERSION, create_tables
from onetool.util.atomic import replacing
from onetool.util.background import Background, exclusive, is_unchanged, put_aside, remember_state
from onetool.util.versioning import check_tables

if TYPE_CHECKING:
    from sqlite3 import Connection

MAX_TEXT_CHARS = {"command": 5000}  # all other texts are names, which may come from untrusted code
MAX_NAME_CHARS = 200
MAX_PENDING = 100_000  # records to keep while the file cannot be written: about 30 MB
BUSY_SECONDS = 5.0
DEFAULT_KEEP_DAYS = 365
MAX_ROWS = {"calls": 2_000_000, "runs": 200_000, "sessions": 200_000}  # about 300 MB each; runs include their code
PRUNE_ROWS, PRUNE_SECONDS = 2_000, 0.5  # rows per batch; time limit after one write
DEFAULT_VALUE_DAYS, DEFAULT_MAX_VALUE_BYTES = 7, 256 << 20
SPENDING_DAYS = 31  # by which sums of a month are kept longer than its runs
PRUNE_VALUES_SECONDS = 60.0  # between two checks of the size of all values
# Each statement uses an index, so that a batch costs only the rows it deletes.
PRUNE = tuple(
    f"DELETE FROM {table} WHERE rowid IN (SELECT rowid FROM {table} WHERE {surplus} LIMIT :rows)"  # noqa: S608 - constants
    for table in ("calls", "runs", "sessions")
    for surplus in ("at < :before", f"rowid <= (SELECT max(rowid) FROM {table}) - :{table}")  # noqa: S608
)
PRUNE_DEFINITIONS = "DELETE FROM definitions WHERE catalog NOT IN (SELECT catalog FROM sessions)"
# Calls of one context without a run are one row: that of the last one that ended, which is the outermost call. A run
# that was continued later, after an approval, has its last outcome.
EARLIER = "CASE WHEN runs.kind = 'call' THEN runs.{} ELSE 0 END"
INSERT_RUN = f"""
{{insert}} ON CONFLICT (run_id) DO UPDATE
SET seconds = excluded.seconds, error_type = excluded.error_type, name = excluded.name,
calls = {EARLIER.format("calls")} + excluded.calls, failed = {EARLIER.format("failed")} + excluded.failed,
answer_tokens = excluded.answer_tokens, result_tokens = excluded.result_tokens,
at = {rollup.lesser("runs.at", "excluded.at")} WHERE runs.kind = excluded.kind
"""
INSERT_DEFINITION = "INSERT INTO definitions VALUES (?, ?, ?) ON CONFLICT DO NOTHING"
# A session that is recorded again, because more tools were added, counts once, with its largest number of tokens.
INSERT_SESSION = """
INSERT INTO sessions VALUES (?, ?, ?, ?, ?, ?) ON CONFLICT (session) DO UPDATE
SET catalog = excluded.catalog, definition_tokens = excluded.definition_tokens, own_tokens = excluded.own_tokens
WHERE excluded.definition_tokens > sessions.definition_tokens
"""


class CallRecord(NamedTuple):
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


class RunRecord(NamedTuple):
    """One run, or a call outside of a run, whose `kind` is "call".

    `round_trips` are the calls that its code made; `calls` also includes calls that tools made.
    """

    run_id: str
    agent: str
    session: str
    seconds: float | None
    error_type: str | None
    round_trips: int
    answer_tokens: int
    result_tokens: int
    at: float = 0.0
    kind: str = "run"
    name: str = "run"
    client: str = ""
    command: str = ""
    calls: int = 0
    failed: int = 0
    actor: str = ""  # the token or subject that started it
    directory: str = ""  # the working directory of the application
    cost: float = 0.0  # the sum of `cost_per_call` of its calls


class SessionRecord(NamedTuple):
    """One client session: the tokens of each tool's definition, if loaded directly, and of the definition of `run`."""

    session: str
    agent: str
    definitions: Mapping[str, int]
    own_tokens: int
    at: float = 0.0


class UseRecord(NamedTuple):
    """A call of a stored tool, which is counted by ID even if statistics are disabled."""

    tool: str
    at: float = 0.0


Record = CallRecord | RunRecord | SessionRecord | UseRecord | DetailRecord | FailureRecord


class StatisticsTables(Protocol):
    """A connection to the tables. Statements are valid in SQLite and PostgreSQL."""

    def execute(self, statement: str, parameters: Any = ..., /) -> Any: ...
    def executemany(self, statement: str, parameters: Any, /) -> object: ...


class StatisticsSource(Protocol):
    """Statistics that are not in a file."""

    def reading(self) -> AbstractContextManager[StatisticsTables]: ...


class Damaged(Exception):
    """The file is not a database, or is damaged."""


class BufferedRecorder:
    """Statistics that are written in the background, all that are queued in one transaction.

    A class that derives from it implements `_write`. If that raises one of `errors`, the records are kept.
    """

    errors: tuple[type[Exception], ...] = (OSError, ToolError)

    def __init__(
        self,
        place: str,
        *,
        enabled: bool,
        keep_days: float = DEFAULT_KEEP_DAYS,
        keeps_values: bool = True,
        value_days: float = DEFAULT_VALUE_DAYS,
        max_value_bytes: int = DEFAULT_MAX_VALUE_BYTES,
        max_rows: Mapping[str, int] = MAX_ROWS,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self._place, self._clock, self.enabled = place, clock, enabled
        self.keep_days, self._max_rows = keep_days, max_rows
        self.keeps_values, self.value_days, self.max_value_bytes = keeps_values, value_days, max_value_bytes
        self._pending_bytes, self._values_checked = 0, 0.0
        self._pending: deque[Record] = deque(maxlen=MAX_PENDING)
        self._background = Background("onetool-stats", self._write_pending)
        self._notice: str | None = None
        self.problem: str | None = None

    def add(self, record: Record) -> None:
        """Queue the record for the next write. Returns at once."""
        if isinstance(record, DetailRecord):
            if not self.keeps_values or self._pending_bytes > details.MAX_PENDING_BYTES:
                return
            self._pending_bytes += record.size
        if self.enabled or isinstance(record, UseRecord):
            self._pending.append(record if record.at else record._replace(at=self._clock()))
            self._background.wake()

    def flush(self) -> None:
        """Write all queued records before returning."""
        self._background.flush()

    def close(self) -> None:
        self._background.close()

    # --- in the thread ----------------------------------------------------------------------------------------

    def _write_pending(self) -> bool:
        records = [self._pending.popleft() for _ in range(len(self._pending))]
        self._pending_bytes = 0
        if not records:
            return True
        try:
            self._write(records)
        except self.errors as error:
            self.problem = f"cannot write statistics to {self._place}: {error}"
            # Code and values are dropped: they would take too much memory while the file cannot be written.
            unwritten = (
                record._replace(command="") if isinstance(record, RunRecord) else record
                for record in reversed(records)
                if not isinstance(record, DetailRecord)
            )
            self._pending.extendleft(unwritten)
            return False
        self.problem = self._notice
        return True

    def _write(self, records: list[Record]) -> None:
        raise NotImplementedError

    def _insert_records(self, database: StatisticsTables, records: list[Record]) -> None:
        """Insert the records and update the aggregates, in the current transaction."""
        last = "SELECT coalesce((SELECT max(rowid) FROM calls), 0), coalesce((SELECT max(rowid) FROM runs), 0)"
        before = database.execute(last).fetchone()
        self._insert_calls(database, _rows(records, CallRecord))
        self._insert_runs(database, _rows(records, RunRecord))
        details.insert(database, records)
        spending.add(database, (record for record in records if isinstance(record, RunRecord)))
        uses = ((record.tool, 1, record.at) for record in records if isinstance(record, UseRecord))
        database.executemany(COUNT_USE, uses)
        for record in records:
            if isinstance(record, SessionRecord):
                _insert_session(database, record)
        self._add_to_rollups(database, *before)

    def _add_to_rollups(self, database: StatisticsTables, call: int, run: int) -> None:
        rollup.add(database, call, run)

    def _insert_calls(self, database: StatisticsTables, rows: Iterator[dict[str, Any]]) -> None:
        database.executemany(_insert_into("calls", CallRecord), rows)

    def _insert_runs(self, database: StatisticsTables, rows: Iterable[dict[str, Any]]) -> None:
        database.executemany(INSERT_RUN.format(insert=_insert_into("runs", RunRecord)), rows)

    @property
    def _is_check_due(self) -> bool:
        return not 0 <= self._clock() - self._values_checked < PRUNE_VALUES_SECONDS

    def _prune(self, database: StatisticsTables) -> bool:
        """Delete old rows for a limited time; the next write continues. Return whether all were deleted."""
        before = self._clock() - self.keep_days * DAY
        limits = {**self._max_rows, "before": before, "rows": PRUNE_ROWS}
        end, deleted = time.monotonic() + PRUNE_SECONDS, 0
        for statement in PRUNE:
            while time.monotonic() < end and (count := database.execute(statement, limits).rowcount):
                deleted += count
        if deleted:
            database.execute(PRUNE_DEFINITIONS)
        rollup.prune(database, self._clock(), self.keep_days * DAY)
        if self._is_check_due:
            self._values_checked = self._clock()
            details.prune(database, self._clock() - self.value_days * DAY, self.max_value_bytes, before)
            database.execute(spending.DELETE_OLD, {"before": before - SPENDING_DAYS * DAY})
        return time.monotonic() < end


class Recorder(BufferedRecorder):
    """Statistics in a file of SQLite."""

    def __init__(self, file: Path, *, enabled: bool, **options: Any) -> None:
        """Create the recorder without disk access."""
        import sqlite3

        super().__init__(str(file), enabled=enabled, **options)
        self.errors = (OSError, sqlite3.Error, ToolError, Damaged)
        self._file = file
        self._is_checked = False

    def _write(self, records: list[Record]) -> None:
        with exclusive(self._file):
            try:
                self._insert(records)
            except Damaged as error:
                old_file = put_aside(self._file, self._clock())
                self._notice = f"damaged statistics in {self._file} were reset ({error}); old file: {old_file}"
                self._insert(records)

    def _insert(self, records: list[Record]) -> None:
        was_unchanged = is_unchanged(self._file)
        if not self._file.exists():
            self._create()
            was_unchanged = True
        with open_database(self._file) as database:
            is_intact = self._check(database, was_unchanged=was_unchanged)
            database.execute("BEGIN IMMEDIATE")
            self._insert_records(database, records)
            database.execute("COMMIT")
            self._prune(database)
        if is_intact:
            remember_state(self._file)

    def _create(self) -> None:
        """Create the file with its tables, in one step: a file without tables has lost them."""
        with replacing(self._file) as temporary:
            temporary.touch(mode=0o600)
            with open_database(temporary) as database:
                create_tables(database)

    def _check(self, database: "Connection", *, was_unchanged: bool) -> bool:
        """Return whether the file is intact, False if that is unknown.

        It is checked once, unless it is as the last write left it: inserts alone do not detect damage.
        """
        is_intact = was_unchanged
        check_tables(database, VERSION, self._file)
        if not was_unchanged and not self._is_checked:
            (result,) = database.execute("PRAGMA quick_check(1)").fetchone()
            if result != "ok":
                raise Damaged(result)
            is_intact = True
        self._is_checked = True
        return is_intact


@contextmanager
def open_database(file: Path) -> "Iterator[Connection]":
    """Open the database in an existing file. It is opened for each use: another process may have replaced it."""
    import sqlite3

    try:
        with closing(
            sqlite3.connect(database_uri(file, "rw"), uri=True, timeout=BUSY_SECONDS, isolation_level=None)
        ) as database:
            rollup.add_functions(database)
            yield database
    except sqlite3.DatabaseError as error:
        code = getattr(error, "sqlite_errorcode", 0) & 0xFF  # the low byte is the primary code, the others are details
        if code in {sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB}:
            raise Damaged(str(error)) from error
        raise


def reading(source: Path | StatisticsSource) -> AbstractContextManager[StatisticsTables]:
    """Open statistics in one transaction, for consistent reads."""
    return _reading_file(source) if isinstance(source, Path) else source.reading()


@contextmanager
def _reading_file(file: Path) -> "Iterator[Connection]":
    """Open the file; an empty database if it does not exist."""
    import sqlite3

    try:
        with ExitStack() as stack:
            database = stack.enter_context(open_database(file)) if file.exists() else None
            if database is not None:
                check_tables(database, VERSION, file)
            else:
                database = stack.enter_context(closing(sqlite3.connect("", isolation_level=None)))
                rollup.add_functions(database)
                create_tables(database)
            database.execute("BEGIN")
            yield database
    except Damaged as error:
        hint = "OneTool renames it and starts a new one, at the next start at the latest."
        raise ToolError(f"the statistics file {file} is damaged: {error}. {hint}") from None
    except sqlite3.Error as error:
        raise ToolError(f"cannot read the statistics in {file}: {error}") from None


def _insert_into(table: str, kind: type[Record]) -> str:
    names = kind._fields
    return f"INSERT INTO {table} ({', '.join(names)}) VALUES ({', '.join(f':{name}' for name in names)})"  # noqa: S608


def _rows(records: Iterable[Record], kind: type[Record]) -> Iterator[dict[str, Any]]:
    for record in records:
        if isinstance(record, kind):
            yield {
                name: to_column(value, MAX_TEXT_CHARS.get(name, MAX_NAME_CHARS))
                for name, value in record._asdict().items()
            }


def _insert_session(database: StatisticsTables, record: SessionRecord) -> None:
    tokens = {to_column(name): count for name, count in record.definitions.items()}
    catalog = _digest(tokens)
    database.executemany(INSERT_DEFINITION, ((catalog, name, count) for name, count in tokens.items()))
    row = (record.session, record.agent, catalog, sum(tokens.values()), record.own_tokens, record.at)
    database.execute(INSERT_SESSION, tuple(map(to_column, row)))


def _digest(tokens: Mapping[Any, int]) -> str:
    """Return the same digest for the same tools, so that a catalog is stored once for many sessions."""
    from hashlib import sha256

    return sha256(repr(sorted(tokens.items())).encode()).hexdigest()[:16]


def to_column(value: Any, max_chars: int = MAX_NAME_CHARS) -> Any:
    """Truncate text and escape lone surrogates, which SQLite does not accept. Other values are returned unchanged."""
    return value[:max_chars].encode("utf-8", "backslashreplace").decode() if isinstance(value, str) else value
