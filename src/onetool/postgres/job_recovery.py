"""Jobs whose worker has ended, and jobs that ended long ago. Replicas and workers look for them in a thread."""

import threading
import time
from typing import Final

from onetool.errors import ToolError
from onetool.postgres import procrastinate_jobs
from onetool.state.changes import JOB
from onetool.state.postgres_database import Database, Statements

HEARTBEAT_SECONDS: Final = 2.0
LOST_SECONDS: Final = 10.0  # without a heartbeat, after which a worker counts as ended
CHECK_SECONDS: Final = 2.0
DELETE_SECONDS: Final = 10.0
MAX_ATTEMPTS: Final = 3
# A job of a worker that has ended. `clock_timestamp()` is the clock of the database, which all processes share.
LOST: Final = """
SELECT id, number, is_idempotent AND attempt < ? FROM jobs WHERE state = 'started' AND NOT EXISTS (
    SELECT 1 FROM queue_workers WHERE queue_workers.id = jobs.worker
    AND seen > clock_timestamp() - make_interval(secs => ?)
) FOR UPDATE SKIP LOCKED
"""
# A job that a worker has taken, but never claimed: its connection was lost in between.
UNCLAIMED: Final = """
SELECT jobs.number FROM jobs JOIN procrastinate_jobs AS taken ON taken.id = jobs.number
WHERE jobs.state = 'waiting' AND taken.status = 'doing' AND (
    SELECT max(at) FROM procrastinate_events WHERE job_id = taken.id AND type = 'started'
) < clock_timestamp() - make_interval(secs => ?) FOR UPDATE OF jobs SKIP LOCKED
"""
RETURN: Final = "UPDATE jobs SET state = 'waiting', worker = NULL WHERE id = ?"
GIVE_UP: Final = "UPDATE jobs SET state = 'lost', ended = clock_timestamp() WHERE id = ?"
# Jobs that nobody took in time stay `waiting`, and no worker may claim them.
EXPIRED: Final = """
DELETE FROM jobs WHERE coalesce(ended, expires) < clock_timestamp() - make_interval(secs => ?) RETURNING number
"""
DELETE: Final = "DELETE FROM procrastinate_jobs WHERE id = ANY(?)"
# Rows that are not jobs of a replica, after workers have rejected them.
DELETE_FOREIGN: Final = """
DELETE FROM procrastinate_jobs AS taken WHERE status NOT IN ('todo', 'doing') AND NOT EXISTS (
    SELECT 1 FROM jobs WHERE jobs.number = taken.id
) AND (SELECT max(at) FROM procrastinate_events WHERE job_id = taken.id) < clock_timestamp() - make_interval(secs => ?)
"""
DELETE_WORKERS: Final = "DELETE FROM queue_workers WHERE seen < clock_timestamp() - interval '1 day'"


class JobRecovery:
    """Returns or gives up jobs of workers that have ended. With `keep_seconds`, it also deletes old jobs."""

    def __init__(self, database: Database, keep_seconds: float | None = None) -> None:
        self._database, self._keep_seconds = database, keep_seconds
        self._closing, self._lock = threading.Event(), threading.Lock()
        self._thread: threading.Thread | None = None
        self._connected_at = self._checked_at = self._deleted_at = float("-inf")

    def start(self) -> None:
        """Look for jobs regularly, in a thread."""
        with self._lock:
            if self._thread is None:
                self._thread = threading.Thread(target=self._check_regularly, name="onetool-jobs", daemon=True)
                self._thread.start()

    def close(self) -> None:
        self._closing.set()
        if self._thread is not None:
            self._thread.join(timeout=5.0)

    def _check_regularly(self) -> None:
        while not self._closing.wait(CHECK_SECONDS):
            try:
                self.check()
            except ToolError:  # the database is away: nothing is known about its workers
                self._checked_at = float("-inf")

    def check(self) -> None:
        """Look for jobs once.

        After the database was away, workers first get time to send heartbeats: until then, none of them has ended.
        """
        now = time.monotonic()
        if now - self._checked_at > 2 * CHECK_SECONDS + 1:
            self._connected_at = now
        self._checked_at = now
        with self._database.transaction(is_durable=False) as transaction:
            if not transaction.try_lock("job recovery"):
                return
            if now - self._connected_at > LOST_SECONDS:
                _recover(transaction)
            if self._keep_seconds is not None and now - self._deleted_at > DELETE_SECONDS:
                self._deleted_at = now
                _delete_old(transaction, self._keep_seconds)


def _recover(transaction: Statements) -> None:
    lost = transaction.execute(LOST, (MAX_ATTEMPTS, LOST_SECONDS)).fetchall()
    for job, number, is_repeatable in lost:
        transaction.execute(RETURN if is_repeatable else GIVE_UP, (job,))
        transaction.notify(JOB + job)
        if is_repeatable:
            procrastinate_jobs.retry(transaction, number)
        else:
            procrastinate_jobs.fail(transaction, number)
    for (number,) in transaction.execute(UNCLAIMED, (LOST_SECONDS,)).fetchall():
        procrastinate_jobs.retry(transaction, number)


def _delete_old(transaction: Statements, keep_seconds: float) -> None:
    numbers = [number for (number,) in transaction.execute(EXPIRED, (keep_seconds,)).fetchall()]
    if numbers:
        transaction.execute(DELETE, (numbers,))
    transaction.execute(DELETE_FOREIGN, (keep_seconds,))
    transaction.execute(DELETE_WORKERS)
