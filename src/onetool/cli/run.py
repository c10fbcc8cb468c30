"""Commands that call tools: run, call and api."""

import json
import sys
from argparse import ArgumentParser, Namespace
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from onetool.cli.approver import find_terminal_approver
from onetool.cli.command import Command, add_agent
from onetool.cli.exit_status import FAILED, WAITING
from onetool.cli.invocation import Invocation, make_caller
from onetool.core.bus.bind import expand_name
from onetool.core.names import python_name
from onetool.errors import ApprovalRequired, ToolError, describe
from onetool.runs.explain import indent_trace
from onetool.util.problem import Problem
from onetool.util.render import render
from onetool.util.text import quote
from onetool_child.data import FORMATS, as_data
from onetool_child.json_types import JsonObject

if TYPE_CHECKING:
    from starlette.types import Receive, Scope, Send

    from onetool.app import OneTool

METHODS = ("GET", "POST", "PUT", "PATCH", "DELETE")


# --- run ------------------------------------------------------------------------------------------


def _add_run_arguments(parser: ArgumentParser) -> None:
    parser.add_argument(
        "code", nargs="?", metavar="CODE", help="Python code, or - to read it from standard input"
    )
    parser.add_argument(
        "-f", "--file", type=Path, metavar="FILE", help="file to read the code from"
    )
    add_agent(parser)
    parser.add_argument(
        "--plan", action="store_true", help="list the calls with effects instead of making them"
    )
    parser.add_argument("--format", choices=FORMATS, help="format of the result")


def _check_run(options: Namespace) -> None:
    options.code = _read_code(options)


async def _run(command: Invocation) -> int:
    from onetool.runs.run_output import ClientChannel, RunOutput

    options = command.options
    output = command.output
    code = f"ot.plan(code={options.code!r})" if options.plan else options.code
    approver = find_terminal_approver(command)
    with output.progress("running") as progress:
        channel = ClientChannel(listener=progress.on_event, approve=approver)
        output_so_far = RunOutput(channel)
        caller = make_caller(options.agent)
        answer = await command.app.runs.run(code, caller, output_so_far, options.format)
    if options.json:
        from onetool.util.render import render

        output.write(
            render({"blocks": list(answer.blocks), "is_error": answer.is_error}, "json") + "\n"
        )
    else:
        output.write(f"{answer.text}\n")
    if answer.is_paused or answer.error == ApprovalRequired.type:
        return WAITING
    return int(answer.is_error)


def _read_code(options: Namespace) -> str:
    if (options.code is None) == (options.file is None):
        options.usage_error(
            "expected either CODE or --file, for example: onetool run 'ot.tools()', onetool run -f"
            " FILE, onetool run -"
        )
    try:
        if options.file is not None:
            text: str = options.file.read_text(encoding="utf-8")
            return text
        return sys.stdin.buffer.read().decode() if options.code == "-" else str(options.code)
    except UnicodeDecodeError:
        reason = "it is not valid UTF-8"
    except OSError as error:
        reason = str(error.strerror or error)
    raise ToolError(f"cannot read {options.file or 'standard input'}: {reason}")


# --- call -----------------------------------------------------------------------------------------


def _add_call_arguments(parser: ArgumentParser) -> None:
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


def _check_call(options: Namespace) -> None:
    options.texts = _split_arguments(options)


async def _call(command: Invocation) -> int:
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


# --- api ------------------------------------------------------------------------------------------


def _add_api_arguments(parser: ArgumentParser) -> None:
    parser.add_argument("method", choices=METHODS, metavar="METHOD", help=", ".join(METHODS))
    parser.add_argument("path", metavar="PATH", help="path of the route, such as /api/packs")
    parser.add_argument("--data", default="", metavar="JSON", help="body of the request")


def _check_api(options: Namespace) -> None:
    if not options.path.startswith("/"):
        options.usage_error(
            f"invalid path {options.path!r}: expected a path of REST, such as /api/packs"
        )


async def _request(command: Invocation) -> int:
    import httpx2

    from onetool.server.http.route_table import build_actions

    actions = build_actions(command.app)

    async def serve(scope: "Scope", receive: "Receive", send: "Send") -> None:
        scope["state"] = {"person": command.person}
        await actions(scope, receive, send)

    options = command.options
    headers = {"content-type": "application/json"} if options.data else {}
    transport = httpx2.ASGITransport(app=serve)
    async with httpx2.AsyncClient(transport=transport, base_url="http://localhost") as client:
        response = await client.request(
            options.method, options.path, content=options.data, headers=headers
        )
    if response.is_error:
        command.output.error(f"onetool: {response.json()['error']['message']}\n")
        return FAILED
    is_json = response.headers.get("content-type") == "application/json"
    if is_json:
        command.output.write_json(response.json())
    else:
        command.output.write(response.text)
    return 0


API_HELP = """\
Do what a REST route does, as the owner and without a server, and print the response.

PATH may have query parameters: `onetool api GET '/api/runs?state=failed'`. The reference of REST
lists all routes.
"""
COMMANDS = {
    "run": Command(
        "Run Python code that calls tools and print the response that an MCP client would receive.",
        _add_run_arguments,
        check=_check_run,
        execute=_run,
        checks_settings=False,  # the answer says what is wrong
        json="print the response as JSON: {blocks, is_error}",
    ),
    "call": Command(
        "Call a tool and print its result as JSON.",
        _add_call_arguments,
        check=_check_call,
        execute=_call,
        checks_settings=False,  # only if the shared server makes the call
        json="print errors as JSON: {ok, error}",
    ),
    "api": Command(
        API_HELP,
        _add_api_arguments,
        check=_check_api,
        execute=_request,
        checks_settings=False,  # like REST
        json="accepted for all commands: the response is JSON anyway",
    ),
}
