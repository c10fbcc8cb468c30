"""Settings that replicas share, and the history of their changes, as two sealed rows.

The rows are sealed as a whole, with a key that is not in the database: who can only write to the
database cannot make a replica start a program.
"""

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from onetool.errors import StorageError, ToolError
from onetool.settings.contents import StoredSettings
from onetool.state.documents import Cached, Documents, StoreUnavailable
from onetool.state.file_kinds import SettingsFiles
from onetool.state.sqlite_database import StateDatabase
from onetool.util.problem import STORAGE, check_version
from onetool_child.json_types import JsonMapping, JsonObject

if TYPE_CHECKING:
    from onetool.settings.contents import SettingsContents
    from onetool.settings.edit_history import EditHistory
    from onetool.settings.paths import Directories
    from onetool.settings.planned_edit import PlannedEdit
    from onetool.settings.stored_editor import StoredSettingsEditor

KIND = "settings"
CURRENT = "current"
HISTORY = "history"
VERSION = 1
Change = Callable[[StoredSettings, str], tuple[StoredSettings, str]]


class SettingsRows(SettingsFiles):
    """The settings and their history. Changes of other replicas are known within two seconds."""

    when_effective = "All replicas apply it within 2 seconds."
    secrets_place = "the store"

    def __init__(self, database: StateDatabase) -> None:
        self._documents = Documents(database, KIND)
        self._database = database
        self._known = Cached(database, KIND, self._read)

    @property
    def history(self) -> "EditHistory":
        from onetool.settings.edit_history import StoredHistory

        return StoredHistory(self)

    def open_editor(
        self,
        directories: "Directories",
        env: Mapping[str, str],
        files: "SettingsContents | None" = None,
    ) -> "StoredSettingsEditor":
        from onetool.settings.stored_editor import StoredSettingsEditor

        return StoredSettingsEditor(directories, env, self, files)

    def choose_directory(self, _directory: Path, /) -> None:
        """Return nothing: the entries are stored in the database."""

    def finish_edit(self, _edit: "PlannedEdit", /) -> list[str]:
        return ["Changed the settings in the store"]

    def version(self) -> object:
        return self._database.number(KIND)

    def get(self) -> StoredSettings:
        return self._known.get()

    def refresh(self) -> StoredSettings:
        return self._known.refresh()

    def read_history(self) -> str:
        return self._documents.get(HISTORY) or ""

    def update(self, change: Change) -> None:
        def apply(documents: JsonMapping) -> JsonObject:
            before = self._parse(documents[CURRENT])
            after, history = change(before, documents[HISTORY] or "")
            current = documents[CURRENT]
            if after != before:
                current = {"version": VERSION, "text": after.text, "secrets": after.secrets}
            return {CURRENT: current, HISTORY: history}

        self._documents.update_all([CURRENT, HISTORY], apply)

    def _read(self) -> StoredSettings:
        """Return the settings.

        A row that cannot be read is a problem of its own: the database answers.
        """
        try:
            return self._parse(self._documents.get(CURRENT))
        except StoreUnavailable:
            raise
        except ToolError as error:
            return StoredSettings(problem=error.message)

    def _parse(self, data: Any) -> StoredSettings:
        if data is None:
            return StoredSettings()
        source = f"the settings in {self._database.place}"
        try:
            check_version(data.get("version"), VERSION, f"{source}:")
            return StoredSettings(str(data["text"]), str(data["secrets"]))
        except (ValueError, TypeError, KeyError, AttributeError) as error:
            raise StorageError(f"cannot read {source}: {error}", code=STORAGE) from None
