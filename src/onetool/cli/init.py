"""Make .onetool/ in this folder: a configuration to fill in and an example pack. Files that exist stay as they are.

In a terminal it asks once whether to connect the assistant that it finds; --yes connects it without asking.
"""

import argparse
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from onetool import paths
from onetool.cli import connect
from onetool.cli.signals import undisturbed
from onetool.cli.terminal import is_terminal
from onetool.config import scaffold
from onetool.config.trust import is_trusted, trust
from onetool.errors import StorageError, ToolError

if TYPE_CHECKING:
    from onetool.clients.catalogue import Client

NEXT = """\
Try it:    onetool run 'hello.greet(name="Ada")'
Edit it:   {example}
Look at:   onetool tools hello --info full
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--yes", action="store_true", help="ask nothing and connect the assistant that is found")
    parser.add_argument("--json", action="store_true", help="print what was written as JSON, and ask nothing")


def main(options: argparse.Namespace) -> int:
    folder, user = connect.this_place().working_dir / paths.FOLDER, Path.home() / paths.FOLDER
    is_own = folder.resolve() == user.resolve()
    was_trusted = is_own or not folder.exists() or is_trusted(folder, user, {})
    with undisturbed():
        written = scaffold.write_folder(folder)
        if not is_own:
            _trust(folder, user)
    if options.json:
        from onetool.render import render

        print(render({"folder": str(folder), "written": list(map(str, written))}, "json"))
        return 0
    print("\n".join(f"wrote {file}" for file in written) or f"{folder} has all of it already")
    if not was_trusted:
        print(f"{folder} is trusted now, with everything that was in it before: look at it once")
    print(f"\n{NEXT.format(example=scaffold.extension_file(folder, scaffold.EXAMPLE_PACK))}", end="")
    return _connect(options)


def _trust(folder: Path, user: Path) -> None:
    """Trust a directory that its owner has just created."""
    try:
        trust(folder, user)
    except StorageError as error:
        raise ToolError(f"{folder} is made but not trusted: {error.message}", hint=error.hint) from None


# --- an assistant --------------------------------------------------------------------------------------------------


def _connect(options: argparse.Namespace) -> int:
    """One that is here and does not know us yet; nobody is asked about anything else."""
    place = connect.this_place()
    known = {client.name for client in connect.connected(place)}
    new = [client for client in connect.present(place) if client.name not in known]
    if not new:
        return 0
    if not options.yes and not (is_terminal(sys.stdin) and is_terminal(sys.stdout)):
        print(f"Connect:   onetool connect {new[0].name} --write")
        return 0
    chosen = new[0] if options.yes else _asked(new)
    if chosen is None:
        print(f"To connect one later: onetool connect {new[0].name} --write")
        return 0
    print()
    given = {"client": chosen.name, "write": True, "project": False, "folder": None, "command": None, "json": False}
    return connect.main(argparse.Namespace(**given))


def _asked(clients: "list[Client]") -> "Client | None":
    """The assistant that a person chooses; an empty line takes the first, and whatever is none of them none."""
    names = {client.name: client for client in clients}
    first = clients[0]
    if len(clients) == 1:
        question, yes = f"\nConnect {first.title}, so that it can use these tools? [Y/n] ", {"", "y", "yes"}
    else:
        question, yes = f"\nConnect which assistant: {', '.join(names)}, or none? [{first.name}] ", {""}
    try:
        answer = input(question).strip().lower()
    except EOFError:
        print()
        return None
    return first if answer in yes else names.get(answer)
