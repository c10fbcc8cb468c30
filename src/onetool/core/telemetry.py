"""Event listeners for the log, the audit log, statistics and result shapes.

Each listener subscribes separately, so that an error in one does not affect the others.
"""

from collections.abc import Callable, Iterable

from onetool.core.audit import AuditLog
from onetool.core.bus.events import RUN, CallFinished, Events, RunFinished, RunStarted
from onetool.core.tool import Tool
from onetool.state.run_records import RunRecord, StoredValues, get_end_state
from onetool.state.stats.details import (
    BYTES_PER_TOKEN,
    MAX_CALLS,
    FailureRecord,
    count_tokens,
    describe,
    encode_value,
)
from onetool.state.stats.record import CallRecord, SessionRecord, UseRecord
from onetool.state.storage import State
from onetool.util.context import ToolContext
from onetool.util.gc_pauses import no_gc_pauses
from onetool.util.large_data import RawJson
from onetool.util.logging import Log

ALREADY_COUNTED = {"ot.load", "ot.result"}  # their results were counted when they were created
MAX_ERROR_CHARS = 20_000  # of an error message, before it is redacted


class Telemetry:
    def __init__(
        self, events: Events, get_cost: Callable[[Tool], float] = lambda _tool: 0.0
    ) -> None:
        self._events = events
        self._get_cost = get_cost
        self._active: dict[str, RunRecord] = {}  # by run ID
        self._error_types: dict[str, set[str]] = {}  # of failed calls, by run ID
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
        self,
        tools: Iterable[Tool],
        stored: Iterable[tuple[str, int]],
        own_tokens: int,
        agent: str,
        client: str,
    ) -> None:
        """Record a client session, which would otherwise have loaded every tool definition.

        `client` identifies the client; `stored` are the tokens of stored definitions.
        """
        session = f"{self._events.session}/{client}" if client else self._events.session
        self._state.recorder.add(
            SessionRecord(
                session, agent, {**dict(stored), **_count_definition_tokens(tools)}, own_tokens
            )
        )

    # --- calls ------------------------------------------------------------------------------------

    def _log_call(self, event: CallFinished) -> None:
        name = event.tool.name if event.tool else event.name
        args = event.args or {}
        logged = event.tool.logged if event.tool else ()
        outcome = (
            {"status": "ok"}
            if event.error is None
            else {"status": "error", "error_type": event.error}
        )
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
        add = self._state.recorder.add
        active = self._active.get(run_id)
        if tool is not None and tool.identity and event.is_allowed:
            add(UseRecord(tool.identity))
        call = CallRecord(
            name,
            context.agent_id,
            session,
            run_id,
            event.seconds,
            event.error,
            tokens,
            event.at,
            event.call_id,
        )
        call.values = self._build_values(event, call, text, 0 if active is None else active.calls)
        add(call)
        run = active or self._events.build_run(event, event.at)
        run.result_tokens += tokens
        run.calls += 1
        run.failed += event.error is not None
        run.cost += self._get_cost(tool) if tool is not None and event.is_allowed else 0.0
        if active is None:
            run.name = name
            run.round_trips = 1
            run.answer_tokens = tokens
            self._end_run(run, event.seconds, event.error)
        elif event.error is not None:
            self._error_types[run_id].add(event.error)

    def _end_run(self, run: RunRecord, seconds: float, error: str | None) -> None:
        run.seconds = seconds
        run.error_type = error
        run.state = get_end_state(error)
        self._state.recorder.add(run)

    def _build_values(
        self, event: CallFinished, call: CallRecord, result: str | None, number: int
    ) -> StoredValues | None:
        """Return what people who look at the run see of a call. A failure is also counted."""
        recorder = self._state.recorder
        message = None
        if event.error is not None:
            message = describe(event.failure or event.error)[:MAX_ERROR_CHARS]
            self._add_failure(event, call.name, message, call.run_id)
        if not (recorder.enabled and recorder.keeps_values) or number >= MAX_CALLS:
            return None
        arguments = None if event.args is None else encode_value(dict(event.args))[0]
        return StoredValues(arguments=arguments, result=result, error=message)

    def _add_failure(
        self, event: CallFinished | RunFinished, name: str, message: str, run_id: str
    ) -> None:
        context = event.context
        names = context.agent_id, context.actor, context.token_id, name
        self._state.recorder.add(FailureRecord(*names, str(event.error), message, run_id, event.at))

    def _learn_shape(self, event: CallFinished) -> None:
        """Learn the result shape of a tool that does not declare it.

        Tools of `ot` are documented in its help.
        """
        tool = event.tool
        value = event.value
        if tool is None or event.error is not None or tool.output is not None or tool.pack == "ot":
            return
        if not isinstance(value, RawJson) and not tool.continues(event.args or {}):
            self._state.shapes.learn(tool.name, value)

    # --- runs -------------------------------------------------------------------------------------

    def _start_run(self, event: RunStarted) -> None:
        run = self._events.build_run(event, 0.0)
        run.code = event.command
        self._active[run.id] = run
        self._error_types[run.id] = set()

    def _log_run(self, event: RunFinished) -> None:
        request = {"request_id": event.request_id} if event.request_id else {}
        identity = {"agent": event.context.agent_id, **_describe_actor(event.context)}
        fields = {"correlation_id": event.context.correlation_id, **identity, **request}
        self._log.log_end("run", event.seconds, event.error, fields)

    def _count_run(self, event: RunFinished) -> None:
        run = self._active.pop(self._events.run_id(event), None) or self._events.build_run(
            event, event.at
        )
        error_types = self._error_types.pop(run.id, set())
        error = event.error
        run.at = event.at
        run.round_trips = event.calls
        run.answer_tokens = event.answer_tokens
        if error is None:
            run.values = StoredValues(printed=event.printed, result=event.answer)
        else:
            message = event.answer or error
            run.values = StoredValues(printed=event.printed, error=message)
            if error not in error_types:
                self._add_failure(event, RUN, message.partition("\n")[0], run.id)
        self._end_run(run, event.seconds, error)


def _describe_actor(context: ToolContext) -> dict[str, str]:
    return {"actor": context.actor} if context.actor else {}


@no_gc_pauses()
def _count_definition_tokens(tools: Iterable[Tool]) -> dict[str, int]:
    """Return the tokens that each tool definition would cost a client that loads it directly."""
    return {
        tool.name: count_tokens(
            {"name": tool.name, "description": tool.description, "inputSchema": tool.input.json}
        )
        for tool in tools
        if tool.enabled and tool.pack != "ot"
    }
