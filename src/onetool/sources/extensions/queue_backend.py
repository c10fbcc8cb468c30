"""The backend of a pack with a queue: workers on other machines make its calls.

A call becomes a job. If the process of this backend ends, the job does not, and a repetition of the
call by another process follows the same job.
"""

import os
from collections.abc import Callable
from functools import partial
from typing import Any

from onetool.core.tool import Tool
from onetool.errors import ToolError
from onetool.sources.extensions.static_analysis import Extension
from onetool.sources.extensions.worker_backend import Timeouts
from onetool.state.storage import JobRequest, Jobs
from onetool.util.context import CallClient, ToolContext
from onetool_child.json_types import JsonMapping


class QueueBackend:
    """The backend of one pack. `get_jobs` returns the jobs in the state."""

    is_resumable = True  # a repeated call with the same ID is the same call

    def __init__(
        self,
        extension: Extension,
        timeouts: Timeouts,
        queue: str,
        wait_seconds: float,
        get_jobs: Callable[[], Jobs],
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
            start_seconds=self.timeouts.start,
            wait_seconds=self._wait_seconds if is_detached else self.timeouts.call,
            is_idempotent=tool.is_idempotent,
            ticket=ticket,
        )
        self._calls += 1
        try:
            return await self._get_jobs().call(request, partial(_report, context.client))
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


def _report(client: CallClient, event: JsonMapping) -> None:
    """Report a message of the tool to the client."""
    callback = client.progress if event["kind"] == "progress" else client.log
    if callback is not None:
        callback(event["message"], *event["details"])
