"""Events of calls and runs. Listeners run synchronously, must not block, and cannot make a call fail.

Texts that come from code (the name of a call, the command of a run) are redacted and cut here, before any listener
sees them. Arguments and values are passed on as they are; only the audit log shows arguments, and redacts them.
"""

import os
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from onetool._tool import Tool
from onetool.context import ToolContext
from onetool.redact import Redactor

RUN = "run"  # the name of a run, where a call has the name of its tool
MAX_NAME = 200
MAX_COMMAND = 5000


# Named tuples, because a frozen dataclass takes four times as long to make.
class CallStarted(NamedTuple):
    """A call that was asked for, whether there is such a tool or not. `call_id` is the same when it finishes."""

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
    """`error` is the type of what went wrong; `is_allowed` is None if the call failed before that was decided."""

    call_id: int
    name: str
    context: ToolContext
    seconds: float
    error: str | None
    tool: Tool | None = None
    args: Mapping[str, Any] | None = None
    is_allowed: bool | None = None
    value: Any = None
    admitted: Any = None  # what the step that admits calls returned
    at: float = 0.0  # when it began, in seconds since 1970

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

    @property
    def name(self) -> str:
        return RUN

    @property
    def kind(self) -> str:
        return "completed" if self.error is None else "failed"


Event = CallStarted | CallFinished | RunStarted | RunFinished
EVENTS: tuple[type[Event], ...] = (CallStarted, CallFinished, RunStarted, RunFinished)
Listener = Callable[[Any], None]


class Events:
    def __init__(self) -> None:
        self.redact = Redactor()
        self.session = os.urandom(8).hex()  # tells this process from others
        self._listeners: dict[type[Event], dict[object, Listener]] = {kind: {} for kind in EVENTS}
        self._last_id = 0

    def subscribe(self, listener: Listener, *kinds: type[Event]) -> Callable[[], None]:
        """Call the listener with every event of these kinds, or of all. Return a function that ends it."""
        subscription = object()
        chosen = kinds or EVENTS
        for kind in chosen:
            self._listeners[kind][subscription] = listener

        def end() -> None:
            for kind in chosen:
                self._listeners[kind].pop(subscription, None)

        return end

    def run_of(self, event: Event) -> str:
        """Return the id of the run that the event is part of. A call without a context of its own is one by itself."""
        return event.context.correlation_id or f"{self.session}-{event.call_id}"

    def start_call(self, name: str, context: ToolContext, *, is_known: bool) -> tuple[int, str]:
        """Return the number of the call and the name to show. Code may ask for any name, even one that is a secret."""
        self._last_id += 1
        shown = name if is_known else self.redact.beginning(name, MAX_NAME)
        if self._listeners[CallStarted]:
            self.tell(CallStarted(self._last_id, shown, context))
        return self._last_id, shown

    def start_run(self, context: ToolContext, command: object) -> int:
        self._last_id += 1
        if self._listeners[RunStarted]:
            text = self.redact.beginning(command, MAX_COMMAND) if isinstance(command, str) else ""
            self.tell(RunStarted(self._last_id, context, text))
        return self._last_id

    def has_listeners(self, kind: type[Event]) -> bool:
        return bool(self._listeners[kind])

    def tell(self, event: Event) -> None:
        listeners = self._listeners[type(event)]
        for subscription, listener in list(listeners.items()):
            if subscription in listeners:  # another listener may have ended it
                try:  # noqa: SIM105 - `suppress` takes three times as long
                    listener(event)
                except (Exception, SystemExit):  # noqa: BLE001, S110 - a listener cannot make a call fail
                    pass
