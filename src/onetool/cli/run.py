"""Run Python code that calls tools and print the response that an MCP client would receive."""

import argparse
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from onetool.cli.app_runner import run_with_app
from onetool.cli.exit_status import WAITING
from onetool.cli.terminal import Progress
from onetool.errors import ToolError
from onetool_child.data import FORMATS

if TYPE_CHECKING:
    from onetool.app import OneTool


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("code", nargs="?", metavar="CODE", help="Python code, or - to read it from standard input")
    parser.add_argument("-f", "--file", type=Path, metavar="FILE", help="file to read the code from")
    parser.add_argument(
        "--agent", default="default", metavar="NAME", help="agent whose permissions and limits apply (default: default)"
    )
    parser.add_argument("--plan", action="store_true", help="list the calls with effects instead of making them")
    parser.add_argument("--format", choices=FORMATS, help="format of the result")
    parser.add_argument("--json", action="store_true", help="print the response as JSON: {blocks, is_error}")


def main(options: argparse.Namespace) -> int:
    code = _read_code(options)
    if options.plan:
        code = f"ot.plan(code={code!r})"

    async def run(app: "OneTool") -> int:
        from onetool.runner.answer import Journal

        with Progress("running") as progress:
            journal = Journal(listener=progress.on_event)
            facts = {"agent": options.agent, "preset_format": options.format, "client": "cli"}
            answer = await app.run(code, journal=journal, is_owner=True, **facts)
        if options.json:
            from onetool.render import render

            print(render({"blocks": list(answer.blocks), "is_error": answer.is_error}, "json"))
        else:
            print(answer.text)
        return WAITING if answer.is_paused else int(answer.is_error)

    return run_with_app(options, run)


def _read_code(options: argparse.Namespace) -> str:
    if (options.code is None) == (options.file is None):
        options.usage_error(
            "expected either CODE or --file, for example: onetool run 'ot.tools()', onetool run -f FILE, onetool run -"
        )
    try:
        if options.file is not None:
            text: str = options.file.read_text(encoding="utf-8")
            return text
        return sys.stdin.buffer.read().decode() if options.code == "-" else str(options.code)
    except (OSError, UnicodeDecodeError) as error:
        reason = "it is not valid UTF-8" if isinstance(error, UnicodeDecodeError) else error.strerror or error
        raise ToolError(f"cannot read {options.file or 'standard input'}: {reason}") from None
