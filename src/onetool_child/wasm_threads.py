"""Substitutes for threads and event loops in a WebAssembly sandbox, which has one thread and no
readable descriptors.

The functions of a thread pool run nested: while one waits for the answer of a call, `start_one`
starts the next. So the first calls of all functions are in flight at the same time, and each later
call waits for the functions above it on the stack.
"""

from __future__ import annotations

import asyncio
import sys
import threading
import time
from collections import deque
from concurrent import futures
from contextlib import contextmanager
from functools import partial

TYPE_CHECKING = False  # every sandbox loads this module
if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator
    from typing import Any

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
