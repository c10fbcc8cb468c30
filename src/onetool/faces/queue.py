"""Whose turn it is to run: so many at once for each agent and for all, and the others wait, fairly.

Agents take turns, and within one agent who came first is first. Who goes away leaves the queue. It bounds what comes
over HTTP, through whatever door there; what the code of a run calls is part of that run.
"""

import asyncio
import contextlib
from collections import Counter, deque
from collections.abc import AsyncIterator, Callable, Mapping
from typing import Any, Final, NamedTuple

from onetool.config.model import RunLimits
from onetool.errors import ToolError

CALLS_IN_ALL, CALLS_EACH = 512, 128  # of one tool: most of them wait for somebody else, and a slow one holds up nobody
QUEUES: Final = "queues"  # where the state of a request over HTTP has them


class Bounds(NamedTuple):
    """How many may run in all and for each agent, and how many of one agent may wait."""

    in_all: int
    each: int
    waiting: int


class FairQueue:
    """`bounds` gives the bounds that hold now; they may change at any time."""

    def __init__(self, bounds: Callable[[], Bounds]) -> None:
        self._bounds = bounds
        self._running: Counter[str] = Counter()
        self._total = 0
        self._waiting: dict[str, deque[asyncio.Future[None]]] = {}  # whose turn is next comes first

    @contextlib.asynccontextmanager
    async def turn(self, agent: str) -> AsyncIterator[None]:
        """Inside of it the agent has its turn. Raises QueueFull where too many of its own wait already."""
        if self._may_run(agent) and agent not in self._waiting:
            self._begin(agent)
        else:
            await self._wait(agent)
        try:
            yield
        finally:
            self._end(agent)

    def waiting(self, agent: str) -> int:
        return len(self._waiting.get(agent, ()))

    async def _wait(self, agent: str) -> None:
        bounds = self._bounds()
        if self.waiting(agent) >= bounds.waiting:
            raise QueueFull(bounds)
        turn = asyncio.get_running_loop().create_future()
        self._waiting.setdefault(agent, deque()).append(turn)
        self._hand_out()  # the bounds may have been raised since the last turn ended
        try:
            await turn
        except asyncio.CancelledError:
            if turn.done() and not turn.cancelled():  # it came at the moment when nobody wanted it any more
                self._end(agent)
            elif (line := self._waiting.get(agent)) is not None:
                with contextlib.suppress(ValueError):
                    line.remove(turn)
                if not line:
                    del self._waiting[agent]
            raise

    def _may_run(self, agent: str) -> bool:
        bounds = self._bounds()
        return self._total < bounds.in_all and self._running[agent] < bounds.each

    def _begin(self, agent: str) -> None:
        self._running[agent] += 1
        self._total += 1

    def _end(self, agent: str) -> None:
        self._running[agent] -= 1
        self._total -= 1
        if not self._running[agent]:
            del self._running[agent]
        self._hand_out()

    def _hand_out(self) -> None:
        """To whom it is due. An agent that has had a turn goes behind all others."""
        while (agent := next(filter(self._may_run, self._waiting), None)) is not None:
            line = self._waiting.pop(agent)
            turn = line.popleft()
            if line:
                self._waiting[agent] = line
            if not turn.cancelled():
                self._begin(agent)
                turn.set_result(None)


class QueueFull(ToolError):
    type = "rate_limited"

    def __init__(self, bounds: Bounds) -> None:
        super().__init__(
            f"too many requests of this agent: {bounds.waiting} wait already. Send this one again when some are "
            "answered.\nHint: limits: {running, waiting} in onetool.yaml",
            code="rate_limited",
            retry_after=1,
            waiting=bounds.waiting,
            at_once=bounds.each,
        )


class Queues:
    """One queue for runs and one for calls, for all transports over HTTP together."""

    def __init__(self, limits: Callable[[], RunLimits]) -> None:
        self.runs = FairQueue(lambda: Bounds(limits().total, limits().running, limits().waiting))
        self.calls = FairQueue(lambda: Bounds(CALLS_IN_ALL, CALLS_EACH, limits().waiting))


@contextlib.asynccontextmanager
async def turn(scope: Mapping[str, Any] | None, agent: str, *, is_run: bool) -> AsyncIterator[None]:
    """The agent's turn, if the request came through the gate; elsewhere nobody queues."""
    queues: Queues | None = (scope or {}).get("state", {}).get(QUEUES)
    if queues is None:
        yield
        return
    async with (queues.runs if is_run else queues.calls).turn(agent):
        yield
