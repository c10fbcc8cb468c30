"""The fair queue of the HTTP door: bounds, order, and that nobody who goes away leaves a hole or a ghost."""

import asyncio
import random
from collections import Counter
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from onetool.config.model import RunLimits
from onetool.transports.fair_queue import QUEUES, Bounds, FairQueue, QueueFull, Queues, turn

DEFAULT = Bounds(RunLimits().total, RunLimits().running, RunLimits().waiting)
HELD = 100  # at least so many of one agent wait before one is refused


class ConnectionLimiter:
    """Workers in a queue. Each waits inside of its turn until it is released."""

    def __init__(self, queue: FairQueue) -> None:
        self.queue = queue
        self.order: list[str] = []
        self.inside: Counter[str] = Counter()
        self._release: dict[asyncio.Task[None], asyncio.Event] = {}
        self.running: list[asyncio.Task[None]] = []

    async def add(self, agent: str, count: int = 1) -> list[asyncio.Task[None]]:
        added = [asyncio.ensure_future(self._work(agent)) for _ in range(count)]
        await settled()
        return added

    async def release(self, task: asyncio.Task[None] | None = None) -> None:
        task = task or self.running[0]
        self._release[task].set()
        await task
        await settled()

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


async def settled() -> None:
    for _ in range(10):
        await asyncio.sleep(0)


async def _end(crowd: ConnectionLimiter) -> None:
    while crowd.running:
        await crowd.release()


def with_crowd(work: Callable[[ConnectionLimiter], Awaitable[None]], **limits: int) -> None:
    async def whole() -> None:
        crowd = ConnectionLimiter(FairQueue(lambda: DEFAULT._replace(**limits)))
        await work(crowd)
        await _end(crowd)
        assert crowd.queue._total == 0
        assert not crowd.queue._waiting
        assert not crowd.queue._running

    asyncio.run(whole())


def test_an_agent_has_so_many_at_once_and_all_together_so_many() -> None:
    async def work(crowd: ConnectionLimiter) -> None:
        for agent in "abc":
            await crowd.add(agent, 10)
        assert crowd.inside == {"a": 4, "b": 4, "c": 2}
        await crowd.release()
        assert crowd.inside.total() == 10

    with_crowd(work, in_all=10, each=4)


def test_agents_take_turns_however_many_one_of_them_sends() -> None:
    async def work(crowd: ConnectionLimiter) -> None:
        await crowd.add("first")
        await crowd.add("greedy", 50)
        await crowd.add("modest", 2)
        await crowd.add("shy", 1)
        for _ in range(6):
            await crowd.release()
        assert crowd.order[:7] == ["first", "greedy", "modest", "shy", "greedy", "modest", "greedy"]

    with_crowd(work, in_all=1, each=1)


def test_within_one_agent_who_came_first_is_first() -> None:
    async def work(crowd: ConnectionLimiter) -> None:
        tasks = await crowd.add("a", 20)
        for task in tasks:
            assert crowd.running == [task]
            await crowd.release(task)

    with_crowd(work, in_all=5, each=1)


def test_who_has_its_own_number_running_is_passed_over() -> None:
    async def work(crowd: ConnectionLimiter) -> None:
        await crowd.add("a", 5)
        await crowd.add("b", 1)
        assert crowd.order == ["a", "a", "b"]

    with_crowd(work, in_all=3, each=2)


def test_a_hundred_of_one_agent_are_held_and_then_one_is_refused_in_words() -> None:
    async def work(crowd: ConnectionLimiter) -> None:
        await crowd.add("a", DEFAULT.each + DEFAULT.waiting)
        assert crowd.queue.waiting("a") == DEFAULT.waiting >= HELD
        with pytest.raises(QueueFull) as refused:
            async with crowd.queue.turn("a"):
                raise AssertionError("it was let in")
        assert (refused.value.code, refused.value.retry_after) == ("rate_limited", 1)
        assert "wait" in refused.value.message
        await crowd.add("b", 1)
        assert crowd.inside == {"a": 8, "b": 1}, "another agent is not refused"

    with_crowd(work)


def test_who_goes_away_leaves_the_queue() -> None:
    async def work(crowd: ConnectionLimiter) -> None:
        first, *others = await crowd.add("a", 10)
        for task in others:
            task.cancel()
        await settled()
        assert crowd.queue.waiting("a") == 0
        await crowd.release(first)
        (last,) = await crowd.add("a")
        assert crowd.running == [last]

    with_crowd(work, each=1)


def test_a_turn_that_comes_at_the_moment_of_going_away_is_passed_on() -> None:
    async def work(crowd: ConnectionLimiter) -> None:
        first, second, third = await crowd.add("a", 3)
        crowd._release[first].set()
        while first in crowd.running:  # noqa: ASYNC110 - its turn is handed on, and nobody has taken it yet
            await asyncio.sleep(0)
        second.cancel()
        await settled()
        assert crowd.running == [third]

    with_crowd(work, each=1)


def test_who_fails_or_is_cancelled_inside_gives_the_turn_back() -> None:
    async def work(crowd: ConnectionLimiter) -> None:
        async def fail() -> None:
            async with crowd.queue.turn("a"):
                raise ValueError("of the work")

        with pytest.raises(ValueError, match="of the work"):
            await fail()
        (inside,) = await crowd.add("a")
        (waiting,) = await crowd.add("a")
        inside.cancel()
        await settled()
        assert crowd.running == [waiting]

    with_crowd(work, each=1)


@pytest.mark.parametrize("seed", range(20))
def test_whatever_happens_the_bounds_hold_and_everybody_has_a_turn(seed: int) -> None:
    chance = random.Random(seed)

    async def whole() -> None:
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

    asyncio.run(asyncio.wait_for(whole(), 10))


def test_who_did_not_come_through_the_gate_does_not_queue() -> None:
    async def whole() -> None:
        nowhere: tuple[dict[str, Any] | None, ...] = (None, {}, {"state": {}})
        for scope in nowhere:
            async with turn(scope, "a", is_run=True):
                pass
        queues = Queues(RunLimits)
        async with turn({"state": {QUEUES: queues}}, "a", is_run=True):
            assert (queues.runs._running, queues.calls._running) == ({"a": 1}, {})

    asyncio.run(whole())


def test_raised_bounds_hold_for_those_who_wait_already() -> None:
    bounds = Bounds(1, 1, 2)

    async def whole() -> None:
        nonlocal bounds
        crowd = ConnectionLimiter(FairQueue(lambda: bounds))
        await crowd.add("a", 3)
        assert crowd.order == ["a"]
        bounds = Bounds(3, 3, 3)
        await crowd.add("a", 1)
        assert crowd.order == ["a"] * 3
        await _end(crowd)

    asyncio.run(whole())
