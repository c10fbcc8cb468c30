"""Rate limits and budgets, with counters in memory, in SQLite or in PostgreSQL.

`onetool.core.bus.bus` consults an agent's budget around each call. Calls and time are limited
before they are spent, so that concurrent calls cannot exceed the budget: a call is counted before
it starts, and running calls are cancelled when their total time reaches the limit. Tokens and cost
are known afterwards: the call that exceeds the limit is charged and its result is withheld.
"""

import asyncio
import math
import threading
import time
from collections import deque
from collections.abc import Awaitable, Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import anyio
from anyio.to_thread import run_sync as run_in_thread

from onetool.errors import BudgetExceeded, StorageError, ToolError
from onetool.state.sqlite_database import SqliteDatabase, StateDatabase
from onetool.state.stats.details import count_tokens
from onetool.util.bounded_dict import BoundedDict
from onetool.util.clock_watch import Clock
from onetool.util.text import pluralize

VERSION = 1
SCHEMA = """
CREATE TABLE rates (name TEXT NOT NULL, at REAL NOT NULL);
CREATE INDEX rates_name ON rates (name, at);
CREATE TABLE counters (name TEXT PRIMARY KEY, used REAL NOT NULL)
"""
FORGET = "DELETE FROM rates WHERE name = ? AND (at <= ? OR at > ?)"
USES = "SELECT count(*), min(at) FROM rates WHERE name = ?"
ADD = "INSERT INTO rates VALUES (?, ?)"
COUNT = "SELECT count(*) FROM rates WHERE name = ? AND at > ?"
# Names are chosen by clients, such as addresses of failed sign-ins. Limits are for an hour at most.
DELETE_OLD = "DELETE FROM rates WHERE at < CASE WHEN name LIKE 'accepted %' THEN ? ELSE ? END"
DELETE_SECONDS = 600.0
KEEP_SECONDS = 3600.0
KEEP_ACCEPTED_SECONDS = 30 * 86_400.0
RESERVE = """
INSERT INTO counters VALUES (?, ?)
ON CONFLICT (name) DO UPDATE SET used = counters.used + excluded.used WHERE counters.used < ?
RETURNING used
"""
READ_USED = "SELECT used FROM counters WHERE name = ?"
SETTLE = """
UPDATE counters SET used = CASE WHEN used + :difference < 0 THEN 0 ELSE used + :difference END WHERE name = :name
"""
RESET = "DELETE FROM counters WHERE substr(name, 1, ?) = ?"
RATE_SECONDS = 60.0
MAX_NAMES = 20_000  # of counters; clients choose some of them
Kind = Literal["time_seconds", "calls", "tokens", "cost"]
KINDS: tuple[Kind, ...] = ("time_seconds", "calls", "tokens", "cost")
WARN_AT = 0.8


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
        hint = "restart the servers: they count budgets in memory"
        raise ToolError("the state is in files", hint=hint)


class RateLimiter:
    """Counts tool calls per minute (`maxCallsPerMinute`), by an identity that outlives the tool.

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


class CounterFile(SqliteDatabase):
    """Counters of processes that share a file. A power failure may lose the last ones."""

    def __init__(self, file: Path) -> None:
        super().__init__(file, SCHEMA, VERSION)


class CounterTables(Counters):
    """The counters in a database. If it cannot be used, every check raises StorageError."""

    def __init__(self, database: StateDatabase, clock: Clock | None = None) -> None:
        self._database = database
        self._clock = clock or database.now
        self._deleted_at = float("-inf")

    def take(self, name: str, limit: int, seconds: float) -> float:
        now = self._clock()
        self._delete_old(now)
        with self._database.changing("counter", name, is_announced=False) as transaction:
            transaction.execute(FORGET, (name, now - seconds, now + seconds))
            count, first = transaction.execute(USES, (name,)).fetchone()
            if count < limit:
                transaction.execute(ADD, (name, now))
                return 0.0
        return max(0.001, first + seconds - now) if count else seconds

    def count(self, name: str, seconds: float) -> int:
        return int(self._database.select(COUNT, name, self._clock() - seconds)[0][0])

    def reserve(self, name: str, amount: float, limit: float) -> tuple[bool, float]:
        """Add an amount to a sum that is below the limit. Return whether it was, and the sum."""
        with self._database.transaction() as transaction:
            if limit > 0:
                values = (name, float(amount), float(limit))
                for (used,) in transaction.execute(RESERVE, values).fetchall():
                    return True, float(used)
            for (used,) in transaction.execute(READ_USED, (name,)).fetchall():
                return False, float(used)
        return False, 0.0

    def settle(self, name: str, difference: float) -> None:
        """Correct a sum by the difference between what was used and what was reserved."""
        with self._database.transaction() as transaction:
            transaction.execute(SETTLE, {"difference": float(difference), "name": name})

    def reset(self, prefix: str, /) -> int:
        with self._database.transaction() as transaction:
            return transaction.execute(RESET, (len(prefix), prefix)).rowcount

    def _delete_old(self, now: float) -> None:
        if time.monotonic() - self._deleted_at > DELETE_SECONDS:
            self._deleted_at = time.monotonic()
            with self._database.transaction() as transaction:
                transaction.execute(DELETE_OLD, (now - KEEP_ACCEPTED_SECONDS, now - KEEP_SECONDS))


@dataclass(frozen=True, slots=True)
class Limits:
    """The limits of a budget; None means no limit."""

    time_seconds: float | None = None
    calls: int | None = None
    tokens: int | None = None
    cost: float | None = None

    def __post_init__(self) -> None:
        for kind in KINDS:
            limit = getattr(self, kind)
            is_number = isinstance(limit, int | float) and not isinstance(limit, bool)
            if limit is not None and not (is_number and limit >= 0):
                expected = "expected a number of at least 0, or None"
                raise ValueError(f"invalid budget limit {kind}={limit!r}: {expected}")


class BudgetGuard:
    """A counter of what an agent spends. `warn` is called once per kind at 80% of its limit."""

    def __init__(
        self,
        limits: Limits,
        *,
        agent: str = "default",
        warn: Callable[[str], None] | None = None,
        count_tokens: Callable[[Any], int] = count_tokens,
        clock: Clock = time.monotonic,
    ) -> None:
        self.limits = limits
        self.agent = agent
        self._warn = warn
        self._count_tokens = count_tokens
        self._clock = clock
        self._spent: dict[Kind, float] = dict.fromkeys(KINDS, 0)
        self._warned: set[Kind] = set()
        self._running: set[anyio.CancelScope] = set()
        self._counted_until = clock()
        self._alarm: asyncio.TimerHandle | None = None

    @property
    def spent(self) -> dict[Kind, float]:
        self._count_time()
        return dict(self._spent)

    def set_limits(self, limits: Limits) -> None:
        """Replace the limits. What has been spent still counts; only changed limits warn again."""
        self._count_time()
        self._warned = {
            kind for kind in self._warned if getattr(limits, kind) == getattr(self.limits, kind)
        }
        self.limits = limits
        self._set_alarm()

    async def spend(self, call: Callable[[], Awaitable[Any]], cost: float = 0) -> Any:
        """Make the call if the budget allows it."""
        self.check_remaining()
        self._charge("calls", 1)
        return await self._make_call(call, cost)

    async def _make_call(self, call: Callable[[], Awaitable[Any]], cost: float) -> Any:
        """Make a call that was counted. `cost` is charged when it has ended."""
        self._count_time()
        self._running.add(scope := anyio.CancelScope())
        self._set_alarm()
        try:
            with scope:
                value = await call()
        finally:
            self._count_time()
            self._running.discard(scope)
            self._set_alarm()
            self._charge("cost", cost)
        if scope.cancelled_caught:
            raise self._budget_error("time_seconds", "and the call was cancelled")
        self._charge("tokens", self._count_tokens(value) if self.limits.tokens is not None else 0)
        for kind in ("tokens", "cost"):
            limit = getattr(self.limits, kind)
            if limit is not None and self._spent[kind] > limit:
                raise self._budget_error(kind, "by this call, whose result is withheld")
        return value

    def check_remaining(self) -> None:
        """Raise an error if a budget is used up."""
        self._count_time()
        for kind in KINDS:
            limit = getattr(self.limits, kind)
            if limit is not None and self._spent[kind] >= limit:
                raise self._budget_error(kind, "and the call was not made")

    # --- counting ---------------------------------------------------------------------------------

    def _charge(self, kind: Kind, amount: float) -> None:
        self._spent[kind] = round(self._spent[kind] + amount, 9)  # so that ten times 0.1 is 1
        limit = getattr(self.limits, kind)
        if limit is None or kind in self._warned or self._spent[kind] < WARN_AT * limit:
            return
        self._warned.add(kind)
        if self._warn is not None:
            self._warn(f"agent {self.agent} has used {self._format_usage(kind)}")

    def _budget_error(self, kind: Kind, outcome: str) -> BudgetExceeded:
        return BudgetExceeded(
            f"agent {self.agent} exceeded its budget: {self._format_usage(kind)}, {outcome}. To"
            f" allow more, set agents: {{{self.agent}: {{budgets: {{{kind}: ...}}}}}} in"
            " onetool.yaml; a restart resets it",
            budget=kind,
            limit=getattr(self.limits, kind),
            spent=round(self._spent[kind], 3),
        )

    def _format_usage(self, kind: Kind) -> str:
        unit = "seconds" if kind == "time_seconds" else kind
        return f"{round(self._spent[kind], 3):g} of {getattr(self.limits, kind):g} {unit}"

    # --- time -------------------------------------------------------------------------------------

    def _count_time(self) -> None:
        """Charge the elapsed time once for each running call."""
        now = self._clock()
        self._charge("time_seconds", (now - self._counted_until) * len(self._running))
        self._counted_until = now

    def _set_alarm(self) -> None:
        if self._alarm is not None:
            self._alarm.cancel()
            self._alarm = None
        if self.limits.time_seconds is not None and self._running:
            left = (self.limits.time_seconds - self._spent["time_seconds"]) / len(self._running)
            self._alarm = asyncio.get_running_loop().call_later(max(0, left), self._cancel_all)

    def _cancel_all(self) -> None:
        for scope in self._running:
            scope.cancel()


class SharedBudgetGuard(BudgetGuard):
    """A budget that all replicas share, with `counters`."""

    def __init__(self, limits: Limits, *, counters: CounterTables, **options: Any) -> None:
        super().__init__(limits, **options)
        self._counters = counters

    async def spend(self, call: Callable[[], Awaitable[Any]], cost: float = 0) -> Any:
        await self._reserve(cost)
        before = self.spent
        try:
            return await self._make_call(call, 0)
        finally:
            with anyio.CancelScope(shield=True):
                await self._settle(before)

    async def _reserve(self, cost: float) -> None:
        """Count a call in the database before it is made. Raise if a budget is used up there."""
        amounts = {"calls": 1.0, "cost": cost}
        reserved: list[tuple[str, float]] = []
        for kind in KINDS:
            if (limit := getattr(self.limits, kind)) is None:
                continue
            name = self._counter(kind)
            amount = amounts.get(kind, 0.0)
            is_left, used = await run_in_thread(self._counters.reserve, name, amount, limit)
            self._spent[kind] = used
            if not is_left:
                for reserved_name, reserved_amount in reserved:
                    await run_in_thread(self._counters.settle, reserved_name, -reserved_amount)
                raise self._budget_error(kind, "and the call was not made")
            reserved.append((name, amount))
            self._charge(kind, 0)

    async def _settle(self, before: Mapping[Kind, float]) -> None:
        """Count the time and the tokens that a call used, which were not known before it."""
        spent = self.spent
        for kind in ("time_seconds", "tokens"):
            used = spent[kind] - before[kind]
            if used > 0 and getattr(self.limits, kind) is not None:
                with suppress(StorageError):  # the call was made, so its use is lost
                    await run_in_thread(self._counters.settle, self._counter(kind), used)

    def _counter(self, kind: str) -> str:
        return f"budget {self.agent} {kind}"
