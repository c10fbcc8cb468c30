"""Starting cells: through the zygote where there is fork to rely on, one by one elsewhere. Same cell, same protocol.

A launcher starts, kills and reports; which cell runs what is decided in `cells`. The children get an empty
environment and nothing of the server but their own socket.
"""

import asyncio
import contextlib
import json
import os
import re
import socket
import subprocess
import sys
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Protocol

import anyio.to_thread

import onetool_child
from onetool.children.channel import Channel
from onetool.children.process import Process
from onetool.errors import ToolError
from onetool.util.background_tasks import BackgroundTasks
from onetool_child.scratch import remove
from onetool_child.zygote import Options

PACKET = 1 << 16
READ_SIZE = 1 << 16
STRAY_OUTPUT_KEPT = 2000
STRAY_LINES_KEPT = 20
REAP_SECONDS = 5
# The zygote has to answer a ping within 2 s, and within 10 s after its start. Time is counted in ticks, so that a
# server that was itself suspended does not blame the zygote for it.
TICK_SECONDS = 0.5
MAX_MISSED_TICKS, MAX_MISSED_TICKS_AT_START = 4, 20
SCRATCH_NAME = re.compile(r"onetool-(\d{1,9})-")
OnGone = Callable[[int, int | None, str], None]
OnStray = Callable[[str], None]


class Launcher(Protocol):
    kind: str

    async def start(self, ident: int, channel: Channel) -> None: ...
    def kill(self, ident: int) -> None: ...
    async def check(self) -> bool: ...
    def scratch(self, ident: int) -> str: ...
    async def close(self) -> None: ...


def launcher_for(platform: str) -> type["ZygoteLauncher | SpawnLauncher"]:
    """Only Linux has a fork that is safe to build on and the layers that make it worth having."""
    return ZygoteLauncher if platform == "linux" else SpawnLauncher


def _command(module: str, arguments: Sequence[str]) -> list[str]:
    """Python without site-packages, environment or current folder; ours is on its path only while it is loaded."""
    home = str(Path(onetool_child.__file__).parent.parent)
    code = f"import sys; sys.path.insert(0, {home!r}); import onetool_child.{module} as start, onetool_child.zygote; "
    return [sys.executable, "-I", "-S", "-c", f"{code}sys.path.pop(0); start.main(sys.argv[1:])", *arguments]


class _Base:
    def __init__(self, options: dict[str, Any], on_gone: OnGone, on_stray: OnStray) -> None:
        self._options, self._on_gone, self._on_stray = options, on_gone, on_stray
        self._folder: str | None = None
        self._cleaning = BackgroundTasks()

    def scratch(self, ident: int) -> str:
        return os.path.join(self._scratch_root(), str(ident))  # noqa: PTH118 - it is handed to the child as text

    def _scratch_root(self) -> str:
        if self._folder is None:
            _sweep(tempfile.gettempdir())
            self._folder = tempfile.mkdtemp(prefix=f"onetool-{os.getpid()}-")
        return self._folder

    def _child_options(self) -> str:
        return json.dumps(Options(scratch=self._scratch_root(), **self._options)._asdict())

    def _clean(self, ident: int) -> None:
        self._cleaning.start(anyio.to_thread.run_sync(remove, self.scratch(ident)))

    async def _remove_scratch(self) -> None:
        """Remove it, and keep its name: what still asks for a path in it must not create another."""
        if self._folder is not None:
            await anyio.to_thread.run_sync(remove, self._folder)


def _sweep(folder: str) -> None:
    """Take away what servers left that were killed together with everything that would have cleaned up after them."""
    for entry in os.scandir(folder):
        owner = SCRATCH_NAME.match(entry.name)
        with contextlib.suppress(FileNotFoundError):  # another server was faster
            if owner and entry.stat(follow_symlinks=False).st_uid == os.getuid() and not _is_alive(int(owner[1])):
                remove(entry.path)


def _is_alive(process: int) -> bool:
    try:
        os.kill(process, 0)
    except OSError as error:
        return not isinstance(error, ProcessLookupError)
    return True


class _Heartbeat:
    """Ping a process after something was asked of it, and report when it stays silent. Cost: two timers a second."""

    def __init__(self, ping: Callable[[], None], on_silence: Callable[[], None]) -> None:
        self._ping, self._on_silence = ping, on_silence
        self._missed = 0
        self._allowed = MAX_MISSED_TICKS_AT_START
        self._is_owed = False
        self._timer: asyncio.TimerHandle | None = None

    def expect(self) -> None:
        """Start waiting for a sign of life."""
        self._is_owed = True
        if self._timer is None:
            self._timer = asyncio.get_running_loop().call_later(TICK_SECONDS, self._tick)

    def hear(self) -> None:
        self._is_owed, self._missed, self._allowed = False, 0, MAX_MISSED_TICKS

    def stop(self) -> None:
        if self._timer is not None:
            self._timer.cancel()

    def _tick(self) -> None:
        self._timer = None
        if not self._is_owed:
            return
        if self._missed == self._allowed:
            self._on_silence()
            return
        if self._missed == 0:
            self._ping()
        self._missed += 1
        self.expect()


class ZygoteLauncher(_Base):
    kind = "forked"

    def __init__(self, options: dict[str, Any], on_gone: OnGone, on_stray: OnStray) -> None:
        super().__init__(options, on_gone, on_stray)
        self._starting: asyncio.Task[socket.socket] | None = None
        self._control: socket.socket | None = None
        self._process: subprocess.Popen[bytes] | None = None
        self._alive: set[int] = set()
        self._strays: set[_Stray] = set()
        self._heartbeat = _Heartbeat(self._ping, self._replace)
        self._pong: asyncio.Future[bool] | None = None

    async def start(self, ident: int, channel: Channel) -> None:
        control = self._control or await self._started()
        ours, theirs = socket.socketpair()
        stray, stray_end = os.pipe()
        try:
            socket.send_fds(control, [_packet("fork", ident=ident)], [theirs.fileno(), stray_end])
        except OSError as error:
            if isinstance(error, ConnectionError) and control is self._control:
                self._hang_up()
            ours.close()
            os.close(stray)
            raise
        finally:
            theirs.close()
            os.close(stray_end)
        self._alive.add(ident)
        self._heartbeat.expect()
        _SocketTransport(ours, channel)
        _Stray(stray, self._on_stray, self._strays)

    def kill(self, ident: int) -> None:
        if ident in self._alive:
            self._send(_packet("kill", ident=ident))
            self._heartbeat.expect()

    async def check(self) -> bool:
        """Ping the zygote. Return whether it answers; one that does not is replaced."""
        if self._control is None:
            await self._started()
        if self._pong is None:
            self._pong = asyncio.get_running_loop().create_future()
            self._ping()
        self._heartbeat.expect()
        return await asyncio.shield(self._pong)

    def _ping(self) -> None:
        self._send(_packet("ping"))

    def _send(self, packet: bytes) -> None:
        if self._control is not None:
            with contextlib.suppress(OSError):
                self._control.send(packet)

    def _replace(self) -> None:
        """Kill a zygote that does not answer, before its socket closes; the next cell starts another."""
        if self._process is not None:
            self._process.kill()
        self._hang_up()

    async def close(self) -> None:
        """The zygote ends when its socket closes, and takes its cells and the scratch folder with it."""
        if self._starting is not None:
            await asyncio.wait([self._starting])
        self._hang_up()
        await self._cleaning.wait()
        for stray in list(self._strays):
            stray.close()
        await self._remove_scratch()

    async def _started(self) -> socket.socket:
        """Whoever waits for it may give up: the start goes on, for the others who wait, and so that `close` ends it."""
        if self._starting is None or self._starting.done():
            self._starting = asyncio.ensure_future(self._start_zygote())
            self._starting.add_done_callback(lambda start: start.cancelled() or start.exception())
        return await asyncio.shield(self._starting)

    async def _start_zygote(self) -> socket.socket:
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        stray, stray_end = os.pipe()
        try:
            self._process = await anyio.to_thread.run_sync(self._spawn, theirs, stray_end)
        except BaseException:
            ours.close()
            os.close(stray)
            raise
        finally:
            theirs.close()
            os.close(stray_end)
        ours.setblocking(False)
        _Stray(stray, self._on_stray, self._strays)
        asyncio.get_running_loop().add_reader(ours.fileno(), self._packets)
        self._control = ours
        self._heartbeat = _Heartbeat(self._ping, self._replace)
        return ours

    def _spawn(self, control: socket.socket, stray: int) -> subprocess.Popen[bytes]:
        command = _command("zygote", [str(control.fileno()), self._child_options()])
        return subprocess.Popen(  # noqa: S603 - our own interpreter and our own module
            command,
            stdin=subprocess.DEVNULL,
            stdout=stray,
            stderr=stray,
            env={},
            pass_fds=[control.fileno()],
            cwd="/",
        )

    def _packets(self) -> None:
        """All that have come: why a cell never came to be is to be known before its end is noticed."""
        while self._control is not None:
            try:
                packet = self._control.recv(PACKET)
            except BlockingIOError:
                return
            except OSError:
                packet = b""
            if not packet:  # the zygote is gone
                self._hang_up()
                return
            self._heartbeat.hear()
            message = json.loads(packet)
            self._gone(**message["params"]) if message["method"] == "gone" else self._answer_check(True)

    def _gone(self, ident: int, status: int | None, littered: bool, reason: str = "") -> None:
        self._alive.discard(ident)
        if littered:
            self._clean(ident)
        self._on_gone(ident, status, reason)

    def _hang_up(self) -> None:
        """The zygote is gone or is to go: all its cells with it."""
        if self._control is None:
            return
        asyncio.get_running_loop().remove_reader(self._control.fileno())
        self._control.close()
        self._control = None
        self._heartbeat.stop()
        self._answer_check(False)
        process, self._process = self._process, None
        lost, self._alive = self._alive, set()

        def clean_up(process: subprocess.Popen[bytes]) -> None:
            _reap(process)
            for ident in lost:
                remove(self.scratch(ident))

        if process is not None:
            self._cleaning.start(anyio.to_thread.run_sync(clean_up, process))
        for ident in lost:
            self._on_gone(ident, None, "")

    def _answer_check(self, is_alive: bool) -> None:
        pong, self._pong = self._pong, None
        if pong is not None and not pong.done():
            pong.set_result(is_alive)


def _packet(method: str, **params: int) -> bytes:
    return json.dumps({"jsonrpc": "2.0", "method": method, "params": params}).encode()


class _SocketTransport(asyncio.WriteTransport):
    """A connected socket under a channel. asyncio's own takes three turns of the loop to set up; cells come fast."""

    def __init__(self, connected: socket.socket, channel: Channel) -> None:
        super().__init__()
        connected.setblocking(False)
        self._socket, self._channel = connected, channel
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

    def _send(self) -> None:
        """Send what goes; the rest when there is room again."""
        try:
            del self._unsent[: self._socket.send(self._unsent)]
        except BlockingIOError:
            pass
        except OSError:  # it reads no more; what it sent before can still be read, and then its end
            self._channel.is_unread = True
            self._unsent.clear()
        if self._unsent:
            self._loop.add_writer(self._socket.fileno(), self._send)
        else:
            self._loop.remove_writer(self._socket.fileno())

    def _read(self) -> None:
        try:
            data = self._socket.recv(READ_SIZE)
        except BlockingIOError:
            return
        except OSError as error:
            is_reset = isinstance(error, ConnectionResetError)
            self._channel.is_unread |= is_reset
            self.abort()
            self._channel.connection_lost(None if is_reset else error)
            return
        if data:
            self._channel.data_received(data)
        else:
            self.abort()
            self._channel.connection_lost(None)


def _reap(process: subprocess.Popen[bytes]) -> None:
    try:
        process.wait(timeout=REAP_SECONDS)
    except subprocess.TimeoutExpired:
        process.kill()
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(timeout=REAP_SECONDS)


class _Stray:
    """What a child writes to descriptors 1 and 2: for the log, a little of it; the rest is read and forgotten."""

    def __init__(self, pipe: int, on_stray: OnStray, known: "set[_Stray]") -> None:
        self._pipe, self._on_stray, self._known = pipe, on_stray, known
        self._left = STRAY_LINES_KEPT
        known.add(self)
        os.set_blocking(pipe, False)
        self._loop = asyncio.get_running_loop()
        self._loop.add_reader(pipe, self._read)

    def close(self) -> None:
        self._known.discard(self)
        self._loop.remove_reader(self._pipe)
        os.close(self._pipe)

    def _read(self) -> None:
        data = os.read(self._pipe, READ_SIZE)
        if not data:
            self.close()
        elif self._left:
            self._left -= 1
            self._on_stray(data[:STRAY_OUTPUT_KEPT].decode(errors="replace"))


class SpawnLauncher(_Base):
    kind = "spawned"

    def __init__(self, options: dict[str, Any], on_gone: OnGone, on_stray: OnStray) -> None:
        super().__init__(options, on_gone, on_stray)
        self._starting: dict[int, asyncio.Task[None]] = {}
        self._unwanted: set[int] = set()  # killed before they had started
        self._children: dict[int, Process] = {}
        self._all_gone: asyncio.Event | None = None

    async def start(self, ident: int, channel: Channel) -> None:
        """Start the cell. Cancelling the caller does not leave a half-started one behind."""
        if self._all_gone is not None:
            raise ToolError("the server is closing")
        task = self._starting[ident] = asyncio.ensure_future(self._start(ident, channel))
        task.add_done_callback(lambda done: (self._starting.pop(ident), done.cancelled() or done.exception()))
        await asyncio.shield(task)

    async def _start(self, ident: int, channel: Channel) -> None:
        await anyio.to_thread.run_sync(os.mkdir, self.scratch(ident), 0o700)
        command = _command("cell", [self._child_options(), self.scratch(ident)])
        # Windows cannot start a process without knowing where it is itself.
        child = await Process.start(
            command,
            channel,
            lambda text: self._on_stray(text[:STRAY_OUTPUT_KEPT]),
            env={name: os.environ[name] for name in ("SYSTEMROOT",) if name in os.environ},
        )
        self._children[ident] = child
        child.ended.add_done_callback(lambda ended: self._exited(ident, ended.result()))
        if ident in self._unwanted:
            child.kill()

    def kill(self, ident: int) -> None:
        if ident in self._children:
            self._children[ident].kill()
        elif ident in self._starting:
            self._unwanted.add(ident)

    async def check(self) -> bool:
        """Return True: no other process stands between the server and its cells."""
        return True

    def _exited(self, ident: int, status: int | None) -> None:
        del self._children[ident]
        self._unwanted.discard(ident)
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
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._all_gone.wait(), REAP_SECONDS)
        await self._cleaning.wait()
        await self._remove_scratch()
