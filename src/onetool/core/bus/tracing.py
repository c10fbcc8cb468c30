"""OpenTelemetry spans for calls, if the SDK is installed and configured."""

from importlib.util import find_spec
from typing import Any

from onetool.core.bus.events import CallFinished, CallStarted, Events


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
