"""A process that makes the calls of queues: it takes jobs with procrastinate and makes them with its own packs.

It runs only packs of its own settings, with its own secrets, and reaches only jobs and its own results.
"""

import asyncio
import logging
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING, Any, Final

import anyio.to_thread

from onetool.config.load import Loaded
from onetool.core.context import Caller, ToolContext
from onetool.core.tool import Result, Tool
from onetool.errors import Interrupted, StorageError, ToolError, ToolNotFound, ToolTimeout
from onetool.extensions.packs import Extensions
from onetool.extensions.worker_backend import WorkerBackend
from onetool.postgres.job_claims import ClaimedJob, JobClaims, JobRejected
from onetool.postgres.job_recovery import HEARTBEAT_SECONDS, JobRecovery
from onetool.postgres.procrastinate_jobs import TASK
from onetool.state.postgres_database import OPTIONS, SESSION, Database
from onetool.state.result_rows import MediaRows
from onetool.util.redact import Redactor

if TYPE_CHECKING:
    from procrastinate import App
    from procrastinate.job_context import JobContext

POLL_SECONDS: Final = 1.0  # for jobs that were returned to the queue, about which nobody notifies
REPORT_SECONDS: Final = 0.25  # between two reports of a job
RETRY_SECONDS: Final = 0.5
MAX_EVENTS: Final = 20  # that a report has
MAX_MESSAGE_CHARS: Final = 4_000
LogEvent = Callable[..., None]


class QueueWorker:
    """The worker of some queues. `packs` are the packs that it serves, by queue."""

    def __init__(
        self,
        loaded: Loaded,
        database: Database,
        extensions: Extensions,
        packs: Mapping[str, Sequence[str]],
        *,
        concurrency: int,
        grace_seconds: float,
        log: LogEvent,
    ) -> None:
        self._loaded, self._database, self._extensions, self._log = loaded, database, extensions, log
        self._packs, self._concurrency, self._grace_seconds = packs, concurrency, grace_seconds
        self._claims = JobClaims(database, sorted(packs), packs)
        self._recovery = JobRecovery(database)
        self._redactor = Redactor(loaded.secret_values)
        self._fetcher: Any = None  # the worker of procrastinate
        self._is_stopping, self._stopped = False, asyncio.Event()

    async def run(self, on_ready: Callable[[], None]) -> None:
        """Make calls until `stop` is called."""
        from procrastinate.worker import Worker

        if not self._packs:
            on_ready()
            await self._stopped.wait()
            return
        await anyio.to_thread.run_sync(self._claims.beat)
        self._recovery.start()
        beating = asyncio.ensure_future(self._beat())
        app = self._make_app()
        try:
            async with app.open_async():
                self._fetcher = Worker(app, **self._fetcher_options)
                if not self._is_stopping:
                    on_ready()
                    await self._fetcher.run()
        finally:
            beating.cancel()
            await anyio.to_thread.run_sync(self._recovery.close)
            with suppress(ToolError):
                await anyio.to_thread.run_sync(self._claims.leave)

    def stop(self) -> None:
        """Take no more jobs. Those in flight get some time; then they are returned to the queue, or interrupted."""
        self._is_stopping = True
        self._stopped.set()
        if self._fetcher is not None:
            self._fetcher.stop()

    async def _beat(self) -> None:
        while True:
            await asyncio.sleep(HEARTBEAT_SECONDS)
            with suppress(ToolError):  # the database is away
                await anyio.to_thread.run_sync(self._claims.beat)

    # --- procrastinate ----------------------------------------------------------------------------------------------

    @property
    def _fetcher_options(self) -> Any:
        return {
            "queues": sorted(self._packs),
            "concurrency": self._concurrency,
            "fetch_job_polling_interval": POLL_SECONDS,
            "abort_job_polling_interval": POLL_SECONDS,
            "shutdown_graceful_timeout": self._grace_seconds,
            "update_heartbeat_interval": HEARTBEAT_SECONDS,
            "install_signal_handlers": False,
        }

    def _make_app(self) -> "App":
        from procrastinate import App

        from onetool.postgres.queue_connector import ReturnedJob, make_connector, make_retry_strategy

        # Its messages repeat what the log of this worker says, and errors would be printed with their traces.
        logging.getLogger("procrastinate").setLevel(logging.CRITICAL + 1)
        options = {"kwargs": OPTIONS, "min_size": 1, "max_size": 4, "timeout": 4.0, "reconnect_timeout": 1.0}
        connector = make_connector(self._database.url, SESSION, options, lambda: self._is_stopping)
        app = App(connector=connector)

        @app.task(name=TASK, pass_context=True, retry=make_retry_strategy())
        async def run_job(context: "JobContext", job: str) -> None:
            if await self._run_job(context, job):
                raise ReturnedJob

        return app

    async def _run_job(self, context: "JobContext", job: str) -> bool:
        """Make the call of a job. Return whether the job was returned to the queue."""
        from procrastinate.job_context import AbortReason

        try:
            claimed = await anyio.to_thread.run_sync(self._claims.claim, str(job), context.job.id or 0)
        except JobRejected as error:
            self._log("job.rejected", level="ERROR", job=str(job), text=str(error))
            raise
        reports = _Reports(partial(self._claims.report, claimed), self._redactor)
        try:
            value, failure = await self._make_call(claimed, reports)
        except asyncio.CancelledError:
            if context.abort_reason() is not AbortReason.SHUTDOWN:
                self._log("job.cancelled", job=claimed.id)
                raise
            if claimed.facts["is_idempotent"]:
                await anyio.to_thread.run_sync(self._claims.give_back, claimed)
                return True
            message = f"{_name(claimed)} was interrupted: its worker was stopped during the call"
            value, failure = None, Interrupted(message, code="worker_lost")
        finally:
            reports.close()
        await self._store(claimed, value, failure, reports.events)
        return False

    async def _store(self, job: ClaimedJob, value: Any, error: Exception | None, events: Any) -> None:
        """Store the result. While the database is away, try again until nobody waits for it."""
        redact = self._redactor.redact_data
        finish = partial(self._claims.finish, job, value, error=error, redact=redact, events=events)
        while True:
            try:
                counts = await anyio.to_thread.run_sync(finish)
                break
            except StorageError as failure:
                if not failure.fields.get("is_retryable") or time.time() > job.facts["expires"]:
                    self._log("job.failed", level="ERROR", job=job.id, text=failure.message)
                    raise
                await asyncio.sleep(RETRY_SECONDS)
        status = "discarded" if not counts else "ok" if error is None else "error"
        self._log("job.finished", job=job.id, tool=_name(job), status=status)

    # --- calls ------------------------------------------------------------------------------------------------------

    async def _make_call(self, job: ClaimedJob, reports: "_Reports") -> tuple[Any, Exception | None]:
        facts = job.facts
        media = partial(self._store_media, facts)
        caller = facts["context"]
        context = ToolContext(
            agent_id=caller["agent_id"],
            agent_config=caller["agent_config"],
            permissions=caller["permissions"],
            caller=Caller(caller["agent_id"], token_id=facts["token_id"]),
            correlation_id=caller["correlation_id"],
            metadata=caller["metadata"],
            working_dir=self._loaded.directories.working_dir,
            on_progress=reports.add_progress,
            on_log=reports.add_log,
            store_media=media,
        )
        try:
            tool = await self._find_tool(facts)
            args = tool.input.check(dict(job.arguments))
            assert isinstance(tool.backend, WorkerBackend)
            await tool.backend.warm_up(context)  # the timeout of a call does not include the start
            async with asyncio.timeout(float(facts["seconds"])):
                return await tool.backend.invoke(tool, args, context), None
        except TimeoutError:
            return None, ToolTimeout(f"{_name(job)} took longer than {facts['seconds']:g} s")
        except Exception as error:  # noqa: BLE001 - whatever the tool raised is its result
            return None, error

    async def _find_tool(self, facts: Mapping[str, Any]) -> Tool:
        """Return the tool of the job. Its pack must be one that the settings of this worker give to the queue."""
        name, queue = f"{facts['pack']}.{facts['function']}", facts["queue"]
        if facts["pack"] in self._packs.get(queue, ()):
            tool = self._extensions.held.get(name)
            if tool is not None and tool.refresh is not None:
                await tool.refresh()
                tool = self._extensions.held.get(name)
            if tool is not None:
                return tool
        message = f"the worker of the queue {queue} has no tool {name}"
        hint = f"install the pack {facts['pack']} there, and set tools.{facts['pack']}.queue: {queue}"
        raise ToolNotFound(message, hint=hint)

    def _store_media(self, facts: Mapping[str, Any], data: bytes, mime_type: str) -> str:
        output = self._loaded.settings.output
        rows = MediaRows(self._database, facts["scope"], output.result_ttl, max_bytes=output.max_stored_bytes)
        return rows.put(data, mime_type, facts["agent"], facts["token_id"])


class _Reports:
    """The last messages of a tool, sent to the replica at a limited rate."""

    def __init__(self, send: Callable[[Sequence[Mapping[str, Any]]], None], redact: Redactor) -> None:
        self._send, self._redact = send, redact
        self.events: deque[Mapping[str, Any]] = deque(maxlen=MAX_EVENTS)
        self._count = 0
        self._sending: asyncio.Task[None] | None = None
        self._is_closed = False

    def add_progress(self, message: str, *numbers: float | None) -> None:
        self._add(kind="progress", message=self._redact(message)[:MAX_MESSAGE_CHARS], numbers=numbers)

    def add_log(self, message: str, level: str) -> None:
        self._add(kind="log", message=self._redact(message)[:MAX_MESSAGE_CHARS], level=level)

    def _add(self, **event: Any) -> None:
        self._count += 1
        self.events.append({"number": self._count, **event})
        if self._sending is None or self._sending.done():
            self._sending = asyncio.ensure_future(self._send_later())

    async def _send_later(self) -> None:
        await asyncio.sleep(REPORT_SECONDS)
        if not self._is_closed:
            with suppress(ToolError):  # the result has the last messages too
                await anyio.to_thread.run_sync(self._send, list(self.events))

    def close(self) -> None:
        self._is_closed = True


async def reject_call(name: str, *_args: Any, **_kwargs: Any) -> Result:
    """Return the error for a tool that calls another one: a worker of a queue has no other tools."""
    message = f"cannot call {name}: tools on workers of queues cannot call other tools"
    hint = "call it in the run, and pass its result as an argument"
    return Result(ok=False, error=ToolError(message, hint=hint, code="remote_worker"))


def _name(job: ClaimedJob) -> str:
    return f"{job.facts['pack']}.{job.facts['function']}"
