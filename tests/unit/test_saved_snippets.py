"""Test how code becomes the body of a snippet, and which snippets an agent can use."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from onetool.errors import ToolError
from onetool.runs.snippets import expand_call
from onetool.runs.snippets.parameters import make_template
from onetool.settings.model import Snippet
from onetool.state.document_kinds import SavedSnippet, SavedSnippets
from onetool.state.documents import DocumentFile

CALLS: list[tuple[str, dict[str, Any]]] = [
    ("hub.issues", {"repo": "me/app", "limit": 5, "state": "open"}),
    ("hub.close-issue", {"number": 7, "repo": "me/app"}),
]


@pytest.mark.parametrize(
    ("code", "params"),
    [
        ("hub.issues(repo='me/app', limit=5)", {"repo": "me/app", "limit": 5}),
        (
            "hub.issues('me/app')\nhub.close_issue(7, repo='me/app')",
            {"repo": "me/app", "number": 7},
        ),
        ("hub.issues(repo='a')\nhub.issues(repo='b')", {"repo": "a", "repo_2": "b"}),
        ("name = 'é \"quoted\" {{ x }}'\nhub.issues(repo=name)", {"name": 'é "quoted" {{ x }}'}),
        ("x = f'{{{1}}} {{% y %}}'\nhub.issues(repo=x, limit=1)", {"limit": 1}),
        ("print('me/app', 5)", {}),
        ("n = '12'\nhub.issues(limit=True, repo=n)", {"n": "12", "limit": True}),
    ],
)
def test_literals_become_parameters_and_defaults_restore_the_code(
    code: str, params: dict[str, Any]
) -> None:
    template = make_template(code, CALLS)
    assert template.params == params
    snippet = SavedSnippet("default", "s", "text", template.body, template.params).to_snippet()
    expanded = expand_call("s", {}, {"s": snippet})
    assert compile(expanded, "", "exec").co_code == compile(code, "", "exec").co_code
    assert compile(expanded, "", "exec").co_consts == compile(code, "", "exec").co_consts


@pytest.mark.parametrize(
    "code",
    [
        "hub.issues(repo='ghp_0123456789abcdefghij0123')",
        "print('sk-live-0123456789abcdef0123')",
        "password = 'hunter2'\nhub.issues(repo=password)",
        f"x = {'1 + ' * 6000}1",
    ],
)
def test_secrets_and_long_code_are_rejected(code: str) -> None:
    with pytest.raises(ToolError, match=r"looks like a secret|characters"):
        make_template(code, CALLS)


def test_agents_see_their_own_and_accepted_snippets_behind_configured_ones(tmp_path: Path) -> None:
    saved = SavedSnippets(DocumentFile(tmp_path))
    for agent, name in (("a", "mine"), ("b", "theirs"), ("b", "good"), ("a", "fixed")):
        saved.put(SavedSnippet(agent, name, agent, "1"))
    good = SavedSnippet("b", "good", "b", "1")
    assert not saved.accept(replace(good, body="2"), "Ada")  # it was saved again while she read it
    assert saved.accept(good, "Ada")
    configured = {"fixed": Snippet(description="configured", body="2")}
    found = SavedSnippets(DocumentFile(tmp_path)).merge(configured, "a")
    assert {name: snippet.description for name, snippet in found.items()} == {
        "mine": "a",
        "good": "b",
        "fixed": "configured",
    }
    saved.put(SavedSnippet("b", "good", "b", "3"))  # a changed snippet must be accepted again
    assert "good" not in saved.merge(configured, "a")
