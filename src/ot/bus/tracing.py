"""Spans of OpenTelemetry around calls, where its SDK is installed and somebody has set it up.

Without the SDK a call pays for one comparison, and for little more as long as nobody would get the spans.
"""

from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from importlib.util import find_spec
from typing import Any

from ot.context import ToolContext


class Tracing:
    """Looks for the SDK at the first call, and never again; whether a program has set it up, at each."""

    def __init__(self) -> None:
        self._trace: Any = None
        self._looked = False

    def span(self, name: str, context: ToolContext) -> AbstractContextManager[Any] | None:
        """To be entered around a call; None where nobody would see it."""
        if not self._looked:
            self._looked, self._trace = True, _trace()
        if self._trace is None or isinstance(self._trace.get_tracer_provider(), self._trace.ProxyTracerProvider):
            return None
        return _span(self._trace.get_tracer("onetool"), name, context)


def _trace() -> Any:
    try:
        if find_spec("opentelemetry.sdk") is None:
            return None
        from opentelemetry import trace
    except ImportError:
        return None
    return trace


@contextmanager
def _span(tracer: Any, name: str, context: ToolContext) -> Iterator[Any]:
    """Arguments and values are never part of a span: they may be secret."""
    facts = {"onetool.tool": name, "onetool.agent": context.agent_id, "onetool.run": context.correlation_id}
    silent = {"record_exception": False, "set_status_on_exception": False}  # `failed` says all that is said
    with tracer.start_as_current_span(f"tool {name}", attributes=facts, **silent) as span:
        yield span


def failed(span: Any, error: str) -> None:
    from opentelemetry.trace import Status, StatusCode

    span.set_attribute("error.type", error)
    span.set_status(Status(StatusCode.ERROR, error))
