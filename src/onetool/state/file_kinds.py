"""State that is kept in files only where there is no database: the audit log and settings."""

from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from onetool.errors import AuditUnavailable, ToolError
from onetool.settings.paths import Directories
from onetool.settings.stored_settings import SettingsStorage
from onetool.state.audit_records import StoredRecord, read_files
from onetool.util.logging import Log, list_rotated
from onetool.util.problem import storage_error

if TYPE_CHECKING:
    from onetool.settings.contents import SettingsContents
    from onetool.settings.editing.edit_history import EditHistory
    from onetool.settings.editing.planned_edit import PlannedEdit
    from onetool.settings.editing.settings_editor import SettingsEditor


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
        from onetool.settings.editing.edit_history import EditHistory

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
        from onetool.settings.editing.settings_editor import SettingsEditor

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
