"""The budget guard alone: what it counts, when it warns and refuses, and that nothing of a call stays behind in it."""

import asyncio
from collections.abc import Awaitable, Callable, Coroutine
from functools import partial
from typing import Any

import anyio
import anyio.lowlevel
import pytest

from onetool.bus.budget import BudgetGuard, Kind, Limits
from onetool.errors import BudgetExceeded


class Clock:
    """A clock that only moves when it is told to."""

    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


class Spender:
    """A guard with a clock of its own, and what it warned of."""

    def __init__(self, limits: Limits, count_tokens: Callable[[Any], int] = len) -> None:
        self.warnings: list[str] = []
        self.clock = Clock()
        self.guard = BudgetGuard(
            limits, agent="ci", warn=self.warnings.append, count_tokens=count_tokens, clock=self.clock
        )

    async def call(self, value: Any = "", *, seconds: float = 0, cost: float = 0) -> Any:
        async def spent() -> Any:
            await anyio.lowlevel.checkpoint()
            self.clock.now += seconds
            if isinstance(value, Exception):
                raise value
            return value

        return await self.guard.spend(spent, cost)

    async def refusal(self, value: Any = "", *, seconds: float = 0, cost: float = 0) -> BudgetExceeded:
        with pytest.raises(BudgetExceeded) as caught:
            await self.call(value, seconds=seconds, cost=cost)
        return caught.value


def run(test: Callable[[], Coroutine[Any, Any, None]]) -> None:
    anyio.run(test)


async def forever() -> None:
    await anyio.sleep_forever()


async def has_begun(begun: anyio.Event) -> None:
    begun.set()
    await anyio.sleep_forever()


def spent(guard: BudgetGuard, kind: Kind) -> float:
    return guard.spent[kind]


# --- refusing and warning ------------------------------------------------------------------------------------------


def test_without_limits_nothing_is_refused_and_all_is_counted() -> None:
    async def test() -> None:
        spender = Spender(Limits())
        for _ in range(1000):
            await spender.call("abcd", seconds=1, cost=0.5)
        assert (spent(spender.guard, "calls"), spent(spender.guard, "cost")) == (1000, 500)
        assert spent(spender.guard, "time_seconds") == 1000
        assert spender.warnings == []

    run(test)


def test_calls_are_warned_of_once_at_four_fifths_and_refused_at_all() -> None:
    async def test() -> None:
        spender = Spender(Limits(calls=10))
        told = []
        for _ in range(10):
            await spender.call()
            told.append(len(spender.warnings))
        assert told == [0, 0, 0, 0, 0, 0, 0, 1, 1, 1]
        error = await spender.refusal()
        assert (error.budget, error.limit, error.spent) == ("calls", 10, 10)
        assert spent(spender.guard, "calls") == 10
        assert spender.warnings == ["agent ci has used 8 of 10 calls"]

    run(test)


def test_the_refusal_says_what_to_write_to_be_allowed_more() -> None:
    async def test() -> None:
        error = await Spender(Limits(calls=0)).refusal()
        assert "agent ci exceeded its budget: 0 of 0 calls, and the call was not made" in error.message
        assert "agents: {ci: {budgets: {calls: ...}}}" in error.message

    run(test)


@pytest.mark.parametrize("value", ["ok", ValueError("it failed")])
def test_a_call_that_failed_is_charged_like_one_that_worked(value: Any) -> None:
    async def test() -> None:
        spender = Spender(Limits(calls=5, cost=10, time_seconds=100))
        for _ in range(3):
            try:
                await spender.call(value, seconds=2, cost=1.5)
            except ValueError:
                assert isinstance(value, ValueError)
        assert (spent(spender.guard, "calls"), spent(spender.guard, "cost")) == (3, 4.5)
        assert spent(spender.guard, "time_seconds") == 6

    run(test)


def test_the_call_that_crosses_the_tokens_is_charged_and_withheld() -> None:
    async def test() -> None:
        spender = Spender(Limits(tokens=10))
        assert await spender.call("x" * 10) == "x" * 10  # all of it, and not more
        error = await spender.refusal("y")
        assert "was not made" in error.message
        other = Spender(Limits(tokens=10))
        crossed = await other.refusal("z" * 25)
        assert "whose result is withheld" in crossed.message
        assert "zz" not in str(crossed)
        assert (crossed.budget, crossed.limit, crossed.spent) == ("tokens", 10, 25)

    run(test)


def test_ten_times_a_tenth_is_all() -> None:
    async def test() -> None:
        spender = Spender(Limits(cost=1))
        for _ in range(10):
            await spender.call(cost=0.1)
        assert "was not made" in (await spender.refusal(cost=0.1)).message
        assert spent(spender.guard, "cost") == 1

    run(test)


def test_each_kind_is_warned_of_by_itself() -> None:
    async def test() -> None:
        spender = Spender(Limits(calls=2, tokens=4, cost=1, time_seconds=10))
        await spender.call("abcd", seconds=8, cost=0.8)
        await spender.refusal("", seconds=1)  # the tokens are used up
        assert sorted(spender.warnings) == [
            "agent ci has used 0.8 of 1 cost",
            "agent ci has used 4 of 4 tokens",
            "agent ci has used 8 of 10 seconds",
        ]

    run(test)


# --- side by side ----------------------------------------------------------------------------------------------------


def test_exactly_so_many_of_five_hundred_at_once_are_made() -> None:
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
        assert (outcomes.count(True), made, spent(spender.guard, "calls")) == (123, 123, 123)
        assert len(spender.warnings) == 1

    run(test)


def test_the_times_of_calls_side_by_side_add_up() -> None:
    async def test() -> None:
        spender = Spender(Limits(time_seconds=100))
        go = anyio.Event()
        async with anyio.create_task_group() as group:
            for _ in range(4):
                group.start_soon(spender.guard.spend, go.wait)
            await anyio.wait_all_tasks_blocked()
            spender.clock.now += 5
            assert spent(spender.guard, "time_seconds") == 20
            go.set()
        assert spent(spender.guard, "time_seconds") == 20

    run(test)


def test_calls_side_by_side_are_all_cut_when_their_times_add_up_to_the_limit() -> None:
    async def test() -> None:
        guard = BudgetGuard(Limits(time_seconds=0.4), agent="ci")

        async def one() -> BudgetExceeded:
            with pytest.raises(BudgetExceeded) as caught:
                await guard.spend(forever)
            return caught.value

        with anyio.fail_after(5):
            errors = await asyncio.gather(*(one() for _ in range(8)))
        assert {error.budget for error in errors} == {"time_seconds"}
        assert all("the call was cancelled" in error.message for error in errors)
        assert 0.4 <= spent(guard, "time_seconds") + 0.01 < 5  # eight calls that had the limit each would be at 3.2
        with pytest.raises(BudgetExceeded, match="was not made"):
            await guard.spend(forever)

    run(test)


def test_nothing_of_a_call_is_left_behind_however_it_ends() -> None:
    async def test() -> None:
        guard = BudgetGuard(Limits(time_seconds=1000, calls=1000))
        begun = anyio.Event()
        async with anyio.create_task_group() as group:
            for _ in range(10):
                group.start_soon(guard.spend, partial(has_begun, begun))
            await begun.wait()
            await anyio.wait_all_tasks_blocked()
            assert left_behind(guard) == (10, True)
            group.cancel_scope.cancel()
        assert left_behind(guard) == (0, False)
        assert spent(guard, "calls") == 10  # given back is nothing
        with pytest.raises(ZeroDivisionError):
            await guard.spend(partial(asyncio.to_thread, divmod, 1, 0))
        assert left_behind(guard) == (0, False)

    run(test)


def left_behind(guard: BudgetGuard) -> tuple[int, bool]:
    """Calls that it takes to be running, and whether it waits to cut them."""
    return len(guard._running), guard._alarm is not None


def test_who_is_cancelled_from_outside_is_not_told_of_a_budget() -> None:
    async def test() -> None:
        guard = BudgetGuard(Limits(time_seconds=1000))
        with anyio.move_on_after(0.01) as scope:
            await guard.spend(forever)
        assert scope.cancelled_caught

    run(test)


def test_a_call_within_a_call_is_cut_with_it() -> None:
    async def test() -> None:
        guard = BudgetGuard(Limits(time_seconds=0.1))

        def within() -> Awaitable[Any]:
            return guard.spend(forever)

        with anyio.fail_after(5), pytest.raises(BudgetExceeded):
            await guard.spend(within)
        assert left_behind(guard) == (0, False)

    run(test)


# --- new limits ------------------------------------------------------------------------------------------------------


def test_new_limits_count_from_what_was_spent() -> None:
    async def test() -> None:
        spender = Spender(Limits(calls=2))
        await spender.call()
        await spender.call()
        await spender.refusal()
        spender.guard.set_limits(Limits(calls=3))
        await spender.call()
        assert (await spender.refusal()).spent == 3

    run(test)


def test_only_of_a_limit_that_has_changed_it_is_warned_again() -> None:
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


def test_a_call_that_runs_gets_the_time_of_new_limits() -> None:
    async def test() -> None:
        guard, go, begun = BudgetGuard(Limits(time_seconds=0.2)), anyio.Event(), anyio.Event()

        async def waiting() -> str:
            begun.set()
            await go.wait()
            return "done"

        call = asyncio.ensure_future(guard.spend(waiting))
        await begun.wait()
        guard.set_limits(Limits(time_seconds=1000))
        await anyio.sleep(0.4)  # the time at which the old limit would have cut it
        go.set()
        assert await call == "done"

    run(test)


def test_a_call_that_runs_is_cut_by_a_limit_that_is_new() -> None:
    async def test() -> None:
        guard, begun = BudgetGuard(Limits()), anyio.Event()
        call = asyncio.ensure_future(guard.spend(partial(has_begun, begun)))
        await begun.wait()
        guard.set_limits(Limits(time_seconds=0.01))
        with anyio.fail_after(5), pytest.raises(BudgetExceeded, match="was cancelled"):
            await call

    run(test)
