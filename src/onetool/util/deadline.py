"""Deadlines that pause, and signals that stop an event loop."""

import asyncio
import math
import signal
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext

import anyio

Waiting = Callable[[], AbstractContextManager[None]]


class PausableDeadline:
    """An event loop time that moves by the time for which it was paused.

    `set_timer` is called with the new time, which is infinite during a pause. Pauses may overlap:
    the first one stops the timer and the last one restarts it. Each pause also enters `outer`,
    which stops the timers of enclosing calls.
    """

    def __init__(
        self, when: float, set_timer: Callable[[float], None], outer: Waiting = nullcontext
    ) -> None:
        self._when = when
        self._set_timer = set_timer
        self._outer = outer
        self._pauses = 0
        self._paused_at = 0.0
        self._paused_before = 0.0

    @property
    def is_paused(self) -> bool:
        return self._pauses > 0

    @property
    def paused_seconds(self) -> float:
        """The duration of all pauses, including the current one."""
        return (
            self.count_paused_seconds(anyio.current_time()) if self._pauses else self._paused_before
        )

    def count_paused_seconds(self, now: float) -> float:
        """Return the same at this time of the event loop, also outside of a task."""
        return self._paused_before + (now - self._paused_at if self._pauses else 0.0)

    @contextmanager
    def paused(self) -> Iterator[None]:
        """Stop the timer while a person is asked."""
        with self._outer():
            if not self._pauses:
                self._paused_at = anyio.current_time()
                self._set_timer(math.inf)
            self._pauses += 1
            try:
                yield
            finally:
                if self._pauses == 1:
                    self._paused_before = self.paused_seconds
                    self._set_timer(self._when + self._paused_before)
                self._pauses -= 1


# --- stop signals ---------------------------------------------------------------------------------


@contextmanager
def on_stop_signal(stop: Callable[[], object]) -> Iterator[None]:
    """Call a function on the running event loop whenever SIGINT or SIGTERM arrives.

    Only in the main thread.
    """
    loop = asyncio.get_running_loop()

    def handle(*_: object) -> None:
        loop.call_soon_threadsafe(stop)

    before = {number: signal.signal(number, handle) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
