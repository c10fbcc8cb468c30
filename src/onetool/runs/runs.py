"""The life of a run: from the command of a client over the questions to people to its result.

`Runs.run` opens the gate of a run (`onetool.runs.gate`) and executes the code in a cell
(`onetool.runs`). A run whose policy can ask is executed by a task of its own, which may outlive the
request that started it. While it waits, it keeps its cell for a while; later, or in another
process, it is replayed from its journal.
"""

import asyncio
import json
import math
import os
import re
import time
from collections import defaultdict
from collections.abc import Awaitable, Callable, Collection, Iterable, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import partial
from itertools import chain
from typing import TYPE_CHECKING, Any

import anyio.to_thread

from onetool.core.agents import Agents
from onetool.core.bus.bus import ToolBus
from onetool.core.bus.events import RUN, RunFinished
from onetool.core.policy.effects import SessionLabels
from onetool.core.registry import find_hidden_error
from onetool.errors import (
    BudgetExceeded,
    CallRejected,
    Interrupted,
    ToolError,
    ToolNotFound,
    describe,
    error_type,
)
from onetool.processes.process import Variables
from onetool.runs import fence_processor
from onetool.runs.answer import Answer
from onetool.runs.cell_process import MEASURES_WORK
from onetool.runs.gate import Gate
from onetool.runs.notifier import ApprovalNotifier
from onetool.runs.plan import make_plan, reject_nested
from onetool.runs.questions import (
    OUTCOMES,
    Approver,
    Question,
    complete,
    continue_later,
    describe_grant,
    describe_pause,
    identify,
    summarize,
)
from onetool.runs.replay import Journal, ReplayGate, list_answered
from onetool.runs.results.blobs import Media
from onetool.runs.run_output import ClientChannel, Notices, RunOutput
from onetool.runs.runner import Runner
from onetool.runs.wasm_launcher import describe_interpreter, find_isolation_problem
from onetool.settings.load import Loaded
from onetool.state.changes import Changes
from onetool.state.run_records import (
    ENDED,
    SHORT_ID_CHARS,
    CallState,
    Decision,
    DurableCall,
    RunOutcome,
    RunRecord,
    RunState,
)
from onetool.state.run_store import RunTables
from onetool.state.stats.details import MARGIN_CHARS, MAX_VALUE_BYTES, count_tokens
from onetool.util.context import Application, CallClient, Caller, CallGates, RunScope, ToolContext
from onetool.util.invisible import escape_invisible
from onetool.util.logging import Log
from onetool.util.redact import Redactor
from onetool.util.render import render
from onetool.util.tasks import BackgroundTasks
from onetool.util.text import pluralize, quote, shorten
from onetool_child.data import as_data
from onetool_child.errors import restore
from onetool_child.json_types import JsonMapping, JsonObject

if TYPE_CHECKING:
    from onetool.state.document_kinds import SavedSnippet

EXPIRY_SECONDS = 60.0
PAUSED_SECONDS = 600.0  # for which a paused run keeps its cell
PAUSED_PER_AGENT = 4
PAUSED_IN_ALL = 16
BACKGROUND_PER_AGENT = 8
RESULT_POLL_SECONDS = 0.05
WHILE_RUNNING_SECONDS = 10.0  # to wait for the end of a run that was just approved
MAX_SESSIONS = 1000
MAX_EVENT_CHARS = MAX_VALUE_BYTES + MARGIN_CHARS  # of an answer in events, before it is redacted
MAX_PATTERN_CHARS = 1000  # of a grant in the audit log
LAST = "last"  # instead of the ID of a run
WORKS_WITHOUT_SETTINGS = re.compile(r"\s*ot\.(health|help|reload)\([^()]*\)\s*")
LOG_LEVELS = {
    "debug": "DEBUG",
    "info": "INFO",
    "notice": "INFO",
    "warning": "WARNING",
}  # of MCP; others are errors
OPEN_CALLS = (CallState.PENDING, CallState.UNKNOWN)


class Runs:
    """An application's runs, and its calls outside runs. `system` is the application for its tools."""

    def __init__(
        self,
        bus: ToolBus,
        agents: Agents,
        changes: Changes,
        system: Application | None,
        own_ports: Callable[[], set[int]],
    ) -> None:
        self._bus = bus
        self._agents = agents
        self._changes = changes
        self._system = system
        self._notifier = ApprovalNotifier(own_ports)
        self.notices = Notices()
        self._live: dict[str, Gate] = {}
        self._plan_turns: defaultdict[str, asyncio.Lock] = defaultdict(asyncio.Lock)  # by agent
        self.background = BackgroundTasks()
        self.journal = Journal()
        self._labels: dict[str, SessionLabels] = {}
        self._has_forgotten = False
        self._watching: asyncio.Future[None] | None = None
        self._is_server = False
        self.is_closing = False
        self._continuing = asyncio.Lock()  # a run is continued once

    def configure(
        self,
        loaded: Loaded,
        runner: Runner,
        store: RunTables,
        media: Media,
        *,
        redact: Redactor,
        log: Log,
        environment: Variables,
        is_revoked: Callable[[RunRecord], bool],
        record_decision: Callable[..., Awaitable[None]],
        keeps_cells: bool = MEASURES_WORK,
    ) -> None:
        """Apply new settings. Current runs finish with the old ones.

        `is_revoked` returns whether the token that started a run was revoked: the run is not
        continued. `record_decision` writes a decision to the audit log. `keeps_cells` says whether
        paused runs keep their cells for a while.
        """
        settings = loaded.settings
        self._runner = runner
        self.journal.configure(store, settings.approvals.ttl)
        self.settings = settings.approvals
        self._error = loaded.error
        self._log = log
        self._redact = redact
        self._directory = str(loaded.directories.working_dir)
        self._python = describe_interpreter(
            runner.cells.isolation["cells"]
        )  # another one does not replay a run
        self._keep_seconds = PAUSED_SECONDS if keeps_cells else 0.0
        self._is_revoked = is_revoked
        self._audit_decision = record_decision
        self._loaded = loaded
        self._media = media
        self._notifier.configure(
            settings.approvals.notify,
            redact,
            log,
            environment,
            allow_private_addresses=settings.http.allow_private_addresses,
        )

    def warn(self, agent: str, text: str) -> None:
        """Add a notice for the agent and log a warning."""
        self.notices.add(agent, text)
        self._log.event("warning", level="WARNING", agent=agent, text=text)

    async def close(self) -> None:
        """End live runs without changing their state, so that another process can continue them."""
        self.is_closing = True
        self.background.cancel()
        tasks = [gate.task for gate in self._live.values() if gate.task is not None]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await self.journal.close()
        await self._notifier.close()

    # --- from a command to the answer -------------------------------------------------------------

    async def run(
        self,
        command: object,
        caller: Caller,
        output: RunOutput | None = None,
        preset_format: str | None = None,
        meta: JsonMapping | None = None,
    ) -> Answer:
        """Run a command and return the client's answer; `meta` is the request metadata."""
        if self._error is not None and not _works_without_settings(command):
            text = f"invalid settings; nothing runs until they are fixed:\n{self._error}"
            return Answer((escape_invisible(text),), is_error=True, error="config_error")
        output = output or RunOutput(keeps_value=True)
        code = command if isinstance(command, str) else ""
        try:
            gate = self.open_gate(
                caller,
                "run",
                code=code,
                preset_format=preset_format,
                ask=output.channel.approve,
                hold=self.settings.wait,
            )
            context = self._make_context(caller, gate, gate.id, output, meta)
        except ToolError as error:
            return _refuse(error)
        work = self._execute_code(command, gate, context, output, caller.session)
        if not gate.is_replayable:
            return await work
        try:
            answer = await self.run_in_task(gate, work)
        except ToolError as error:  # a person stopped the run
            return _refuse(error)
        if answer is None:
            output.channel.listener = None
            return Answer((describe_pause(gate.id, gate.list_waiting()),), is_paused=True)
        return answer

    async def _execute_code(
        self,
        command: object,
        gate: Gate,
        context: ToolContext,
        output: RunOutput,
        session: str = "",
    ) -> Answer:
        """Execute the code of a run in a cell, and report its start and its end."""
        runner = self._runner
        events = self._bus.events
        answer = None
        at = time.time()
        started = time.perf_counter()
        call_id = events.start_run(context, command)
        try:
            answer = await runner.run(command, context, output, gate.record.format)
        finally:
            error = "cancelled" if answer is None else answer.error
            if not gate.is_replayable:
                gate.entry.end_later(error)
            seconds = time.perf_counter() - started
            tokens = 0 if answer is None else sum(map(count_tokens, answer.blocks))
            fields = (
                call_id,
                context,
                seconds,
                error,
                len(output.calls),
                tokens,
                output.channel.request_id,
                at,
            )
            events.emit(RunFinished(*fields, *_split_answer(answer, output)))
        isolation = runner.settings.execution.isolation
        self.notices.add_general(
            find_isolation_problem(runner.cells.isolation["sandbox"], isolation)
        )
        notices = [
            *self.notices.take(context.agent_id, session),
            *(f"Note: {notice}" for notice in output.notices),
        ]
        return (
            replace(answer, blocks=(*map(self._redact, notices), *answer.blocks))
            if notices
            else answer
        )

    async def plan(self, code: str, context: ToolContext) -> JsonObject:
        """Return what the code would do. Only tools that read are called.

        An agent has one plan at a time, so that it takes one cell more than its runs. Waiting
        counts as time of the caller, and the plan gets half of the memory that the run does not
        use.
        """
        reject_nested(context)
        async with self._plan_turns[context.agent_id]:
            return await make_plan(self._runner, code, context, self._redact.redact_data)

    async def replay(
        self, record: RunRecord, calls: Iterable[DurableCall], code: str, context: ToolContext
    ) -> Answer:
        """Run code with the recorded answers of a run, and return its answer. No tool is called."""
        gate = ReplayGate(record.id, record.at, list_answered(calls))
        context = replace(context, run=context.run._replace(gate=gate))
        return await self._runner.run(code, context, RunOutput(keeps_value=True), record.format)

    async def save_snippet(
        self, name: str, description: str, run_id: str, context: ToolContext
    ) -> "SavedSnippet":
        """Save a run that worked as a snippet of its agent."""
        from onetool.runs.snippets.parameters import SnippetSaver

        return await SnippetSaver(self, self._runner, self._redact).save(
            name, description, run_id, context
        )

    # --- calls outside of runs --------------------------------------------------------------------

    def open_context(
        self,
        caller: Caller,
        output: RunOutput | None = None,
        meta: JsonMapping | None = None,
        *,
        ask: Approver | None = None,
        hold: float = 0.0,
    ) -> ToolContext:
        """Return a context for calls outside of runs: each is a run of one call.

        A call that needs an approval asks `ask`, and waits for `hold` seconds for a person.
        """
        if ask is None and output is not None:
            ask = output.channel.approve
        first_id = _make_id()
        ids = chain([first_id], iter(_make_id, ""))
        gates = CallGates(
            self._find_labels(caller),
            lambda: self.open_gate(caller, "call", run_id=next(ids), ask=ask, hold=hold),
        )
        return self._make_context(caller, gates, first_id, output, meta)

    async def start_call(self, tool_name: str, arguments: JsonMapping, context: ToolContext) -> str:
        """Call a tool in the background, as a run of one call. Return the ID of the run."""
        running = sum(
            gate.is_background and gate.record.agent == context.agent_id
            for gate in self._live.values()
        )
        if running >= BACKGROUND_PER_AGENT:
            raise BudgetExceeded(
                f"agent {context.agent_id} already makes {pluralize(running, 'call')} in the"
                " background",
                hint="wait for one of them with ot.run_result",
            )
        tool = await context.require_bus().resolve(tool_name)
        if (error := find_hidden_error(tool, context)) is not None:
            raise error
        caller = replace(context.caller, agent=context.agent_id)
        code = json.dumps({"tool": tool_name, "arguments": as_data(dict(arguments))})
        gate = self.open_gate(caller, "call", name=tool_name, code=code, hold=math.inf)
        gate.labels = context.run.labels
        gate.keeps_outcome = True
        if tool.is_resumable:  # if this process ends, another one gets the result
            await gate.entry.update(is_replayable=True)
        gate.is_background = True
        self._live[gate.id] = gate
        try:
            await gate.entry.store()
        except BaseException:
            del self._live[gate.id]
            raise
        self._begin(gate, self.execute(gate))
        return gate.id

    # --- execution --------------------------------------------------------------------------------

    def open_gate(
        self,
        caller: Caller,
        kind: str,
        *,
        run_id: str = "",
        name: str = RUN,
        code: str = "",
        preset_format: str | None = None,
        ask: Approver | None = None,
        hold: float = 0.0,
    ) -> Gate:
        """Return the gate for a new run or call. Nothing is stored until it has an effect or asks."""
        policy, via = self._agents.get_policy(caller.agent)
        record = RunRecord(
            id=run_id or _make_id(),
            agent=caller.agent,
            code=code,
            kind=kind,
            name=name,
            token_id=caller.token_id,
            actor=caller.actor,
            client=caller.client,
            directory=self._directory,
            python=self._python,
            is_replayable=policy.can_ask or (self.settings.record and kind == "run"),
            at=time.time(),
            format=preset_format,
        )
        return Gate(self, record, policy, self._find_labels(caller), via=via, ask=ask, hold=hold)

    def open_separate_gate(self, gate: Gate) -> Gate:
        """Return the gate for one call of a run that cannot wait for people."""
        run = gate.record
        caller = Caller(run.agent, token_id=run.token_id, client=run.client)
        hold = self.settings.wait if gate.ask is None else gate.hold
        separate = self.open_gate(caller, "call", ask=gate.ask, hold=hold)
        separate.entry.record = replace(separate.record, is_replayable=True)
        separate.keeps_outcome = True
        separate.is_separate = True
        separate.labels = SessionLabels()
        return separate

    def _find_labels(self, caller: Caller) -> SessionLabels | None:
        """Return the labels of a client session, if the policy can ask.

        After too many sessions, an unknown one may have received anything.
        """
        if not self._agents.get_policy(caller.agent)[0].can_ask:
            return None
        session = f"{caller.agent}/{caller.token_id}/{caller.client}/{caller.session}"
        if session not in self._labels:
            self._labels[session] = SessionLabels()
            if len(self._labels) > MAX_SESSIONS:
                self._labels.pop(next(iter(self._labels)))
                self._has_forgotten = True
            if self._has_forgotten:
                self._labels[session].merge(None)
        return self._labels[session]

    def _make_context(
        self,
        caller: Caller,
        gate: Gate | CallGates,
        correlation_id: str,
        output: RunOutput | None = None,
        meta: JsonMapping | None = None,
    ) -> ToolContext:
        """Return the context for the calls of a gate. `meta` is the metadata of the request."""
        self._bus.registry.apply_switches()
        channel = output.channel if output else ClientChannel()
        media = self._media
        client = CallClient(
            progress=partial(self._report_progress, output) if output else None,
            log=partial(self._log_message, channel),
            ask=channel.ask,
            send_request=channel.ask_client,
        )
        run = RunScope(
            gate=gate,
            get_settings=self._get_pack_settings,
            store_media=lambda data, mime_type: media.put(
                data, mime_type, caller.agent, caller.token_id
            ),
        )
        if output is not None:
            run = run._replace(
                record_foreign=output.record_foreign,
                is_untrusted=lambda: output.is_untrusted,
                notify=output.notify,
            )
        return ToolContext(
            **self._agents.context_fields(caller.agent),
            working_dir=self._loaded.directories.working_dir,
            correlation_id=correlation_id,
            metadata={"_meta": meta} if meta else {},
            caller=caller,
            bus=self._bus,
            system=self._system,
            client=client,
            run=run,
        )

    def _get_pack_settings(self, pack: str) -> JsonMapping:
        settings = self._loaded.settings.tools.get(pack)
        return settings.options if settings is not None else {}

    def _report_progress(self, output: RunOutput, text: str, *numbers: float | None) -> None:
        output.report_progress(self._redact(text), *numbers)

    def _log_message(self, channel: ClientChannel, message: str, level: str) -> None:
        self._log.event("tool.log", level=LOG_LEVELS.get(level, "ERROR"), text=message)
        if channel.log is not None:
            channel.log(message, level)

    async def execute(self, gate: Gate) -> Answer:
        """Execute a run from its record: its code, or its one call."""
        record = gate.record
        caller = Caller(
            record.agent, token_id=record.token_id, actor=record.actor, client=record.client
        )
        output = RunOutput(keeps_value=True)
        context = self._make_context(caller, gate, gate.id, output)
        if record.kind == "run":
            return await self._execute_code(record.code, gate, context, output)
        call = json.loads(record.code)
        context = replace(context, account=call.get("account", ""))
        result = await self._bus.call_tool(call["tool"], call["arguments"], context)
        if (error := result.error) is not None:
            return Answer((), is_error=True, error=error_type(error), make_exception=lambda: error)
        value = as_data(result.value)
        return Answer((render(value),), load_value=lambda: value)

    async def run_in_task(self, gate: Gate, work: Awaitable[Answer]) -> Answer | None:
        """Execute a run in a task.

        Return its answer, or None if it waits for a person and `hold` has passed.
        """
        task = self._begin(gate, work)
        paused = asyncio.ensure_future(gate.paused.wait())
        try:
            await asyncio.wait({task, paused}, return_when=asyncio.FIRST_COMPLETED)
        except asyncio.CancelledError:
            task.cancel()
            await asyncio.shield(gate.end(RunState.CANCELLED, "the client cancelled it"))
            raise
        finally:
            paused.cancel()
        if task.done():
            return task.result()
        self._keep_paused(gate)
        return None

    def _begin(self, gate: Gate, work: Awaitable[Answer]) -> asyncio.Task[Answer]:
        async def finish() -> Answer:
            try:
                answer = await work
            except asyncio.CancelledError:
                if gate.stopped is None:
                    raise
                raise gate.stopped from None
            await self._finish(gate, _to_outcome(answer))
            return answer

        self._live[gate.id] = gate
        task = gate.task = asyncio.ensure_future(finish())
        task.add_done_callback(lambda done: self._forget(gate, done))
        return task

    def _forget(self, gate: Gate, task: asyncio.Task[Answer]) -> None:
        if self._live.get(gate.id) is gate:
            del self._live[gate.id]
            self.journal.active.discard(gate.id)
        if gate.timer is not None:
            gate.timer.cancel()
        if (
            not task.cancelled()
            and (error := task.exception()) is not None
            and error is not gate.stopped
        ):
            self._report("run.failed", level="ERROR", run=gate.id, text=repr(error))

    async def _finish(self, gate: Gate, outcome: RunOutcome) -> None:
        entry = gate.entry
        if self.settings.record and gate.is_replayable and not entry.is_stored:
            await entry.store(entry.take_unsaved())
        if entry.is_stored and (left := gate.recorded.unrepeated):
            reason = (
                f"the code did not repeat {pluralize(left, 'call')} with effects that it made"
                " before"
            )
            await gate.end(RunState.DIVERGED, reason)
        elif entry.is_stored and gate.stopped is None:
            await entry.save()
            state = RunState.DONE if outcome.error is None else RunState.FAILED
            await entry.set_state(state, outcome=outcome.encode() if gate.keeps_outcome else None)

    def _report(self, name: str, **fields: Any) -> None:
        """Log an event of a run. People learn that calls wait."""
        self._log.event(name, **fields)
        if name == "run.waiting":
            self._notifier.notify(fields["run"], fields["agent"], fields["text"])

    # --- people -----------------------------------------------------------------------------------

    async def wait_for_people(self, gate: Gate) -> None:
        """Mark a run as waiting. Raise if too many runs wait."""
        halted = any(call.state is CallState.UNKNOWN for call in gate.list_waiting())
        self._live[gate.id] = gate
        await gate.entry.store(again=True)
        await gate.entry.set_state(RunState.HALTED if halted else RunState.WAITING)

    def announce(self, gate: Gate) -> None:
        """Tell people that a run waits, and watch for their answers."""
        text = summarize(gate.list_waiting())
        self._report("run.waiting", run=gate.id, agent=gate.record.agent, text=text)
        self._watch()

    def check_place(self, record: RunRecord, via: str) -> None:
        """Raise unless `approvals.via` of the agent contains this place."""
        try:
            places = self._agents.get_policy(record.agent)[1]
        except ToolError as error:
            message = f"calls of agent {record.agent} cannot be approved here: {error.message}"
            raise CallRejected(
                message, hint=f"decide in {record.directory}", code="forbidden", run=record.id
            ) from None
        if via not in places:
            setting = f"agents.{record.agent}.approvals.via is [{', '.join(sorted(places))}]"
            message = (
                f"calls of agent {record.agent} cannot be approved here: approvals.via has no"
                f" {via!r} ({setting})"
            )
            raise CallRejected(message, code="forbidden", run=record.id)

    def check_starter(self, record: RunRecord) -> None:
        """Raise if the token that started the run was revoked: its calls can only be rejected."""
        if self._is_revoked(record):
            message = f"run {record.id} cannot continue: {record.actor or 'its token'} was revoked"
            hint = f"reject its calls with `onetool reject {record.id[:SHORT_ID_CHARS]}`"
            raise CallRejected(message, hint=hint, run=record.id)

    async def decide(
        self, run_id: str, decision: Decision, *, via: str, transport: str
    ) -> list[int]:
        """Apply the decision of a person, after recording it.

        Raise if the run is unknown or nothing waits.

        `via` is one of the places of `approvals.via`; the audit log records it with the transport.
        """
        record = await self._find_decidable(run_id, via)
        if decision.is_approved:
            self.check_starter(record)
        call = self.journal.call
        states = OPEN_CALLS if decision.stops_run else (CallState.PENDING,)
        waiting_calls = await call(RunTables.list_calls, run_id, states)
        waiting = [waiting_call.number for waiting_call in waiting_calls]
        chosen = None if decision.stops_run else decision.calls
        numbers = [number for number in waiting if chosen is None or number in chosen]
        can_stop = decision.stops_run and record.state not in ENDED
        if numbers or can_stop:
            grants = [
                {
                    "id": grant.id,
                    "pattern": shorten(describe_grant(grant), MAX_PATTERN_CHARS),
                    "count": grant.left,
                }
                for grant in decision.grants
            ]
            choice = (
                "approve" if decision.is_approved else "stop" if decision.stops_run else "reject"
            )
            facts = {
                "via": via,
                "transport": transport,
                "grants": grants,
                "reason": decision.reason,
            }
            await self._record_decision(
                "run.decided", record, choice, numbers, decision.by, **facts
            )
            completed = complete(decision, record, self.journal.next_expiry)
            numbers = await call(RunTables.decide, run_id, completed)
        if not numbers and not can_stop:
            raise CallRejected(
                f"no call of run {run_id} waits any more: somebody else has answered", run=run_id
            )
        await self._refresh()
        return numbers

    async def _find_decidable(self, run_id: str, via: str) -> RunRecord:
        record = await self.journal.call(RunTables.get_run, run_id)
        if record is None:
            raise ToolNotFound(f"no run {quote(run_id)}")
        self.check_place(record, via)
        return record

    async def resolve(
        self,
        run_id: str,
        numbers: Sequence[int],
        outcome: str,
        by: str,
        *,
        via: str,
        transport: str,
    ) -> None:
        """Say what happened to calls that were sent: `happened`, `not-happened` or `repeat`."""
        record = await self._find_decidable(run_id, via)
        self.check_starter(record)
        waiting = await self.journal.call(RunTables.list_calls, run_id, (CallState.UNKNOWN,))
        _check_waiting(run_id, set(numbers).difference(call.number for call in waiting))
        await self._record_decision(
            "run.resolved", record, outcome, numbers, by, via=via, transport=transport
        )
        state, result = OUTCOMES[outcome]
        for number in numbers:
            is_resolved = await self.journal.call(
                RunTables.resolve, run_id, number, state, by=by, result=result
            )
            _check_waiting(run_id, () if is_resolved else (number,))
        await self._refresh()

    async def _record_decision(
        self,
        event: str,
        record: RunRecord,
        decision: str,
        numbers: Sequence[int],
        by: str,
        **facts: Any,
    ) -> None:
        """Write a decision of a person to the audit log and the log before it is applied.

        Raise if that fails.
        """
        facts = {
            "run": record.id,
            "agent": record.agent,
            "decision": decision,
            "calls": list(numbers),
            **facts,
        }
        await self._audit_decision(by=by, **facts)
        self._report(event, by=by, **facts)

    def stop_waiting(self, gate: Gate) -> None:
        """Leave a call without a task to the one that continues it after the approval."""
        if gate.task is None:
            self._live.pop(gate.id, None)

    def _keep_paused(self, gate: Gate) -> None:
        """Keep the cell of a paused run for a while.

        If there are too many, the oldest are replayed later.
        """
        gate.ask = None
        gate.timer = asyncio.get_running_loop().call_later(self._keep_seconds, self._park, gate)
        timers = (
            (other.timer.when(), other.id)
            for other in self._live.values()
            if other.timer is not None
        )
        paused = [self._live[run_id] for _, run_id in sorted(timers)]  # oldest first
        same_agent = [other for other in paused if other.record.agent == gate.record.agent]
        for other in (*paused[:-PAUSED_IN_ALL], *same_agent[:-PAUSED_PER_AGENT]):
            self._park(other)

    def _park(self, gate: Gate) -> None:
        """End the process of a paused run. It is replayed when people have answered."""
        if gate.task is None or not gate.list_waiting():
            return
        if gate.in_flight:  # an interrupted call would have to be resolved by a person
            gate.timer = asyncio.get_running_loop().call_later(1.0, self._park, gate)
            return
        if not gate.is_replayable:
            reason = "it waited too long for a person, and a result is too large to replay it"
            self.background.start(gate.end(RunState.INTERRUPTED, reason))
        gate.stopped = Interrupted(f"run {gate.id} does not continue in this process", run=gate.id)
        gate.task.cancel()

    # --- watching the store -----------------------------------------------------------------------

    def continue_paused(self) -> None:
        """Continue runs of ended processes whenever people have answered, while this one serves."""
        self._is_server = True
        self._watch()

    def _watch(self) -> None:
        if self._watching is None or self._watching.done():
            self._watching = self.background.start(self._follow())

    async def _follow(self) -> None:
        """Follow the journal while this process serves, or a run waits."""
        expiry = 0.0
        with self._changes.watching("runs") as changed:
            while self._is_server or any(gate.list_waiting() for gate in self._live.values()):
                changed.clear()
                try:
                    if time.monotonic() >= expiry:
                        expiry = time.monotonic() + EXPIRY_SECONDS
                        await self.journal.call(RunTables.delete_expired, self.journal.store.now())
                    await self._refresh()
                except Exception as error:  # noqa: BLE001 - the next change may be readable
                    self._report(
                        "run.watch", level="ERROR", text=f"cannot read the journal: {error}"
                    )
                with suppress(TimeoutError):
                    await asyncio.wait_for(changed.wait(), EXPIRY_SECONDS)

    async def _refresh(self) -> None:
        """Continue what people have answered."""
        for gate in list(self._live.values()):
            if gate.list_waiting():
                gate.apply(await self.journal.call(RunTables.list_calls, gate.id))
                record = await self.journal.call(RunTables.get_run, gate.id)
                if record is not None and record.state is RunState.CANCELLED:
                    self._stop(gate, record)
        if self._is_server:
            await self._continue_orphans()

    def _stop(self, gate: Gate, record: RunRecord) -> None:
        """End a run that a person stopped. Its request gets an error."""
        gate.entry.record = record
        gate.stopped = CallRejected(
            f"run {gate.id} was stopped: {record.reason or 'by a person'}", run=gate.id
        )
        if gate.task is not None:
            gate.task.cancel()

    async def _continue_orphans(self) -> None:
        for run_id in await self.journal.call(RunTables.list_orphans):
            if run_id not in self._live and run_id not in self.journal.active:
                await self._continue(run_id)

    async def _continue(self, run_id: str) -> None:
        """Replay a run whose process has ended, unless it waits for a person."""
        async with self._continuing:
            record = await self.journal.call(RunTables.get_run, run_id)
            is_here = run_id in self._live or run_id in self.journal.active
            if record is not None and record.state not in ENDED and not is_here:
                await self._continue_record(record)

    async def _continue_record(self, record: RunRecord) -> None:
        is_elsewhere = record.is_replayable and record.directory != self._directory
        if is_elsewhere or 0 < record.expires <= self.journal.store.now():
            return
        if await self.journal.call(RunTables.list_calls, record.id, OPEN_CALLS):
            return
        if record.is_replayable and record.python != self._python:
            if record.state is not RunState.HALTED:
                reason = f"it was started by Python {record.python}, this is {self._python}"
                await self.journal.call(
                    RunTables.set_state, record.id, RunState.HALTED, reason=reason
                )
            return
        if not await self.journal.call(RunTables.claim, record.id, self.journal.store.owner):
            return
        calls = await self.journal.call(RunTables.list_calls, record.id)
        try:
            policy, via = self._agents.get_policy(record.agent)
            # A run that is recorded, but whose policy never asks, continues only if a person was
            # asked about a call.
            may_wait = policy.can_ask or record.kind == "call" or any(call.by for call in calls)
            reason = "" if record.is_replayable and may_wait else "its process ended"
            reason = (
                f"{record.actor or 'its token'} was revoked" if self._is_revoked(record) else reason
            )
        except ToolError as error:
            reason = error.message
        if reason:
            reason = (
                f"{reason}; it has made {pluralize(len(calls), 'call')} with effects:"
                f" {summarize(calls)}"
            )
            await self.journal.call(
                RunTables.set_state, record.id, RunState.INTERRUPTED, reason=reason
            )
            return
        record = replace(record, owner=self.journal.store.owner, state=RunState.RUNNING)
        await self.journal.call(RunTables.set_state, record.id, RunState.RUNNING)
        labels = SessionLabels()
        labels.merge(None)  # nobody knows what its client has received
        gate = Gate(self, record, policy, labels, via=via, recorded=calls, hold=math.inf)
        self._begin(gate, self.execute(gate))
        self._report("run.continued", run=record.id, agent=record.agent, calls=len(calls))

    # --- results ----------------------------------------------------------------------------------

    async def get_result(self, run_id: str, agent: str, token_id: str, seconds: float) -> Any:
        """Return the value of a run, or text that says what it waits for.

        Raise the error of a failed run.
        """
        outcome = await self.wait_for_end(run_id, agent, token_id, seconds)
        if isinstance(outcome, str):
            return outcome
        if outcome.error is not None:
            raise restore(outcome.error)
        return "\n".join(outcome.blocks) if outcome.is_cut else outcome.value

    async def wait_for_end(
        self,
        run_id: str,
        agent: str,
        token_id: str,
        seconds: float,
        while_running: float = 0.0,
    ) -> "RunOutcome | str":
        """Return the outcome of a run.

        If it has not ended after this time, return text that says why.

        While the run does not wait for a person, wait for `while_running` seconds, if that is
        longer.
        """
        started = time.monotonic()
        while True:
            record = await self.find_own(run_id, agent, token_id)
            if record.state in ENDED:
                return RunOutcome.read(record)
            if run_id not in self._live:
                await self._continue(record.id)
            waiting = await self.journal.call(RunTables.list_calls, run_id, OPEN_CALLS)
            if time.monotonic() - started >= (seconds if waiting else max(seconds, while_running)):
                break
            await asyncio.sleep(RESULT_POLL_SECONDS)
        if waiting:
            return describe_pause(run_id, waiting)
        return f"running: run {run_id} has not ended yet. {continue_later(run_id)}"

    async def find_own(self, run_id: str, agent: str, token_id: str) -> RunRecord:
        """Return a run of this agent and token; `last` is the last recorded one that worked."""
        if run_id == LAST:
            done = await self.journal.call(RunTables.list_runs, (RunState.DONE,), agent=agent)
            own = (
                run
                for run in done
                if run.kind == "run" and run.outcome and token_id in {"", run.token_id}
            )
            run_id = next((run.id for run in own), LAST)
        record = await self.journal.call(RunTables.get_run, run_id)
        if record is None or not record.is_visible(agent, token_id or None):
            raise ToolNotFound(
                f"no run {quote(run_id)}",
                hint="runs are kept for a week, for the agent that started them",
            )
        return record

    async def answer_question(
        self, state: str, agent: str, token_id: str, approver: Approver
    ) -> "RunOutcome | str":
        """Apply the answer to a question that was asked before a restart, and continue its run."""
        asked = json.loads(state)
        run_id = asked["run"]
        await self.find_own(run_id, agent, token_id)
        calls = await self.journal.call(RunTables.list_calls, run_id)
        shown = [call for call in calls if asked["calls"].get(str(call.number)) == identify(call)]
        if len(shown) == len(asked["calls"]) and any(
            call.state is CallState.PENDING for call in shown
        ):
            question = await anyio.to_thread.run_sync(Question, run_id, agent, shown)
            decision = question.read(await approver.ask(question), approver.name)
            await self.decide(run_id, decision, via=approver.via, transport=approver.transport)
        return await self.wait_for_end(
            run_id, agent, token_id, self.settings.wait, WHILE_RUNNING_SECONDS
        )


def _check_waiting(run_id: str, others: Collection[int]) -> None:
    """Raise if a person says what happened to calls that do not wait for that."""
    if others:
        raise CallRejected(
            f"call {min(others)} of run {run_id} does not wait for this answer", run=run_id
        )


def _make_id() -> str:
    return f"r_{os.urandom(16).hex()}"


def _refuse(error: ToolError) -> Answer:
    """Return the answer for a run that did not start, or that a person stopped."""
    return Answer((f"{type(error).__name__}: {error}",), is_error=True, error=error.type)


def _to_outcome(answer: Answer) -> RunOutcome:
    error = None if answer.make_exception is None else describe(answer.make_exception())
    if answer.is_error and error is None:
        error = {"type": answer.error, "class": ToolError.__name__, "message": answer.text}
    return RunOutcome(answer.blocks, None if error else answer.value, error, answer.media)


def _split_answer(answer: Answer | None, output: RunOutput) -> tuple[str | None, str | None]:
    """Return the printed output and the value or error, as the client sees them."""
    if answer is None:
        return None, None
    blocks = list(answer.blocks)
    printed = blocks.pop(0)[:MAX_EVENT_CHARS] if output.printed_bytes and len(blocks) > 1 else None
    return printed, "\n".join(blocks)[:MAX_EVENT_CHARS]


def _works_without_settings(command: object) -> bool:
    try:
        return (
            isinstance(command, str)
            and WORKS_WITHOUT_SETTINGS.fullmatch(fence_processor.strip(command)) is not None
        )
    except ToolError:
        return False
