"""A pool of cells: confined processes that run code once.

New cells are started before they are needed.

Each run gets a fresh process with limits on time, output and disk, and the process is gone after
the run. The `Host` of the run answers the requests of its code.
"""

import asyncio
import contextvars
import math
import sys
from collections import deque
from collections.abc import Callable, Collection
from contextlib import suppress
from functools import partial
from typing import NamedTuple, Protocol, Self

import anyio
from anyio.to_thread import run_sync as run_in_thread

from onetool.errors import ToolError, ToolTimeout
from onetool.processes.channel import Channel, ChannelClosed
from onetool.runs.cell_process import (
    CellProcess,
    Host,
    OnStray,
    ProcessState,
    RunTimer,
    exit_status,
    read_process_state,
)
from onetool.runs.launch import Launcher, launcher_for
from onetool.util.tasks import BackgroundTasks
from onetool_child.confine import split_memory
from onetool_child.errors import TIMEOUT_HINT
from onetool_child.json_types import JsonObject
from onetool_child.scratch import larger_than

FULL_SANDBOX = ("landlock", "seccomp")
WASM = "wasm"
GRACE_SECONDS = 0.2  # after the timeout, for the cell to report which line was running
CLEANUP_DELAY_SECONDS = (
    0.001  # so that the answer is sent before cleaning up and starting a new cell
)
WATCH_SECONDS = 0.1
CHECKS_TO_CONFIRM = 2
STOPPED = "T"
ZOMBIE = "Z"
BUSY_WATCH_SECONDS = 0.02  # while the run writes fast
CHECKS_PER_DISK_CHECK = 5
BUSY_SHARE = 8  # a run is busy if it wrote this fraction of its limit since the last disk check
MAX_DISK_CHECKS = 4  # concurrently, in threads that tools do not use
MAX_THREADS = 1000
BEGIN_SECONDS = 0.1  # in which a lost run has not done anything yet
GONE_SECONDS = 3.0  # to read what a cell sent before it exited
START_SECONDS = 30
PROBE_SECONDS = 10.0
MAX_ATTEMPTS = 3
NOT_STARTED = "not started yet"
NOT_ANSWERING = "not answering"
PROCESS_ONLY = "process-only"
CLOSED_MESSAGE = "the run was ended: OneTool is shutting down"


class CellLimits(NamedTuple):
    timeout: float = 120
    memory_mb: int = 512
    max_output_bytes: int = 104_857_600
    isolation: str = "auto"
    cells: int = 2
    at_once: int = 128


def is_isolated(layers: Collection[str]) -> bool:
    """Return whether these layers isolate completely, in the kernel or in WebAssembly."""
    return WASM in layers or all(layer in layers for layer in FULL_SANDBOX)


class CellSource(Protocol):
    """The cells of one application: a pool of its own, or a pool that it shares with others."""

    async def __aexit__(self, *_: object) -> None: ...
    async def retire(self) -> None: ...
    async def run(self, params: JsonObject, host: Host) -> JsonObject: ...
    def warm_up(self) -> None: ...
    def split_memory(self, host: Host) -> int: ...
    async def probe(self, seconds: float = PROBE_SECONDS) -> dict[str, str]: ...
    @property
    def isolation(self) -> dict[str, str]: ...
    @property
    def count(self) -> int: ...


class Cells:
    """A pool of cells: `async with Cells(limits) as cells: await cells.run(params, host)`."""

    def __init__(
        self,
        limits: CellLimits,
        on_stray: OnStray = lambda _text: None,
        make_launcher: Callable[..., Launcher] | None = None,
        read_process: Callable[[int], "ProcessState"] | None = None,
    ) -> None:
        self._limits = limits
        self.read_process = read_process or read_process_state
        self._on_stray = on_stray
        self._stray_tail = ""
        self._idle: deque[CellProcess] = deque()
        self._cells: dict[int, CellProcess] = {}
        self._last_id = 0
        self._tasks = BackgroundTasks()
        self._context = (
            contextvars.copy_context()
        )  # of no call: a cell that a call creates may serve another one
        self._slots = asyncio.Semaphore(limits.at_once)
        self._disk_checks = anyio.CapacityLimiter(MAX_DISK_CHECKS)
        self._layers: list[str] | None = None
        self._closed = False
        options = {
            "memory_bytes": limits.memory_mb << 20,
            "file_bytes": limits.max_output_bytes,
            "isolation": limits.isolation,
        }
        self._launcher = (make_launcher or launcher_for(sys.platform, limits.isolation))(
            options, self._on_gone, self._handle_stray
        )

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        self._closed = True
        self._tasks.cancel()
        for cell in list(self._cells.values()):
            self._end(cell)
        await self._launcher.close()

    async def retire(self) -> None:
        """Wait for the current runs, then close."""
        for _ in range(self._limits.at_once):
            await self._slots.acquire()
        running = [
            cell.channel.closed
            for cell in self._cells.values()
            if cell.host is not None and cell.channel
        ]
        if running:  # paused runs have no slot
            await asyncio.wait(running)
        await self.__aexit__()

    # --- runs -------------------------------------------------------------------------------------

    async def run(
        self, params: JsonObject, host: Host, on_stray: OnStray | None = None
    ) -> JsonObject:
        """Run the code of `params` in a fresh cell and return its answer.

        Waiting for a cell counts as run time.

        With `replay` in `params` (`seed`, `clock` and `until`: the number of calls that are
        answered from a journal), random numbers and times depend on it only: see
        `onetool_child.deterministic`. With `pausable`, the timer of the cell does not expire while
        a request is unanswered; `host.timer` decides. `on_stray` gets what its process writes to
        descriptors 1 and 2.
        """
        seconds = self._limits.timeout
        deadline = asyncio.get_running_loop().time() + seconds
        try:
            async with (
                asyncio.timeout_at(deadline + GRACE_SECONDS) as limit,
                RunTimer(limit, self._slots) as timer,
            ):
                host.timer = timer
                return await self._run_by(deadline, params, host, on_stray)
        except TimeoutError:
            if not limit.expired():
                raise
            raise ToolTimeout(
                f"the run took longer than {seconds:g} s and was ended", hint=TIMEOUT_HINT
            ) from None

    def split_memory(self, host: Host) -> int:
        """Take half of its free memory from the run of this host, for its plans.

        Return how many bytes it keeps.
        """
        for cell in self._cells.values():
            if cell.host is host:
                if cell.kept_memory is None:
                    cell.kept_memory = split_memory(cell.pid, self._limits.memory_mb << 20)
                return cell.kept_memory
        return 0  # it has ended

    async def _run_by(
        self, deadline: float, params: JsonObject, host: Host, on_stray: OnStray | None
    ) -> JsonObject:
        for attempt in range(1, MAX_ATTEMPTS + 1):
            cell = await self._take(deadline)
            cell.on_stray = on_stray
            try:
                answer = await self._run_in(cell, deadline, params, host)
            except BaseException as error:
                self._end(cell)
                is_lost = isinstance(error, ToolError) and cell.is_retryable and not host.has_acted
                if attempt == MAX_ATTEMPTS or not is_lost:
                    raise
            else:
                asyncio.get_running_loop().call_later(CLEANUP_DELAY_SECONDS, self._end, cell)
                return answer
        raise AssertionError("the last attempt returns or raises")

    async def _run_in(
        self, cell: CellProcess, deadline: float, params: JsonObject, host: Host
    ) -> JsonObject:
        loop = asyncio.get_running_loop()
        cell.host = host
        cell.started_at = loop.time()
        assert cell.channel is not None
        limits = {"timeout": self._limits.timeout, "max_output": self._limits.max_output_bytes}
        seconds_left = max(deadline - cell.started_at, CLEANUP_DELAY_SECONDS)
        answer = cell.channel.request("run", {**params, **limits, "seconds_left": seconds_left})
        if not self._idle:  # else it can wait until this run has its answer
            self.warm_up()
        cell.watch = loop.call_later(WATCH_SECONDS, self._watch, cell)
        try:
            result = await answer
        except ChannelClosed as closed:
            raise await self._find_loss(cell, str(closed)) from None
        finally:
            del answer  # its error refers to this frame
        if not isinstance(result, dict):
            raise ToolError("the cell returned an invalid response")
        return {**result, "bytes": cell.channel.last_bytes}

    async def _find_loss(self, cell: CellProcess, reason: str) -> Exception:
        """Return why the channel of a cell closed during its run."""
        error = cell.kill_reason or await self._exit_error(cell, reason)
        assert cell.channel is not None
        cell.is_retryable |= cell.channel.is_unread and cell.kill_reason is None
        return error

    async def _exit_error(self, cell: CellProcess, reason: str) -> ToolError:
        self._launcher.kill(cell.ident)
        with suppress(TimeoutError):
            await asyncio.wait_for(asyncio.shield(cell.gone), GONE_SECONDS)
        status = cell.gone.result() if cell.gone.done() else None
        return ToolError(f"the run ended without a response: {reason or exit_status(status)}")

    def _watch(self, cell: CellProcess, checks: int = 1) -> None:
        """Check what the kernel does not limit, ten times per second during the run."""
        if cell.ident not in self._cells or cell.gone.done():
            return
        process = self.read_process(cell.pid)
        self._check_process(cell, process, checks)
        self._check_paused_work(cell, process.processor_seconds)
        is_busy = process.written - cell.written > self._limits.max_output_bytes // BUSY_SHARE
        if (is_busy or checks % CHECKS_PER_DISK_CHECK == 0) and (
            cell.disk_check is None or cell.disk_check.done()
        ):
            cell.written = process.written
            cell.disk_check = self._tasks.start(self._check_disk(cell))
        seconds = BUSY_WATCH_SECONDS if is_busy else WATCH_SECONDS
        cell.watch = asyncio.get_running_loop().call_later(seconds, self._watch, cell, checks + 1)

    def _check_process(self, cell: CellProcess, process: "ProcessState", checks: int) -> None:
        """Kill a run that has too many threads, no main thread, or was stopped.

        A state counts if two checks in a row find it, because a process passes through it when it
        exits or resumes.
        """
        state = process.state
        threads = process.threads
        repeated = state == cell.state
        cell.state = state
        if threads > MAX_THREADS:
            self.kill(
                cell, ToolError(f"the run started more than {MAX_THREADS} threads and was ended")
            )
        elif repeated and state == STOPPED:
            cell.is_retryable = (
                checks == CHECKS_TO_CONFIRM
            )  # it was stopped before the code arrived
            self.kill(
                cell, ToolError("the process of the run was stopped by a signal and was ended")
            )
        elif repeated and state == ZOMBIE and threads > 1 and WASM not in (self._layers or ()):
            # Code in a WebAssembly sandbox cannot do this; a process that crashes looks like this
            # for a moment.
            self.kill(
                cell,
                ToolError(
                    "the main thread of the run exited before its other threads; the run was ended"
                ),
            )

    def _check_paused_work(self, cell: CellProcess, used: float | None) -> None:
        """Kill a run that computes beyond its time while a question stops its timer.

        If the system does not tell how much it computes, it may have computed all the time.
        """
        timer = None if cell.host is None else cell.host.timer
        now = asyncio.get_running_loop().time()
        reason = "it computed while it waited"
        if used is None:
            used = now - cell.started_at
            reason = "on this system, waiting for a person counts"
        if timer is not None and timer.is_paused:
            cell.paused_work += used - cell.processor_seconds
            timed = now - cell.started_at - timer.count_paused_seconds(now)
            if timed + cell.paused_work > self._limits.timeout:
                message = (
                    f"the run took longer than {self._limits.timeout:g} s and was ended: {reason}"
                )
                self.kill(cell, ToolTimeout(message, hint=TIMEOUT_HINT))
        cell.processor_seconds = used

    async def _check_disk(self, cell: CellProcess) -> None:
        limit = self._limits.max_output_bytes
        scratch = self._launcher.scratch(cell.ident)
        check = partial(larger_than, scratch, limit + self._launcher.answer_bytes, [cell.pid])
        if await run_in_thread(check, limiter=self._disk_checks):
            text = (
                f"the run wrote more than {limit} bytes to its scratch directory, or hid them, and"
                " was ended"
            )
            self.kill(cell, ToolError(text))

    def kill(self, cell: CellProcess, reason: Exception) -> None:
        cell.kill_reason = cell.kill_reason or reason
        self._launcher.kill(cell.ident)
        if cell.channel is not None:
            cell.channel.close(str(reason))

    def _end(self, cell: CellProcess) -> None:
        """Release a cell. One that has answered exits by itself and is killed only if it lingers."""
        has_answered = (
            cell.kill_reason is None and cell.channel is not None and not cell.channel.busy
        )
        if cell.watch is not None:
            cell.watch.cancel()
        if cell.channel is not None:
            cell.channel.close()
        self._cells.pop(cell.ident, None)
        if has_answered:
            asyncio.get_running_loop().call_later(
                self._launcher.linger_seconds, self._launcher.kill, cell.ident
            )
        else:
            self._launcher.kill(cell.ident)
        self.warm_up()

    @property
    def count(self) -> int:
        """The number of idle and running cells."""
        return len(self._cells)

    # --- idle cells -------------------------------------------------------------------------------

    def warm_up(self) -> None:
        """Start cells until enough are idle, unless the pool is closed. Returns immediately."""
        while not self._closed and len(self._idle) < max(1, self._limits.cells):
            self._idle.append(self._new())

    @property
    def isolation(self) -> dict[str, str]:
        """The isolation that cells report."""
        layers = self._layers
        sandbox = NOT_STARTED if layers is None else "+".join(layers) or PROCESS_ONLY
        return {"cells": self._launcher.kind, "sandbox": sandbox}

    async def probe(self, seconds: float = PROBE_SECONDS) -> dict[str, str]:
        """Return the isolation, once the zygote has answered and a cell is ready in time."""
        try:
            async with asyncio.timeout(seconds):
                while not await self._launcher.check():
                    pass
                for cell in [
                    cell for cell in self._idle if self.read_process(cell.pid).state == STOPPED
                ]:
                    self._idle.remove(cell)
                    self._end(cell)
                self.warm_up()
                await self._wait_until_ready(self._idle[0], math.inf)
        except (TimeoutError, ToolError, OSError):
            if not self._lacks_isolation():
                return {**self.isolation, "sandbox": NOT_ANSWERING}
        return self.isolation

    async def _take(self, deadline: float) -> CellProcess:
        for attempt in range(1, MAX_ATTEMPTS + 1):
            if self._closed:  # also while a run that lost its cell tries again
                raise ToolError(CLOSED_MESSAGE)
            self.warm_up()
            cell = self._idle.popleft()
            try:
                return await self._wait_until_ready(cell, deadline)
            except BaseException as error:  # also if cancelled: the cell is no longer in the pool
                self._end(cell)
                is_late = asyncio.get_running_loop().time() >= deadline
                if (
                    not isinstance(error, ToolError)
                    or is_late
                    or attempt == MAX_ATTEMPTS
                    or self._lacks_isolation()
                ):
                    raise
        raise AssertionError("the last attempt returns or raises")

    async def _wait_until_ready(self, cell: CellProcess, deadline: float) -> CellProcess:
        if not cell.ready.done():
            left = deadline - asyncio.get_running_loop().time()
            await asyncio.wait([cell.ready], timeout=max(0.0, min(left, START_SECONDS)))
            if not cell.ready.done():
                waited = START_SECONDS if left > START_SECONDS else self._limits.timeout
                raise ToolTimeout(f"the run did not start: no cell was ready within {waited:g} s")
        self._layers = cell.ready.result()
        if self._lacks_isolation():
            missing = " and ".join(layer for layer in FULL_SANDBOX if layer not in self._layers)
            raise ToolError(
                f"execution.isolation is 'require', but this machine does not support {missing}",
                hint=(
                    "set execution.isolation to 'auto' to run with the isolation that is available"
                ),
            )
        return cell

    def _lacks_isolation(self) -> bool:
        complete = self._layers is None or is_isolated(self._layers)
        return self._limits.isolation == "require" and not complete

    def _new(self) -> CellProcess:
        loop = asyncio.get_running_loop()
        self._last_id += 1
        cell = CellProcess(
            self._last_id, loop.create_future(), loop.create_future(), on_excess=self.kill
        )
        self._cells[cell.ident] = cell
        self._context.run(self._tasks.start, self._start(cell))
        return cell

    async def _start(self, cell: CellProcess) -> None:
        cell.channel = Channel(cell.request, cell.notify, cell.piece)
        cell.channel.closed.add_done_callback(lambda closed: self._on_closed(cell, closed.result()))
        try:
            await self._launcher.start(
                cell.ident, cell.channel, lambda text: self._handle_stray(text, cell)
            )
        except (OSError, ToolError) as error:
            cell.channel.close(str(error))

    def _on_closed(self, cell: CellProcess, reason: str) -> None:
        """Remove a cell whose channel closed from the pool, and report why it did not start."""
        if cell in self._idle:
            self._idle.remove(cell)
            self._end(cell)
        if not cell.ready.done():
            cause = reason or cell.reason or self._stray_tail
            cell.ready.set_exception(
                ToolError(f"cannot start a cell: {cause or 'it exited immediately'}")
            )
            cell.ready.exception()  # mark it as retrieved: there may be no waiter

    def _on_gone(self, ident: int, status: int | None, reason: str) -> None:
        cell = self._cells.get(ident)
        if cell is not None and not cell.gone.done():
            cell.gone.set_result(status)
            cell.reason = reason
            started_recently = asyncio.get_running_loop().time() - cell.started_at <= BEGIN_SECONDS
            cell.is_retryable = (
                status is None and not reason and cell.kill_reason is None and started_recently
            )
            if cell.channel is not None and (reason or cell in self._idle):
                cell.channel.close(reason)
            elif (
                cell.channel is not None
            ):  # its answer may still be in the socket, whose end closes the channel
                asyncio.get_running_loop().call_later(GONE_SECONDS, cell.channel.close)

    def _handle_stray(self, text: str, cell: CellProcess | None = None) -> None:
        """Log output of a cell, or of the zygote.

        Only output before a run may explain why other cells do not start.
        """
        if cell is not None and cell.on_stray is not None:
            cell.on_stray(text)
            return
        self._stray_tail = text.strip().rpartition("\n")[2][-200:]
        self._on_stray(text)
