"""Copy messages between an assistant on standard input and output and the daemon.

If the daemon ends, the client answers the requests in flight with an error, repeats the assistant's
handshake with a new daemon, and continues. No request is sent twice. If the daemon does not
respond, because it is stopped or hangs, the client does the same with a server of its own.

Like `daemon_client`, this uses only the standard library.
"""

import contextlib
import json
import os
import signal
import socket
import sys
from _thread import allocate_lock

from onetool.processes.daemon_client import LOST, STANDALONE, warn
from onetool.processes.daemon_connection import (
    CONNECT_SECONDS,
    DISCONNECTED,
    FAILED,
    MAX_ATTEMPTS,
    MAX_LINE_BYTES,
    PING,
    PONG,
    READ_BYTES,
    STOPPED,
    UNRESPONSIVE,
    Lines,
    is_readable,
    open_connection,
    wait_for,
)

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

# of a daemon with requests to answer, before the client asks whether it responds
SILENCE_SECONDS = 5.0
CONNECTION_CLOSED = -32000  # the error code that the SDKs use
INITIALIZE = "initialize"
CANCELLED = "notifications/cancelled"
HANDSHAKE = (INITIALIZE, "notifications/initialized", "logging/setLevel")
RESPONSE = b'{"jsonrpc":"2.0","id":'
RESULT = b',"result":'
ERROR = b',"error":'
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
        # messages by method that a new daemon must receive first
        self._handshake: dict[str, bytes] = {}
        self._in_flight: dict[str | int, str] = {}  # methods of requests of the assistant
        self._is_inside_line = False  # of the assistant, of which the daemon has received a part
        # requests of the daemon: their ids here and there
        self._asked: dict[str | int, str | int] = {}
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
                opened = open_connection(self._hello, start=True)
        except TimeoutError:
            self._is_silent = True
        if self._is_silent:
            self._is_silent = False
            warn("this client has a server of its own")
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
            original = self._asked.pop(ident, None)
            # Without it, ids are the same. An answer to a daemon that ended is for nobody.
            if self._generation:
                if original is None:
                    return b""
                return json.dumps({**message, "id": original}).encode() + b"\n"
        return line

    def _forget(self, ident: "Any") -> None:
        """Expect no response to a request that the assistant cancels."""
        if _is_id(ident):
            self._in_flight.pop(ident, None)

    # --- from the daemon --------------------------------------------------------------------------

    def copy_output(self) -> None:
        """Write the daemon's lines to standard output until input and daemon have ended."""
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
        """Wait for daemon output.

        Return False if it has requests to answer and does not respond.
        """
        while not wait_for(connection.fileno(), "POLLIN", SILENCE_SECONDS):
            if self._is_alone or not (self._in_flight or self._has_ended):
                continue
            # If it fails, the other thread waits to send, which tells as much.
            if self._lock.acquire(blocking=False):
                with contextlib.suppress(OSError):
                    if not self._is_inside_line:
                        connection.send(PING + b"\n", socket.MSG_DONTWAIT)
                self._lock.release()
            if not is_readable(connection, CONNECT_SECONDS, self._daemon):
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
        """Return a message with a new id: the assistant may still answer earlier daemons."""
        ident, is_request = _identify(line)
        if ident is not None and not is_request:
            return line
        message = json.loads(line)
        if ident is not None:
            message["id"] = f"{self._generation}:{ident}"
            # before it is written: the answer may follow at once
            self._asked[message["id"]] = ident
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
            # The assistant may wait for `initialize`.
            is_needed = not self._is_stopped or bool(self._in_flight)
            if is_needed and not (self._is_connected() or self._has_ended):
                self._reconnect()

    def _take_lost(self, error: "dict[str, Any]", kept: str = "") -> "list[dict[str, Any]]":
        """Return errors for the requests in flight, except for the method that is repeated."""
        lost = [ident for ident, method in self._in_flight.items() if method != kept]
        for ident in lost:
            del self._in_flight[ident]
        return [{"jsonrpc": "2.0", "id": ident, "error": error} for ident in lost]

    def _write_messages(self, messages: "list[dict[str, Any]]") -> None:
        """Write this client's own messages. An assistant that closed its input expects none."""
        if messages and not self._has_ended:
            self._write(b"".join(json.dumps(message).encode() + b"\n" for message in messages))

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
                    # It waits for processes of its own.
                    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
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
    """Return a daemon message's id, and whether it is a request.

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
            wait_for(descriptor, "POLLIN")
        except OSError:
            return b""


def _write(descriptor: int, data: bytes) -> None:
    """Write all data; end this process if nobody reads."""
    while data:
        try:
            data = data[os.write(descriptor, data) :]
        except BlockingIOError:
            wait_for(descriptor, "POLLOUT")
        except OSError:
            os._exit(0)
