"""Active runs with their calls, and a stream of run and call events.

Both are built from the events of the bus. Completed runs are in the statistics (`onetool.stats.history`), in the same
format. A watcher that is too slow misses events and receives their number; it never blocks the bus.
"""

import asyncio
import time
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from onetool.bus.events import CallFinished, CallStarted, Event, Events, RunFinished, RunStarted
from onetool.stats.history import MAX_CALLS
from onetool.stats.record import CallRecord, RunRecord

MAX_WAITING_EVENTS = 1000
JSON = dict[str, Any]
RunWithCalls = tuple[RunRecord, list[CallRecord]]


@dataclass(slots=True)
class _ActiveRun:
    """An active run. It ends with the call or run numbered `root_id`; calls beyond MAX_CALLS are not kept."""

    run: RunRecord
    root_id: int
    directory: str | None  # of another application; its runs are for the owner only
    calls: dict[int, CallRecord] = field(default_factory=dict)

    def is_visible(self, agent: str | None) -> bool:
        return agent is None or (agent == self.run.agent and self.directory is None)


@dataclass(slots=True)
class _Watcher:
    agent: str | None  # None: all agents
    queue: asyncio.Queue[JSON] = field(default_factory=lambda: asyncio.Queue(MAX_WAITING_EVENTS))
    missed: int = 0


class LiveRuns:
    def __init__(self, events: Events) -> None:
        self._live: dict[str, _ActiveRun] = {}
        self._watchers: list[_Watcher] = []
        self.close = events.subscribe(partial(self._on_event, events, None))

    def follow(self, events: Events, directory: str) -> Callable[[], None]:
        """Also show the runs of another application to the owner. Return the function that ends it."""
        return events.subscribe(partial(self._on_event, events, directory))

    def runs(self, agent: str | None = None) -> list[tuple[RunRecord, str]]:
        """Return the active runs of one agent or of all, newest first, with the directory of another application."""
        visible = (live for live in reversed(self._live.values()) if live.is_visible(agent))
        return [(live.run, live.directory or "") for live in visible]

    def find(self, run_id: str, agent: str | None = None) -> RunWithCalls | None:
        live = self._live.get(run_id)
        return (live.run, [*live.calls.values()]) if live is not None and live.is_visible(agent) else None

    @contextmanager
    def watch(self, agent: str | None = None) -> Iterator[AsyncIterator[list[JSON]]]:
        """Yield an iterator over batches of events from now on."""
        watcher = _Watcher(agent)
        self._watchers.append(watcher)
        try:
            yield _iter_batches(watcher)
        finally:
            self._watchers.remove(watcher)

    def _on_event(self, events: Events, directory: str | None, event: Event) -> None:
        run_id, now = events.run_id(event), time.time()
        live = self._live.get(run_id)
        if live is None:
            if isinstance(event, CallFinished | RunFinished):  # the run ended, or started before this object existed
                return
            kind, command = ("run", event.command) if isinstance(event, RunStarted) else ("call", "")
            context, session = event.context, events.session
            fields = (run_id, context.agent_id, session, None, None, 0, 0, 0, now, kind, event.name, context.client)
            live = self._live[run_id] = _ActiveRun(
                RunRecord(*fields, command, actor=context.actor), event.call_id, directory
            )
        if isinstance(event, CallStarted):
            live.run = live.run._replace(calls=live.run.calls + 1)
            if len(live.calls) < MAX_CALLS:
                run_fields = live.run.agent, live.run.session, run_id
                live.calls[event.call_id] = CallRecord(event.name, *run_fields, None, None, 0, now)
        elif isinstance(event, CallFinished):
            live.run = live.run._replace(failed=live.run.failed + (event.error is not None))
            if (call := live.calls.get(event.call_id)) is not None:
                live.calls[event.call_id] = call._replace(seconds=event.seconds, error_type=event.error)
        if isinstance(event, CallFinished | RunFinished) and event.call_id == live.root_id:
            del self._live[run_id]
        self._publish_event(live, event, now)

    def _publish_event(self, live: _ActiveRun, event: Event, now: float) -> None:
        if not self._watchers:
            return
        run = live.run
        message = {
            "event": event.kind,
            "runID": run.run_id,
            "kind": "run" if isinstance(event, RunStarted | RunFinished) else "call",
            "name": event.name,
            "agent": run.agent,
            "actor": run.actor,
            "client": run.client,
            "callID": event.call_id,
            "atMs": to_ms(now - run.at),
            "durationMs": to_ms(event.seconds) if isinstance(event, CallFinished | RunFinished) else None,
            "error": event.error,
            **({"command": run.command} if isinstance(event, RunStarted) else {}),
            **({"directory": live.directory} if live.directory else {}),
        }
        for watcher in self._watchers:
            if live.is_visible(watcher.agent):
                try:
                    watcher.queue.put_nowait(message)
                except asyncio.QueueFull:
                    watcher.missed += 1


async def _iter_batches(watcher: _Watcher) -> AsyncIterator[list[JSON]]:
    while True:
        events = [await watcher.queue.get()]
        while not watcher.queue.empty():
            events.append(watcher.queue.get_nowait())
        if watcher.missed:
            missed, watcher.missed = watcher.missed, 0
            events.append({"event": "missed", "count": missed})
        yield events


def to_ms(seconds: float | None) -> float | None:
    return None if seconds is None else round(seconds * 1000, 1)
