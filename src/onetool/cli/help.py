"""Show help for a tool, a pack or an alias, or search for tools."""

from argparse import ArgumentParser

from onetool.cli.discovery import show_result
from onetool.cli.invocation import Invocation


def add_arguments(parser: ArgumentParser) -> None:
    parser.add_argument(
        "query",
        nargs="*",
        metavar="QUERY",
        help="name of a tool, pack or alias, or search words; an overview by default",
    )


async def execute(command: Invocation) -> None:
    arguments = {"query": " ".join(command.options.query)}
    await show_result(command, "ot.help", arguments, "searching for help", str)
