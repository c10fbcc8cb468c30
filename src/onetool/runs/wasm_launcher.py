"""A launcher that runs each cell in a WebAssembly sandbox, and what isolates code on this machine.

The sandbox is for machines without the isolation of the Linux kernel. A process has one sandbox at
a time (`onetool_child.wasm_host`). It is used for the next cell only if the sandbox ended cleanly;
otherwise it is killed.
"""

import asyncio
import importlib.util
import os
import sys
from collections.abc import Callable
from importlib.metadata import version
from pathlib import Path

from onetool.errors import ToolError
from onetool.processes.channel import Channel, Reading
from onetool.processes.process import Process
from onetool.runs.cell_process import REAP_SECONDS, OnStray
from onetool.runs.cells import NOT_ANSWERING, NOT_STARTED, PROCESS_ONLY, is_isolated
from onetool.runs.launch import OnGone, SpawnLauncher, command_for, environment
from onetool.util.problem import OK, WARNING, Problem
from onetool_child.json_types import JsonObject
from onetool_child.wasm_host import (
    BEGIN,
    DATA,
    END,
    MAX_ANSWER_BYTES,
    MAX_FORWARDED_BYTES,
    PREPARED,
    FrameReader,
    encode_frame,
)

MIN_PYTHON = (3, 12)
PREPARE_SECONDS = 60
MAX_FREE = 2  # processes that wait for a cell
MAX_STARTS = max(
    2, os.cpu_count() or 1
)  # at the same time; another process is often free before one has started
PACKAGE = "pyeryx"
MODULE = "eryx"
INSTALL = "pip install 'onetool-run[wasm]'"
PYTHON = ".".join(map(str, sys.version_info[:3]))


def find_wasm_problem() -> str:
    """Return why WebAssembly sandboxes do not work here, and what to do; empty if they do."""
    if sys.version_info < MIN_PYTHON:
        version = f"{sys.version_info.major}.{sys.version_info.minor}"
        return (
            f"WebAssembly isolation requires Python 3.12 or newer, this is {version}; install"
            " OneTool with a newer one"
        )
    if importlib.util.find_spec(MODULE) is None:
        return f"WebAssembly isolation requires the package {PACKAGE}: {INSTALL}"
    return ""


class WasmLauncher(SpawnLauncher):
    kind = "wasm"
    linger_seconds = (
        1.0  # a process that ends its sandbox is used again, and starting another one takes longer
    )
    answer_bytes = MAX_ANSWER_BYTES

    def __init__(self, options: JsonObject, on_gone: OnGone, on_stray: OnStray) -> None:
        super().__init__(options, on_gone, on_stray)
        self._free: list[SandboxProcess] = []
        self._is_closing = False
        self._preparing = asyncio.Lock()
        self._is_prepared = False
        self._starts = asyncio.Semaphore(MAX_STARTS)
        self._waiting = 0  # runs without a process

    async def _start(self, ident: int, channel: Channel, on_stray: OnStray) -> None:
        if problem := find_wasm_problem():
            raise ToolError(problem)
        host = self._free.pop() if self._free else await self._wait_for_process()
        self._children[ident] = host
        host.begin(ident, channel, on_stray, self.scratch(ident))
        if ident in self._killed_early:
            host.kill()

    async def _wait_for_process(self) -> "SandboxProcess":
        """Return a process that has become free, or start one.

        The first prepares files for the others.
        """
        self._waiting += 1
        try:
            async with self._starts if self._is_prepared else self._preparing:
                host = self._free.pop() if self._free else await self._spawn()
                self._is_prepared = True
                return host
        finally:
            self._waiting -= 1

    async def _spawn(self) -> "SandboxProcess":
        host = SandboxProcess(self._handle_end)
        spec = importlib.util.find_spec(MODULE)
        assert spec is not None
        assert spec.origin is not None
        command = command_for(
            "wasm_host", [self._child_options(), str(Path(spec.origin).parent.parent)]
        )
        # pyeryx unpacks machine code, and the standard library, into a directory with a fixed name.
        # In a directory that others can write to, they could replace it.
        private = dict.fromkeys(("TMPDIR", "TMP", "TEMP"), f"{self._scratch_root()}/runtime")
        host.process = await Process.start(
            command, host, host.log, env={**environment(), **private}
        )
        host.process.ended.add_done_callback(
            lambda ended: self._handle_process_exit(host, ended.result())
        )
        await asyncio.wait([host.prepared], timeout=PREPARE_SECONDS)
        if not host.prepared.done() or not host.prepared.result():
            raise await self._start_error(host)
        return host

    async def _start_error(self, host: "SandboxProcess") -> ToolError:
        """End a process that is not ready for sandboxes, and return why."""
        reason = (
            "it exited" if host.prepared.done() else f"it was not ready within {PREPARE_SECONDS} s"
        )
        host.kill()
        await asyncio.wait([host.process.ended], timeout=REAP_SECONDS)
        printed = host.process.printed.tail
        self._on_stray(printed)
        last_line = printed.rpartition("\n")[2]
        return ToolError(
            f"the process for WebAssembly sandboxes does not work: {last_line or reason}"
        )

    def _handle_end(self, host: "SandboxProcess", ident: int) -> None:
        """Use the process again: its sandbox ended cleanly.

        After a burst of runs, only some are kept.
        """
        is_needed = not self._is_closing and len(self._free) < MAX_FREE + self._waiting
        if is_needed and not host.is_killed:
            self._free.append(host)
        else:
            host.kill()
        self._handle_exit(ident, 0)

    def _handle_process_exit(self, host: "SandboxProcess", status: int | None) -> None:
        if host in self._free:
            self._free.remove(host)
        elif host.ident is not None:
            self._handle_exit(host.ident, status)

    async def close(self) -> None:
        """End all processes, also those without a run. On Windows, files in use cannot be removed."""
        self._is_closing = True
        free = [host.process.ended for host in self._free]
        for host in self._free:
            host.kill()
        if free:
            await asyncio.wait(free, timeout=REAP_SECONDS)
        await super().close()


class SandboxProcess:
    """A process for sandboxes, with the channel of the current run."""

    process: Process

    def __init__(self, on_end: Callable[["SandboxProcess", int], None]) -> None:
        self._on_end = on_end
        self._frames = FrameReader(self._handle_frame, MAX_FORWARDED_BYTES)
        self._on_stray: OnStray | None = None
        self._run: _RunTransport | None = None
        self._channel: Channel | None = None
        self._has_ended = False  # the run
        self.is_killed = False
        self.ident: int | None = None
        self.prepared: asyncio.Future[bool] = asyncio.get_running_loop().create_future()

    def begin(self, ident: int, channel: Channel, on_stray: OnStray, scratch: str) -> None:
        """Start a sandbox whose messages go to the channel."""
        self.ident = ident
        self._channel = channel
        self._on_stray = on_stray
        self._pipe.write(encode_frame(BEGIN, scratch.encode()))
        self._run = _RunTransport(self._pipe, self._reading, self._end_soon)
        channel.reads_from(self._run)
        channel.connection_made(self._run)

    def kill(self) -> None:
        self.is_killed = True
        self.process.kill()

    def log(self, text: str) -> None:
        if self._on_stray is not None:
            self._on_stray(text)

    def _handle_frame(self, kind: bytes, content: bytes) -> None:
        if kind == DATA and self._channel is not None:
            if self._channel.closed.done():  # code that sends after its end is hostile
                self.kill()
            else:
                self._channel.data_received(content)
        elif kind == PREPARED:
            self._set_prepared(True)
        elif kind == END:
            self._has_ended = True
            self._end_soon()

    def _end_soon(self) -> None:
        """End the run a moment later, because its log may not have been read yet."""
        if self._has_ended:
            asyncio.get_running_loop().call_soon(self._end)

    def _end(self) -> None:
        if (
            not self._has_ended or self._run is None or self._run.is_paused
        ):  # the channel has not handled everything
            return
        self._has_ended = False
        self.process.printed.add(b"", final=True)
        self._run.abort()
        if self._channel is not None:
            self._channel.connection_lost(None)
        ident = self.ident
        self.ident = None
        self._channel = None
        self._on_stray = None
        if ident is not None:
            self._on_end(self, ident)

    # --- Endpoint ---------------------------------------------------------------------------------

    def reads_from(self, transport: Reading) -> None:
        self._reading = transport

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.WriteTransport)
        self._pipe = transport

    def data_received(self, data: bytes) -> None:
        try:
            self._frames.feed(data)
        except ValueError:  # the process itself is no longer ours
            self.kill()
            self.connection_lost(None)

    def _set_prepared(self, is_prepared: bool) -> None:
        if not self.prepared.done():
            self.prepared.set_result(is_prepared)

    def connection_lost(self, exc: Exception | None) -> None:
        self._set_prepared(False)
        if self._channel is not None:
            self._channel.connection_lost(exc)


class _RunTransport(asyncio.WriteTransport):
    """The pipes of the process, as the channel of one run sees them."""

    def __init__(
        self, pipe: asyncio.WriteTransport, reading: Reading, on_resume: Callable[[], None]
    ) -> None:
        super().__init__()
        self._pipe = pipe
        self._reading = reading
        self._on_resume = on_resume
        self._is_over = self.is_paused = False

    def write(self, data: bytes | bytearray | memoryview) -> None:
        if not self._is_over:
            self._pipe.write(encode_frame(DATA, bytes(data)))

    def get_write_buffer_size(self) -> int:
        return self._pipe.get_write_buffer_size()

    def pause_reading(self) -> None:
        if not self._is_over:
            self.is_paused = True
            self._reading.pause_reading()

    def resume_reading(self) -> None:
        if self.is_paused:
            self.is_paused = False
            self._reading.resume_reading()
            self._on_resume()

    def is_closing(self) -> bool:
        return self._is_over

    def abort(self) -> None:
        """End the run. The pipes stay open for the next one."""
        self._is_over = True
        self.resume_reading()


# --- isolation ------------------------------------------------------------------------------------


def check_isolation(sandbox: str, setting: str) -> Problem:
    """Return whether code is isolated, from the cells' report and `execution.isolation`."""
    if setting == "off":
        hint = "set execution.isolation to auto"
        return Problem(
            "isolation is disabled: code runs with your permissions", hint, level=WARNING
        )
    if sandbox in {NOT_STARTED, NOT_ANSWERING} or is_isolated(sandbox.split("+")):
        return Problem(f"code is isolated: {sandbox}", level=OK)
    what = (
        "code runs in a separate process with partial isolation: this machine offers only"
        f" {sandbox}"
    )
    if sandbox == PROCESS_ONLY:
        what = (
            "code runs without isolation: in a plain process with limits, which has your"
            " permissions"
        )
    return Problem(what, find_wasm_problem() or INSTALL, level=WARNING)


def find_isolation_problem(sandbox: str, setting: str) -> Problem | None:
    """Return a problem if code is not isolated although the settings do not disable the isolation."""
    problem = check_isolation(sandbox, setting)
    return None if setting == "off" or problem.level == OK else problem


def describe_interpreter(cells: str) -> str:
    """Return the interpreter of this kind of cells: the server's, or the sandbox package's."""
    if cells != WasmLauncher.kind or find_wasm_problem():
        return PYTHON
    return f"of {PACKAGE} {version(PACKAGE)}"
