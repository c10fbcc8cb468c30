"""Manage snippets that agents saved. Snippets of the settings are not listed."""

import json
from argparse import ArgumentParser
from collections.abc import Iterator
from typing import TYPE_CHECKING

from onetool.cli.approver import confirm_person
from onetool.cli.invocation import Invocation
from onetool.cli.options import Actions

if TYPE_CHECKING:
    from onetool.admin.snippets import SavedSnippetInfo

IS_GUARDED = True


def add_arguments(parser: ArgumentParser) -> None:
    actions = Actions(parser)
    actions.add("list", _list, "List saved snippets with their code")
    accept = actions.add("accept", _accept, "Let all agents use a saved snippet")
    delete = actions.add("delete", _delete, "Delete a saved snippet")
    accept.add_argument(
        "--token", metavar="TOKEN", help="token of scope approve, instead of a confirmation"
    )
    for action in (accept, delete):
        action.add_argument("name", metavar="NAME", help="name of the snippet")
        action.add_argument(
            "--agent",
            default="default",
            metavar="AGENT",
            help="agent that saved it (default: default)",
        )


async def _list(command: Invocation) -> None:
    from onetool.admin.snippets import list_snippets

    snippets = (await command.do(list_snippets)).snippets
    data = {"snippets": [snippet.model_dump(exclude={"digest"}) for snippet in snippets]}
    lines = (line for snippet in snippets for line in _describe(snippet))
    command.show(data, lines, "No snippets are saved. An agent saves one with ot.save_snippet.")


async def _accept(command: Invocation) -> None:
    """Show the code to a person, and accept it if the person confirms."""
    from onetool.admin.snippets import SnippetAcceptance, accept_snippet, describe, find_snippet

    app = command.app
    snippet = describe(find_snippet(app, command.options.agent, command.options.name))
    lines = [f"All agents will be able to run ${snippet.name}:", *_list_code(snippet)]
    person = await confirm_person(app, command.options.token, lines)
    await accept_snippet(
        app, person, snippet.agent, snippet.name, SnippetAcceptance(digest=snippet.digest)
    )
    command.show({"snippet": snippet.name, "accepted": True}, [f"{snippet.name}: accepted"])


async def _delete(command: Invocation) -> None:
    from onetool.admin.snippets import delete_snippet

    name = command.options.name.removeprefix("$")
    await command.do(delete_snippet, command.options.agent, name)
    command.show({"snippet": name, "deleted": True}, [f"{name}: deleted"])


def _describe(snippet: "SavedSnippetInfo") -> Iterator[str]:
    state = (
        f"accepted by {snippet.accepted_by}"
        if snippet.accepted_by
        else "not accepted for other agents"
    )
    yield f"${snippet.name}  agent {snippet.agent}, {snippet.saved}, {state}"
    yield f"  {snippet.description}"
    yield from _list_code(snippet)


def _list_code(snippet: "SavedSnippetInfo") -> Iterator[str]:
    """Yield the code with the defaults of its parameters, which are a part of what it does."""
    yield from (f"    {line}" for line in snippet.body.splitlines())
    if snippet.params:
        yield "  by default, with"
    yield from (
        f"    {name} = {json.dumps(value, ensure_ascii=False)}"
        for name, value in snippet.params.items()
    )
