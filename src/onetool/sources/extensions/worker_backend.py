"""The backend of an extension pack.

It starts the worker on the first call, replaces it and stops it when idle.

The worker is replaced if it is lost or its file has changed. After a failed start, callers get the
same error until the next attempt is due.
"""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any, NamedTuple

from onetool.core.tool import Tool
from onetool.errors import ToolError, ToolTimeout
from onetool.processes.supervised import Supervised
from onetool.sources.extensions.environments import Report
from onetool.sources.extensions.static_analysis import Extension
from onetool.sources.extensions.worker import CallTool, Worker, WorkerLaunch, WorkerUser
from onetool.util.context import ToolContext
from onetool_child.json_types import JsonMapping

RUNNING = "running"
FAILED = "failed"
MAX_LOGGED_PER_SECOND = 2 << 20  # characters
Prepare = Callable[[Extension, Report], Awaitable[WorkerLaunch]]


class Timeouts(NamedTuple):
    """The timeouts of a pack in seconds."""

    start: float
    call: float
    idle: float


class _OutputLog:
    """A logger for the output of a worker, with a limit per second."""

    def __init__(self, log: Callable[..., None], pack: str) -> None:
        self._log = log
        self._pack = pack
        self._since = 0.0
        self._logged_chars = 0
        self._omitted = 0

    def __call__(self, text: str) -> None:
        now = asyncio.get_running_loop().time()
        if now - self._since > 1:
            self._since = now
            self._logged_chars = 0
        self._logged_chars += len(text)
        if self._logged_chars > MAX_LOGGED_PER_SECOND:
            self._omitted += len(text)
            return
        if self._omitted:
            self._log(
                "worker.output", pack=self._pack, text=f"[{self._omitted} characters omitted]"
            )
            self._omitted = 0
        self._log("worker.output", pack=self._pack, text=text)


class WorkerBackend:
    """The backend of one extension pack, with its worker.

    `get_worker` may return one that other applications use.
    """

    def __init__(
        self,
        extension: Extension,
        timeouts: Timeouts,
        prepare: Prepare,
        call_tool: CallTool,
        log: Callable[..., None],
        *,
        get_worker: Callable[[WorkerLaunch], Worker] = Worker,
        identity: Any = None,
    ) -> None:
        self.extension = extension
        self.timeouts = timeouts
        self._identity = identity  # of the settings that its tools see
        self._prepare = prepare
        self._log = log
        self._get_worker = get_worker
        self._user = WorkerUser(call_tool, _OutputLog(log, extension.pack))
        self._supervised = Supervised(
            extension.pack,
            self._start,
            self._stop,
            lambda worker: None if worker.users.is_calling(self._user) else timeouts.idle,
        )
        self._workers: set[Worker] = set()  # that have not ended
        self._listeners: list[Report] = []  # callers that wait for the start
        self._state = "not started"
        self._is_retired = self._is_closed = False

    def identify(self, _tool: Tool) -> Any:
        return [self.extension.identify(), self._identity]

    async def invoke(self, tool: Tool, args: JsonMapping, context: ToolContext) -> Any:
        worker = await self._ready_worker(context)
        try:
            return await worker.call(self._user, tool.short_name, args, context, self.timeouts.call)
        finally:
            self._supervised.last_use = asyncio.get_running_loop().time()
            if self._is_retired:  # while it was being started
                worker.leave(self._user)

    async def warm_up(self, context: ToolContext) -> None:
        """Start the worker; raise if that fails."""
        await self._ready_worker(context)

    @property
    def state(self) -> str:
        is_gone = self._state == RUNNING and self._supervised.live is None
        return "ended" if is_gone else self._state

    @property
    def failure(self) -> ToolError | None:
        """The error of the last start, if it failed."""
        return self._supervised.failure

    def retire(self) -> None:
        """Stop using the worker because its file or settings have changed.

        Calls in flight complete.
        """
        self._is_retired = True
        if (worker := self._supervised.live) is not None:
            worker.leave(self._user)

    @property
    def is_over(self) -> bool:
        """Whether it was replaced and all its workers have ended, or are used by others only."""
        return self._is_retired and all(worker.is_done(self._user) for worker in self._workers)

    async def close(self) -> None:
        """End all workers, including retired ones with calls in flight.

        Other applications keep shared ones.
        """
        self._is_closed = True
        self.retire()
        if self._supervised.starting is not None:
            self._supervised.starting.cancel()
        await asyncio.gather(*(worker.release(self._user) for worker in self._workers))

    async def _ready_worker(self, context: ToolContext) -> Worker:
        if (worker := self._supervised.live) is not None:
            await worker.settle()  # replace a stuck worker, so that it does not delay the next call
        self._raise_if_blocked()
        report = context.client.progress
        if report is None or self._supervised.live is not None:
            return await self._supervised.get()
        self._listeners.append(report)
        try:
            return await self._supervised.get()
        finally:
            self._listeners.remove(report)

    def _raise_if_blocked(self) -> None:
        failure = self._supervised.failure
        seconds = self._supervised.wait_seconds
        if self._is_closed:
            raise ToolError(f"cannot start {self.extension.pack}: OneTool is shutting down")
        if failure is not None and seconds > 0 and self._supervised.starting is None:
            raise ToolError(
                f"{failure.message} (next attempt in {seconds:.0f} s, or when the file changes)",
                **failure.fields,
            )

    async def _start(self) -> Worker:
        name = self.extension.pack
        began = asyncio.get_running_loop().time()
        self._state = "starting"
        try:
            launch = await self._prepare_launch()
            self._report("starting")
            worker = self._get_worker(launch)
            worker.users.add(self._user)
            self._workers = {each for each in self._workers if not each.is_done(self._user)} | {
                worker
            }
            python = await worker.start(self._user, self.timeouts.start)
            if launch.remember is not None:
                await launch.remember(python)
        except ToolError as error:
            failure = self._supervised.failure
            if failure is None or failure.message != error.message:  # log the same error once
                self._log("worker.start", pack=name, status="error", text=error.message)
            self._state = FAILED
            raise
        except BaseException:
            self._state = "not started"
            raise
        self._state = RUNNING
        seconds = asyncio.get_running_loop().time() - began
        self._log("worker.start", pack=name, status="ok", duration_ms=round(seconds * 1000, 3))
        return worker

    def _report(self, line: str) -> None:
        for report in self._listeners:
            report(f"{self.extension.pack}: {line}")

    async def _prepare_launch(self) -> WorkerLaunch:
        try:
            async with asyncio.timeout(self.timeouts.start):
                return await self._prepare(self.extension, self._report)
        except TimeoutError:
            raise ToolTimeout(
                f"the environment of {self.extension.pack} was not ready within"
                f" {self.timeouts.start:g} s",
                hint=(
                    "raise workers.start_timeout in onetool.yaml, or retry in a moment: uv"
                    " continues meanwhile"
                ),
            ) from None

    def _stop(self, worker: Worker) -> None:
        worker.leave(self._user)
        self._state = "stopped"  # it was idle
