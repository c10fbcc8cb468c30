"""Threads for tools that are no coroutines: so many at once, and as many again for the tools that those call.

Tools that wait for tools can so never hold every thread there is, each waiting for another. A thread cannot be ended:
one that nobody waits for any more runs on, but calls no tool.
"""

import asyncio
import functools
from collections import defaultdict
from collections.abc import Callable, Coroutine, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

import anyio.to_thread

from onetool.errors import Cancelled, ToolError

DEEPEST = 102  # calls of tools by tools
_depth: ContextVar[int] = ContextVar("depth", default=0)
_thread: ContextVar["_Thread | None"] = ContextVar("thread", default=None)

Call = Callable[[], Coroutine[Any, Any, Any]]


class ToolThreads:
    def __init__(self, most: int = 256) -> None:
        self._levels: defaultdict[int, anyio.CapacityLimiter] = defaultdict(lambda: anyio.CapacityLimiter(most))

    async def run(self, function: Callable[..., Any], /, *args: Any, **named: Any) -> Any:
        caller, call = _thread.get(), functools.partial(function, *args, **named)
        thread = _Thread(0 if caller is None else caller.level + 1)
        limiter, token = self._levels[thread.level], _thread.set(thread)
        try:
            return await anyio.to_thread.run_sync(call, limiter=limiter, abandon_on_cancel=True)
        finally:
            _thread.reset(token)
            thread.leave()


class _Thread:
    """A tool in its thread, and the calls that it waits for. `level` is how many threads wait for this one."""

    def __init__(self, level: int) -> None:
        self.level, self._loop = level, asyncio.get_running_loop()
        self._calls: set[asyncio.Task[Any]] = set()
        self._is_left = False

    def wait_for(self, call: Call) -> Any:
        return asyncio.run_coroutine_threadsafe(self._made(call), self._loop).result()

    def leave(self) -> None:
        """Nobody waits for it any more."""
        self._is_left = True
        for call in self._calls:
            call.cancel()

    async def _made(self, call: Call) -> Any:
        """On the loop, where it also is left: there is no moment in between."""
        if self._is_left:
            raise Cancelled("nobody waits for this tool any more, and so it calls no other")
        task = asyncio.current_task()
        assert task is not None
        self._calls.add(task)
        try:
            return await call()
        finally:
            self._calls.discard(task)


def wait_for(call: Call) -> Any:
    """In the thread of a tool: what the call gives that is made on the loop."""
    thread = _thread.get()
    if thread is None or _is_on_a_loop():
        raise ToolError("call_sync() is for tools in threads; in a coroutine write: await context.call(...)")
    return thread.wait_for(call)


def _is_on_a_loop() -> bool:
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return False
    return True


@contextmanager
def one_deeper(name: str) -> Iterator[None]:
    """While a tool runs. One that calls itself without end is stopped before it has used up the machine."""
    depth = _depth.get() + 1
    if depth > DEEPEST:
        raise ToolError(f"{name} was not called: {DEEPEST} tools are waiting for one another already")
    token = _depth.set(depth)
    try:
        yield
    finally:
        _depth.reset(token)
