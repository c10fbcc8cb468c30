"""Supervision of a worker or connection that calls share: started on demand, once for all callers,
stopped when idle.

After a failed start, the next attempt is delayed, longer each time. Callers in the meantime get the
error immediately.
"""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Generic, Protocol, TypeVar

from onetool.errors import ToolError
from onetool.util.background import retrieve_error

FIRST_WAIT_SECONDS = 1.0
MAX_WAIT_SECONDS = 60.0
BUSY_SECONDS = 1.0  # until the next check of a child that is in use


class Stoppable(Protocol):
    @property
    def is_over(self) -> bool: ...


Child = TypeVar("Child", bound=Stoppable)


class Supervised(Generic[Child]):
    """A supervised child.

    `start` raises ToolError; `idle` returns its idle timeout in seconds, None while in use.
    """

    def __init__(
        self,
        name: str,
        start: Callable[[], Awaitable[Child]],
        stop: Callable[[Child], None],
        idle: Callable[[Child], float | None],
    ) -> None:
        self._name = name
        self._start = start
        self._stop = stop
        self._idle = idle
        self._child: Child | None = None
        self._starting: asyncio.Task[Child] | None = None
        self.last_use = 0.0
        self.failure: ToolError | None = None
        self._failures = 0
        self._next_try = 0.0

    @property
    def live(self) -> Child | None:
        return self._child if self._child is not None and not self._child.is_over else None

    @property
    def starting(self) -> "asyncio.Task[Child] | None":
        """The start in progress.

        One that has ended is not joined: its child may have been stopped at once.
        """
        return None if self._starting is None or self._starting.done() else self._starting

    @property
    def wait_seconds(self) -> float:
        """The seconds until the next start is allowed."""
        return max(0.0, self._next_try - asyncio.get_running_loop().time())

    async def get(self) -> Child:
        """Return the live child; start it if there is none.

        Cancelling a caller does not cancel the start.
        """
        if (live := self.live) is not None:
            return live
        starting = self.begin()
        try:
            return await asyncio.shield(starting)
        except asyncio.CancelledError:
            if starting.cancelled():
                raise ToolError(f"{self._name} was closed during startup") from None
            raise

    def begin(self) -> "asyncio.Task[Child]":
        """Start the child, unless it is already starting."""
        starting = self.starting
        if starting is None:
            starting = self._starting = asyncio.ensure_future(self._run_start())
            starting.add_done_callback(retrieve_error)
        return starting

    async def _run_start(self) -> Child:
        try:
            child = await self._start()
        except ToolError as error:
            self.failure = error
            pause = min(MAX_WAIT_SECONDS, FIRST_WAIT_SECONDS * 2**self._failures)
            self._failures = self._failures + 1
            self._next_try = asyncio.get_running_loop().time() + pause
            raise
        self._child = child
        self.failure = None
        self._failures = 0
        self._next_try = 0.0
        self.last_use = asyncio.get_running_loop().time()
        self._stop_when_idle(child)
        return child

    def retry_now(self) -> None:
        """Forget the last failure: its reason is gone."""
        self.failure = None
        self._failures = 0
        self._next_try = 0.0

    def lose(self, child: Child, failure: ToolError) -> bool:
        """Record that the child was lost; return whether it was the current one.

        A new start is allowed at once.
        """
        is_current = self._child is child
        if is_current:
            self._child = None
            self.failure = failure
            self._next_try = 0.0
        return is_current

    def release(self) -> Child | None:
        """Return the child without stopping it, and forget it."""
        child = self._child
        self._child = None
        return child

    def _stop_when_idle(self, child: Child) -> None:
        """Stop the child after its idle time, which restarts with every use."""
        if child.is_over or self._child is not child:
            return
        loop = asyncio.get_running_loop()
        idle = self._idle(child)
        left = BUSY_SECONDS if idle is None else self.last_use + idle - loop.time()
        if left > 0:
            loop.call_later(left, self._stop_when_idle, child)
        else:
            self._child = None
            self._stop(child)
