"""What a program can hear of the calls on a bus: each is called, and then completed or failed. Nobody is waited for."""

import contextlib
from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

from ot.context import ToolContext


@dataclass(frozen=True, slots=True)
class ToolEvent:
    """`call_id` is the same for all that is told of one call; `error` is the type of what went wrong."""

    kind: Literal["called", "completed", "failed"]
    call_id: int
    name: str
    context: ToolContext
    seconds: float = 0.0
    error: str | None = None
    detail: str = ""  # of a run, the beginning of its code


RUN = "run"  # the name under which a whole run is told
LONGEST_DETAIL = 5000
Listener = Callable[[ToolEvent], None]


class Events:
    def __init__(self) -> None:
        self._listeners: dict[object, Listener] = {}
        self._last_id = 0

    def subscribe(self, listener: Listener) -> Callable[[], None]:
        """Have the listener told of every call from now on; what comes back ends it."""
        subscription = object()
        self._listeners[subscription] = listener

        def end() -> None:
            self._listeners.pop(subscription, None)

        return end

    def called(self, name: str, context: ToolContext, detail: str = "") -> int:
        self._last_id += 1
        if self._listeners:
            self._tell(ToolEvent("called", self._last_id, name, context, detail=detail[:LONGEST_DETAIL]))
        return self._last_id

    def ended(self, call_id: int, name: str, context: ToolContext, seconds: float, error: str | None) -> None:
        if self._listeners:
            kind: Literal["completed", "failed"] = "completed" if error is None else "failed"
            self._tell(ToolEvent(kind, call_id, name, context, seconds, error))

    def _tell(self, event: ToolEvent) -> None:
        for subscription, listener in list(self._listeners.items()):
            if subscription in self._listeners:  # another listener may have ended it
                with contextlib.suppress(Exception, SystemExit):  # who only listens cannot make a call fail
                    listener(event)
