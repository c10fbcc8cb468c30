"""Run Python code that calls tools and print the response that an MCP client would receive."""

import sys
from argparse import ArgumentParser, Namespace
from pathlib import Path

from onetool.cli.approver import find_terminal_approver
from onetool.cli.exit_status import WAITING
from onetool.cli.invocation import Invocation, make_caller
from onetool.cli.options import add_agent
from onetool.errors import ApprovalRequired, ToolError
from onetool_child.data import FORMATS

CHECKS_SETTINGS = False  # the answer says what is wrong
JSON = "print the response as JSON: {blocks, is_error}"


def add_arguments(parser: ArgumentParser) -> None:
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


def check(options: Namespace) -> None:
    options.code = _read_code(options)


async def execute(command: Invocation) -> int:
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
    return (
        WAITING
        if answer.is_paused or answer.error == ApprovalRequired.type
        else int(answer.is_error)
    )


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
    except (OSError, UnicodeDecodeError) as error:
        reason = (
            "it is not valid UTF-8"
            if isinstance(error, UnicodeDecodeError)
            else error.strerror or error
        )
        raise ToolError(f"cannot read {options.file or 'standard input'}: {reason}") from None
