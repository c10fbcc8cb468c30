"""The backend of a pack with a queue: workers on other machines make its calls.

A call becomes a job, and the backend follows the job until it ends. If the process of this backend ends, the job does
not, and a repetition of the call by another process follows the same job.
"""

import asyncio
import os
from collections.abc import Callable
from functools import partial
from typing import Any, NoReturn

import anyio
import anyio.to_thread

from onetool.core.context import ToolContext
from onetool.core.tool import Tool
from onetool.errors import Cancelled, Interrupted, StorageError, ToolError, ToolTimeout
from onetool.extensions.static_analysis import Extension
from onetool.extensions.worker_backend import Timeouts
from onetool.state.storage import LOST_SECONDS, JobRequest, JobStatus, JobStorage
from onetool_child.json_types import JsonMapping

POLL_SECONDS = 2.0  # a notification may be lost with a connection
RETRY_SECONDS = 0.5  # while the database does not answer
REPORT_SECONDS = 10.0  # for a worker to report that the call has timed out


class QueueBackend:
    """The backend of one pack. `get_jobs` returns the jobs in the state."""

    is_resumable = True  # a repeated call with the same ID is the same call

    def __init__(
        self,
        extension: Extension,
        timeouts: Timeouts,
        queue: str,
        wait_seconds: float,
        get_jobs: Callable[[], JobStorage],
    ) -> None:
        self.extension = extension
        self.timeouts = timeouts
        self.queue = queue
        self._wait_seconds = wait_seconds
        self._get_jobs = get_jobs
        self._is_retired = False
        self._calls = 0

    def identify(self, _tool: Tool) -> Any:
        return [self.extension.identify(), self.queue]

    async def invoke(self, tool: Tool, args: JsonMapping, context: ToolContext) -> Any:
        ticket = context.run.ticket
        is_detached = ticket is not None and ticket.is_detached
        request = JobRequest(
            id=os.urandom(16).hex() if ticket is None else ticket.call_id,
            queue=self.queue,
            pack=self.extension.pack,
            function=tool.short_name,
            arguments=args,
            options={
                "context": context.to_data(self.extension.pack),
                "token_id": context.token_id,
                "scope": str(context.working_dir),  # to which media belong
            },
            seconds=self.timeouts.call,
            wait_seconds=self._wait_seconds if is_detached else self.timeouts.call,
            is_idempotent=tool.is_idempotent,
            may_exist=ticket is not None,
            must_exist=ticket is not None and ticket.is_repeated and not tool.is_idempotent,
        )
        self._calls += 1
        try:
            return await _JobFollower(self._get_jobs(), request, context, self.timeouts.start).run()
        finally:
            self._calls -= 1

    @property
    def state(self) -> str:
        return f"queue {self.queue}"

    @property
    def failure(self) -> ToolError | None:
        return None

    def retire(self) -> None:
        """Make no new calls because the settings have changed. Calls in flight complete."""
        self._is_retired = True

    @property
    def is_over(self) -> bool:
        return self._is_retired and not self._calls

    async def close(self) -> None:
        self.retire()


class _JobFollower:
    """One call: its job, and the messages of the tool."""

    def __init__(self, jobs: JobStorage, request: JobRequest, context: ToolContext, start_seconds: float) -> None:
        self._jobs = jobs
        self._request = request
        self._context = context
        self._call_seconds = start_seconds + request.seconds + REPORT_SECONDS
        self._seen = 0  # the number of the last event
        self._connected_at = 0.0  # since when the database answers
        self._changed = asyncio.Event()

    async def run(self) -> Any:
        loop = asyncio.get_running_loop()
        request = self._request
        with self._jobs.watch(request.id, partial(loop.call_soon_threadsafe, self._changed.set)):
            try:
                await anyio.to_thread.run_sync(self._jobs.add, request)
                status = await self._follow(loop.time())
            except asyncio.CancelledError:
                await self._cancel()
                raise
        if status.is_large and not request.may_exist:  # otherwise another process may read it again
            await self._call_quietly(self._jobs.delete)
        return self._unwrap(status)

    async def _follow(self, began: float) -> JobStatus:
        """Return the status of the ended job."""
        loop = asyncio.get_running_loop()
        status = JobStatus("waiting")
        deadline = began + self._request.wait_seconds
        self._connected_at = began
        while True:
            self._changed.clear()
            before = status.state
            status, pause = await self._read(status)
            if status.state not in {"waiting", "started"}:
                return status
            if (before, status.state) == ("waiting", "started"):  # its worker ends it in time
                deadline = loop.time() + self._call_seconds
            left = deadline - loop.time()
            if left <= 0:
                await self._time_out(status)
            try:
                await asyncio.wait_for(self._changed.wait(), min(left, pause))
            except TimeoutError:
                continue

    async def _read(self, before: JobStatus) -> tuple[JobStatus, float]:
        """Return the current status, and after how long to read it again. While the database is away, it is unknown."""
        now = asyncio.get_running_loop().time()
        request = self._request
        try:
            status = await anyio.to_thread.run_sync(self._jobs.read, request.id, self._seen)
            if status.is_stalled and now - self._connected_at > LOST_SECONDS:
                await anyio.to_thread.run_sync(self._jobs.recover, request.id, request.is_idempotent)
                return status, 0.0
        except StorageError as error:
            if not error.fields.get("is_retryable"):
                raise
            self._connected_at = now  # its workers get time to send heartbeats again
            return before, RETRY_SECONDS
        for event in status.events:
            self._seen = event["number"]
            self._report(event)
        return status, POLL_SECONDS

    def _report(self, event: JsonMapping) -> None:
        client = self._context.client
        callback = client.progress if event["kind"] == "progress" else client.log
        if callback is not None:
            callback(event["message"], *event["details"])

    async def _cancel(self) -> None:
        """Abort the job, unless another process continues the run of this call."""
        ticket = self._context.run.ticket
        if ticket is None or not ticket.continues_elsewhere:
            with anyio.CancelScope(shield=True):
                await self._call_quietly(self._jobs.cancel)

    async def _call_quietly(self, function: Callable[[str], None]) -> None:
        try:
            await anyio.to_thread.run_sync(function, self._request.id)
        except StorageError:  # the job ends by its own timeout, and is deleted later
            return

    async def _time_out(self, status: JobStatus) -> NoReturn:
        await self._call_quietly(self._jobs.cancel)
        queue = self._request.queue
        seconds = self._request.wait_seconds
        if status.state == "started":
            raise ToolTimeout(f"{self._request.tool} took longer than {self._request.seconds:g} s")
        (found, *_) = await anyio.to_thread.run_sync(
            lambda: [each for each in self._jobs.list_queues([queue]) if each.name == queue]
        )
        if found.workers:
            message = (
                f"{self._request.tool} was not called: all workers of the queue {queue} were busy for {seconds:g} s"
            )
            hint = f"start another worker: `onetool worker --queue {queue}`"
            raise ToolTimeout(message, hint=hint, code="queue_busy")
        raise make_worker_error(self._request.tool, queue, seconds)

    def _unwrap(self, status: JobStatus) -> Any:
        if status.error is not None:
            raise status.error
        if status.state == "done":
            return status.value
        if status.state == "cancelled":
            raise Cancelled(f"{self._request.tool} was cancelled")
        message = f"{self._request.tool} was interrupted: its worker ended during the call, which may have had effects"
        hint = f"check what it has done before you repeat it; `tools.{self._request.pack}.idempotent` lists tools that "
        raise Interrupted(message, hint=f"{hint}may be repeated", code="worker_lost")


def make_worker_error(name: str, queue: str, seconds: float) -> ToolTimeout:
    message = f"{name} was not called: no worker serves the queue {queue}, after {seconds:g} s"
    return ToolTimeout(message, hint=f"start one: `onetool worker --queue {queue}`", code="no_worker")
