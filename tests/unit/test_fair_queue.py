"""The fair queue: limits, order, and cancelled requests."""

import asyncio
import random
from collections import Counter
from collections.abc import Awaitable, Callable
from typing import Any

import pytest
from tests.support import TIMEOUT_SECONDS

from onetool.server.fair_queue import QUEUES, Bounds, FairQueue, QueueFull, Queues, turn
from onetool.settings.model import RunLimits

DEFAULT = Bounds(RunLimits().total, RunLimits().running, RunLimits().waiting)
MIN_WAITING = 100  # waiting requests of one agent


class QueueWorkers:
    """Workers in a queue. Each waits inside of its turn until it is released."""

    def __init__(self, queue: FairQueue) -> None:
        self.queue = queue
        self.order: list[str] = []
        self.inside: Counter[str] = Counter()
        self._release: dict[asyncio.Task[None], asyncio.Event] = {}
        self.running: list[asyncio.Task[None]] = []

    async def add(self, agent: str, count: int = 1) -> list[asyncio.Task[None]]:
        added = [asyncio.ensure_future(self._work(agent)) for _ in range(count)]
        await settle()
        return added

    async def release(self, task: asyncio.Task[None] | None = None) -> None:
        task = task or self.running[0]
        self._release[task].set()
        await task
        await settle()

    async def _work(self, agent: str) -> None:
        me = asyncio.current_task()
        assert me is not None
        self._release[me] = asyncio.Event()
        async with self.queue.turn(agent):
            self.order.append(agent)
            self.inside[agent] += 1
            self.running.append(me)
            try:
                await self._release[me].wait()
            finally:
                self.running.remove(me)
                self.inside[agent] -= 1


async def settle() -> None:
    for _ in range(10):
        await asyncio.sleep(0)


async def _release_all(workers: QueueWorkers) -> None:
    while workers.running:
        await workers.release()


def run_with_workers(work: Callable[[QueueWorkers], Awaitable[None]], **limits: int) -> None:
    async def run() -> None:
        workers = QueueWorkers(FairQueue(lambda: DEFAULT._replace(**limits)))
        await work(workers)
        await _release_all(workers)
        assert workers.queue._total == 0
        assert not workers.queue._waiting
        assert not workers.queue._running

    asyncio.run(run())


def test_running_requests_are_limited_per_agent_and_in_total() -> None:
    async def work(workers: QueueWorkers) -> None:
        for agent in "abc":
            await workers.add(agent, 10)
        assert workers.inside == {"a": 4, "b": 4, "c": 2}
        await workers.release()
        assert workers.inside.total() == 10

    run_with_workers(work, total=10, per_agent=4)


def test_agents_take_turns() -> None:
    async def work(workers: QueueWorkers) -> None:
        await workers.add("first")
        await workers.add("greedy", 50)
        await workers.add("modest", 2)
        await workers.add("shy", 1)
        for _ in range(6):
            await workers.release()
        assert workers.order[:7] == [
            "first",
            "greedy",
            "modest",
            "shy",
            "greedy",
            "modest",
            "greedy",
        ]

    run_with_workers(work, total=1, per_agent=1)


def test_requests_of_one_agent_run_in_order() -> None:
    async def work(workers: QueueWorkers) -> None:
        tasks = await workers.add("a", 20)
        for task in tasks:
            assert workers.running == [task]
            await workers.release(task)

    run_with_workers(work, total=5, per_agent=1)


def test_an_agent_at_its_limit_is_skipped() -> None:
    async def work(workers: QueueWorkers) -> None:
        await workers.add("a", 5)
        await workers.add("b", 1)
        assert workers.order == ["a", "a", "b"]

    run_with_workers(work, total=3, per_agent=2)


def test_requests_beyond_the_waiting_limit_are_rejected() -> None:
    async def work(workers: QueueWorkers) -> None:
        await workers.add("a", DEFAULT.per_agent + DEFAULT.waiting)
        assert workers.queue.waiting("a") == DEFAULT.waiting >= MIN_WAITING
        with pytest.raises(QueueFull) as rejected:
            async with workers.queue.turn("a"):
                raise AssertionError("the request was accepted")
        assert (rejected.value.code, rejected.value.retry_after) == ("rate_limited", 1)
        assert "wait" in rejected.value.message
        await workers.add("b", 1)
        assert workers.inside == {"a": 8, "b": 1}, "other agents are accepted"

    run_with_workers(work)


def test_a_cancelled_request_leaves_the_queue() -> None:
    async def work(workers: QueueWorkers) -> None:
        first, *others = await workers.add("a", 10)
        for task in others:
            task.cancel()
        await settle()
        assert workers.queue.waiting("a") == 0
        await workers.release(first)
        (last,) = await workers.add("a")
        assert workers.running == [last]

    run_with_workers(work, per_agent=1)


def test_a_turn_granted_during_cancellation_is_passed_on() -> None:
    async def work(workers: QueueWorkers) -> None:
        first, second, third = await workers.add("a", 3)
        workers._release[first].set()
        while first in workers.running:  # noqa: ASYNC110 - the turn is granted but not yet used
            await asyncio.sleep(0)
        second.cancel()
        await settle()
        assert workers.running == [third]

    run_with_workers(work, per_agent=1)


def test_a_failed_or_cancelled_request_returns_its_turn() -> None:
    async def work(workers: QueueWorkers) -> None:
        async def fail() -> None:
            async with workers.queue.turn("a"):
                raise ValueError("of the work")

        with pytest.raises(ValueError, match="of the work"):
            await fail()
        (inside,) = await workers.add("a")
        (waiting,) = await workers.add("a")
        inside.cancel()
        await settle()
        assert workers.running == [waiting]

    run_with_workers(work, per_agent=1)


@pytest.mark.parametrize("seed", range(20))
def test_limits_are_enforced_and_every_request_gets_a_turn(seed: int) -> None:
    chance = random.Random(seed)

    async def run() -> None:
        queue, inside, done = FairQueue(lambda: Bounds(5, 2, 1000)), Counter[str](), Counter[str]()

        async def one(agent: str) -> None:
            async with queue.turn(agent):
                inside[agent] += 1
                assert inside[agent] <= 2
                assert inside.total() <= 5
                try:
                    for _ in range(chance.randrange(4)):
                        await asyncio.sleep(0)
                finally:
                    inside[agent] -= 1
            done[agent] += 1

        tasks = []
        for _ in range(300):
            tasks.append(asyncio.ensure_future(one(chance.choice("abcdefg"))))
            if chance.random() < 0.3:
                chance.choice(tasks).cancel()
            if chance.random() < 0.3:
                await asyncio.sleep(0)
        ended = await asyncio.gather(*tasks, return_exceptions=True)
        assert {type(each) for each in ended} <= {type(None), asyncio.CancelledError}
        assert done.total() == sum(each is None for each in ended)
        assert (queue._total, queue._waiting, queue._running) == (0, {}, {})

    asyncio.run(asyncio.wait_for(run(), TIMEOUT_SECONDS))


def test_requests_without_queues_do_not_wait() -> None:
    async def run() -> None:
        nowhere: tuple[dict[str, Any] | None, ...] = (None, {}, {"state": {}})
        for scope in nowhere:
            async with turn(scope, "a", is_run=True):
                pass
        queues = Queues(RunLimits)
        async with turn({"state": {QUEUES: queues}}, "a", is_run=True):
            assert (queues.runs._running, queues.calls._running) == ({"a": 1}, {})

    asyncio.run(run())


def test_raised_limits_apply_to_waiting_requests() -> None:
    bounds = Bounds(1, 1, 2)

    async def run() -> None:
        nonlocal bounds
        workers = QueueWorkers(FairQueue(lambda: bounds))
        await workers.add("a", 3)
        assert workers.order == ["a"]
        bounds = Bounds(3, 3, 3)
        await workers.add("a", 1)
        assert workers.order == ["a"] * 3
        await _release_all(workers)

    asyncio.run(run())
