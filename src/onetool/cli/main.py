"""The entry point of the command line. It imports only the module of the command that it runs.

A module declares one or more commands in its own `COMMANDS`; see `onetool.cli.command`. Imports are
deferred: `onetool tools` does not import the MCP library, and completion imports next to nothing.
`onetool.cli.exit_status` handles errors and exit statuses.
"""

import importlib
import sys
from argparse import PARSER, SUPPRESS, ArgumentParser, Namespace, RawDescriptionHelpFormatter
from pathlib import Path
from typing import TYPE_CHECKING

from onetool.errors import ToolError

if TYPE_CHECKING:
    from onetool.cli.command import Command

COMMANDS = {
    "serve": "Run the MCP server on stdio (the default command) or over HTTP",
    "run": "Run Python code that calls tools",
    "call": "Call a tool",
    "tools": "List tools; enable and disable them",
    "search": "Search for tools",
    "help": "Show help for a tool or pack, or search for tools",
    "connect": "Connect an assistant to OneTool",
    "import": "Import servers from an assistant, or tools from an OpenAPI document or ZIP archive",
    "bundles": "Manage bundles of HTTP tools",
    "init": "Create .onetool/ with settings and an example pack in this directory",
    "test": "Test an extension pack: its examples and its tests",
    "dev": "Show what the model sees of an extension pack, and test it at each change",
    "approvals": "List calls that wait for approval",
    "approve": "Approve calls of a run",
    "reject": "Reject calls of a run",
    "runs": "Show runs and what they did",
    "snippets": "Manage snippets that agents saved",
    "ui": "Open the admin UI of a running server",
    "stats": "Show usage statistics and savings",
    "audit": "Show who changed or called what",
    "doctor": "Check the installation and suggest fixes",
    "demo": "Run a short demonstration",
    "token": "Manage tokens for HTTP clients",
    "disconnect": "List connected clients, and disconnect one",
    "backup": "Save settings, bundles and state in one file, and restore them",
    "store": "Show, create and migrate the store of the state",
    "worker": "Make the calls of queues, on another machine",
    "reload": "Reload the settings of running servers",
    "api": "Do what a REST route does, and print the response",
    "daemon": "Manage the server that all clients share",
    "servers": "Show, add and remove upstream servers, and accept changed tools",
    "login": "Sign in to an upstream server or an API",
    "logout": "Sign out of an upstream server or an API",
    "agents": "Show and change agents, and check what they may call",
    "hosts": "List, add and remove hosts that tools may call",
    "secret": "Manage secrets",
    "settings": "Show and undo changes of the settings",
    "trust": "Review and trust .onetool/ in this directory",
    "untrust": "Revoke trust in .onetool/ in this directory",
    "completion": "Print a shell completion script",
}
# Modules of commands whose name is another one.
MODULES = {
    "approve": "approvals",
    "reject": "approvals",
    "snippets": "approvals",
    "call": "run",
    "api": "run",
    "search": "tools",
    "help": "tools",
    "ui": "running",
    "reload": "running",
    "disconnect": "running",
    "agents": "settings",
    "hosts": "settings",
    "secret": "settings",
    "token": "settings",
    "import": "import_",
    "test": "dev",
    "audit": "stats",
    "backup": "store",
    "worker": "serve",
    "logout": "login",
    "untrust": "trust",
}

ENDING = """\
Use `onetool COMMAND --help` for more information about a command. With --json, a command prints only JSON to standard
output; errors are printed as text to standard error.

exit status: 0 success, 1 failure, 2 usage error, 130 interrupted (Ctrl+C), 143 terminated; 3 if calls of `run` or
`call` wait for approval. A server exits with 0 when stopped.\
"""


def main(argv: list[str] | None = None) -> int:
    from onetool.cli.exit_status import run_command

    arguments = sys.argv[1:] if argv is None else argv
    return run_command(lambda: _dispatch(arguments))


def _dispatch(arguments: list[str]) -> int:
    if arguments[:2] == ["completion", "--answer"]:  # called by the completion script of a shell
        from onetool.cli.completion import print_candidates

        return print_candidates(arguments[2:])
    name = arguments[0] if arguments else ""
    if name not in COMMANDS:
        name, arguments = _choose_default(arguments)
    else:
        arguments = arguments[1:]
    options = parse(name, arguments)
    _check_environment()
    return run(load_command(name), options)


def parse(
    name: str, arguments: list[str], parser_class: type[ArgumentParser] = ArgumentParser
) -> Namespace:
    """Return the options of a command.

    `following` is the command after `--`, for commands that take one.
    """
    parser = make_parser(name, parser_class)
    following: list[str] = []
    if load_command(name).takes_command and "--" in arguments:
        at = arguments.index("--")
        following = arguments[at + 1 :]
        arguments = arguments[:at]
    options = parser.parse_args(arguments)
    options.following = following
    options.usage_error = parser.error  # for usage errors that only the command can detect
    return options


def _choose_default(arguments: list[str]) -> tuple[str, list[str]]:
    """Return `serve` for options alone; show the overview for `-h` and for unknown commands."""
    first = arguments[0] if arguments else ""
    if first and not first.startswith("-"):
        _overview_parser().error(_unknown_command(first))
    if first in {"-h", "--help", "--version"}:
        _overview_parser().parse_args(arguments)
    return "serve", arguments


def _unknown_command(word: str) -> str:
    from difflib import get_close_matches

    from onetool.util.text import quote, suggestion_hint

    hint = (
        suggestion_hint(get_close_matches(word, COMMANDS, 1))
        or "run `onetool --help` to see all commands"
    )
    return f"unknown command {quote(word)}: expected one of {', '.join(COMMANDS)}\nHint: {hint}"


def _overview_parser() -> ArgumentParser:
    from onetool.util.version import __version__

    width = max(map(len, COMMANDS))
    listed = "\n".join(f"  {name:{width}}  {text}" for name, text in COMMANDS.items())
    parser = ArgumentParser(
        prog="onetool",
        description=(
            "An MCP server with one tool, `run`, for Python code that can call all connected tools"
        ),
        epilog=f"commands:\n{listed}\n\n{ENDING}",
        formatter_class=RawDescriptionHelpFormatter,
    )
    parser.add_argument("--version", action="version", version=f"onetool {__version__}")
    parser.add_argument("command", choices=COMMANDS, nargs="?", metavar="COMMAND")
    return parser


def load_command(name: str) -> "Command":
    module = importlib.import_module(f"onetool.cli.{MODULES.get(name, name)}")
    command: Command = module.COMMANDS[name]
    return command


def make_parser(name: str, parser_class: type[ArgumentParser] = ArgumentParser) -> ArgumentParser:
    command = load_command(name)
    parser = parser_class(prog=f"onetool {name}", description=command.description)
    parser.add_argument("--config", type=Path, metavar="FILE", help="path to the settings file")
    parser.set_defaults(json=False)
    if command.add_arguments is not None:
        command.add_arguments(parser)
    _add_json(parser, command)
    return parser


def run(command: "Command", options: Namespace) -> int:
    """Run a command in this process and return its exit status."""
    from onetool.cli.invocation import run_here

    main = getattr(options, "main", command.main)
    if main is not None:
        return int(main(options))
    if command.check is not None:
        command.check(options)
    return run_here(command, options)


def _add_json(parser: ArgumentParser, command: "Command") -> None:
    """Add `--json`, which may stand before and after the name of an action."""
    parsers = {"": parser}
    for action in parser._actions:  # noqa: SLF001 - argparse has no public API for it
        if action.nargs == PARSER:
            parsers = {} if action.required else parsers
            parsers |= dict(action.choices or {})
    for name, action_parser in parsers.items():
        if name not in command.without_json:
            action_parser.add_argument(
                "--json", action="store_true", default=SUPPRESS, help=command.json
            )


def _check_environment() -> None:
    """Raise a readable error if the working or home directory is unusable."""
    try:
        Path.cwd()
    except OSError as error:
        reason = error.strerror or error
        raise ToolError(
            f"cannot use the current directory: {reason}", hint="change to another directory"
        ) from None
    try:
        Path.home()
    except RuntimeError:
        raise ToolError("cannot determine the home directory", hint="set HOME") from None
