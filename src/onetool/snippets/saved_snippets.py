"""Snippets that agents saved from runs that worked.

An agent can use its own saved snippets; other agents can use them after a person has accepted them. Snippets of the
settings have precedence. Saved snippets are never published as prompts.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from onetool.config.model import Snippet
from onetool.errors import ToolError
from onetool_child.json_types import JsonMapping

if TYPE_CHECKING:
    from onetool.state.storage import SavedSnippetStorage


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


def merge_snippets(configured: Mapping[str, Snippet], saved: "SavedSnippetStorage", agent: str) -> dict[str, Snippet]:
    """Return the snippets that an agent can use: configured ones, its own, and accepted ones of other agents."""
    try:
        known = saved.list_all()
    except ToolError:  # shown by `onetool snippets`; configured snippets work without the file
        known = ()
    usable = [each for each in known if each.accepted_by and each.agent != agent]
    usable += [each for each in known if each.agent == agent]
    return {**{each.name: each.to_snippet() for each in usable}, **configured}
