"""Durable runs: executing them, holding them while people are asked, and continuing them after a restart.

A run whose policy can ask is executed by a task of its own, which may outlive the request that started it. While it
waits, it keeps its cell for a while; later, or in another process, it is replayed from its journal.
"""

import asyncio
import json
import math
import os
import sys
import time
from collections.abc import Awaitable, Callable, Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from functools import partial
from typing import Any, NamedTuple, TypeVar

from onetool.config.model import Approvals
from onetool.core.context import ToolContext
from onetool.core.policy.labels import SessionLabels
from onetool.core.policy.rules import Policy
from onetool.core.registry import find_hidden_error
from onetool.errors import BudgetExceeded, CallRejected, Interrupted, ToolError, ToolNotFound, describe
from onetool.runs.decisions import complete, resolve_call
from onetool.runs.gate import Gate
from onetool.runs.model import ENDED, CallState, Decision, DurableCall, DurableRunRecord, Grant, RunState
from onetool.runs.questions import Approver, Question, identify, summarize
from onetool.state.storage import RunStorage
from onetool.util.background_tasks import BackgroundTasks
from onetool.util.text import pluralize, quote
from onetool_child.data import as_data
from onetool_child.errors import restore

POLL_SECONDS, IDLE_POLL_SECONDS = 0.2, 1.0
EXPIRY_SECONDS = 60.0
PAUSED_SECONDS = 600.0  # for which a paused run keeps its cell
PAUSED_PER_AGENT, PAUSED_IN_ALL = 4, 16
BACKGROUND_PER_AGENT = 8
RESULT_POLL_SECONDS = 0.05
END_SECONDS = 0.005  # for other runs to end, which are written in the same transaction
WHILE_RUNNING_SECONDS = 10.0  # to wait for the end of a run that was just approved
MAX_VALUE_BYTES = 1 << 20  # of the value of a run; a larger one is in the result store
MAX_SESSIONS = 1000
LAST = "last"  # instead of the ID of a run
PYTHON = f"{sys.version_info.major}.{sys.version_info.minor}.{sys.version_info.micro}"
T = TypeVar("T")


class DurableOutcome(NamedTuple):
    """The end of a run, as data."""

    blocks: tuple[str, ...] = ()
    value: Any = None
    error: Mapping[str, Any] | None = None
    media: tuple[str, ...] = ()
    is_cut: bool = False  # whether the value was too large to keep; the blocks have its summary

    def encode(self) -> str:
        text = json.dumps(self._asdict(), ensure_ascii=False, default=str)
        if len(text) <= MAX_VALUE_BYTES:
            return text
        return json.dumps(self._replace(value=None, is_cut=True)._asdict(), ensure_ascii=False, default=str)


class Runs:
    """The durable runs of an application. `execute` runs the code of a record with this gate, for a replay."""

    def __init__(self, execute: Callable[[DurableRunRecord, Gate], Awaitable[DurableOutcome]]) -> None:
        self._execute = execute
        self._live: dict[str, Gate] = {}
        self._tasks: dict[str, asyncio.Task[Any]] = {}  # of live runs that have a task
        self._ending: list[tuple[str, list[DurableCall], RunState]] = []
        self._active: set[str] = set()  # stored runs and calls that this process executes
        self._paused: dict[str, asyncio.TimerHandle] = {}  # runs without a request, oldest first
        self._in_background: dict[str, Gate] = {}
        self._background = BackgroundTasks()
        self.saving = BackgroundTasks()  # finished before the application is closed
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="onetool-journal")
        self._labels: dict[str, SessionLabels] = {}
        self._has_forgotten = False
        self._version = -1
        self._watching: asyncio.Future[None] | None = None
        self._is_server = False
        self.is_closing = False
        self._continuing = asyncio.Lock()  # a run is continued once

    def configure(
        self,
        store: RunStorage,
        settings: Approvals,
        directory: str,
        *,
        python: str = PYTHON,
        keeps_cells: bool = True,
        get_policy: Callable[[str], tuple[Policy, frozenset[str]]],
        is_revoked: Callable[[DurableRunRecord], bool],
        on_event: Callable[..., None],
    ) -> None:
        """Apply new settings. `get_policy` returns the policy of an agent, and where its calls may be approved.

        `is_revoked` returns whether the token that started a run was revoked: the run is not continued. `python` is the
        interpreter of the cells: another one does not replay a run. `keeps_cells` says whether paused runs keep their
        cells for a while.
        """
        self._python = python
        self._keep_seconds = PAUSED_SECONDS if keeps_cells else 0.0
        self.store, self.settings, self._directory = store, settings, directory
        self._get_policy, self._is_revoked, self._on_event = get_policy, is_revoked, on_event

    async def close(self) -> None:
        """End live runs without changing their state, so that another process can continue them."""
        self.is_closing = True
        self._background.cancel()
        for task in self._tasks.values():
            task.cancel()
        await asyncio.gather(*self._tasks.values(), return_exceptions=True)
        await self.saving.wait()
        self._thread.shutdown(wait=True)

    def start(self, work: Awaitable[T]) -> asyncio.Future[T]:
        return self._background.start(work)

    async def in_thread(self, function: Callable[..., T], *args: Any, **kwargs: Any) -> T:
        """Call a method of the store. All calls use one thread, in order."""
        loop = asyncio.get_running_loop()
        return await loop.run_in_executor(self._thread, partial(function, *args, **kwargs))

    # --- starting ---------------------------------------------------------------------------------------------------

    def open_gate(
        self,
        agent: str,
        correlation_id: str,
        kind: str,
        *,
        token_id: str = "",
        actor: str = "",
        client: str = "",
        session: str = "",
        ask: Approver | None = None,
        hold: float = 0.0,
    ) -> Gate:
        """Return the gate for a new run or call. Nothing is stored until it has an effect or asks."""
        policy, via = self._get_policy(agent)
        record = DurableRunRecord(
            id=f"r_{correlation_id}",
            agent=agent,
            code="",
            kind=kind,
            token_id=token_id,
            actor=actor,
            client=client,
            directory=self._directory,
            python=self._python,
            seed=correlation_id,
            is_replayable=policy.can_ask or (self.settings.record and kind == "run"),
            started=time.time(),
        )
        labels = self._find_labels(f"{agent}/{token_id}/{client}/{session}") if policy.can_ask else None
        return Gate(self, record, policy, labels, via=via, ask=ask, hold=hold)

    def open_separate_gate(self, gate: Gate) -> Gate:
        """Return the gate of one call of a run that cannot wait for people, so that the call waits alone."""
        run = gate.record
        separate = self.open_gate(
            *(run.agent, os.urandom(16).hex(), "call"),
            token_id=run.token_id,
            client=run.client,
            ask=gate.ask,
            hold=self.settings.wait if gate.ask is None else gate.hold,
        )
        separate.record = replace(separate.record, is_replayable=True)
        separate.is_replayable = separate.keeps_outcome = separate.is_separate = True
        separate.labels = SessionLabels()
        return separate

    def _find_labels(self, session: str) -> SessionLabels:
        """Return the labels of a client session. After too many sessions, an unknown one may have received anything."""
        if session not in self._labels:
            self._labels[session] = SessionLabels()
            if len(self._labels) > MAX_SESSIONS:
                self._labels.pop(next(iter(self._labels)))
                self._has_forgotten = True
            if self._has_forgotten:
                self._labels[session].merge(None)
        return self._labels[session]

    async def run(
        self, gate: Gate, work: Callable[[], Awaitable[T]], to_outcome: Callable[[T], DurableOutcome]
    ) -> T | None:
        """Execute a run in a task. Return its answer, or None if it waits for a person and `hold` has passed."""
        task = self._begin(gate, work, to_outcome)
        paused = asyncio.ensure_future(gate.paused.wait())
        try:
            await asyncio.wait({task, paused}, return_when=asyncio.FIRST_COMPLETED)
        except asyncio.CancelledError:
            task.cancel()
            await asyncio.shield(self.end(gate, RunState.CANCELLED, "the client cancelled it"))
            raise
        finally:
            paused.cancel()
        if task.done():
            return task.result()
        self._keep_paused(gate)
        return None

    async def start_call(self, tool: str, arguments: Mapping[str, Any], context: ToolContext) -> str:
        """Call a tool in the background, as a run of one call. Return the ID of the run."""
        running = sum(gate.record.agent == context.agent_id for gate in self._in_background.values())
        if running >= BACKGROUND_PER_AGENT:
            raise BudgetExceeded(
                f"agent {context.agent_id} already makes {pluralize(running, 'call')} in the background",
                hint="wait for one of them with ot.run_result",
            )
        found = await context.bus.resolve(tool)
        if (error := find_hidden_error(found, context)) is not None:
            raise error
        gate = self.open_gate(
            *(context.agent_id, os.urandom(16).hex(), "call"),
            token_id=context.token_id,
            actor=context.actor,
            client=context.client,
            hold=math.inf,
        )
        gate.labels = None if context.gate is None else context.gate.labels
        gate.keeps_outcome = True
        if found.is_resumable:  # if this process ends, another one gets the result
            gate.record, gate.is_replayable = replace(gate.record, is_replayable=True), True
        gate.record = replace(gate.record, code=json.dumps({"tool": tool, "arguments": as_data(dict(arguments))}))
        self._in_background[gate.id] = gate
        await self._store(gate)
        task = self._begin(gate, partial(self._execute, gate.record, gate), lambda outcome: outcome)
        task.add_done_callback(lambda _: self._in_background.pop(gate.id, None))
        return gate.id

    def _begin(
        self, gate: Gate, work: Callable[[], Awaitable[T]], to_outcome: Callable[[T], DurableOutcome]
    ) -> "asyncio.Task[T]":
        async def execute() -> T:
            try:
                answer = await work()
            except asyncio.CancelledError:
                if gate.stopped is None:
                    raise
                raise gate.stopped from None
            await self._finish(gate, to_outcome(answer))
            return answer

        self._live[gate.id] = gate
        task = self._tasks[gate.id] = asyncio.ensure_future(execute())
        task.add_done_callback(lambda done: self._forget(gate, done))
        return task

    def _forget(self, gate: Gate, task: "asyncio.Task[Any]") -> None:
        if self._tasks.get(gate.id) is task:
            self._tasks.pop(gate.id)
            self._live.pop(gate.id, None)
            self._active.discard(gate.id)
        if (timer := self._paused.pop(gate.id, None)) is not None:
            timer.cancel()
        if not task.cancelled() and (error := task.exception()) is not None and error is not gate.stopped:
            self._on_event("run.failed", level="ERROR", run=gate.id, text=repr(error))

    async def _finish(self, gate: Gate, outcome: DurableOutcome) -> None:
        if self.settings.record and gate.is_replayable and not gate.is_stored:
            await self._store(gate, gate.take_unsaved())
        if gate.is_stored and gate.unrepeated:
            reason = f"the code did not repeat {pluralize(gate.unrepeated, 'call')} with effects that it made before"
            await self.end(gate, RunState.DIVERGED, reason)
        elif gate.is_stored and gate.stopped is None:
            await gate.flush()
            state = RunState.DONE if outcome.error is None else RunState.FAILED
            encoded = outcome.encode() if gate.keeps_outcome else None
            await self.in_thread(self.store.set_state, gate.id, state, outcome=encoded)
            gate.record = replace(gate.record, state=state)

    def finish_later(self, gate: Gate, error: str | None) -> None:
        """Record the end of a run that cannot be replayed, or of a call outside of a run."""
        if not gate.is_stored:
            return
        state = RunState.DONE if error is None else RunState.CANCELLED if error == "cancelled" else RunState.FAILED
        self._ending.append((gate.id, gate.take_unsaved(), state))
        if len(self._ending) == 1:
            self.saving.start(self._end_all())

    async def _end_all(self) -> None:
        """Record the ends of several runs in one transaction."""
        await asyncio.sleep(END_SECONDS)
        ended, self._ending = self._ending, []
        try:
            await self.in_thread(self.store.end_runs, ended)
        finally:
            self._active.difference_update(run_id for run_id, _, _ in ended)

    def release(self, run_id: str) -> None:
        """Leave a call that waits to the process that continues it after the approval."""
        self._active.discard(run_id)

    # --- the journal of a gate --------------------------------------------------------------------------------------

    async def write(self, gate: Gate, calls: list[DurableCall], grant: str | None, survives_power_loss: bool) -> None:
        if not (gate.is_stored or grant or survives_power_loss):
            await self._store(gate, calls)  # one transaction, for the first write under `allow`
            return
        await self._store(gate)
        write = partial(self.store.write_calls, gate.id, calls, grant=grant, survives_power_loss=survives_power_loss)
        await self.in_thread(write)

    async def _store(self, gate: Gate, calls: Iterable[DurableCall] = (), **changes: Any) -> None:
        """Store the run before its first call or with it, or again if something of it changes."""
        if gate.is_stored and not changes:
            return
        owner, expires = self.store.owner, self.store.now() + self.settings.ttl
        gate.record = replace(gate.record, owner=owner, expires=expires, **changes)
        self._active.add(gate.id)
        await self.in_thread(self.store.put_run, gate.record, calls)
        gate.is_stored = True

    async def set_state(self, gate: Gate, state: RunState) -> None:
        if gate.record.state is not state:
            gate.record = replace(gate.record, state=state)
            await self.in_thread(self.store.set_state, gate.id, state)

    async def end(self, gate: Gate, state: RunState, reason: str) -> None:
        """End a run early. It makes no more calls."""
        gate.stopped = gate.stopped or Interrupted(f"run {gate.id} has ended: {reason}", run=gate.id)
        if gate.is_stored and gate.record.state not in ENDED:
            gate.record = replace(gate.record, state=state, reason=reason)
            await self.in_thread(self.store.set_state, gate.id, state, reason=f"{reason}; {gate.describe_history()}")

    async def list_grants(self, gate: Gate) -> list[Grant]:
        return await self.in_thread(self.store.list_grants, gate.record.agent, gate.id)

    # --- people -----------------------------------------------------------------------------------------------------

    async def wait_for_people(self, gate: Gate) -> None:
        """Mark a run as waiting. Raise if too many runs wait."""
        halted = any(call.state is CallState.UNKNOWN for call in gate.list_waiting())
        self._live[gate.id] = gate
        await self._store(gate, is_replayable=gate.is_replayable)  # it expires later
        await self.set_state(gate, RunState.HALTED if halted else RunState.WAITING)

    def announce(self, gate: Gate) -> None:
        """Tell people that a run waits, and watch for their answers."""
        text = summarize(gate.list_waiting())
        self._on_event("run.waiting", run=gate.id, agent=gate.record.agent, text=text)
        self._watch()

    async def decide(self, run_id: str, decision: Decision, *, via: str, transport: str) -> list[int]:
        """Apply the decision of a person. Raise if the run is unknown or nothing waits.

        `via` is one of the places of `approvals.via`; the audit log records it with the transport.
        """
        record = await self.in_thread(self.store.get_run, run_id)
        if record is None:
            raise ToolNotFound(f"no run {quote(run_id)}")
        if via not in self._get_policy(record.agent)[1]:
            raise CallRejected(f"calls of agent {record.agent} cannot be approved there: approvals.via has no {via!r}")
        if decision.is_approved:
            self._check_starter(record)
        completed = complete(decision, record, self.store.now() + self.settings.ttl)
        numbers = await self.in_thread(self.store.decide, run_id, completed)
        if not numbers and not (decision.stops_run and record.state not in ENDED):
            raise CallRejected(f"no call of run {run_id} waits any more", run=run_id)
        self._on_event(
            "run.decided",
            run=run_id,
            by=decision.by,
            via=via,
            transport=transport,
            decision="approve" if decision.is_approved else "stop" if decision.stops_run else "reject",
            calls=numbers,
            grants=[grant.id for grant in decision.grants],
        )
        await self._refresh()
        return numbers

    def _check_starter(self, record: DurableRunRecord) -> None:
        if self._is_revoked(record):
            message = f"run {record.id} cannot continue: {record.actor or 'its token'} was revoked; reject its calls"
            raise CallRejected(message, run=record.id)

    async def resolve(self, run_id: str, number: int, outcome: str, by: str, *, via: str, transport: str) -> None:
        """Say what happened to a call that was sent: `happened`, `not-happened` or `repeat`."""
        record = await self.in_thread(self.store.get_run, run_id)
        if record is not None:
            self._check_starter(record)
        await self.in_thread(resolve_call, self.store, run_id, number, outcome, by)
        fields = {"run": run_id, "by": by, "via": via, "transport": transport}
        self._on_event("run.resolved", **fields, calls=[number], decision=outcome)
        await self._refresh()

    def stop_waiting(self, gate: Gate) -> None:
        """Leave a call that no task of this process executes to the one that continues it after the approval."""
        if gate.id not in self._tasks:
            self._live.pop(gate.id, None)

    def _keep_paused(self, gate: Gate) -> None:
        """Keep the cell of a paused run for a while. If there are too many, the oldest are replayed later."""
        gate.ask = None
        loop = asyncio.get_running_loop()
        self._paused[gate.id] = loop.call_later(self._keep_seconds, self._park, gate.id)
        same = [each for each in self._paused if self._live[each].record.agent == gate.record.agent]
        for run_id in {*same[:-PAUSED_PER_AGENT], *list(self._paused)[:-PAUSED_IN_ALL]}:
            self._park(run_id)

    def _park(self, run_id: str) -> None:
        """End the process of a paused run. It is replayed when people have answered."""
        gate, task = self._live.get(run_id), self._tasks.get(run_id)
        if gate is None or task is None or not gate.list_waiting():
            return
        if gate.in_flight:  # an interrupted call would have to be resolved by a person
            self._paused[run_id] = asyncio.get_running_loop().call_later(1.0, self._park, run_id)
            return
        if not gate.is_replayable:
            reason = "it waited too long for a person, and a result is too large to replay it"
            self.start(self.end(gate, RunState.INTERRUPTED, reason))
        gate.stopped = Interrupted(f"run {run_id} does not continue in this process", run=run_id)
        task.cancel()

    # --- watching the store -----------------------------------------------------------------------------------------

    def serve(self) -> None:
        """Continue runs of ended processes, now and whenever people have answered."""
        self._is_server = True
        self._watch()

    def _watch(self) -> None:
        if self._watching is None or self._watching.done():
            self._watching = self.start(self._poll())

    async def _poll(self) -> None:
        expiry = 0.0
        while self._is_server or any(gate.list_waiting() for gate in self._live.values()):
            try:
                if time.monotonic() >= expiry:
                    expiry = time.monotonic() + EXPIRY_SECONDS
                    await self.in_thread(self.store.delete_expired, self.store.now())
                version = await self.in_thread(self.store.version)
                if version != self._version:
                    await self._refresh()
            except Exception as error:  # noqa: BLE001 - the next poll may succeed
                self._on_event("run.watch", level="ERROR", text=f"cannot read the journal: {error}")
            is_busy = any(gate.list_waiting() for gate in self._live.values())
            await asyncio.sleep(POLL_SECONDS if is_busy else IDLE_POLL_SECONDS)

    async def _refresh(self) -> None:
        """Continue what people have answered."""
        self._version = await self.in_thread(self.store.version)
        for gate in list(self._live.values()):
            if gate.list_waiting():
                gate.apply(await self.in_thread(self.store.list_calls, gate.id))
                record = await self.in_thread(self.store.get_run, gate.id)
                if record is not None and record.state is RunState.CANCELLED:
                    self._stop(gate, record)
        if self._is_server:
            await self._continue_orphans()

    def _stop(self, gate: Gate, record: DurableRunRecord) -> None:
        """End a run that a person stopped. Its request gets an error."""
        gate.record = record
        gate.stopped = CallRejected(f"run {gate.id} was stopped: {record.reason or 'by a person'}", run=gate.id)
        if (task := self._tasks.get(gate.id)) is not None:
            task.cancel()

    async def _continue_orphans(self) -> None:
        for run_id in await self.in_thread(self.store.list_orphans):
            if run_id not in self._live and run_id not in self._active:
                await self._continue(run_id)

    async def _continue(self, run_id: str) -> None:
        """Replay a run whose process has ended, unless it waits for a person."""
        async with self._continuing:
            record = await self.in_thread(self.store.get_run, run_id)
            is_here = run_id in self._live or run_id in self._active
            if record is not None and record.state not in ENDED and not is_here:
                await self._continue_record(record)

    async def _continue_record(self, record: DurableRunRecord) -> None:
        is_elsewhere = record.is_replayable and record.directory != self._directory
        if is_elsewhere or 0 < record.expires <= self.store.now():
            return
        if await self.in_thread(self.store.list_calls, record.id, (CallState.PENDING, CallState.UNKNOWN)):
            return
        if record.is_replayable and record.python != self._python:
            if record.state is not RunState.HALTED:
                reason = f"it was started by Python {record.python}, this is {self._python}"
                await self.in_thread(self.store.set_state, record.id, RunState.HALTED, reason=reason)
            return
        if not await self.in_thread(self.store.claim, record.id, self.store.owner):
            return
        calls = await self.in_thread(self.store.list_calls, record.id)
        try:
            policy, via = self._get_policy(record.agent)
            # A run that is recorded, but whose policy never asks, continues only if a person was asked about a call.
            may_wait = policy.can_ask or record.kind == "call" or any(call.by for call in calls)
            reason = "" if record.is_replayable and may_wait else "its process ended"
            reason = f"{record.actor or 'its token'} was revoked" if self._is_revoked(record) else reason
        except ToolError as error:
            reason = error.message
        if reason:
            reason = f"{reason}; it has made {pluralize(len(calls), 'call')} with effects: {summarize(calls)}"
            await self.in_thread(self.store.set_state, record.id, RunState.INTERRUPTED, reason=reason)
            return
        record = replace(record, owner=self.store.owner, state=RunState.RUNNING)
        await self.in_thread(self.store.set_state, record.id, RunState.RUNNING)
        labels = SessionLabels()
        labels.merge(None)  # nobody knows what its client has received
        gate = Gate(self, record, policy, labels, via=via, recorded=calls, hold=math.inf)
        self._begin(gate, partial(self._execute, record, gate), lambda outcome: outcome)
        self._on_event("run.continued", run=record.id, agent=record.agent, calls=len(calls))

    # --- results ----------------------------------------------------------------------------------------------------

    def describe_pause(self, gate: Gate) -> str:
        """Return the answer to the model for a run that waits. It never says what a person has to type."""
        return self._describe_waiting(gate.id, gate.list_waiting())

    @staticmethod
    def _describe_waiting(run_id: str, calls: Iterable[DurableCall]) -> str:
        waiting = list(calls)
        verb = "to say whether" if any(call.state is CallState.UNKNOWN for call in waiting) else "to approve"
        end = " happened" if verb != "to approve" else ""
        counted = pluralize(len(waiting), "call")
        return (
            f"paused: run {run_id} waits for a person {verb} {counted} ({summarize(waiting)}){end}. "
            f"{_continue_later(run_id)}"
        )

    async def get_result(self, run_id: str, agent: str, token_id: str, seconds: float) -> Any:
        """Return the value of a run, or text that says what it waits for. Raise the error of a failed run."""
        outcome = await self.wait_for_end(run_id, agent, token_id, seconds)
        if isinstance(outcome, str):
            return outcome
        if outcome.error is not None:
            raise restore(outcome.error)
        return "\n".join(outcome.blocks) if outcome.is_cut else outcome.value

    async def wait_for_end(
        self, run_id: str, agent: str, token_id: str, seconds: float, while_running: float = 0.0
    ) -> "DurableOutcome | str":
        """Return the outcome of a run. If it has not ended after this time, return text that says why.

        While the run does not wait for a person, wait for `while_running` seconds, if that is longer.
        """
        started, open_calls = time.monotonic(), (CallState.PENDING, CallState.UNKNOWN)
        while True:
            record = await self.find_own(run_id, agent, token_id)
            if record.state in ENDED:
                return _read_outcome(record)
            if run_id not in self._live:
                await self._continue(record.id)
            waiting = await self.in_thread(self.store.list_calls, run_id, open_calls)
            if time.monotonic() - started >= (seconds if waiting else max(seconds, while_running)):
                break
            await asyncio.sleep(RESULT_POLL_SECONDS)
        if waiting:
            return self._describe_waiting(run_id, waiting)
        return f"running: run {run_id} has not ended yet. {_continue_later(run_id)}"

    async def find_own(self, run_id: str, agent: str, token_id: str) -> DurableRunRecord:
        """Return a run of this agent and token; `last` is the last one that was recorded and worked."""
        if run_id == LAST:
            done = await self.in_thread(partial(self.store.list_runs, (RunState.DONE,), agent=agent))
            own = (run for run in done if run.kind == "run" and run.outcome and token_id in {"", run.token_id})
            run_id = next((run.id for run in own), LAST)
        record = await self.in_thread(self.store.get_run, run_id)
        if record is None or record.agent != agent or token_id not in {"", record.token_id}:
            raise ToolNotFound(
                f"no run {quote(run_id)}", hint="runs are kept for a week, for the agent that started them"
            )
        return record

    async def answer_question(
        self, state: str, agent: str, token_id: str, approver: Approver
    ) -> "DurableOutcome | str":
        """Apply the answer to a question that was asked before a restart, and continue its run."""
        asked = json.loads(state)
        run_id = asked["run"]
        await self.find_own(run_id, agent, token_id)
        calls = await self.in_thread(self.store.list_calls, run_id)
        shown = [call for call in calls if asked["calls"].get(str(call.number)) == identify(call)]
        if len(shown) == len(asked["calls"]) and any(call.state is CallState.PENDING for call in shown):
            question = Question(run_id, agent, shown)
            decision = question.read(await approver.ask(question), approver.name)
            await self.decide(run_id, decision, via=approver.via, transport=approver.transport)
        return await self.wait_for_end(run_id, agent, token_id, self.settings.wait, WHILE_RUNNING_SECONDS)


def _continue_later(run_id: str) -> str:
    return f'Continue with other work, then call ot.run_result("{run_id}").'


def _read_outcome(record: DurableRunRecord) -> DurableOutcome:
    if record.outcome is not None:
        data = json.loads(record.outcome)
        return DurableOutcome(tuple(data["blocks"]), data["value"], data["error"], tuple(data["media"]), data["is_cut"])
    reason = record.reason or "its result was not kept"
    error = Interrupted(f"run {record.id} is {record.state}: {reason}", run=record.id)
    return DurableOutcome((f"{type(error).__name__}: {error}",), error=describe(error))
