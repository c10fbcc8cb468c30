"""Help on a tool, a pack or an alias, or a search for words; an overview without any."""

import argparse
from typing import TYPE_CHECKING

from onetool.cli.opening import with_settings
from onetool.cli.terminal import Progress, print_notices
from onetool.render import render

if TYPE_CHECKING:
    from onetool.app import OneTool


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("query", nargs="*", metavar="QUERY", help="a name, or words to search for")
    parser.add_argument("--json", action="store_true", help="print JSON")


def main(options: argparse.Namespace) -> int:
    async def show(app: "OneTool") -> int:
        from onetool.runner.answer import Journal

        journal = Journal()
        with Progress("looking for help"):
            context, arguments = app.context(journal=journal), {"query": " ".join(options.query)}
            text = (await app.bus.call_tool("ot.help", arguments, context)).unwrap()
        print(app.redact(render({"help": text}, "json") if options.json else text))
        print_notices(journal.notices)
        return 0

    return with_settings(options, show)
