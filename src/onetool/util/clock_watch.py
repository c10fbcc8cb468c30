"""Detect clock jumps, so that nothing is deleted because somebody has set the clock."""

import time
from collections.abc import Callable

MAX_DIFFERENCE_SECONDS = 30.0  # by which two clocks may differ between two checks
SETTLE_SECONDS = 600.0  # for which a clock that has jumped is not believed
Clock = Callable[[], float]  # returns seconds


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
