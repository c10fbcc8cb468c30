"""Rate limits (`maxCallsPerMinute`): the calls of each tool in the last minute.

Calls are counted by an identity that outlives the tool object.
"""

import math

from onetool.errors import BudgetExceeded, StorageError
from onetool.state.memory import Counters
from onetool.util.text import pluralize

WINDOW_SECONDS = 60.0


class RateLimiter:
    """A rate limiter. `acquire` blocks if the counters do: call it in a thread.

    If the counters cannot be used, calls are rejected, or counted by `fallback`.
    """

    def __init__(self, counters: Counters | None = None, fallback: Counters | None = None) -> None:
        self._counters = counters or Counters()
        self._fallback = fallback
        self.problem: str | None = None

    def acquire(self, identity: str, limit: int) -> None:
        """Count one call, or raise BudgetExceeded."""
        name = f"rate {identity}"
        counted = 0.0 if self._fallback is None else self._fallback.take(name, limit, WINDOW_SECONDS)
        try:
            wait = self._counters.take(name, limit, WINDOW_SECONDS)
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
