"""Call one tool by its name, with arguments as key=value, and print its result as JSON."""

import argparse
import json
import sys
from typing import Any

from ot.app import OneTool
from ot.cli.opening import with_settings
from ot.errors import ToolError, describe
from ot.render import render


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("name", metavar="NAME", help="the tool, for example machine.disk")
    parser.add_argument(
        "arguments", nargs="*", metavar="key=value", help="values are JSON where they can be, else text"
    )
    parser.add_argument("--agent", default="default", metavar="NAME", help="call with the limits of this agent")
    parser.add_argument("--json", action="store_true", help="print errors as JSON too")


def main(options: argparse.Namespace) -> int:
    arguments = dict(map(_argument, options.arguments))

    async def call(app: OneTool) -> int:
        result = await app.bus.call_tool(options.name, arguments, app.context(options.agent))
        if result.error is None:
            print(
                render(result.value, "json_h" if sys.stdout.isatty() else "json")
                if not isinstance(result.value, str)
                else json.dumps(result.value, ensure_ascii=False)
            )
            return 0
        error = describe(result.error)
        print(
            render({"error": error}, "json") if options.json else f"onetool: {error['message']}",
            file=sys.stdout if options.json else sys.stderr,
        )
        return 1

    return with_settings(options, call)


def _argument(text: str) -> tuple[str, Any]:
    key, equals, value = text.partition("=")
    if not equals or not key:
        raise ToolError(f"{text!r} is no argument; write key=value, for example unit=GiB")
    try:
        return key, json.loads(value)
    except ValueError:
        return key, value
