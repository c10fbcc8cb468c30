"""The client of the daemon: it runs a command there, if possible.

It uses only the standard library and no other module of this package, so that it starts in a few
milliseconds. Over stdio it copies messages between the assistant and the daemon, which it starts if
needed. `onetool run` and the other commands of `COMMANDS` run in the daemon if there is one.
Everything else, and everything without a daemon, runs in this process.

If the daemon ends, the client answers the requests in flight with an error, repeats the handshake
of the assistant with a new daemon, and continues. No request is sent twice. If the daemon does not
respond, because it is stopped or hangs, the client does the same with a server of its own.
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
from _thread import allocate_lock, start_new_thread
from binascii import crc32

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from typing import Any

PROTOCOL = 1
STANDALONE = "ONETOOL_STANDALONE"
COMMANDS = (
    *(
        "run",
        "call",
        "tools",
        "search",
        "help",
        "bundles",
        "approvals",
        "runs",
        "stats",
        "audit",
        "token",
        "servers",
    ),
    *("api", "logout", "agents", "hosts", "secret", "settings"),
)
LOCAL_OPTIONS = ("--standalone", "--http", "-h", "--help", "--version")
READ_BYTES = 1 << 16
CONNECT_SECONDS = (
    10.0  # for a daemon that is starting on a busy machine; assistants wait 30 s and more
)
REPLY_SECONDS = 10.0  # for a question about the daemon itself
SILENCE_SECONDS = (
    5.0  # of a daemon with requests to answer, before the client asks whether it responds
)
POLL_SECONDS = 1.0  # between two checks whether the daemon is stopped
LOCK_SECONDS = 2.0
RETRY_SECONDS = 0.05
MAX_ATTEMPTS = 5
BACKLOG = 128
CONFIRMATION = (  # after the reply to a command: without it, the daemon does not execute the command
    b"\n"
)
LISTENER = 3  # the descriptor of the listening socket in a new daemon
SEARCH_PATH = "/usr/local/bin:/usr/bin:/bin"
FAILED = 1
INTERRUPTED = 130
TERMINATED = 143
CONNECTION_CLOSED = -32000  # the error code that the SDKs use
# asks whether the daemon responds; its answer
PING = b'{"onetool":"ping"}'
PONG = b'{"onetool":"pong"}'
STOPPED = b'{"onetool":"stopped"}'  # the last line of a daemon that stops on request
DISCONNECTED = b'{"onetool":"disconnected"}'  # the last line for a client that a person disconnects
INITIALIZE = "initialize"
CANCELLED = "notifications/cancelled"
HANDSHAKE = (INITIALIZE, "notifications/initialized", "logging/setLevel")
MAX_LINE_BYTES = 17 << 20  # a bit more than the daemon accepts
RESPONSE = b'{"jsonrpc":"2.0","id":'
RESULT = b',"result":'
ERROR = b',"error":'
LOST = "the shared server ended before it answered; the request may have been carried out"
UNRESPONSIVE = "the shared server does not respond"
STOP_HINT = "Hint: end the shared server with `onetool daemon stop`"
INTERRUPTION = {
    "code": CONNECTION_CLOSED,
    "message": f"{LOST}. Check what happened, then try again",
    "data": {"type": "interrupted", "retryable": True},
}
SILENCE = {
    **INTERRUPTION,
    "message": (
        f"{UNRESPONSIVE}; the request may have been carried out. Check what happened, then try"
        " again: this client now has a server of its own"
    ),
}
DISCONNECTION = {
    "code": CONNECTION_CLOSED,
    "message": "a person disconnected this client; the request may have been carried out",
    "data": {"type": "disconnected", "retryable": False},
}


def run_in_daemon(arguments: list[str]) -> int | None:
    """Run a command in the daemon and return its exit status; None if this process must run it."""
    if not _may_share(arguments):
        return None
    if arguments[:1] and arguments[0] in COMMANDS:
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
    if arguments[:1] and arguments[0] in COMMANDS:
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


# --- the socket -----------------------------------------------------------------------------------


def describe_installation() -> str:
    """Return what a client and its daemon must have in common: program, version, interpreter and
    home directory.
    """
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
    """Return the path of the daemon's socket, or None if there is no directory that only this user
    can write.
    """
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
        found = os.lstat(directory)
    except OSError:
        return False
    return stat.S_ISDIR(found.st_mode) and found.st_uid == os.getuid() and not found.st_mode & 0o077


def _connect(path: str) -> "socket.socket | None":
    """Return a connection to the daemon, or None if no daemon of this user listens.

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
    connection = _connect(path)
    if connection is not None:
        return connection
    with contextlib.suppress(OSError), _locked(f"{path}.lock") as has_lock:
        if not has_lock:
            return None
        connection = _connect(path)  # another client may have started it
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
                connection = _connect(path)  # before the daemon can end
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
    """Start the daemon: a process without a parent, of its own session, with nothing of this one
    but the socket.
    """
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
    """The messages of a connection, one per line. `rest` is what was received of the next one."""

    def __init__(self, connection: socket.socket) -> None:
        self._connection = connection
        self.rest = b""

    def read(self, seconds: float = float("inf")) -> "dict[str, Any] | None":
        """Return the next message, or None at the end.

        Raise TimeoutError if the other process is stopped, or sends nothing for so many seconds.
        """
        while b"\n" not in self.rest:
            if not _is_readable(self._connection, seconds, get_peer(self._connection)[0]):
                raise TimeoutError(UNRESPONSIVE)
            chunk = self._connection.recv(READ_BYTES)
            if not chunk:
                return None
            self.rest += chunk
            if len(self.rest) > MAX_LINE_BYTES:
                raise ValueError("message too large")
        line, _, self.rest = self.rest.partition(b"\n")
        try:
            found = json.loads(line)
        except RecursionError:
            raise ValueError("message too deep") from None
        return found if isinstance(found, dict) else None


def _open(
    request: "dict[str, Any]",
    *,
    start: bool,
    connection: "socket.socket | None" = None,
    seconds: float = CONNECT_SECONDS,
) -> "tuple[socket.socket, Lines, dict[str, Any]] | None":
    """Connect, send the request and return the connection with the reply, or None if there is no
    daemon for it.

    Raise TimeoutError if the daemon does not respond.
    """
    path = find_socket()
    started = time.monotonic()
    for _ in range(MAX_ATTEMPTS if path else 0):
        assert path is not None
        connection = connection or (_connect_or_start(path) if start else _connect(path))
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
    """Send the request with the working directory as a descriptor: a path could lead elsewhere in
    the daemon.
    """
    data = json.dumps({"protocol": PROTOCOL, **request}).encode() + b"\n"
    directory = os.open(".", os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        sent = socket.send_fds(connection, [data[:READ_BYTES]], [directory])
    finally:
        os.close(directory)
    if sent < len(data):  # sending nothing fails if the daemon has already answered
        connection.sendall(data[sent:])


def ask_daemon(request: "dict[str, Any]") -> "dict[str, Any] | None":
    """Return the reply of the daemon to a request such as `{"kind": "status"}`, or None if no
    daemon runs.

    Raise TimeoutError if it does not answer.
    """
    path = find_socket()
    connection = _connect(path) if path is not None else None
    if connection is None:
        return None
    opened = _open(request, start=False, connection=connection, seconds=REPLY_SECONDS)
    if opened is None:
        raise TimeoutError(UNRESPONSIVE)
    opened[0].close()
    return opened[2]


# --- commands -------------------------------------------------------------------------------------


def _run_command(arguments: list[str]) -> "int | None":
    """Run a command in the daemon. Return its exit status, or None if it must run here."""
    path = find_socket()
    code: str | None = None
    try:
        connection = _connect(path) if path is not None else None
        if connection is None:
            return None
        argv, code = _read_code(arguments)  # only if a daemon runs
        request = {"kind": "command", "argv": argv, "stdin": code, "env": dict(os.environ)}
        signal.signal(signal.SIGTERM, lambda *_: os._exit(TERMINATED))
        terminals = [number for number in (1, 2) if os.isatty(number)]
        columns = os.get_terminal_size(2).columns if 2 in terminals else 0  # noqa: PLR2004 - standard error
        opened = _open(
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
        _warn("this command runs without it")
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
    """Return the arguments for the daemon, and the code that they name: a file, or `-` for standard
    input.
    """
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
    """Return the next part of the output, or None with a message if the daemon ended or is stopped."""
    try:
        frame = lines.read()
        if frame is None:
            sys.stderr.write(f"onetool: {LOST}\n")
    except TimeoutError:
        _warn("the command may have been carried out")
        return None
    return frame


def _warn(consequence: str) -> None:
    """Say that the daemon does not respond."""
    with contextlib.suppress(OSError):
        sys.stderr.write(f"onetool: {UNRESPONSIVE}; {consequence}\n{STOP_HINT}\n")
        sys.stderr.flush()


# --- stdio ----------------------------------------------------------------------------------------


def _serve(arguments: list[str]) -> "int | None":
    """Serve the assistant through the daemon.

    Return the exit status, or None if this process must serve itself.
    """
    bridge = Bridge({"kind": "stdio", "argv": arguments, "env": dict(os.environ)})
    if not bridge.connect():
        return None
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda *_: os._exit(0))
    signal.signal(signal.SIGHUP, lambda *_: bridge.reload())
    signal.signal(
        signal.SIGCHLD, signal.SIG_IGN
    )  # a server for this client alone is reaped when it ends
    start_new_thread(bridge.copy_input, ())
    bridge.copy_output()
    return 0


class Bridge:
    """Copies messages between the assistant and the daemon, in one thread for each direction."""

    def __init__(self, hello: "dict[str, Any]") -> None:
        self._hello = hello
        self._lock = allocate_lock()  # of everything below
        self._output = allocate_lock()  # of standard output
        self._connection: socket.socket | None = None
        self._daemon = 0  # its process
        self._is_alone = False  # the server is of this client alone, and may be slow to start
        self._unread = b""  # the start of a message of the daemon
        self._handshake: dict[
            str, bytes
        ] = {}  # messages by method that a new daemon must receive first
        self._in_flight: dict[str | int, str] = {}  # methods of requests of the assistant
        self._is_inside_line = False  # of the assistant, of which the daemon has received a part
        self._asked: dict[
            str | int, str | int
        ] = {}  # requests of the daemon: their ids here and there
        self._generation = 0  # the number of daemons that ended
        self._has_ended = self._is_stopped = False  # the input; the daemon, on purpose
        self._is_disconnected = self._is_silent = False
        self._wake = allocate_lock()
        self._is_waiting = False
        self._wake.acquire()

    def connect(self) -> bool:
        """Connect to the daemon. Return False if this process must serve the assistant itself."""
        self._connection = self._reach_daemon()
        return self._connection is not None

    def _reach_daemon(self) -> "socket.socket | None":
        """Return a connection to a daemon that responds, or None."""
        opened = None
        try:
            if not self._is_silent:
                opened = _open(self._hello, start=True)
        except TimeoutError:
            self._is_silent = True
        if self._is_silent:
            self._is_silent = False
            _warn("this client has a server of its own")
        if opened is None:
            return None
        self._daemon = int(opened[2]["pid"])
        self._is_alone = False
        return opened[0]

    def _is_connected(self) -> bool:
        return self._connection is not None

    def reload(self) -> None:
        if self._connection is not None:  # else the process ID may belong to another process
            with contextlib.suppress(OSError):
                os.kill(self._daemon, signal.SIGHUP)

    # --- from the assistant -----------------------------------------------------------------------

    def copy_input(self) -> None:
        """Send each line to the daemon until the input ends."""
        line = bytearray()
        is_long = False
        while chunk := _read(0):
            *ends, start = chunk.split(b"\n")
            for end in ends:
                line += end + b"\n"
                self._send(bytes(line), is_tracked=not is_long)
                line = bytearray()
                is_long = False
            line += start
            if len(line) > MAX_LINE_BYTES:  # the daemon rejects it
                self._send(bytes(line), is_tracked=False)
                line = bytearray()
                is_long = True
        with self._lock:
            self._has_ended = True
            if self._connection is not None:
                with contextlib.suppress(OSError):
                    self._connection.shutdown(socket.SHUT_WR)
            self._continue_output()

    def _send(self, line: bytes, *, is_tracked: bool) -> None:
        with self._lock:
            if self._connection is None and line.strip():
                self._reconnect()
                self._continue_output()
            line = self._track(line) if is_tracked else line
            if line and self._connection is not None:
                with contextlib.suppress(OSError):  # the other thread notices
                    self._connection.sendall(line)
                self._is_inside_line = not line.endswith(b"\n")
            is_lost = self._connection is None  # not even a server of its own started
            lost = self._take_lost(INTERRUPTION) if is_lost else []
        self._write_messages(lost)

    def _track(self, line: bytes) -> bytes:
        """Record requests, answers and the handshake. Return what the daemon should receive."""
        try:
            message = json.loads(line)
        except (ValueError, RecursionError):
            return line  # the daemon says what is wrong
        if not isinstance(message, dict):
            return line
        method: Any = message.get("method")
        ident: Any = message.get("id")
        if isinstance(method, str):
            if method in HANDSHAKE:
                self._handshake[method] = line
            if _is_id(ident):
                self._in_flight[ident] = method
            elif method == CANCELLED and isinstance(params := message.get("params"), dict):
                self._forget(params.get("requestId"))
        elif _is_id(ident):
            known = self._asked.pop(ident, None)
            if (
                self._generation
            ):  # else ids are the same; an answer to a daemon that ended is for nobody
                return (
                    b"" if known is None else json.dumps({**message, "id": known}).encode() + b"\n"
                )
        return line

    def _forget(self, ident: "Any") -> None:
        """Expect no response to a request that the assistant cancels."""
        if _is_id(ident):
            self._in_flight.pop(ident, None)

    # --- from the daemon --------------------------------------------------------------------------

    def copy_output(self) -> None:
        """Write each line of the daemon to standard output until the input and the daemon have
        ended.
        """
        while True:
            connection = self._connection
            if connection is None:
                if self._wait():
                    continue
                return
            if not self._responds(connection):
                with contextlib.suppress(OSError):
                    connection.shutdown(socket.SHUT_RDWR)  # the other thread may be waiting to send
                self._lose(connection, SILENCE)
                continue
            try:
                chunk = connection.recv(READ_BYTES)
            except OSError:
                chunk = b""
            if chunk:
                self._forward(chunk)
            else:
                self._lose(connection, INTERRUPTION)

    def _responds(self, connection: socket.socket) -> bool:
        """Wait for output of the daemon.

        Return False if it has requests to answer and does not respond.
        """
        while not _wait_for(connection.fileno(), "POLLIN", SILENCE_SECONDS):
            if self._is_alone or not (self._in_flight or self._has_ended):
                continue
            if self._lock.acquire(
                blocking=False
            ):  # else the other thread waits to send, which tells as much
                with contextlib.suppress(OSError):
                    if not self._is_inside_line:
                        connection.send(PING + b"\n", socket.MSG_DONTWAIT)
                self._lock.release()
            if not _is_readable(connection, CONNECT_SECONDS, self._daemon):
                return False
        return True

    def _wait(self) -> bool:
        """Wait for the next connection. Return False if the input has ended."""
        with self._lock:
            if self._has_ended or self._connection is not None:
                return not self._has_ended
            self._is_waiting = True
        self._wake.acquire()
        return not self._has_ended

    def _continue_output(self) -> None:
        if self._is_waiting:
            self._is_waiting = False
            self._wake.release()

    def _forward(self, chunk: bytes) -> None:
        """Write the complete lines, then record what they answer or ask."""
        if b"\n" not in chunk:
            self._unread += chunk
            return
        whole, _, rest = chunk.rpartition(b"\n")
        lines = (self._unread + whole).split(b"\n")
        self._unread = rest
        if lines[-1] in {STOPPED, DISCONNECTED}:
            self._is_disconnected = lines.pop() == DISCONNECTED
            self._is_stopped = True
        if PONG in lines:
            lines = [line for line in lines if line != PONG]
        if self._generation:
            lines = [*map(self._change_id, lines)]
        if lines:
            self._write(b"\n".join(lines) + b"\n")
        for line in lines:
            ident, is_request = _identify(line)
            if ident is not None and is_request:
                self._asked.setdefault(ident, ident)
            elif ident is not None:
                self._in_flight.pop(ident, None)

    def _change_id(self, line: bytes) -> bytes:
        """Return a message with an id that no earlier daemon has used: the assistant may still
        answer those.
        """
        ident, is_request = _identify(line)
        if ident is not None and not is_request:
            return line
        message = json.loads(line)
        if ident is not None:
            message["id"] = f"{self._generation}:{ident}"
            self._asked[message["id"]] = (
                ident  # before it is written: the answer may follow at once
            )
        elif message.get("method") == CANCELLED:
            message["params"]["requestId"] = f"{self._generation}:{message['params']['requestId']}"
        else:
            return line
        return json.dumps(message).encode()

    def _write(self, data: bytes) -> None:
        with self._output:
            _write(1, data)

    def _lose(self, connection: socket.socket, error: "dict[str, Any]") -> None:
        """Answer the requests in flight with an error.

        Connect to a new daemon at once, or later if it was stopped.
        """
        with self._lock:
            connection.close()
            self._connection = None
            self._unread = b""
            self._is_silent = error is SILENCE
            error = DISCONNECTION if self._is_disconnected else error
            messages = self._take_lost(error, kept="" if self._is_disconnected else INITIALIZE)
            for ident in self._asked:
                params = {"requestId": ident, "reason": "the shared server ended"}
                messages.append({"jsonrpc": "2.0", "method": CANCELLED, "params": params})
            self._asked = {}
            self._generation += 1
        self._write_messages(messages)
        if self._is_disconnected:
            os._exit(0)  # the other thread waits for input
        with self._lock:
            is_needed = not self._is_stopped or bool(
                self._in_flight
            )  # the assistant waits for `initialize`
            if is_needed and not (self._is_connected() or self._has_ended):
                self._reconnect()

    def _take_lost(self, error: "dict[str, Any]", kept: str = "") -> "list[dict[str, Any]]":
        """Return errors for the requests in flight, except for the method that is repeated."""
        lost = [ident for ident, method in self._in_flight.items() if method != kept]
        for ident in lost:
            del self._in_flight[ident]
        return [{"jsonrpc": "2.0", "id": ident, "error": error} for ident in lost]

    def _write_messages(self, messages: "list[dict[str, Any]]") -> None:
        """Write messages of this client itself. An assistant that closed its input expects none."""
        if messages and not self._has_ended:
            self._write(b"".join(json.dumps(each).encode() + b"\n" for each in messages))

    # --- a new daemon -----------------------------------------------------------------------------

    def _reconnect(self) -> None:
        """Connect to a new daemon and repeat the handshake.

        Without a daemon, start a server for this client alone.
        """
        self._is_stopped = False
        for _ in range(MAX_ATTEMPTS):
            connection = self._reach_daemon() or self._start_standalone()
            with contextlib.suppress(OSError, ValueError):
                self._repeat_handshake(connection)
                self._connection = connection
                return
            connection.close()

    def _start_standalone(self) -> socket.socket:
        """Start a server for this client alone and return the connection to it."""
        ours, theirs = socket.socketpair()
        with theirs:
            child = os.fork()
            if child == 0:
                try:
                    os.dup2(theirs.fileno(), 0)
                    os.dup2(theirs.fileno(), 1)
                    signal.signal(
                        signal.SIGCHLD, signal.SIG_DFL
                    )  # it waits for processes of its own
                    os.environ[STANDALONE] = "1"
                    code = "import sys; from onetool.cli.main import main; sys.exit(main())"
                    os.execv(sys.executable, [sys.executable, "-P", "-c", code, *sys.argv[1:]])  # noqa: S606
                finally:
                    os._exit(FAILED)
        self._daemon = child
        self._is_alone = True
        return ours

    def _repeat_handshake(self, connection: socket.socket) -> None:
        lines = Lines(connection)
        for line in self._handshake.values():
            connection.sendall(line)
            ident = json.loads(line).get("id")
            if ident is None or ident in self._in_flight:  # its answer was never received
                continue
            while (reply := lines.read()) is not None and (
                "method" in reply or reply.get("id") != ident
            ):
                pass
            if reply is None:
                raise ConnectionError
        self._forward(lines.rest)


def _identify(line: bytes) -> "tuple[str | int | None, bool]":
    """Return the id of a message of the daemon, and whether it is a request.

    A response is not parsed completely.
    """
    end = -1
    if line.startswith(RESPONSE):
        ends = [place for place in (line.find(RESULT), line.find(ERROR)) if place > 0]
        end = min(ends, default=-1)
    try:
        message = {"id": json.loads(line[len(RESPONSE) : end])} if end > 0 else json.loads(line)
    except (ValueError, RecursionError):
        return None, False
    ident = message.get("id") if isinstance(message, dict) else None
    return (ident, "method" in message) if _is_id(ident) else (None, False)


def _is_id(value: "Any") -> bool:
    return type(value) in {str, int}


def _read(descriptor: int) -> bytes:
    while True:
        try:
            return os.read(descriptor, READ_BYTES)
        except BlockingIOError:
            _wait_for(descriptor, "POLLIN")
        except OSError:
            return b""


def _write(descriptor: int, data: bytes) -> None:
    """Write all of it; end this process if nobody reads."""
    while data:
        try:
            data = data[os.write(descriptor, data) :]
        except BlockingIOError:
            _wait_for(descriptor, "POLLOUT")
        except OSError:
            os._exit(0)


def _wait_for(descriptor: int, event: str, seconds: "float | None" = None) -> bool:
    """Wait until a descriptor is ready. Return False if it is not in this time."""
    import select

    poll = select.poll()
    poll.register(descriptor, getattr(select, event))
    return bool(poll.poll(None if seconds is None else seconds * 1000))


def _is_readable(connection: socket.socket, seconds: float, process: int) -> bool:
    """Wait for data.

    Return False if there is none in this time, or if the process that should send it is stopped.
    """
    deadline = time.monotonic() + seconds
    while not _wait_for(connection.fileno(), "POLLIN", min(POLL_SECONDS, seconds)):
        if time.monotonic() > deadline or _is_stopped(process):
            return False
    return True


def _is_stopped(process: int) -> bool:
    """Return whether a signal or a debugger has stopped the process."""
    with contextlib.suppress(OSError), open(f"/proc/{process}/stat", "rb") as file:  # noqa: PTH123
        return file.read().rpartition(b")")[2].split()[0] in {b"T", b"t"}
    return False
