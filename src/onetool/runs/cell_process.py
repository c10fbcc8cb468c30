"""The process of a cell: its socket, its output and state, and the timer of its run."""

import asyncio
import math
import os
import signal
import socket
import subprocess
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol, Self

from onetool.errors import ToolError
from onetool.processes.channel import Channel, Reply
from onetool.util.context import Result
from onetool.util.deadline import PausableDeadline
from onetool_child.json_types import JsonObject
from onetool_child.messages import MEDIA

PAGE_BYTES = 4096
TICKS_PER_SECOND = os.sysconf("SC_CLK_TCK") if hasattr(os, "sysconf") else 100
MEASURES_WORK = os.path.exists("/proc/self/stat")  # noqa: PTH110 - whether the system tells how much a process computes


OnStray = Callable[[str], None]


READ_BYTES = 1 << 16
MAX_STRAY_CHARS = 2000
MAX_STRAY_LINES = 20
REAP_SECONDS = 5


class Host(Protocol):
    """A handler for the requests and output of a run."""

    timer: "RunTimer | None"  # set before the code starts

    @property
    def has_acted(self) -> bool: ...
    async def request(self, method: str, params: JsonObject) -> Result: ...
    def output(self, data: bytes) -> None: ...
    def value(self, data: bytes) -> None: ...
    def media(self, data: bytes) -> None: ...


@dataclass(eq=False)
class CellProcess:
    ident: int
    ready: asyncio.Future[list[str]]
    gone: asyncio.Future[int | None]
    pid: int = 0
    channel: Channel | None = None
    host: Host | None = None
    kill_reason: Exception | None = None  # why it was killed, if it was
    started_at: float = math.inf  # when its run started
    is_retryable: bool = False  # whether it was lost before its code did anything
    state: str = ""  # of its process, at the last check
    written: int = 0  # bytes, at the last disk check
    processor_seconds: float = 0.0  # at the last check
    paused_work: float = 0.0  # processor seconds that were used while a person was asked
    kept_memory: int | None = None  # bytes, since a plan of its run began
    disk_check: asyncio.Future[None] | None = None
    reason: str = ""  # why it did not start; may arrive just after its exit
    watch: asyncio.TimerHandle | None = None
    on_excess: Callable[["CellProcess", Exception], None] = lambda _cell, _error: None
    on_stray: OnStray | None = None  # set by its run

    async def request(self, method: str, params: JsonObject) -> Result:
        if self.host is None:
            return Result(ok=False, error=ToolError("no run in progress"))
        try:
            result = await self.host.request(method, params)
        except ToolError as error:
            self.on_excess(self, error)
            return Result(ok=False, error=error)
        if self.host.timer is None or not (seconds := self.host.timer.paused_seconds):
            return result
        members = {**(result.members if isinstance(result, Reply) else {}), "paused_for": seconds}
        return Reply(result.ok, result.value, result.error, result.ran, members=members)

    def notify(self, method: str, params: JsonObject) -> None:
        if method != "ready" or self.ready.done():
            raise ValueError(f"unexpected message {method!r} from a cell")
        self.pid = int(params["pid"])
        self.ready.set_result(list(params["layers"]))

    def piece(self, kind: str, data: bytes) -> None:
        if self.host is None or not (kind in {"output", "value"} or kind.startswith(MEDIA)):
            raise ValueError(f"unexpected piece {kind!r} from a cell")
        handlers = {"output": self.host.output, "value": self.host.value}
        try:
            handlers.get(kind, self.host.media)(data)
        except ToolError as error:
            self.on_excess(self, error)


class RunTimer(PausableDeadline):
    """The time limit of a run, and its slot.

    While a person is asked, time stands still and the slot is free.

    A run that continues does not wait for a slot; it takes the next one that is free.
    """

    def __init__(self, limit: asyncio.Timeout, slots: asyncio.Semaphore) -> None:
        super().__init__(limit.when() or math.inf, self._set)
        self._limit = limit
        self._slots = slots
        self._taking: asyncio.Task[Any] | None = None  # after a pause
        self._is_free = False

    async def __aenter__(self) -> Self:
        await self._slots.acquire()
        return self

    async def __aexit__(self, *_: object) -> None:
        self._set_timer = lambda _when: (
            None
        )  # no pause matters from now on, and a timer must not keep itself alive
        self._free_slot()

    def _set(self, when: float) -> None:
        if self._limit.expired():
            return
        if when == math.inf:
            self._free_slot()
        else:
            self._taking = asyncio.ensure_future(self._slots.acquire())
            self._is_free = False
        self._limit.reschedule(None if when == math.inf else when)

    def _free_slot(self) -> None:
        if self._is_free:
            return
        self._is_free = True
        if self._taking is None or self._taking.done():
            self._slots.release()
        else:
            self._taking.cancel()


class ProcessState(NamedTuple):
    """The state of a process; `written` never grows slower than its files."""

    state: str = ""
    threads: int = 0
    written: int = 0
    processor_seconds: float | None = 0.0 if MEASURES_WORK else None


def read_process_state(pid: int) -> ProcessState:
    """Return the state of a process, if the system has /proc."""
    fields = _read(f"/proc/{pid}/stat").rpartition(")")[2].split()
    if not fields:
        return ProcessState()
    calls = _read(f"/proc/{pid}/io").partition("wchar:")[2].split()
    # Writing to a mapped file causes page faults, not system calls.
    written = int(calls[0] if calls else 0) + PAGE_BYTES * int(fields[7])
    ticks = int(fields[11]) + int(fields[12])
    return ProcessState(fields[0], int(fields[17]), written, ticks / TICKS_PER_SECOND)


def _read(path: str) -> str:
    try:
        with open(path, encoding="ascii", errors="replace") as file:  # noqa: PTH123 - it is short
            return file.read()
    except OSError:
        return ""


def exit_status(status: int | None) -> str:
    if status is None:
        return "its process is gone"
    if status < 0:
        with suppress(ValueError):
            name = signal.Signals(-status).name
            return f"its process was killed by {name}" + (
                " (a crash)" if name in {"SIGSEGV", "SIGBUS", "SIGABRT"} else ""
            )
    return f"its process exited with status {status}"


@contextmanager
def open_ends(
    pair: tuple[socket.socket, socket.socket],
) -> Iterator[tuple[socket.socket, socket.socket, int, int]]:
    """Yield the ends of a socket and of a pipe for output.

    Those of the child are closed after the block.
    """
    ours, theirs = pair
    stray_output, stray_end = os.pipe()
    try:
        yield ours, theirs, stray_output, stray_end
    except BaseException:
        ours.close()
        os.close(stray_output)
        raise
    finally:
        theirs.close()
        os.close(stray_end)


class SocketTransport(asyncio.WriteTransport):
    """A transport over a connected socket. asyncio's own takes three loop iterations to set up."""

    def __init__(self, connected: socket.socket, channel: Channel) -> None:
        super().__init__()
        connected.setblocking(False)
        self._socket = connected
        self._channel = channel
        self._unsent = bytearray()
        self._loop = asyncio.get_running_loop()
        self.resume_reading()
        channel.reads_from(self)
        channel.connection_made(self)

    def resume_reading(self) -> None:
        self._loop.add_reader(self._socket.fileno(), self._read)

    def pause_reading(self) -> None:
        self._loop.remove_reader(self._socket.fileno())

    def write(self, data: bytes | bytearray | memoryview) -> None:
        self._unsent += data
        self._send()

    def get_write_buffer_size(self) -> int:
        return len(self._unsent)

    def is_closing(self) -> bool:
        return self._socket.fileno() < 0

    def abort(self) -> None:
        if not self.is_closing():
            self._loop.remove_reader(self._socket.fileno())
            self._loop.remove_writer(self._socket.fileno())
            self._socket.close()
            del self._channel  # which has this transport

    def _send(self) -> None:
        """Send as much as possible now, and the rest when the socket is writable."""
        try:
            del self._unsent[: self._socket.send(self._unsent)]
        except BlockingIOError:
            pass
        except OSError:  # the peer stopped reading; what it sent before can still be read
            self._channel.is_unread = True
            self._unsent.clear()
        if self._unsent:
            self._loop.add_writer(self._socket.fileno(), self._send)
        else:
            self._loop.remove_writer(self._socket.fileno())

    def _read(self) -> None:
        channel = self._channel
        try:
            data = self._socket.recv(READ_BYTES)
        except BlockingIOError:
            return
        except OSError as error:
            is_reset = isinstance(error, ConnectionResetError)
            channel.is_unread |= is_reset
            self.abort()
            channel.connection_lost(None if is_reset else error)
            return
        if data:
            channel.data_received(data)
        else:
            self.abort()
            channel.connection_lost(None)


def reap(process: subprocess.Popen[bytes]) -> None:
    try:
        process.wait(timeout=REAP_SECONDS)
    except subprocess.TimeoutExpired:
        process.kill()
        with suppress(subprocess.TimeoutExpired):
            process.wait(timeout=REAP_SECONDS)


def keep_first(on_stray: OnStray) -> OnStray:
    """Return a callback that passes on the first part of a child's output."""
    left = MAX_STRAY_LINES

    def keep(text: str) -> None:
        nonlocal left
        if left:
            left -= 1
            on_stray(text[:MAX_STRAY_CHARS])

    return keep


class StrayOutput:
    """The output of a child on descriptors 1 and 2."""

    def __init__(self, pipe: int, on_stray: OnStray, open_outputs: "set[StrayOutput]") -> None:
        self._pipe = pipe
        self._on_stray = keep_first(on_stray)
        self._open_outputs = open_outputs
        open_outputs.add(self)
        os.set_blocking(pipe, False)
        self._loop = asyncio.get_running_loop()
        self._loop.add_reader(pipe, self._read)

    def close(self) -> None:
        self._open_outputs.discard(self)
        self._loop.remove_reader(self._pipe)
        os.close(self._pipe)

    def _read(self) -> None:
        data = os.read(self._pipe, READ_BYTES)
        if not data:
            self.close()
        else:
            self._on_stray(data[:MAX_STRAY_CHARS].decode(errors="replace"))
