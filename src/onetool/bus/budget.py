"""Budgets of agents: time, calls, tokens, cost. The guard counts; `onetool.bus.bus` asks it around each call.

Calls and time are bounded before they are spent, so that calls side by side never spend more: a call takes its place
before it starts, and all that run together are cut when their times add up to the limit. What a call costs in tokens
and money is known when it is over; the one that crosses the limit is charged and its result withheld.
"""

import asyncio
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any, Literal

import anyio

from onetool.errors import BudgetExceeded
from onetool.stats.tokens import tokens_of

Kind = Literal["time_seconds", "calls", "tokens", "cost"]
KINDS: tuple[Kind, ...] = ("time_seconds", "calls", "tokens", "cost")
WARN_AT = 0.8


@dataclass(frozen=True, slots=True)
class Limits:
    """None is no limit."""

    time_seconds: float | None = None
    calls: int | None = None
    tokens: int | None = None
    cost: float | None = None

    def __post_init__(self) -> None:
        for kind in KINDS:
            limit = getattr(self, kind)
            is_number = isinstance(limit, int | float) and not isinstance(limit, bool)
            if limit is not None and not (is_number and limit >= 0):
                raise ValueError(f"invalid budget limit {kind}={limit!r}: expected a number of at least 0, or None")


class BudgetGuard:
    """`warn` is told once for each kind that is nearly used up; `tokens_of` measures a result."""

    def __init__(
        self,
        limits: Limits,
        *,
        agent: str = "default",
        warn: Callable[[str], None] | None = None,
        tokens_of: Callable[[Any], int] = tokens_of,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.limits, self.agent = limits, agent
        self._warn, self._tokens_of, self._clock = warn, tokens_of, clock
        self._spent: dict[Kind, float] = dict.fromkeys(KINDS, 0)
        self._warned: set[Kind] = set()
        self._running: set[anyio.CancelScope] = set()
        self._counted_until = clock()
        self._alarm: asyncio.TimerHandle | None = None

    @property
    def spent(self) -> dict[Kind, float]:
        self._count_time()
        return dict(self._spent)

    def allow(self, limits: Limits) -> None:
        """From now on; what has been spent stays spent, and only of a new limit it is warned again."""
        self._count_time()
        self._warned = {kind for kind in self._warned if getattr(limits, kind) == getattr(self.limits, kind)}
        self.limits = limits
        self._set_alarm()

    async def spend(self, call: Callable[[], Awaitable[Any]], cost: float = 0) -> Any:
        """Make the call, if there is anything left to make it with."""
        self.refuse_when_used_up()
        self._charge("calls", 1)
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
            raise self._used_up("time_seconds", "and the call was cut")
        self._charge("tokens", self._tokens_of(value) if self.limits.tokens is not None else 0)
        for kind in ("tokens", "cost"):
            limit = getattr(self.limits, kind)
            if limit is not None and self._spent[kind] > limit:
                raise self._used_up(kind, "by this call, whose result is withheld")
        return value

    def refuse_when_used_up(self) -> None:
        self._count_time()
        for kind in KINDS:
            limit = getattr(self.limits, kind)
            if limit is not None and self._spent[kind] >= limit:
                raise self._used_up(kind, "and the call was not made")

    # --- counting -------------------------------------------------------------------------------------------------

    def _charge(self, kind: Kind, amount: float) -> None:
        self._spent[kind] = round(self._spent[kind] + amount, 9)  # ten times 0.1 is 1, and used up
        limit = getattr(self.limits, kind)
        if limit is None or kind in self._warned or self._spent[kind] < WARN_AT * limit:
            return
        self._warned.add(kind)
        if self._warn is not None:
            self._warn(f"the agent {self.agent} has used {self._shown(kind)}")

    def _used_up(self, kind: Kind, outcome: str) -> BudgetExceeded:
        return BudgetExceeded(
            f"the agent {self.agent} has used up its budget: {self._shown(kind)}, {outcome}. To allow more, set "
            f"agents: {{{self.agent}: {{budgets: {{{kind}: ...}}}}}} in onetool.yaml; a new start counts from 0 again",
            budget=kind,
            limit=getattr(self.limits, kind),
            spent=round(self._spent[kind], 3),
        )

    def _shown(self, kind: Kind) -> str:
        unit = "seconds" if kind == "time_seconds" else kind
        return f"{round(self._spent[kind], 3):g} of {getattr(self.limits, kind):g} {unit}"

    # --- time -----------------------------------------------------------------------------------------------------

    def _count_time(self) -> None:
        """Two calls that run for a second have taken two."""
        now = self._clock()
        self._charge("time_seconds", (now - self._counted_until) * len(self._running))
        self._counted_until = now

    def _set_alarm(self) -> None:
        if self._alarm is not None:
            self._alarm.cancel()
            self._alarm = None
        if self.limits.time_seconds is not None and self._running:
            left = (self.limits.time_seconds - self._spent["time_seconds"]) / len(self._running)
            self._alarm = asyncio.get_running_loop().call_later(max(0, left), self._cut)

    def _cut(self) -> None:
        for scope in self._running:
            scope.cancel()
