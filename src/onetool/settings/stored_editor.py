"""Edits the settings in a store, which replicas share, and leaves the files as they are.

All methods block.
"""

from collections.abc import Iterable, Iterator, Mapping
from functools import partial
from pathlib import Path

from onetool.errors import ToolError
from onetool.settings import paths
from onetool.settings.clients import yaml_edit
from onetool.settings.clients.text_files import TextFile
from onetool.settings.contents import EditableSettings, SettingsContents, StoredSettings
from onetool.settings.edit_history import EditHistory, HistoryEntry, StoredHistory
from onetool.settings.layers import STORED_CONFIG, STORED_SECRETS
from onetool.settings.paths import Directories
from onetool.settings.planned_edit import (
    ItemChange,
    PlannedEdit,
    SettingsItem,
    change_stored,
    make_entry,
)
from onetool.settings.settings_editor import Document, SettingsEditor, has_entry
from onetool_child.json_types import JsonMapping

STORED = frozenset({STORED_CONFIG, STORED_SECRETS})


class StoredSettingsEditor(SettingsEditor):
    """An editor of the settings in a store, over the files in these directories.

    Null hides the entry of a file.
    """

    def __init__(
        self,
        directories: Directories,
        env: Mapping[str, str],
        storage: EditableSettings,
        files: SettingsContents | None = None,
    ) -> None:
        super().__init__(directories, env, files)
        for path in STORED:  # the store may have changed since the files were read
            self._files.contents.pop(path, None)
        self._storage = storage
        self._stored: StoredSettings | None = None

    @property
    def history(self) -> EditHistory:
        return StoredHistory(self._storage)

    def list_changes(self) -> list[HistoryEntry]:
        return self.history.list_entries()

    def get_config(self, _directory: Path | None = None) -> Path:
        return STORED_CONFIG

    def get_secrets(self, _directory: Path | None = None) -> Path:
        return STORED_SECRETS

    def list_layers(self, directory: Path) -> Iterator[tuple[Path, Path]]:
        for layer in self._directories.layers:
            yield self._directories.config_path(layer), layer / paths.SECRETS
        yield from super().list_layers(directory)

    def is_users(self, _directory: Path) -> bool:
        return True

    def _read(self, path: Path) -> TextFile:
        if path not in STORED:
            return super()._read(path)
        stored = self._get_stored()
        if stored.problem:
            raise ToolError(f"cannot edit the settings in the store: {stored.problem}")
        text = stored.text if path == STORED_CONFIG else stored.secrets
        return TextFile(path, text.encode(), text)

    def _get_stored(self) -> StoredSettings:
        if self._stored is None:
            self._stored = self._storage.get()
        return self._stored

    def _forget(self) -> None:
        super()._forget()
        self._stored = None

    def _hides_files(self, file: TextFile, data: JsonMapping, section: str, name: str) -> bool:
        return file.path == STORED_CONFIG and has_entry(data, section, name)

    def find(self, section: str, name: str, _directory: Path | None = None) -> SettingsItem:
        return super().find(section, name)

    def _list_documents(
        self, section: str, name: str, layers: Iterable[Path]
    ) -> Iterator[Document]:
        file = self.read_file(STORED_CONFIG)
        yield file, yaml_edit.parse_mapping(file.text, str(file.path)), (section, name)
        yield from super()._list_documents(section, name, layers)

    def _list_secret_files(self) -> list[Path]:
        return [*super()._list_secret_files(), STORED_SECRETS]

    def _choose_file(self, _item: SettingsItem) -> Path:
        return STORED_CONFIG

    def _change_text(self, text: str, _item: SettingsItem, change: ItemChange) -> str:
        path = change.section, change.name
        files = super()._list_documents(*path, self._directories.layers)
        is_in_file = any(not prefix or has_entry(data, *path) for _, data, prefix in files)
        if change.value is None and not is_in_file:
            return yaml_edit.remove_value(text, str(STORED_CONFIG), path)
        return yaml_edit.set_value(text, str(STORED_CONFIG), path, change.value)

    def apply(self, planned: PlannedEdit, *, actor: str, transport: str) -> HistoryEntry:
        entry = make_entry(planned, actor, transport)
        self._storage.update(partial(change_stored, planned, entry))
        self.after = planned.after
        return entry
