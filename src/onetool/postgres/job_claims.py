"""Jobs of queues, on the side of a worker: claim a job, report on it, and store its result.

Everything in the database may be written by others. A worker executes a job only if its arguments were sealed with the
key for exactly this job, and only once.
"""

import json
import os
import socket
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final, NamedTuple

from onetool.errors import StorageError, ToolError
from onetool.postgres.job_recovery import MAX_ATTEMPTS
from onetool.postgres.job_sealing import JobSealer
from onetool.postgres.jobs import ARGUMENTS, CHUNKS, INSERT_CHUNK, name_job, name_progress, name_result
from onetool.state.postgres_database import Database
from onetool.util.raw_json import RawJson
from onetool_child.data import encode
from onetool_child.messages import UTF8

BEAT: Final = """
INSERT INTO queue_workers (id, queue, description, packs, seen) VALUES (?, ?, ?, ?, clock_timestamp())
ON CONFLICT (id, queue) DO UPDATE SET seen = excluded.seen
"""
CLAIM: Final = """
UPDATE jobs SET state = 'started', worker = ?, attempt = attempt + 1
WHERE id = ? AND number = ? AND queue = ANY(?) AND state = 'waiting' AND expires > clock_timestamp()
RETURNING sealed, attempt, queue
"""
OWN: Final = "id = ? AND worker = ? AND attempt = ? AND state = 'started'"
REPORT: Final = f"""
WITH changed AS (UPDATE jobs SET progress = ? WHERE {OWN} RETURNING id)
SELECT pg_notify('onetool', 'job ' || id) FROM changed
"""  # noqa: S608 - constants
FINISH: Final = f"""
WITH changed AS (
    UPDATE jobs SET state = 'done', ended = clock_timestamp(), progress = coalesce(?, progress), result = ?
    WHERE {OWN} RETURNING id
) SELECT pg_notify('onetool', 'job ' || id) FROM changed
"""  # noqa: S608 - constants
RETURN: Final = f"UPDATE jobs SET state = 'waiting', worker = NULL WHERE {OWN}"  # noqa: S608 - constants


class JobRejected(Exception):
    """The job must not be executed: it was not deferred by a replica, was changed, is repeated, or has expired."""


class ClaimedJob(NamedTuple):
    id: str
    attempt: int
    facts: Mapping[str, Any]  # sealed by the replica
    arguments: Mapping[str, Any]


class JobClaims:
    """The jobs that one worker process claims."""

    def __init__(self, database: Database, queues: Sequence[str], packs: Mapping[str, Sequence[str]]) -> None:
        self._database, self._queues, self._packs = database, list(queues), packs
        self._sealer = JobSealer(database.key)
        self._executed: dict[str, tuple[int, float]] = {}  # the attempt and the expiry of each job
        self.id = os.urandom(16).hex()
        self.description = f"{socket.gethostname()}, process {os.getpid()}"

    def beat(self) -> None:
        """Prove that this worker is alive."""
        rows = [(self.id, queue, self.description, " ".join(self._packs[queue])) for queue in self._queues]
        with self._database.transaction(is_durable=False) as transaction:
            transaction.executemany(BEAT, rows)

    def leave(self) -> None:
        self._database.execute("DELETE FROM queue_workers WHERE id = ?", (self.id,))

    def claim(self, job: str, number: int) -> ClaimedJob:
        """Return the job. Nobody else can claim it afterwards. Raise JobRejected if it must not be executed."""
        found = self._database.select(CLAIM, self.id, job, number, self._queues)
        if not found:
            raise JobRejected(f"job {job!r} does not wait: it is unknown, was executed before, or has expired")
        sealed, attempt, queue = found[0]
        claimed = ClaimedJob(job, attempt, {}, {})
        try:
            header = self._sealer.open(name_job(job), sealed)
            self._check(job, attempt, number, queue, header.facts)
            chunks = [chunk for (chunk,) in self._database.select(CHUNKS, job, ARGUMENTS)] if header.chunk_count else []
            body = self._sealer.open_body(name_job(job), header, chunks)
        except (JobRejected, StorageError) as error:
            if isinstance(error, StorageError) and error.fields.get("is_retryable"):
                raise
            reason = error.message if isinstance(error, StorageError) else str(error)
            self.finish(claimed, error=ToolError(f"a worker rejected the job: {reason}", code="job_rejected"))
            raise JobRejected(reason) from None
        return claimed._replace(facts=header.facts, arguments=json.loads(b"".join(body)))

    def _check(self, job: str, attempt: int, number: int, queue: str, facts: Mapping[str, Any]) -> None:
        """Raise JobRejected if a job that was sealed for something else is used again."""
        now = time.time()
        self._executed = {known: entry for known, entry in self._executed.items() if entry[1] > now}
        is_repeated = attempt <= self._executed.get(job, (0, 0.0))[0] or attempt > MAX_ATTEMPTS
        may_repeat = facts["is_idempotent"] or (attempt == 1 and job not in self._executed)
        if is_repeated or not may_repeat:
            raise JobRejected(f"job {job} was executed before")
        if (facts["number"], facts["queue"]) != (number, queue):
            raise JobRejected(f"job {job} was sealed as another job")
        if facts["expires"] < now:
            raise JobRejected(f"job {job} has expired")
        self._executed[job] = attempt, facts["expires"]

    def report(self, job: ClaimedJob, events: Sequence[Mapping[str, Any]]) -> None:
        """Store the last messages of the tool, for the replica that waits."""
        self._database.select(REPORT, self._seal_events(job, events), *self._name_row(job))

    def finish(
        self,
        job: ClaimedJob,
        value: Any = None,
        *,
        error: BaseException | None = None,
        redact: Callable[[Any], Any] = lambda value: value,
        events: Sequence[Mapping[str, Any]] = (),
    ) -> bool:
        """Store the result. Return whether it counts: it does not if the job was cancelled or given to another."""
        kind, facts, body = encode_outcome(value, error, redact)
        name = name_result(job.id, job.attempt)
        sealed = self._sealer.seal(name, {"kind": kind, **facts}, body)
        values = (self._seal_events(job, events) if events else None, sealed.header, *self._name_row(job))
        if not sealed.chunks:
            return bool(self._database.select(FINISH, *values))
        part = f"result {job.attempt}"
        with self._database.transaction() as transaction:
            rows = ((job.id, part, number, chunk) for number, chunk in enumerate(sealed.chunks))
            transaction.executemany(f"{INSERT_CHUNK} ON CONFLICT DO NOTHING", rows)
            return bool(transaction.execute(FINISH, values).fetchall())

    def give_back(self, job: ClaimedJob) -> None:
        """Let another worker claim the job."""
        self._database.execute(RETURN, self._name_row(job))

    def _seal_events(self, job: ClaimedJob, events: Sequence[Mapping[str, Any]]) -> bytes:
        return self._sealer.seal(name_progress(job.id), {}, [json.dumps(list(events)).encode()]).header

    def _name_row(self, job: ClaimedJob) -> tuple[str, str, int]:
        return job.id, self.id, job.attempt


def encode_outcome(
    value: Any, error: BaseException | None, redact: Callable[[Any], Any]
) -> tuple[str, dict[str, Any], list[bytes]]:
    """Return the kind, the facts and the body of a result, without the secrets of the worker."""
    from onetool.errors import describe

    if error is not None:
        return "error", {}, [encode(redact(describe(error))).encode()]
    if isinstance(value, RawJson):
        text = b"".join(value.pieces).decode(*UTF8)
        return "raw", {"or_text": value.or_text}, [str(redact(text)).encode(*UTF8)]
    return "value", {}, [encode(redact(value)).encode()]
