"""Budgets of agents: time, calls, tokens and cost.

`onetool.core.bus.bus` consults the guard around each call.

Calls and time are limited before they are spent, so that concurrent calls cannot exceed the budget:
a call is counted before it starts, and running calls are cancelled when their total time reaches
the limit. Tokens and cost of a call are known afterwards: the call that exceeds the limit is
charged and its result is withheld.
"""

import asyncio
import time
from collections.abc import Awaitable, Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Literal

import anyio
from anyio.to_thread import run_sync as run_in_thread

from onetool.errors import BudgetExceeded, StorageError
from onetool.state.counters import CounterTables
from onetool.state.stats.details import count_tokens
from onetool.util.clock_watch import Clock

Kind = Literal["time_seconds", "calls", "tokens", "cost"]
KINDS: tuple[Kind, ...] = ("time_seconds", "calls", "tokens", "cost")
WARN_AT = 0.8


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
                raise ValueError(
                    f"invalid budget limit {kind}={limit!r}: expected a number of at least 0, or"
                    " None"
                )


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
        """Charge the elapsed time for each running call: two calls that run for one second cost
        two.
        """
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
        """Count a call in the database before it is made.

        Raise if a budget of the agent is used up there.
        """
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
                for earlier in reserved:
                    await run_in_thread(self._counters.settle, earlier[0], -earlier[1])
                raise self._budget_error(kind, "and the call was not made")
            reserved.append((name, amount))
            self._charge(kind, 0)

    async def _settle(self, before: Mapping[Kind, float]) -> None:
        """Count the time and the tokens that a call used, which were not known before it."""
        spent = self.spent
        for kind in ("time_seconds", "tokens"):
            if getattr(self.limits, kind) is not None and (used := spent[kind] - before[kind]) > 0:
                with suppress(
                    StorageError
                ):  # the call was made; what it used is lost with the database
                    await run_in_thread(self._counters.settle, self._counter(kind), used)

    def _counter(self, kind: str) -> str:
        return f"budget {self.agent} {kind}"
