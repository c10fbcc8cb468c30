"""Kinds of state without a database; `replica_kinds` has those in PostgreSQL.

The audit log, settings and notices are in files, ended sessions in memory.
"""

import os
import stat
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

from onetool.errors import AuditUnavailable, StorageError, ToolError
from onetool.settings.contents import SettingsStorage
from onetool.settings.paths import Directories, resolve_path
from onetool.state.audit_records import StoredRecord, read_files
from onetool.util.atomic import locked
from onetool.util.clock_watch import Clock
from onetool.util.logging import Log, list_rotated
from onetool.util.problem import Problem, storage_error

if TYPE_CHECKING:
    from onetool.settings.contents import SettingsContents
    from onetool.settings.edit_history import EditHistory
    from onetool.settings.planned_edit import PlannedEdit
    from onetool.settings.settings_editor import SettingsEditor

DEFAULT_MAX_FILE_BYTES = 10 << 20
# O_NONBLOCK (POSIX) avoids blocking on a pipe; O_BINARY (Windows) keeps line breaks unchanged.
_FLAGS = os.O_RDWR | os.O_CREAT | os.O_APPEND
_FLAGS |= getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_BINARY", 0)


class AuditFile(Log):
    """Records of the audit log as JSON lines. Outcomes of calls are written in the background."""

    device = "disk"  # what a write waits for
    is_slow = False  # whether each write takes a round trip, so that an event loop needs a thread
    write_seconds = 5.0  # timeout of a write in a thread

    def __init__(self, file: Path | None, redact: Callable[[str], str]) -> None:
        name = "the audit log" if file is None else f"the audit log {file}"
        super().__init__(file, "INFO", redact, gathers=file is None, name=name)

    @property
    def place(self) -> str:
        """The place of the records, for people."""
        return str(self._file)

    def make_refusal(self, message: str) -> ToolError:
        """Return the error for a call that was not made, because it cannot be recorded."""
        hint = "free disk space, make the file writable, or set audit.file in onetool.yaml"
        return AuditUnavailable(message, hint=hint, file=self.place)

    def make_error(self, error: OSError) -> ToolError:
        """Return the error for something else that cannot be recorded."""
        return storage_error(Path(self.place).parent, error)

    def read(self, position: str | None = None) -> Iterator[StoredRecord]:
        """Yield the records after a position, newest first."""
        if self._file is None:
            return iter(())
        self.flush()  # include what was logged just before
        return read_files([self._file, *list_rotated(self._file, self.keep)], position)


class SettingsFiles(SettingsStorage):
    """The settings files of a user and of a project, and their edits."""

    when_effective = "Running servers apply it within 2 seconds."  # for people
    secrets_place = "secrets.yaml"  # the place of new secrets, for people

    def __init__(self, directories: Directories) -> None:
        self._directories = directories

    @property
    def history(self) -> "EditHistory":
        from onetool.settings.edit_history import EditHistory

        return EditHistory(self._directories.user)

    def version(self) -> object:
        return self.history.stamp

    def open_editor(
        self,
        directories: Directories,
        env: Mapping[str, str],
        files: "SettingsContents | None" = None,
    ) -> "SettingsEditor":
        """Return an editor; `files` are the settings files as they were read for it."""
        from onetool.settings.settings_editor import SettingsEditor

        return SettingsEditor(directories, env, files)

    def choose_directory(self, directory: Path, /) -> Path | None:
        """Return the directory whose files change if entries are added in this one; None if no
        files change.
        """
        return directory

    def finish_edit(self, edit: "PlannedEdit", /) -> Iterable[str]:
        """Keep backups of the settings files that an edit changed, and return messages for people."""
        from onetool.settings.clients import text_files

        for file in edit.files:
            backup = text_files.back_up(file.before)
            note = f" (backup: {backup.name})" if backup else ""
            yield f"Wrote {file.before.path}{note}"


class _FileFull(OSError):
    """The file has no room for the message."""


class NoticeFiles:
    """Message files. Each message is one YAML document, appended completely or not at all.

    Several processes may write at once. Relative names are resolved against `directory`.
    """

    def __init__(self, directory: Path, max_file_bytes: int = DEFAULT_MAX_FILE_BYTES) -> None:
        self._directory = directory
        self._max_file_bytes = max_file_bytes

    def append(self, name: str, document: bytes) -> None:
        path = resolve_path(name, self._directory, Path.home())
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            with locked(path.with_name(f"{path.name}.lock")):
                descriptor = os.open(path, _FLAGS, 0o600)
                try:
                    _write_document(descriptor, document, self._max_file_bytes)
                finally:
                    os.close(descriptor)
        except (OSError, ValueError) as error:  # ValueError: the name is not a valid file name
            reason = getattr(error, "strerror", "") or error
            hint = "move or delete the file" if isinstance(error, _FileFull) else ""
            raise StorageError(
                f"cannot write the message to {path}: {reason}", hint=hint, file=str(path)
            ) from None


def _write_document(descriptor: int, document: bytes, max_file_bytes: int) -> None:
    status = os.fstat(descriptor)
    if not stat.S_ISREG(status.st_mode):
        raise OSError("not a regular file")
    if status.st_size + len(document) > max_file_bytes:
        raise _FileFull(f"the file is full (notify.max_file_bytes is {max_file_bytes})")
    try:
        data = _line_break(descriptor, status.st_size) + document
        while data:
            data = data[os.write(descriptor, data) :]
        os.fsync(descriptor)
    except OSError:
        with suppress(OSError):
            os.ftruncate(descriptor, status.st_size)
        raise


def _line_break(descriptor: int, size: int) -> bytes:
    """Return the line break that a file without a final one needs."""
    if size == 0:
        return b""
    os.lseek(descriptor, size - 1, os.SEEK_SET)
    return b"" if os.read(descriptor, 1) == b"\n" else b"\n"


class EndedSessions:
    """Sessions of browsers that have ended before they expired, by ID."""

    def __init__(self, clock: Clock = time.time) -> None:
        self._clock = clock
        self._ended: dict[str, float] = {}

    def end(self, identifier: str, until: float) -> None:
        now = self._clock()
        self._ended = {name: end for name, end in self._ended.items() if end > now}
        self._ended[identifier] = until

    @property
    def problem(self) -> Problem | None:
        """The reason why it is not known which sessions have ended; None if it is."""
        return None

    def list_all(self) -> Collection[str]:
        """Return the sessions, at once."""
        return self._ended.keys()
