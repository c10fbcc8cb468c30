"""State that is kept in documents: disabled tools, saved snippets, and the last use of tokens."""

from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any, Self

from onetool.errors import BundleError, StorageError, ToolError
from onetool.snippets.saved_snippets import SavedSnippet
from onetool.state.disabled_tools import EVERYTHING, OWNER_MARK
from onetool.state.documents import ALL, Cached, ChangeNumbers, DocumentFile, Documents
from onetool.state.sqlite_database import StateDatabase
from onetool.util.problem import STORAGE, Problem

MODEL_USAGE = "model usage"  # the kind of the documents with the tokens of each day
MAX_SNIPPETS = 200  # of one agent


class DisabledTools:
    """The names of disabled tools and packs, in one document.

    If it cannot be read, everything is disabled, because a person may have disabled any of them.
    """

    def __init__(self, database: StateDatabase, changes: ChangeNumbers) -> None:
        self._documents = Documents(database, "disabled")
        self._names = Cached(changes, "disabled", self._read)
        self.problem: Problem | None = None

    @classmethod
    def open_file(cls, directory: Path) -> Self:
        file = DocumentFile(directory)
        return cls(file, file)

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
        """Return the names of disabled tools and packs, without bundles, which have their own state."""
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
            self._names.refresh()
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


class SavedSnippets:
    """The saved snippets of all agents, in one document. Changes of replicas are known within two seconds."""

    def __init__(self, database: StateDatabase, changes: ChangeNumbers) -> None:
        self._documents = Documents(database, "snippets")
        self._snippets = Cached(changes, "snippets", lambda: _parse_snippets(self._documents.get("saved")))

    @classmethod
    def open_file(cls, directory: Path) -> Self:
        file = DocumentFile(directory)
        return cls(file, file)

    def list_all(self) -> tuple[SavedSnippet, ...]:
        return self._snippets.get()

    def put(self, snippet: SavedSnippet) -> None:
        def replace_or_add(snippets: list[SavedSnippet]) -> list[SavedSnippet]:
            others = [other for other in snippets if (other.agent, other.name) != (snippet.agent, snippet.name)]
            if sum(other.agent == snippet.agent for other in others) >= MAX_SNIPPETS:
                hint = "delete some with `onetool snippets delete NAME`"
                raise StorageError(f"agent {snippet.agent} already has {MAX_SNIPPETS} saved snippets", hint=hint)
            return [*others, snippet]

        self.change(replace_or_add)

    def accept(self, snippet: SavedSnippet, by: str) -> bool:
        """Accept a snippet as the person saw it. Return False if it has changed since then."""
        accepted = replace(snippet, accepted_by=by)
        return self.change(lambda snippets: [accepted if other == snippet else other for other in snippets])

    def delete(self, agent: str, name: str) -> bool:
        return self.change(lambda snippets: [other for other in snippets if (other.agent, other.name) != (agent, name)])

    def change(self, change: Callable[[list[SavedSnippet]], list[SavedSnippet]]) -> bool:
        """Change the snippets, while nobody else can. Return whether they are different now."""
        before: tuple[SavedSnippet, ...] = ()

        def apply(document: Any) -> Any:
            nonlocal before
            before = _parse_snippets(document)
            return [asdict(snippet) for snippet in change(list(before))]

        after = _parse_snippets(self._documents.update("saved", apply))
        self._snippets.refresh()
        return after != before


def _parse_snippets(document: Any) -> tuple[SavedSnippet, ...]:
    return tuple(SavedSnippet(**fields) for fields in document or ())


class LastUses:
    """When each token was last used."""

    def __init__(self, database: StateDatabase, clock: Callable[[], float]) -> None:
        self._documents = Documents(database, "token use", is_announced=False)
        self._clock = clock

    def touch(self, identifier: str) -> None:
        with suppress(ToolError):
            self._documents.update(identifier, lambda _: self._clock())

    def read(self, identifier: str) -> float | None:
        seconds = self._documents.get(identifier)
        return None if seconds is None else float(seconds)

    def forget(self, identifier: str) -> None:
        with suppress(ToolError):
            self._documents.update(identifier, lambda _: None)
