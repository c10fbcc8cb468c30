"""Call a tool and print its result as JSON."""

import json
from argparse import ArgumentParser, Namespace
from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from onetool.cli.approver import find_terminal_approver
from onetool.cli.exit_status import FAILED, WAITING
from onetool.cli.invocation import Invocation, make_caller
from onetool.cli.options import add_agent
from onetool.core.bus.bind import expand_name
from onetool.core.names import python_name
from onetool.errors import ApprovalRequired, describe
from onetool.runs.explain import indent_trace
from onetool.util.problem import Problem
from onetool.util.render import render
from onetool.util.text import quote
from onetool_child.data import as_data
from onetool_child.json_types import JsonObject

if TYPE_CHECKING:
    from onetool.app import OneTool

CHECKS_SETTINGS = False  # only if the shared server makes the call
JSON = "print errors as JSON: {ok, error}"


def add_arguments(parser: ArgumentParser) -> None:
    parser.add_argument("name", metavar="NAME", help="name of the tool, such as machine.disk")
    parser.add_argument(
        "arguments",
        nargs="*",
        default=(),
        metavar="key=value",
        help="arguments; values are parsed as JSON if possible, otherwise as strings",
    )
    add_agent(parser)
    parser.add_argument(
        "--account",
        default="",
        metavar="ACCOUNT",
        help="account of the server (default: the first)",
    )


def check(options: Namespace) -> None:
    options.texts = _split_arguments(options)


async def execute(command: Invocation) -> int:
    app = command.app
    options = command.options
    output = command.output
    approver = find_terminal_approver(command)
    command.check_settings()
    with output.progress(f"calling {options.name}"):
        arguments = await _parse_arguments(app, options.name, options.texts)
        context = app.runs.open_context(make_caller(options.agent), ask=approver)
        context = replace(context, account=options.account)
        result = await app.bus.call_tool(options.name, arguments, context)
    if result.error is not None:
        error = describe(result.error)
        status = WAITING if error["type"] == ApprovalRequired.type else FAILED
        if options.json or status == WAITING:
            output.write(app.redact(render({"ok": False, "error": error}, "json")) + "\n")
            return status
        # On the command line, the hint is a shell command instead of a function call.
        message = error["message"].replace(
            "Call ot.tools() to list all.", "Run `onetool tools` to list all."
        )
        message = "\n".join([message, *indent_trace(error.get("trace"))])
        output.error(app.redact(f"onetool: {Problem(message, error.get('hint') or '')}") + "\n")
        return status
    value = as_data(result.value)
    shown = json.dumps(value, ensure_ascii=False) if isinstance(value, str) else None
    output.write(
        app.redact(shown or render(value, "json_h" if output.is_terminal else "json")) + "\n"
    )
    return 0


def _split_arguments(options: Namespace) -> dict[str, str]:
    texts: dict[str, str] = {}
    for argument in options.arguments:
        key, equals, text = argument.partition("=")
        if not equals or not key:
            options.usage_error(
                f"invalid argument {quote(argument)}: expected key=value, such as unit=GiB"
            )
        if key in texts:
            options.usage_error(f"duplicate argument {quote(key)}")
        texts[key] = text
    return texts


async def _parse_arguments(app: "OneTool", name: str, texts: Mapping[str, str]) -> JsonObject:
    """Parse values as JSON, except for parameters of type string: `id=1` is then the string "1"."""
    await app.discover({python_name(name).partition(".")[0]})
    tool = app.registry.get(name)
    kinds = tool.input.properties if tool is not None else {}
    return {
        key: _parse_value(text, kinds.get(expand_name(key, kinds), {}).get("type"))
        for key, text in texts.items()
    }


def _parse_value(text: str, kind: object) -> Any:
    try:
        value = json.loads(text)
    except ValueError:
        return text
    return text if kind == "string" and not isinstance(value, str) else value
