"""Show help for a tool, a pack or an alias, or search for tools."""

from argparse import ArgumentParser, Namespace
from typing import TYPE_CHECKING

from onetool.cli.discovery import show_result
from onetool.cli.options import add_json
from onetool.cli.terminal import CommandOutput
from onetool.core.render import render

if TYPE_CHECKING:
    from onetool.app import OneTool


def add_arguments(parser: ArgumentParser) -> None:
    parser.add_argument(
        "query",
        nargs="*",
        metavar="QUERY",
        help="name of a tool, pack or alias, or search words; an overview by default",
    )
    add_json(parser)


async def execute(app: "OneTool", options: Namespace, output: CommandOutput) -> int:
    def to_text(text: str) -> str:
        return render({"help": text}, "json") if options.json else text

    arguments = {"query": " ".join(options.query)}
    return await show_result(app, output, "ot.help", arguments, progress="searching for help", to_text=to_text)
