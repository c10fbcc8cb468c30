"""The last edits of settings files, with what is needed to undo them.

The history is a file of the user's directory that only the user can read: it contains old texts of settings files.
"""

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Final

from onetool.errors import ToolError
from onetool.problem import STORAGE, Location
from onetool.util import atomic
from onetool.util.versioning import reject_newer

FILE: Final = "settings-history.json"
VERSION: Final = 1
MAX_ENTRIES: Final = 50
MAX_BYTES: Final = 8 << 20


@dataclass(frozen=True, slots=True)
class EditedFile:
    """A file before an edit (None if it did not exist), and the digest of the file after it."""

    path: str
    before: str | None
    after_digest: str


@dataclass(frozen=True, slots=True)
class EditedItem:
    """A named entry of a section before and after an edit; None if it did not exist."""

    section: str
    name: str
    before: Any
    after: Any


@dataclass(frozen=True, slots=True)
class HistoryEntry:
    """An edit. `difference` contains no secrets; `secrets` are the names of secrets that it set or deleted."""

    id: str
    at: str
    actor: str
    transport: str
    action: str
    names: tuple[str, ...]
    difference: str
    files: tuple[EditedFile, ...] = ()
    items: tuple[EditedItem, ...] = ()
    secrets: tuple[str, ...] = ()
    undoes: str = ""

    @property
    def can_undo(self) -> bool:
        """Whether it can be undone. Old values of secrets are not kept."""
        return bool(self.files)


class EditHistory:
    """The history of one user. Writers hold the lock of the settings files."""

    def __init__(self, user_directory: Path) -> None:
        self._file = user_directory / FILE

    def list_entries(self) -> list[HistoryEntry]:
        """Return the edits, newest first."""
        try:
            data = json.loads(self._file.read_bytes())
            reject_newer(data["version"], VERSION, self._file)
            return [_parse_entry(each) for each in data["entries"]]
        except FileNotFoundError:
            return []
        except (OSError, ValueError, TypeError, KeyError) as error:
            place, hint = Location(str(self._file)), "fix it, or delete it to begin a new history"
            raise ToolError(f"cannot read {self._file}: {error}", hint=hint, location=place, code=STORAGE) from None

    def add(self, entry: HistoryEntry) -> None:
        entries = [asdict(each) for each in (entry, *self.list_entries()[: MAX_ENTRIES - 1])]
        while len(text := json.dumps({"version": VERSION, "entries": entries})) > MAX_BYTES and len(entries) > 1:
            entries.pop()
        atomic.write(self._file, text, durable=True)


def _parse_entry(data: Mapping[str, Any]) -> HistoryEntry:
    lists = {name: tuple(data[name]) for name in ("names", "secrets")}
    files = tuple(EditedFile(**each) for each in data["files"])
    items = tuple(EditedItem(**each) for each in data["items"])
    return HistoryEntry(**{**data, **lists, "files": files, "items": items})
