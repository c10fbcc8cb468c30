"""Computations that concurrent callers share."""

import asyncio
import time
from collections.abc import Awaitable, Callable, Hashable
from dataclasses import dataclass
from math import inf
from typing import Generic, TypeVar

from onetool.util.background_tasks import retrieve_error
from onetool.util.clock_watch import Clock

KEPT_SECONDS = 1.0
T = TypeVar("T")


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
        """Return the result for this key: a recent one, that of the current computation, or a new
        one.
        """
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
