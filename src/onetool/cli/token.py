"""Tokens for clients that come over HTTP: create one for an agent, list them, delete one. Only hashes are kept."""

import argparse
import json
import os
import re
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from onetool.cli import editing
from onetool.cli.terminal import print_notices
from onetool.clients import files, yaml_edit
from onetool.errors import ToolError
from onetool.paths import find_folders

if TYPE_CHECKING:
    from onetool.config.load import Loaded

SECTION, KEY = "auth", "tokens"
NAME = re.compile(r"\w[\w.@-]{0,63}")
ACCEPTED = "Running servers accept it within 2 seconds."
REJECTED = "Running servers reject it within 2 seconds and end its open streams."


def add_arguments(parser: argparse.ArgumentParser) -> None:
    actions = parser.add_subparsers(dest="action", metavar="ACTION", required=True)
    create = actions.add_parser("create", help="make a token and print it, this once")
    create.add_argument("name", metavar="NAME", help="what to call it, for example laptop")
    create.add_argument("--agent", default="default", metavar="AGENT", help="whose limits its clients have")
    delete = actions.add_parser("delete", help="revoke a token")
    delete.add_argument("name", metavar="NAME", help="the name of the token")
    for action in (create, actions.add_parser("list", help="show the tokens, without what they are"), delete):
        action.add_argument("--json", action="store_true", help="print JSON")


def main(options: argparse.Namespace) -> int:
    from onetool.config.load import load

    loaded = load(find_folders(os.environ, Path.cwd(), options.config, Path.home()), os.environ)
    print_notices(loaded.problems)
    return {"create": _create, "list": _list, "delete": _delete}[options.action](loaded, options)


# --- create --------------------------------------------------------------------------------------------------------


def _create(loaded: "Loaded", options: argparse.Namespace) -> int:
    from onetool.faces.http.keys import hash_of, new_token

    _check_new(loaded, options.name, options.agent)
    token, entry = new_token(), {"name": options.name}
    with editing.configuration(loaded.folders) as before:
        source = str(before.path)
        there = yaml_edit.list_in(before.text, source, SECTION, KEY)
        _refuse_twice(options.name, [item.get("name") for item in there if isinstance(item, dict)])
        entry |= {"hash": hash_of(token), "agent": options.agent}
        text = yaml_edit.with_items(before.text, source, SECTION, KEY, [entry])
        editing.write(loaded.folders, before, text, keep=False)  # nothing was changed but this
    hidden = [] if there else [known.name for known in loaded.settings.auth.tokens]
    notes = [_hidden(hidden, before.path)] if hidden else []
    _print_new(token, options, before.path, notes)
    return 0


def _check_new(loaded: "Loaded", name: str, agent: str) -> None:
    if not NAME.fullmatch(name):
        raise ToolError(
            f"{name!a} is no name for a token; a name has up to 64 letters, digits and _ . @ -, like laptop"
        )
    agents = loaded.settings.agents
    if agent not in agents:
        raise ToolError(f"there is no agent {agent!r}; agents are {', '.join(sorted(agents))}")


def _refuse_twice(name: str, names: list[Any]) -> None:
    if name in names:
        raise ToolError(f"there is a token {name} already; choose another name, or type: onetool token delete {name}")


def _hidden(names: list[str], file: Path) -> str:
    """Lists of a project replace those of the person, so that the first token here takes all others away."""
    return f"{file} has tokens of its own now, so that these are let in no longer here: {', '.join(names)}"


def _print_new(token: str, options: argparse.Namespace, file: Path, notes: list[str]) -> None:
    """The token alone goes to the output, so that a script can take it; what there is to say goes beside it."""
    if options.json:
        shown = {"name": options.name, "agent": options.agent, "token": token, "file": str(file), "notes": notes}
        print(json.dumps(shown, indent=2, ensure_ascii=False))
        return
    print(token, flush=True)
    said = [
        f"This is the token {options.name} of the agent {options.agent}, shown this once; {file} keeps its hash.",
        f"Clients send it as `Authorization: Bearer ...`. {ACCEPTED}",
        *(f"Note: {note}" for note in notes),
    ]
    print("\n".join(said), file=sys.stderr)


# --- list ----------------------------------------------------------------------------------------------------------


def _list(loaded: "Loaded", options: argparse.Namespace) -> int:
    kept = {"name", "agent", "token_env"}
    tokens = [token.model_dump(include=kept, exclude_none=True) for token in loaded.settings.auth.tokens]
    if options.json:
        print(json.dumps({"tokens": tokens}, indent=2, ensure_ascii=False))
    elif not tokens:
        print("There are no tokens. To make one: onetool token create NAME --agent default")
    else:
        width = max(len(token["name"]) for token in tokens)
        for token in tokens:
            variable = f", from the variable {token['token_env']}" if "token_env" in token else ""
            print(f"{token['name']:{width}}  agent {token['agent']}{variable}")
    return 0


# --- delete --------------------------------------------------------------------------------------------------------


def _delete(loaded: "Loaded", options: argparse.Namespace) -> int:
    with editing.configuration(loaded.folders) as before:
        index = _index(loaded, before, options.name)
        text = yaml_edit.without_item(before.text, str(before.path), SECTION, KEY, index)
        editing.write(loaded.folders, before, text, keep=False)
    if options.json:
        print(json.dumps({"deleted": options.name, "file": str(before.path)}, indent=2, ensure_ascii=False))
    else:
        print(f"{options.name} is deleted from {before.path}. {REJECTED}")
    return 0


def _index(loaded: "Loaded", before: files.Read, name: str) -> int:
    there = yaml_edit.list_in(before.text, str(before.path), SECTION, KEY)
    names = [item.get("name") if isinstance(item, dict) else None for item in there]
    if name in names:
        return names.index(name)
    known = [token.name for token in loaded.settings.auth.tokens]
    if name in known:
        raise ToolError(f"{name} does not stand in {before.path}; delete it where it does, among {_files(loaded)}")
    raise ToolError(f"there is no token {name}; tokens are {', '.join(known) or 'none'}")


def _files(loaded: "Loaded") -> str:
    return ", ".join(map(str, loaded.files))
