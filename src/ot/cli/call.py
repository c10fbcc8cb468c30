"""Call one tool by its name, with arguments as key=value, and print its result as JSON."""

import argparse
import json
import sys
from collections.abc import Iterable
from typing import Any

from ot.app import OneTool
from ot.cli.opening import with_settings
from ot.errors import ToolError, describe
from ot.render import render
from ot_child.data import as_data


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("name", metavar="NAME", help="the tool, for example machine.disk")
    parser.add_argument(
        "arguments", nargs="*", default=(), metavar="key=value", help="values are JSON where they can be, else text"
    )
    parser.add_argument("--agent", default="default", metavar="NAME", help="call with the limits of this agent")
    parser.add_argument("--json", action="store_true", help="print errors as JSON too")


def main(options: argparse.Namespace) -> int:
    arguments = _arguments(options.arguments)

    async def call(app: OneTool) -> int:
        result = await app.bus.call_tool(options.name, arguments, app.context(options.agent))
        if result.error is not None:
            return _failed(describe(result.error), as_json=options.json)
        value = as_data(result.value)
        shown = json.dumps(value, ensure_ascii=False) if isinstance(value, str) else None
        print(shown or render(value, "json_h" if sys.stdout.isatty() else "json"))
        return 0

    return with_settings(options, call)


def _failed(error: dict[str, Any], *, as_json: bool) -> int:
    if as_json:
        print(render({"error": error}, "json"))
    else:
        print(f"onetool: {_in_a_shell(error['message'])}", file=sys.stderr)
    return 1


def _in_a_shell(message: str) -> str:
    """What a person reads, who types commands of the shell where code would call functions."""
    return message.replace("Type ot.tools() to", "Type `onetool tools` to")


def _arguments(texts: Iterable[str]) -> dict[str, Any]:
    arguments: dict[str, Any] = {}
    for key, value in map(_argument, texts):
        if key in arguments:
            raise ToolError(f"{key} is given twice; write it once")
        arguments[key] = value
    return arguments


def _argument(text: str) -> tuple[str, Any]:
    key, equals, value = text.partition("=")
    if not equals or not key:
        raise ToolError(f"{text!r} is no argument; write key=value, for example unit=GiB")
    try:
        return key, json.loads(value)
    except ValueError:
        return key, value
