"""The errors of sign-ins.

Those of the requests that a call makes are recorded: the SDK sends a request in the context of its
caller, and an error must not close the connection that others use.
"""

import re
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar

from onetool.errors import ToolError

_FAILURES: ContextVar[list[ToolError] | None] = ContextVar("_FAILURES", default=None)

ERROR_CODE = re.compile(r"[a-zA-Z0-9_.-]{1,64}")


class TokenRejected(ToolError):
    """The authorization server rejected a request; `error` is its code, such as `invalid_grant`."""


def describe_code(code: str) -> str:
    """Return an error code of an authorization server, unless it may be anything else."""
    return code if ERROR_CODE.fullmatch(code) else "an invalid error code"


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
