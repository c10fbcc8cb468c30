"""Manage snippets that agents saved. Snippets of the settings are not listed."""

import json
from argparse import ArgumentParser, Namespace
from typing import TYPE_CHECKING

from onetool.cli.approver import confirm_person, run_guarded
from onetool.cli.options import add_actions, add_json, print_json
from onetool.errors import ToolError, ToolNotFound
from onetool.util.invisible import escape_invisible
from onetool.util.text import quote
from onetool.util.time_format import in_utc
from onetool_child.json_types import JsonMapping, JsonObject

if TYPE_CHECKING:
    from onetool.app import OneTool
    from onetool.snippets.saved_snippets import SavedSnippet, SavedSnippets


def add_arguments(parser: ArgumentParser) -> None:
    listing, accept, delete = add_actions(
        parser,
        {
            "list": "List saved snippets with their code",
            "accept": "Let all agents use a saved snippet",
            "delete": "Delete a saved snippet",
        },
    )
    accept.add_argument("--token", metavar="TOKEN", help="token of scope approve, instead of a confirmation")
    for action in (accept, delete):
        action.add_argument("name", metavar="NAME", help="name of the snippet")
        action.add_argument(
            "--agent", default="default", metavar="AGENT", help="agent that saved it (default: default)"
        )
    add_json(listing, accept, delete)


def main(options: Namespace) -> int:
    return run_guarded(options, lambda app: _execute(app, options))


async def _execute(app: "OneTool", options: Namespace) -> int:
    saved = app.state.snippets
    if options.action == "list":
        return _list(saved, as_json=options.json)
    snippet = _find(saved, options.agent, options.name)
    if options.action == "accept":
        await _accept(app, saved, snippet, options.token)
    else:
        saved.delete(snippet.agent, snippet.name)
    done = "accepted" if options.action == "accept" else "deleted"
    print(json.dumps({"snippet": snippet.name, done: True}) if options.json else f"{snippet.name}: {done}")
    return 0


def _list(saved: "SavedSnippets", *, as_json: bool) -> int:
    found = [_describe(each) for each in saved.list_all()]
    if as_json:
        print_json({"snippets": found})
    elif not found:
        print("No snippets are saved. An agent saves one with ot.save_snippet.")
    for each in [] if as_json else found:
        state = f"accepted by {each['accepted_by']}" if each["accepted_by"] else "not accepted for other agents"
        print(f"${each['name']}  agent {each['agent']}, {each['saved']}, {state}\n  {each['description']}")
        print("\n".join(_list_lines(each["body"], each["params"])))
    return 0


def _describe(snippet: "SavedSnippet") -> JsonObject:
    return {
        "name": snippet.name,
        "agent": snippet.agent,
        "description": escape_invisible(snippet.description),
        "params": dict(snippet.params),
        "body": escape_invisible(snippet.body),
        "run": snippet.run,
        "saved": in_utc(snippet.at, "seconds"),
        "accepted_by": snippet.accepted_by,
    }


def _find(saved: "SavedSnippets", agent: str, name: str) -> "SavedSnippet":
    name = name.removeprefix("$")
    found = next((each for each in saved.list_all() if (each.agent, each.name) == (agent, name)), None)
    if found is None:
        message = f"agent {agent} has no saved snippet {quote(name)}"
        raise ToolNotFound(message, hint="list them with `onetool snippets list`")
    return found


async def _accept(app: "OneTool", saved: "SavedSnippets", snippet: "SavedSnippet", token: str | None) -> None:
    """Show the code to a person, and accept it if the person confirms."""
    lines = [f"All agents will be able to run ${snippet.name}:", *_list_lines(snippet.body, snippet.params)]
    person = await confirm_person(app, token, lines)
    if not saved.accept(snippet, person.name) and snippet not in saved.list_all():
        raise ToolError(f"${snippet.name} was changed meanwhile; nothing was accepted", hint="run the command again")


def _list_lines(body: str, params: JsonMapping) -> list[str]:
    """Return the code with the defaults of its parameters, which are a part of what it does."""
    defaults = [f"    {name} = {json.dumps(value, ensure_ascii=False)}" for name, value in params.items()]
    return [*(f"    {line}" for line in body.splitlines()), *(["  by default, with"] if defaults else []), *defaults]
