"""The entry point of the command line. It imports only the module of the command that it runs.

Each command is a module of this package with `add_arguments(parser)` and `async execute(command)`,
or a function for each action (`onetool.cli.options.Actions`). It runs in the shared server if there
is one, and else in this process. `check(options)` reports usage errors before anything is opened. A
module may also have these names:

- `JSON`: the help text of `--json`; `WITHOUT_JSON`: actions without it, or an empty name for the
  command
- `LOCAL`: True, or the actions that always run in this process, because they ask in the terminal
- `IS_GUARDED`: a person decides, so it runs in this process, without settings of the environment
- `CHECKS_SETTINGS`: False if the command also works with invalid settings
- `TAKES_COMMAND`: arguments after `--` are another command
- `main(options) -> int`, instead of `execute`: it opens no application, or one with other settings.
  An action may have such a function, too, as the default of the option `main`.

Imports are deferred: `onetool tools` does not import the MCP library, and completion imports next
to nothing. `onetool.cli.exit_status` handles errors and exit statuses.
"""

import importlib
import sys
from argparse import PARSER, SUPPRESS, ArgumentParser, Namespace, RawDescriptionHelpFormatter
from collections.abc import Callable
from keyword import iskeyword
from pathlib import Path
from types import ModuleType

from onetool.errors import ToolError

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
    parser, run = command(name)
    options = parse(parser, load_command(name), arguments)
    _check_environment()
    return run(options)


def parse(parser: ArgumentParser, module: ModuleType, arguments: list[str]) -> Namespace:
    """Return the options of a command.

    `following` is the command after `--`, for commands that take one.
    """
    following: list[str] = []
    if "--" in arguments and getattr(module, "TAKES_COMMAND", False):
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


def command(name: str) -> tuple[ArgumentParser, Callable[[Namespace], int]]:
    """Return the parser and the main function of a command."""
    module = load_command(name)

    def run(options: Namespace) -> int:
        from onetool.cli.invocation import run_here

        main = getattr(options, "main", getattr(module, "main", None))
        if main is not None:
            return int(main(options))
        getattr(module, "check", id)(options)
        return run_here(module, options)

    return make_parser(name, module), run


def can_be_remote(module: ModuleType) -> bool:
    """Return whether actions of a command may run in the shared server."""
    is_local = getattr(module, "LOCAL", False) is True or getattr(module, "IS_GUARDED", False)
    return not (is_local or hasattr(module, "main"))


def load_command(name: str) -> ModuleType:
    return importlib.import_module(
        f"onetool.cli.{name}_" if iskeyword(name) else f"onetool.cli.{name}"
    )


def make_parser(
    name: str, module: ModuleType, parser_class: type[ArgumentParser] = ArgumentParser
) -> ArgumentParser:
    parser = parser_class(prog=f"onetool {name}", description=module.__doc__)
    parser.add_argument("--config", type=Path, metavar="FILE", help="path to the settings file")
    parser.set_defaults(json=False)
    if hasattr(module, "add_arguments"):
        module.add_arguments(parser)
    _add_json(parser, module)
    return parser


def _add_json(parser: ArgumentParser, module: ModuleType) -> None:
    """Add `--json`, which may stand before and after the name of an action."""
    without = getattr(module, "WITHOUT_JSON", ())
    parsers = {"": parser}
    for action in parser._actions:  # noqa: SLF001 - argparse has no public API for it
        if action.nargs == PARSER:
            parsers = {} if action.required else parsers
            parsers |= dict(action.choices or {})
    for name, each in parsers.items():
        if name not in without:
            each.add_argument(
                "--json",
                action="store_true",
                default=SUPPRESS,
                help=getattr(module, "JSON", "print JSON"),
            )


def _check_environment() -> None:
    """Raise a readable error if the working or home directory is unusable, which every command
    needs.
    """
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
