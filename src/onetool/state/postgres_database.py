"""Connections to PostgreSQL: a small pool, typed errors, and limits for a server that does not
answer.
"""

import os
import re
import socket
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, suppress
from functools import lru_cache
from typing import TYPE_CHECKING, Any, Self
from weakref import WeakKeyDictionary

from onetool.errors import StorageError, ToolError
from onetool.state.changes import Changes
from onetool.state.documents import StoreUnavailable
from onetool.state.schema import OUTDATED, SCHEMA, check_version, migrate
from onetool.state.sqlite_database import Callback, Row, StateDatabase
from onetool.util.problem import STORAGE
from onetool.util.store_url import describe_url, find_passwords
from onetool_child.json_types import JsonMapping, JsonObject

if TYPE_CHECKING:
    from psycopg import Connection, Cursor
    from psycopg_pool import ConnectionPool

    from onetool.state.sealing import Sealer

MAX_CONNECTIONS = 8  # of a process, besides the one that listens
CONNECT_SECONDS = 3
WAIT_SECONDS = 4.0  # for a free connection
STUCK_SECONDS = 5.0  # for which a statement may get no answer
IDLE_SECONDS = 1.0  # after which a connection is tested before it is used
RETRY_SECONDS = 2
# A lost network is noticed by the kernel, a stopped server by `abort_stuck`.
OPTIONS = {
    "connect_timeout": CONNECT_SECONDS,
    "keepalives_idle": 2,
    "keepalives_interval": 1,
    "keepalives_count": 3,
    "tcp_user_timeout": 5000,
    "application_name": "onetool",
}
SESSION = (
    f"SET search_path = {SCHEMA}; SET statement_timeout = '30s'; SET lock_timeout = '4s'; "
    "SET idle_in_transaction_session_timeout = '60s'; SET client_min_messages = 'error'"
)
INSTALL = "pip install 'onetool-run[postgres]'"
Parameters = Sequence[Any] | JsonMapping


class Statements:
    """A connection that accepts statements with the placeholders of SQLite, `?` and `:name`."""

    def __init__(self, connection: "Connection[Any]", database: "Database") -> None:
        self.connection = connection
        self.announced: dict[str, int] = {}  # new generations of kinds of state
        self._database = database

    def execute(self, statement: str, parameters: Parameters = ()) -> "Cursor[Any]":
        with self._database.watch(self.connection):
            return self.connection.execute(translate(statement), parameters)

    def executemany(self, statement: str, parameters: Any) -> None:
        rows = list(parameters)
        if rows:
            with self._database.watch(self.connection), self.connection.cursor() as cursor:
                cursor.executemany(translate(statement), rows)

    def watch(self) -> AbstractContextManager[None]:
        """Let `abort_stuck` end the connection, for statements that are executed on it directly."""
        return self._database.watch(self.connection)

    def lock(self, name: str) -> None:
        """Wait for the advisory lock of this name, and hold it until the end of the transaction."""
        self.execute("SELECT pg_advisory_xact_lock(hashtextextended(?, 0))", (f"onetool {name}",))

    def try_lock(self, name: str) -> bool:
        """Take the advisory lock until the end of the transaction, unless somebody holds it."""
        query = "SELECT pg_try_advisory_xact_lock(hashtextextended(?, 0))"
        row = self.execute(query, (f"onetool {name}",)).fetchone()
        return bool(row and row[0])

    def announce(self, kind: str) -> int:
        """Increase the generation of a kind of state, and tell everybody when the transaction is
        committed.
        """
        statement = (
            "INSERT INTO onetool.generations AS known VALUES (?, 1) "
            "ON CONFLICT (kind) DO UPDATE SET number = known.number + 1 RETURNING number"
        )
        row = self.execute(statement, (kind,)).fetchone()
        self.notify(kind)
        self.announced[kind] = int(row[0]) if row else 0
        return self.announced[kind]

    def notify(self, kind: str) -> None:
        """Tell everybody of a change without a generation when the transaction is committed."""
        self.execute(
            "SELECT pg_notify('onetool', ?)", (f"{kind} from {self._database.leases.own_id}",)
        )
        self.announced[kind] = 0


class Database(StateDatabase):
    """The database of a URL.

    Nothing is opened before it is needed. Methods block: call them in a thread.
    """

    row_lock = "FOR UPDATE"
    claim_lock = "FOR UPDATE SKIP LOCKED"
    size_query = (
        "SELECT (SELECT coalesce(sum(octet_length(sealed)), 0) FROM runs) "
        "+ (SELECT coalesce(sum(octet_length(sealed)), 0) FROM calls) "
        "+ (SELECT coalesce(sum(pg_column_size(sent_calls)), 0) FROM sent_calls)"
    )
    trim_sent_query = "SELECT trim_sent_calls(?)"  # replicas cannot delete

    def __init__(self, url: str, key: str = "", changes: Changes | None = None) -> None:
        from onetool.state.listener import Leases, Listener

        self.url = url
        self.key = key
        self.place = describe_url(url)
        self._pool: ConnectionPool[Connection[Any]] | None = None
        self._opening = threading.Lock()
        self._sealers: dict[str, Sealer] = {}
        self._loading = threading.Lock()
        self._used: WeakKeyDictionary[Connection[Any], float] = WeakKeyDictionary()
        self._busy: dict[int, tuple[Connection[Any], float]] = {}
        self._is_checked = False
        self.is_away = False  # whether it is known not to answer, so that nobody waits for it
        self._clock: tuple[float, float] | None = (
            None  # the time of the database, and when it was read
        )
        self.leases = Leases(self, os.urandom(16).hex())
        self.listener = Listener(self, self.leases, changes or Changes())

    @property
    def problem(self) -> str | None:
        if self.listener.is_current:
            return None
        return self.listener.problem or f"the database {self.place} does not answer"

    @property
    def is_listening(self) -> bool:
        return self.listener.is_listening

    def number(self, kind: str) -> int:
        return self.listener.number(kind)

    def subscribe(self, kind: str, load: Callback) -> None:
        self.listener.subscribe(kind, load)

    def start(self) -> None:
        self.listener.start()

    def wait(self, seconds: float) -> bool:
        return self.listener.wait(seconds)

    @contextmanager
    def transaction(
        self,
        *,
        kind: str = "",
        is_read_only: bool = False,
        is_durable: bool = True,
        is_announced: bool = False,
        search_path: str = "",
    ) -> Iterator[Statements]:
        """Execute statements in one transaction. Raise StoreUnavailable if the server is away.

        Without `is_durable`, it survives the end of this process at once, and a crash of the
        database after 0.6 s.
        """
        if kind:
            self.load_sealer(kind)  # before the transaction, which would wait for it
        with self.storage_errors(), self._connection() as connection:
            statements = Statements(connection, self)
            begin = ["BEGIN ISOLATION LEVEL REPEATABLE READ" if is_read_only else "BEGIN"]
            begin += [] if is_durable else ["SET LOCAL synchronous_commit = off"]
            begin += [f"SET LOCAL search_path = {search_path}"] if search_path else []
            statements.execute("; ".join(begin))  # one round trip
            try:
                yield statements
                if is_announced:
                    statements.notify(kind)
                self.listener.expect(statements.announced)
                statements.execute("COMMIT")
            except BaseException:
                self.listener.withdraw(statements.announced)
                with suppress(Exception):  # the connection is lost, and the transaction with it
                    statements.execute("ROLLBACK")
                raise
        self.listener.report_own(statements.announced)

    @contextmanager
    def changing(self, kind: str, name: str, /, *, is_announced: bool) -> Iterator[Statements]:
        """Change a document, which no other replica changes meanwhile, and tell them of the change."""
        with self.transaction() as transaction:
            transaction.lock(f"{kind} {name}")
            yield transaction
            if is_announced:
                transaction.announce(kind)

    def prepare_sealer(self, key: str) -> None:
        self.load_sealer(key)

    def load_sealer(self, key: str) -> "Sealer":
        """Return the sealer with the key of this name, which is read once."""
        from onetool.state.keys import load_sealer

        with self._loading:
            if key not in self._sealers:
                self._sealers[key] = load_sealer(self, key)
            return self._sealers[key]

    def missing_error(self, kind: str, name: str) -> StorageError | None:
        from onetool.state.keys import missing_error

        return missing_error(kind, name, self.place)

    def select(self, query: str, /, *parameters: Any) -> list[Row]:
        with self.storage_errors(), self._connection() as connection, self.watch(connection):
            return connection.execute(translate(query), parameters).fetchall()

    def execute(self, statement: str, parameters: Parameters = ()) -> int:
        """Execute one statement and return the number of rows."""
        with self.storage_errors(), self._connection() as connection, self.watch(connection):
            return connection.execute(translate(statement), parameters).rowcount

    def connect(self) -> "Connection[Any]":
        """Open a connection outside of the pool. The caller closes it."""
        connection = self._connect()
        try:
            self._prepare(connection)
        except BaseException:
            connection.close()
            raise
        return connection

    def upgrade(self) -> tuple[int, int]:
        """Create or change the tables. Return the old and the new version of the schema."""
        with self.storage_errors(), self._connect() as connection:
            return migrate(connection, self.place)

    def now(self) -> float:
        """Return the time of the database, so that a wrong clock of a replica expires nothing.

        Never blocks.
        """
        if self._clock is None:
            return time.time()
        read, at = self._clock
        return read + time.monotonic() - at

    def set_clock(self, seconds: float) -> None:
        """Set the time of the database, which was read now."""
        self._clock = seconds, time.monotonic()

    def abort_stuck(self) -> int:
        """Close the connections whose server has not answered for this time; their callers get an
        error.
        """
        limit = time.monotonic() - STUCK_SECONDS
        found = list(self._busy.values())
        stuck = [connection for connection, started in found if started < limit]
        for connection in stuck:
            with suppress(OSError):
                _shut_down(connection)
        return len(stuck)

    def close(self) -> None:
        self.listener.close()
        with self._opening:
            pool = self._pool
            self._pool = None
        if pool is not None:
            pool.close(timeout=2)

    @contextmanager
    def storage_errors(self) -> Iterator[None]:
        """Raise errors of the database as StorageError, without the password."""
        psycopg = _import()
        from psycopg_pool import PoolClosed, PoolTimeout

        try:
            yield
        except (psycopg.OperationalError, psycopg.InterfaceError, PoolTimeout, PoolClosed) as error:
            raise self.unavailable(error) from None
        except psycopg.Error as error:
            hint = "check the role of the URL: see the guide 'Run replicas on PostgreSQL'"
            text = self._describe(error)
            raise StorageError(
                f"{self.place} rejected a statement: {text}", hint=hint, code=STORAGE
            ) from error

    def away(self) -> StoreUnavailable:
        """Return the error for a database that does not answer."""
        return StoreUnavailable(
            self.problem or f"the database {self.place} does not answer", **self.retry_fields()
        )

    def unavailable(self, error: Exception) -> StoreUnavailable:
        text = self._describe(error)
        return StoreUnavailable(
            f"the database {self.place} does not answer: {text}", **self.retry_fields()
        )

    def retry_fields(self) -> JsonObject:
        hint = "repeat the call later; `onetool store status` shows the state of the database"
        return {
            "hint": hint,
            "code": StoreUnavailable.CODE,
            "retry_after_seconds": RETRY_SECONDS,
            "is_retryable": True,
        }

    def _describe(self, error: Exception) -> str:
        """Return the first line of an error. libpq quotes parts of a URL that it cannot parse."""
        text = str(error).strip().partition("\n")[0] or type(error).__name__
        for secret in sorted(find_passwords(self.url), key=len, reverse=True):
            text = text.replace(secret, "***")
        return text

    # --- connections ------------------------------------------------------------------------------

    @contextmanager
    def _connection(self) -> "Iterator[Connection[Any]]":
        if self.is_away:
            raise self.away()
        with self._get_pool().connection(timeout=WAIT_SECONDS) as connection:
            try:
                yield connection
            finally:
                self._used[connection] = time.monotonic()

    @contextmanager
    def watch(self, connection: "Connection[Any]") -> Iterator[None]:
        """Let `abort_stuck` end the connection while it waits for the server."""
        self._busy[id(connection)] = connection, time.monotonic()
        try:
            yield
        finally:
            self._busy.pop(id(connection), None)

    def _get_pool(self) -> "ConnectionPool[Connection[Any]]":
        with self._opening:
            if self._pool is None:
                self._pool = self._open_pool()
            return self._pool

    def _open_pool(self) -> "ConnectionPool[Connection[Any]]":
        _import()
        from psycopg_pool import ConnectionPool

        self.prepare_schema()  # raises an error that says what is wrong, instead of a timeout
        return ConnectionPool(
            self.url,
            min_size=1,
            max_size=MAX_CONNECTIONS,
            kwargs={"autocommit": True, **OPTIONS},
            configure=self._prepare,
            check=self._check,
            timeout=WAIT_SECONDS,
            reconnect_timeout=1.0,
            num_workers=1,
            open=True,
        )

    def _connect(self) -> "Connection[Any]":
        psycopg = _import()
        connection: Connection[Any] = psycopg.connect(self.url, autocommit=True, **OPTIONS)
        return connection

    def prepare_schema(self) -> None:
        """Create or change the tables if the role may do that. Done once."""
        if self._is_checked:
            return
        psycopg = _import()
        with self.storage_errors(), self._connect() as connection:
            try:
                check_version(connection, self.place)
            except ToolError as outdated:
                if outdated.fields.get("code") != OUTDATED:
                    raise
                try:
                    migrate(connection, self.place)
                except psycopg.errors.InsufficientPrivilege:
                    raise outdated from None
        self._is_checked = True

    def _prepare(self, connection: "Connection[Any]") -> None:
        connection.execute(SESSION)
        check_version(connection, self.place)
        row = connection.execute("SELECT extract(epoch FROM clock_timestamp())").fetchone()
        if row is not None:
            self.set_clock(float(row[0]))

    def _check(self, connection: "Connection[Any]") -> None:
        """Test a connection that was idle: the server may have been restarted."""
        if time.monotonic() - self._used.get(connection, 0.0) > IDLE_SECONDS:
            with self.watch(connection):
                connection.execute("SELECT 1")

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


@lru_cache(maxsize=512)
def translate(statement: str) -> bytes:
    """Return the statement with the placeholders of psycopg."""
    text = re.sub(r"(?<![:\w]):([a-z_]\w*)", r"%(\1)s", statement.replace("%", "%%"))
    return text.replace("?", "%s").encode()


def _import() -> Any:
    try:
        import psycopg
    except ImportError:
        raise ToolError(
            "store is a PostgreSQL URL, and the extra `postgres` is not installed",
            hint=f"run `{INSTALL}`",
        ) from None
    return psycopg


def _shut_down(connection: "Connection[Any]") -> None:
    """End the connection of another thread, which is waiting for the server."""
    with socket.socket(fileno=os.dup(connection.pgconn.socket)) as copy:
        copy.shutdown(socket.SHUT_RDWR)
