"""Run programs for tools: in own process groups, with timeout, streaming and cleanup.

If the kernel supports Landlock, a program can be limited to the files that it needs to read. A
program that starts others runs under a guard (`onetool_child.guard`), which ends all of them, even
those that left the process group.
"""

import asyncio
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import IO, Any, NamedTuple, TypeVar

from onetool.errors import ToolError
from onetool.processes.process import GUARD, Variables
from onetool_child.guard import kill_descendants

if sys.platform != "win32":
    import fcntl
    import resource

T = TypeVar("T")
OnData = Callable[[bytes], bool | None]  # returns true to stop the program
# The guard watches descriptor 0. The program gets an empty standard input, so that it never waits
# for input.
WITHOUT_INPUT = ("/bin/sh", "-c", 'exec "$@" </dev/null', "sh")
READ_BYTES = 1 << 16
KILLED_SECONDS = 5.0  # for the kernel to end killed processes
DRAIN_SECONDS = 1.0  # to read the remaining output of an ended process


class Program(NamedTuple):
    """A program to run.

    It may read and execute `readable` only; `starts_others` means that it has descendants.
    """

    command: Sequence[str]
    cwd: Path
    env: Variables
    seconds: float | None = None  # until it is killed
    readable: Sequence[str] | None = None
    memory_bytes: int | None = None
    starts_others: bool = False


class Ended(NamedTuple):
    """A program's result.

    `status` is None if it was killed: after a timeout, or because a callback stopped it.
    """

    status: int | None
    timed_out: bool
    seconds: float


async def run(program: Program, on_output: OnData, on_error: OnData) -> Ended:
    """Run the program until it ends, times out or a callback stops it. It never outlives this call."""
    started = time.monotonic()
    running = await _start_running(program, on_output, on_error)
    try:
        ends = {running.ended, running.stopped}
        await asyncio.wait(ends, timeout=program.seconds, return_when=asyncio.FIRST_COMPLETED)
        exited = running.ended.done()
        timed_out = not any(future.done() for future in ends)
    finally:
        await running.end()
    if running.stopped.done():
        running.stopped.result()  # raises what a callback raised
    return Ended(running.status if exited else None, timed_out, time.monotonic() - started)


async def _start_running(program: Program, on_output: OnData, on_error: OnData) -> "_Running":
    starting = _run_in_new_thread(partial(_start, program))
    try:
        process, write_end = await asyncio.shield(starting)
    except asyncio.CancelledError:
        await asyncio.shield(_abandon(program, starting))
        raise
    except OSError as error:
        raise ToolError(f"cannot start {program.command[0]}: {error.strerror or error}") from None
    running = _Running(process, write_end, guarded=_is_guarded(program))
    try:
        await running.read(on_output, on_error)
    except BaseException:
        await running.end()
        raise
    return running


async def _abandon(
    program: Program, starting: asyncio.Future[tuple[subprocess.Popen[bytes], int]]
) -> None:
    """End a program whose caller was cancelled while it started."""
    with suppress(OSError):
        process, write_end = await starting
        await _Running(process, write_end, guarded=_is_guarded(program)).end()


# --- starting -------------------------------------------------------------------------------------


def _start(program: Program) -> tuple[subprocess.Popen[bytes], int]:
    """Start the process; return it with a pipe end that stays open while the server lives.

    Landlock applies to the calling thread and what it starts, so call this in a thread that ends
    afterwards.
    """
    if program.readable is not None:
        _restrict_reading(program.readable)
    guard = [*GUARD, *WITHOUT_INPUT] if _is_guarded(program) else []
    read_end, write_end = os.pipe()
    try:
        process = subprocess.Popen(  # noqa: S603 - the caller decides what to run
            [*guard, *program.command],
            cwd=program.cwd,
            env=dict(program.env),
            stdin=read_end,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            start_new_session=True,
        )
        if not guard:
            _bind_to_pipe(process.pid, read_end)
        _limit_memory(process.pid, program.memory_bytes)
    except BaseException:
        os.close(write_end)
        raise
    finally:
        os.close(read_end)
    return process, write_end


def _restrict_reading(readable: Sequence[str]) -> None:
    from onetool_child import confine

    with suppress(confine.Unavailable):
        confine.landlock(readable, (), programs=True)


def _is_guarded(program: Program) -> bool:
    return program.starts_others and hasattr(os, "fork")


def _bind_to_pipe(group: int, read_end: int) -> None:
    """Have the kernel kill the process group when the pipe's other end closes.

    PR_SET_PDEATHSIG cannot be used: it is sent when the thread ends that started the process.
    """
    if sys.platform == "linux":
        set_signal = 10  # F_SETSIG, which Python does not name
        fcntl.fcntl(read_end, fcntl.F_SETOWN, -group)
        fcntl.fcntl(read_end, set_signal, signal.SIGKILL)
        fcntl.fcntl(read_end, fcntl.F_SETFL, fcntl.fcntl(read_end, fcntl.F_GETFL) | os.O_ASYNC)


def _limit_memory(process: int, max_bytes: int | None) -> None:
    """Limit the memory that the process allocates; mapped files do not count."""
    if sys.platform == "linux" and max_bytes is not None:
        with suppress(OSError):  # already ended
            resource.prlimit(process, resource.RLIMIT_DATA, (max_bytes, max_bytes))


def _run_in_new_thread(work: Callable[[], T]) -> asyncio.Future[T]:
    """Run work in a new thread, not in a pool: it may confine the thread, or block for long."""
    loop = asyncio.get_running_loop()
    outcome: asyncio.Future[T] = loop.create_future()

    def settle_once(settle: Callable[[Any], None], value: Any) -> None:
        if not outcome.done():
            settle(value)

    def work_and_report() -> None:
        try:
            report = partial(settle_once, outcome.set_result, work())
        except BaseException as error:  # noqa: BLE001 - raised where the outcome is awaited
            report = partial(settle_once, outcome.set_exception, error)
        with suppress(RuntimeError):  # the loop is closed
            loop.call_soon_threadsafe(report)

    threading.Thread(target=work_and_report, daemon=True).start()
    return outcome


# --- running --------------------------------------------------------------------------------------


class _Running:
    def __init__(self, process: subprocess.Popen[bytes], write_end: int, *, guarded: bool) -> None:
        self._process = process
        self._write_end = write_end
        self._guarded = guarded
        self._pipes: list[asyncio.ReadTransport] = []
        self._closed: list[asyncio.Future[None]] = []
        self._ending: asyncio.Task[None] | None = None
        self.stopped: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.ended = _run_in_new_thread(partial(_wait, process))

    @property
    def status(self) -> int | None:
        return self._process.returncode

    async def read(self, on_output: OnData, on_error: OnData) -> None:
        for stream, on_data in (
            (self._process.stdout, on_output),
            (self._process.stderr, on_error),
        ):
            assert stream is not None
            await self._read_from(stream, on_data)

    async def _read_from(self, stream: IO[bytes], on_data: OnData) -> None:
        reader = _OutputReader(on_data, self.stopped)
        transport, _ = await asyncio.get_running_loop().connect_read_pipe(lambda: reader, stream)
        transport.max_size = READ_BYTES  # type: ignore[attr-defined]
        self._pipes.append(transport)
        self._closed.append(reader.closed)

    async def end(self) -> None:
        """End the program and its descendants, even if the caller is cancelled."""
        await asyncio.shield(self.start_ending())

    def start_ending(self) -> asyncio.Task[None]:
        if self._ending is None:
            if not self._guarded:
                self._kill_group()
            self._ending = asyncio.ensure_future(self._end())
        return self._ending

    def _kill_group(self) -> None:
        """Kill the process group. The process is not reaped yet, so its id cannot be reused."""
        with suppress(ProcessLookupError, PermissionError):
            if sys.platform == "win32":
                self._process.kill()
            else:
                os.killpg(self._process.pid, signal.SIGKILL)

    async def _end(self) -> None:
        try:
            if (
                self._guarded and not self.ended.done()
            ):  # the guard may be stopped, or not running yet
                await _run_in_new_thread(
                    partial(kill_descendants, self._process.pid, self._process.pid)
                )
            if self._closed:
                await asyncio.wait(self._closed, timeout=DRAIN_SECONDS)
            await asyncio.wait([self.ended], timeout=KILLED_SECONDS)
        finally:
            self._release()

    def _release(self) -> None:
        os.close(self._write_end)
        for pipe in (
            *self._pipes,
            self._process.stdout,
            self._process.stderr,
        ):  # they may not be connected yet
            pipe.close()  # type: ignore[union-attr]
        if self.ended.done():
            self._process.wait()
        else:  # the kernel has not ended it yet
            threading.Thread(target=self._process.wait, daemon=True).start()


class _OutputReader(asyncio.Protocol):
    """A reader for one output stream. It ignores data after a callback stopped the program."""

    def __init__(self, on_data: OnData, stop: asyncio.Future[None]) -> None:
        self._on_data = on_data
        self._stop = stop
        self.closed: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def data_received(self, data: bytes) -> None:
        if self._stop.done():
            return
        try:
            if self._on_data(data):
                self._stop.set_result(None)
        except Exception as error:  # noqa: BLE001 - raised by `run`
            self._stop.set_exception(error)

    def connection_lost(self, _exc: Exception | None) -> None:
        if not self.closed.done():
            self.closed.set_result(None)


def _wait(process: subprocess.Popen[bytes]) -> None:
    """Wait until the process ends, if possible without reaping it."""
    if hasattr(os, "waitid"):
        with suppress(ChildProcessError):  # already reaped
            os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT)
    else:
        process.wait()
