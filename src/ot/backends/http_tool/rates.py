"""`maxCallsPerMinute`: when each tool was called in the last minute.

Kept apart from the tools, which are made anew whenever the registry is, and by an identity that outlives them.
"""

import math
import time
from collections import deque
from collections.abc import Callable
from typing import Final

from ot.errors import BudgetExceeded

WINDOW: Final = 60.0


class Rates:
    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._calls: dict[str, deque[float]] = {}

    def take(self, identity: str, limit: int) -> None:
        """Count one call, or refuse it."""
        now = self._clock()
        calls = self._calls.setdefault(identity, deque())
        while calls and calls[0] <= now - WINDOW:
            calls.popleft()
        if len(calls) >= limit:
            wait = math.ceil(calls[0] + WINDOW - now)
            raise BudgetExceeded(
                f"the tool was called {len(calls)} times in the last minute, and its maxCallsPerMinute is {limit}; "
                f"call it again in {wait} s",
                code="rate_limited",
                retry_after=wait,
            )
        calls.append(now)
