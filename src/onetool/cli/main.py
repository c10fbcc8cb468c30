"""The command line: finds the command, loads only that, and runs it.

Each command is a module here with `add_arguments(parser)` and `main(options) -> int`. Nothing else is imported before
it is needed: `onetool tools` must not pay for the MCP library, and who presses Tab not for any. How a command ends is
`onetool.cli.endings`.
"""

import argparse
import importlib
import sys
from collections.abc import Callable
from keyword import iskeyword
from pathlib import Path

from onetool.errors import ToolError

COMMANDS = {
    "serve": "run the MCP server (on stdio; this is what a bare `onetool` does)",
    "run": "run Python code that calls tools, and print what a client would see",
    "call": "call one tool: NAME key=value...",
    "tools": "list tools",
    "help": "help on a tool, a pack, or some words",
    "connect": "connect an assistant: print its MCP configuration, or write it",
    "import": "take over servers from an assistant's configuration, or tools from an OpenAPI document or a ZIP",
    "bundles": "list, export, import, enable, disable and delete bundles of stored tools",
    "init": "make .onetool/ in this folder, with an example pack",
    "stats": "show what has been called and what it saved",
    "doctor": "check everything and say what to do",
    "demo": "see the whole idea in a few seconds",
    "token": "create, list and delete tokens for clients that come over HTTP",
    "reload": "make running servers read their settings again",
    "servers": "manage upstream servers: accept changed tool definitions",
    "trust": "show what this directory's .onetool/ would run, and let it take effect",
    "untrust": "take that back",
    "completion": "print what makes bash, zsh or fish complete commands and tools",
}

ENDING = """\
`onetool COMMAND --help` says more. With --json a command prints JSON and nothing else; what went wrong stays words on
the error stream.

exit status: 0 fine, 1 failed, 2 wrong usage, 130 Ctrl+C, 143 told to end. A server that is told to stop ends with 0.\
"""


def main(argv: list[str] | None = None) -> int:
    from onetool.cli.endings import ended

    arguments = sys.argv[1:] if argv is None else argv
    return ended(lambda: _dispatch(arguments))


def _dispatch(arguments: list[str]) -> int:
    if arguments[:2] == ["completion", "--answer"]:  # somebody has pressed Tab and waits
        from onetool.cli.completion import answer

        return answer(arguments[2:])
    name = arguments[0] if arguments else ""
    if name not in COMMANDS:
        name, arguments = _without_command(arguments)
    else:
        arguments = arguments[1:]
    parser, run = command(name)
    options = parser.parse_args(arguments)
    options.refuse = parser.error  # for what only the command itself can tell to be wrong usage
    _check_surroundings()
    return run(options)


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
    from onetool.version import __version__

    width = max(map(len, COMMANDS))
    listed = "\n".join(f"  {name:{width}}  {text}" for name, text in COMMANDS.items())
    parser = argparse.ArgumentParser(
        prog="onetool",
        description="One MCP server with one tool, run: Python that calls every tool there is.",
        epilog=f"commands:\n{listed}\n\n{ENDING}",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--version", action="version", version=f"onetool {__version__}")
    parser.add_argument("command", choices=COMMANDS, nargs="?", metavar="COMMAND")
    return parser


def command(name: str) -> tuple[argparse.ArgumentParser, Callable[[argparse.Namespace], int]]:
    """What a command takes, and what runs it."""
    module = importlib.import_module(f"onetool.cli.{name}_" if iskeyword(name) else f"onetool.cli.{name}")
    parser = argparse.ArgumentParser(prog=f"onetool {name}", description=module.__doc__)
    parser.add_argument("--config", type=Path, metavar="FILE", help="the configuration file to use")
    module.add_arguments(parser)
    return parser, module.main


def _check_surroundings() -> None:
    """What every command needs, said once and in words."""
    try:
        Path.cwd()
    except OSError as error:
        reason = error.strerror or error
        raise ToolError(f"the folder that you are in cannot be used: {reason}. Go to another one: cd") from None
    try:
        Path.home()
    except RuntimeError:
        raise ToolError("your home folder is not known; set HOME to it") from None
