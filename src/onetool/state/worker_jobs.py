"""Jobs of queues, with procrastinate: a worker takes a job with its input, reports on it, and ends
it with its result. Replicas recover stalled jobs and delete old ones.

Everything in the database may be written by others. A worker executes a job only if its input was
sealed with the key for exactly this job, and only once. Import this module only if there are
queues: it imports procrastinate.
"""

import asyncio
import json
import os
import socket
import time
from collections import deque
from collections.abc import Awaitable, Callable, Coroutine, Iterable
from dataclasses import dataclass, field
from typing import Any, Concatenate, ParamSpec, TypeVar

import anyio.to_thread
from procrastinate import PsycopgConnector
from procrastinate.connector import BaseAsyncConnector
from procrastinate.exceptions import ConnectorException
from procrastinate.jobs import Job, Status
from procrastinate.manager import JobManager
from psycopg import AsyncConnection, OperationalError
from psycopg.rows import dict_row
from psycopg_pool import AsyncConnectionPool

from onetool.errors import ToolError
from onetool.state.jobs import JobSealer
from onetool.state.postgres_database import OPTIONS, SESSION, Statements
from onetool.state.storage import MAX_ATTEMPTS
from onetool.util.redact import Redactor
from onetool_child.json_types import JsonMapping, JsonObject

# procrastinate's workers do not say which queues they serve.
REGISTER = """
WITH registered AS (SELECT worker_id FROM procrastinate_register_worker_v1()), queues AS (
    INSERT INTO queue_workers SELECT worker_id, queue, %(description)s FROM registered, unnest(%(queues)s::text[]) queue
) SELECT worker_id FROM registered
"""
# The next job with its input: first one that this worker got when the connection was lost.
FETCH = """
SELECT job.*, name, sealed, is_open FROM (
    SELECT * FROM procrastinate_jobs
    WHERE worker_id = %(worker_id)s AND status = 'doing' AND id <> ALL(%(held)s::bigint[])
    UNION ALL SELECT * FROM procrastinate_fetch_job_v2(%(queues)s::varchar[], %(worker_id)s) LIMIT 1
) AS job LEFT JOIN LATERAL read_input(job.id) ON true
"""
# The job, if this worker still has it. A worker without heartbeats loses its jobs, and may not
# know.
HELD = """
SELECT job.id AS number, jobs.id, abort_requested FROM procrastinate_jobs AS job LEFT JOIN jobs ON number = job.id
WHERE job.id = %(number)s AND worker_id = %(worker_id)s AND attempts = %(attempts)s AND status = 'doing'
"""
REPORT = f"""
WITH held AS ({HELD}), changed AS (
    UPDATE jobs SET progress = %(progress)s FROM held WHERE jobs.id = held.id RETURNING jobs.id
) SELECT pg_notify('onetool', 'job ' || id) FROM changed
"""  # noqa: S608 - constants
# The job and its result end together.
FINISH = f"""
WITH held AS ({HELD} FOR UPDATE OF job), changed AS (
    UPDATE jobs SET progress = coalesce(%(progress)s, progress),
        result = CASE WHEN NOT abort_requested THEN %(result)s::bytea END
    FROM held WHERE jobs.id = held.id
)
SELECT NOT abort_requested AS counts, pg_notify('onetool', 'job ' || id), procrastinate_finish_job_v1(
    number, CASE WHEN abort_requested THEN 'aborted' ELSE %(status)s END::procrastinate_job_status, false
) FROM held
"""  # noqa: S608 - constants
MAX_EVENTS = 20  # that a report has
MAX_MESSAGE_CHARS = 4_000
RETRY_SECONDS = 0.5
POOL: JsonObject = {"min_size": 1, "max_size": 4, "timeout": 4.0, "reconnect_timeout": 1.0}
P = ParamSpec("P")
T = TypeVar("T")


@dataclass(slots=True)
class HeldJob:
    """A job that this worker has taken, and what it ends with."""

    delivery: Job
    name: str
    sealed: bytes | None  # the input, until it is opened
    is_open: bool  # whether the replica still waits for a worker
    facts: JsonMapping = field(default_factory=dict)  # sealed by the replica
    value: Any = None
    error: Exception | None = None
    events: deque[JsonObject] = field(default_factory=lambda: deque(maxlen=MAX_EVENTS))
    event_count: int = 0
    reported_count: int = 0

    @property
    def tool(self) -> str:
        return f"{self.facts['pack']}.{self.facts['function']}"

    @property
    def is_repeatable(self) -> bool:
        return self.facts["is_idempotent"] and self.delivery.attempts < MAX_ATTEMPTS - 1

    def add_event(self, kind: str, message: str, *details: Any) -> None:
        self.event_count += 1
        event = {"kind": kind, "message": message, "details": details}
        self.events.append({"number": self.event_count, **event})

    def describe(self) -> JsonObject:
        """Return what the statements recognize this delivery by."""
        job = self.delivery
        return {"number": job.id, "worker_id": job.worker_id, "attempts": job.attempts}


def reconnecting(
    execute: Callable[Concatenate[Any, P], Awaitable[T]],
) -> Callable[Concatenate[Any, P], Coroutine[Any, Any, T]]:
    """Repeat a statement until the database answers."""

    async def repeat(
        connector: "ReconnectingConnector", /, *args: P.args, **arguments: P.kwargs
    ) -> T:
        while True:
            try:
                return await execute(connector, *args, **arguments)
            except ConnectorException as error:
                if not isinstance(error.__cause__, OperationalError) or connector.may_give_up():
                    raise
                await asyncio.sleep(RETRY_SECONDS)

    return repeat


class ReconnectingConnector(PsycopgConnector):
    """Connections that wait for an unavailable database, until `may_give_up` returns true.

    Without this, procrastinate stops at the first lost connection.
    """

    def __init__(self, url: str, may_give_up: Callable[[], bool]) -> None:
        super().__init__(
            pool_factory=_make_pool, conninfo=url, kwargs=OPTIONS, configure=_configure, **POOL
        )
        self.may_give_up = may_give_up

    execute_query_async = reconnecting(PsycopgConnector.execute_query_async)
    execute_query_one_async = reconnecting(PsycopgConnector.execute_query_one_async)
    execute_query_all_async = reconnecting(PsycopgConnector.execute_query_all_async)
    listen_notify = reconnecting(PsycopgConnector.listen_notify)


def _make_pool(check: object, **options: Any) -> AsyncConnectionPool[Any]:  # noqa: ARG001
    """Return a pool that does not test connections: failed statements are repeated."""
    return AsyncConnectionPool(**options)


async def _configure(connection: AsyncConnection[Any]) -> None:
    await connection.set_autocommit(True)  # each statement is one round trip
    await connection.execute(SESSION)


class WorkerJobs(JobManager):
    """The jobs of one worker process. `held` are those that it has taken and not ended, by number."""

    connector: ReconnectingConnector

    def __init__(
        self,
        connector: ReconnectingConnector,
        keys: str,
        queues: list[str],
        redactor: Redactor,
        log: Callable[..., None],
    ) -> None:
        super().__init__(connector)
        self._sealer = JobSealer(keys)
        self._queues = queues
        self._redactor = redactor
        self._log = log
        # The last attempt and the expiry of each job.
        self._attempts: dict[str, tuple[int, float]] = {}
        self.held: dict[int | None, HeldJob] = {}
        self.on_registered: Callable[[], None] = lambda: None

    async def register_worker(self) -> int:
        values = {
            "description": f"{socket.gethostname()}, process {os.getpid()}",
            "queues": self._queues,
        }
        row = await self.connector.execute_query_one_async(REGISTER, **values)
        self.on_registered()
        return int(row["worker_id"])

    async def fetch_job(self, queues: Iterable[str] | None, worker_id: int) -> Job | None:
        values = {"queues": queues, "worker_id": worker_id, "held": list(self.held)}
        row = await self.connector.execute_query_one_async(FETCH, **values)
        if row["id"] is None:
            return None
        job = Job.from_row(row)
        self.held[job.id] = HeldJob(job, row["name"], row["sealed"], row["is_open"])
        return job

    def open(self, job: HeldJob) -> None:
        """Open the input of a job. Raise ToolError if the job must not be executed."""
        try:
            self._open(job)
        except ToolError as error:
            message = f"a worker rejected the job: {error.message}"
            job.error = ToolError(message, code="job_rejected")
            raise

    def _open(self, job: HeldJob) -> None:
        """Open the input.

        Raise ToolError if the job is repeated, or was sealed for another queue or time.
        """
        if job.sealed is None:
            raise ToolError(f"no replica has added job {job.delivery.id}")
        options, call = self._sealer.open(f"input of job {job.name}", job.sealed)
        job.sealed = None
        job.facts = {**options, **json.loads(call)}
        now = time.time()
        self._attempts = {name: entry for name, entry in self._attempts.items() if entry[1] > now}
        attempt = job.delivery.attempts + 1
        last_attempt, _ = self._attempts.get(job.name, (0, 0.0))
        max_attempts = MAX_ATTEMPTS if job.facts["is_idempotent"] else 1
        if job.facts["queue"] != job.delivery.queue:
            raise ToolError(f"job {job.name} was sealed for another queue")
        is_due = last_attempt < attempt <= max_attempts
        if job.facts["expires"] < now or not job.is_open or not is_due:
            raise ToolError(f"job {job.name} was executed before, or has expired")
        self._attempts[job.name] = attempt, job.facts["expires"]

    async def report(self) -> None:
        """Store new messages of tools, for the replicas that wait."""
        for job in list(self.held.values()):
            if job.event_count > job.reported_count:
                job.reported_count = job.event_count
                values = {**job.describe(), "progress": self._seal_events(job)}
                await self.connector.execute_query_all_async(REPORT, **values)

    async def finish_job(self, job: Job, status: Status, delete_job: bool) -> None:  # noqa: ARG002
        """End a job together with its result, if this worker still has it."""
        held = self.held[job.id]
        values = {**held.describe(), "status": status.value, "result": None, "progress": None}
        if held.events:
            values["progress"] = self._seal_events(held)
        if held.error is not None or status is Status.SUCCEEDED:
            values["result"] = await anyio.to_thread.run_sync(self._seal_result, held)
        rows = await self.connector.execute_query_all_async(FINISH, **values)
        del self.held[job.id]
        if status is Status.SUCCEEDED:
            outcome = "discarded"
            if rows and rows[0]["counts"]:
                outcome = "ok" if held.error is None else "error"
            self._log("job.finished", job=held.name, tool=held.tool, status=outcome)

    async def retry_job(self, job: Job, *options: Any, **changes: Any) -> None:
        await super().retry_job(job, *options, **changes)
        del self.held[job.id]

    def _seal_events(self, job: HeldJob) -> bytes:
        events = []
        for event in job.events:
            message = self._redactor(event["message"])[:MAX_MESSAGE_CHARS]
            events.append({**event, "message": message})
        return self._sealer.seal(f"progress of job {job.name}", {}, json.dumps(events).encode())

    def _seal_result(self, job: HeldJob) -> bytes:
        return self._sealer.seal_result(job.name, job.value, job.error, self._redactor.redact_data)


class TransactionConnector(BaseAsyncConnector):
    """Executes the statements of procrastinate in a transaction. Its methods block."""

    def __init__(self, transaction: Statements) -> None:
        self._transaction = transaction

    async def execute_query_async(self, query: Any, **arguments: Any) -> None:
        with self._transaction.watch():
            self._transaction.connection.execute(query, arguments)

    async def execute_query_all_async(self, query: Any, **arguments: Any) -> list[JsonObject]:
        connection = self._transaction.connection
        with self._transaction.watch(), connection.cursor(row_factory=dict_row) as cursor:
            return cursor.execute(query, arguments).fetchall()


async def recover_stalled_jobs(transaction: Statements, lost_seconds: float) -> None:
    """Return jobs of dead workers to their queues; those that must not be repeated fail.

    Somebody could change in the database whether a job may be repeated: a worker looks into its
    sealed input too.
    """
    manager = JobManager(TransactionConnector(transaction))
    for job in await manager.get_stalled_jobs(seconds_since_heartbeat=lost_seconds):
        if job.task_kwargs.get("is_repeatable") is True and job.attempts < MAX_ATTEMPTS - 1:
            await manager.retry_job(job)
        else:
            await manager.finish_job(job, Status.FAILED, delete_job=False)


async def delete_old_jobs(transaction: Statements, keep_seconds: float) -> None:
    manager = JobManager(TransactionConnector(transaction))
    await manager.delete_old_jobs(
        nb_hours=keep_seconds / 3600,  # type: ignore[arg-type]  # its statement accepts parts of hours
        include_failed=True,
        include_cancelled=True,
        include_aborted=True,
    )
