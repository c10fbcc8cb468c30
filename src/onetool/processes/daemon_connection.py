"""Connections to the daemon: find or start it, and exchange the first messages.

Like `daemon_client`, this uses only the standard library.
"""

import contextlib
import json
import os
import signal
import socket
import stat
import struct
import sys
import time
from binascii import crc32

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from typing import Any

PROTOCOL = 1
READ_BYTES = 1 << 16
# for a daemon that starts on a busy machine; assistants wait 30 s and more
CONNECT_SECONDS = 10.0
REPLY_SECONDS = 10.0  # for a question about the daemon itself
POLL_SECONDS = 1.0  # between two checks whether the daemon is stopped
LOCK_SECONDS = 2.0
RETRY_SECONDS = 0.05
MAX_ATTEMPTS = 5
BACKLOG = 128
# sent after the reply to a command: without it, the daemon does not execute the command
CONFIRMATION = b"\n"
LISTENER = 3  # the descriptor of the listening socket in a new daemon
SEARCH_PATH = "/usr/local/bin:/usr/bin:/bin"
FAILED = 1
# asks whether the daemon responds; its answer
PING = b'{"onetool":"ping"}'
PONG = b'{"onetool":"pong"}'
STOPPED = b'{"onetool":"stopped"}'  # the last line of a daemon that stops on request
DISCONNECTED = b'{"onetool":"disconnected"}'  # the last line for a client that a person disconnects
MAX_LINE_BYTES = 17 << 20  # a bit more than the daemon accepts
UNRESPONSIVE = "the shared server does not respond"


# --- the socket -----------------------------------------------------------------------------------


def describe_installation() -> str:
    """Return what client and daemon must share: program, version, interpreter, home."""
    package = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))  # noqa: PTH100, PTH120
    version = os.stat(os.path.join(package, "util", "version.py"))  # noqa: PTH116, PTH118
    home = os.path.realpath(os.path.expanduser("~"))  # noqa: PTH111
    parts = (
        PROTOCOL,
        package,
        version.st_mtime_ns,
        version.st_size,
        sys.executable,
        sys.version,
        home,
    )
    return "\n".join(map(str, parts))


def find_socket() -> str | None:
    """Return the daemon's socket path, or None without a directory for this user only."""
    try:
        name = f"{crc32(describe_installation().encode()):08x}.sock"
    except OSError:  # it is being replaced
        return None
    for directory in list_socket_directories(os.environ):
        path = f"{directory}/{name}"
        if len(os.fsencode(path)) < 100 and _is_private(directory):  # noqa: PLR2004 - the system allows 107 bytes
            return path
    return None


def list_socket_directories(environment: "Mapping[str, str]") -> list[str]:
    """Return the directories in which the socket may be, the preferred one first.

    Windows has no daemon.
    """
    if sys.platform == "win32":
        return []
    runtime = environment.get("XDG_RUNTIME_DIR", "")
    temporary = environment.get("TMPDIR", "")
    fallback = f"{temporary if temporary.startswith('/') else '/tmp'}/onetool-{os.getuid()}"  # noqa: S108
    return [f"{runtime}/onetool", fallback] if runtime.startswith("/") else [fallback]


def _is_private(directory: str) -> bool:
    """Create the directory if it is missing.

    Return whether it is a directory, not a link, of this user alone.
    """
    try:
        with contextlib.suppress(FileExistsError):
            os.mkdir(directory, 0o700)  # noqa: PTH102
        status = os.lstat(directory)
    except OSError:
        return False
    return (
        stat.S_ISDIR(status.st_mode) and status.st_uid == os.getuid() and not status.st_mode & 0o077
    )


def connect(path: str) -> "socket.socket | None":
    """Return a connection to this user's daemon, or None if none listens.

    Raise TimeoutError if it accepts no connections.
    """
    connection = socket.socket(socket.AF_UNIX)
    connection.settimeout(CONNECT_SECONDS)
    deadline = time.monotonic() + LOCK_SECONDS
    try:
        while True:
            try:
                connection.connect(path)
                break
            except BlockingIOError:  # the daemon has not accepted those who came before
                if time.monotonic() > deadline:
                    raise TimeoutError(UNRESPONSIVE) from None
                time.sleep(RETRY_SECONDS)
        if get_peer(connection)[1] == os.getuid():
            return connection
    except TimeoutError:
        connection.close()
        raise
    except OSError:
        pass
    connection.close()
    return None


def get_peer(connection: socket.socket) -> tuple[int, int]:
    """Return the process and the user at the other end."""
    process, user, _ = struct.unpack(
        "3i", connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12)
    )
    return process, user


def _connect_or_start(path: str) -> "socket.socket | None":
    """Return a connection to the daemon, which is started if needed, or None."""
    connection = connect(path)
    if connection is not None:
        return connection
    with contextlib.suppress(OSError), _locked(f"{path}.lock") as has_lock:
        if not has_lock:
            return None
        connection = connect(path)  # another client may have started it
        if connection is None:
            with contextlib.suppress(FileNotFoundError):
                os.unlink(path)  # noqa: PTH108 - of a daemon that was killed
            with socket.socket(socket.AF_UNIX) as listener:
                before = os.umask(0o177)
                try:
                    listener.bind(path)
                finally:
                    os.umask(before)
                listener.listen(BACKLOG)  # clients can connect while the daemon starts
                connection = connect(path)  # before the daemon can end
                _start(listener, path)
    return connection


@contextlib.contextmanager
def _locked(path: str) -> "Iterator[bool]":
    """Hold the lock; yield False if another process holds it for long, because it is stopped."""
    import fcntl  # not on Windows

    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
    try:
        deadline = time.monotonic() + LOCK_SECONDS
        while True:
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                if time.monotonic() > deadline:
                    yield False
                    return
                time.sleep(RETRY_SECONDS)
        yield True
    finally:
        os.close(descriptor)


def _start(listener: socket.socket, path: str) -> None:
    """Start the daemon in a session without a parent; it inherits only the socket."""
    child = os.fork()
    if child:
        with contextlib.suppress(
            ChildProcessError
        ):  # reaped by the system, because SIGCHLD is ignored
            os.waitpid(child, 0)
        return
    try:
        os.setsid()
        if os.fork():
            os._exit(0)
        _become_daemon(listener.fileno(), path)
    finally:
        os._exit(FAILED)


def _become_daemon(listener: int, path: str) -> None:
    home = os.path.expanduser("~")  # noqa: PTH111
    os.umask(0o077)
    os.chdir("/")
    nothing = os.open(os.devnull, os.O_RDWR)
    log = _open_log(home)
    os.dup2(listener, LISTENER + 1)  # first out of the way of the three standard descriptors
    for number, descriptor in enumerate((nothing, log, log)):
        os.dup2(descriptor, number)
    os.dup2(LISTENER + 1, LISTENER)
    os.closerange(LISTENER + 1, os.sysconf("SC_OPEN_MAX"))
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGPIPE, signal.SIGCHLD):
        signal.signal(number, signal.SIG_DFL)
    kept = ("HOME", "LANG", "LC_ALL", "TMPDIR", "XDG_RUNTIME_DIR", "USER", "LOGNAME")
    environment = {name: value for name in kept if (value := os.environ.get(name)) is not None}
    environment["PATH"] = SEARCH_PATH
    os.execve(  # noqa: S606 - no shell is needed
        sys.executable, [sys.executable, "-P", "-m", "onetool.server.daemon", path], environment
    )


def _open_log(home: str) -> int:
    """Open the log for errors that end the daemon. Without a writable home directory there is none."""
    try:
        os.makedirs(f"{home}/.onetool/logs", 0o700, exist_ok=True)  # noqa: PTH103
        return os.open(
            f"{home}/.onetool/logs/daemon.err",
            os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW,
            0o600,
        )
    except OSError:
        return os.open(os.devnull, os.O_WRONLY)


# --- the handshake --------------------------------------------------------------------------------


class Lines:
    """Reads messages, one per line. `rest` is the received start after them."""

    def __init__(self, connection: socket.socket) -> None:
        self._connection = connection
        self.rest = b""

    def read(self, seconds: float = float("inf")) -> "dict[str, Any] | None":
        """Return the next message, or None at the end.

        Raise TimeoutError if the other process is stopped, or sends nothing for so many seconds.
        """
        while b"\n" not in self.rest:
            if not is_readable(self._connection, seconds, get_peer(self._connection)[0]):
                raise TimeoutError(UNRESPONSIVE)
            chunk = self._connection.recv(READ_BYTES)
            if not chunk:
                return None
            self.rest += chunk
            if len(self.rest) > MAX_LINE_BYTES:
                raise ValueError("message too large")
        line, _, self.rest = self.rest.partition(b"\n")
        try:
            message = json.loads(line)
        except RecursionError:
            raise ValueError("message too deep") from None
        return message if isinstance(message, dict) else None


def open_connection(
    request: "dict[str, Any]",
    *,
    start: bool,
    connection: "socket.socket | None" = None,
    seconds: float = CONNECT_SECONDS,
) -> "tuple[socket.socket, Lines, dict[str, Any]] | None":
    """Connect, send the request and return connection and reply; None without a daemon.

    Raise TimeoutError if the daemon does not respond.
    """
    path = find_socket()
    started = time.monotonic()
    for _ in range(MAX_ATTEMPTS if path else 0):
        assert path is not None
        connection = connection or (_connect_or_start(path) if start else connect(path))
        if connection is None:
            return None
        lines = Lines(connection)
        connection.settimeout(seconds)
        try:
            _send_request(connection, request)
            reply = lines.read(seconds)
        except TimeoutError:
            connection.close()
            raise TimeoutError(UNRESPONSIVE) from None
        except (OSError, ValueError):
            pass
        else:
            if reply is not None:
                connection.settimeout(None)
                if reply.get("ok") and reply.get("installation") == describe_installation():
                    return connection, lines, reply
                connection.close()
                return None
        connection.close()  # it ended while this client connected
        connection = None
        if not start or time.monotonic() - started > CONNECT_SECONDS:  # something else listens
            return None
        time.sleep(RETRY_SECONDS)
    return None


def _send_request(connection: socket.socket, request: "dict[str, Any]") -> None:
    """Send the request with the working directory as a descriptor, not as a path."""
    data = json.dumps({"protocol": PROTOCOL, **request}).encode() + b"\n"
    directory = os.open(".", os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        sent = socket.send_fds(connection, [data[:READ_BYTES]], [directory])
    finally:
        os.close(directory)
    if sent < len(data):  # sending nothing fails if the daemon has already answered
        connection.sendall(data[sent:])


def ask_daemon(request: "dict[str, Any]") -> "dict[str, Any] | None":
    """Return the daemon's reply, for example to `{"kind": "status"}`; None without one.

    Raise TimeoutError if it does not answer.
    """
    path = find_socket()
    connection = connect(path) if path is not None else None
    if connection is None:
        return None
    opened = open_connection(request, start=False, connection=connection, seconds=REPLY_SECONDS)
    if opened is None:
        raise TimeoutError(UNRESPONSIVE)
    opened[0].close()
    return opened[2]


# --- waiting --------------------------------------------------------------------------------------


def wait_for(descriptor: int, event: str, seconds: "float | None" = None) -> bool:
    """Wait until a descriptor is ready. Return False if it is not in this time."""
    import select

    poll = select.poll()
    poll.register(descriptor, getattr(select, event))
    return bool(poll.poll(None if seconds is None else seconds * 1000))


def is_readable(connection: socket.socket, seconds: float, process: int) -> bool:
    """Wait for data.

    Return False if there is none in this time, or if the process that should send it is stopped.
    """
    deadline = time.monotonic() + seconds
    while not wait_for(connection.fileno(), "POLLIN", min(POLL_SECONDS, seconds)):
        if time.monotonic() > deadline or _is_stopped(process):
            return False
    return True


def _is_stopped(process: int) -> bool:
    """Return whether a signal or a debugger has stopped the process."""
    with contextlib.suppress(OSError), open(f"/proc/{process}/stat", "rb") as file:  # noqa: PTH123
        return file.read().rpartition(b")")[2].split()[0] in {b"T", b"t"}
    return False
