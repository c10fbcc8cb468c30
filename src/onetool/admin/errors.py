"""The error of an action: REST has a status for its code, and the command line prints its message."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from onetool.errors import StorageError, ToolError
from onetool_child.json_types import JsonMapping


class AdminError(ToolError):
    """An error with a code of `onetool.server.http.errors.STATUS`. REST shows the details."""

    type = "admin_error"

    def __init__(
        self, code: str, message: str, details: JsonMapping | None = None, *, hint: str = ""
    ) -> None:
        super().__init__(message, code=code, hint=hint, details=dict(details or {}))


@contextmanager
def raising(code: str, **details: Any) -> Iterator[None]:
    """Give errors of the block this code, unless they have one for REST."""
    try:
        yield
    except (AdminError, StorageError):
        raise
    except ToolError as error:
        raise AdminError(code, error.message, details, hint=error.hint) from None
