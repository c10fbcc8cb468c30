"""The last edits of settings, with what is needed to undo them.

The history is a file of the user's directory that only the user can read, because it contains old
texts of settings files. The history of settings in a store is in the store.
"""

import json
import os
import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pydantic import TypeAdapter, ValidationError

from onetool.errors import ToolError
from onetool.util import atomic
from onetool.util.atomic import locked
from onetool.util.problem import STORAGE, Location, check_version
from onetool.util.text import describe_problem
from onetool.util.time_format import in_utc

if TYPE_CHECKING:
    from onetool.settings.contents import EditableSettings

LOCK = "onetool.yaml.lock"  # of the settings files of a user
FILE = "settings-history.json"
VERSION = 1
MAX_ENTRIES = 50
MAX_BYTES = 8 << 20


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
    """An edit. `difference` contains the names of secrets that it set or deleted, and no values of
    secrets.

    `paths` are all files that it changed, and `files` those that undoing it restores. A change of a
    token has none, so that nobody brings a revoked token back.
    """

    id: str
    at: str
    actor: str
    transport: str
    action: str
    names: tuple[str, ...]
    difference: str
    paths: tuple[str, ...] = ()
    files: tuple[EditedFile, ...] = ()
    items: tuple[EditedItem, ...] = ()
    undoes: str = ""

    @property
    def can_undo(self) -> bool:
        """Whether it can be undone. Old values of secrets and tokens are not kept."""
        return bool(self.files)


ENTRIES = TypeAdapter(list[HistoryEntry])


class EditHistory:
    """The history of one user."""

    def __init__(self, user_directory: Path) -> None:
        self._file = user_directory / FILE

    def list_entries(self) -> list[HistoryEntry]:
        """Return the edits, newest first."""
        try:
            return _parse_history(self._file.read_text("utf-8"), self._file)
        except FileNotFoundError:
            return []
        except (OSError, UnicodeDecodeError) as error:
            raise _unreadable(self._file, error) from None

    @property
    def stamp(self) -> tuple[int, int] | None:
        """The time and size of the file, which change with its content; None without a file."""
        try:
            status = self._file.stat()
        except OSError:
            return None
        return status.st_mtime_ns, status.st_size

    @contextmanager
    def adding(self, entry: HistoryEntry) -> Iterator[None]:
        """Add the edit that the block makes.

        If the history cannot be read or written, the block does not run.

        The caller holds the lock of the settings files.
        """
        text = _render_history([entry, *self.list_entries()])
        with atomic.replacing(self._file) as temporary:
            with open(temporary, "x", encoding="utf-8", opener=atomic.owner_only) as file:
                file.write(text)
                file.flush()
                os.fsync(file.fileno())
            yield

    def add(self, entry: HistoryEntry) -> None:
        """Add a change that was made already."""
        with locked(self._file.with_name(LOCK)), self.adding(entry):
            pass


class StoredHistory(EditHistory):
    """The history of the settings in a store."""

    def __init__(self, storage: "EditableSettings") -> None:
        self._storage = storage

    def list_entries(self) -> list[HistoryEntry]:
        return _parse_history(self._storage.read_history(), "the history in the store")

    def add(self, entry: HistoryEntry) -> None:
        self._storage.update(lambda current, history: (current, add_entry(history, entry)))


def new_entry(
    action: str,
    names: Iterable[str],
    *,
    actor: str,
    transport: str,
    difference: str = "",
    **undo: Any,
) -> HistoryEntry:
    """Return an edit made now. `undo` are the fields that undoing it needs, if that is possible."""
    entry_id = os.urandom(8).hex()
    at = in_utc(time.time(), "seconds")
    return HistoryEntry(entry_id, at, actor, transport, action, tuple(names), difference, **undo)


def add_entry(history: str, entry: HistoryEntry) -> str:
    """Return a history as text, with another entry."""
    return _render_history([entry, *_parse_history(history, "the history in the store")])


def _parse_history(text: str, source: Path | str) -> list[HistoryEntry]:
    try:
        data: Any = json.loads(text) if text else {"version": VERSION, "entries": []}
        check_version(data.get("version"), VERSION, source)
        return ENTRIES.validate_python(data["entries"])
    except ValidationError as error:  # its message would contain old texts of settings files
        first = error.errors(include_url=False, include_context=False, include_input=False)[0]
        place = ".".join(map(str, first["loc"]))
        raise _unreadable(source, f"{place}: {describe_problem(first)}") from None
    except (ValueError, TypeError, KeyError, AttributeError) as error:
        raise _unreadable(source, error) from None


def _unreadable(source: Path | str, error: Exception | str) -> ToolError:
    place = Location(str(source))
    hint = "fix it, or delete it to begin a new history"
    return ToolError(f"cannot read {source}: {error}", hint=hint, location=place, code=STORAGE)


def _render_history(entries: Sequence[HistoryEntry]) -> str:
    kept = ENTRIES.dump_python(list(entries[:MAX_ENTRIES]), mode="json")
    while (
        len(text := json.dumps({"version": VERSION, "entries": kept})) > MAX_BYTES and len(kept) > 1
    ):
        kept.pop()
    return text
