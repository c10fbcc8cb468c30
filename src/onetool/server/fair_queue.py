"""Fair queues that limit concurrent runs and calls, per agent and in total.

Agents take turns; requests of one agent are served in order of arrival. A cancelled request leaves
the queue. The limits apply to requests over HTTP (REST and MCP). Tool calls made by the code of a
run count as part of that run.
"""

import asyncio
from collections import Counter, deque
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from typing import NamedTuple

from onetool.errors import ToolError
from onetool.settings.model import RunLimits
from onetool.util.text import pluralize
from onetool_child.json_types import JsonMapping

# most calls wait for I/O
MAX_CALLS = 512
MAX_CALLS_PER_AGENT = 128
QUEUES = "queues"  # key in the state of an HTTP request


class Bounds(NamedTuple):
    """Limits: running in total, running per agent, and waiting per agent."""

    total: int
    per_agent: int
    waiting: int


class FairQueue:
    """A queue that grants turns to agents in rotation.

    `bounds` returns the current limits, which may change.
    """

    def __init__(self, bounds: Callable[[], Bounds]) -> None:
        self._bounds = bounds
        self._running: Counter[str] = Counter()
        self._total = 0
        self._waiting: dict[str, deque[asyncio.Future[None]]] = {}  # the next agent comes first

    @asynccontextmanager
    async def turn(self, agent: str) -> AsyncIterator[None]:
        """Hold a turn for the agent while the block runs.

        Raise QueueFull if too many of its requests wait.
        """
        if self._may_run(agent) and agent not in self._waiting:
            self._start(agent)
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
        self._grant_turns()  # the limits may have been raised since the last turn ended
        try:
            await turn
        except asyncio.CancelledError:
            if (
                turn.done() and not turn.cancelled()
            ):  # the turn was granted while the request was being cancelled
                self._end(agent)
            elif (queue := self._waiting.get(agent)) is not None:
                with suppress(ValueError):
                    queue.remove(turn)
                if not queue:
                    del self._waiting[agent]
            raise

    def _may_run(self, agent: str) -> bool:
        bounds = self._bounds()
        return self._total < bounds.total and self._running[agent] < bounds.per_agent

    def _start(self, agent: str) -> None:
        self._running[agent] += 1
        self._total += 1

    def _end(self, agent: str) -> None:
        self._running[agent] -= 1
        self._total -= 1
        if not self._running[agent]:
            del self._running[agent]
        self._grant_turns()

    def _grant_turns(self) -> None:
        """Grant free turns. An agent that got a turn moves to the end."""
        while (agent := next(filter(self._may_run, self._waiting), None)) is not None:
            queue = self._waiting.pop(agent)
            turn = queue.popleft()
            if queue:
                self._waiting[agent] = queue
            if not turn.cancelled():
                self._start(agent)
                turn.set_result(None)


class QueueFull(ToolError):
    type = "rate_limited"

    def __init__(self, bounds: Bounds) -> None:
        super().__init__(
            f"too many requests for this agent: {pluralize(bounds.waiting, 'request')} already"
            " waiting\nHint: retry later, or raise limits: {running, waiting} in onetool.yaml",
            code="rate_limited",
            retry_after=1,
            waiting=bounds.waiting,
            at_once=bounds.per_agent,
        )


class Queues:
    """One queue for runs and one for calls, shared by REST and MCP over HTTP."""

    def __init__(self, limits: Callable[[], RunLimits]) -> None:
        self.runs = FairQueue(lambda: Bounds(limits().total, limits().running, limits().waiting))
        self.calls = FairQueue(lambda: Bounds(MAX_CALLS, MAX_CALLS_PER_AGENT, limits().waiting))


@asynccontextmanager
async def turn(scope: JsonMapping | None, agent: str, *, is_run: bool) -> AsyncIterator[None]:
    """Hold the agent's turn while the block runs.

    Requests that did not come over HTTP do not queue.
    """
    queues: Queues | None = (scope or {}).get("state", {}).get(QUEUES)
    if queues is None:
        yield
        return
    async with (queues.runs if is_run else queues.calls).turn(agent):
        yield
