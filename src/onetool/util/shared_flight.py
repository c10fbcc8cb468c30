"""Computations that concurrent callers share."""

import asyncio
import time
from collections.abc import Awaitable, Callable, Hashable
from typing import Any, Generic, TypeVar

MAX_PAUSE_SECONDS = 1.0
T = TypeVar("T")


class SharedFlight(Generic[T]):
    """A slow computation that runs at most once at a time.

    Callers that wait for the same key share the next result, which is computed after all of them have called: nobody
    gets an outdated one. Before the next computation there is a pause as long as the last one, so that callers in a
    loop leave others at least half of the time.
    """

    def __init__(self) -> None:
        self._lock = asyncio.Lock()
        self._waiting: dict[Hashable, asyncio.Task[T]] = {}
        self._next_start = 0.0

    async def join(self, compute: Callable[[], Awaitable[T]], key: Hashable = None) -> T:
        """Return the result of the next computation for this key."""
        task = self._waiting.get(key)
        if task is None:
            task = asyncio.create_task(self._compute(compute, key))
            task.add_done_callback(_ignore_error)
            self._waiting[key] = task
        return await asyncio.shield(task)

    async def _compute(self, compute: Callable[[], Awaitable[T]], key: Hashable) -> T:
        try:
            await self._lock.acquire()
        finally:
            del self._waiting[key]
        try:
            await asyncio.sleep(self._next_start - time.monotonic())
            started = time.monotonic()
            try:
                return await compute()
            finally:
                ended = time.monotonic()
                self._next_start = ended + min(ended - started, MAX_PAUSE_SECONDS)
        finally:
            self._lock.release()


def _ignore_error(task: "asyncio.Task[Any]") -> None:
    """Retrieve the error of a computation whose callers are all gone."""
    if not task.cancelled():
        task.exception()
