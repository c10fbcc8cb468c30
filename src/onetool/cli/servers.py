"""Manage upstream servers."""

import argparse
from collections.abc import Mapping
from typing import TYPE_CHECKING

from onetool.cli.app_runner import run_with_settings
from onetool.cli.terminal import Progress
from onetool.render import render

if TYPE_CHECKING:
    from onetool.app import OneTool


def add_arguments(parser: argparse.ArgumentParser) -> None:
    actions = parser.add_subparsers(dest="action", metavar="ACTION", required=True)
    accept = actions.add_parser("accept", help="Accept a server's new and changed tool definitions and update its pins")
    accept.add_argument("server", metavar="SERVER", help="name of the server in onetool.yaml")
    accept.add_argument("--json", action="store_true", help="print JSON")


def main(options: argparse.Namespace) -> int:
    async def accept(app: "OneTool") -> int:
        with Progress(f"listing the tools of {options.server}"):
            changed = await app.servers.accept(options.server)
        if options.json:
            print(render({"server": options.server, "accepted": changed}, "json"))
        else:
            print(_text(options.server, changed))
        return 0

    return run_with_settings(options, accept)


def _text(server: str, changed: Mapping[str, str]) -> str:
    """Return a summary with the differences, so that the user sees what was accepted."""
    if not changed:
        return f"{server}: no changes."
    differences = "\n\n".join(f"{server}.{tool}:\n{difference}" for tool, difference in changed.items())
    accepted = f"{server}: accepted {', '.join(changed)}. Run `onetool reload` to apply it to running servers."
    return f"{differences}\n\n{accepted}"
