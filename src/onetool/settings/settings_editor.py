"""Edits the settings files the way a careful person would.

Comments, order and formatting are kept, the settings are validated as a whole before anything is
written, and only the file that defines an entry is changed. `plan` computes an edit; `apply` writes
it, unless a file has changed since then. `onetool.settings.edit_history` edits the
settings in a store instead. All methods block.
"""

import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from onetool.errors import ConfigError, StorageError, ToolError
from onetool.settings import paths, scaffold
from onetool.settings.clients import text_files, yaml_edit
from onetool.settings.clients.text_files import TextFile, value_at
from onetool.settings.contents import (
    NOTHING_STORED,
    TRUST_FILE,
    SettingsContents,
    StoredSettings,
    stamp_files,
    stamp_paths,
)
from onetool.settings.edit_history import LOCK, EditedItem, EditHistory, HistoryEntry
from onetool.settings.layers import USER_KEYS
from onetool.settings.load import Loaded, examine
from onetool.settings.paths import Directories
from onetool.settings.planned_edit import (
    EditConflict,
    FileEdit,
    ItemChange,
    PlannedEdit,
    SettingsItem,
    check_name,
    check_sizes,
    describe_difference,
    digest_text,
    make_conflict,
    make_entry,
)
from onetool.settings.trust import TO_TRUST, check_trust, make_record, trust
from onetool.util.atomic import locked
from onetool.util.redact import Redactor
from onetool.util.text import quote
from onetool_child.json_types import JsonMapping, JsonObject

AGENTS = "agents"
Document = tuple[TextFile, JsonObject, tuple[str, ...]]  # a file, its data, and an entry's path
FILE_KEYS = ("name", "version")  # of the file of an agent, which are not settings of the agent


class SettingsEditor:
    """An editor of the settings files in these directories, which must be trusted.

    What it has read stays the same until an edit is planned, so that an edit is based on one state.
    `files` are the files as they were read for it.
    """

    def __init__(
        self,
        directories: Directories,
        env: Mapping[str, str],
        files: SettingsContents | None = None,
    ) -> None:
        self._directories = directories
        self._env = env
        self._files = files or SettingsContents()
        self._known: dict[Path, TextFile] = {}
        self.after: Loaded | None = None  # the settings after the last edit that was written

    @property
    def history(self) -> EditHistory:
        return EditHistory(self._directories.user)

    def get_config(self, directory: Path | None = None) -> Path:
        """Return the file to which new entries are added, by default that of the data directory."""
        return self._directories.config_path(directory or self._directories.data)

    def get_secrets(self, directory: Path | None = None) -> Path:
        """Return the file to which secrets are added, by default that of the data directory."""
        return (directory or self._directories.data) / paths.SECRETS

    def list_layers(self, directory: Path) -> Iterator[tuple[Path, Path]]:
        """Yield the settings and secrets files with which new servers are compared."""
        yield self.get_config(directory), self.get_secrets(directory)

    def is_users(self, directory: Path) -> bool:
        """Return whether new entries in a directory are those of the user, and not of a project."""
        return os.path.realpath(directory) == os.path.realpath(self._directories.user)

    # --- reading ----------------------------------------------------------------------------------

    def read_file(self, path: Path) -> TextFile:
        if path not in self._known:
            self._known[path] = self._read(path)
        return self._known[path]

    def _read(self, path: Path) -> TextFile:
        contents = self._files.contents
        if path not in contents:
            self._files.take_stamp(self._directories)
            contents[path] = text_files.read(path).raw
        raw = contents[path]
        assert not isinstance(raw, str)  # only settings in the store are texts
        return text_files.decode(path, raw)

    def _get_stored(self) -> StoredSettings:
        """Return the settings over the files."""
        return NOTHING_STORED

    def _forget(self) -> None:
        self._files = SettingsContents()
        self._known = {}

    def find(self, section: str, name: str, directory: Path | None = None) -> SettingsItem:
        """Return an entry from the file that defines it: in this directory, or the winning layer."""
        layers = [directory] if directory is not None else reversed(self._directories.layers)
        for file, data, prefix in self._list_documents(section, name, layers):
            value = value_at(data, prefix)
            if value is not None or self._hides_files(file, data, section, name):
                if not prefix:
                    value = {key: value for key, value in data.items() if key not in FILE_KEYS}
                return SettingsItem(section, name, file.path, value)
        if section in USER_KEYS and self._directories.config_file is None:
            directory = self._directories.user
        return SettingsItem(section, name, self.get_config(directory), None)

    def _hides_files(self, _file: TextFile, _data: JsonMapping, _section: str, _name: str) -> bool:
        """Return whether a document says that there is no such entry, whatever the next ones say."""
        return False

    def _list_documents(
        self, section: str, name: str, layers: Iterable[Path]
    ) -> Iterator[Document]:
        """Yield the files of these directories that may define an entry, with its path in each."""
        for directory in layers:
            file = self.read_file(self._directories.config_path(directory))
            yield file, yaml_edit.parse_mapping(file.text, str(file.path)), (section, name)
            for path in paths.agent_files(directory) if section == AGENTS else ():
                file = self.read_file(path)
                data = yaml_edit.parse_mapping(file.text, str(path))
                if (data.get("name") or path.stem) == name:
                    yield file, data, ()

    def list_secrets(self) -> dict[str, list[str]]:
        """Return the names of secrets and the files that set them."""
        files: dict[str, list[str]] = {}
        for path in self._list_secret_files():
            file = self.read_file(path)
            for name in yaml_edit.parse_mapping(file.text, str(file.path), typed=False):
                files.setdefault(name, []).append(str(file.path))
        return files

    def _list_secret_files(self) -> list[Path]:
        return [directory / paths.SECRETS for directory in self._directories.layers]

    def list_changes(self) -> list[HistoryEntry]:
        """Return the last edits of these settings, newest first, and not those of other projects."""
        roots = (self._directories.user, *self._directories.layers)

        def is_here(path: str) -> bool:
            return any(paths.is_inside(Path(path), root) for root in roots)

        return [entry for entry in self.history.list_entries() if all(map(is_here, entry.paths))]

    # --- planning ---------------------------------------------------------------------------------

    def plan(
        self,
        action: str,
        changes: Sequence[ItemChange],
        *,
        secrets: Mapping[str, str | None] | None = None,
        directory: Path | None = None,
        names: Iterable[str] = (),
    ) -> PlannedEdit:
        """Return an edit that makes these changes.

        Raise ConfigError if the settings would be invalid.

        `directory` is the settings directory that is changed, whatever others define; by default,
        entries are changed where they are defined, and new entries and secrets are added to the
        data directory.
        """
        check_sizes(changes, secrets or {})
        files: dict[Path, FileEdit] = {}
        items = []
        for change in changes:
            item = self.find(change.section, change.name, directory)
            if change.value is not None and item.value is None:
                check_name(change.section, change.name)
            target = self._choose_file(item)
            edit = files.get(target) or _unchanged(self.read_file(target))
            files[target] = replace(edit, text=self._change_text(edit.text, item, change))
            items.append(EditedItem(change.section, change.name, item.value, change.value))
        secrets_file = self._plan_secrets(secrets or {}, self.get_secrets(directory))
        planned = names or dict.fromkeys([*(change.name for change in changes), *(secrets or {})])
        return self._validate(
            action, tuple(planned), files, tuple(items), secrets_file=secrets_file, secrets=secrets
        )

    def plan_undo(self, entry_id: str) -> PlannedEdit:
        """Return the edit that undoes one of the last edits.

        Raise EditConflict if an entry has changed since.
        """
        entry = next((entry for entry in self.list_changes() if entry.id == entry_id), None)
        if entry is None:
            hint = "list them: onetool settings history"
            raise ToolError(f"no change {quote(entry_id)} in the history", hint=hint)
        if not entry.can_undo:
            reason = "old values of secrets and tokens are not kept"
            raise ToolError(f"this change cannot be undone: {reason}")
        files = {}
        for edited in entry.files:
            current = self.read_file(Path(edited.path))
            if edited.before is not None and digest_text(current.text) == edited.after_digest:
                files[current.path] = FileEdit(current, edited.before)
        if len(files) != len(entry.files):  # something else was changed since then
            return replace(self._undo_items(entry), undoes=entry.id)
        items = [replace(item, before=item.after, after=item.before) for item in entry.items]
        planned = self._validate("settings.undo", entry.names, files, tuple(items))
        return replace(planned, undoes=entry.id)

    def _undo_items(self, entry: HistoryEntry) -> PlannedEdit:
        changes = []
        for edited in entry.items:
            current = self.find(edited.section, edited.name)
            if current.value != edited.after:
                name = f"{edited.section}.{edited.name}"
                message = f"{name} has changed since then, so the change cannot be undone"
                raise EditConflict(message, current)
            changes.append(ItemChange(edited.section, edited.name, edited.before))
        return self.plan("settings.undo", changes)

    def _choose_file(self, item: SettingsItem) -> Path:
        """Return the file in which an entry is changed."""
        return item.file

    def _change_text(self, text: str, item: SettingsItem, change: ItemChange) -> str:
        source = str(item.file)
        is_own_file = self._is_agent_file(item)
        if change.value is None:
            if is_own_file:
                message = f"agent {quote(change.name)} is the file {item.file}"
                raise ToolError(message, hint="delete the file")
            self._check_other_layers(item)
            return yaml_edit.remove_value(text, source, (change.section, change.name))
        if not is_own_file:
            return yaml_edit.set_value(text, source, (change.section, change.name), change.value)
        data = yaml_edit.parse_mapping(text, source)
        kept = {key: value for key, value in data.items() if key in FILE_KEYS}
        return yaml_edit.update(text, source, {**kept, **change.value})

    def _is_agent_file(self, item: SettingsItem) -> bool:
        configured = map(self._directories.config_path, self._directories.layers)
        return item.value is not None and item.file not in configured

    def _check_other_layers(self, item: SettingsItem) -> None:
        """Raise if another file defines the entry too: it would still be there."""
        layers = self._directories.layers
        for file, data, prefix in self._list_documents(item.section, item.name, layers):
            if file.path != item.file and (not prefix or has_entry(data, item.section, item.name)):
                message = f"{item.section}.{item.name} is also set in {file.path}"
                raise ToolError(message, hint=f"remove it from {file.path} first")

    def _plan_secrets(self, secrets: Mapping[str, str | None], path: Path) -> FileEdit | None:
        if not secrets:
            return None
        file = self.read_file(path)
        before = yaml_edit.parse_mapping(file.text, str(file.path), typed=False)
        after = {name: value for name, value in {**before, **secrets}.items() if value is not None}
        for name in secrets.keys() - after.keys() - before.keys():
            message = f"no secret {quote(name)} in {file.path}"
            raise ToolError(message, hint="list them: onetool secret list")
        text = "{}\n"
        if after:
            text = yaml_edit.update(file.text, str(file.path), after, typed=False)
        return FileEdit(file, text) if text != file.text else None

    def _validate(
        self,
        action: str,
        names: tuple[str, ...],
        edits: Mapping[Path, FileEdit],
        items: tuple[EditedItem, ...],
        *,
        secrets_file: FileEdit | None = None,
        secrets: Mapping[str, str | None] | None = None,
    ) -> PlannedEdit:
        secrets = dict(secrets or {})
        files = tuple(edit for edit in edits.values() if edit.text != edit.before.text)
        changed = files if secrets_file is None else (*files, secrets_file)
        stored = self._get_stored()
        before = examine(self._directories, self._env, files=self._files, stored=stored)
        contents = self._files.replacing({edit.before.path: edit.text for edit in changed})
        after = examine(self._directories, self._env, files=contents, stored=stored)
        self._forget()
        if after.errors:
            new_values = filter(None, secrets.values())
            redact = Redactor({*after.loaded.secret_values, *new_values})
            problems = redact("\n".join(map(str, after.errors)))
            raise ConfigError(f"the settings would be invalid, so nothing was changed:\n{problems}")
        difference = describe_difference(files, secrets_file, secrets, before.loaded, after.loaded)
        return PlannedEdit(
            action,
            names,
            files,
            items,
            difference,
            before.loaded,
            after.loaded,
            contents,
            secrets_file,
            secrets,
        )

    # --- writing ----------------------------------------------------------------------------------

    def apply(self, planned: PlannedEdit, *, actor: str, transport: str) -> HistoryEntry:
        """Write the edit and keep the trust in the directory.

        Running servers apply it when they see it.

        Raise EditConflict if a file has changed since the edit was planned.
        """
        user = self._directories.user
        try:
            user.mkdir(mode=0o700, parents=True, exist_ok=True)
            with locked(user / LOCK):
                self._check_unchanged(planned)
                project = self._find_edited_project(planned)
                entry = make_entry(planned, actor, transport)
                with self.history.adding(entry):
                    self._write(planned)
                    if project is not None:
                        trust(project, user, make_record(project, user, planned.contents))
                written = [user / TRUST_FILE, *(edit.before.path for edit in planned.edits)]
                stamp = {**planned.after.stamp, **stamp_paths(written)}
                self.after = replace(planned.after, stamp=stamp)
        except OSError as error:
            place = error.filename or user
            raise StorageError(f"cannot write to {place}: {error.strerror or error}") from None
        return entry

    def _write(self, planned: PlannedEdit) -> None:
        if planned.secrets_file is not None:
            before = planned.secrets_file.before
            directory = before.path.parent
            _make_directory(directory, is_private=directory == self._directories.user)
            ignore = text_files.read(directory / ".gitignore")
            if ignore.raw is None:
                text_files.write(ignore, scaffold.NOT_FOR_GIT, keep=False)
            secrets = planned.secrets_file.text
            text_files.write(before, secrets, mode=text_files.OWNER_ONLY, keep=False)
        for edit in planned.files:
            directory = edit.before.path.parent
            _make_directory(directory, is_private=directory == self._directories.user)
            mode = text_files.OWNER_ONLY if edit.before.raw is None else None
            text_files.write(edit.before, edit.text, mode=mode, keep=False)

    def _check_unchanged(self, planned: PlannedEdit) -> None:
        """Raise EditConflict if a file that was read for the edit differs.

        Writing a file compares its content too.
        """
        current = stamp_files(self._directories)
        for edit in planned.edits:
            path = edit.before.path
            if current.get(path) != planned.after.stamp.get(path):
                raise make_conflict(planned.edits[0])

    def _find_edited_project(self, planned: PlannedEdit) -> Path | None:
        """Return the project whose trust must be renewed. Raise if only a variable trusts it."""
        project = self._directories.project
        if project is None or self._directories.config_file is not None:
            return None
        if not any(edit.before.path.is_relative_to(project) for edit in planned.edits):
            return None
        if not check_trust(project, self._directories.user, {}, planned.unedited).trusted:
            reason = "its content is not recorded as trusted"
            hint = f"{TO_TRUST} in {project.parent}"
            raise ToolError(f"cannot edit {project}: {reason}", hint=hint)
        return project


def has_entry(data: JsonMapping, section: str, name: str) -> bool:
    entries = data.get(section)
    return isinstance(entries, dict) and name in entries


def _unchanged(file: TextFile) -> FileEdit:
    return FileEdit(file, file.text)


def _make_directory(directory: Path, *, is_private: bool) -> None:
    directory.mkdir(mode=0o700 if is_private else 0o777, parents=True, exist_ok=True)
