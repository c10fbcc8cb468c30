"""Compare direct tool calls with code, on public tasks with known calls and without a language
model.

docs/performance.md explains the arms, the tasks and the columns. The exit status is 1 if a gate
fails.
"""

import argparse
import asyncio
import json
import sys
import tempfile
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[2]))

from benchmarks.agents.arms import ARMS
from benchmarks.agents.environment import install_data
from benchmarks.agents.measurements import Measurement, measure_world
from benchmarks.agents.real_client import measure_client
from benchmarks.agents.report import check_gates, describe, to_json
from benchmarks.agents.task_process import World, tau_worlds

from onetool.cli.terminal import format_table
from onetool.errors import ToolError

DEFAULT_SIZES = (8, 96, 500)
MAX_TOOLS = 500
ARM_NAMES = tuple(arm.name for arm in ARMS)
CLIENT_COLUMNS = (
    "world",
    "tools",
    "task",
    "arm",
    "state_equal",
    "calls_equal",
    "seconds",
    "exit_status",
)
PREFIX = "onetool-bench-"
MAX_DIRECTORY_CHARS = 50  # the path of a socket has at most 107 bytes


def main() -> int:
    options = parse_arguments()
    try:
        worlds = find_worlds(options.tau)
        if options.client:
            return run_client(options, worlds)
        return run_arms(options, worlds)
    except ToolError as error:
        print(error, file=sys.stderr)
        return 1


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--tasks",
        type=parse_count,
        default=0,
        metavar="N",
        help="number of tasks, evenly spaced (all by default)",
    )
    parser.add_argument(
        "--tools",
        type=parse_sizes,
        default=DEFAULT_SIZES,
        metavar="N,N",
        help=(
            f"sizes of the catalog, at most {MAX_TOOLS} (default:"
            f" {','.join(map(str, DEFAULT_SIZES))})"
        ),
    )
    parser.add_argument(
        "--arms",
        type=parse_arms,
        default=ARM_NAMES,
        metavar="NAME,NAME",
        help=f"ways to compare with direct calls (default: {','.join(ARM_NAMES[1:])})",
    )
    parser.add_argument(
        "--tau", type=Path, metavar="DIR", help="directory of tau-bench, to add its tasks"
    )
    parser.add_argument(
        "--client",
        metavar="COMMAND",
        help=(
            "command line of an MCP client that plays the tasks instead, with {config} and {prompt}"
        ),
    )
    parser.add_argument("--json", action="store_true", help="print JSON")
    return parser.parse_args()


def parse_count(text: str) -> int:
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"invalid number {text!r} (expected 1 or more)")
    return int(text)


def parse_arms(text: str) -> tuple[str, ...]:
    names = [name.strip() for name in text.split(",")]
    if not set(names) <= set(ARM_NAMES):
        raise argparse.ArgumentTypeError(
            f"invalid arms {text!r} (expected some of {', '.join(ARM_NAMES)})"
        )
    return (ARM_NAMES[0], *(name for name in ARM_NAMES[1:] if name in names))


def parse_sizes(text: str) -> tuple[int, ...]:
    sizes = text.split(",")
    if not all(size.strip().isdecimal() and 0 < int(size) <= MAX_TOOLS for size in sizes):
        raise argparse.ArgumentTypeError(
            f"invalid sizes {text!r} (expected numbers from 1 to {MAX_TOOLS}, like 8,96)"
        )
    return tuple(int(size) for size in sizes)


def find_worlds(tau: Path | None) -> list[World]:
    worlds = tau_worlds(tau) if tau else []
    return [World("bfcl", str(install_data(Path.home()))), *worlds]


def run_arms(options: argparse.Namespace, worlds: list[World]) -> int:
    measurements: list[Measurement] = []
    with tempfile.TemporaryDirectory(prefix=PREFIX, dir=find_short_directory()) as directory:
        for world in worlds:
            measuring = measure_world(
                world, options.tools, options.tasks, options.arms, Path(directory)
            )
            measurements += asyncio.run(measuring)
    if options.json:
        print(json.dumps(to_json(measurements), indent=2))
    else:
        print("\n".join(describe(measurements, format_table)))
    return 0 if all(gate.is_kept for gate in check_gates(measurements)) else 1


def run_client(options: argparse.Namespace, worlds: list[World]) -> int:
    directory = Path(tempfile.mkdtemp(prefix=PREFIX, dir=find_short_directory()))
    print(f"the output of the client is kept in {directory}", file=sys.stderr)
    rows: list[dict[str, Any]] = []
    for world in worlds:
        rows += asyncio.run(
            measure_client(options.client, world, options.tools, options.tasks, directory)
        )
    if options.json:
        print(json.dumps({"client": rows}, indent=2))
    else:
        cells = [[str(row[name]) for name in CLIENT_COLUMNS] for row in rows]
        print("\n".join(format_table([CLIENT_COLUMNS, *cells], right=(1, 6, 7))))
    return 0


def find_short_directory() -> str | None:
    """Return the directory for temporary files, unless its path is too long for that of a socket in
    it.
    """
    return None if len(tempfile.gettempdir()) <= MAX_DIRECTORY_CHARS else "/tmp"


if __name__ == "__main__":
    sys.exit(main())
