"""Spans of OpenTelemetry around calls, where its SDK is installed. Without it a call pays for one comparison."""

from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from importlib.util import find_spec
from typing import Any

from ot.context import ToolContext


class Tracing:
    """Looks for the SDK at the first call, and never again."""

    def __init__(self) -> None:
        self._tracer: Any = None
        self._looked = False

    def span(self, name: str, context: ToolContext) -> AbstractContextManager[Any] | None:
        """To be entered around a call; None where nobody would see it."""
        if not self._looked:
            self._looked, self._tracer = True, _tracer()
        return None if self._tracer is None else _span(self._tracer, name, context)


def _tracer() -> Any:
    try:
        if find_spec("opentelemetry.sdk") is None:
            return None
        from opentelemetry import trace
    except ImportError:
        return None
    return trace.get_tracer("onetool")


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
