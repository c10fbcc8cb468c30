"""Threads for tools that are not coroutines: a limited number for each nesting level of calls.

Separate limits prevent a deadlock in which all threads wait for tools that need a thread. A thread
cannot be stopped: after its call was cancelled it continues to run, but it can no longer call
tools.
"""

import asyncio
from collections import defaultdict
from collections.abc import Callable, Coroutine, Iterator
from concurrent.futures import CancelledError
from contextlib import AbstractAsyncContextManager, ExitStack, contextmanager
from contextvars import ContextVar
from functools import partial
from typing import TYPE_CHECKING, Any

import anyio
from anyio.to_thread import run_sync as run_in_thread

from onetool.errors import Cancelled, ToolError

if TYPE_CHECKING:
    from anyio.from_thread import BlockingPortal

MAX_DEPTH = 102  # nested calls of tools by tools
_depth: ContextVar[int] = ContextVar("depth", default=0)
_thread: ContextVar["_Thread | None"] = ContextVar("thread", default=None)

Call = Callable[[], Coroutine[Any, Any, Any]]


class ToolThreads:
    """The threads of tools, at most `max_threads` for each nesting level."""

    def __init__(self, max_threads: int = 256) -> None:
        self._levels: defaultdict[int, anyio.CapacityLimiter] = defaultdict(
            lambda: anyio.CapacityLimiter(max_threads)
        )

    @property
    def is_cancelled(self) -> bool:
        """Whether the tool that runs in this thread was cancelled."""
        thread = _thread.get()
        return thread is not None and thread.is_abandoned

    def wait_or_return(self, call: Call) -> Any:
        """Run the call and wait for it in the thread of a tool; elsewhere, return the coroutine."""
        thread = _thread.get()
        return call() if thread is None or is_on_event_loop() else thread.wait_for(call)

    async def run(self, function: Callable[..., Any], /, *args: Any, **named: Any) -> Any:
        caller = _thread.get()
        call = partial(function, *args, **named)
        thread = _Thread(0 if caller is None else caller.level + 1)
        limiter = self._levels[thread.level]
        token = _thread.set(thread)
        try:
            return await run_in_thread(call, limiter=limiter, abandon_on_cancel=True)
        finally:
            _thread.reset(token)
            thread.abandon()


class _Thread:
    """A tool in a thread, and the calls it waits for.

    `level` is the number of threads that wait for this one.
    """

    def __init__(self, level: int) -> None:
        self.level = level
        self._loop = asyncio.get_running_loop()
        self._calls: set[asyncio.Task[Any]] = set()
        self.is_abandoned = False

    def wait_for(self, call: Call) -> Any:
        return asyncio.run_coroutine_threadsafe(self._run_on_loop(call), self._loop).result()

    def abandon(self) -> None:
        """Cancel its calls, because its result is no longer needed."""
        self.is_abandoned = True
        for call in self._calls:
            call.cancel()

    async def _run_on_loop(self, call: Call) -> Any:
        """Run the call on the event loop, where `abandon` runs too, so that there is no race."""
        if self.is_abandoned:
            raise Cancelled("the tool was cancelled and cannot call other tools")
        task = asyncio.current_task()
        assert task is not None
        self._calls.add(task)
        try:
            return await call()
        finally:
            self._calls.discard(task)


class LoopThread:
    """The event loop of an application in a thread of its own, for programs without an event loop."""

    def __init__(self) -> None:
        self._stack: ExitStack | None = None

    def open(self, application: AbstractAsyncContextManager[Any]) -> "BlockingPortal":
        """Start the event loop and open the application on it."""
        from anyio.from_thread import start_blocking_portal

        with ExitStack() as stack:
            portal = stack.enter_context(start_blocking_portal("asyncio", name="onetool"))
            stack.enter_context(portal.wrap_async_context_manager(application))
            self._stack = stack.pop_all()
        return portal

    def require(self) -> None:
        """Raise if the application was not opened here."""
        if self._stack is None:
            raise ToolError(
                "cannot use run_sync: OneTool was not opened for it",
                hint="write `with OneTool() as app:`",
            )

    def close(self, kind: type[BaseException] | None, error: BaseException | None) -> None:
        """Close the application, then end the event loop."""
        assert self._stack is not None
        self._stack.__exit__(kind, error, None if error is None else error.__traceback__)
        self._stack = None


def wait_for(call: Call) -> Any:
    """Run a call on the event loop from the thread of a tool, and return its result."""
    thread = _thread.get()
    if thread is None or is_on_event_loop():
        raise ToolError(
            "call_sync() cannot be used in a coroutine", hint="write: await context.call(...)"
        )
    return thread.wait_for(call)


def call_blocking(call: Call, portal: "BlockingPortal | None", instead: str) -> Any:
    """Run a call on the event loop of the portal, or else on a new one, and return its result.

    Raise on a running event loop, which the call would block; `instead` is what to write there.
    """
    reject_event_loop(instead)
    if portal is None:
        return anyio.run(call)
    running = portal.start_task_soon(call)
    try:
        return running.result()
    except CancelledError:
        raise Cancelled("the call was cancelled: OneTool was closed") from None
    except BaseException:  # Ctrl+C ends the call too
        running.cancel()
        raise


def reject_event_loop(instead: str) -> None:
    """Raise if this thread runs an event loop, which a blocking call would stop."""
    if is_on_event_loop():
        raise ToolError(
            "a blocking call would stop the running event loop", hint=f"write `{instead}`"
        )


def is_on_event_loop() -> bool:
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return False
    return True


@contextmanager
def nesting_guard(name: str) -> Iterator[None]:
    """Limit the nesting of tool calls, so that endless recursion does not exhaust the machine."""
    depth = _depth.get() + 1
    if depth > MAX_DEPTH:
        raise ToolError(
            f"{name} was not called: tool calls are nested more than {MAX_DEPTH} levels deep"
        )
    token = _depth.set(depth)
    try:
        yield
    finally:
        _depth.reset(token)
