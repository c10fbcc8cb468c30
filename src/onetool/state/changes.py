"""Changes made by other replicas, and whether the database answers.

One connection listens for notifications and polls the generations every two seconds, because a notification may be
lost with a connection. The same thread renews the lease of this process.
"""

import threading
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import TYPE_CHECKING, Any, TypeVar

from onetool.errors import ToolError
from onetool.state.documents import VALUES, StoreUnavailable
from onetool.state.keys import load_key
from onetool.state.migrations import compare_version

if TYPE_CHECKING:
    from psycopg import Connection

    from onetool.state.leases import Leases
    from onetool.state.postgres_database import Database

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
T = TypeVar("T")


class Changes:
    """The changes of each kind of state, as a number that increases. `start` begins to follow them."""

    def __init__(self, database: "Database", leases: "Leases") -> None:
        self._database = database
        self._leases = leases
        self._listeners: dict[str, list[Callable[[], object]]] = {}
        self._generations: dict[str, int] = {}
        self._numbers: dict[str, int] = {}
        self._closing = threading.Event()
        self._first = threading.Event()
        self._threads: list[threading.Thread] = []
        self._answered_at = float("-inf")
        self._renewed_at = float("-inf")
        self.problem: str | None = None
        self.on_job: Callable[[str], object] = lambda _job: None

    # --- for all threads --------------------------------------------------------------------------------------------

    @property
    def is_following(self) -> bool:
        return bool(self._threads)

    @property
    def following(self) -> "Changes | None":
        return self if self.is_following else None

    @property
    def silent_seconds(self) -> float:
        """The time since the database last answered."""
        return time.monotonic() - self._answered_at

    @property
    def is_current(self) -> bool:
        """Whether the database answers, so that what is cached is not older than a few seconds."""
        return not self.is_following or (self.problem is None and self.silent_seconds < STALE_SECONDS)

    def away(self) -> StoreUnavailable:
        """Return the error for a database that does not answer."""
        message = self.problem or f"the database {self._database.place} does not answer"
        return StoreUnavailable(message, **self._database.retry_fields())

    def number(self, kind: str) -> int:
        """Return a number that changes when a replica may have changed this kind of state. Returns at once."""
        if not self.is_following:
            return time.monotonic_ns()
        return self._numbers.get(kind, 0)

    def subscribe(self, kind: str, listener: Callable[[], object]) -> None:
        """Call the listener in the thread of this object after each change, and after each lost connection."""
        self._listeners.setdefault(kind, []).append(listener)

    def start(self) -> None:
        """Follow the changes, in threads. Returns at once."""
        if self._threads:
            return
        self._answered_at = time.monotonic()
        self._threads = [
            threading.Thread(target=self._follow, name="onetool-changes", daemon=True),
            threading.Thread(target=self._watch, name="onetool-database", daemon=True),
        ]
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

    # --- in the threads ---------------------------------------------------------------------------------------------

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
            except Exception as error:  # noqa: BLE001 - the thread goes on, whatever failed
                self.problem = (error if isinstance(error, ToolError) else self._database.unavailable(error)).message
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
            version, compatible, now, generations = connection.execute(POLL).fetchone() or (0, 0, time.time(), {})
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

    def _apply(self, generations: Mapping[str, int]) -> None:
        is_first = not self._generations
        known = {*generations, *self._listeners} if is_first else set(generations)
        changed = {kind for kind in known if is_first or generations[kind] != self._generations.get(kind)}
        self._generations = {"": 0, **generations}
        for kind in changed | {"runs"}:  # every poll may find runs whose replica has ended
            self._report(kind)

    def _report(self, kind: str) -> None:
        self._numbers[kind] = self._numbers.get(kind, 0) + 1
        for listener in self._listeners.get(kind, ()):
            listener()

    def _wait(self, connection: "Connection[Any]") -> None:
        """Wait for notifications until the next poll."""
        end = time.monotonic() + POLL_SECONDS
        while (left := end - time.monotonic()) > 0 and not self._closing.is_set():
            for notification in connection.notifies(timeout=min(left, 0.5), stop_after=1):
                if notification.payload == "runs":
                    self._report("runs")
                elif notification.payload.startswith(JOB):
                    self.on_job(notification.payload.removeprefix(JOB))
                else:
                    return  # the poll reads what has changed
