"""Active runs with their calls, a stream of run and call events, and one list of all runs.

Active runs and the stream are built from the events of the bus. Completed runs are in the
statistics (`onetool.state.stats.history`), in the same format. A watcher that is too slow misses
events and receives their number; it never blocks the bus.

`AllRuns` lists active runs, the runs of the journal, which have effects or approvals, and those
that have ended. All have the same filters, order and pages, and the cost of a page does not depend
on the number of runs that have ended.
"""

import asyncio
import time
from collections.abc import AsyncIterator, Callable, Collection, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from functools import partial
from typing import TypeVar

from onetool.core.bus.events import (
    CallFinished,
    CallStarted,
    Event,
    Events,
    RunFinished,
    RunStarted,
)
from onetool.errors import ToolError
from onetool.state.run_records import ENDED, OPEN, UNANSWERED, RunRecord, RunState, get_end_state
from onetool.state.run_store import RunTables
from onetool.state.stats import history
from onetool.state.stats.database import StatisticsDatabase
from onetool.state.stats.history import (
    MAX_CALLS,
    MAX_RUNS,
    Position,
    RunFilter,
    RunPage,
    RunWithCalls,
)
from onetool.state.stats.record import CallRecord
from onetool.util.redact import Redactor
from onetool_child.json_types import JsonObject

MAX_WAITING_EVENTS = 1000
JSON = JsonObject
MAX_OPEN = 1_000
MAX_ENDED = 200  # of the journal, which may be missing in the statistics
MAX_CODE_CHARS = 5_000
T = TypeVar("T")


@dataclass(slots=True)
class _ActiveRun:
    """An active run.

    It ends with the call or run numbered `root_id`; calls beyond MAX_CALLS are not kept.
    """

    run: RunRecord
    root_id: int
    is_foreign: bool  # whether it is of another application, whose runs are for the owner only
    calls: dict[int, CallRecord] = field(default_factory=dict)

    def is_visible(self, agent: str | None, token_id: str | None) -> bool:
        return self.run.is_visible(agent, token_id) and (agent is None or not self.is_foreign)


@dataclass(slots=True)
class _Watcher:
    agent: str | None  # None: all agents
    token_id: str | None  # None: all tokens of the agent
    queue: asyncio.Queue[JSON] = field(default_factory=lambda: asyncio.Queue(MAX_WAITING_EVENTS))
    missed: int = 0
    changes: set[str] = field(default_factory=set)  # that wait in the queue
    loop: asyncio.AbstractEventLoop = field(default_factory=asyncio.get_running_loop)

    def put(self, message: JSON) -> None:
        try:
            self.queue.put_nowait(message)
        except asyncio.QueueFull:
            self.missed += 1


class LiveRuns:
    def __init__(self, events: Events) -> None:
        self._live: dict[str, _ActiveRun] = {}
        self._watchers: list[_Watcher] = []
        self._events = events
        self._is_started = False

    def start(self) -> None:
        """Observe the runs that begin from now on."""
        if not self._is_started:
            self._is_started = True
            self._events.subscribe(partial(self._on_event, self._events, False))

    def follow(self, events: Events) -> None:
        """Also show the runs of another application to the owner."""
        events.subscribe(partial(self._on_event, events, True))

    def runs(self, agent: str | None = None, token_id: str | None = None) -> list[RunRecord]:
        """Return the active runs of one agent or of all, newest first."""
        return [
            live.run for live in reversed(self._live.values()) if live.is_visible(agent, token_id)
        ]

    def find(
        self, run_id: str, agent: str | None = None, token_id: str | None = None
    ) -> RunWithCalls | None:
        live = self._live.get(run_id)
        return (
            (live.run, [*live.calls.values()])
            if live is not None and live.is_visible(agent, token_id)
            else None
        )

    def publish_change(self, what: str) -> None:
        """Tell watchers who see everything that something changed, such as `tokens` or `audit`.

        Thread-safe.
        """
        for watcher in [
            other for other in self._watchers if other.agent is None and what not in other.changes
        ]:
            watcher.changes.add(what)
            with suppress(RuntimeError):  # the loop is closed
                watcher.loop.call_soon_threadsafe(watcher.put, {"event": "changed", "what": what})

    @contextmanager
    def watch(
        self, agent: str | None = None, token_id: str | None = None
    ) -> Iterator[AsyncIterator[list[JSON]]]:
        """Yield an iterator over batches of events from now on."""
        watcher = _Watcher(agent, token_id)
        self._watchers.append(watcher)
        try:
            yield _iter_batches(watcher)
        finally:
            self._watchers.remove(watcher)

    def _on_event(self, events: Events, is_foreign: bool, event: Event) -> None:
        run_id = events.run_id(event)
        now = time.time()
        live = self._live.get(run_id)
        if live is None:
            if isinstance(
                event, CallFinished | RunFinished
            ):  # the run ended, or started before this object existed
                return
            run = events.build_run(event, now)
            if isinstance(event, RunStarted):
                run.code = event.command
            live = self._live[run_id] = _ActiveRun(run, event.call_id, is_foreign)
        if isinstance(event, CallStarted):
            run = live.run
            run.calls += 1
            if len(live.calls) < MAX_CALLS:
                call = CallRecord(
                    event.name, run.agent, run.session, run_id, None, None, 0, now, event.call_id
                )
                live.calls[event.call_id] = call
        elif isinstance(event, CallFinished):
            live.run.failed += event.error is not None
            if event.call_id in live.calls:
                live.calls[event.call_id].seconds = event.seconds
                live.calls[event.call_id].error_type = event.error
        if isinstance(event, CallFinished | RunFinished) and event.call_id == live.root_id:
            live.run.state = get_end_state(event.error)
            del self._live[run_id]
        self._publish_event(live, event, now)

    def _publish_event(self, live: _ActiveRun, event: Event, now: float) -> None:
        if not self._watchers:
            return
        run = live.run
        message = {
            "event": event.kind,
            "run_id": run.id,
            "kind": "run" if isinstance(event, RunStarted | RunFinished) else "call",
            "name": event.name,
            "agent": run.agent,
            "actor": run.actor,
            "client": run.client,
            "call_id": event.call_id,
            "call_count": run.calls,
            "at_ms": to_ms(now - run.at),
            "duration_ms": (
                to_ms(event.seconds) if isinstance(event, CallFinished | RunFinished) else None
            ),
            "error": event.error,
            "state": str(run.state),
            **({"command": run.code} if isinstance(event, RunStarted) else {}),
        }
        for watcher in self._watchers:
            if live.is_visible(watcher.agent, watcher.token_id):
                watcher.put(
                    message
                    if watcher.agent is not None
                    else {**message, "directory": run.directory}
                )


async def _iter_batches(watcher: _Watcher) -> AsyncIterator[list[JSON]]:
    while True:
        events = [await watcher.queue.get()]
        while not watcher.queue.empty():
            events.append(watcher.queue.get_nowait())
        watcher.changes.clear()
        if watcher.missed:
            missed = watcher.missed
            watcher.missed = 0
            events.append({"event": "missed", "count": missed})
        yield events


def to_ms(seconds: float | None) -> float | None:
    return None if seconds is None else round(seconds * 1000, 1)


# --- list -----------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class AllRuns:
    """Runs from statistics and a journal, and active ones, which this process executes."""

    statistics: Sequence[StatisticsDatabase]
    journal: RunTables
    redact: Redactor
    active: Iterable[RunRecord] = ()
    skips_unreadable: bool = False  # whether sources with errors are left out

    def list_page(
        self, criteria: RunFilter, after: Position | None = None, size: int = MAX_RUNS
    ) -> RunPage:
        """Return the runs after a position.

        A page may have fewer runs than `size`, or none, and not be the last.
        """
        runs: dict[str, RunRecord] = {}
        border: Position | None = None  # beyond it, the order of the merged runs is not known
        for database in self.statistics:
            page = self._read(history.list_page, database, criteria, after, size)
            if page is not None:
                runs.update((run.id, run) for run in page.runs)
                if page.next is not None and (
                    border is None or criteria.is_before(page.next, border)
                ):
                    border = page.next
        in_journal = self._add_others(runs, criteria)
        listed: list[RunRecord] = []
        for run in runs.values():
            position = criteria.get_position(run)
            is_next = after is None or criteria.is_before(after, position)
            if is_next and (border is None or not criteria.is_before(border, position)):
                listed.append(run)
        listed.sort(key=criteria.get_position, reverse=criteria.is_descending)
        if len(listed) > size:
            border = criteria.get_position(listed[size - 1])
        for run in listed[:size]:
            if not run.calls and run.id in in_journal:
                run.calls = len(self._read(self.journal.list_calls, run.id) or [])
        return RunPage(listed[:size], border)

    def _add_others(self, runs: dict[str, RunRecord], criteria: RunFilter) -> set[str]:
        """Add active runs and those of the journal to runs of the statistics.

        Return the IDs in the journal.
        """
        active = {run.id: run for run in self.active}
        in_journal: set[str] = set()
        for run in self._list_journal(list(runs)):
            in_journal.add(run.id)
            recorded = runs.pop(run.id, None)
            merged = merge(run, active.pop(run.id, None) or recorded, self.redact)
            if (
                criteria.matches(merged)
                if merged.seconds is None
                else criteria.matches_state(merged)
            ):
                runs[run.id] = merged
        for run in active.values():
            if criteria.matches(run):
                runs.setdefault(run.id, run)
        return in_journal

    def _list_journal(self, recorded: Collection[str]) -> Iterator[RunRecord]:
        """Yield journal runs that are open, recorded, or missing in the statistics."""
        journal = self.journal
        yield from self._read(journal.list_runs, OPEN, limit=MAX_OPEN) or []
        if recorded:
            yield from self._read(journal.list_runs, ENDED, ids=recorded) or []
        newest = self._read(journal.list_runs, ENDED, limit=MAX_ENDED) or []
        ended = {run.id: run for run in newest if run.id not in recorded}
        for database in self.statistics if ended else ():
            for run_id in self._read(history.find_ids, database, list(ended)) or ():
                ended.pop(run_id, None)
        yield from ended.values()

    def _read(
        self, function: Callable[..., T], /, *arguments: object, **options: object
    ) -> T | None:
        try:
            return function(*arguments, **options)
        except (ToolError, OSError):
            if not self.skips_unreadable:
                raise
            return None


def merge(run: RunRecord, other: RunRecord | None, redact: Redactor) -> RunRecord:
    """Add what events or the statistics tell about a run to its state in the journal."""
    has_ended = other is not None and other.seconds is not None
    if other is not None and has_ended and run.state is RunState.RUNNING:
        return other  # the journal learns of the end a moment later
    if other is not None and not (has_ended and run.state in UNANSWERED):
        return replace(other, state=run.state, reason=run.reason, expires=run.expires)
    code = redact.redact_prefix(run.code, MAX_CODE_CHARS) if run.kind == "run" else ""
    has_failed = run.state in ENDED and run.state is not RunState.DONE
    return replace(run, code=code, error_type=str(run.state) if has_failed else None)
