"""Running tasks, and computations that callers share. asyncio keeps only weak references to tasks."""

import asyncio
import time
from collections.abc import Awaitable, Callable, Hashable
from dataclasses import dataclass
from math import inf
from typing import Any, Generic, TypeVar

from onetool.util.clock_watch import Clock

T = TypeVar("T")
KEPT_SECONDS = 1.0


class BackgroundTasks:
    """A set of running tasks. Without `on_error`, asyncio logs what a task raises."""

    def __init__(self, on_error: Callable[[BaseException], None] | None = None) -> None:
        self._tasks: set[asyncio.Future[object]] = set()
        self._on_error = on_error

    def start(self, work: Awaitable[T]) -> asyncio.Future[T]:
        task = asyncio.ensure_future(work)
        self._tasks.add(task)  # type: ignore[arg-type]  # futures are invariant, and results are not set here
        task.add_done_callback(self._end)
        return task

    def cancel(self) -> None:
        for task in self._tasks:
            task.cancel()

    def __len__(self) -> int:
        return len(self._tasks)

    async def wait(self) -> None:
        """Wait until all tasks have ended, with or without errors."""
        if self._tasks:
            await asyncio.wait(self._tasks)

    def _end(self, task: asyncio.Future[T]) -> None:
        self._tasks.discard(task)
        if (
            self._on_error is not None
            and not task.cancelled()
            and (error := task.exception()) is not None
        ):
            self._on_error(error)


def retrieve_error(task: asyncio.Future[Any]) -> None:
    """Retrieve the error of a task, which asyncio would log otherwise."""
    if not task.cancelled():
        task.exception()


# --- shared flights -------------------------------------------------------------------------------


@dataclass(slots=True)
class _Flight(Generic[T]):
    task: asyncio.Task[T]
    expires: float = inf  # while it is computed


class SharedFlight(Generic[T]):
    """A slow computation that runs at most once at a time, and whose result is kept for a second.

    If it took longer than a second, its result is kept for as long as it took. Computations for
    other keys start after a pause of that length. So callers in a loop leave others at least half
    of the time.
    """

    def __init__(self, clock: Clock = time.monotonic) -> None:
        self._clock = clock
        self._lock = asyncio.Lock()
        self._flights: dict[Hashable, _Flight[T]] = {}
        self._next_start = 0.0

    async def join(self, compute: Callable[[], Awaitable[T]], key: Hashable = None) -> T:
        """Return a recent result for this key, the current one, or a new one."""
        now = self._clock()
        self._flights = {
            key: flight for key, flight in self._flights.items() if now < flight.expires
        }
        flight = self._flights.get(key)
        if flight is None:
            flight = _Flight(asyncio.create_task(self._compute(compute, key)))
            flight.task.add_done_callback(retrieve_error)  # the callers may all be gone
            self._flights[key] = flight
        return await asyncio.shield(flight.task)

    def forget(self) -> None:
        """Compute the next results again: what they depend on has changed."""
        self._flights = {}

    async def _compute(self, compute: Callable[[], Awaitable[T]], key: Hashable) -> T:
        async with self._lock:
            await asyncio.sleep(self._next_start - self._clock())
            started = self._clock()
            try:
                return await compute()
            finally:
                ended = self._clock()
                self._next_start = ended + (ended - started)
                if key in self._flights:
                    self._flights[key].expires = ended + max(ended - started, KEPT_SECONDS)
