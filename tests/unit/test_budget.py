"""The budget guard alone: counting, warnings, rejections and cleanup."""

import asyncio
from collections.abc import Awaitable, Callable, Coroutine
from functools import partial
from typing import Any

import anyio
import anyio.lowlevel
import pytest
from tests.support import TIMEOUT_SECONDS

from onetool.errors import BudgetExceeded
from onetool.state.counters import BudgetGuard, Kind, Limits


class Clock:
    """A clock that a test moves."""

    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


class Spender:
    """A guard with its own clock, and its warnings."""

    def __init__(self, limits: Limits, count_tokens: Callable[[Any], int] = len) -> None:
        self.warnings: list[str] = []
        self.clock = Clock()
        self.guard = BudgetGuard(
            limits,
            agent="ci",
            warn=self.warnings.append,
            count_tokens=count_tokens,
            clock=self.clock,
        )

    async def call(self, value: Any = "", *, seconds: float = 0, cost: float = 0) -> Any:
        async def spent() -> Any:
            await anyio.lowlevel.checkpoint()
            self.clock.now += seconds
            if isinstance(value, Exception):
                raise value
            return value

        return await self.guard.spend(spent, cost)

    async def expect_rejection(
        self, value: Any = "", *, seconds: float = 0, cost: float = 0
    ) -> BudgetExceeded:
        with pytest.raises(BudgetExceeded) as caught:
            await self.call(value, seconds=seconds, cost=cost)
        return caught.value


def run(test: Callable[[], Coroutine[Any, Any, None]]) -> None:
    anyio.run(test)


async def forever() -> None:
    await anyio.sleep_forever()


async def signal_and_wait_forever(begun: anyio.Event) -> None:
    begun.set()
    await anyio.sleep_forever()


def get_spent(guard: BudgetGuard, kind: Kind) -> float:
    return guard.spent[kind]


# --- rejections and warnings ----------------------------------------------------------------------


def test_without_limits_nothing_is_rejected_and_everything_is_counted() -> None:
    async def test() -> None:
        spender = Spender(Limits())
        for _ in range(1000):
            await spender.call("abcd", seconds=1, cost=0.5)
        assert (get_spent(spender.guard, "calls"), get_spent(spender.guard, "cost")) == (1000, 500)
        assert get_spent(spender.guard, "time_seconds") == 1000
        assert spender.warnings == []

    run(test)


def test_calls_warn_once_at_80_percent_and_are_rejected_at_the_limit() -> None:
    async def test() -> None:
        spender = Spender(Limits(calls=10))
        warning_counts = []
        for _ in range(10):
            await spender.call()
            warning_counts.append(len(spender.warnings))
        assert warning_counts == [0, 0, 0, 0, 0, 0, 0, 1, 1, 1]
        error = await spender.expect_rejection()
        assert (error.budget, error.limit, error.spent) == ("calls", 10, 10)
        assert get_spent(spender.guard, "calls") == 10
        assert spender.warnings == ["agent ci has used 8 of 10 calls"]

    run(test)


def test_the_error_suggests_the_setting() -> None:
    async def test() -> None:
        error = await Spender(Limits(calls=0)).expect_rejection()
        assert (
            "agent ci exceeded its budget: 0 of 0 calls, and the call was not made" in error.message
        )
        assert "agents: {ci: {budgets: {calls: ...}}}" in error.message

    run(test)


@pytest.mark.parametrize("value", ["ok", ValueError("it failed")])
def test_a_failed_call_is_charged_like_a_successful_one(value: Any) -> None:
    async def test() -> None:
        spender = Spender(Limits(calls=5, cost=10, time_seconds=100))
        for _ in range(3):
            try:
                await spender.call(value, seconds=2, cost=1.5)
            except ValueError:
                assert isinstance(value, ValueError)
        assert (get_spent(spender.guard, "calls"), get_spent(spender.guard, "cost")) == (3, 4.5)
        assert get_spent(spender.guard, "time_seconds") == 6

    run(test)


def test_a_call_that_exceeds_the_token_budget_is_charged_and_withheld() -> None:
    async def test() -> None:
        spender = Spender(Limits(tokens=10))
        assert await spender.call("x" * 10) == "x" * 10  # exactly the limit
        error = await spender.expect_rejection("y")
        assert "was not made" in error.message
        other = Spender(Limits(tokens=10))
        crossed = await other.expect_rejection("z" * 25)
        assert "whose result is withheld" in crossed.message
        assert "zz" not in str(crossed)
        assert (crossed.budget, crossed.limit, crossed.spent) == ("tokens", 10, 25)

    run(test)


def test_ten_costs_of_a_tenth_are_exactly_one() -> None:
    async def test() -> None:
        spender = Spender(Limits(cost=1))
        for _ in range(10):
            await spender.call(cost=0.1)
        assert "was not made" in (await spender.expect_rejection(cost=0.1)).message
        assert get_spent(spender.guard, "cost") == 1

    run(test)


def test_each_kind_of_budget_has_its_own_warning() -> None:
    async def test() -> None:
        spender = Spender(Limits(calls=2, tokens=4, cost=1, time_seconds=10))
        await spender.call("abcd", seconds=8, cost=0.8)
        await spender.expect_rejection("", seconds=1)  # the token budget is used up
        assert sorted(spender.warnings) == [
            "agent ci has used 0.8 of 1 cost",
            "agent ci has used 4 of 4 tokens",
            "agent ci has used 8 of 10 seconds",
        ]

    run(test)


# --- concurrency ----------------------------------------------------------------------------------


def test_concurrent_calls_do_not_exceed_the_limit() -> None:
    async def test() -> None:
        spender = Spender(Limits(calls=123))
        made = 0

        async def call() -> None:
            nonlocal made
            await anyio.lowlevel.checkpoint()
            made += 1

        async def one() -> bool:
            try:
                await spender.guard.spend(call)
            except BudgetExceeded:
                return False
            return True

        outcomes = await asyncio.gather(*(one() for _ in range(500)))
        assert (outcomes.count(True), made, get_spent(spender.guard, "calls")) == (123, 123, 123)
        assert len(spender.warnings) == 1

    run(test)


def test_durations_of_concurrent_calls_add_up() -> None:
    async def test() -> None:
        spender = Spender(Limits(time_seconds=100))
        go = anyio.Event()
        async with anyio.create_task_group() as group:
            for _ in range(4):
                group.start_soon(spender.guard.spend, go.wait)
            await anyio.wait_all_tasks_blocked()
            spender.clock.now += 5
            assert get_spent(spender.guard, "time_seconds") == 20
            go.set()
        assert get_spent(spender.guard, "time_seconds") == 20

    run(test)


def test_concurrent_calls_are_cancelled_when_their_total_time_reaches_the_limit() -> None:
    async def test() -> None:
        guard = BudgetGuard(Limits(time_seconds=0.4), agent="ci")

        async def one() -> BudgetExceeded:
            with pytest.raises(BudgetExceeded) as caught:
                await guard.spend(forever)
            return caught.value

        with anyio.fail_after(TIMEOUT_SECONDS):
            errors = await asyncio.gather(*(one() for _ in range(8)))
        assert {error.budget for error in errors} == {"time_seconds"}
        assert all("the call was cancelled" in error.message for error in errors)
        assert (
            0.4 <= get_spent(guard, "time_seconds") + 0.01 < 5
        )  # eight calls with a full limit each would be at 3.2
        with pytest.raises(BudgetExceeded, match="was not made"):
            await guard.spend(forever)

    run(test)


def test_a_call_leaves_no_state_however_it_ends() -> None:
    async def test() -> None:
        guard = BudgetGuard(Limits(time_seconds=1000, calls=1000))
        begun = anyio.Event()
        async with anyio.create_task_group() as group:
            for _ in range(10):
                group.start_soon(guard.spend, partial(signal_and_wait_forever, begun))
            await begun.wait()
            await anyio.wait_all_tasks_blocked()
            assert count_leftovers(guard) == (10, True)
            group.cancel_scope.cancel()
        assert count_leftovers(guard) == (0, False)
        assert get_spent(guard, "calls") == 10  # nothing is refunded
        with pytest.raises(ZeroDivisionError):
            await guard.spend(partial(asyncio.to_thread, divmod, 1, 0))
        assert count_leftovers(guard) == (0, False)

    run(test)


def count_leftovers(guard: BudgetGuard) -> tuple[int, bool]:
    """Return the number of running calls, and whether an alarm is set."""
    return len(guard._running), guard._alarm is not None


def test_external_cancellation_is_not_a_budget_error() -> None:
    async def test() -> None:
        guard = BudgetGuard(Limits(time_seconds=1000))
        with anyio.move_on_after(0.01) as scope:
            await guard.spend(forever)
        assert scope.cancelled_caught

    run(test)


def test_a_nested_call_is_cancelled_with_its_caller() -> None:
    async def test() -> None:
        guard = BudgetGuard(Limits(time_seconds=0.1))

        def within() -> Awaitable[Any]:
            return guard.spend(forever)

        with anyio.fail_after(TIMEOUT_SECONDS), pytest.raises(BudgetExceeded):
            await guard.spend(within)
        assert count_leftovers(guard) == (0, False)

    run(test)


# --- new limits -----------------------------------------------------------------------------------


def test_new_limits_count_spent_budgets() -> None:
    async def test() -> None:
        spender = Spender(Limits(calls=2))
        await spender.call()
        await spender.call()
        await spender.expect_rejection()
        spender.guard.set_limits(Limits(calls=3))
        await spender.call()
        assert (await spender.expect_rejection()).spent == 3

    run(test)


def test_only_a_changed_limit_warns_again() -> None:
    async def test() -> None:
        spender = Spender(Limits(calls=10, cost=1))
        for _ in range(8):
            await spender.call(cost=0.1)
        assert len(spender.warnings) == 2
        spender.guard.set_limits(Limits(calls=10, cost=1))
        await spender.call()
        assert len(spender.warnings) == 2
        spender.guard.set_limits(Limits(calls=11, cost=1))
        await spender.call()
        assert len(spender.warnings) == 3

    run(test)


def test_a_running_call_gets_the_time_of_new_limits() -> None:
    async def test() -> None:
        guard, go, begun = BudgetGuard(Limits(time_seconds=0.2)), anyio.Event(), anyio.Event()

        async def waiting() -> str:
            begun.set()
            await go.wait()
            return "done"

        call = asyncio.ensure_future(guard.spend(waiting))
        await begun.wait()
        guard.set_limits(Limits(time_seconds=1000))
        await anyio.sleep(0.4)  # the time at which the old limit would have cancelled the call
        go.set()
        assert await call == "done"

    run(test)


def test_a_new_limit_cancels_a_running_call() -> None:
    async def test() -> None:
        guard, begun = BudgetGuard(Limits()), anyio.Event()
        call = asyncio.ensure_future(guard.spend(partial(signal_and_wait_forever, begun)))
        await begun.wait()
        guard.set_limits(Limits(time_seconds=0.01))
        with (
            anyio.fail_after(TIMEOUT_SECONDS),
            pytest.raises(BudgetExceeded, match="was cancelled"),
        ):
            await call

    run(test)
