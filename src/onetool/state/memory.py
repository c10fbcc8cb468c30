"""State that ends with its process: counters, and sessions of browsers that have ended."""

import math
import threading
import time
from collections import deque
from collections.abc import Collection

from onetool.errors import BudgetExceeded, StorageError, ToolError
from onetool.util.bounded_dict import BoundedDict
from onetool.util.clock_watch import Clock
from onetool.util.problem import Problem
from onetool.util.text import pluralize

RATE_SECONDS = 60.0
MAX_NAMES = 20_000  # of counters; clients choose some of them


class Counters:
    """Counts for rate limits, of one process.

    With too many names, the least recent ones are forgotten.
    """

    def __init__(self, clock: Clock = time.monotonic) -> None:
        self._clock = clock
        self._lock = threading.Lock()
        self._times: BoundedDict[str, deque[float]] = BoundedDict(MAX_NAMES)

    def take(self, name: str, limit: int, seconds: float) -> float:
        """Count one use of at most `limit` in `seconds`.

        Return 0, or the seconds until it is allowed.
        """
        with self._lock:
            now = self._clock()
            times = self._times.pop(name, None) or deque()
            while times and times[0] <= now - seconds:
                times.popleft()
            is_left = len(times) < limit
            if is_left:
                times.append(now)
            if times:
                self._times[name] = times
        if is_left:
            return 0.0
        return max(0.001, times[0] + seconds - now) if times else seconds

    def count(self, name: str, seconds: float) -> int:
        """Return how often it was used in the last `seconds`."""
        with self._lock:
            oldest = self._clock() - seconds
            return sum(at > oldest for at in self._times.get(name, ()))

    def reset(self, _prefix: str, /) -> int:
        """Forget the sums of budgets whose names begin so, and return their number."""
        raise ToolError(
            "the state is in files", hint="restart the servers: they count budgets in memory"
        )


class RateLimiter:
    """Counts the calls of tools in the last minute (`maxCallsPerMinute`), by an identity that
    outlives the tool.

    `acquire` blocks if the counters do: call it in a thread. If the counters cannot be used, calls
    are rejected, or counted by `fallback`.
    """

    def __init__(self, counters: Counters | None = None, fallback: Counters | None = None) -> None:
        self._counters = counters or Counters()
        self._fallback = fallback
        self.problem: str | None = None

    def acquire(self, identity: str, limit: int) -> None:
        """Count one call, or raise BudgetExceeded."""
        name = f"rate {identity}"
        counted = 0.0 if self._fallback is None else self._fallback.take(name, limit, RATE_SECONDS)
        try:
            wait = self._counters.take(name, limit, RATE_SECONDS)
            self.problem = None
        except StorageError as error:
            if self._fallback is None:
                raise
            self.problem = f"{error.message}; maxCallsPerMinute is counted per process"
            wait = counted
        if wait:
            seconds = max(1, math.ceil(wait))
            raise BudgetExceeded(
                f"rate limit exceeded: {pluralize(limit, 'call')} in the last minute "
                f"(maxCallsPerMinute is {limit}); retry in {seconds} s",
                code="rate_limited",
                retry_after=seconds,
            )


class EndedSessions:
    """Sessions of browsers that have ended before they expired, by ID."""

    def __init__(self, clock: Clock = time.time) -> None:
        self._clock = clock
        self._ended: dict[str, float] = {}

    def end(self, identifier: str, until: float) -> None:
        now = self._clock()
        self._ended = {name: end for name, end in self._ended.items() if end > now}
        self._ended[identifier] = until

    @property
    def problem(self) -> Problem | None:
        """The reason why it is not known which sessions have ended; None if it is."""
        return None

    def list_all(self) -> Collection[str]:
        """Return the sessions, at once."""
        return self._ended.keys()
