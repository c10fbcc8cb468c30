"""The worker of a pack: started at the first call, replaced when it is gone or its file has changed, stopped when idle.

It is also the backend of the pack's tools. A start that failed is not tried again at once; the error is kept meanwhile.
"""

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import Any

from ot.context import ToolContext
from ot.errors import ToolError, ToolTimeout
from ot.extensions.source import Extension
from ot.extensions.worker import CallTool, Launch, Worker
from ot.tool import Tool

FIRST_WAIT, LONGEST_WAIT = 1.0, 60.0
RUNNING = "running"
FAILED_STATE = "failed: "
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
        self._worker: Worker | None = None
        self._workers: set[Worker] = set()  # all that have not ended
        self._starting = asyncio.Lock()
        self._last_call = 0.0
        self._failure: ToolError | None = None
        self._failures = 0
        self._next_try = 0.0
        self._state = "not started"
        self._is_retired = self._is_closed = False

    async def invoke(self, tool: Tool, args: Mapping[str, Any], context: ToolContext) -> Any:
        worker = await self._ready_worker(context)
        try:
            return await worker.call(tool.short_name, args, context, self.times.call)
        finally:
            self._last_call = asyncio.get_running_loop().time()
            if self._is_retired:  # while it was being started
                worker.retire()

    async def warm_up(self, context: ToolContext) -> None:
        """Have its process ready; what keeps it from that is raised."""
        await self._ready_worker(context)

    @property
    def state(self) -> str:
        is_gone = self._worker is not None and self._worker.is_over
        return "ended, the next call starts it" if is_gone and self._state == RUNNING else self._state

    def retire(self) -> None:
        """Its file or its settings have changed: calls in flight end on what they began on."""
        self._is_retired = True
        if self._worker is not None:
            self._worker.retire()

    @property
    def is_over(self) -> bool:
        """Whether it was replaced, and nothing of it is left."""
        return self._is_retired and not self._workers

    async def close(self) -> None:
        """End all its workers, those too that were retired and still have calls."""
        self._is_closed = True
        self.retire()
        await asyncio.gather(*(worker.end() for worker in list(self._workers)))

    # --- starting ---------------------------------------------------------------------------------------------------

    async def _ready_worker(self, context: ToolContext) -> Worker:
        if self._worker is not None:
            await self._worker.settle()  # a worker that hangs is replaced, and does not cost the next call its time too
        if self._worker is not None and not self._worker.is_over:
            return self._worker
        async with self._starting:
            if self._worker is None or self._worker.is_over:
                self._refuse_for_now()
                self._worker = await self._started(context.progress or (lambda _text: None))
            return self._worker

    def _refuse_for_now(self) -> None:
        seconds = self._next_try - asyncio.get_running_loop().time()
        if self._failure is not None and seconds > 0:
            raise ToolError(
                f"{self._failure.message} (Not tried again: the next try is in {seconds:.0f} s, "
                "or as soon as the file changes.)",
                **self._failure.fields,
            )

    def _refuse_when_closed(self) -> None:
        if self._is_closed:
            raise ToolError(f"{self.extension.pack} is not started any more: OneTool is closing")

    async def _started(self, progress: Callable[[str], None]) -> Worker:
        name, began = self.extension.pack, asyncio.get_running_loop().time()
        self._state = "starting"
        try:
            launch = await self._prepared(lambda line: progress(f"{name}: {line}"))
            progress(f"{name}: starting")
            self._refuse_when_closed()
            worker = Worker(launch, self._call_tool, _Printed(self._log, name), self._workers.discard)
            self._workers.add(worker)
            python = await worker.start(self.times.start)
            if launch.remember is not None:
                await launch.remember(python)
        except ToolError as error:
            self._failed(error)
            raise
        except BaseException:
            self._state = "not started"
            raise
        self._failure, self._failures, self._state = None, 0, RUNNING
        self._last_call = asyncio.get_running_loop().time()
        self._stop_when_idle(worker)
        seconds = asyncio.get_running_loop().time() - began
        self._log("worker.start", pack=name, status="ok", duration_ms=round(seconds * 1000, 3))
        return worker

    async def _prepared(self, progress: Callable[[str], None]) -> Launch:
        try:
            async with asyncio.timeout(self.times.start):
                return await self._prepare(self.extension, progress)
        except TimeoutError:
            raise ToolTimeout(
                f"the environment of {self.extension.pack} was not ready within {self.times.start:g} s; give it more "
                "time with workers.start_timeout in onetool.yaml, or try again in a moment: uv goes on with it"
            ) from None

    def _failed(self, error: ToolError) -> None:
        if self._failure is None or self._failure.message != error.message:  # it says why once
            self._log("worker.start", pack=self.extension.pack, status="error", text=error.message)
        self._failure, self._state = error, f"{FAILED_STATE}{error.message}"
        wait = min(LONGEST_WAIT, FIRST_WAIT * 2**self._failures)
        self._failures += 1
        self._next_try = asyncio.get_running_loop().time() + wait

    # --- stopping ---------------------------------------------------------------------------------------------------

    def _stop_when_idle(self, worker: Worker) -> None:
        """Every call starts the idle time anew: who is too early comes again."""
        loop = asyncio.get_running_loop()
        left = self._last_call + self.times.idle - loop.time()
        if worker.is_over:
            return
        if worker.in_flight or left > 0:
            loop.call_later(left if left > 0 else self.times.idle, self._stop_when_idle, worker)
            return
        worker.retire()
        self._state = "stopped, nobody called it"
