"""Jobs of queues, on the side of replicas: defer a call, follow its job, and read its result.

procrastinate assigns jobs to workers. The tables beside its own have what it does not know: sealed arguments and
results, and the state that decides whether a job may be executed. A worker claims a job by changing that state.
"""

import json
import threading
import time
from collections import defaultdict
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import contextmanager, suppress
from functools import cached_property
from typing import Any, Final

from onetool.errors import Interrupted, ToolError
from onetool.postgres import procrastinate_jobs
from onetool.postgres.job_recovery import LOST_SECONDS, JobRecovery
from onetool.postgres.job_sealing import JobSealer, digest_body
from onetool.state.changes import JOB, Changes
from onetool.state.postgres_database import Database, Statements
from onetool.state.storage import JobRequest, JobStatus, QueueStatus
from onetool.util.problem import Problem
from onetool.util.raw_json import RawJson
from onetool_child.data import encode
from onetool_child.errors import restore
from onetool_child.messages import UTF8, split_text

ARGUMENTS: Final = "arguments"
CLOCK_SECONDS: Final = 300.0  # by which clocks of replicas and workers may differ
INSERT: Final = """
INSERT INTO jobs (id, queue, number, is_idempotent, expires, sealed)
VALUES (?, ?, ?, ?, clock_timestamp() + make_interval(secs => ?), ?)
"""
INSERT_CHUNK: Final = "INSERT INTO job_chunks (job, part, number, sealed) VALUES (?, ?, ?, ?)"
READ: Final = """
SELECT state, attempt, progress, result, coalesce(description, '') FROM jobs
LEFT JOIN queue_workers ON queue_workers.id = jobs.worker AND queue_workers.queue = jobs.queue WHERE jobs.id = ?
"""
CHUNKS: Final = "SELECT sealed FROM job_chunks WHERE job = ? AND part = ? ORDER BY number"
CANCEL: Final = """
UPDATE jobs SET state = 'cancelled', ended = clock_timestamp()
WHERE id = ? AND state IN ('waiting', 'started') RETURNING number
"""
OPEN: Final = """
SELECT queue, count(*) FILTER (WHERE state = 'waiting'), count(*) FILTER (WHERE state = 'started')
FROM jobs WHERE ended IS NULL AND (state <> 'waiting' OR expires > clock_timestamp()) GROUP BY queue
"""
WORKERS: Final = """
SELECT queue, description FROM queue_workers WHERE seen > clock_timestamp() - make_interval(secs => ?)
ORDER BY queue, description
"""


class JobRows:
    """The jobs that this replica deferred or continues."""

    def __init__(self, database: Database, changes: Changes, keep_seconds: float) -> None:
        self._database, self._changes = database, changes
        self._listeners: defaultdict[str, list[Callable[[], object]]] = defaultdict(list)
        self._lock = threading.Lock()
        self.recovery = JobRecovery(database, keep_seconds)
        changes.on_job = self._report

    @cached_property
    def _sealer(self) -> JobSealer:
        return JobSealer(self._database.key)

    def defer(self, request: JobRequest, /) -> bool:
        """Add the job to its queue, unless it may exist and does. Return whether its arguments are in chunks."""
        body = [encode(dict(request.arguments)).encode()]
        sealer = self._sealer
        self.recovery.start()
        # The claim of a worker, which is durable, follows in the log of the database.
        with self._database.transaction(is_durable=False) as transaction:
            if request.may_exist and self._is_known(transaction, request, digest_body(body)):
                return False
            number = procrastinate_jobs.defer(transaction, request.queue, request.id)
            sealed = sealer.seal(name_job(request.id), _list_facts(request, number), body)
            row = (request.id, request.queue, number, request.is_idempotent, request.wait_seconds, sealed.header)
            transaction.execute(INSERT, row)
            chunks = enumerate(sealed.chunks)
            transaction.executemany(INSERT_CHUNK, ((request.id, ARGUMENTS, part, chunk) for part, chunk in chunks))
        return bool(sealed.chunks)

    def _is_known(self, transaction: Statements, request: JobRequest, digest: str) -> bool:
        transaction.lock(f"job {request.id}")
        found = transaction.execute("SELECT sealed FROM jobs WHERE id = ?", (request.id,)).fetchone()
        if found is None and request.must_exist:
            message = (
                f"{request.pack}.{request.function} was interrupted: its job was deleted, or never reached its queue"
            )
            raise Interrupted(message, code="worker_lost")
        if found is None:
            return False
        known = self._sealer.open(name_job(request.id), found[0])
        same = ("queue", request.queue), ("pack", request.pack), ("function", request.function)
        if known.digest != digest or any(known.facts[name] != value for name, value in same):
            raise ToolError(f"job {request.id} is a call with other arguments")
        return True

    def read(self, job: str, after: int, /) -> JobStatus:
        found = self._database.select(READ, job)
        if not found:
            return JobStatus("lost")
        state, attempt, progress, result, worker = found[0]
        events = self._read_events(job, progress, after)
        if state != "done":
            return JobStatus(state, worker, events)
        return self._read_result(job, attempt, result)._replace(worker=worker, events=events)

    def _read_events(self, job: str, progress: bytes | None, after: int) -> list[Mapping[str, Any]]:
        if progress is None:
            return []
        events = json.loads(self._sealer.open(name_progress(job), progress).body)
        return [event for event in events if event["number"] > after]

    def _read_result(self, job: str, attempt: int, sealed: bytes) -> JobStatus:
        name, part = name_result(job, attempt), f"result {attempt}"
        header = self._sealer.open(name, sealed)
        stored = [chunk for (chunk,) in self._database.select(CHUNKS, job, part)] if header.chunk_count else []
        status = JobStatus("done", is_large=bool(header.chunk_count))
        body = b"".join(self._sealer.open_body(name, header, stored))
        match header.facts["kind"]:
            case "error":
                return status._replace(error=restore(json.loads(body)))
            case "raw":
                value = RawJson(tuple(split_text(body.decode(*UTF8))), or_text=bool(header.facts["or_text"]))
                return status._replace(value=value)
            case _:
                return status._replace(value=json.loads(body))

    def cancel(self, job: str, /) -> None:
        with self._database.transaction() as transaction:
            found = transaction.execute(CANCEL, (job,)).fetchone()
            if found is not None:
                procrastinate_jobs.abort(transaction, found[0])

    def forget(self, job: str, /) -> None:
        self._database.execute("DELETE FROM job_chunks WHERE job = ?", (job,))

    @contextmanager
    def watch(self, job: str, listener: Callable[[], object], /) -> Iterator[None]:
        with self._lock:
            self._listeners[job].append(listener)
        try:
            yield
        finally:
            with self._lock:
                self._listeners[job].remove(listener)
                if not self._listeners[job]:
                    del self._listeners[job]

    def _report(self, job: str) -> None:
        with self._lock:
            listeners = list(self._listeners.get(job, ()))
        for listener in listeners:
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

    def close(self) -> None:
        self.recovery.close()


def list_queues(database: Database, names: Collection[str] = ()) -> list[QueueStatus]:
    counts = {queue: (int(waiting), int(running)) for queue, waiting, running in database.select(OPEN)}
    workers: defaultdict[str, list[str]] = defaultdict(list)
    for queue, description in database.select(WORKERS, LOST_SECONDS):
        workers[queue].append(description)
    known = sorted({*names, *counts, *workers})
    return [QueueStatus(name, *counts.get(name, (0, 0)), workers[name]) for name in known]


def name_job(job: str) -> str:
    return f"job {job}"


def name_progress(job: str) -> str:
    return f"progress of job {job}"


def name_result(job: str, attempt: int) -> str:
    return f"result {attempt} of job {job}"


def notify(transaction: Statements, job: str) -> None:
    """Tell the replica that waits for the job to read it."""
    transaction.notify(JOB + job)


def _list_facts(request: JobRequest, number: int) -> dict[str, Any]:
    """Return what a worker checks and needs. A job is bound to the number that procrastinate gave it."""
    return {
        "number": number,
        "queue": request.queue,
        "pack": request.pack,
        "function": request.function,
        "context": request.context,
        "agent": request.context["agent_id"],
        "token_id": request.token_id,
        "run": request.context["correlation_id"],
        "scope": request.scope,
        "seconds": request.seconds,
        "is_idempotent": request.is_idempotent,
        "expires": time.time() + request.wait_seconds + request.seconds + CLOCK_SECONDS,
    }
