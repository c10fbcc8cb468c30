"""Measure OneTool on this machine."""

import argparse
import json
import sys
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

from onetool.cli.signals import run_cancellable
from onetool.cli.terminal import format_table
from onetool.errors import ToolError

if TYPE_CHECKING:
    from onetool.bench.task_process import World

DEFAULT_SIZES = (8, 96, 500)
MAX_TOOLS = 500
ARMS = ("direct", "search", "code", "code-cold")

PREFIX = "onetool-bench-"
MAX_DIRECTORY_CHARS = 50  # the path of a socket has at most 107 bytes


def add_arguments(parser: argparse.ArgumentParser) -> None:
    actions = parser.add_subparsers(dest="action", metavar="ACTION", required=True)
    agents = actions.add_parser(
        "agents",
        help="Compare direct tool calls with code, on public tasks with known calls and without a language model",
    )
    agents.add_argument(
        "--tasks", type=_parse_count, metavar="N", help="number of tasks, evenly spaced (all by default)"
    )
    agents.add_argument(
        "--tools",
        type=_parse_sizes,
        default=DEFAULT_SIZES,
        metavar="N,N",
        help=f"sizes of the catalog, at most {MAX_TOOLS} (default: {','.join(map(str, DEFAULT_SIZES))})",
    )
    agents.add_argument(
        "--arms",
        type=_parse_arms,
        default=ARMS,
        metavar="NAME,NAME",
        help=f"ways to compare with direct calls (default: {','.join(ARMS[1:])})",
    )
    agents.add_argument("--tau", type=Path, metavar="DIR", help="directory of tau-bench, to add its tasks")
    agents.add_argument(
        "--client",
        metavar="COMMAND",
        help="command line of an MCP client that plays the tasks instead, with {config} and {prompt}",
    )
    agents.add_argument("--json", action="store_true", help="print JSON")


def main(options: argparse.Namespace) -> int:
    if sys.platform == "win32":
        raise ToolError("the benchmark needs Unix sockets, which Windows does not have")
    worlds = _find_worlds(options)
    return _measure_client(options, worlds) if options.client else _measure(options, worlds)


def _find_worlds(options: argparse.Namespace) -> "list[World]":
    from onetool.bench.environment import install_data
    from onetool.bench.task_process import World, tau_worlds

    added = tau_worlds(options.tau) if options.tau else []
    return [World("bfcl", str(install_data(Path.home()))), *added]


def _measure(options: argparse.Namespace, worlds: "list[World]") -> int:
    from onetool.bench.agents import Measurement, measure_world
    from onetool.bench.agents_report import check_gates, describe, to_json

    async def measure() -> list[Measurement]:
        with tempfile.TemporaryDirectory(prefix=PREFIX, dir=_find_short_directory()) as directory:
            return [
                each
                for world in worlds
                for each in await measure_world(world, options.tools, options.tasks or 0, options.arms, Path(directory))
            ]

    found = run_cancellable(measure)
    if options.json:
        print(json.dumps(to_json(found), indent=2))
    else:
        print("\n".join(describe(found, format_table)))
    return 0 if all(gate.is_kept for gate in check_gates(found)) else 1


def _measure_client(options: argparse.Namespace, worlds: "list[World]") -> int:
    from onetool.bench.real_client import measure_client

    async def measure() -> list[dict[str, object]]:
        directory = Path(tempfile.mkdtemp(prefix=PREFIX, dir=_find_short_directory()))
        print(f"the output of the client is kept in {directory}", file=sys.stderr)
        return [
            row
            for world in worlds
            for row in await measure_client(options.client, world, options.tools, options.tasks or 0, directory)
        ]

    rows = run_cancellable(measure)
    if options.json:
        print(json.dumps({"client": rows}, indent=2))
    else:
        head = ("world", "tools", "task", "arm", "state_equal", "calls_equal", "seconds", "exit_status")
        print("\n".join(format_table([head, *([str(row[name]) for name in head] for row in rows)], right=(1, 6, 7))))
    return 0


def _parse_count(text: str) -> int:
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"invalid number {text!r} (expected 1 or more)")
    return int(text)


def _parse_arms(text: str) -> tuple[str, ...]:
    names = [name.strip() for name in text.split(",")]
    if not set(names) <= set(ARMS):
        raise argparse.ArgumentTypeError(f"invalid arms {text!r} (expected some of {', '.join(ARMS)})")
    return (ARMS[0], *(name for name in ARMS[1:] if name in names))


def _parse_sizes(text: str) -> tuple[int, ...]:
    sizes = text.split(",")
    if not all(size.strip().isdecimal() and 0 < int(size) <= MAX_TOOLS for size in sizes):
        raise argparse.ArgumentTypeError(f"invalid sizes {text!r} (expected numbers from 1 to {MAX_TOOLS}, like 8,96)")
    return tuple(int(size) for size in sizes)


def _find_short_directory() -> str | None:
    """Return the directory for temporary files, unless its path is too long for that of a socket in it."""
    return None if len(tempfile.gettempdir()) <= MAX_DIRECTORY_CHARS else "/tmp"  # noqa: S108
