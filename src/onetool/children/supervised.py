"""A worker or a connection that many calls share: started when it is needed, once for all who wait, stopped when idle.

After a failed start the next one has to wait, longer each time; whoever needs it meanwhile gets the error at once.
"""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Generic, Protocol, TypeVar

from onetool.errors import ToolError

FIRST_WAIT, LONGEST_WAIT = 1.0, 60.0
BUSY_LOOK = 1.0  # seconds until the next look at a child that is in use


class Stoppable(Protocol):
    @property
    def is_over(self) -> bool: ...


Child = TypeVar("Child", bound=Stoppable)


class Supervised(Generic[Child]):
    """`start` raises a ToolError if it fails; `idle` is the idle time in seconds, None while the child is in use."""

    def __init__(
        self,
        name: str,
        start: Callable[[], Awaitable[Child]],
        stop: Callable[[Child], None],
        idle: Callable[[Child], float | None],
    ) -> None:
        self._name, self._start, self._stop, self._idle = name, start, stop, idle
        self._child: Child | None = None
        self.starting: asyncio.Task[Child] | None = None
        self.last_use = 0.0
        self.failure: ToolError | None = None
        self._failures, self._next_try = 0, 0.0

    @property
    def live(self) -> Child | None:
        return self._child if self._child is not None and not self._child.is_over else None

    @property
    def wait_seconds(self) -> float:
        """Seconds until the next start may be tried."""
        return max(0.0, self._next_try - asyncio.get_running_loop().time())

    async def get(self) -> Child:
        """Return the live child; start it if there is none. A caller that is cancelled leaves the start to others."""
        if (live := self.live) is not None:
            return live
        starting = self.begin()
        try:
            return await asyncio.shield(starting)
        except asyncio.CancelledError:
            if starting.cancelled():
                raise ToolError(f"{self._name} was closed while it was being started") from None
            raise

    def begin(self) -> "asyncio.Task[Child]":
        """Start it, unless that is under way."""
        if self.starting is None:
            self.starting = asyncio.ensure_future(self._run_start())
            self.starting.add_done_callback(self._end_start)
        return self.starting

    async def _run_start(self) -> Child:
        try:
            child = await self._start()
        except ToolError as error:
            self.failure = error
            pause = min(LONGEST_WAIT, FIRST_WAIT * 2**self._failures)
            self._failures, self._next_try = self._failures + 1, asyncio.get_running_loop().time() + pause
            raise
        self._child, self.failure, self._failures = child, None, 0
        self._next_try, self.last_use = 0.0, asyncio.get_running_loop().time()
        self._stop_when_idle(child)
        return child

    def _end_start(self, task: "asyncio.Task[Child]") -> None:
        self.starting = None
        if not task.cancelled():
            task.exception()  # nobody may be waiting for it

    def lose(self, child: Child, failure: ToolError) -> bool:
        """Note that the child went away by itself, unless it was replaced. The next start may be tried at once."""
        is_current = self._child is child
        if is_current:
            self._child, self.failure, self._next_try = None, failure, 0.0
        return is_current

    def release(self) -> Child | None:
        """Give the child up for somebody else to stop."""
        child, self._child = self._child, None
        return child

    def _stop_when_idle(self, child: Child) -> None:
        """Every use starts the idle time anew."""
        if child.is_over or self._child is not child:
            return
        loop, idle = asyncio.get_running_loop(), self._idle(child)
        left = BUSY_LOOK if idle is None else self.last_use + idle - loop.time()
        if left > 0:
            loop.call_later(left, self._stop_when_idle, child)
        else:
            self._child = None
            self._stop(child)
