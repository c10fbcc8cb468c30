"""The command line: finds the command, loads only that, runs it, and turns errors into words and an exit status.

Each command is a module here with `HELP`, `add_arguments(parser)` and `main(options) -> int`. Nothing else is
imported before it is needed: `onetool tools` must not pay for the MCP library.
"""

import argparse
import importlib
import os
import sys
from keyword import iskeyword
from pathlib import Path

COMMANDS = {
    "serve": "run the MCP server (on stdio; this is what a bare `onetool` does)",
    "run": "run Python code that calls tools, and print what a client would see",
    "call": "call one tool: NAME key=value...",
    "tools": "list tools",
    "help": "help on a tool, a pack, or some words",
    "connect": "connect an assistant: print its MCP configuration, or write it",
    "import": "take over servers from an assistant's configuration, or tools from an OpenAPI document or a ZIP",
    "bundles": "list, export, import, enable and disable bundles of stored tools",
    "init": "make .onetool/ in this folder, with an example pack",
    "stats": "show what has been called and what it saved",
    "doctor": "check everything and say what to do",
    "demo": "see the whole idea in a few seconds",
    "token": "create, list and delete tokens for clients that come over HTTP",
    "accept": "take over changed definitions of a server's tools",
    "trust": "let this folder's .onetool/ take effect",
    "untrust": "take that back",
}


def main(argv: list[str] | None = None) -> int:
    arguments = sys.argv[1:] if argv is None else argv
    try:
        status = _dispatch(arguments)
        sys.stdout.flush()
    except KeyboardInterrupt:
        return 130
    except BrokenPipeError:  # the reader of our output has gone: `onetool tools | head`
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
        return 0
    return status


def _dispatch(arguments: list[str]) -> int:
    from ot.errors import ToolError

    name = arguments[0] if arguments else ""
    if name not in COMMANDS:
        name, arguments = _without_command(arguments)
    else:
        arguments = arguments[1:]
    try:
        return _run_command(name, arguments)
    except ToolError as error:
        print(f"onetool: {error}", file=sys.stderr)
        return 1


def _without_command(arguments: list[str]) -> tuple[str, list[str]]:
    """Options alone belong to `serve`; `-h` and words that are no command belong to the overview."""
    first = arguments[0] if arguments else ""
    if first and not first.startswith("-"):
        _overview().error(_unknown(first))
    if first in {"-h", "--help", "--version"}:
        _overview().parse_args(arguments)
    return "serve", arguments


def _unknown(word: str) -> str:
    from difflib import get_close_matches

    near = get_close_matches(word, COMMANDS, 1)
    guess = f" Did you mean {near[0]}?" if near else ""
    return f"there is no command {word!r}.{guess} Commands: {', '.join(COMMANDS)}. `onetool --help` says more."


def _overview() -> argparse.ArgumentParser:
    from ot.version import __version__

    width = max(map(len, COMMANDS))
    listed = "\n".join(f"  {name:{width}}  {text}" for name, text in COMMANDS.items())
    parser = argparse.ArgumentParser(
        prog="onetool",
        description="One MCP server with one tool, run: Python that calls every tool there is.",
        epilog=f"commands:\n{listed}\n\n`onetool COMMAND --help` says more.",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--version", action="version", version=f"onetool {__version__}")
    parser.add_argument("command", choices=COMMANDS, nargs="?", metavar="COMMAND")
    return parser


def _run_command(name: str, arguments: list[str]) -> int:
    command = importlib.import_module(f"ot.cli.{name}_" if iskeyword(name) else f"ot.cli.{name}")
    parser = argparse.ArgumentParser(prog=f"onetool {name}", description=command.__doc__)
    parser.add_argument("--config", type=Path, metavar="FILE", help="the configuration file to use")
    command.add_arguments(parser)
    status: int = command.main(parser.parse_args(arguments))
    return status
