"""State that is kept in files only where there is no database: the audit log and settings."""

from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from onetool.errors import AuditUnavailable, ToolError
from onetool.logging import Log
from onetool.paths import Directories
from onetool.state.storage import SettingsStorage
from onetool.util.storage_errors import storage_error

if TYPE_CHECKING:
    from onetool.config.contents import SettingsContents
    from onetool.editing.edit_history import EditHistory
    from onetool.editing.planned_edit import PlannedEdit
    from onetool.editing.settings_editor import SettingsEditor


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


class SettingsFiles(SettingsStorage):
    """The settings files of a user and of a project, and their edits."""

    when_effective = "Running servers apply it within 2 seconds."  # for people
    secrets_place = "secrets.yaml"  # the place of new secrets, for people

    def __init__(self, directories: Directories) -> None:
        self._directories = directories

    @property
    def history(self) -> "EditHistory":
        from onetool.editing.edit_history import EditHistory

        return EditHistory(self._directories.user)

    def version(self) -> object:
        return self.history.stamp

    def open_editor(
        self, directories: Directories, env: Mapping[str, str], files: "SettingsContents | None" = None
    ) -> "SettingsEditor":
        """Return an editor; `files` are the settings files as they were read for it."""
        from onetool.editing.settings_editor import SettingsEditor

        return SettingsEditor(directories, env, files)

    def choose_directory(self, directory: Path, /) -> Path | None:
        """Return the directory whose files change if entries are added in this one; None if no files change."""
        return directory

    def finish_edit(self, edit: "PlannedEdit", /) -> Iterable[str]:
        """Keep backups of the settings files that an edit changed, and return messages for people."""
        from onetool.clients import text_files

        for file in edit.files:
            backup = text_files.back_up(file.before)
            note = f" (backup: {backup.name})" if backup else ""
            yield f"Wrote {file.before.path}{note}"
