"""Manage the server that all your clients share. It starts with the first client over stdio."""

import os
import select
import signal
import sys
import time
from argparse import ArgumentParser, Namespace
from collections import deque
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import BinaryIO

from onetool.cli.command import Actions, Command, print_result
from onetool.cli.terminal import Progress, format_table, print_notices
from onetool.errors import ToolError
from onetool.processes.daemon_connection import ask_daemon, find_socket
from onetool.settings.paths import FOLDER
from onetool.util.text import pluralize
from onetool.util.time_format import in_utc
from onetool_child.json_types import JsonObject

DEFAULT_LINES = 20
STOP_SECONDS = 30.0
POLL_SECONDS = 0.2
LISTENING = "00010000"  # the flags of a listening socket in /proc/net/unix
MODULE = b"onetool.server.daemon"
LOG_FILE = f"{FOLDER}/logs/daemon.log"  # in the home directory
ERROR_SUFFIX = ".err"  # of the file beside the log with the errors that ended the server
NOT_RUNNING = "No shared server is running. An assistant that starts `onetool` starts it."
EMPTY_STATUS: JsonObject = {"pid": None, "version": None, "clients": [], "applications": []}


def add_arguments(parser: ArgumentParser) -> None:
    actions = Actions(parser)
    actions.add("status", _show_status, "Show the shared server, its clients and its applications")
    actions.add("stop", _stop, "Stop the shared server and wait until it has ended")
    actions.add("restart", _stop, "Stop the shared server; connected clients start a new one")
    logs = actions.add("logs", _show_log, "Show the log of the shared server")
    logs.add_argument(
        "-n",
        "--lines",
        type=int,
        default=DEFAULT_LINES,
        metavar="N",
        help=f"number of lines (default: {DEFAULT_LINES})",
    )
    logs.add_argument(
        "-f", "--follow", action="store_true", help="print new lines until interrupted"
    )


def main(options: Namespace) -> int:
    options.work(options)
    return 0


# --- status ---------------------------------------------------------------------------------------


def _show_status(options: Namespace) -> None:
    try:
        status = ask_daemon({"kind": "status"})
    except TimeoutError as error:
        raise ToolError(
            str(error), hint="`onetool daemon stop` ends it; clients start a new one"
        ) from None
    fields = {
        name: value
        for name, value in (status or EMPTY_STATUS).items()
        if name not in {"ok", "installation"}
    }
    print_result(options, fields, [NOT_RUNNING] if status is None else _describe(status))


def _describe(status: JsonObject) -> Iterator[str]:
    yield from format_table(
        [
            ("process", str(status["pid"])),
            ("version", f"{status['version']}, Python {status['python']}"),
            ("started", _to_time(status["started_at"])),
            ("ends", f"after {status['idle']:g} s without clients"),
            ("HTTP", status["http"] or "off"),
            ("log", status["log"]),
        ]
    )
    clients = [
        (
            " ".join(client["name"].split()) or "-",
            str(client["pid"]),
            client["directory"],
            _to_time(client["since"]),
        )
        for client in status["clients"]
    ]
    applications = [
        (
            application["directory"],
            str(application["clients"]),
            ", ".join(application["servers"]) or "-",
            ", ".join(application["workers"]) or "-",
        )
        for application in status["applications"]
    ]
    if clients:
        yield from ("", *format_table([("client", "process", "directory", "since"), *clients]))
    if applications:
        yield from (
            "",
            *format_table([("application", "clients", "servers", "workers"), *applications]),
        )


def _to_time(seconds: float) -> str:
    return in_utc(seconds, "seconds")


# --- stop -----------------------------------------------------------------------------------------


def _stop(options: Namespace) -> None:
    """Stop the server and wait until its process has ended.

    A server that does not respond is killed.
    """
    path = find_socket()
    process = _open_process(path) if path is not None else None
    if process is None:
        print(NOT_RUNNING)
        return
    pid, descriptor = process
    try:
        clients = _request_stop(descriptor)
        is_killed = clients is None
        if is_killed:
            with suppress(ProcessLookupError):
                signal.pidfd_send_signal(descriptor, signal.SIGKILL)
        if not select.select([descriptor], [], [], STOP_SECONDS)[0]:
            raise ToolError(
                f"cannot end the shared server (process {pid})", hint="its cgroup may be frozen"
            )
    finally:
        os.close(descriptor)
    print(
        "Stopped the shared server (process"
        f" {pid}){', which did not respond' if is_killed else ''}."
    )
    if options.action == "restart":
        print("Clients reconnect by themselves: the next request of a client starts a new server.")
    elif clients:
        print(
            f"{pluralize(clients, 'client')} still connected: the next request of a client starts"
            " it again."
        )


def _request_stop(descriptor: int) -> int | None:
    """Ask the server to stop.

    Return the number of its clients over stdio, or None if it does not end in time.
    """
    with Progress("stopping the shared server"), suppress(TimeoutError):
        status = ask_daemon({"kind": "status"})
        if status is not None:
            ask_daemon({"kind": "stop"})
        if select.select([descriptor], [], [], STOP_SECONDS)[0]:
            kinds = [client["kind"] for client in status["clients"]] if status is not None else []
            return kinds.count("stdio")
    return None


def _open_process(path: str) -> tuple[int, int] | None:
    """Return the daemon that listens at this path, with a handle, or None.

    The kernel knows it, so this works even if the daemon accepts no connections.
    """
    table = Path("/proc/net/unix")
    if not table.exists():  # there is no daemon on other systems
        return None
    sockets = [line.split() for line in table.read_text("utf-8", "replace").splitlines()]
    targets = {
        f"socket:[{fields[6]}]"
        for fields in sockets
        if fields[-1] == path and fields[3] == LISTENING
    }
    for entry in Path("/proc").glob("[0-9]*") if targets else ():
        if _listens(entry, targets):
            with suppress(ProcessLookupError):
                descriptor = os.pidfd_open(int(entry.name))
                if _listens(
                    entry, targets
                ):  # still: its process ID was not reused before the handle was opened
                    return int(entry.name), descriptor
                os.close(descriptor)
    return None


def _listens(process: Path, targets: set[str]) -> bool:
    """Return whether this is a daemon with one of these sockets, as this process sees them.

    Another container may have an equal path. A client that has just started the daemon has the
    socket, too.
    """
    try:
        is_here = (process / "ns" / "mnt").readlink() == Path("/proc/self/ns/mnt").readlink()
        if not is_here or MODULE not in (process / "cmdline").read_bytes().split(b"\0"):
            return False
        return any(
            str(descriptor.readlink()) in targets for descriptor in (process / "fd").iterdir()
        )
    except OSError:  # it has ended, or belongs to another user
        return False


# --- logs -----------------------------------------------------------------------------------------


def _show_log(options: Namespace) -> None:
    if options.lines < 0:
        options.usage_error(f"invalid number of lines {options.lines} (expected 0 or more)")
    path = Path.home() / LOG_FILE
    errors = path.with_suffix(ERROR_SUFFIX)
    if errors.is_file() and errors.stat().st_size:
        print_notices([f"errors that ended the shared server: {errors}"])
    try:
        file = path.open("rb")
    except FileNotFoundError:
        raise ToolError(
            f"no log at {path}", hint="the shared server writes it when it starts"
        ) from None
    with file:
        for line in deque(file, options.lines):
            _print_line(line)
        if options.follow:
            _follow(path, file)


def _follow(path: Path, file: BinaryIO) -> None:
    """Print new lines until interrupted, also after the log is rotated."""
    while True:
        is_replaced = _is_replaced(path, file)
        for line in file:
            _print_line(line)
        sys.stdout.flush()
        if is_replaced:
            file.close()
            file = path.open("rb")
        else:
            time.sleep(POLL_SECONDS)


def _is_replaced(path: Path, file: BinaryIO) -> bool:
    try:
        return not os.path.samestat(path.stat(), os.fstat(file.fileno()))
    except FileNotFoundError:
        return False


def _print_line(line: bytes) -> None:
    sys.stdout.write(line.decode("utf-8", "backslashreplace"))


COMMANDS = {
    "daemon": Command(__doc__, add_arguments, main=main, without_json={"stop", "restart", "logs"})
}
