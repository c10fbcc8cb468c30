"""Rate limits (`maxCallsPerMinute`): the calls of each tool in the last minute, shared by processes through a file.

Calls are counted by an identity that outlives the tool object. If the file is not usable, each process counts its own
calls.
"""

import math
import time
from collections import deque
from contextlib import closing, suppress
from pathlib import Path
from typing import TYPE_CHECKING

from onetool.errors import BudgetExceeded
from onetool.state.storage import Counters
from onetool.util.clock_watch import Clock
from onetool.util.text import pluralize

if TYPE_CHECKING:
    import sqlite3

WINDOW_SECONDS = 60.0
BUSY_SECONDS = 2.0
SCHEMA = """
create table if not exists calls (tool text not null, at real not null);
create index if not exists calls_by_tool on calls (tool, at);
"""


class RateLimiter:
    """A rate limiter that counts the calls of this process."""

    problem: str | None = None

    def __init__(self, clock: Clock = time.monotonic) -> None:
        self._clock = clock
        self._calls: dict[str, deque[float]] = {}

    def acquire(self, identity: str, limit: int) -> None:
        """Count one call, or raise BudgetExceeded."""
        now = self._clock()
        calls = self._calls.setdefault(identity, deque())
        while calls and calls[0] <= now - WINDOW_SECONDS:
            calls.popleft()
        if len(calls) >= limit:
            raise _rate_limit_error(len(calls), limit, calls[0] + WINDOW_SECONDS - now)
        calls.append(now)


class CountedRateLimiter:
    """A rate limiter that counts the calls of all replicas. If their database is away, calls are rejected."""

    problem: str | None = None

    def __init__(self, counters: Counters) -> None:
        self._counters = counters

    def acquire(self, identity: str, limit: int) -> None:
        """Count one call, or raise BudgetExceeded."""
        if wait := self._counters.take(f"rate {identity}", limit, WINDOW_SECONDS):
            raise _rate_limit_error(limit, limit, wait)


class SharedRateLimiter:
    """A rate limiter that counts the calls of all processes. `acquire` blocks on disk access: call it in a thread."""

    def __init__(self, file: Path, clock: Clock = time.time) -> None:
        self._file = file
        self._clock = clock
        self._local_limiter = RateLimiter()
        self.problem: str | None = None

    def acquire(self, identity: str, limit: int) -> None:
        """Count one call, or raise BudgetExceeded."""
        import sqlite3

        try:
            self._file.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
            with closing(sqlite3.connect(self._file, timeout=BUSY_SECONDS, isolation_level=None)) as database:
                self._acquire(database, identity, limit)
            self.problem = None
        except (OSError, sqlite3.Error) as error:
            self.problem = f"cannot write {self._file}: {error}; maxCallsPerMinute is counted per process"
            self._local_limiter.acquire(identity, limit)
        else:
            with suppress(BudgetExceeded):
                self._local_limiter.acquire(identity, limit)  # in case the file becomes unusable

    def _acquire(self, database: "sqlite3.Connection", identity: str, limit: int) -> None:
        now = self._clock()
        database.execute("pragma synchronous = off")  # a power failure loses at most one minute of counts
        database.executescript(SCHEMA)
        database.execute("begin immediate")
        database.execute("delete from calls where at <= ? or at > ?", (now - WINDOW_SECONDS, now + 1))
        query = "select count(*), min(at) from calls where tool = ?"
        count, first = database.execute(query, (identity,)).fetchone()
        if count < limit:
            database.execute("insert into calls values (?, ?)", (identity, now))
        database.execute("commit")
        if count >= limit:
            raise _rate_limit_error(count, limit, first + WINDOW_SECONDS - now)


def _rate_limit_error(count: int, limit: int, seconds: float) -> BudgetExceeded:
    wait = max(1, math.ceil(seconds))
    return BudgetExceeded(
        f"rate limit exceeded: {pluralize(count, 'call')} in the last minute "
        f"(maxCallsPerMinute is {limit}); retry in {wait} s",
        code="rate_limited",
        retry_after=wait,
    )
