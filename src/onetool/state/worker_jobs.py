"""Jobs of queues, on the side of a worker: take a job with its input, report on it, and end it with
its result.

Everything in the database may be written by others. A worker executes a job only if its input was
sealed with the key for exactly this job, and only once. Import this module only in a worker: it
imports procrastinate.
"""

import json
import os
import socket
import time
from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any

import anyio.to_thread
from procrastinate.jobs import Job, Status
from procrastinate.manager import JobManager

from onetool.errors import ToolError
from onetool.state.job_sealing import JobSealer
from onetool.state.queue_connector import PatientConnector
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
        self.events.append(
            {"number": self.event_count, "kind": kind, "message": message, "details": details}
        )

    def describe(self) -> JsonObject:
        """Return what the statements recognize this delivery by."""
        job = self.delivery
        return {"number": job.id, "worker_id": job.worker_id, "attempts": job.attempts}


class WorkerJobs(JobManager):
    """The jobs of one worker process. `held` are those that it has taken and not ended, by number."""

    connector: PatientConnector

    def __init__(
        self,
        connector: PatientConnector,
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
        self._attempts: dict[
            str, tuple[int, float]
        ] = {}  # the last attempt and the expiry of each job
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
            job.error = ToolError(
                f"a worker rejected the job: {error.message}", code="job_rejected"
            )
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
        if (
            job.facts["expires"] < now
            or not job.is_open
            or not last_attempt < attempt <= max_attempts
        ):
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
            outcome = "ok" if held.error is None else "error"
            counts = rows and rows[0]["counts"]
            self._log(
                "job.finished",
                job=held.name,
                tool=held.tool,
                status=outcome if counts else "discarded",
            )

    async def retry_job(self, job: Job, *options: Any, **changes: Any) -> None:
        await super().retry_job(job, *options, **changes)
        del self.held[job.id]

    def _seal_events(self, job: HeldJob) -> bytes:
        events = [
            {**event, "message": self._redactor(event["message"])[:MAX_MESSAGE_CHARS]}
            for event in job.events
        ]
        return self._sealer.seal(f"progress of job {job.name}", {}, json.dumps(events).encode())

    def _seal_result(self, job: HeldJob) -> bytes:
        return self._sealer.seal_result(job.name, job.value, job.error, self._redactor.redact_data)
