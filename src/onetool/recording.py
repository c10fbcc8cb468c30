"""Listeners that keep what happened: log, audit log, statistics, shapes of results. They decide nothing.

Each subscribes on its own, so that one that fails does not keep the others from their work.
"""

import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from onetool._tool import Tool
from onetool.audit import Audit
from onetool.bus.events import CallFinished, Events, RunFinished, RunStarted
from onetool.context import ToolContext
from onetool.logging import Log
from onetool.runner.answer import Answer, Journal
from onetool.stats.record import CallRecord, RunRecord, SessionRecord, UseRecord
from onetool.stats.tokens import tokens_of, tokens_of_text
from onetool.stores import Stores
from onetool.util.gc_pauses import no_gc_pauses
from onetool.util.raw_json import RawJson

SEEN_AGAIN = {"ot.load", "ot.result"}  # what they return was counted when it was made


class Notices:
    """What people should know with the next answer: `everybody` once, an agent what was added for it."""

    def __init__(self) -> None:
        self.everybody: tuple[object, ...] = ()
        self._by_agent: dict[str, list[str]] = {}

    def add(self, agent: str, text: str) -> None:
        self._by_agent.setdefault(agent, []).append(text)

    def take(self, agent: str) -> list[str]:
        everybody, self.everybody = self.everybody, ()
        return [f"Note: {notice}" for notice in (*everybody, *self._by_agent.pop(agent, ()))]


class Outcome:
    """What became of a run; without an answer it was cancelled."""

    answer: Answer | None = None


@dataclass(slots=True)
class _Tally:
    """What a run that is under way has done so far."""

    command: str
    result_tokens: int = 0
    calls: int = 0
    failed: int = 0


class Recording:
    def __init__(self, events: Events) -> None:
        self._events = events
        self._tallies: dict[str, _Tally] = {}  # by the ids of their runs
        for listener in (self._log_call, self._audit_call, self._count_call, self._learn_shape):
            events.subscribe(listener, CallFinished)
        events.subscribe(self._start_run, RunStarted)
        events.subscribe(self._log_run, RunFinished)
        events.subscribe(self._count_run, RunFinished)

    def keep_in(self, log: Log, audit: Audit, stores: Stores) -> None:
        """From now on."""
        self._log, self._audit, self._stores = log, audit, stores

    @contextmanager
    def run(self, context: ToolContext, journal: Journal, command: object) -> Iterator[Outcome]:
        """Tell of the start and the end of a run."""
        outcome, at, started = Outcome(), time.time(), time.perf_counter()
        call_id = self._events.start_run(context, command)
        try:
            yield outcome
        finally:
            answer = outcome.answer
            error = "cancelled" if answer is None else answer.error
            tokens = 0 if answer is None else sum(map(tokens_of_text, answer.blocks))
            seconds, calls = time.perf_counter() - started, len(journal.calls)
            self._events.tell(RunFinished(call_id, context, seconds, error, calls, tokens, journal.request_id, at))

    def begin_session(
        self, tools: Iterable[Tool], stored: Iterable[tuple[str, int]], own_tokens: int, *, agent: str, client: str
    ) -> None:
        """A client has come that would otherwise have loaded the definition of every tool; `client` tells it apart.

        `stored` are the tokens of stored definitions.
        """
        session = f"{self._events.session}/{client}" if client else self._events.session
        self._stores.recorder.add(SessionRecord(session, agent, {**dict(stored), **_definitions(tools)}, own_tokens))

    # --- calls ----------------------------------------------------------------------------------------------------

    def _log_call(self, event: CallFinished) -> None:
        name = event.tool.name if event.tool else event.name
        args, logged = event.args or {}, event.tool.logged if event.tool else ()
        outcome = {"status": "ok"} if event.error is None else {"status": "error", "error_type": event.error}
        self._log.event(
            name if name.startswith("ot.") else "tool.call",
            duration_ms=round(event.seconds * 1000, 3),
            **outcome,
            correlation_id=event.context.correlation_id,
            agent=event.context.agent_id,
            tool=name,
            **{name: args[name] for name in logged if args.get(name) not in (None, "")},
        )

    def _audit_call(self, event: CallFinished) -> None:  # each reload may bring another audit log
        self._audit.finish(event)

    def _count_call(self, event: CallFinished) -> None:
        tool, run_id, context, session = event.tool, self._events.run_of(event), event.context, self._events.session
        if tool is not None and tool.continues(event.args or {}):
            return
        is_counted = event.error is None and tool is not None and tool.name not in SEEN_AGAIN
        tokens = tokens_of(event.value) if is_counted else 0
        add, name, failed = (
            self._stores.recorder.add,
            event.name if tool is None else tool.name,
            event.error is not None,
        )
        if tool is not None and tool.identity and event.is_allowed:
            add(UseRecord(tool.identity))
        add(CallRecord(name, context.agent_id, session, run_id, event.seconds, event.error, tokens, event.at))
        if (tally := self._tallies.get(run_id)) is not None:
            tally.result_tokens += tokens
            tally.calls += 1
            tally.failed += failed
            return
        facts = run_id, context.agent_id, session, event.seconds, event.error, 1, 0, 0, event.at, "call", name
        add(RunRecord(*facts, client=context.client, calls=1, failed=int(failed)))

    def _learn_shape(self, event: CallFinished) -> None:
        """Learn what a tool returns that does not declare it; the help of `ot` says what its own tools return."""
        tool, value = event.tool, event.value
        if tool is None or event.error is not None or tool.output is not None or tool.pack == "ot":
            return
        if not isinstance(value, RawJson) and not tool.continues(event.args or {}):
            self._stores.shapes.learn(tool.name, value)

    # --- runs -----------------------------------------------------------------------------------------------------

    def _start_run(self, event: RunStarted) -> None:
        self._tallies[event.context.correlation_id] = _Tally(event.command)

    def _log_run(self, event: RunFinished) -> None:
        asked = {"request_id": event.request_id} if event.request_id else {}
        fields = {"correlation_id": event.context.correlation_id, "agent": event.context.agent_id, **asked}
        self._log.ended("run", event.seconds, event.error, fields)

    def _count_run(self, event: RunFinished) -> None:
        context = event.context
        tally = self._tallies.pop(context.correlation_id, _Tally(""))
        self._stores.recorder.add(
            RunRecord(
                context.correlation_id,
                context.agent_id,
                self._events.session,
                event.seconds,
                event.error,
                event.calls,
                event.answer_tokens,
                tally.result_tokens,
                event.at,
                client=context.client,
                command=tally.command,
                calls=tally.calls,
                failed=tally.failed,
            )
        )


@no_gc_pauses()
def _definitions(tools: Iterable[Tool]) -> dict[str, int]:
    """The tokens that each tool would cost a client that was connected to it directly."""
    return {
        tool.name: tokens_of({"name": tool.name, "description": tool.description, "inputSchema": tool.input.json})
        for tool in tools
        if tool.enabled and tool.pack != "ot"
    }
