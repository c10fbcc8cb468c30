"""Clocks that jump, deadlines that pause, and signals that stop an event loop."""

import asyncio
import math
import signal
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext

import anyio

MAX_DIFFERENCE_SECONDS = 30.0  # by which two clocks may differ between two checks
SETTLE_SECONDS = 600.0  # for which a clock that has jumped is not believed
Clock = Callable[[], float]  # returns seconds
Waiting = Callable[[], AbstractContextManager[None]]


def read_steady_clock() -> float:
    """Return the seconds since the machine started, including sleep if possible."""
    kind = getattr(time, "CLOCK_BOOTTIME", None)
    return time.monotonic() if kind is None else time.clock_gettime(kind)


class ClockWatch:
    """Compares a clock with the steady clock of the machine, each time that it is checked."""

    def __init__(self, clock: Clock, steady: Clock = read_steady_clock) -> None:
        self.clock = clock
        self._steady = steady
        self._offset = clock() - steady()  # at the last check
        self._jumped_at: float | None = None  # the steady time at which a jump was seen
        self._jump = 0.0  # seconds by which the clock has jumped, while it is not believed

    def is_reliable(self) -> bool:
        """Return whether the clock has not jumped recently."""
        steady = self._steady()
        offset = self.clock() - steady
        difference = offset - self._offset
        self._offset = offset
        if abs(difference) > MAX_DIFFERENCE_SECONDS:
            self._jumped_at = steady
            self._jump = difference
        elif self._jumped_at is not None and steady - self._jumped_at > SETTLE_SECONDS:
            self._jumped_at = None
            self._jump = 0.0
        return self._jumped_at is None

    @property
    def problem(self) -> str:
        """The reason why nothing is deleted now; empty if the clock has not jumped recently."""
        if self.is_reliable():
            return ""
        return (
            f"the clock jumped by {self._jump:+,.0f} s: nothing expires or is deleted for some"
            " minutes"
        )


class Sweep:
    """Decides when to delete: once per interval, and never soon after a clock jump."""

    def __init__(
        self, watch: ClockWatch, seconds: float, steady: Clock = read_steady_clock
    ) -> None:
        self._watch = watch
        self._seconds = seconds
        self._steady = steady
        self._next = 0.0

    def is_due(self) -> bool:
        """Return whether to delete now."""
        now = self._steady()
        if not self._watch.is_reliable() or now < self._next:
            return False
        self._next = now + self._seconds
        return True

    def repeat(self) -> None:
        """Continue at the next check: not everything was deleted."""
        self._next = 0.0


# --- deadlines ------------------------------------------------------------------------------------


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
