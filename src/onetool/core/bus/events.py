"""Events of calls and runs, and the OpenTelemetry spans that are made from them.

Listeners run synchronously, must not block, and cannot make a call fail.

Names of calls and commands of runs are redacted and truncated before listeners see them. Arguments,
values and errors are passed unchanged; the audit log and the run history redact them.
"""

import os
from collections.abc import Callable
from importlib.util import find_spec
from typing import Any, NamedTuple

from onetool.core.tool import Tool
from onetool.state.run_records import RunRecord
from onetool.util.context import ToolContext
from onetool.util.redact import Redactor
from onetool_child.json_types import JsonMapping

RUN = "run"  # used as the name of a run
MAX_NAME_CHARS = 200
MAX_COMMAND_CHARS = 5000
Listener = Callable[[Any], None]


# Named tuples, because a frozen dataclass takes four times as long to create.
class CallStarted(NamedTuple):
    """A call was requested; the tool may not exist. `CallFinished` has the same `call_id`."""

    call_id: int
    name: str
    context: ToolContext

    @property
    def kind(self) -> str:
        return "called"

    @property
    def error(self) -> None:
        return None


class CallFinished(NamedTuple):
    """A call ended.

    `error` is the error type; `is_allowed` is None if the call failed before authorization.
    """

    call_id: int
    name: str
    context: ToolContext
    seconds: float
    error: str | None
    tool: Tool | None = None
    args: JsonMapping | None = None
    is_allowed: bool | None = None
    value: Any = None
    admitted: Any = None  # the return value of `ToolBus.admit`
    at: float = 0.0  # start time, in seconds since 1970
    failure: Exception | None = None  # the error itself

    @property
    def kind(self) -> str:
        return "completed" if self.error is None else "failed"


class RunStarted(NamedTuple):
    call_id: int
    context: ToolContext
    command: str = ""

    @property
    def name(self) -> str:
        return RUN

    @property
    def kind(self) -> str:
        return "called"

    @property
    def error(self) -> None:
        return None


class RunFinished(NamedTuple):
    call_id: int
    context: ToolContext
    seconds: float
    error: str | None
    calls: int = 0
    answer_tokens: int = 0
    request_id: str = ""
    at: float = 0.0
    printed: str | None = None  # as the client sees it, like the answer: the value or the error
    answer: str | None = None

    @property
    def name(self) -> str:
        return RUN

    @property
    def kind(self) -> str:
        return "completed" if self.error is None else "failed"


Event = CallStarted | CallFinished | RunStarted | RunFinished
EVENTS: tuple[type[Event], ...] = (CallStarted, CallFinished, RunStarted, RunFinished)


class Events:
    def __init__(self) -> None:
        self.redact = Redactor()
        self.session = os.urandom(8).hex()  # identifies this process
        self._listeners: dict[type[Event], dict[object, Listener]] = {kind: {} for kind in EVENTS}
        self._last_id = 0

    def subscribe(self, listener: Listener, *kinds: type[Event]) -> Callable[[], None]:
        """Call the listener for every event of these kinds, or all.

        Return a function that unsubscribes.
        """
        subscription = object()
        selected = kinds or EVENTS
        for kind in selected:
            self._listeners[kind][subscription] = listener

        def unsubscribe() -> None:
            for kind in selected:
                self._listeners[kind].pop(subscription, None)

        return unsubscribe

    def run_id(self, event: Event) -> str:
        """Return the ID of the run of an event. A call without a run is a run of its own."""
        return event.context.correlation_id or f"{self.session}-{event.call_id}"

    def build_run(self, event: Event, at: float) -> RunRecord:
        """Return the record of the run of an event, which started at this time."""
        context = event.context
        return RunRecord(
            id=self.run_id(event),
            agent=context.agent_id,
            kind="run" if isinstance(event, RunStarted | RunFinished) else "call",
            name=event.name,
            token_id=context.token_id,
            actor=context.actor,
            client=context.caller.client,
            directory=str(context.working_dir),
            at=at,
            session=self.session,
        )

    def start_call(self, name: str, context: ToolContext, *, is_known: bool) -> tuple[int, str]:
        """Return the call ID and name; an unknown name is redacted, because it may be secret."""
        self._last_id += 1
        redacted = name if is_known else self.redact.redact_prefix(name, MAX_NAME_CHARS)
        if self._listeners[CallStarted]:
            self.emit(CallStarted(self._last_id, redacted, context))
        return self._last_id, redacted

    def start_run(self, context: ToolContext, command: object) -> int:
        self._last_id += 1
        if self._listeners[RunStarted]:
            text = (
                self.redact.redact_prefix(command, MAX_COMMAND_CHARS)
                if isinstance(command, str)
                else ""
            )
            self.emit(RunStarted(self._last_id, context, text))
        return self._last_id

    def has_listeners(self, kind: type[Event]) -> bool:
        return bool(self._listeners[kind])

    def emit(self, event: Event) -> None:
        listeners = self._listeners[type(event)]
        for subscription, listener in list(listeners.items()):
            if subscription in listeners:  # another listener may have unsubscribed it
                try:  # noqa: SIM105 - `suppress` takes three times as long
                    listener(event)
                except (  # noqa: S110 - a listener cannot make a call fail
                    Exception,  # noqa: BLE001 - anything may be raised
                    SystemExit,
                ):
                    pass


# --- tracing --------------------------------------------------------------------------------------


class Tracing:
    """A listener that opens a span when a call starts and closes it when the call finishes."""

    def __init__(self, events: Events) -> None:
        self._events = events
        self._open: dict[int, tuple[Any, Any]] = {}
        self._trace: Any = None
        self.is_decided = False  # whether it subscribed, or never will

    def detect(self) -> None:
        """Subscribe if the program has configured the SDK. The SDK is searched for once."""
        if self._trace is None and not self._find_sdk():
            self.is_decided = True
            return
        if not isinstance(self._trace.get_tracer_provider(), self._trace.ProxyTracerProvider):
            self.is_decided = True
            self._events.subscribe(self._start, CallStarted)
            self._events.subscribe(self._finish, CallFinished)

    def _find_sdk(self) -> bool:
        try:
            if find_spec("opentelemetry.sdk") is None:
                return False
            from opentelemetry import context, trace
        except ImportError:
            return False
        self._trace = trace
        self._context = context
        return True

    def _start(self, event: CallStarted) -> None:
        """Open a span. It never contains arguments or values, which may be secret."""
        trace = self._trace
        agent = event.context.agent_id
        run = event.context.correlation_id
        attributes = {"onetool.tool": event.name, "onetool.agent": agent, "onetool.run": run}
        span = trace.get_tracer("onetool").start_span(f"tool {event.name}", attributes=attributes)
        self._open[event.call_id] = span, self._context.attach(trace.set_span_in_context(span))

    def _finish(self, event: CallFinished) -> None:
        if event.call_id not in self._open:
            return
        span, token = self._open.pop(event.call_id)
        if event.error is not None:
            span.set_attribute("error.type", event.error)
            span.set_status(self._trace.Status(self._trace.StatusCode.ERROR, event.error))
        self._context.detach(token)
        span.end()
