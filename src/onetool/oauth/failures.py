"""The sign-in errors of the requests that a call makes.

The SDK sends a request in the context of its caller, and an error must not close the connection that others use.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar

from onetool.errors import ToolError

_FAILURES: ContextVar[list[ToolError] | None] = ContextVar("_FAILURES", default=None)


@contextmanager
def collect_failures() -> Iterator[list[ToolError]]:
    """Collect the errors of the requests inside the block."""
    failures: list[ToolError] = []
    token = _FAILURES.set(failures)
    try:
        yield failures
    finally:
        _FAILURES.reset(token)


def record_failure(error: ToolError) -> None:
    """Add the error to the list of the current call, if there is one."""
    failures = _FAILURES.get()
    if failures is not None:
        failures.append(error)
