"""Run a command in the daemon, if possible.

This uses only the standard library, so that it starts in a few milliseconds. `onetool run` and the
other commands of `SHARED_COMMANDS` run in the daemon if there is one. Over stdio, `stdio_bridge` copies
messages between the assistant and the daemon, which is started if needed. Everything else, and
everything without a daemon, runs in this process.
"""

import contextlib
import os
import signal
import stat
import sys
from _thread import start_new_thread

from onetool.processes.daemon_connection import (
    CONFIRMATION,
    FAILED,
    UNRESPONSIVE,
    Lines,
    connect,
    find_socket,
    open_connection,
)

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

STANDALONE = "ONETOOL_STANDALONE"
# all that may run in the daemon; the others never do
SHARED_COMMANDS = frozenset({
    "run", "call", "tools", "search", "help", "bundles", "approvals", "runs", "stats", "audit",
    "token", "servers", "api", "logout", "agents", "hosts", "secret", "settings",
})  # fmt: skip
LOCAL_OPTIONS = ("--standalone", "--http", "-h", "--help", "--version")
INTERRUPTED = 130
TERMINATED = 143
LOST = "the shared server ended before it answered; the request may have been carried out"
STOP_HINT = "Hint: end the shared server with `onetool daemon stop`"


def run_in_daemon(arguments: list[str]) -> int | None:
    """Run a command in the daemon and return its exit status; None if this process must run it."""
    if not _may_share(arguments):
        return None
    if arguments[:1] and arguments[0] in SHARED_COMMANDS:
        return _run_command(arguments)
    return _serve(arguments)


def _may_share(arguments: list[str]) -> bool:
    """Return whether a daemon may handle this command."""
    if sys.platform != "linux" or os.environ.get(STANDALONE, "") not in {"", "0"}:
        return False
    if sys.stdin is None or sys.stdout is None or sys.stderr is None:  # closed by the caller
        return False
    if os.environ.get("ONETOOL_DAEMON__SHARED", "true").lower() != "true" or not {
        *arguments
    }.isdisjoint(LOCAL_OPTIONS):
        return False
    if arguments[:1] and arguments[0] in SHARED_COMMANDS:
        return True
    is_server = not arguments or arguments[0] == "serve" or arguments[0].startswith("-")
    return is_server and _is_pipe(0) and _is_pipe(1) and not _is_turned_off()


def _is_turned_off() -> bool:
    """Return whether a settings file has `daemon.shared: false` in the usual spelling.

    Else the daemon decides.
    """
    named = os.environ.get("ONETOOL_CONFIG", "")
    for path in (os.path.expanduser("~/.onetool/onetool.yaml"), named):  # noqa: PTH111
        with contextlib.suppress(OSError), open(path, "rb") as file:  # noqa: PTH123
            section = b""
            for line in file.read(1 << 20).splitlines():
                if line[:1] not in {b"", b" ", b"#"}:
                    section = line.partition(b":")[0]
                if section == b"daemon" and b"shared: false" in line.partition(b"#")[0]:
                    return True
    return False


def _is_pipe(descriptor: int) -> bool:
    try:
        mode = os.fstat(descriptor).st_mode
    except OSError:
        return False
    return stat.S_ISFIFO(mode) or stat.S_ISSOCK(mode)


# --- commands -------------------------------------------------------------------------------------


def _run_command(arguments: list[str]) -> "int | None":
    """Run a command in the daemon. Return its exit status, or None if it must run here."""
    path = find_socket()
    code: str | None = None
    try:
        connection = connect(path) if path is not None else None
        if connection is None:
            return None
        argv, code = _read_code(arguments)  # only if a daemon runs
        request = {"kind": "command", "argv": argv, "stdin": code, "env": dict(os.environ)}
        signal.signal(signal.SIGTERM, lambda *_: os._exit(TERMINATED))
        terminals = [number for number in (1, 2) if os.isatty(number)]
        columns = os.get_terminal_size(2).columns if 2 in terminals else 0  # noqa: PLR2004 - standard error
        opened = open_connection(
            {**request, "terminals": terminals, "columns": columns},
            start=False,
            connection=connection,
        )
        status = None
        if opened is not None:
            opened[0].sendall(CONFIRMATION)
            status = _print_output(opened[1])
    except KeyboardInterrupt:
        return INTERRUPTED
    except TimeoutError:  # it has not begun
        warn("this command runs without it")
        status = None
    except OSError as error:
        os.dup2(
            os.open(os.devnull, os.O_WRONLY), 1
        )  # Python must not report unwritten output at exit
        if isinstance(error, BrokenPipeError):  # the reader closed the pipe: `onetool tools | head`
            return 0
        sys.stderr.write(f"onetool: cannot write the output: {error.strerror}\n")
        return FAILED
    if status is None and code is not None and "-" in arguments:
        import io

        sys.stdin = io.TextIOWrapper(io.BytesIO(code.encode("utf-8", "surrogateescape")))
    return status


def _read_code(arguments: list[str]) -> "tuple[list[str], str | None]":
    """Return the daemon's arguments, and the code in a file or in standard input (`-`)."""
    argv = list(arguments)
    for option in {"-f", "--file"} & {*argv} if argv[0] == "run" else ():
        index = argv.index(option)
        with contextlib.suppress(OSError, IndexError, UnicodeDecodeError):
            if os.path.isfile(argv[index + 1]):  # noqa: PTH113
                with open(argv[index + 1], encoding="utf-8", newline="") as file:  # noqa: PTH123
                    return [*argv[:index], "-", *argv[index + 2 :]], file.read()
    if argv[0] == "run" and "-" in argv:
        return argv, sys.stdin.buffer.read().decode("utf-8", "surrogateescape")
    return argv, None


def _print_output(lines: Lines) -> "int | None":
    """Print what the daemon sends. Return the exit status, or None if the command must run here."""
    for stream in (sys.stdout, sys.stderr):
        stream.reconfigure(errors="backslashreplace")  # type: ignore[union-attr]
    while (frame := _read_frame(lines)) is not None:
        if "here" in frame:
            return None
        if "exit" in frame:
            return int(frame["exit"])
        stream = sys.stderr if "err" in frame else sys.stdout
        stream.write(frame.get("err") or frame.get("out") or "")
        stream.flush()
    return FAILED


def _read_frame(lines: Lines) -> "dict[str, Any] | None":
    """Return the next output frame, or None with a message if the daemon does not answer."""
    try:
        frame = lines.read()
        if frame is None:
            sys.stderr.write(f"onetool: {LOST}\n")
    except TimeoutError:
        warn("the command may have been carried out")
        return None
    return frame


def warn(consequence: str) -> None:
    """Say that the daemon does not respond."""
    with contextlib.suppress(OSError):
        sys.stderr.write(f"onetool: {UNRESPONSIVE}; {consequence}\n{STOP_HINT}\n")
        sys.stderr.flush()


# --- stdio ----------------------------------------------------------------------------------------


def _serve(arguments: list[str]) -> "int | None":
    """Serve the assistant through the daemon.

    Return the exit status, or None if this process must serve itself.
    """
    from onetool.processes.stdio_bridge import Bridge

    bridge = Bridge({"kind": "stdio", "argv": arguments, "env": dict(os.environ)})
    if not bridge.connect():
        return None
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda *_: os._exit(0))
    signal.signal(signal.SIGHUP, lambda *_: bridge.reload())
    signal.signal(
        signal.SIGCHLD, signal.SIG_IGN
    )  # reap a server for this client alone when it ends
    start_new_thread(bridge.copy_input, ())
    bridge.copy_output()
    return 0
