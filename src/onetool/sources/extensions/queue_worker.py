"""A process that makes queued calls: procrastinate's worker with this machine's packs.

It runs only packs of its own settings, with its own secrets, and reaches only jobs and its own
results. Import this module only in a worker: it imports procrastinate.
"""

import asyncio
import logging
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from functools import partial
from typing import Any

from procrastinate import App, RetryStrategy
from procrastinate.exceptions import ConnectorException, JobAborted
from procrastinate.job_context import AbortReason, JobContext
from procrastinate.worker import Worker

from onetool.core.tool import Tool
from onetool.errors import Interrupted, ToolError, ToolNotFound, ToolTimeout
from onetool.runs.results.blobs import Media
from onetool.settings.load import Loaded
from onetool.sources.extensions.backends import WorkerBackend
from onetool.sources.extensions.packs import Extensions
from onetool.state.postgres_database import Database
from onetool.state.result_parts import PartRows
from onetool.state.worker_jobs import HeldJob, ReconnectingConnector, WorkerJobs
from onetool.util.clock_watch import ClockWatch
from onetool.util.context import CallClient, Caller, Result, RunScope, ToolContext
from onetool.util.redact import Redactor
from onetool_child.json_types import JsonMapping

HEARTBEAT_SECONDS = 2.0
POLL_SECONDS = 1.0  # for jobs that return to the queue, about which nobody notifies
REPORT_SECONDS = 0.25  # between two reports of a job
KEEP_WORKER_SECONDS = 86_400.0  # a worker may be without the database for a while


class QueueWorker:
    """A worker for some queues. `packs` are the packs that it serves, by queue."""

    def __init__(
        self,
        loaded: Loaded,
        database: Database,
        extensions: Extensions,
        packs: Mapping[str, Sequence[str]],
        *,
        concurrency: int,
        grace_seconds: float,
        log: Callable[..., None],
    ) -> None:
        self._loaded = loaded
        self._database = database
        self._extensions = extensions
        self._packs = packs
        self._log = log
        self._is_stopping = False
        connector = ReconnectingConnector(
            database.url, lambda: self._is_stopping and not self._jobs.held
        )
        self._jobs = WorkerJobs(
            connector, database.key, sorted(packs), Redactor(loaded.secret_values), log
        )
        self._app = App(connector=connector)
        self._app.job_manager = self._jobs
        retry = RetryStrategy(retry_exceptions=[JobAborted])
        self._app.task(name="onetool.run_job", pass_context=True, retry=retry)(self._run_job)
        # Its messages repeat what the log of this worker says, and errors would be printed with
        # their traces.
        logging.getLogger("procrastinate").setLevel(logging.CRITICAL + 1)
        self._worker: Any = Worker(
            self._app,
            queues=sorted(packs),
            concurrency=concurrency,
            fetch_job_polling_interval=POLL_SECONDS,
            abort_job_polling_interval=POLL_SECONDS,
            shutdown_graceful_timeout=grace_seconds,
            update_heartbeat_interval=HEARTBEAT_SECONDS,
            stalled_worker_timeout=KEEP_WORKER_SECONDS,
            install_signal_handlers=False,
        )

    async def run(self, on_ready: Callable[[], None]) -> None:
        """Make calls until `stop` is called."""
        self._jobs.on_registered = on_ready
        async with self._app.open_async():
            reporting = asyncio.ensure_future(self._report())
            try:
                if not self._is_stopping:
                    await self._worker.run()
            finally:
                reporting.cancel()

    def stop(self) -> None:
        """Take no more jobs.

        Those in flight get some time; then they return to the queue, or are interrupted.
        """
        self._is_stopping = True
        self._worker.stop()

    async def _report(self) -> None:
        """Report calls, also after a stop, when procrastinate sends no heartbeats."""
        while True:
            await asyncio.sleep(REPORT_SECONDS)
            with suppress(ConnectorException):  # a result has the last messages too
                await self._jobs.report()
                if self._is_stopping and self._worker.worker_id is not None:
                    await self._jobs.update_heartbeat(self._worker.worker_id)

    async def _run_job(self, context: JobContext, /, **_details: Any) -> None:
        """Make a job's call."""
        held = self._jobs.held[context.job.id]
        try:
            self._jobs.open(held)
        except ToolError as error:
            self._log("job.rejected", level="ERROR", job=held.name, text=error.message)
            raise
        try:
            held.value = await self._make_call(held)
        except asyncio.CancelledError:
            if context.abort_reason() is not AbortReason.SHUTDOWN:
                self._log("job.cancelled", job=held.name)
                raise
            if held.is_repeatable:
                raise JobAborted from None
            message = f"{held.tool} was interrupted: its worker was stopped during the call"
            held.error = Interrupted(message, code="worker_lost")
        except TimeoutError:
            held.error = ToolTimeout(f"{held.tool} took longer than {held.facts['seconds']:g} s")
        except Exception as error:  # noqa: BLE001 - whatever the tool raised is its result
            held.error = error

    async def _make_call(self, job: HeldJob) -> Any:
        facts = job.facts
        caller = {
            **facts["context"],
            "sandbox": {},
            "working_dir": self._loaded.directories.working_dir,
        }
        context = ToolContext(
            **caller,
            caller=Caller(caller["agent_id"], token_id=facts["token_id"]),
            client=CallClient(
                progress=partial(job.add_event, "progress"), log=partial(job.add_event, "log")
            ),
            run=RunScope(store_media=partial(self._store_media, facts)),
        )
        tool = await self._find_tool(facts)
        args = tool.input.check(facts["arguments"])
        assert isinstance(tool.backend, WorkerBackend)
        await tool.backend.warm_up(context)  # the timeout of a call does not include the start
        async with asyncio.timeout(float(facts["seconds"])):
            return await tool.backend.invoke(tool, args, context)

    async def _find_tool(self, facts: JsonMapping) -> Tool:
        """Return the job's tool.

        Its pack must be one that the settings of this worker give to the queue.
        """
        pack = facts["pack"]
        queue = facts["queue"]
        name = f"{pack}.{facts['function']}"
        tool = self._extensions.held.get(name)
        if tool is not None and tool.refresh is not None:
            await tool.refresh()
            tool = self._extensions.held.get(name)
        if tool is None or pack not in self._packs[queue]:
            hint = f"install the pack {pack} there, and set tools.{pack}.queue: {queue}"
            raise ToolNotFound(f"the worker of the queue {queue} has no tool {name}", hint=hint)
        return tool

    def _store_media(self, facts: JsonMapping, data: bytes, mime_type: str) -> str:
        output = self._loaded.settings.output
        parts = PartRows(self._database, facts["scope"], ClockWatch(self._database.now), "media")
        media = Media(parts, output.result_ttl, max_bytes=output.max_stored_bytes)
        return media.put(data, mime_type, facts["context"]["agent_id"], facts["token_id"])


async def reject_call(name: str, *_args: Any, **_kwargs: Any) -> Result:
    """Return the error for a tool that calls another one: a queue worker has no others."""
    message = f"cannot call {name}: tools on workers of queues cannot call other tools"
    hint = "call it in the run, and pass its result as an argument"
    return Result(ok=False, error=ToolError(message, hint=hint, code="remote_worker"))
