"""The definition of a command, and the options that several commands have."""

import json
import os
import sys
from argparse import ArgumentParser, Namespace
from collections.abc import Awaitable, Callable, Collection, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, TextIO

from onetool.settings.paths import Directories, find_directories

if TYPE_CHECKING:
    from onetool.cli.invocation import Invocation

Work = Callable[..., Any]  # the function of an action: `execute`, or what `main` calls


@dataclass(frozen=True, slots=True)
class Command:
    """A command: the text of `--help`, the options, and one function.

    `execute` gets the application. It runs in the shared server if there is one, and else in this
    process. With `Actions`, each action has such a function instead. `main` opens no application,
    or one with other settings; an action can have one as the default of the option `main`. `check`
    reports usage errors before anything is opened.
    """

    description: str | None
    add_arguments: Callable[[ArgumentParser], None] | None = None
    check: Callable[[Namespace], None] | None = None
    execute: "Callable[[Invocation], Awaitable[int | None]] | None" = None
    main: Callable[[Namespace], int] | None = None
    json: str = "print JSON"  # the help text of `--json`
    without_json: Collection[str] = ()  # actions without `--json`; an empty name is the command
    local_actions: Collection[str] = ()  # always in this process, because they ask in the terminal
    is_guarded: bool = False  # a person decides: in this process, and without ONETOOL_ variables
    checks_settings: bool = True  # False if the command also works with invalid settings
    takes_command: bool = False  # the arguments after `--` are another command


class Actions:
    """The actions of a command, such as `list`. With a default, none is required."""

    def __init__(self, parser: ArgumentParser, default: Work | None = None) -> None:
        self._parsers = parser.add_subparsers(
            dest="action", metavar="ACTION", required=default is None
        )
        parser.set_defaults(work=default)

    def add(self, name: str, work: Work, text: str) -> ArgumentParser:
        """Add an action with its function and its help, and return its parser."""
        parser = self._parsers.add_parser(name, help=text)
        parser.set_defaults(work=work)
        return parser


def add_agent(parser: ArgumentParser) -> None:
    text = "agent whose permissions and limits apply (default: default)"
    parser.add_argument("--agent", default="default", metavar="NAME", help=text)


def add_effects(parser: ArgumentParser) -> None:
    parser.add_argument(
        "--effects", action="store_true", help="also run what may write, execute or use the network"
    )


def add_destination(parser: ArgumentParser) -> None:
    """Add the options that choose where an import goes."""
    where = parser.add_mutually_exclusive_group()
    where.add_argument(
        "--user", action="store_true", help="import into ~/.onetool, for all directories"
    )
    text = "import into .onetool of this directory, and trust it after a review"
    where.add_argument("--project", action="store_true", help=text)


def add_edit_options(*parsers: ArgumentParser, chooses_file: bool = False) -> None:
    """Add the options of a change of settings."""
    for parser in parsers:
        if chooses_file:
            parser.add_argument(
                "--user", action="store_true", help="write to ~/.onetool, for all directories"
            )
        parser.add_argument(
            "--dry-run", action="store_true", help="show the change without writing it"
        )


def find_command_directories(options: Namespace) -> Directories:
    """Return the directories of this process, with the settings file of `--config`."""
    return find_directories(os.environ, Path.cwd(), options.config, Path.home())


def choose_stream(options: Namespace) -> TextIO:
    """Return the stream for questions and progress: with `--json`, standard error."""
    return sys.stderr if options.json else sys.stdout


def print_result(options: Namespace, data: object, lines: Iterable[str]) -> None:
    """Print data as JSON with `--json`, else as lines, for a command without an application."""
    print(
        json.dumps(data, indent=2, ensure_ascii=False, default=str)
        if options.json
        else "\n".join(lines)
    )
