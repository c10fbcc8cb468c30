"""Snippets that agents saved from runs that worked.

An agent can use its own saved snippets; other agents can use them after a person has accepted them.
Snippets of the settings have precedence. Saved snippets are never published as prompts.
"""

from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field, replace
from typing import Any

from onetool.errors import StorageError, ToolError
from onetool.settings.model import Snippet
from onetool.state.documents import Cached, Documents
from onetool.state.sqlite_database import StateDatabase
from onetool_child.json_types import JsonMapping

MAX_SNIPPETS = 200  # of one agent


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
        self._snippets = Cached(
            database, "snippets", lambda: _parse_snippets(self._documents.get("saved"))
        )

    def list_all(self) -> tuple[SavedSnippet, ...]:
        return self._snippets.get()

    def put(self, snippet: SavedSnippet) -> None:
        def replace_or_add(snippets: list[SavedSnippet]) -> list[SavedSnippet]:
            others = [
                other
                for other in snippets
                if (other.agent, other.name) != (snippet.agent, snippet.name)
            ]
            if sum(other.agent == snippet.agent for other in others) >= MAX_SNIPPETS:
                hint = "delete some with `onetool snippets delete NAME`"
                raise StorageError(
                    f"agent {snippet.agent} already has {MAX_SNIPPETS} saved snippets", hint=hint
                )
            return [*others, snippet]

        self.change(replace_or_add)

    def accept(self, snippet: SavedSnippet, by: str) -> bool:
        """Accept a snippet as the person saw it. Return False if it has changed since then."""
        accepted = replace(snippet, accepted_by=by)
        return self.change(
            lambda snippets: [accepted if other == snippet else other for other in snippets]
        )

    def delete(self, agent: str, name: str) -> bool:
        return self.change(
            lambda snippets: [
                other for other in snippets if (other.agent, other.name) != (agent, name)
            ]
        )

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
        """Return the snippets that an agent can use: configured ones, its own, and accepted ones of
        other agents.
        """
        try:
            snippets = self.list_all()
        except ToolError:  # shown by `onetool snippets`; configured snippets work without the file
            snippets = ()
        usable = [snippet for snippet in snippets if snippet.accepted_by and snippet.agent != agent]
        usable += [snippet for snippet in snippets if snippet.agent == agent]
        return {**{snippet.name: snippet.to_snippet() for snippet in usable}, **configured}


def _parse_snippets(document: Any) -> tuple[SavedSnippet, ...]:
    return tuple(SavedSnippet(**fields) for fields in document or ())
