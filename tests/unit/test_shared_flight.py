"""Computations that concurrent callers share."""

import asyncio

import pytest

from onetool.util.shared_flight import SharedFlight


class Counter:
    """Counts computations; the result is what was counted when the computation began."""

    def __init__(self) -> None:
        self.started = 0
        self.active = 0
        self.max_active = 0

    async def compute(self) -> int:
        self.started += 1
        number = self.started
        self.active += 1
        self.max_active = max(self.max_active, self.active)
        await asyncio.sleep(0.05)
        self.active -= 1
        return number


def test_waiting_callers_share_one_computation_that_begins_after_their_call() -> None:
    async def main() -> None:
        counter = Counter()
        flight: SharedFlight[int] = SharedFlight()
        first = asyncio.create_task(flight.join(counter.compute))
        await asyncio.sleep(0.02)  # it has begun, so that later callers must not get its result
        later = await asyncio.gather(*(flight.join(counter.compute) for _ in range(100)))
        assert await first == 1
        assert later == [2] * 100
        assert counter.max_active == 1

    asyncio.run(main())


def test_each_key_has_its_own_result_but_only_one_is_computed_at_a_time() -> None:
    async def main() -> None:
        counter = Counter()
        flight: SharedFlight[int] = SharedFlight()
        results = await asyncio.gather(*(flight.join(counter.compute, key) for key in ("a", "b", "a")))
        assert results == [1, 2, 1]
        assert counter.max_active == 1

    asyncio.run(main())


def test_callers_in_a_loop_leave_others_half_of_the_time() -> None:
    async def main() -> None:
        counter = Counter()
        flight: SharedFlight[int] = SharedFlight()
        loop = asyncio.get_running_loop()
        started = loop.time()
        for _ in range(3):
            await flight.join(counter.compute)
        assert loop.time() - started >= 5 * 0.045

    asyncio.run(main())


def test_a_canceled_caller_and_an_error_do_not_stop_later_computations() -> None:
    async def main() -> None:
        counter = Counter()
        flight: SharedFlight[int] = SharedFlight()
        canceled = asyncio.create_task(flight.join(counter.compute))
        await asyncio.sleep(0.01)
        canceled.cancel()

        async def fail() -> int:
            raise ValueError("x")

        with pytest.raises(ValueError, match="x"):
            await flight.join(fail)
        assert await flight.join(counter.compute) == 2

    asyncio.run(main())
