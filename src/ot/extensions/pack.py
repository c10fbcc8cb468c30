"""The worker of a pack: started at the first call, replaced when it is gone or its file has changed, stopped when idle.

It is also the backend of the pack's tools. A start that failed is not tried again at once; the error is kept meanwhile.
"""

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import Any

from ot.context import ToolContext
from ot.errors import ToolError
from ot.extensions.source import Extension
from ot.extensions.worker import CallTool, Launch, Worker
from ot.tool import Tool

FIRST_WAIT, LONGEST_WAIT = 1.0, 60.0
Prepare = Callable[[Extension, Callable[[str], None]], Awaitable[Launch]]


@dataclass(frozen=True, slots=True)
class Times:
    """How long things may take, in seconds."""

    start: float
    call: float
    idle: float


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
        self.state = "not started"
        self._is_retired = False

    async def invoke(self, tool: Tool, args: Mapping[str, Any], context: ToolContext) -> Any:
        worker = await self._ready_worker(context)
        try:
            return await worker.call(tool.short_name, args, context, self.times.call)
        finally:
            self._last_call = asyncio.get_running_loop().time()

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
        self.retire()
        await asyncio.gather(*(worker.end() for worker in list(self._workers)))

    def _printed(self, text: str) -> None:
        self._log("worker.output", pack=self.extension.pack, text=text)

    # --- starting ---------------------------------------------------------------------------------------------------

    async def _ready_worker(self, context: ToolContext) -> Worker:
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

    async def _started(self, progress: Callable[[str], None]) -> Worker:
        name, began = self.extension.pack, asyncio.get_running_loop().time()
        self.state = "starting"
        try:
            launch = await self._prepare(self.extension, lambda line: progress(f"{name}: {line}"))
            progress(f"{name}: starting")
            worker = Worker(launch, self._call_tool, self._printed, self._workers.discard)
            self._workers.add(worker)
            python = await worker.start(self.times.start)
            if launch.remember is not None:
                await launch.remember(python)
        except ToolError as error:
            self._failed(error)
            raise
        except BaseException:
            self.state = "not started"
            raise
        self._failure, self._failures, self.state = None, 0, "running"
        self._last_call = asyncio.get_running_loop().time()
        self._stop_when_idle(worker)
        seconds = asyncio.get_running_loop().time() - began
        self._log("worker.start", pack=name, status="ok", duration_ms=round(seconds * 1000, 3))
        return worker

    def _failed(self, error: ToolError) -> None:
        if self._failure is None or self._failure.message != error.message:  # it says why once
            self._log("worker.start", pack=self.extension.pack, status="error", text=error.message)
        self._failure, self.state = error, f"failed: {error.message}"
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
        self.state = "stopped, nobody called it"
