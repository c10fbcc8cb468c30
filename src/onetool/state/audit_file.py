"""The audit log in a file, which is rotated."""

from collections.abc import Callable
from pathlib import Path

from onetool.errors import AuditUnavailable, ToolError
from onetool.logging import Log
from onetool.util.storage_errors import storage_error


class AuditFile(Log):
    """Records as JSON lines. Outcomes of calls are written in the background."""

    device = "disk"
    is_slow = False
    write_seconds = 5.0

    def __init__(self, file: Path, redact: Callable[[str], str]) -> None:
        super().__init__(file, "INFO", redact, gathers=False, name=f"the audit log {file}")
        self._directory = file.parent
        self.place = str(file)

    def make_refusal(self, message: str) -> ToolError:
        hint = "free disk space, make the file writable, or set audit.file in onetool.yaml"
        return AuditUnavailable(message, hint=hint, file=self.place)

    def make_error(self, error: OSError) -> ToolError:
        return storage_error(self._directory, error)
