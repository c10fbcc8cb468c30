"""Calls that queue workers make, for replicas: add a call's job, and follow it until it ends.

procrastinate has the jobs, their states and the heartbeats of workers; it recovers stalled jobs and
deletes old ones. The table `jobs` has what it should not know: input and result, sealed with a key
that is derived from `ONETOOL_KEY` and not in the database. All processes compare times with the
database clock.
"""

import asyncio
import json
import threading
import time
from collections import defaultdict
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import suppress
from functools import cached_property
from typing import Any, NamedTuple, NoReturn

import anyio
import anyio.to_thread

from onetool.errors import Cancelled, Interrupted, StorageError, ToolError, ToolTimeout, describe
from onetool.state.documents import StoreUnavailable
from onetool.state.keys import make_error, open_any, parse_keys
from onetool.state.listener import JOB
from onetool.state.postgres_database import Database
from onetool.state.sealing import KEY_BYTES, Sealer
from onetool.state.storage import JobRequest, Jobs, QueueStatus
from onetool.util.large_data import RawJson
from onetool.util.problem import Problem
from onetool_child.data import encode
from onetool_child.errors import restore
from onetool_child.json_types import JsonMapping, JsonObject
from onetool_child.messages import UTF8, split_text

LOST_SECONDS = 10.0  # without a heartbeat, after which a worker counts as ended
RECOVER_SECONDS = 2.0
DELETE_SECONDS = 60.0
POLL_SECONDS = 2.0  # a notification may be lost with a connection
RETRY_SECONDS = 0.5  # while the database does not answer
REPORT_SECONDS = 10.0  # for a worker to report that the call has timed out
CLOCK_SECONDS = 300.0  # by which clocks of replicas and workers may differ
LARGE_BYTES = 64 << 10
# One statement, so one round trip. Its commit need not be durable: that of the worker, which takes
# the job, is.
ADD = """
INSERT INTO jobs (id, number, expires, sealed)
SELECT :id, unnest(procrastinate_defer_jobs_v1(ARRAY[ROW(
    :queue::text, 'onetool.run_job', 0, NULL, NULL,
    jsonb_build_object('job', :id::text, 'is_repeatable', :is_repeatable::boolean), NULL
)::procrastinate_job_to_defer_v1])), clock_timestamp() + make_interval(secs => :seconds), :sealed
FROM set_config('synchronous_commit', 'off', true)
"""
READ = """
SELECT CASE WHEN abort_requested THEN 'aborted' ELSE status::text END,
    octet_length(sealed) + coalesce(octet_length(result), 0) > ?, progress, result
FROM jobs JOIN procrastinate_jobs AS job ON job.id = number WHERE jobs.id = ?
"""
CANCEL = "SELECT procrastinate_cancel_job_v1(number, true, false) FROM jobs WHERE id = ?"
DELETE = (
    "DELETE FROM procrastinate_jobs USING jobs WHERE procrastinate_jobs.id = number AND jobs.id = ?"
)
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
PURPOSE = b"onetool jobs"
MAX_BYTES = 256 << 20  # PostgreSQL returns no value whose hexadecimal form has more than 1 GB


class _Job(NamedTuple):
    """The row of a job. `status` is that of procrastinate, or empty if there is no job."""

    status: str = ""
    is_large: bool = False
    progress: bytes | None = None
    result: bytes | None = None

    @property
    def is_open(self) -> bool:
        return self.result is None and self.status in {"todo", "doing"}


class JobSealer:
    """Seals messages with the first of the keys, and opens them with any.

    The name of a message is sealed with it: without a key, nobody can create, change, exchange or
    shorten one.
    """

    def __init__(self, keys: str) -> None:
        derived = map(_derive, parse_keys(keys))
        self._sealers = [Sealer(key, "ONETOOL_KEY", make_error) for key in derived]

    def seal(self, name: str, facts: JsonMapping, body: bytes) -> bytes:
        if len(body) > MAX_BYTES:
            limit = f"a queue accepts at most {MAX_BYTES >> 20} MiB"
            raise ToolError(f"the {name} is too large: {limit}")
        message = json.dumps(facts).encode() + b"\n" + body
        return self._sealers[0].seal(message, name.encode())

    def open(self, name: str, sealed: bytes) -> tuple[JsonObject, bytes]:
        """Return facts and body.

        Raise StorageError if they were not sealed under this name with one of the keys.
        """
        opened, _ = open_any(self._sealers, sealed, name.encode())
        facts, _, body = opened.partition(b"\n")
        return json.loads(facts), body

    def seal_result(
        self, job: str, value: Any, error: Exception | None, redact: Callable[[Any], Any]
    ) -> bytes:
        """Seal what a tool returned or raised, without the secrets of the worker."""
        kind = "value"
        if error is not None:
            kind = "error"
            body = encode(redact(describe(error))).encode()
        elif isinstance(value, RawJson):
            kind = "raw"
            text = b"".join(value.pieces).decode(*UTF8)
            body = str(redact(text)).encode(*UTF8)
        else:
            body = encode(redact(value)).encode()
        try:
            return self.seal(f"result of job {job}", {"kind": kind}, body)
        except ToolError as large:
            return self.seal_result(job, None, large, redact)

    def open_result(self, job: str, sealed: bytes) -> tuple[Any, Exception | None]:
        """Return the value that a tool returned, or the error that it raised."""
        facts, body = self.open(f"result of job {job}", sealed)
        if facts["kind"] == "error":
            return None, restore(json.loads(body))
        if facts["kind"] == "raw":
            return RawJson(tuple(split_text(body.decode(*UTF8)))), None
        return json.loads(body), None


class JobRows(Jobs):
    """The jobs of the calls that this replica makes or continues."""

    def __init__(self, database: Database, keep_seconds: float) -> None:
        self._database = database
        self._keep_seconds = keep_seconds
        self._maintaining: threading.Thread | None = None
        self._closing = threading.Event()

    @cached_property
    def _sealer(self) -> JobSealer:
        return JobSealer(self._database.key)

    # --- one call ---------------------------------------------------------------------------------

    async def call(self, request: JobRequest, on_event: Callable[[JsonMapping], object], /) -> Any:
        with self._database.listener.changes.watching(f"{JOB}{request.id}") as changed:
            try:
                await anyio.to_thread.run_sync(self._add, request)
                job = await self._follow(request, changed, on_event)
            except asyncio.CancelledError:
                if request.ticket is None or not request.ticket.continues_elsewhere:
                    with anyio.CancelScope(shield=True):
                        await self._try(CANCEL, request)
                raise
        if job.is_large and request.ticket is None:  # otherwise another process may read it again
            await self._try(DELETE, request)
        return self._unwrap(request, job)

    def _add(self, request: JobRequest) -> None:
        """Add the job of a call, unless another process may have added it and did."""
        if self._maintaining is None:
            thread = threading.Thread(
                target=self._run_maintenance, name="onetool-jobs", daemon=True
            )
            thread.start()
            self._maintaining = thread
        call = {
            "queue": request.queue,
            "pack": request.pack,
            "function": request.function,
            "arguments": dict(request.arguments),
        }
        body = encode(call).encode()
        if request.ticket is not None and self._exists(request, request.ticket.is_repeated, body):
            return
        # A worker compares this time with its own clock: all others are in the database, which
        # somebody could change.
        expires = time.time() + request.wait_seconds + request.seconds + CLOCK_SECONDS
        options = {
            **request.options,
            "seconds": request.seconds,
            "is_idempotent": request.is_idempotent,
            "expires": expires,
        }
        values = {
            "id": request.id,
            "queue": request.queue,
            "is_repeatable": request.is_idempotent,
            "seconds": request.wait_seconds,
            "sealed": self._sealer.seal(f"input of job {request.id}", options, body),
        }
        self._database.execute(ADD, values)

    def _exists(self, request: JobRequest, is_repeated: bool, body: bytes) -> bool:
        """Return whether the call has a job. Raise ToolError if that is a job for another call."""
        rows = self._database.select("SELECT sealed FROM jobs WHERE id = ?", request.id)
        if not rows and is_repeated and not request.is_idempotent:
            reason = "its job was deleted, or never reached its queue"
            raise Interrupted(f"{request.tool} was interrupted: {reason}", code="worker_lost")
        for (sealed,) in rows:
            _, stored_body = self._sealer.open(f"input of job {request.id}", sealed)
            if stored_body != body:
                raise ToolError(f"job {request.id} is a call with other arguments")
        return bool(rows)

    async def _follow(
        self, request: JobRequest, changed: asyncio.Event, on_event: Callable[[JsonMapping], object]
    ) -> _Job:
        """Wait until a job ends, and report its messages. Raise ToolTimeout if it takes too long."""
        loop = asyncio.get_running_loop()
        deadline = loop.time() + request.wait_seconds
        status = "todo"
        reported = 0
        while True:
            changed.clear()
            pause = RETRY_SECONDS
            with suppress(StoreUnavailable):
                job, events = await anyio.to_thread.run_sync(self._read, request.id, reported)
                for event in events:
                    reported = event["number"]
                    on_event(event)
                if not job.is_open:
                    return job
                if (status, job.status) == ("todo", "doing"):  # its worker ends it in time
                    work_seconds = request.start_seconds + request.seconds
                    deadline = loop.time() + work_seconds + REPORT_SECONDS
                status = job.status
                pause = POLL_SECONDS
            left = deadline - loop.time()
            if left <= 0:
                await self._time_out(request, status)
            with suppress(TimeoutError):
                await asyncio.wait_for(changed.wait(), min(left, pause))

    def _read(self, job: str, reported: int) -> tuple[_Job, list[JsonMapping]]:
        """Return a job, and the messages of its tool that were not reported yet."""
        row = _Job()
        for values in self._database.select(READ, LARGE_BYTES, job):
            row = _Job(*values)
        if row.progress is None:
            return row, []
        _, body = self._sealer.open(f"progress of job {job}", row.progress)
        return row, [event for event in json.loads(body) if event["number"] > reported]

    async def _time_out(self, request: JobRequest, status: str) -> NoReturn:
        await self._try(CANCEL, request)
        if status == "doing":
            raise ToolTimeout(f"{request.tool} took longer than {request.seconds:g} s")
        queue = request.queue
        start = f"`onetool worker --queue {queue}`"
        workers = await anyio.to_thread.run_sync(self._database.select, WORKERS, LOST_SECONDS)
        if any(name == queue for name, _ in workers):
            reason = f"all workers of the queue {queue} were busy for {request.wait_seconds:g} s"
            hint = f"start another worker: {start}"
            code = "queue_busy"
        else:
            reason = f"no worker serves the queue {queue}, after {request.wait_seconds:g} s"
            hint = f"start one: {start}"
            code = "no_worker"
        raise ToolTimeout(f"{request.tool} was not called: {reason}", hint=hint, code=code)

    async def _try(self, statement: str, request: JobRequest) -> None:
        """Execute a statement if the database answers: jobs time out and are deleted anyway."""
        with suppress(StorageError):
            await anyio.to_thread.run_sync(self._database.execute, statement, (request.id,))

    def _unwrap(self, request: JobRequest, job: _Job) -> Any:
        """Return the value that the tool returned, or raise its error."""
        if job.result is not None:
            value, error = self._sealer.open_result(request.id, job.result)
            if error is not None:
                raise error
            return value
        if job.status in {"cancelled", "aborted"}:
            raise Cancelled(f"{request.tool} was cancelled")
        reason = "its worker ended during the call, which may have had effects"
        message = f"{request.tool} was interrupted: {reason}"
        setting = f"`tools.{request.pack}.idempotent` lists tools that may be repeated"
        hint = f"check what it has done before you repeat it; {setting}"
        raise Interrupted(message, hint=hint, code="worker_lost")

    # --- all jobs ---------------------------------------------------------------------------------

    def _run_maintenance(self) -> None:
        asyncio.run(self._maintain())

    async def _maintain(self) -> None:
        """Recover stalled jobs and delete old ones. A thread runs only this, so that it may block."""
        from onetool.state.worker_jobs import delete_old_jobs, recover_stalled_jobs

        answering_since = time.monotonic()
        deleted_at = float("-inf")
        while not self._closing.wait(RECOVER_SECONDS):
            now = time.monotonic()
            try:
                with self._database.transaction(is_durable=False) as transaction:
                    if not transaction.try_lock("jobs"):
                        continue
                    # Workers without the database sent no heartbeats.
                    if now - answering_since > LOST_SECONDS:
                        await recover_stalled_jobs(transaction, LOST_SECONDS)
                    if now - deleted_at > DELETE_SECONDS:
                        await delete_old_jobs(transaction, self._keep_seconds)
                        deleted_at = now
            except ToolError:
                answering_since = time.monotonic()

    def close(self) -> None:
        self._closing.set()
        if self._maintaining is not None:
            self._maintaining.join(timeout=5.0)

    def find_problems(self, queues: Mapping[str, str], /) -> Iterator[Problem]:
        if not queues:
            return
        try:
            statuses = list_queues(self._database, set(queues.values()))
        except ToolError:  # the check of the store reports it
            return
        for queue in statuses:
            packs = ", ".join(pack for pack, name in queues.items() if name == queue.name)
            if packs and not queue.workers:
                message = f"no worker serves the queue {queue.name}, so calls of {packs} fail"
                yield Problem(message, f"onetool worker --queue {queue.name}", code="no_worker")


def list_queues(database: Database, names: Collection[str] = ()) -> list[QueueStatus]:
    """Return the state of these queues, and of all with open jobs or workers."""
    counts = {}
    for queue, waiting, running in database.select(OPEN):
        counts[queue] = (int(waiting), int(running))
    workers: defaultdict[str, list[str]] = defaultdict(list)
    for queue, description in database.select(WORKERS, LOST_SECONDS):
        workers[queue].append(description)
    queues = sorted({*names, *counts, *workers})
    return [QueueStatus(name, *counts.get(name, (0, 0)), workers[name]) for name in queues]


def _derive(key: bytes) -> bytes:
    from cryptography.hazmat.primitives.hashes import SHA256
    from cryptography.hazmat.primitives.kdf.hkdf import HKDF

    return HKDF(SHA256(), KEY_BYTES, salt=None, info=PURPOSE).derive(key)
