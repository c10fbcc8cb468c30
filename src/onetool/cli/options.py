"""Options that several commands have, and what they mean."""

import json
import os
import sys
from argparse import SUPPRESS, ArgumentParser, Namespace
from collections.abc import Mapping
from pathlib import Path
from typing import TextIO

from onetool.paths import Directories, find_directories


def add_json(*parsers: ArgumentParser, text: str = "print JSON") -> None:
    """Add `--json`, which may stand before and after the name of an action."""
    for parser in parsers:
        parser.add_argument("--json", action="store_true", default=SUPPRESS, help=text)


def add_actions(parser: ArgumentParser, actions: Mapping[str, str]) -> list[ArgumentParser]:
    """Add actions such as `list`, of which one is required, with their help. Return a parser for each."""
    subparsers = parser.add_subparsers(dest="action", metavar="ACTION", required=True)
    return [subparsers.add_parser(name, help=text) for name, text in actions.items()]


def add_agent(parser: ArgumentParser) -> None:
    text = "agent whose permissions and limits apply (default: default)"
    parser.add_argument("--agent", default="default", metavar="NAME", help=text)


def add_effects(parser: ArgumentParser) -> None:
    parser.add_argument("--effects", action="store_true", help="also run what may write, execute or use the network")


def add_destination(parser: ArgumentParser) -> None:
    """Add the options that choose where an import goes."""
    where = parser.add_mutually_exclusive_group()
    where.add_argument("--user", action="store_true", help="import into ~/.onetool, for all directories")
    text = "import into .onetool of this directory, and trust it after a review"
    where.add_argument("--project", action="store_true", help=text)


def find_command_directories(options: Namespace) -> Directories:
    """Return the directories of this process, with the settings file of `--config`."""
    return find_directories(os.environ, Path.cwd(), options.config, Path.home())


def choose_stream(options: Namespace) -> TextIO:
    """Return the stream for questions and progress: with `--json`, standard output has only the JSON."""
    return sys.stderr if options.json else sys.stdout


def print_json(data: object, indent: int | None = 2) -> None:
    print(json.dumps(data, indent=indent, ensure_ascii=False, default=str))
