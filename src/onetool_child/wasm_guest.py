"""A cell in a WebAssembly sandbox: the part inside, which runs the code with the same `Cell` as a
process.

`wasm_host` starts the sandbox. A sandbox has no pipe, so messages to the server are written to
descriptor 2, which the host forwards, and messages from the server are read from files that the
host appends to. Waiting for an answer is polling, because everything else that could wait returns
to the host only when the code ends. Descriptor 1 is the log.
"""

from __future__ import annotations

import asyncio
import errno
import io
import math
import os
import posix
import sys
import threading
import time
from collections import deque
from concurrent import futures
from contextlib import contextmanager
from functools import partial

from onetool_child import data
from onetool_child.cell import FLUSH_SECONDS, Cell
from onetool_child.rpc import READ_BYTES, Peer

TYPE_CHECKING = False  # every sandbox loads this module
if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterable, Iterator
    from typing import Any

    from onetool_child.json_types import JsonObject
    from onetool_child.pack_proxy import PackFinder

LOG = 1
MESSAGES = 2
ANSWERS, SCRATCH = "/answers", "/tmp"  # noqa: S108 - mounted by the host
SPIN_SECONDS = 0.002  # a sleep takes at least one millisecond
MAX_PAUSE_SECONDS = 0.01
PAUSE_SHARE = 0.05
LATE_SECONDS = 0.001  # after the deadline
PROCESS_NAMES = frozenset({
    "fork", "forkpty", "kill", "killpg", "posix_spawn", "spawnv", "spawnve", "system", "wait", "waitpid", "WNOHANG",
})  # fmt: skip
_write = posix.write
_mkdir = posix.mkdir
_sleep = time.sleep
_monotonic = time.monotonic
# Functions that run at the same time, and the depth of the stack above which no other is started.
MAX_NESTED = 32
MAX_NESTED_FRAMES = 400
IDLE_SECONDS = 0.01
START_THREAD = (
    "_start_new_thread",
    "_start_joinable_thread",
    "start_new_thread",
    "start_new",
    "start_joinable_thread",
)
NO_THREADS = (
    "cannot start a thread: the WebAssembly sandbox has only one; "
    "ot.parallel and ThreadPoolExecutor call tools concurrently without threads"
)


class FilePeer(Peer):
    """A peer that reads numbered files.

    The host starts the next one when a file is large; this end removes it.
    """

    def __init__(self) -> None:
        super().__init__(-1, MESSAGES, data.encode)
        self._number = self._position = 0
        self.on_wait: Callable[[], None] = lambda: None

    @contextmanager
    def disconnected(self, result: str) -> Iterator[None]:
        self._buffer += b'{"jsonrpc":"2.0","id":%d,"result":%s}\n' % (
            self._last_id + 1,
            result.encode(),
        )
        self._writer = -1
        try:
            yield
        finally:
            self._writer = MESSAGES

    def open(self) -> None:
        self._reader = os.open(f"{ANSWERS}/{self._number}", os.O_RDONLY)
        self._position = 0

    def _write(self, data: bytes) -> None:
        left = memoryview(data)
        while left and self._writer >= 0:
            left = left[_write(self._writer, left) :]

    def _read_more(self) -> None:
        started = _monotonic()
        while not (chunk := self._read_file()) and not (chunk := self._read_next_file()):
            waited = _monotonic() - started
            if waited > SPIN_SECONDS:
                self.on_wait()
                _sleep(min(waited * PAUSE_SHARE, MAX_PAUSE_SECONDS))
        self._buffer += chunk

    def _read_file(self) -> bytes:
        chunk = os.pread(
            self._reader, READ_BYTES, self._position
        )  # `read` returns nothing after the first end
        self._position += len(chunk)
        return chunk

    def _read_next_file(self) -> bytes:
        """Continue with the next file, if there is one: then this one is complete.

        Return what was left of it.
        """
        if not os.path.exists(f"{ANSWERS}/{self._number + 1}"):  # noqa: PTH110 - pathlib is slow to load
            return b""
        if chunk := self._read_file():
            return chunk
        os.close(self._reader)
        os.unlink(f"{ANSWERS}/{self._number}")  # noqa: PTH108 - see above
        self._number += 1
        self.open()
        return self._read_file()

    def _wait_for_answer(self, ident: int) -> JsonObject:
        """Wait for an answer.

        Until it arrives, functions of thread pools are started, which make calls too.
        """
        while ident not in self._answers and start_one():
            while chunk := self._read_file() or self._read_next_file():
                self._buffer += chunk
            while b"\n" in self._buffer:
                self._read_one()
        return super()._wait_for_answer(ident)


class LastFinder:
    """The last import hook: finds packs, and explains missing standard library modules."""

    def __init__(self, packs: PackFinder) -> None:
        self._packs = packs

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> Any:
        spec = self._packs.find_spec(name, path, target)
        if spec is None and name in sys.stdlib_module_names:
            raise ModuleNotFoundError(
                f"the WebAssembly sandbox does not have the module {name!r}", name=name
            )
        return spec


class TimedBuffer(io.BufferedWriter):
    """A buffer that a write flushes after some time, because there is no thread."""

    _flushed_at = _waits_since = 0.0

    def write(self, chunk: Any) -> int:
        size = super().write(chunk)
        now = _monotonic()
        self._waits_since = self._waits_since or now
        # `print` writes the end of a line separately.
        since = self._flushed_at if bytes(chunk[-1:]) == b"\n" else self._waits_since
        if now - since > FLUSH_SECONDS:
            self.flush()
            self._flushed_at = now
            self._waits_since = 0.0
        return size


class GuestCell(Cell):
    _peer: FilePeer

    def __init__(self) -> None:
        super().__init__(FilePeer(), TimedBuffer)
        self._peer.on_wait = self._check_time
        self._finder = LastFinder(self._finder)  # type: ignore[assignment]  # the same interface

    async def serve_in_sandbox(self, wait: Callable[..., Awaitable[object]], ready: str) -> None:
        """Report that the sandbox is ready, wait for the code without polling, and run it."""
        main = sys.modules["__main__"]  # the sandbox needs it
        self.rehearse()
        sys.modules["__main__"] = main
        self._peer.open()
        self._peer.send_line(ready)
        await wait("wait")
        request = self._peer.receive()
        self._id = request["id"]
        self._params = request["params"]
        vars(sys).update(
            dict.fromkeys(("stdout", "stderr", "__stdout__", "__stderr__"), self._output.stream)
        )
        sys.stdin = io.StringIO()
        with outside_event_loop():
            self._run()
        sys.modules["__main__"] = main

    def sleep(self, seconds: float, /) -> None:
        """Replace `time.sleep`: printed output is sent before, and the timeout is reported in time."""
        self._output.flush()
        late = (
            self._deadline + self._paused_for + LATE_SECONDS - _monotonic()
            if self._deadline
            else math.inf
        )
        _sleep(min(seconds, max(late, 0)))
        self._check_time()

    def _check_time(self) -> None:
        is_late = self._deadline and _monotonic() > self._deadline + self._paused_for
        if is_late and not (self._params.get("pausable") and self._peer.unanswered):
            self._handle_timeout(0, sys._getframe())  # noqa: SLF001 - as a signal handler gets it


def _make_directory(path: Any, mode: int = 0o777, **options: Any) -> None:
    """Replace `os.mkdir`, whose I/O error for a missing parent `makedirs` rejects."""
    try:
        _mkdir(path, mode, **options)
    except OSError as error:
        parent = os.path.dirname(os.fspath(path)) or os.curdir  # noqa: PTH120 - pathlib is slow to load
        if error.errno != errno.EIO or os.path.isdir(parent):  # noqa: PTH112 - see above
            raise
        raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), path) from None


def _explain_missing(name: str) -> None:
    """Explain why `os` lacks a name that other systems have. `hasattr` stays false."""
    reason = (
        ": the WebAssembly sandbox has no processes and no signals" if name in PROCESS_NAMES else ""
    )
    raise AttributeError(f"module 'os' has no attribute {name!r}{reason}", name=name, obj=os)


def _write_to_log(descriptor: int, data: Any, /) -> int:
    """Replace `os.write`: what code writes to descriptor 2 must not become a part of a message."""
    return _write(LOG if descriptor == MESSAGES else descriptor, data)


async def serve(wait: Callable[..., Awaitable[object]], ready: str) -> None:
    """Run one piece of code. `wait` returns when the server has sent it."""
    install()
    for module in (os, posix):
        vars(module).update(write=_write_to_log, mkdir=_make_directory)
    vars(os)["__getattr__"] = _explain_missing
    os.environ.clear()
    os.chdir(SCRATCH)
    cell = GuestCell()
    vars(time)["sleep"] = cell.sleep
    import onetool_child.deterministic  # noqa: F401 - it uses the replaced `sleep`

    sys.path.remove("/modules")
    await cell.serve_in_sandbox(wait, ready)


# --- threads --------------------------------------------------------------------------------------


_pending: deque[NestedFuture] = deque()
_running: list[NestedFuture] = []


@contextmanager
def outside_event_loop() -> Iterator[None]:
    """Leave the running event loop and its task, as another thread would be outside of them."""
    loop = asyncio._get_running_loop()  # noqa: SLF001 - there is no public function
    task = None if loop is None else asyncio.current_task()
    tasks = vars(asyncio.tasks)
    if task is not None:
        tasks["_leave_task"](loop, task)
    asyncio._set_running_loop(None)  # noqa: SLF001 - see above
    try:
        yield
    finally:
        asyncio._set_running_loop(loop)  # noqa: SLF001 - see above
        if task is not None:
            tasks["_enter_task"](loop, task)


def start_one() -> bool:
    """Start a function of a thread pool, and return whether there was one.

    It may start others while it waits.
    """
    if not _pending or len(_running) >= MAX_NESTED or _is_deep():
        return False
    _pending[0].run()
    return True


def _is_deep() -> bool:
    try:
        sys._getframe(MAX_NESTED_FRAMES)  # noqa: SLF001 - the only way without walking the stack
    except ValueError:
        return False
    return True


class NestedFuture(futures.Future):  # type: ignore[type-arg]  # generic only for type checkers
    def __init__(self, work: Callable[[], Any]) -> None:
        super().__init__()
        self._work = work
        _pending.append(self)

    def run(self) -> None:
        """Run the function, unless it runs already or is done."""
        if self not in _pending:
            return
        _pending.remove(self)
        if not self.set_running_or_notify_cancel():
            return
        _running.append(self)
        try:
            with outside_event_loop():
                self.set_result(self._work())
        except BaseException as error:  # noqa: BLE001 - as in a thread, the future reports it
            self.set_exception(error)
        finally:
            _running.remove(self)

    def result(self, timeout: float | None = None) -> Any:
        self._finish()
        return super().result(timeout)

    def exception(self, timeout: float | None = None) -> BaseException | None:
        self._finish()
        return super().exception(timeout)

    def _finish(self) -> None:
        self.run()
        if self in _running:
            raise RuntimeError("the function waits for itself, or for one that waits for it")


class NestedExecutor(futures.Executor):
    """A thread pool without threads."""

    def __init__(
        self,
        max_workers: int | None = None,  # noqa: ARG002 - as in the replaced class
        thread_name_prefix: str = "",  # noqa: ARG002 - as in the replaced class
        initializer: Callable[..., object] | None = None,
        initargs: Iterable[Any] = (),
    ) -> None:
        self._futures: list[NestedFuture] = []
        self._is_shut_down = False
        if initializer is not None:
            initializer(*initargs)

    def submit(self, function: Callable[..., Any], /, *args: Any, **kwargs: Any) -> NestedFuture:
        if self._is_shut_down:
            raise RuntimeError("cannot schedule new futures after shutdown")
        future = NestedFuture(partial(function, *args, **kwargs))
        self._futures.append(future)
        return future

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:
        self._is_shut_down = True
        for future in self._futures:
            if cancel_futures:
                future.cancel()
            if wait and not future.cancelled():
                future.exception()


class SleepLoop(asyncio.BaseEventLoop):
    """An event loop that waits by sleeping."""

    def __init__(self) -> None:
        super().__init__()
        self._selector = self

    def select(self, timeout: float | None) -> list[Any]:
        if not start_one() and timeout != 0:
            time.sleep(IDLE_SECONDS if timeout is None else timeout)
        return []

    def _process_events(self, _events: list[Any]) -> None:
        """Do nothing: there are no descriptors."""

    def _write_to_self(self) -> None:
        """Do nothing: no other thread can wait."""

    async def shutdown_default_executor(self, _timeout: float | None = None) -> None:
        executor: Any = vars(self).get("_default_executor")
        if executor is not None:
            executor.shutdown()


def install() -> None:
    """Replace what needs threads, processes or descriptors."""

    def start_thread(*_args: object, **_kwargs: object) -> None:
        raise RuntimeError(NO_THREADS)

    for module in (sys.modules["_thread"], threading):
        vars(module).update((name, start_thread) for name in START_THREAD if hasattr(module, name))
    thread_pools: Any = sys.modules.get("concurrent.futures.thread")
    if thread_pools is None:
        import concurrent.futures.thread as thread_pools
    vars(thread_pools)["ThreadPoolExecutor"] = vars(futures)["ThreadPoolExecutor"] = NestedExecutor
    for name in ("wait", "as_completed"):
        vars(futures)[name] = _run_first(getattr(futures, name))
    vars(asyncio)["new_event_loop"] = vars(asyncio.events)["new_event_loop"] = SleepLoop


def _run_first(wait: Callable[..., Any]) -> Callable[..., Any]:
    def wait_after_running(waited: Iterable[Any], *args: Any, **kwargs: Any) -> Any:
        waited = list(waited)
        for future in waited:
            if isinstance(future, NestedFuture):
                future.run()
        return wait(waited, *args, **kwargs)

    return wait_after_running
