"""What is going on: the last runs with their calls, and a stream of what happens next, for whoever watches.

It is made of the events of the bus and lives in memory only; what is to last is in the statistics and the logs. A
watcher that does not keep up misses events and is told how many; nobody waits for it.
"""

import asyncio
import time
from collections import OrderedDict
from collections.abc import AsyncIterator, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from ot.bus.bus import ToolBus
from ot.bus.events import CallFinished, CallStarted, Event, RunFinished, RunStarted
from ot.util.moments import in_utc

MOST_RUNS, MOST_CALLS, MOST_WAITING = 200, 1000, 1000
JSON = dict[str, Any]


@dataclass(slots=True)
class _Call:
    name: str
    began: float
    seconds: float | None = None
    error: str | None = None


@dataclass(slots=True)
class _Run:
    """A run; or a call that is part of none, which is then the first of its calls."""

    id: str
    agent: str
    is_run: bool
    name: str
    whole: int  # the number of the call whose end is the end of it all
    command: str = ""
    began: float = field(default_factory=time.perf_counter)
    at: float = field(default_factory=time.time)
    seconds: float | None = None
    error: str | None = None
    calls: dict[int, _Call] = field(default_factory=dict)
    left_out: int = 0
    failed: int = 0

    @property
    def is_over(self) -> bool:
        return self.seconds is not None

    def shown(self) -> JSON:
        state = "running" if not self.is_over else "failed" if self.error else "completed"
        return {
            "id": self.id,
            "kind": "run" if self.is_run else "call",
            "name": self.name,
            "agent": self.agent,
            "startedAt": in_utc(self.at, "microseconds"),
            "durationMs": _ms(self.seconds),
            "state": state,
            "error": self.error,
            "command": self.command,
            "callCount": len(self.calls) + self.left_out,
            "failedCount": self.failed,
        }

    def timeline(self) -> JSON:
        """`lane` is a row in which no two calls overlap: as many rows as calls went side by side."""
        lanes = _lanes(self.calls.values())
        calls = [
            {
                "name": call.name,
                "startMs": _ms(call.began - self.began),
                "durationMs": _ms(call.seconds),
                "error": call.error,
                "lane": lane,
            }
            for call, lane in zip(self.calls.values(), lanes, strict=True)
        ]
        most_at_once = max(lanes, default=-1) + 1
        return {**self.shown(), "calls": calls, "callsLeftOut": self.left_out, "mostAtOnce": most_at_once}


@dataclass(slots=True)
class _Watcher:
    agent: str | None  # None sees all
    waiting: asyncio.Queue[JSON] = field(default_factory=lambda: asyncio.Queue(MOST_WAITING))
    missed: int = 0

    def tell(self, event: JSON) -> None:
        try:
            self.waiting.put_nowait(event)
        except asyncio.QueueFull:
            self.missed += 1


class Activity:
    def __init__(self, bus: ToolBus) -> None:
        self._runs: OrderedDict[str, _Run] = OrderedDict()
        self._watchers: list[_Watcher] = []
        self.close = bus.events.subscribe(self._hear)

    def runs(self, agent: str | None = None) -> list[JSON]:
        """The last ones, newest first; of one agent, or of all."""
        return [run.shown() for run in reversed(self._runs.values()) if agent in {None, run.agent}]

    def run(self, run_id: str, agent: str | None = None) -> JSON | None:
        """One of them, with its calls."""
        found = self._runs.get(run_id)
        return found.timeline() if found is not None and agent in {None, found.agent} else None

    @contextmanager
    def watched(self, agent: str | None = None) -> Iterator[AsyncIterator[list[JSON]]]:
        """What happens from now on; each time all that has happened since the last."""
        watcher = _Watcher(agent)
        self._watchers.append(watcher)
        try:
            yield _events(watcher)
        finally:
            self._watchers.remove(watcher)

    def _hear(self, event: Event) -> None:
        run_id = event.context.correlation_id or f"call-{event.call_id}"
        run = self._runs.get(run_id)
        has_started = isinstance(event, CallStarted | RunStarted)
        if run is None:
            if not has_started:  # it began before anybody listened
                return
            run = self._begin(run_id, event)
        elif has_started and run.is_over and not run.is_run:  # another call of a program that has one context
            run.seconds, run.error, run.whole = None, None, event.call_id
        self._note_call(run, event)
        if isinstance(event, CallFinished | RunFinished) and event.call_id == run.whole:
            run.seconds, run.error = event.seconds, event.error
        self._tell(run, event)

    def _begin(self, run_id: str, event: Event) -> _Run:
        is_run, command = (True, event.command) if isinstance(event, RunStarted) else (False, "")
        run = self._runs[run_id] = _Run(run_id, event.context.agent_id, is_run, event.name, event.call_id, command)
        while len(self._runs) > MOST_RUNS:
            oldest = next((each.id for each in self._runs.values() if each.is_over), None)
            if oldest is None:
                break
            del self._runs[oldest]
        return run

    def _note_call(self, run: _Run, event: Event) -> None:
        if isinstance(event, CallFinished):
            run.failed += event.error is not None
            if (call := run.calls.get(event.call_id)) is not None:
                call.seconds, call.error = event.seconds, event.error
        elif isinstance(event, CallStarted):
            if len(run.calls) < MOST_CALLS:
                run.calls[event.call_id] = _Call(event.name, time.perf_counter())
            else:
                run.left_out += 1

    def _tell(self, run: _Run, event: Event) -> None:
        if not self._watchers:
            return
        told = {
            "event": event.kind,
            "runID": run.id,
            "kind": "run" if isinstance(event, RunStarted | RunFinished) else "call",
            "name": event.name,
            "agent": run.agent,
            "callID": event.call_id,
            "atMs": _ms(time.perf_counter() - run.began),
            "durationMs": _ms(event.seconds) if isinstance(event, CallFinished | RunFinished) else None,
            "error": event.error,
            **({"command": run.command} if isinstance(event, RunStarted) else {}),
        }
        for watcher in self._watchers:
            if watcher.agent in {None, run.agent}:
                watcher.tell(told)


def _ms(seconds: float | None) -> float | None:
    return None if seconds is None else round(seconds * 1000, 1)


def _lanes(calls: Iterable[_Call]) -> list[int]:
    """For each call the first row that is free when it begins. They are in the order in which they began."""
    free_from: list[float] = []
    chosen = []
    for call in calls:
        lane = next((row for row, end in enumerate(free_from) if end <= call.began), len(free_from))
        end = float("inf") if call.seconds is None else call.began + call.seconds
        free_from[lane : lane + 1] = [end]
        chosen.append(lane)
    return chosen


async def _events(watcher: _Watcher) -> AsyncIterator[list[JSON]]:
    while True:
        events = [await watcher.waiting.get()]
        while not watcher.waiting.empty():
            events.append(watcher.waiting.get_nowait())
        if watcher.missed:
            missed, watcher.missed = watcher.missed, 0
            events.append({"event": "missed", "count": missed})
        yield events
