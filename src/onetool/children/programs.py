"""Running a program for a tool: a group of its own, a time limit, what it prints as it comes, and nothing left of it.

Where the kernel has Landlock, a program can be kept to the files that it is meant to read. One that starts others is
put under a guard (`onetool_child.guard`), which ends them all, also those that left their group. What to run, and what
to make of what it prints, is decided elsewhere.
"""

import asyncio
import contextlib
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import IO, Any, TypeVar

import onetool_child
from onetool.errors import ToolError
from onetool_child.guard import end_family

if sys.platform != "win32":
    import fcntl
    import resource

T = TypeVar("T")
Hear = Callable[[bytes], bool | None]  # true for: that is enough
GUARD = Path(onetool_child.__file__).with_name("guard.py")
# The guard watches descriptor 0; what it guards gets an empty one, so that it never waits for somebody to type.
WITHOUT_INPUT = ("/bin/sh", "-c", 'exec "$@" </dev/null', "sh")
READ_SIZE = 1 << 16
WORDS_KEPT = 16_000
KILLED_SECONDS = 5.0  # for the kernel to be done with what was killed
SILENT_SECONDS = 1.0  # for the pipes of what has ended to be read


@dataclass(frozen=True, slots=True)
class Program:
    """`readable` is all that it may read and execute, `starts_others` whether there will be more to end than itself."""

    command: Sequence[str]
    cwd: Path
    env: Mapping[str, str]
    seconds: float
    readable: Sequence[str] | None = None
    memory_bytes: int | None = None
    starts_others: bool = False


@dataclass(frozen=True, slots=True)
class Ended:
    """`status` is None for a program that was ended by us: it took too long, or had said enough."""

    status: int | None
    timed_out: bool
    seconds: float


class LastWords:
    """The end of what a program prints, in bounded space."""

    def __init__(self, most: int = WORDS_KEPT) -> None:
        self._most, self._kept = most, bytearray()

    def __call__(self, data: bytes) -> None:
        self._kept += data
        del self._kept[: -self._most]

    def __str__(self) -> str:
        return self._kept.decode("utf-8", "replace").strip()


async def run(program: Program, on_output: Hear, on_error: Hear) -> Ended:
    """Start it and wait until it has ended, says enough or takes too long. However this ends, the program has too."""
    started = time.monotonic()
    running = await _started(program, on_output, on_error)
    try:
        over = {running.ended, running.heard_enough}
        await asyncio.wait(over, timeout=program.seconds, return_when=asyncio.FIRST_COMPLETED)
        by_itself, timed_out = running.ended.done(), not any(future.done() for future in over)
    finally:
        await running.end()
    if running.heard_enough.done():
        running.heard_enough.result()  # or what was raised while listening
    return Ended(running.status if by_itself else None, timed_out, time.monotonic() - started)


async def _started(program: Program, on_output: Hear, on_error: Hear) -> "_Running":
    starting = _in_own_thread(partial(_start, program))
    try:
        process, leash = await asyncio.shield(starting)
    except asyncio.CancelledError:
        starting.add_done_callback(partial(_abandon, program))
        raise
    except OSError as error:
        raise ToolError(f"{program.command[0]} cannot be started: {error.strerror or error}") from None
    running = _Running(process, leash, guarded=_is_guarded(program))
    try:
        await running.listen(on_output, on_error)
    except BaseException:
        await running.end()
        raise
    return running


def _abandon(program: Program, starting: asyncio.Future[tuple[subprocess.Popen[bytes], int]]) -> None:
    """Nobody waits for it any more, and now it has started."""
    if not starting.cancelled() and starting.exception() is None:
        process, leash = starting.result()
        _Running(process, leash, guarded=_is_guarded(program)).begin_to_end()


# --- starting -------------------------------------------------------------------------------------------------------


def _start(program: Program) -> tuple[subprocess.Popen[bytes], int]:
    """The process, and the end of a pipe that stays open as long as we live: its leash.

    What confines a thread confines what it starts. So this belongs in a thread that ends afterwards.
    """
    if program.readable is not None:
        _keep_to(program.readable)
    guard = [sys.executable, "-I", "-S", str(GUARD), *WITHOUT_INPUT] if _is_guarded(program) else []
    collar, leash = os.pipe()
    try:
        process = subprocess.Popen(  # noqa: S603 - what is run is the caller's decision
            [*guard, *program.command],
            cwd=program.cwd,
            env=dict(program.env),
            stdin=collar,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            start_new_session=True,
        )
        if not guard:
            _tie(process.pid, collar)
        _limit_memory(process.pid, program.memory_bytes)
    except BaseException:
        os.close(leash)
        raise
    finally:
        os.close(collar)
    return process, leash


def _keep_to(readable: Sequence[str]) -> None:
    from onetool_child import confine

    with contextlib.suppress(confine.Unavailable):
        confine.landlock(readable, (), programs=True)


def _is_guarded(program: Program) -> bool:
    return program.starts_others and hasattr(os, "fork")


def _tie(group: int, collar: int) -> None:
    """Have the kernel kill the group when the other end of the pipe closes, as it does when we are killed.

    The death signal of Linux cannot be used: it comes when the thread ends that started the process.
    """
    if sys.platform == "linux":
        set_signal = 10  # F_SETSIG, which Python does not name
        fcntl.fcntl(collar, fcntl.F_SETOWN, -group)
        fcntl.fcntl(collar, set_signal, signal.SIGKILL)
        fcntl.fcntl(collar, fcntl.F_SETFL, fcntl.fcntl(collar, fcntl.F_GETFL) | os.O_ASYNC)


def _limit_memory(process: int, most: int | None) -> None:
    """What it allocates; files that it maps to read them do not count."""
    if sys.platform == "linux" and most is not None:
        with contextlib.suppress(OSError):  # it has ended already
            resource.prlimit(process, resource.RLIMIT_DATA, (most, most))


def _in_own_thread(work: Callable[[], T]) -> asyncio.Future[T]:
    """Not in one of a pool: it may be changed for good, or wait for very long."""
    loop = asyncio.get_running_loop()
    outcome: asyncio.Future[T] = loop.create_future()

    def tell(settle: Callable[[Any], None], what: Any) -> None:
        if not outcome.done():
            settle(what)

    def do() -> None:
        try:
            told = partial(tell, outcome.set_result, work())
        except BaseException as error:  # noqa: BLE001 - raised where the outcome is awaited
            told = partial(tell, outcome.set_exception, error)
        with contextlib.suppress(RuntimeError):  # the loop is closed: nobody waits any more
            loop.call_soon_threadsafe(told)

    threading.Thread(target=do, daemon=True).start()
    return outcome


# --- running --------------------------------------------------------------------------------------------------------


class _Running:
    def __init__(self, process: subprocess.Popen[bytes], leash: int, *, guarded: bool) -> None:
        self._process, self._leash, self._guarded = process, leash, guarded
        self._pipes: list[asyncio.ReadTransport] = []
        self._silent: list[asyncio.Future[None]] = []
        self._ending: asyncio.Task[None] | None = None
        self.heard_enough: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.ended = _in_own_thread(partial(_wait, process))

    @property
    def status(self) -> int | None:
        return self._process.returncode

    async def listen(self, on_output: Hear, on_error: Hear) -> None:
        for stream, hear in ((self._process.stdout, on_output), (self._process.stderr, on_error)):
            assert stream is not None
            await self._listen_to(stream, hear)

    async def _listen_to(self, stream: IO[bytes], hear: Hear) -> None:
        ear = _Ear(hear, self.heard_enough)
        transport, _ = await asyncio.get_running_loop().connect_read_pipe(lambda: ear, stream)
        transport.max_size = READ_SIZE  # type: ignore[attr-defined]
        self._pipes.append(transport)
        self._silent.append(ear.silent)

    async def end(self) -> None:
        """Make sure that nothing of it is left. Goes on also where whoever waits for it is cancelled."""
        await asyncio.shield(self.begin_to_end())

    def begin_to_end(self) -> asyncio.Task[None]:
        if self._ending is None:
            if not self._guarded:
                self._kill_group()
            self._ending = asyncio.ensure_future(self._end())
        return self._ending

    def _kill_group(self) -> None:
        """Until it is reaped, its number is nobody else's: what it left in its group is killed too."""
        with contextlib.suppress(ProcessLookupError, PermissionError):
            if sys.platform == "win32":
                self._process.kill()
            else:
                os.killpg(self._process.pid, signal.SIGKILL)

    async def _end(self) -> None:
        try:
            if self._guarded and not self.ended.done():  # the guard may be stopped, or not on its post yet
                await _in_own_thread(partial(end_family, self._process.pid, self._process.pid))
            if self._silent:
                await asyncio.wait(self._silent, timeout=SILENT_SECONDS)
            await asyncio.wait([self.ended], timeout=KILLED_SECONDS)
        finally:
            self._let_go()

    def _let_go(self) -> None:
        os.close(self._leash)
        for pipe in (*self._pipes, self._process.stdout, self._process.stderr):  # nobody may have listened yet
            pipe.close()  # type: ignore[union-attr]
        if self.ended.done():
            self._process.wait()
        else:  # the kernel holds on to it, or the server is in a hurry
            threading.Thread(target=self._process.wait, daemon=True).start()


class _Ear(asyncio.Protocol):
    """One of the two streams. It falls silent at its end, and is not listened to any more once that was enough."""

    def __init__(self, hear: Hear, enough: asyncio.Future[None]) -> None:
        self._hear, self._enough = hear, enough
        self.silent: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def data_received(self, data: bytes) -> None:
        if self._enough.done():
            return
        try:
            if self._hear(data):
                self._enough.set_result(None)
        except Exception as error:  # noqa: BLE001 - raised by `run`
            self._enough.set_exception(error)

    def connection_lost(self, _exc: Exception | None) -> None:
        if not self.silent.done():
            self.silent.set_result(None)


def _wait(process: subprocess.Popen[bytes]) -> None:
    """Wait for its end without reaping it, where the system can do that."""
    if hasattr(os, "waitid"):
        with contextlib.suppress(ChildProcessError):  # it was reaped after all
            os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT)
    else:
        process.wait()
