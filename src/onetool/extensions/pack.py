"""The worker of a pack: started at the first call, replaced when it is gone or its file has changed, stopped when idle.

It is also the backend of the pack's tools. A start that failed is not tried again at once; the error is kept meanwhile.
"""

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import Any

from onetool._tool import Tool
from onetool.children.supervised import Supervised
from onetool.context import ToolContext
from onetool.errors import ToolError, ToolTimeout
from onetool.extensions.source import Extension
from onetool.extensions.worker import CallTool, Launch, Worker

RUNNING = "running"
FAILED = "failed"
MOST_LOGGED = 2 << 20  # characters a second
Prepare = Callable[[Extension, Callable[[str], None]], Awaitable[Launch]]


@dataclass(frozen=True, slots=True)
class Times:
    """How long things may take, in seconds."""

    start: float
    call: float
    idle: float


class _Printed:
    """What a worker prints, for the log; not more than a log can take up while a worker prints without end."""

    def __init__(self, log: Callable[..., None], pack: str) -> None:
        self._log, self._pack = log, pack
        self._since, self._taken, self._left_out = 0.0, 0, 0

    def __call__(self, text: str) -> None:
        now = asyncio.get_running_loop().time()
        if now - self._since > 1:
            self._since, self._taken = now, 0
        self._taken += len(text)
        if self._taken > MOST_LOGGED:
            self._left_out += len(text)
            return
        if self._left_out:
            self._log("worker.output", pack=self._pack, text=f"[{self._left_out} characters left out]")
            self._left_out = 0
        self._log("worker.output", pack=self._pack, text=text)


class Pack:
    def __init__(
        self,
        extension: Extension,
        times: Times,
        prepare: Prepare,
        call_tool: CallTool,
        log: Callable[..., None],
    ) -> None:
        self.extension, self.times = extension, times
        self._prepare, self._call_tool, self._log = prepare, call_tool, log
        self._supervised = Supervised(
            extension.pack, self._start, self._stop, lambda worker: None if worker.in_flight else times.idle
        )
        self._workers: set[Worker] = set()  # all that have not ended
        self._told: list[Callable[[str], None]] = []  # those who wait for the start
        self._state = "not started"
        self._is_retired = self._is_closed = False

    async def invoke(self, tool: Tool, args: Mapping[str, Any], context: ToolContext) -> Any:
        worker = await self._ready_worker(context)
        try:
            return await worker.call(tool.short_name, args, context, self.times.call)
        finally:
            self._supervised.last_use = asyncio.get_running_loop().time()
            if self._is_retired:  # while it was being started
                worker.retire()

    async def warm_up(self, context: ToolContext) -> None:
        """Have its process ready; what keeps it from that is raised."""
        await self._ready_worker(context)

    @property
    def state(self) -> str:
        is_gone = self._state == RUNNING and self._supervised.live is None
        return "ended" if is_gone else self._state

    @property
    def failure(self) -> ToolError | None:
        """Why the last start failed."""
        return self._supervised.failure

    def retire(self) -> None:
        """Its file or its settings have changed: calls in flight end on what they began on."""
        self._is_retired = True
        if (worker := self._supervised.live) is not None:
            worker.retire()

    @property
    def is_over(self) -> bool:
        """Whether it was replaced, and nothing of it is left."""
        return self._is_retired and not self._workers

    async def close(self) -> None:
        """End all its workers, those too that were retired and still have calls."""
        self._is_closed = True
        self.retire()
        if self._supervised.starting is not None:
            self._supervised.starting.cancel()
        await asyncio.gather(*(worker.end() for worker in list(self._workers)))

    async def _ready_worker(self, context: ToolContext) -> Worker:
        if (worker := self._supervised.live) is not None:
            await worker.settle()  # a worker that hangs is replaced, and does not cost the next call its time too
        self._refuse()
        tell = context.progress
        if tell is None or self._supervised.live is not None:
            return await self._supervised.get()
        self._told.append(tell)
        try:
            return await self._supervised.get()
        finally:
            self._told.remove(tell)

    def _refuse(self) -> None:
        failure, seconds = self._supervised.failure, self._supervised.wait_seconds
        if self._is_closed:
            raise ToolError(f"{self.extension.pack} is not started any more: OneTool is closing")
        if failure is not None and seconds > 0 and self._supervised.starting is None:
            raise ToolError(
                f"{failure.message} (Not tried again: the next try is in {seconds:.0f} s, "
                "or as soon as the file changes.)",
                **failure.fields,
            )

    async def _start(self) -> Worker:
        name, began = self.extension.pack, asyncio.get_running_loop().time()
        self._state = "starting"
        try:
            launch = await self._prepared()
            self._tell("starting")
            worker = Worker(launch, self._call_tool, _Printed(self._log, name), self._workers.discard)
            self._workers.add(worker)
            python = await worker.start(self.times.start)
            if launch.remember is not None:
                await launch.remember(python)
        except ToolError as error:
            failure = self._supervised.failure
            if failure is None or failure.message != error.message:  # it says why once
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

    def _tell(self, line: str) -> None:
        for tell in self._told:
            tell(f"{self.extension.pack}: {line}")

    async def _prepared(self) -> Launch:
        try:
            async with asyncio.timeout(self.times.start):
                return await self._prepare(self.extension, self._tell)
        except TimeoutError:
            raise ToolTimeout(
                f"the environment of {self.extension.pack} was not ready within {self.times.start:g} s; give it more "
                "time with workers.start_timeout in onetool.yaml, or try again in a moment: uv goes on with it"
            ) from None

    def _stop(self, worker: Worker) -> None:
        worker.retire()
        self._state = "stopped"  # nobody called it
