"""Launchers of cells: through the zygote if fork is reliable, otherwise one process at a time.

A launcher starts, kills and reports; `cells` decides which cell runs what. Children get an
environment without variables of the server and, of the server, only their own socket.
"""

import asyncio
import json
import os
import re
import socket
import subprocess
import sys
import tempfile
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Protocol

from anyio.to_thread import run_sync as run_in_thread

import onetool_child
from onetool.errors import ToolError
from onetool.processes.channel import Channel
from onetool.processes.process import Process
from onetool.runs.cell_process import (
    REAP_SECONDS,
    OnStray,
    SocketTransport,
    StrayOutput,
    keep_first,
    open_ends,
    reap,
)
from onetool.util.tasks import BackgroundTasks, retrieve_error
from onetool_child.confine import landlock_version
from onetool_child.json_types import JsonObject
from onetool_child.scratch import remove
from onetool_child.zygote import Options

PACKET_BYTES = 1 << 16
# The zygote has to answer a ping within 2 s, and within 10 s after its start. Time is counted in
# ticks, so that a suspended server does not count its own pause against the zygote.
TICK_SECONDS = 0.5
MAX_MISSED_TICKS = 4
MAX_MISSED_TICKS_AT_START = 20
SCRATCH_NAME = re.compile(r"onetool-(\d{1,9})-")
# The same in every process, so that sets have the same order when a run is replayed. A run whose
# values collide only delays itself.
HASH_SEED = {"PYTHONHASHSEED": "0"}
OnGone = Callable[[int, int | None, str], None]


class Launcher(Protocol):
    kind: str
    linger_seconds: float  # for a cell that has answered to exit
    answer_bytes: int  # of the server, in the scratch directory of a run

    async def start(self, ident: int, channel: Channel, on_stray: OnStray) -> None: ...
    def kill(self, ident: int) -> None: ...
    async def check(self) -> bool: ...
    def scratch(self, ident: int) -> str: ...
    async def close(self) -> None: ...


def launcher_for(platform: str, isolation: str = "auto") -> type["ZygoteLauncher | SpawnLauncher"]:
    """Return the launcher for a platform and the setting `execution.isolation`.

    Only Linux has a reliable fork and the isolation of the kernel. Without it, WebAssembly is used
    if it is installed.
    """
    from onetool.runs.wasm_launcher import WasmLauncher, find_wasm_problem

    has_kernel_isolation = platform == "linux" and landlock_version() > 0
    if isolation == "wasm" or (
        isolation != "off" and not has_kernel_isolation and not find_wasm_problem()
    ):
        return WasmLauncher
    return ZygoteLauncher if platform == "linux" else SpawnLauncher


def environment() -> dict[str, str]:
    """Return the environment of a child. Windows cannot start a process without SYSTEMROOT."""
    return {
        **HASH_SEED,
        **{name: os.environ[name] for name in ("SYSTEMROOT",) if name in os.environ},
    }


def command_for(module: str, arguments: Sequence[str]) -> list[str]:
    """Return a command that runs a module of `onetool_child` in an isolated interpreter.

    Of the environment, which the caller sets, the interpreter reads `HASH_SEED`. That is why the
    option is not `-I`.
    """
    home = str(Path(onetool_child.__file__).parent.parent)
    code = (
        f"import sys; sys.path.insert(0, {home!r}); import onetool_child.{module} as start,"
        " onetool_child.zygote; "
    )
    return [
        sys.executable,
        "-s",
        "-P",
        "-S",
        "-c",
        f"{code}sys.path.pop(0); start.main(sys.argv[1:])",
        *arguments,
    ]


class _BaseLauncher:
    linger_seconds = 0.05
    answer_bytes = 0

    def __init__(self, options: JsonObject, on_gone: OnGone, on_stray: OnStray) -> None:
        self._options = options
        self._on_gone = on_gone
        self._on_stray = on_stray
        self._root: str | None = None
        self._cleaning = BackgroundTasks()

    def scratch(self, ident: int) -> str:
        return os.path.join(self._scratch_root(), str(ident))  # noqa: PTH118 - passed to the child as a string

    def _scratch_root(self) -> str:
        if self._root is None:
            _sweep(tempfile.gettempdir())
            self._root = tempfile.mkdtemp(prefix=f"onetool-{os.getpid()}-")
        return self._root

    def _child_options(self) -> str:
        return json.dumps(Options(scratch=self._scratch_root(), **self._options)._asdict())

    def _clean(self, ident: int) -> None:
        self._cleaning.start(run_in_thread(remove, self.scratch(ident)))

    async def _remove_scratch(self) -> None:
        """Remove the scratch directory but keep its name, so that no other one is created."""
        if self._root is not None:
            await run_in_thread(remove, self._root)


def _sweep(directory: str) -> None:
    """Remove the scratch directories of servers that were killed with their cleanup processes."""
    if (
        sys.platform == "win32"
    ):  # has no user IDs in file states, and no signal that only checks a process
        return
    for entry in os.scandir(directory):
        owner = SCRATCH_NAME.match(entry.name)
        with suppress(FileNotFoundError):  # another server removed it
            if (
                owner
                and entry.stat(follow_symlinks=False).st_uid == os.getuid()
                and not _is_alive(int(owner[1]))
            ):
                remove(entry.path)


def _is_alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except OSError as error:
        return not isinstance(error, ProcessLookupError)
    return True


class _Heartbeat:
    """A watchdog that pings a process after a request and reports when it stays silent.

    Costs two timers per second.
    """

    def __init__(self, ping: Callable[[], None], on_silence: Callable[[], None]) -> None:
        self._ping = ping
        self._on_silence = on_silence
        self._missed = 0
        self._allowed = MAX_MISSED_TICKS_AT_START
        self._is_waiting = False
        self._timer: asyncio.TimerHandle | None = None

    def expect(self) -> None:
        """Start waiting for a response."""
        self._is_waiting = True
        if self._timer is None:
            self._timer = asyncio.get_running_loop().call_later(TICK_SECONDS, self._tick)

    def record_response(self) -> None:
        self._is_waiting = False
        self._missed = 0
        self._allowed = MAX_MISSED_TICKS

    def stop(self) -> None:
        if self._timer is not None:
            self._timer.cancel()

    def _tick(self) -> None:
        self._timer = None
        if not self._is_waiting:
            return
        if self._missed == self._allowed:
            self._on_silence()
            return
        if self._missed == 0:
            self._ping()
        self._missed += 1
        self.expect()


class ZygoteLauncher(_BaseLauncher):
    kind = "forked"

    def __init__(self, options: JsonObject, on_gone: OnGone, on_stray: OnStray) -> None:
        super().__init__(options, on_gone, on_stray)
        self._is_closed = False
        self._starting: asyncio.Task[socket.socket] | None = None
        self._control: socket.socket | None = None
        self._process: subprocess.Popen[bytes] | None = None
        self._alive: set[int] = set()
        self._strays: set[StrayOutput] = set()
        self._heartbeat = _Heartbeat(self._ping, self._replace)
        self._pong: asyncio.Future[bool] | None = None

    async def start(self, ident: int, channel: Channel, on_stray: OnStray) -> None:
        control = self._control or await self._ensure_started()
        with open_ends(socket.socketpair()) as (ours, theirs, stray_output, stray_end):
            try:
                socket.send_fds(
                    control, [_encode_packet("fork", ident=ident)], [theirs.fileno(), stray_end]
                )
            except ConnectionError:
                if control is self._control:
                    self._disconnect()
                raise
        self._alive.add(ident)
        self._heartbeat.expect()
        SocketTransport(ours, channel)
        StrayOutput(stray_output, on_stray, self._strays)

    def kill(self, ident: int) -> None:
        if ident in self._alive:
            self._send(_encode_packet("kill", ident=ident))
            self._heartbeat.expect()

    async def check(self) -> bool:
        """Ping the zygote. Return whether it answers; one that does not is replaced."""
        if self._control is None:
            await self._ensure_started()
        if self._pong is None:
            self._pong = asyncio.get_running_loop().create_future()
            self._ping()
        self._heartbeat.expect()
        return await asyncio.shield(self._pong)

    def _ping(self) -> None:
        self._send(_encode_packet("ping"))

    def _send(self, packet: bytes) -> None:
        if self._control is not None:
            with suppress(OSError):
                self._control.send(packet)

    def _replace(self) -> None:
        """Kill a zygote that does not answer; the next cell starts another."""
        if self._process is not None:
            self._process.kill()
        self._disconnect()

    async def close(self) -> None:
        """Stop the zygote by closing its socket, and remove the scratch directory.

        The zygote ends its cells.
        """
        self._is_closed = True
        if self._starting is not None:
            await asyncio.wait([self._starting])
        self._disconnect()
        await self._cleaning.wait()
        for stray in list(self._strays):
            stray.close()
        await self._remove_scratch()

    async def _ensure_started(self) -> socket.socket:
        """Start the zygote if needed.

        Cancelling a caller does not cancel the start, which others may wait for.
        """
        if self._is_closed:
            raise ToolError("the server is closing")
        if self._starting is None or self._starting.done():
            self._starting = asyncio.ensure_future(self._start_zygote())
            self._starting.add_done_callback(retrieve_error)
        return await asyncio.shield(self._starting)

    async def _start_zygote(self) -> socket.socket:
        pair = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with open_ends(pair) as (ours, theirs, stray_output, stray_end):
            self._process = await run_in_thread(self._spawn, theirs, stray_end)
        ours.setblocking(False)
        StrayOutput(stray_output, self._on_stray, self._strays)
        asyncio.get_running_loop().add_reader(ours.fileno(), self._read_packets)
        self._control = ours
        self._heartbeat = _Heartbeat(self._ping, self._replace)
        return ours

    def _spawn(self, control: socket.socket, stray: int) -> subprocess.Popen[bytes]:
        command = command_for("zygote", [str(control.fileno()), self._child_options()])
        return subprocess.Popen(  # noqa: S603 - this interpreter and a module of this package
            command,
            stdin=subprocess.DEVNULL,
            stdout=stray,
            stderr=stray,
            env=HASH_SEED,
            pass_fds=[control.fileno()],
            cwd="/",
        )

    def _read_packets(self) -> None:
        """Read all packets, so that a failed start is known before the cell's end is handled."""
        while self._control is not None:
            try:
                packet = self._control.recv(PACKET_BYTES)
            except BlockingIOError:
                return
            except OSError:
                packet = b""
            if not packet:  # the zygote is gone
                self._disconnect()
                return
            self._heartbeat.record_response()
            message = json.loads(packet)
            (
                self._handle_gone(**message["params"])
                if message["method"] == "gone"
                else self._answer_check(True)
            )

    def _handle_gone(
        self, ident: int, status: int | None, littered: bool, reason: str = ""
    ) -> None:
        self._alive.discard(ident)
        if littered:
            self._clean(ident)
        self._on_gone(ident, status, reason)

    def _disconnect(self) -> None:
        """Close the connection to the zygote, and report all of its cells as gone."""
        if self._control is None:
            return
        asyncio.get_running_loop().remove_reader(self._control.fileno())
        self._control.close()
        self._control = None
        self._heartbeat.stop()
        self._answer_check(False)
        process = self._process
        self._process = None
        lost_cells = self._alive
        self._alive = set()

        def clean_up(process: subprocess.Popen[bytes]) -> None:
            reap(process)
            for ident in lost_cells:
                remove(self.scratch(ident))

        if process is not None:
            self._cleaning.start(run_in_thread(clean_up, process))
        for ident in lost_cells:
            self._on_gone(ident, None, "")

    def _answer_check(self, is_alive: bool) -> None:
        pong = self._pong
        self._pong = None
        if pong is not None and not pong.done():
            pong.set_result(is_alive)


def _encode_packet(method: str, **params: int) -> bytes:
    return json.dumps({"jsonrpc": "2.0", "method": method, "params": params}).encode()


class Killable(Protocol):
    def kill(self) -> None: ...


class SpawnLauncher(_BaseLauncher):
    kind = "spawned"

    def __init__(self, options: JsonObject, on_gone: OnGone, on_stray: OnStray) -> None:
        super().__init__(options, on_gone, on_stray)
        self._starting: dict[int, asyncio.Task[None]] = {}
        self._killed_early: set[int] = set()  # killed before they started
        self._children: dict[int, Killable] = {}
        self._all_gone: asyncio.Event | None = None

    async def start(self, ident: int, channel: Channel, on_stray: OnStray) -> None:
        """Start the cell. Cancelling the caller does not leave a half-started one behind."""
        if self._all_gone is not None:
            raise ToolError("the server is closing")
        task = self._starting[ident] = asyncio.ensure_future(
            self._start(ident, channel, keep_first(on_stray))
        )
        task.add_done_callback(lambda _: self._starting.pop(ident))
        task.add_done_callback(retrieve_error)
        await asyncio.shield(task)

    async def _start(self, ident: int, channel: Channel, on_stray: OnStray) -> None:
        await run_in_thread(os.mkdir, self.scratch(ident), 0o700)
        command = command_for("cell", [self._child_options(), self.scratch(ident)])
        child = await Process.start(command, channel, on_stray, env=environment())
        self._children[ident] = child
        child.ended.add_done_callback(lambda ended: self._handle_exit(ident, ended.result()))
        if ident in self._killed_early:
            child.kill()

    def kill(self, ident: int) -> None:
        if ident in self._children:
            self._children[ident].kill()
        elif ident in self._starting:
            self._killed_early.add(ident)

    async def check(self) -> bool:
        """Return True: there is no zygote that could fail."""
        return True

    def _handle_exit(self, ident: int, status: int | None) -> None:
        del self._children[ident]
        self._killed_early.discard(ident)
        self._clean(ident)
        self._on_gone(ident, status, "")
        if not self._children and self._all_gone is not None:
            self._all_gone.set()

    async def close(self) -> None:
        self._all_gone = asyncio.Event()
        if self._starting:
            await asyncio.wait(self._starting.values())
        for ident in self._children:
            self.kill(ident)
        if self._children:
            with suppress(TimeoutError):
                await asyncio.wait_for(self._all_gone.wait(), REAP_SECONDS)
        await self._cleaning.wait()
        await self._remove_scratch()
