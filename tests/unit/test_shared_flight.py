"""Computations that concurrent callers share."""

import asyncio
from dataclasses import dataclass, field

import pytest

from onetool.util.tasks import KEPT_SECONDS, SharedFlight


@dataclass
class Counter:
    """Counts computations, whose results are their numbers. Each takes `seconds` on the clock."""

    seconds: float = 0.0
    now: float = 100.0
    started: int = 0
    active: int = 0
    max_active: int = 0
    is_started: asyncio.Event = field(default_factory=asyncio.Event)

    def read_clock(self) -> float:
        return self.now

    async def compute(self) -> int:
        self.is_started.set()
        self.started += 1
        number = self.started
        self.active += 1
        self.max_active = max(self.max_active, self.active)
        await asyncio.sleep(0.01)
        self.now += self.seconds
        self.active -= 1
        return number


@pytest.mark.anyio
@pytest.mark.parametrize("seconds", [0.0, 0.2, 3.0])
async def test_many_callers_share_one_result_until_it_is_a_second_old(seconds: float) -> None:
    """A result that took longer is kept for as long as it took."""
    counter = Counter(seconds)
    flight: SharedFlight[int] = SharedFlight(counter.read_clock)
    kept_seconds = max(KEPT_SECONDS, seconds)
    for number in (1, 2, 3):
        assert (
            await asyncio.gather(*(flight.join(counter.compute) for _ in range(100)))
            == [number] * 100
        )
        counter.now += kept_seconds - 0.001
        assert (
            await asyncio.gather(*(flight.join(counter.compute) for _ in range(100)))
            == [number] * 100
        )
        counter.now += 0.001
    assert counter.started == 3


@pytest.mark.anyio
async def test_callers_during_a_computation_get_its_result() -> None:
    counter = Counter()
    flight: SharedFlight[int] = SharedFlight(counter.read_clock)
    first = asyncio.create_task(flight.join(counter.compute))
    await counter.is_started.wait()
    assert (
        await asyncio.gather(first, *(flight.join(counter.compute) for _ in range(100)))
        == [1] * 101
    )


@pytest.mark.anyio
async def test_each_key_has_its_own_result_but_only_one_is_computed_at_a_time() -> None:
    counter = Counter()
    flight: SharedFlight[int] = SharedFlight(counter.read_clock)
    assert await asyncio.gather(
        *(flight.join(counter.compute, key) for key in ("a", "b", "a"))
    ) == [1, 2, 1]
    assert counter.max_active == 1


@pytest.mark.anyio
async def test_computations_for_other_keys_leave_others_half_of_the_time() -> None:
    loop = asyncio.get_running_loop()
    counter = Counter()
    flight: SharedFlight[int] = SharedFlight(loop.time)
    started = loop.time()
    for key in range(3):
        await flight.join(counter.compute, key)
    assert loop.time() - started >= 5 * 0.009


@pytest.mark.anyio
async def test_a_canceled_caller_and_an_error_do_not_stop_later_computations() -> None:
    counter = Counter()
    flight: SharedFlight[int] = SharedFlight(counter.read_clock)
    canceled = asyncio.create_task(flight.join(counter.compute))
    await counter.is_started.wait()
    canceled.cancel()
    assert await flight.join(counter.compute) == 1

    async def fail() -> int:
        raise ValueError("x")

    counter.now += KEPT_SECONDS
    for _ in range(2):
        with pytest.raises(ValueError, match="x"):
            await flight.join(fail)
    counter.now += KEPT_SECONDS
    assert await flight.join(counter.compute) == 2
