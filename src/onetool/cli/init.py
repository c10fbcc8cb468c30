"""Create .onetool/ in this directory with commented settings and an example pack.

Existing files are kept.

If .onetool/ exists and is not trusted, the command shows its content as `onetool trust` does, and
asks first. In a terminal, the command asks whether to connect an installed assistant; --yes
connects it without asking.
"""

import os
import sys
from argparse import ArgumentParser, Namespace
from pathlib import Path
from typing import TYPE_CHECKING

from onetool.cli import connect
from onetool.cli.command import Command, choose_stream, print_result
from onetool.cli.exit_status import blocked_signals
from onetool.cli.terminal import is_terminal
from onetool.cli.trust import require_trust
from onetool.errors import StorageError, ToolError
from onetool.settings import paths, scaffold
from onetool.settings.trust import is_trusted, trust

if TYPE_CHECKING:
    from onetool.settings.clients.catalog import Client

NEXT = """\
Try it:    onetool run 'hello.greet(name="Ada")'
Edit it:   {example}
Inspect:   onetool tools hello --info full
Develop:   onetool dev hello
Test it:   onetool test hello
"""


def add_arguments(parser: ArgumentParser) -> None:
    parser.add_argument(
        "--yes", action="store_true", help="connect an installed assistant without asking"
    )


def main(options: Namespace) -> int:
    working_dir = connect.current_machine().working_dir
    user = Path.home() / paths.FOLDER
    directory = working_dir / paths.FOLDER
    is_user = directory.resolve() == user.resolve()
    if not is_user and os.path.lexists(directory) and not is_trusted(directory, user, {}):
        require_trust(paths.Directories(working_dir, user), directory, choose_stream(options))
    with blocked_signals():
        written = scaffold.write_settings_directory(directory)
        if not is_user:
            _trust(directory, user)
    lines = [f"Wrote {file}" for file in written] or [f"{directory} is already complete"]
    print_result(options, {"folder": str(directory), "written": list(map(str, written))}, lines)
    if options.json:
        return 0
    print(
        f"\n{NEXT.format(example=scaffold.extension_file(directory, scaffold.EXAMPLE_PACK))}",
        end="",
    )
    return _connect(options)


def _trust(directory: Path, user: Path) -> None:
    """Trust the directory: its content was trusted before, or the user created it."""
    try:
        trust(directory, user)
    except StorageError as error:
        raise ToolError(
            f"{directory} was created but not trusted: {error.message}", hint=error.hint
        ) from None


# --- assistants -----------------------------------------------------------------------------------


def _connect(options: Namespace) -> int:
    """Offer to connect an assistant that is installed and not connected."""
    machine = connect.current_machine()
    connected = {client.name for client in connect.find_connected_clients(machine)}
    new = [
        client for client in connect.find_installed_clients(machine) if client.name not in connected
    ]
    if not new:
        return 0
    if not options.yes and not (is_terminal(sys.stdin) and is_terminal(sys.stdout)):
        print(f"Connect:   onetool connect {new[0].name} --write")
        return 0
    chosen = new[0] if options.yes else _ask_client(new)
    if chosen is None:
        print(f"To connect an assistant later: onetool connect {new[0].name} --write")
        return 0
    print()
    arguments = {
        "client": chosen.name,
        "write": True,
        "project": False,
        "folder": None,
        "command": None,
        "json": False,
    }
    return connect.main(Namespace(**arguments))


def _ask_client(clients: "list[Client]") -> "Client | None":
    """Ask which assistant to connect: an empty line chooses the first, any other answer none."""
    names = {client.name: client for client in clients}
    first = clients[0]
    if len(clients) == 1:
        question = f"\nConnect {first.title}? [Y/n] "
        yes = {"", "y", "yes"}
    else:
        question = f"\nConnect which assistant: {', '.join(names)}, or none? [{first.name}] "
        yes = {""}
    try:
        answer = input(question).strip().lower()
    except EOFError:
        print()
        return None
    return first if answer in yes else names.get(answer)


COMMANDS = {
    "init": Command(
        __doc__, add_arguments, main=main, json="print the written files as JSON, without asking"
    )
}
