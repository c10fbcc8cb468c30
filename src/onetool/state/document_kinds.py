"""Kinds of state that are kept in documents: disabled tools, saved snippets and last uses of tokens.

An agent can use its own saved snippets; other agents can use them after a person has accepted them.
Snippets of the settings have precedence. Saved snippets are never published as prompts.
"""

from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass, field, replace
from typing import Any

from onetool.errors import BundleError, StorageError, ToolError
from onetool.settings.model import Snippet
from onetool.state.documents import ALL, Cached, Documents
from onetool.state.sqlite_database import StateDatabase
from onetool.util.problem import STORAGE, Problem
from onetool_child.json_types import JsonMapping

MODEL_USAGE = "model usage"  # the kind of the documents with the tokens of each day
EVERYTHING = "*"  # not a valid name of a tool or pack
OWNER_MARK = "owner:"  # before the name or ID of what an owner disabled; not a part of a valid name
MAX_SNIPPETS = 200  # of one agent


class LastUses:
    """When each token was last used."""

    def __init__(self, database: StateDatabase) -> None:
        self._documents = Documents(database, "token use", is_announced=False)
        self._now = database.now

    def touch(self, identifier: str) -> None:
        with suppress(ToolError):
            self._documents.update(identifier, lambda _: self._now())

    def read(self, identifier: str) -> float | None:
        seconds = self._documents.get(identifier)
        return None if seconds is None else float(seconds)

    def forget(self, identifier: str) -> None:
        with suppress(ToolError):
            self._documents.update(identifier, lambda _: None)


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
        """Return the names of disabled tools and packs. Bundles have their own state."""
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


@dataclass(frozen=True, slots=True)
class SavedSnippet:
    """A snippet that an agent saved. `params` has the default of each parameter."""

    agent: str
    name: str
    description: str
    body: str
    params: JsonMapping = field(default_factory=dict)
    run: str = ""  # the run it was made from
    at: float = 0.0
    accepted_by: str = ""  # the person who accepted it for other agents

    def to_snippet(self) -> Snippet:
        params = {name: {"default": value} for name, value in self.params.items()}
        return Snippet.model_validate(
            {"description": self.description, "params": params, "body": self.body}
        )


class SavedSnippets:
    """The saved snippets of all agents, in one document.

    Changes of replicas are known within two seconds.
    """

    def __init__(self, database: StateDatabase) -> None:
        self._documents = Documents(database, "snippets")
        self._snippets = Cached(database, "snippets", self._read)

    def _read(self) -> tuple[SavedSnippet, ...]:
        return _parse_snippets(self._documents.get("saved"))

    def list_all(self) -> tuple[SavedSnippet, ...]:
        return self._snippets.get()

    def put(self, snippet: SavedSnippet) -> None:
        def replace_or_add(snippets: list[SavedSnippet]) -> list[SavedSnippet]:
            others = _exclude(snippets, snippet.agent, snippet.name)
            if sum(other.agent == snippet.agent for other in others) >= MAX_SNIPPETS:
                message = f"agent {snippet.agent} already has {MAX_SNIPPETS} saved snippets"
                hint = "delete some with `onetool snippets delete NAME`"
                raise StorageError(message, hint=hint)
            return [*others, snippet]

        self.change(replace_or_add)

    def accept(self, snippet: SavedSnippet, by: str) -> bool:
        """Accept a snippet as the person saw it. Return False if it has changed since then."""
        accepted = replace(snippet, accepted_by=by)
        return self.change(
            lambda snippets: [accepted if other == snippet else other for other in snippets]
        )

    def delete(self, agent: str, name: str) -> bool:
        return self.change(lambda snippets: _exclude(snippets, agent, name))

    def change(self, change: Callable[[list[SavedSnippet]], list[SavedSnippet]]) -> bool:
        """Change the snippets, while nobody else can. Return whether they are different now."""
        before: tuple[SavedSnippet, ...] = ()

        def apply(document: Any) -> Any:
            nonlocal before
            before = _parse_snippets(document)
            return [asdict(snippet) for snippet in change(list(before))]

        after = _parse_snippets(self._documents.update("saved", apply))
        return after != before

    def merge(self, configured: Mapping[str, Snippet], agent: str) -> dict[str, Snippet]:
        """Return an agent's snippets: configured, its own, and accepted ones of other agents."""
        try:
            snippets = self.list_all()
        except ToolError:  # shown by `onetool snippets`; configured snippets work without the file
            snippets = ()
        usable = [snippet for snippet in snippets if snippet.accepted_by and snippet.agent != agent]
        usable += [snippet for snippet in snippets if snippet.agent == agent]
        return {**{snippet.name: snippet.to_snippet() for snippet in usable}, **configured}


def _exclude(snippets: Iterable[SavedSnippet], agent: str, name: str) -> list[SavedSnippet]:
    return [snippet for snippet in snippets if (snippet.agent, snippet.name) != (agent, name)]


def _parse_snippets(document: Any) -> tuple[SavedSnippet, ...]:
    return tuple(SavedSnippet(**fields) for fields in document or ())
