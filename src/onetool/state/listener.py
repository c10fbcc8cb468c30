"""Reports what other replicas change in a database, whether it answers, and which replicas are alive.

One connection listens for notifications and polls the generations every 1.5 seconds, because a
notification may be lost with a connection. The same thread renews the lease of this process.
"""

import os
import socket
import threading
import time
from collections import deque
from collections.abc import Mapping
from contextlib import suppress
from typing import TYPE_CHECKING, Any, ClassVar

from onetool.errors import ToolError
from onetool.state.changes import Changes
from onetool.state.documents import VALUES, StoreUnavailable
from onetool.state.keys import load_key
from onetool.state.owners import Owners
from onetool.state.postgres_database import Database, translate
from onetool.state.schema import VERSION, compare_version
from onetool.state.sqlite_database import Callback

if TYPE_CHECKING:
    from psycopg import Connection


POLL_SECONDS = 1.5  # a change is effective everywhere within 2 s
RENEW_SECONDS = 5.0
RECONNECT_SECONDS = 0.5
STALE_SECONDS = 5.0  # without an answer, after which the database counts as away
CLOSE_SECONDS = 5.0
# One statement, because each replica executes it all the time.
POLL = """
SELECT version, compatible, extract(epoch FROM clock_timestamp()),
(SELECT json_object_agg(kind, number) FROM onetool.generations)
FROM onetool.schema_versions ORDER BY version DESC LIMIT 1
"""
JOB = "job "  # begins a notification about the job whose ID follows
Generations = Mapping[str, int]  # by kind
RUNS = "runs"  # a kind without a generation; its notification ends with the ID of the replica


class Listener:
    """Listens to a database from `start` until `close`, and reports changes to `changes`.

    A change by this process is reported when its transaction is committed, and never again.
    """

    def __init__(self, database: "Database", leases: "Leases", changes: Changes) -> None:
        self._database = database
        self._leases = leases
        self.changes = changes
        self._loaders: dict[str, list[Callback]] = {}
        self._generations: dict[str, int] = {}
        self._own: set[tuple[str, int]] = set()  # generations that this process makes or has made
        self._failed: deque[str] = deque()  # own changes whose values could not be loaded
        self._closing = threading.Event()
        self._first = threading.Event()
        self._threads: list[threading.Thread] = []
        self._answered_at = float("-inf")
        self._renewed_at = float("-inf")
        self.problem: str | None = None

    # --- for all threads --------------------------------------------------------------------------

    @property
    def is_listening(self) -> bool:
        return bool(self._threads)

    @property
    def silent_seconds(self) -> float:
        """The time since the database last answered."""
        return time.monotonic() - self._answered_at

    @property
    def is_current(self) -> bool:
        """Whether the database answers, so that what is cached is not older than a few seconds."""
        if not self.is_listening:
            return True
        return self.problem is None and self.silent_seconds < STALE_SECONDS

    def number(self, kind: str) -> int:
        """Return a number that changes when this kind of state may have changed. Returns at once."""
        return self.changes.number(kind) if self.is_listening else time.monotonic_ns()

    def subscribe(self, kind: str, load: Callback) -> None:
        """Call `load` in the reporting thread, before each report and after a lost connection."""
        self._loaders.setdefault(kind, []).append(load)

    def expect(self, announced: Generations) -> None:
        """Do not report these generations, which this process is about to commit."""
        self._own.update(announced.items())

    def withdraw(self, announced: Generations) -> None:
        """Report these generations after all: others may make them, after a rollback here."""
        self._own.difference_update(announced.items())

    def report_own(self, announced: Generations) -> None:
        """Report what this process has committed.

        Values that cannot be loaded now are loaded by the next poll.
        """
        if not self.is_listening:
            return
        for kind in announced:
            try:
                self._report(kind)
            except StoreUnavailable:
                self._failed.append(kind)

    def start(self) -> None:
        """Listen in threads. Returns at once."""
        if self._threads:
            return
        self._answered_at = time.monotonic()
        follow = threading.Thread(target=self._follow, name="onetool-changes", daemon=True)
        watch = threading.Thread(target=self._watch, name="onetool-database", daemon=True)
        self._threads = [follow, watch]
        for thread in self._threads:
            thread.start()

    def wait(self, seconds: float) -> bool:
        """Wait until the first values are known. Return whether they are."""
        return self._first.wait(seconds)

    def close(self) -> None:
        self._closing.set()
        for thread in self._threads:
            thread.join(timeout=CLOSE_SECONDS)
        self._threads = []

    # --- in the threads ---------------------------------------------------------------------------

    def _watch(self) -> None:
        """Close connections to a server that does not answer, so that nobody waits for it."""
        while not self._closing.wait(0.5):
            self._database.is_away = not self.is_current
            if self._database.is_away:  # otherwise a statement may just take long
                self._database.abort_stuck()

    def _follow(self) -> None:
        connection: Connection[Any] | None = None
        while not self._closing.is_set():
            try:
                if connection is None:
                    connection = self._connect()
                self._poll(connection)
                self._wait(connection)
            except Exception as failure:  # noqa: BLE001 - the thread goes on, whatever failed
                error = failure
                if not isinstance(error, ToolError):
                    error = self._database.unavailable(failure)
                self.problem = error.message
                self._database.is_away = True
                if connection is not None:
                    with suppress(Exception):
                        connection.close()
                connection = None
                self._closing.wait(RECONNECT_SECONDS)
        if connection is not None:
            connection.close()

    def _connect(self) -> "Connection[Any]":
        self._database.prepare_schema()
        connection = self._database.connect()
        with self._database.watch(connection):
            connection.execute("LISTEN onetool")
        self._generations = {}  # a notification may have been lost: everything counts as changed
        return connection

    def _poll(self, connection: "Connection[Any]") -> None:
        with self._database.watch(connection):
            # A newer OneTool may have changed the tables.
            row = connection.execute(POLL).fetchone()
            version, compatible, now, generations = row or (0, 0, time.time(), {})
            compare_version(version, compatible, self._database.place)
            self._database.set_clock(float(now))
            if time.monotonic() - self._renewed_at >= RENEW_SECONDS:
                self._leases.renew(connection)
                self._renewed_at = time.monotonic()
        self._answered_at = time.monotonic()
        self._database.is_away = False
        if not self._generations:
            load_key(self._database, VALUES)  # a replica without the right key is not ready
        self.problem = None
        self._apply(generations or {})
        self._first.set()

    def _apply(self, generations: Generations) -> None:
        changed = {RUNS}  # every poll may find runs whose replica has ended
        if not self._generations:
            changed.update(generations, self._loaders)
        else:
            for kind, number in generations.items():
                if self._is_changed(kind, number):
                    changed.add(kind)
        while self._failed:
            changed.add(self._failed.popleft())
        self._generations = {"": 0, **generations}
        for kind in changed:
            self._report(kind)

    def _is_changed(self, kind: str, number: int) -> bool:
        """Return whether another process has made one of the generations since the last poll."""
        before = self._generations.get(kind, 0)
        new = {(kind, generation) for generation in range(before + 1, number + 1)}
        is_changed = number < before or not new <= self._own
        self._own.difference_update(new)
        return is_changed

    def _report(self, kind: str) -> None:
        for load in self._loaders.get(kind, ()):
            load()
        self.changes.report(kind)

    def _wait(self, connection: "Connection[Any]") -> None:
        """Wait for notifications until the next poll."""
        end = time.monotonic() + POLL_SECONDS
        while (left := end - time.monotonic()) > 0 and not self._closing.is_set():
            for notification in connection.notifies(timeout=min(left, 0.5), stop_after=1):
                kind, _, sender = notification.payload.partition(" from ")
                if sender == self._leases.own_id:
                    continue
                if kind == RUNS:
                    self._report(RUNS)
                elif kind.startswith(JOB):
                    self.changes.wake(kind)
                else:
                    return  # the poll reads what has changed


class Leases(Owners):
    """Replicas that are alive: each renews its row every few seconds.

    The clock is that of the database.
    """

    SECONDS: ClassVar[float] = 15.0
    may_be_lost = True

    def __init__(self, database: Database, own_id: str) -> None:
        self._database = database
        self.own_id = own_id
        self._is_held = False

    def hold(self) -> None:
        if not self._is_held:
            self.renew()

    def renew(self, connection: "Connection[Any] | None" = None) -> None:
        """Prove that this process is alive."""
        statement = """
        INSERT INTO servers VALUES (?, clock_timestamp(), ?, ?)
        ON CONFLICT (id) DO UPDATE SET seen = excluded.seen
        """
        row = (self.own_id, f"{socket.gethostname()}, process {os.getpid()}", VERSION)
        if connection is None:
            self._database.execute(statement, row)
        else:
            connection.execute(translate(statement), row)
        self._is_held = True

    def is_alive(self, owner: str) -> bool:
        is_recent = "seen > clock_timestamp() - make_interval(secs => ?)"
        query = f"SELECT {is_recent} FROM servers WHERE id = ?"  # noqa: S608 - constants
        rows = self._database.select(query, self.SECONDS, owner)
        return bool(rows and rows[0][0])

    def delete_stale(self) -> None:
        statement = "DELETE FROM servers WHERE seen < clock_timestamp() - interval '1 day'"
        self._database.execute(statement)

    def close(self) -> None:
        """Give up the runs of this process. If the database is away, its lease expires."""
        if self._is_held:
            self._is_held = False
            with suppress(StoreUnavailable):
                self._database.execute("DELETE FROM servers WHERE id = ?", (self.own_id,))
