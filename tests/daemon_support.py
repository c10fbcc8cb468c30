"""Clients of a real daemon: each is a process of its own, with pipes, a home directory and a
runtime directory.

`open_daemon_home` ends the daemon and checks that no process is left.
"""

import array
import contextlib
import json
import os
import shutil
import signal
import socket
import sqlite3
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tests.support import (
    PROGRAM,
    TIMEOUT_SECONDS,
    Connection,
    ProcessWatch,
    RawClient,
    configure,
    connect,
    environment,
    eventually,
    list_descendants,
)

from onetool.processes.daemon_client import STANDALONE
from onetool.processes.daemon_connection import PROTOCOL

ROOT = Path(__file__).parents[1]
CLIENT = (sys.executable, PROGRAM)  # not `PROGRAM` alone, which is forked without its start
MODULE = "onetool.server.daemon"


@dataclass(frozen=True)
class DaemonHome:
    """A home directory with its own daemon.

    `home` is also the default working directory of clients.
    """

    home: Path
    runtime: Path
    variables: dict[str, str] = field(default_factory=dict)

    def environment(self, **more: str) -> dict[str, str]:
        base = {name: value for name, value in environment(self.home).items() if name != STANDALONE}
        return {**base, "XDG_RUNTIME_DIR": str(self.runtime), **self.variables, **more}

    def client(
        self,
        directory: Path | None = None,
        *arguments: str,
        command: Sequence[str] = CLIENT,
        hello: Mapping[str, Any] | None = None,
        **variables: str,
    ) -> RawClient:
        """Start a client that sends raw messages. It is connected when its block begins."""
        return RawClient(
            directory or self.home, (*command, *arguments), self.environment(**variables), hello
        )

    def connect(
        self,
        directory: Path | None = None,
        mode: str = "auto",
        arguments: Sequence[str] = (),
        env: Mapping[str, str] | None = None,
        **options: Any,
    ) -> AbstractContextManager[Connection]:
        """Start a client and connect the SDK to it."""
        variables = self.environment(**(env or {}))
        return connect(directory or self.home, mode, (*CLIENT, *arguments), variables, **options)

    def configure(self, text: str) -> None:
        configure(self.home, text)

    @property
    def sockets(self) -> list[Path]:
        return sorted((self.runtime / "onetool").glob("*.sock"))

    @property
    def daemons(self) -> list[int]:
        """The processes of daemons, also of those that drain."""
        return [
            pid
            for pid, words in list_commands()
            if MODULE in words and words[-1].startswith(str(self.runtime))
        ]

    @property
    def daemon(self) -> int:
        (pid,) = self.daemons
        return pid

    def status(self) -> dict[str, Any]:
        return ask(self.sockets[0], {"kind": "status"})

    def applications(self) -> list[dict[str, Any]]:
        found: list[dict[str, Any]] = self.status()["applications"]
        return found

    @property
    def log(self) -> str:
        file = self.home / ".onetool" / "logs" / "daemon.log"
        return file.read_text("utf-8") if file.exists() else ""

    def pause(self) -> None:
        """Stop the daemon as a debugger does, while it holds no lock of a database."""
        pid = self.daemon
        with contextlib.ExitStack() as held:
            for file in (self.home / ".onetool").rglob("*.db"):
                database = sqlite3.connect(file, timeout=TIMEOUT_SECONDS, isolation_level=None)
                held.callback(database.close)
                database.execute("BEGIN IMMEDIATE")
            os.kill(pid, signal.SIGSTOP)
            assert eventually(lambda: " T " in Path(f"/proc/{pid}/stat").read_text("ascii"))

    def stop(self) -> None:
        """End the daemon and check that all its processes end."""
        daemons = self.daemons
        with ProcessWatch(
            {process for pid in daemons for process in list_descendants(pid)}
        ) as watch:
            for pid in daemons:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGCONT)
                    os.kill(pid, signal.SIGTERM)
            assert watch.all_ended()

    def kill(self) -> None:
        """Kill the daemon and check that all its processes end."""
        with ProcessWatch(list_descendants(self.daemon)) as watch:
            os.kill(self.daemon, signal.SIGKILL)
            assert watch.all_ended()


@contextmanager
def open_daemon_home(settings: str = "", **variables: str) -> Iterator[DaemonHome]:
    """Create a home directory in which clients share a daemon. No process of it is left at the end."""
    folder = Path(
        tempfile.mkdtemp(prefix="otd-", dir="/tmp")
    )  # the path of a socket has at most 107 bytes
    try:
        found = DaemonHome(folder / "home", folder / "run", variables)
        found.home.mkdir()
        found.runtime.mkdir(mode=0o700)
        if settings:
            found.configure(settings)
        try:
            yield found
        finally:
            found.stop()
        assert eventually(lambda: not list_processes_of(folder), 5), list_processes_of(folder)
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def list_commands() -> Iterator[tuple[int, list[str]]]:
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            with contextlib.suppress(OSError):
                words = (entry / "cmdline").read_bytes().decode(errors="replace").split("\0")[:-1]
                if words:
                    yield int(entry.name), words


def list_processes_of(folder: Path) -> list[tuple[int, list[str]]]:
    """Return the processes whose command, environment or working directory names this directory."""
    found = []
    for pid, words in list_commands():
        with contextlib.suppress(OSError):
            process = Path(f"/proc/{pid}")
            texts = [
                *words,
                (process / "environ").read_text("utf-8", "replace"),
                str((process / "cwd").readlink()),
            ]
            if any(str(folder) in text for text in texts):
                found.append((pid, words))
    return found


# --- raw connections ------------------------------------------------------------------------------


def open_socket(path: Path) -> socket.socket:
    connection = socket.socket(socket.AF_UNIX)
    connection.connect(str(path))  # without a timeout: with one, it fails if many others connect
    connection.settimeout(TIMEOUT_SECONDS)
    return connection


def fill_backlog(path: Path, stack: contextlib.ExitStack) -> None:
    """Connect until no more connections are accepted."""
    with contextlib.suppress(BlockingIOError):
        while True:
            connection = stack.enter_context(socket.socket(socket.AF_UNIX))
            connection.setblocking(False)
            connection.connect(str(path))


def send_with_descriptors(
    connection: socket.socket, data: bytes, descriptors: Sequence[int]
) -> None:
    rights = array.array("i", descriptors)
    connection.sendmsg(
        [data], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, rights)] if descriptors else []
    )


def read_reply(connection: socket.socket) -> dict[str, Any]:
    """Return the reply, or an empty one if the daemon closes the connection."""
    data = b""
    with contextlib.suppress(ConnectionError):
        while not data.endswith(b"\n") and (chunk := connection.recv(1 << 16)):
            data += chunk
    reply: dict[str, Any] = json.loads(data.partition(b"\n")[0]) if data else {}
    return reply


def ask(path: Path, request: Mapping[str, Any], directory: str = "/") -> dict[str, Any]:
    """Send a request as a client does and return the reply."""
    with open_socket(path) as connection:
        send_request(connection, request, directory)
        return read_reply(connection)


def send_request(
    connection: socket.socket, request: Mapping[str, Any], directory: str = "/"
) -> None:
    descriptor = os.open(directory, os.O_PATH | os.O_DIRECTORY)
    try:
        data = json.dumps({"protocol": PROTOCOL, **request}).encode() + b"\n"
        send_with_descriptors(connection, data, [descriptor])
    finally:
        os.close(descriptor)


def text_of(answer: Mapping[str, Any]) -> str:
    """Return the text of the result of a run."""
    assert "result" in answer, answer
    return "\n".join(block["text"] for block in answer["result"]["content"])


# --- installations --------------------------------------------------------------------------------


def make_installation(
    folder: Path, edits: Mapping[str, tuple[str, str]] | None = None
) -> tuple[str, ...]:
    """Create an environment with a copy of the program, in which texts of files are replaced.

    Return its command.
    """
    shutil.copytree(ROOT / "src", folder / "src")
    for name, (old, new) in (edits or {}).items():
        file = folder / "src" / "onetool" / name
        text = file.read_text("utf-8")
        assert old in text
        file.write_text(text.replace(old, new), encoding="utf-8")
    packages = folder / "venv" / "lib" / f"python3.{sys.version_info.minor}" / "site-packages"
    packages.mkdir(parents=True)
    (folder / "venv" / "bin").mkdir()
    (folder / "venv" / "bin" / "python").symlink_to(Path(sys.executable).resolve())
    (folder / "venv" / "pyvenv.cfg").write_text(
        f"home = {Path(sys.base_prefix) / 'bin'}\n", encoding="utf-8"
    )
    shared = next(path for path in sys.path if path.endswith("site-packages"))
    (packages / "copy.pth").write_text(f"{folder / 'src'}\n{shared}\n", encoding="utf-8")
    code = "import sys; from onetool.cli.start import main; sys.exit(main())"
    return str(folder / "venv" / "bin" / "python"), "-c", code


def make_environment(home: Path) -> dict[str, str]:
    """Return the environment of a client that may use the shared server.

    The home directory needs a short path.
    """
    return {
        name: value for name, value in environment(home).items() if name != "ONETOOL_STANDALONE"
    }


class StdioClient:
    """An assistant that started `onetool` and listed its tools."""

    def __init__(self, home: Path, directory: Path, name: str) -> None:
        pipe = subprocess.PIPE
        self._process = subprocess.Popen(
            CLIENT, cwd=directory, env=make_environment(home), stdin=pipe, stdout=pipe
        )
        info = {"name": name, "version": "1"}
        hello = {"protocolVersion": "2025-06-18", "capabilities": {}, "clientInfo": info}
        assert "result" in self.request("initialize", **hello)
        assert "result" in self.request("tools/list")

    def request(self, method: str, **params: Any) -> dict[str, Any]:
        to, answers = self._process.stdin, self._process.stdout
        assert to is not None
        assert answers is not None
        to.write(
            json.dumps(
                {"jsonrpc": "2.0", "id": method, "method": method, "params": params}
            ).encode()
            + b"\n"
        )
        to.flush()
        answer: dict[str, Any] = json.loads(answers.readline())
        return answer

    def close(self) -> None:
        self._process.communicate(timeout=TIMEOUT_SECONDS)
