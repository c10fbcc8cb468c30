"""Settings without a store: nothing is over the files of the settings, and edits change the files."""

from collections.abc import Mapping
from typing import TYPE_CHECKING, Final

from onetool.paths import Directories
from onetool.state.storage import NOTHING_STORED, StoredSettings

if TYPE_CHECKING:
    from onetool.config.contents import SettingsContents
    from onetool.editing.edit_history import EditHistory
    from onetool.editing.settings_editor import SettingsEditor


class SettingsFiles:
    """The settings files of a user and of a project."""

    when_effective: Final = "Running servers apply it within 2 seconds."
    secrets_place: Final = "secrets.yaml"

    def __init__(self, directories: Directories) -> None:
        self._directories = directories

    @property
    def history(self) -> "EditHistory":
        from onetool.editing.edit_history import EditHistory

        return EditHistory(self._directories.user)

    def version(self) -> object:
        return self.history.stamp

    def get(self) -> StoredSettings:
        return NOTHING_STORED

    def refresh(self) -> StoredSettings:
        return NOTHING_STORED

    def open_editor(
        self, directories: Directories, env: Mapping[str, str], files: "SettingsContents | None" = None
    ) -> "SettingsEditor":
        from onetool.editing.settings_editor import SettingsEditor

        return SettingsEditor(directories, env, files)
