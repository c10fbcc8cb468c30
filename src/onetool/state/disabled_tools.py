"""The names of disabled tools and packs."""

from collections.abc import Iterable
from typing import Any

from onetool.errors import BundleError, StorageError, ToolError
from onetool.state.documents import ALL, Cached, Documents
from onetool.state.sqlite_database import StateDatabase
from onetool.util.problem import STORAGE, Problem

EVERYTHING = "*"  # not a valid name of a tool or pack
OWNER_MARK = "owner:"  # before the name or ID of what an owner disabled; not a part of a valid name


class DisabledTools:
    """The names of disabled tools and packs, in one document.

    If it cannot be read, everything is disabled, because a person may have disabled any of them.
    """

    def __init__(self, database: StateDatabase) -> None:
        self._documents = Documents(database, "disabled")
        self._names = Cached(database, "disabled", self._read)
        self.problem: Problem | None = None

    def off(self) -> frozenset[str]:
        """Return the names; changes of replicas are known within two seconds."""
        try:
            names = self._names.get()
        except ToolError as error:
            message = f"all tools are disabled: {error.message}"
            location = error.fields.get("location")
            self.problem = Problem(message, str(error.hint or ""), location=location, code=STORAGE)
            return frozenset({EVERYTHING})
        self.problem = None
        return names

    def list_names(self) -> frozenset[str]:
        """Return the names of disabled tools and packs, without bundles, which have their own
        state.
        """
        return frozenset(name for name in self.off() if not name.startswith(OWNER_MARK))

    def list_owner_marks(self) -> frozenset[str]:
        """Return the names and IDs that an owner disabled; `EVERYTHING` if that is unknown."""
        off = self.off()
        marks = {name.removeprefix(OWNER_MARK) for name in off if name.startswith(OWNER_MARK)}
        return frozenset(marks | off.intersection({EVERYTHING}))

    def mark(self, keys: Iterable[str], *, on: bool) -> None:
        """Record that an owner disabled these names or IDs, or enabled them."""
        changed = self.list_owner_marks().intersection(keys) if on else keys
        marks = [f"{OWNER_MARK}{key}" for key in changed]
        if marks:
            self.set(*marks, on=on)

    def set(self, *names: str, on: bool) -> None:
        def change(document: Any) -> list[str]:
            off = self._parse(document)
            return sorted(off.difference(names) if on else off.union(names))

        try:
            self._documents.update(ALL, change)
        except StorageError as error:
            details = {"database": self._documents.place, "reason": "failed"}
            raise BundleError(error.message, **{"details": details, **error.fields}) from None

    def _read(self) -> frozenset[str]:
        return self._parse(self._documents.get(ALL))

    def _parse(self, document: Any) -> frozenset[str]:
        names = document or []
        if not isinstance(names, list) or not all(isinstance(name, str) for name in names):
            message = f"cannot read {self._documents.place}: the list of disabled tools is damaged"
            raise StorageError(message, hint="restore it from a backup", code=STORAGE)
        return frozenset(names)
