"""Jobs of queues, on the side of replicas: add the job of a call, follow it, and read its result.

procrastinate has the jobs, their states and the heartbeats of workers. The table `jobs` has what it should not know:
the sealed input and result, and when to delete them. All processes compare times with the clock of the database.
"""

import json
import threading
import time
from collections import defaultdict
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import contextmanager, suppress
from functools import cached_property

from onetool.errors import Interrupted, ToolError
from onetool.state.job_sealing import JobSealer
from onetool.state.postgres_database import Database
from onetool.state.storage import LOST_SECONDS, MAX_ATTEMPTS, JobRequest, JobStatus, QueueStatus
from onetool.util.problem import Problem
from onetool_child.data import encode

DELETE_SECONDS = 10.0
CLOCK_SECONDS = 300.0  # by which clocks of replicas and workers may differ
LARGE_BYTES = 64 << 10
STATES = {"todo": "waiting", "doing": "started", "cancelled": "cancelled", "aborted": "cancelled"}
# One statement, so one round trip. Its commit need not be durable: that of the worker, which takes the job, is.
ADD = """
INSERT INTO jobs (id, number, expires, sealed)
SELECT :id, unnest(procrastinate_defer_jobs_v1(ARRAY[ROW(
    :queue::text, 'onetool.run_job', 0, NULL, NULL, jsonb_build_object('job', :id::text), NULL
)::procrastinate_job_to_defer_v1])), clock_timestamp() + make_interval(secs => :seconds), :sealed
FROM set_config('synchronous_commit', 'off', true)
"""
STALLED = """
job.status = 'doing' AND coalesce(last_heartbeat < clock_timestamp() - make_interval(secs => ?), true)
"""
JOB = """
FROM jobs JOIN procrastinate_jobs AS job ON job.id = number
LEFT JOIN procrastinate_workers AS worker ON worker.id = worker_id WHERE jobs.id = ?
"""
READ = f"""
SELECT status::text, abort_requested, progress, result,
    octet_length(sealed) + coalesce(octet_length(result), 0) > ?, {STALLED} {JOB}
"""
RECOVER = f"""
WITH stalled AS (SELECT job.id, attempts {JOB} AND {STALLED} FOR UPDATE OF job)
SELECT CASE WHEN ? AND attempts < ?
    THEN procrastinate_retry_job_v2(id, now(), NULL, NULL, NULL)
    ELSE procrastinate_finish_job_v1(id, 'failed', false) END FROM stalled
"""  # noqa: S608 - constants
CANCEL = """
UPDATE jobs SET expires = least(expires, clock_timestamp()) WHERE id = ?
RETURNING procrastinate_cancel_job_v1(number, true, false)
"""
DELETE = "DELETE FROM procrastinate_jobs USING jobs WHERE procrastinate_jobs.id = number AND jobs.id = ?"
# A worker rejects rows that are not jobs of a replica.
DELETE_OLD = """
DELETE FROM procrastinate_jobs AS job
WHERE EXISTS (SELECT FROM jobs WHERE number = job.id AND expires < clock_timestamp() - make_interval(secs => ?))
OR (status NOT IN ('todo', 'doing') AND NOT EXISTS (SELECT FROM jobs WHERE number = job.id))
"""
DELETE_WORKERS = "DELETE FROM procrastinate_workers WHERE last_heartbeat < clock_timestamp() - interval '1 day'"
OPEN = """
SELECT queue_name, count(*) FILTER (WHERE status = 'todo'), count(*) FILTER (WHERE status = 'doing')
FROM procrastinate_jobs JOIN jobs ON number = procrastinate_jobs.id
WHERE (status = 'todo' AND expires > clock_timestamp()) OR (status = 'doing' AND NOT abort_requested)
GROUP BY queue_name
"""
WORKERS = """
SELECT queue, description FROM queue_workers JOIN procrastinate_workers ON id = worker
WHERE last_heartbeat > clock_timestamp() - make_interval(secs => ?) ORDER BY queue, description
"""


class JobRows:
    """The jobs that this replica added or continues."""

    def __init__(self, database: Database, keep_seconds: float) -> None:
        self._database = database
        self._keep_seconds = keep_seconds
        self._listeners: set[tuple[str, Callable[[], object]]] = set()
        self._deleting: threading.Thread | None = None
        self._closing = threading.Event()
        database.listener.on_job = self._report

    @cached_property
    def _sealer(self) -> JobSealer:
        return JobSealer(self._database.key)

    def add(self, request: JobRequest, /) -> None:
        if self._deleting is None:
            self._deleting = threading.Thread(target=self._delete_regularly, name="onetool-jobs", daemon=True)
            self._deleting.start()
        call = {
            "queue": request.queue,
            "pack": request.pack,
            "function": request.function,
            "arguments": dict(request.arguments),
        }
        body = encode(call).encode()
        if request.may_exist and self._exists(request, body):
            return
        # A worker compares this time with its own clock: all others are in the database, which somebody could change.
        expires = time.time() + request.wait_seconds + request.seconds + CLOCK_SECONDS
        options = {"seconds": request.seconds, "is_idempotent": request.is_idempotent, "expires": expires}
        sealed = self._sealer.seal(f"input of job {request.id}", {**request.options, **options}, body)
        values = {"id": request.id, "queue": request.queue, "seconds": request.wait_seconds, "sealed": sealed}
        self._database.execute(ADD, values)

    def _exists(self, request: JobRequest, body: bytes) -> bool:
        """Return whether the call has a job. Raise ToolError if that is a job for another call."""
        rows = self._database.select("SELECT sealed FROM jobs WHERE id = ?", request.id)
        if not rows and request.must_exist:
            reason = "its job was deleted, or never reached its queue"
            raise Interrupted(f"{request.tool} was interrupted: {reason}", code="worker_lost")
        if rows and self._sealer.open(f"input of job {request.id}", rows[0][0])[1] != body:
            raise ToolError(f"job {request.id} is a call with other arguments")
        return bool(rows)

    def read(self, job: str, after: int, /) -> JobStatus:
        rows = self._database.select(READ, LARGE_BYTES, LOST_SECONDS, job)
        if not rows:
            return JobStatus("lost")
        status, is_cancelled, progress, result, is_large, is_stalled = rows[0]
        events = []
        if progress is not None:
            _, body = self._sealer.open(f"progress of job {job}", progress)
            events = [event for event in json.loads(body) if event["number"] > after]
        if result is not None:
            value, error = self._sealer.open_result(job, result)
            return JobStatus("done", events, value, error, is_large)
        state = "cancelled" if is_cancelled else STATES.get(status, "lost")
        return JobStatus(state, events, is_large=is_large, is_stalled=is_stalled)

    def recover(self, job: str, is_repeatable: bool, /) -> None:
        self._database.execute(RECOVER, (job, LOST_SECONDS, is_repeatable, MAX_ATTEMPTS - 1))

    def cancel(self, job: str, /) -> None:
        self._database.execute(CANCEL, (job,))

    def delete(self, job: str, /) -> None:
        self._database.execute(DELETE, (job,))

    def _delete_regularly(self) -> None:
        while not self._closing.wait(DELETE_SECONDS):
            with suppress(ToolError), self._database.transaction(is_durable=False) as transaction:
                if transaction.try_lock("old jobs"):
                    transaction.execute(DELETE_OLD, (self._keep_seconds,))
                    transaction.execute(DELETE_WORKERS)

    def close(self) -> None:
        self._closing.set()
        if self._deleting is not None:
            self._deleting.join(timeout=5.0)

    @contextmanager
    def watch(self, job: str, listener: Callable[[], object], /) -> Iterator[None]:
        entry = (job, listener)
        self._listeners.add(entry)
        try:
            yield
        finally:
            self._listeners.remove(entry)

    def _report(self, job: str) -> None:
        for watched, listener in list(self._listeners):
            if watched == job:
                with suppress(RuntimeError):  # its event loop was closed
                    listener()

    def find_problems(self, queues: Mapping[str, str], /) -> Iterator[Problem]:
        if not queues:
            return
        try:
            statuses = self.list_queues(set(queues.values()))
        except ToolError:  # the check of the store reports it
            return
        for queue in statuses:
            packs = ", ".join(pack for pack, name in queues.items() if name == queue.name)
            if packs and not queue.workers:
                message = f"no worker serves the queue {queue.name}, so calls of {packs} fail"
                yield Problem(message, f"onetool worker --queue {queue.name}", code="no_worker")

    def list_queues(self, names: Collection[str] = (), /) -> list[QueueStatus]:
        return list_queues(self._database, names)


def list_queues(database: Database, names: Collection[str] = ()) -> list[QueueStatus]:
    counts = {queue: (int(waiting), int(running)) for queue, waiting, running in database.select(OPEN)}
    workers: defaultdict[str, list[str]] = defaultdict(list)
    for queue, description in database.select(WORKERS, LOST_SECONDS):
        workers[queue].append(description)
    queues = sorted({*names, *counts, *workers})
    return [QueueStatus(name, *counts.get(name, (0, 0)), workers[name]) for name in queues]
