"""Show help for a tool, a pack or an alias, or search for tools."""

import argparse
from typing import TYPE_CHECKING

from onetool.cli.app_runner import run_with_settings
from onetool.cli.terminal import Progress, print_notices
from onetool.render import render

if TYPE_CHECKING:
    from onetool.app import OneTool


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "query",
        nargs="*",
        metavar="QUERY",
        help="name of a tool, pack or alias, or search words; an overview by default",
    )
    parser.add_argument("--json", action="store_true", help="print JSON")


def main(options: argparse.Namespace) -> int:
    async def show(app: "OneTool") -> int:
        from onetool.runner.answer import Journal

        journal = Journal()
        with Progress("searching for help"):
            context, arguments = app.context(journal=journal), {"query": " ".join(options.query)}
            text = (await app.bus.call_tool("ot.help", arguments, context)).unwrap()
        print(app.redact(render({"help": text}, "json") if options.json else text))
        print_notices(journal.notices)
        return 0

    return run_with_settings(options, show)
