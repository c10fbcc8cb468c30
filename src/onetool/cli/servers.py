"""Manage upstream servers."""

import argparse
from collections.abc import Mapping
from typing import TYPE_CHECKING

from onetool.cli.opening import with_settings
from onetool.cli.terminal import Progress
from onetool.render import render

if TYPE_CHECKING:
    from onetool.app import OneTool


def add_arguments(parser: argparse.ArgumentParser) -> None:
    actions = parser.add_subparsers(dest="action", metavar="ACTION", required=True)
    accept = actions.add_parser("accept", help="accept a server's new and changed tool definitions and update its pins")
    accept.add_argument("server", metavar="SERVER", help="name of the server in onetool.yaml")
    accept.add_argument("--json", action="store_true", help="print JSON")


def main(options: argparse.Namespace) -> int:
    async def accept(app: "OneTool") -> int:
        with Progress(f"asking {options.server} for its tools"):
            changed = await app.servers.accept(options.server)
        if options.json:
            print(render({"server": options.server, "accepted": changed}, "json"))
        else:
            print(_text(options.server, changed))
        return 0

    return with_settings(options, accept)


def _text(server: str, changed: Mapping[str, str]) -> str:
    """With the differences: who accepts something is to see what it was."""
    if not changed:
        return f"{server}: nothing had changed."
    differences = "\n\n".join(f"{server}.{tool}:\n{difference}" for tool, difference in changed.items())
    return f"{differences}\n\n{server}: accepted {', '.join(changed)}. A running server takes it up with ot.reload()."
