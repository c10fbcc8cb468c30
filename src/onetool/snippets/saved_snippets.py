"""Snippets that agents saved from runs that worked, in one file of the data directory or in a shared store.

An agent can use its own saved snippets; other agents can use them after a person has accepted them. Snippets of the
settings have precedence. Saved snippets are never published as prompts.
"""

import json
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING

from onetool.config.model import Snippet
from onetool.errors import StorageError, ToolError
from onetool.util import atomic
from onetool.util.locks import locked
from onetool.util.storage_errors import storage_error
from onetool.util.versioning import NewerVersion, check_version
from onetool_child.json_types import JsonMapping

if TYPE_CHECKING:
    from onetool.state.storage import SavedSnippetStorage

FILE = "snippets.json"
VERSION = 1
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
        return Snippet.model_validate({"description": self.description, "params": params, "body": self.body})


Change = Callable[[list[SavedSnippet]], list[SavedSnippet]]


class SavedSnippetSet(ABC):
    """The saved snippets of all agents."""

    @abstractmethod
    def list_all(self) -> tuple[SavedSnippet, ...]: ...

    @abstractmethod
    def change(self, change: Change) -> bool:
        """Change the snippets, while nobody else can. Return whether they are different now."""

    def put(self, snippet: SavedSnippet) -> None:
        def replace_or_add(known: list[SavedSnippet]) -> list[SavedSnippet]:
            others = [each for each in known if (each.agent, each.name) != (snippet.agent, snippet.name)]
            if sum(each.agent == snippet.agent for each in others) >= MAX_SNIPPETS:
                hint = "delete some with `onetool snippets delete NAME`"
                raise StorageError(f"agent {snippet.agent} already has {MAX_SNIPPETS} saved snippets", hint=hint)
            return [*others, snippet]

        self.change(replace_or_add)

    def accept(self, snippet: SavedSnippet, by: str) -> bool:
        """Accept a snippet as the person saw it. Return False if it has changed since then."""
        return self.change(lambda known: [replace(each, accepted_by=by) if each == snippet else each for each in known])

    def delete(self, agent: str, name: str) -> bool:
        return self.change(lambda known: [each for each in known if (each.agent, each.name) != (agent, name)])


class SavedSnippetFile(SavedSnippetSet):
    """The saved snippets in a file, which is read again after changes by other processes."""

    def __init__(self, directory: Path) -> None:
        self._file = directory / FILE
        self._stamp: object = None
        self._known: tuple[SavedSnippet, ...] = ()

    def list_all(self) -> tuple[SavedSnippet, ...]:
        try:
            facts = self._file.stat()
        except OSError:
            return ()
        stamp = facts.st_mtime_ns, facts.st_size, facts.st_ino
        if stamp != self._stamp:
            self._known = self._read()
            self._stamp = stamp
        return self._known

    def change(self, change: Change) -> bool:
        try:
            self._file.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
            with locked(self._file.with_name(f"{FILE}.lock")):
                known = list(self._read())
                changed = change(list(known))
                if changed != known:
                    data = {"version": VERSION, "snippets": [asdict(each) for each in changed]}
                    atomic.write(self._file, json.dumps(data, indent=1), durable=True)
                return changed != known
        except OSError as error:
            raise storage_error(self._file.parent, error, StorageError) from error

    def _read(self) -> tuple[SavedSnippet, ...]:
        try:
            data = json.loads(self._file.read_bytes())
            check_version(data.get("version"), VERSION, self._file)
            return tuple(SavedSnippet(**each) for each in data["snippets"])
        except FileNotFoundError:
            return ()
        except NewerVersion:
            raise
        except (OSError, ValueError, TypeError, KeyError, AttributeError) as error:
            hint = "fix or move it"
            raise StorageError(f"cannot read {self._file}: {error}", hint=hint) from None


def merge_snippets(configured: Mapping[str, Snippet], saved: "SavedSnippetStorage", agent: str) -> dict[str, Snippet]:
    """Return the snippets that an agent can use: configured ones, its own, and accepted ones of other agents."""
    try:
        known = saved.list_all()
    except ToolError:  # shown by `onetool snippets`; configured snippets work without the file
        known = ()
    usable = [each for each in known if each.accepted_by and each.agent != agent]
    usable += [each for each in known if each.agent == agent]
    return {**{each.name: each.to_snippet() for each in usable}, **configured}
