"""Edits the settings files the way a careful person would.

Comments, order and formatting are kept, the settings are validated as a whole before anything is written, and only the
file that defines an entry is changed. `plan` computes an edit; `apply` writes it, unless a file has changed since then.
All methods block.
"""

import hashlib
import json
import os
import re
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Final

from onetool import paths
from onetool.clients import text_files, yaml_edit
from onetool.clients.text_files import TextFile
from onetool.config import scaffold
from onetool.config.load import Loaded, examine
from onetool.config.trust import TO_TRUST, is_trusted, trust
from onetool.editing.edit_history import EditedFile, EditedItem, EditHistory, HistoryEntry
from onetool.errors import ConfigError, StorageError, ToolError
from onetool.paths import Directories
from onetool.redact import Redactor
from onetool.util.invisible import find_in_name
from onetool.util.locks import locked
from onetool.util.running_servers import request_reload
from onetool.util.secret_finder import find_secrets
from onetool.util.text import quote
from onetool.util.time_format import in_utc

LOCK: Final = "onetool.yaml.lock"
MAX_NAME_CHARS: Final = 100
AGENTS: Final = "agents"
SECRET_NAME: Final = re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,99}", re.ASCII)
FILE_KEYS: Final = ("name", "version")  # of the file of an agent, which are not settings of the agent


class EditConflict(ToolError):
    """Raised if an entry has changed since the caller read it. `item` is its current state."""

    type = "conflict"

    def __init__(self, message: str, item: "SettingsItem | None" = None) -> None:
        super().__init__(message, hint="read it again, then repeat the change")
        self.item = item


@dataclass(frozen=True, slots=True)
class SettingsItem:
    """A named entry of a section as its file has it: with references instead of secrets. None if there is none."""

    section: str
    name: str
    file: Path
    value: Any

    @property
    def etag(self) -> str | None:
        return None if self.value is None else f'"{_digest(json.dumps([str(self.file), self.value], default=str))}"'


@dataclass(frozen=True, slots=True)
class ItemChange:
    """A new value of an entry; None removes it."""

    section: str
    name: str
    value: Any


@dataclass(frozen=True, slots=True)
class FileEdit:
    before: TextFile
    text: str


@dataclass(frozen=True, slots=True)
class PlannedEdit:
    """An edit that was validated and not yet written. `difference` contains no secrets."""

    action: str
    names: tuple[str, ...]
    files: tuple[FileEdit, ...]
    items: tuple[EditedItem, ...]
    difference: str
    before: Loaded = field(repr=False)
    after: Loaded = field(repr=False)
    secrets_file: FileEdit | None = field(default=None, repr=False)
    secrets: Mapping[str, str | None] = field(default_factory=dict, repr=False)  # None deletes one
    undoes: str = ""

    @property
    def changes_anything(self) -> bool:
        return bool(self.files or self.secrets_file)


class SettingsEditor:
    """An editor of the settings files in these directories, which must be trusted."""

    def __init__(self, directories: Directories, env: Mapping[str, str]) -> None:
        self._directories, self._env = directories, env
        self.history = EditHistory(directories.user)

    @property
    def default_file(self) -> Path:
        """The file to which new entries are added."""
        return self._directories.config_path(self._directories.data)

    # --- reading --------------------------------------------------------------------------------------------------

    def find(self, section: str, name: str, directory: Path | None = None) -> SettingsItem:
        """Return an entry from the file that defines it: of several layers, the one that wins."""
        for file, data, prefix in self._list_documents(section, name):
            found: Any = data
            for key in prefix:
                found = found.get(key) if isinstance(found, dict) else None
            if found is not None:
                value = found if prefix else {key: each for key, each in data.items() if key not in FILE_KEYS}
                return SettingsItem(section, name, file.path, value)
        target = self.default_file if directory is None else self._directories.config_path(directory)
        return SettingsItem(section, name, target, None)

    def _list_documents(self, section: str, name: str) -> Iterator[tuple[TextFile, dict[str, Any], tuple[str, ...]]]:
        """Yield the files that may define an entry, the winning one first, and the path of the entry in each."""
        for directory in reversed(self._directories.layers):
            file = text_files.read(self._directories.config_path(directory))
            yield file, yaml_edit.parse_mapping(file.text, str(file.path)), (section, name)
            for path in paths.agent_files(directory) if section == AGENTS else ():
                file = text_files.read(path)
                data = yaml_edit.parse_mapping(file.text, str(path))
                if (data.get("name") or path.stem) == name:
                    yield file, data, ()

    def list_secrets(self) -> dict[str, list[str]]:
        """Return the names of secrets and the files that set them."""
        found: dict[str, list[str]] = {}
        for directory in self._directories.layers:
            file = text_files.read(directory / paths.SECRETS)
            for name in yaml_edit.parse_mapping(file.text, str(file.path), typed=False):
                found.setdefault(name, []).append(str(file.path))
        return found

    # --- planning -------------------------------------------------------------------------------------------------

    def plan(
        self,
        action: str,
        changes: Sequence[ItemChange],
        *,
        secrets: Mapping[str, str | None] | None = None,
        directory: Path | None = None,
        names: Iterable[str] = (),
    ) -> PlannedEdit:
        """Return an edit that makes these changes. Raise ConfigError if the settings would be invalid.

        `directory` is the settings directory of new entries and of secrets.
        """
        files: dict[Path, FileEdit] = {}
        items = []
        for change in changes:
            item = self.find(change.section, change.name, directory)
            if change.value is not None and item.value is None:
                check_name(change.section, change.name)
            edit = files.get(item.file) or _unchanged(text_files.read(item.file))
            files[item.file] = replace(edit, text=self._change_text(edit.text, item, change))
            items.append(EditedItem(change.section, change.name, item.value, change.value))
        secrets_file = self._plan_secrets(secrets or {}, directory or self._directories.data)
        planned = names or dict.fromkeys([*(change.name for change in changes), *(secrets or {})])
        return self._validate(action, tuple(planned), files, tuple(items), secrets_file=secrets_file, secrets=secrets)

    def plan_undo(self, entry_id: str) -> PlannedEdit:
        """Return the edit that undoes one of the last edits. Raise EditConflict if an entry has changed since."""
        entry = next((each for each in self.history.list_entries() if each.id == entry_id), None)
        if entry is None:
            raise ToolError(f"no change {quote(entry_id)} in the history", hint="list them: onetool settings history")
        if not entry.can_undo:
            raise ToolError("this change cannot be undone: old values of secrets are not kept")
        files = {}
        for edited in entry.files:
            current = text_files.read(Path(edited.path))
            if edited.before is not None and _digest(current.text) == edited.after_digest:
                files[current.path] = FileEdit(current, edited.before)
        if len(files) != len(entry.files):  # something else was changed since then
            return replace(self._undo_items(entry), undoes=entry.id)
        items = tuple(EditedItem(item.section, item.name, item.after, item.before) for item in entry.items)
        return replace(self._validate("settings.undo", entry.names, files, items), undoes=entry.id)

    def _undo_items(self, entry: HistoryEntry) -> PlannedEdit:
        changes = []
        for edited in entry.items:
            current = self.find(edited.section, edited.name)
            if current.value != edited.after:
                message = f"{edited.section}.{edited.name} has changed since then, so the change cannot be undone"
                raise EditConflict(message, current)
            changes.append(ItemChange(edited.section, edited.name, edited.before))
        return self.plan("settings.undo", changes)

    def _change_text(self, text: str, item: SettingsItem, change: ItemChange) -> str:
        source, is_own_file = str(item.file), self._is_agent_file(item)
        if change.value is None:
            if is_own_file:
                raise ToolError(f"agent {quote(change.name)} is the file {item.file}", hint="delete the file")
            self._check_other_layers(item)
            return yaml_edit.remove_value(text, source, (change.section, change.name))
        if not is_own_file:
            return yaml_edit.set_value(text, source, (change.section, change.name), change.value)
        kept = {key: each for key, each in yaml_edit.parse_mapping(text, source).items() if key in FILE_KEYS}
        return yaml_edit.update(text, source, {**kept, **change.value})

    def _is_agent_file(self, item: SettingsItem) -> bool:
        configured = (self._directories.config_path(directory) for directory in self._directories.layers)
        return item.value is not None and item.file not in configured

    def _check_other_layers(self, item: SettingsItem) -> None:
        """Raise if another file defines the entry too: it would still be there."""
        for file, data, prefix in self._list_documents(item.section, item.name):
            section = data.get(item.section) if prefix else {item.name: data}
            if file.path != item.file and isinstance(section, dict) and item.name in section:
                what = f"{item.section}.{item.name}"
                raise ToolError(f"{what} is also set in {file.path}", hint=f"remove it from {file.path} first")

    def _plan_secrets(self, secrets: Mapping[str, str | None], directory: Path) -> FileEdit | None:
        if not secrets:
            return None
        file = text_files.read(directory / paths.SECRETS)
        known = yaml_edit.parse_mapping(file.text, str(file.path), typed=False)
        wanted = {name: value for name, value in {**known, **secrets}.items() if value is not None}
        for name in secrets.keys() - wanted.keys() - known.keys():
            raise ToolError(f"no secret {quote(name)} in {file.path}", hint="list them: onetool secret list")
        text = yaml_edit.update(file.text, str(file.path), wanted, typed=False) if wanted else "{}\n"
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
        every = (*files, *([secrets_file] if secrets_file else []))
        old = {edit.before.path: edit.before.text for edit in every if edit.before.raw}
        before = examine(self._directories, self._env, texts=old)
        after = examine(self._directories, self._env, texts={edit.before.path: edit.text for edit in every})
        if after.errors:
            redact = Redactor({*after.loaded.secret_values, *(value for value in secrets.values() if value)})
            problems = redact("\n".join(map(str, after.errors)))
            raise ConfigError(f"the settings would be invalid, so nothing was changed:\n{problems}")
        difference = _describe(files, secrets_file, secrets, before.loaded, after.loaded)
        return PlannedEdit(action, names, files, items, difference, before.loaded, after.loaded, secrets_file, secrets)

    # --- writing --------------------------------------------------------------------------------------------------

    def apply(self, planned: PlannedEdit, *, actor: str, transport: str) -> HistoryEntry:
        """Write the edit, keep the trust in the directory, and ask running servers to reload.

        Raise EditConflict if a file has changed since the edit was planned.
        """
        user = self._directories.user
        try:
            user.mkdir(mode=0o700, parents=True, exist_ok=True)
            with locked(user / LOCK):
                self._check_unchanged(planned)
                is_project = self._check_trust(planned)
                entry = _make_entry(planned, actor, transport)
                self._write(planned)
                if is_project and self._directories.project is not None:
                    trust(self._directories.project, user)
                self.history.add(entry)
            request_reload(user)
        except OSError as error:
            raise StorageError(f"cannot write to {error.filename or user}: {error.strerror or error}") from None
        return entry

    def _write(self, planned: PlannedEdit) -> None:
        if planned.secrets_file is not None:
            directory = planned.secrets_file.before.path.parent
            _make_directory(directory, is_private=directory == self._directories.user)
            ignore = text_files.read(directory / ".gitignore")
            if ignore.raw is None:
                text_files.write(ignore, scaffold.NOT_FOR_GIT, keep=False)
            text_files.write(
                planned.secrets_file.before, planned.secrets_file.text, mode=text_files.OWNER_ONLY, keep=False
            )
        for edit in planned.files:
            _make_directory(edit.before.path.parent, is_private=edit.before.path.parent == self._directories.user)
            mode = text_files.OWNER_ONLY if edit.before.raw is None else None
            text_files.write(edit.before, edit.text, mode=mode, keep=False)

    def _check_unchanged(self, planned: PlannedEdit) -> None:
        for edit in (*planned.files, *([planned.secrets_file] if planned.secrets_file else [])):
            if text_files.read(edit.before.path).raw != edit.before.raw:
                raise EditConflict(f"{edit.before.path} was changed by somebody else; nothing was written")

    def _check_trust(self, planned: PlannedEdit) -> bool:
        """Return whether trust in the project must be renewed. Raise if only an environment variable trusts it."""
        project = self._directories.project if self._directories.config_file is None else None
        edits = (*planned.files, *([planned.secrets_file] if planned.secrets_file else []))
        if project is None or not any(edit.before.path.is_relative_to(project) for edit in edits):
            return False
        if not is_trusted(project, self._directories.user, {}):
            reason = "its content is not recorded as trusted"
            raise ToolError(f"cannot edit {project}: {reason}", hint=f"{TO_TRUST} in {project.parent}")
        return True


def check_name(section: str, name: str) -> None:
    """Raise if a name is not suitable for a new entry."""
    kind = section.removesuffix("s")
    if not name or len(name) > MAX_NAME_CHARS or name != name.strip() or "/" in name:
        expected = f"expected up to {MAX_NAME_CHARS} characters without / and outer white space"
        raise ToolError(f"invalid {kind} name {quote(name)}: {expected}")
    if not name.isprintable() or find_in_name(name):
        raise ToolError(f"invalid {kind} name {name!a}: it contains invisible characters")


def check_secret_name(name: str) -> None:
    if not SECRET_NAME.fullmatch(name):
        raise ToolError(f"invalid secret name {name!a}", hint="use up to 100 letters, digits and _")


def _unchanged(file: TextFile) -> FileEdit:
    return FileEdit(file, file.text)


def _make_directory(directory: Path, *, is_private: bool) -> None:
    directory.mkdir(mode=0o700 if is_private else 0o777, parents=True, exist_ok=True)


def _describe(
    files: Iterable[FileEdit],
    secrets_file: FileEdit | None,
    secrets: Mapping[str, str | None],
    before: Loaded,
    after: Loaded,
) -> str:
    """Return the difference without secrets: those of secrets.yaml and what looks like one in the settings."""
    hidden = {*before.secret_values, *after.secret_values}
    parts = []
    for edit in files:
        source = str(edit.before.path)
        for text in (edit.before.text, edit.text):
            hidden.update(find_secrets(yaml_edit.parse_mapping(text, source)))
    redact = Redactor(hidden)
    parts += [text_files.diff(edit.before, edit.text, redact) for edit in files]
    if secrets_file is not None:
        lines = (f"{'- ' if value is None else '+ '}{name}" for name, value in secrets.items())
        parts.append("\n".join([f"{secrets_file.before.path} (names only)", *lines]))
    return "\n".join(parts)


def _make_entry(planned: PlannedEdit, actor: str, transport: str) -> HistoryEntry:
    files = (
        EditedFile(str(edit.before.path), None if edit.before.raw is None else edit.before.text, _digest(edit.text))
        for edit in planned.files
    )
    return HistoryEntry(
        id=os.urandom(8).hex(),
        at=in_utc(time.time(), "seconds"),
        actor=actor,
        transport=transport,
        action=planned.action,
        names=planned.names,
        difference=planned.difference,
        files=tuple(files),
        items=planned.items,
        secrets=tuple(planned.secrets),
        undoes=planned.undoes,
    )


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()[:32]
