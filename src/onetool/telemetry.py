"""Event listeners for the log, the audit log, statistics and result shapes.

Each listener subscribes separately, so that an error in one does not affect the others.
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

from onetool.core.bus.events import RUN, CallFinished, Events, RunFinished, RunStarted
from onetool.core.context import ToolContext
from onetool.core.tool import Tool
from onetool.logging import Log
from onetool.state.audit import AuditLog
from onetool.state.storage import State
from onetool.stats.details import (
    BYTES_PER_TOKEN,
    MAX_CALLS,
    DetailRecord,
    FailureRecord,
    count_tokens,
    describe,
    encode_value,
)
from onetool.stats.record import CallRecord, RunRecord, SessionRecord, UseRecord
from onetool.util.gc_pauses import no_gc_pauses
from onetool.util.raw_json import RawJson

ALREADY_COUNTED = {"ot.load", "ot.result"}  # their results were counted when they were created
MAX_ERROR_CHARS = 20_000  # of an error message, before it is redacted


@dataclass(slots=True)
class _RunCounts:
    """Counts of a run in progress."""

    command: str
    result_tokens: int = 0
    calls: int = 0
    failed: int = 0
    cost: float = 0.0
    error_types: set[str] = field(default_factory=set)  # of failed calls


class Telemetry:
    def __init__(self, events: Events, get_cost: Callable[[Tool], float] = lambda _tool: 0.0) -> None:
        self._events = events
        self._get_cost = get_cost
        self._counts: dict[str, _RunCounts] = {}  # by run ID
        for listener in (self._log_call, self._audit_call, self._count_call, self._learn_shape):
            events.subscribe(listener, CallFinished)
        events.subscribe(self._start_run, RunStarted)
        events.subscribe(self._log_run, RunFinished)
        events.subscribe(self._count_run, RunFinished)

    def configure(self, log: Log, audit: AuditLog, state: State) -> None:
        """Use these logs and this state from now on."""
        self._log = log
        self._audit = audit
        self._state = state

    def begin_session(
        self, tools: Iterable[Tool], stored: Iterable[tuple[str, int]], own_tokens: int, agent: str, client: str
    ) -> None:
        """Record a client session, in which the client would otherwise have loaded the definition of every tool.

        `client` identifies the client; `stored` are the tokens of stored definitions.
        """
        session = f"{self._events.session}/{client}" if client else self._events.session
        self._state.recorder.add(
            SessionRecord(session, agent, {**dict(stored), **_count_definition_tokens(tools)}, own_tokens)
        )

    # --- calls ----------------------------------------------------------------------------------------------------

    def _log_call(self, event: CallFinished) -> None:
        name = event.tool.name if event.tool else event.name
        args = event.args or {}
        logged = event.tool.logged if event.tool else ()
        outcome = {"status": "ok"} if event.error is None else {"status": "error", "error_type": event.error}
        self._log.event(
            name if name.startswith("ot.") else "tool.call",
            duration_ms=round(event.seconds * 1000, 3),
            **outcome,
            correlation_id=event.context.correlation_id,
            agent=event.context.agent_id,
            **_describe_actor(event.context),
            **({"account": event.context.account} if event.context.account else {}),
            tool=name,
            **{name: args[name] for name in logged if args.get(name) not in (None, "")},
        )

    def _audit_call(self, event: CallFinished) -> None:  # a reload may replace the audit log
        self._audit.finish(event)

    def _count_call(self, event: CallFinished) -> None:
        tool = event.tool
        run_id = self._events.run_id(event)
        context = event.context
        session = self._events.session
        if tool is not None and tool.continues(event.args or {}):
            return
        is_counted = event.error is None and tool is not None and tool.name not in ALREADY_COUNTED
        text, size = encode_value(event.value) if event.error is None else (None, 0)
        tokens = -(-size // BYTES_PER_TOKEN) if is_counted else 0
        name = event.name if tool is None else tool.name
        failed = event.error is not None
        add = self._state.recorder.add
        counts = self._counts.get(run_id)
        if tool is not None and tool.identity and event.is_allowed:
            add(UseRecord(tool.identity))
        fields = context.agent_id, session, run_id, event.seconds, event.error, tokens, event.at, event.call_id
        add(CallRecord(name, *fields))
        cost = self._get_cost(tool) if tool is not None and event.is_allowed else 0.0
        self._record_values(event, run_id, name, text, 0 if counts is None else counts.calls)
        if counts is not None:
            counts.result_tokens += tokens
            counts.calls += 1
            counts.failed += failed
            counts.cost += cost
            counts.error_types.update([event.error] if event.error is not None else ())
            return
        run = RunRecord(run_id, context.agent_id, session, event.seconds, event.error, 1, tokens, tokens, event.at)
        add(_add_origin(run, context)._replace(kind="call", name=name, calls=1, failed=int(failed), cost=cost))

    def _record_values(self, event: CallFinished, run_id: str, name: str, result: str | None, number: int) -> None:
        """Record the arguments and the result or error of a call, for people who look at its run."""
        recorder = self._state.recorder
        context = event.context
        redact = self._events.redact.redact_prefix
        message = None if event.error is None else describe(event.failure or event.error)[:MAX_ERROR_CHARS]
        if message is not None:
            names = context.agent_id, context.actor, context.token_id, name
            recorder.add(FailureRecord(*names, str(event.error), message, run_id, redact, event.at))
        if recorder.enabled and recorder.keeps_values and number < MAX_CALLS:
            arguments = None if event.args is None else encode_value(dict(event.args))[0]
            values = {"arguments": arguments, "result": result, "error": message}
            recorder.add(DetailRecord(run_id, event.call_id, redact, **values, at=event.at))

    def _learn_shape(self, event: CallFinished) -> None:
        """Learn the result shape of a tool that does not declare it. Tools of `ot` are documented in its help."""
        tool = event.tool
        value = event.value
        if tool is None or event.error is not None or tool.output is not None or tool.pack == "ot":
            return
        if not isinstance(value, RawJson) and not tool.continues(event.args or {}):
            self._state.shapes.learn(tool.name, value)

    # --- runs -----------------------------------------------------------------------------------------------------

    def _start_run(self, event: RunStarted) -> None:
        self._counts[event.context.correlation_id] = _RunCounts(event.command)

    def _log_run(self, event: RunFinished) -> None:
        request = {"request_id": event.request_id} if event.request_id else {}
        identity = {"agent": event.context.agent_id, **_describe_actor(event.context)}
        fields = {"correlation_id": event.context.correlation_id, **identity, **request}
        self._log.log_end("run", event.seconds, event.error, fields)

    def _count_run(self, event: RunFinished) -> None:
        context = event.context
        counts = self._counts.pop(context.correlation_id, _RunCounts(""))
        run_id = context.correlation_id
        add = self._state.recorder.add
        error = event.error
        tokens = (event.answer_tokens, counts.result_tokens)
        session = self._events.session
        run = RunRecord(run_id, context.agent_id, session, event.seconds, error, event.calls, *tokens, event.at)
        run = run._replace(command=counts.command, calls=counts.calls, failed=counts.failed, cost=counts.cost)
        add(_add_origin(run, context))
        redact = self._events.redact.redact_prefix
        result, message = (event.answer, None) if error is None else (None, event.answer or error)
        if message is not None and error is not None and error not in counts.error_types:
            first = message.partition("\n")[0]
            names = context.agent_id, context.actor, context.token_id, RUN
            add(FailureRecord(*names, error, first, run_id, redact, event.at))
        add(DetailRecord(run_id, 0, redact, event.printed, None, result, message, event.at))


def _add_origin(run: RunRecord, context: ToolContext) -> RunRecord:
    return run._replace(
        client=context.caller.client,
        actor=context.actor,
        token_id=context.token_id,
        directory=str(context.working_dir),
    )


def _describe_actor(context: ToolContext) -> dict[str, str]:
    return {"actor": context.actor} if context.actor else {}


@no_gc_pauses()
def _count_definition_tokens(tools: Iterable[Tool]) -> dict[str, int]:
    """Return the tokens that each tool definition would cost a client that loads it directly."""
    return {
        tool.name: count_tokens({"name": tool.name, "description": tool.description, "inputSchema": tool.input.json})
        for tool in tools
        if tool.enabled and tool.pack != "ot"
    }
