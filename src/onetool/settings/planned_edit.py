"""An edit of settings that was planned: its texts, its difference without secrets, and its entry in
the history.
"""

import hashlib
import json
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from onetool.errors import ToolError
from onetool.settings.clients import text_files, yaml_edit
from onetool.settings.clients.text_files import TextFile
from onetool.settings.contents import SettingsContents, StoredSettings
from onetool.settings.edit_history import (
    EditedFile,
    EditedItem,
    HistoryEntry,
    add_entry,
    new_entry,
)
from onetool.settings.layers import STORED_CONFIG, STORED_SECRETS
from onetool.settings.load import Loaded
from onetool.util.invisible import find_in_name
from onetool.util.redact import Redactor
from onetool.util.secret_finder import find_secrets
from onetool.util.text import quote
from onetool_child.json_types import JsonMapping

MAX_NAME_CHARS = 100
MAX_VALUE_BYTES = 64 << 10  # of an entry or a secret
MAX_STORED_BYTES = 4 << 20  # of all entries or secrets in a store, which every replica reads
SECRET_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,99}", re.ASCII)


class EditConflict(ToolError):
    """Raised if an entry has changed since the caller read it. `item` is its current state."""

    type = "conflict"

    def __init__(self, message: str, item: "SettingsItem | None" = None) -> None:
        super().__init__(message, hint="read it again, then repeat the change")
        self.item = item


@dataclass(frozen=True, slots=True)
class SettingsItem:
    """A named entry of a section as its file has it: with references instead of secrets.

    None if there is none.
    """

    section: str
    name: str
    file: Path
    value: Any

    @property
    def etag(self) -> str | None:
        """A digest of the value, the same on all replicas."""
        if self.value is None:
            return None
        digest = digest_text(json.dumps(self.value, default=str))
        return f'"{digest}"'


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
    contents: SettingsContents = field(repr=False)  # of the settings files after the edit
    secrets_file: FileEdit | None = field(default=None, repr=False)
    secrets: Mapping[str, str | None] = field(default_factory=dict, repr=False)  # None deletes one
    undoes: str = ""

    @property
    def edits(self) -> tuple[FileEdit, ...]:
        return self.files if self.secrets_file is None else (*self.files, self.secrets_file)

    @property
    def changes_anything(self) -> bool:
        return bool(self.edits)

    @property
    def unedited(self) -> SettingsContents:
        """The settings files as they were read for the edit."""
        edited = {edit.before.path: edit.before.raw for edit in self.edits}
        return SettingsContents({**self.contents.contents, **edited})


def check_name(section: str, name: str) -> None:
    """Raise if a name is not suitable for a new entry."""
    kind = section.removesuffix("s")
    if not name or len(name) > MAX_NAME_CHARS or name != name.strip() or "/" in name:
        expected = f"expected up to {MAX_NAME_CHARS} characters without / and outer white space"
        raise ToolError(f"invalid {kind} name {quote(name)}: {expected}")
    if not name.isprintable() or find_in_name(name):
        raise ToolError(f"invalid {kind} name {name!r}: it contains invisible characters")


def check_secret_name(name: str) -> None:
    if not SECRET_NAME.fullmatch(name):
        raise ToolError(f"invalid secret name {name!r}", hint="use up to 100 letters, digits and _")


def check_sizes(changes: Sequence[ItemChange], secrets: Mapping[str, str | None]) -> None:
    """Raise if a value is too large."""
    values = {f"secret {name}": value or "" for name, value in secrets.items()}
    for change in changes:
        values[f"{change.section}.{change.name}"] = json.dumps(change.value, default=str)
    for name, value in values.items():
        size = len(value.encode("utf-8", "surrogatepass"))
        if size > MAX_VALUE_BYTES:
            raise ToolError(f"{name} is too large: {size:,} bytes (at most {MAX_VALUE_BYTES:,})")


def make_conflict(edit: FileEdit) -> EditConflict:
    return EditConflict(f"{edit.before.path} was changed by somebody else; nothing was written")


def describe_difference(
    files: Iterable[FileEdit],
    secrets_file: FileEdit | None,
    secrets: Mapping[str, str | None],
    before: Loaded,
    after: Loaded,
) -> str:
    """Return the difference without values of secrets.yaml and what looks like a secret."""
    hidden = {*before.secret_values, *after.secret_values}
    parts = []
    for edit in files:
        source = str(edit.before.path)
        for text in (edit.before.text, edit.text):
            data = yaml_edit.parse_mapping(text, source)
            hidden.update([*find_secrets(data), *_list_token_hashes(data)])
    redact = Redactor(hidden)
    parts += [text_files.diff(edit.before, edit.text, redact) for edit in files]
    if secrets_file is not None:
        lines = (f"{'- ' if value is None else '+ '}{name}" for name, value in secrets.items())
        parts.append("\n".join([f"{secrets_file.before.path} (names only)", *lines]))
    return "\n".join(parts)


def _list_token_hashes(data: JsonMapping) -> list[str]:
    """Return the hashes of tokens, which may be on lines beside a change."""
    auth = data.get("auth")
    tokens = auth.get("tokens") if isinstance(auth, dict) else None
    hashes = [token.get("hash") for token in tokens or () if isinstance(token, dict)]
    return [token_hash for token_hash in hashes if isinstance(token_hash, str)]


def make_entry(planned: PlannedEdit, actor: str, transport: str) -> HistoryEntry:
    files = []
    for edit in planned.files:
        before = None if edit.before.raw is None else edit.before.text
        files.append(EditedFile(str(edit.before.path), before, digest_text(edit.text)))
    return new_entry(
        planned.action,
        planned.names,
        actor=actor,
        transport=transport,
        difference=planned.difference,
        paths=tuple(str(edit.before.path) for edit in planned.edits),
        files=tuple(files),
        items=planned.items,
        undoes=planned.undoes,
    )


def change_stored(
    planned: PlannedEdit, entry: HistoryEntry, current: StoredSettings, history: str
) -> tuple[StoredSettings, str]:
    """Return the settings in the store and their history after an edit.

    Raise EditConflict if they have changed.
    """
    texts = {STORED_CONFIG: current.text, STORED_SECRETS: current.secrets}
    for edit in planned.edits:
        if texts[edit.before.path] != edit.before.text:
            raise make_conflict(edit)
        texts[edit.before.path] = edit.text
        if len(edit.text.encode()) > MAX_STORED_BYTES:
            limit = f"at most {MAX_STORED_BYTES:,} bytes"
            raise ToolError(f"{edit.before.path} would be too large ({limit})")
    return StoredSettings(texts[STORED_CONFIG], texts[STORED_SECRETS]), add_entry(history, entry)


def digest_text(text: str) -> str:
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()[:32]
