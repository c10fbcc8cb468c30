"""List all tools, or those whose name contains PATTERN."""

import argparse
from typing import TYPE_CHECKING, Any

from onetool.cli.app_runner import run_here
from onetool.cli.discovery import show_result
from onetool.cli.terminal import CommandOutput
from onetool.render import render
from onetool.util.text import quote

if TYPE_CHECKING:
    from onetool.app import OneTool


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("pattern", nargs="?", default="", metavar="PATTERN", help="part of the tool name")
    parser.add_argument("--info", choices=("list", "min", "full"), default="min", help="level of detail (default: min)")
    parser.add_argument("--json", action="store_true", help="print JSON")


def main(options: argparse.Namespace) -> int:
    return run_here(options, execute)


async def execute(app: "OneTool", options: argparse.Namespace, output: CommandOutput) -> int:
    def to_text(found: list[Any]) -> str:
        return render(found, "json") if options.json else _text(found, options.pattern)

    arguments = {"pattern": options.pattern, "info": options.info}
    return await show_result(app, output, "ot.tools", arguments, progress="listing tools", to_text=to_text)


def _text(found: list[Any], pattern: str) -> str:
    if not found:
        return f"No tool name contains {quote(pattern)}. Run `onetool tools` to list all tools."
    if isinstance(found[0], str):
        return "\n".join(found)
    is_full = "signature" in found[0]
    lines = (render(each, "yml_h") + "\n" if is_full else f"{each['name']:24} {each['description']}" for each in found)
    return "\n".join(lines)
