"""Help on a tool, a pack or an alias, or a search for words; an overview without any."""

import argparse

from ot.app import OneTool
from ot.cli.opening import with_settings
from ot.render import render


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("query", nargs="*", metavar="QUERY", help="a name, or words to search for")
    parser.add_argument("--json", action="store_true", help="print JSON")


def main(options: argparse.Namespace) -> int:
    async def show(app: OneTool) -> int:
        text = (await app.bus.call_tool("ot.help", {"query": " ".join(options.query)}, app.context())).unwrap()
        print(render({"help": text}, "json") if options.json else text)
        return 0

    return with_settings(options, show)
