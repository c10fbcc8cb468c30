"""Reload the settings of your running servers and print their responses."""

import time
from argparse import ArgumentParser, Namespace
from pathlib import Path
from typing import TYPE_CHECKING

from onetool.cli.options import find_command_directories, print_result
from onetool.errors import ToolError
from onetool_child.json_types import JsonObject

if TYPE_CHECKING:
    from onetool.util.running_servers import ServerEntry

DEFAULT_SECONDS = 10.0
POLL_SECONDS = 0.05


def add_arguments(parser: ArgumentParser) -> None:
    parser.add_argument(
        "--timeout",
        type=float,
        default=DEFAULT_SECONDS,
        metavar="SECONDS",
        help=f"time to wait for responses, in seconds (default: {DEFAULT_SECONDS:g})",
    )


def main(options: Namespace) -> int:
    from onetool.util.running_servers import list_servers, request_reload

    user = find_command_directories(options).user
    try:
        asked = [entry.pid for entry in list_servers(user)]
        generation = request_reload(user) if asked else 0
    except OSError as error:
        raise ToolError(
            f"cannot reach running servers: {user}: {error.strerror or error}"
        ) from None
    servers = _wait_for_answers(user, generation, options.timeout) if asked else []
    lines = [_describe(entry, generation) for entry in servers]
    print_result(
        options, {"servers": lines}, map(_render, lines) if lines else ["No server is running."]
    )
    return 0 if all(line["ok"] for line in lines) else 1


def _render(line: JsonObject) -> str:
    place = line["url"] or f"stdio in {line['directory']}"
    return f"{line['pid']} ({place}): {'' if line['ok'] else 'failed: '}{line['answer']}"


def _wait_for_answers(user: Path, generation: int, seconds: float) -> "list[ServerEntry]":
    """Wait until all servers have answered or the time is over; return those that still run."""
    from onetool.util.running_servers import list_servers

    deadline = time.monotonic() + seconds
    while True:
        servers = list_servers(user)
        if all(entry.generation >= generation for entry in servers) or time.monotonic() > deadline:
            return servers
        time.sleep(POLL_SECONDS)


def _describe(entry: "ServerEntry", generation: int) -> JsonObject:
    has_answered = entry.generation >= generation
    answer = entry.answer if has_answered else "no response in time; see its log"
    return {
        "pid": entry.pid,
        "url": entry.url or None,
        "directory": entry.directory,
        "ok": has_answered and entry.is_ok,
        "answer": answer,
    }
