"""Rate limits (`maxCallsPerMinute`): the calls of each tool in the last minute, shared by processes through a file.

Calls are counted by an identity that outlives the tool object. If the file is not usable, each process counts its own
calls.
"""

import math
import time
from collections import deque
from collections.abc import Callable
from contextlib import closing, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Final

from onetool.errors import BudgetExceeded

if TYPE_CHECKING:
    import sqlite3

WINDOW_SECONDS: Final = 60.0
BUSY_SECONDS: Final = 2.0
SCHEMA: Final = """
create table if not exists calls (tool text not null, at real not null);
create index if not exists calls_by_tool on calls (tool, at);
"""


class Rates:
    """The calls of this process."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._calls: dict[str, deque[float]] = {}

    def take(self, identity: str, limit: int) -> None:
        """Count one call, or raise BudgetExceeded."""
        now = self._clock()
        calls = self._calls.setdefault(identity, deque())
        while calls and calls[0] <= now - WINDOW_SECONDS:
            calls.popleft()
        if len(calls) >= limit:
            raise _too_many(len(calls), limit, calls[0] + WINDOW_SECONDS - now)
        calls.append(now)


class SharedRates:
    """The calls of all processes. `take` blocks on disk access: do not call it on the event loop."""

    def __init__(self, file: Path, clock: Callable[[], float] = time.time) -> None:
        self._file, self._clock = file, clock
        self._own = Rates()
        self.problem: str | None = None

    def take(self, identity: str, limit: int) -> None:
        """Count one call, or raise BudgetExceeded."""
        import sqlite3

        try:
            self._file.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
            with closing(sqlite3.connect(self._file, timeout=BUSY_SECONDS, isolation_level=None)) as database:
                self._take(database, identity, limit)
            self.problem = None
        except (OSError, sqlite3.Error) as error:
            self.problem = f"cannot write {self._file}: {error}. maxCallsPerMinute is counted per process"
            self._own.take(identity, limit)
        else:
            with suppress(BudgetExceeded):
                self._own.take(identity, limit)  # in case the file becomes unusable

    def _take(self, database: "sqlite3.Connection", identity: str, limit: int) -> None:
        now = self._clock()
        database.execute("pragma synchronous = off")  # a power failure loses at most one minute of counts
        database.executescript(SCHEMA)
        database.execute("begin immediate")
        database.execute("delete from calls where at <= ? or at > ?", (now - WINDOW_SECONDS, now + 1))
        query = "select count(*), min(at) from calls where tool = ?"
        held, first = database.execute(query, (identity,)).fetchone()
        if held < limit:
            database.execute("insert into calls values (?, ?)", (identity, now))
        database.execute("commit")
        if held >= limit:
            raise _too_many(held, limit, first + WINDOW_SECONDS - now)


def _too_many(held: int, limit: int, seconds: float) -> BudgetExceeded:
    wait = max(1, math.ceil(seconds))
    return BudgetExceeded(
        f"rate limit exceeded: {held} calls in the last minute (maxCallsPerMinute is {limit}); retry in {wait} s",
        code="rate_limited",
        retry_after=wait,
    )
