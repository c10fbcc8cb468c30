"""Processes of the same user that attack the daemon: other clients are served meanwhile and
afterwards.
"""

import contextlib
import json
import os
import socket
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
from tests.daemon_support import (
    DaemonHome,
    ask,
    open_daemon_home,
    open_socket,
    read_reply,
    send_with_descriptors,
    text_of,
)
from tests.support import RawClient, eventually

from onetool.processes.daemon_connection import PROTOCOL

SILENT = 200
VALID: dict[str, Any] = {"protocol": PROTOCOL, "kind": "stdio", "argv": [], "env": {}}


@pytest.fixture(scope="module")
def shared() -> Iterator[DaemonHome]:
    with open_daemon_home() as found:
        yield found


@pytest.fixture(scope="module")
def victim(shared: DaemonHome) -> Iterator[RawClient]:
    with shared.client() as client:
        client.run("1")
        yield client


@pytest.fixture
def path(shared: DaemonHome, victim: RawClient) -> Iterator[Path]:
    """Return the socket.

    The daemon must survive, serve its client, and close every descriptor that it received.
    """
    pid, path = shared.daemon, shared.sockets[0]
    sent.clear()
    before = count_targets(pid, path)
    yield path
    assert text_of(victim.run("1 + 1")) == "2"
    assert shared.daemon == pid

    def list_kept() -> dict[str, int]:
        left = count_targets(pid, path) - before
        return {target: left[target] for target in {*sent, CONNECTION} if left[target]}

    assert eventually(lambda: not list_kept(), 15), list_kept()


CONNECTION = "a connection to the socket"
sent: set[str] = set()  # what the descriptors of a test lead to


def count_targets(process: int, path: Path) -> Counter[str]:
    """Return what the open descriptors of the daemon lead to, with its connections counted as one
    target.
    """
    lines = (line.split() for line in Path("/proc/net/unix").read_text("utf-8").splitlines())
    connections = {f"socket:[{fields[6]}]" for fields in lines if fields[-1] == str(path)}
    found: Counter[str] = Counter()
    for entry in Path(f"/proc/{process}/fd").iterdir():
        with contextlib.suppress(FileNotFoundError):
            target = str(entry.readlink())
            found[CONNECTION if target in connections else target] += 1
    return found


def send(connection: socket.socket, data: bytes, descriptors: list[int]) -> None:
    sent.update(str(Path(f"/proc/self/fd/{number}").readlink()) for number in descriptors)
    send_with_descriptors(connection, data, descriptors)


def encode(**changes: Any) -> bytes:
    return json.dumps({**VALID, **changes}).encode() + b"\n"


REQUESTS = {
    "empty": b"\n",
    "not JSON": b"garbage\n",
    "not UTF-8": b"\xff\xfe\n",
    "number": b"5\n",
    "list": b"[]\n",
    "nothing": b"{}\n",
    "depth": b"[" * 60_000 + b"\n",
    "protocol": encode(protocol=99),
    "kind": encode(kind="shutdown"),
    "kind is a list": encode(kind=["stop"]),
    "arguments": encode(argv=5),
    "unknown arguments": encode(argv=["--no-such-option"]),
    "help": encode(argv=["--help"]),
    "environment": encode(env=["HOME"]),
    "columns": encode(kind="command", argv=["run", "1"], columns=[1]),
    "terminals": encode(kind="command", argv=["run", "1"], terminals=5),
}


@pytest.mark.parametrize("data", REQUESTS.values(), ids=REQUESTS)
def test_an_invalid_request_is_refused(path: Path, data: bytes) -> None:
    directory = os.open("/", os.O_PATH | os.O_DIRECTORY)
    try:
        with open_socket(path) as connection:
            send(connection, data, [directory])
            reply = read_reply(connection)
    finally:
        os.close(directory)
    assert not reply.get("ok")


def test_a_request_needs_one_descriptor_of_an_existing_directory(
    path: Path, tmp_path: Path
) -> None:
    deleted = tmp_path / "deleted"
    deleted.mkdir()
    file = tmp_path / "file"
    file.touch()
    descriptors = {
        "none": [],
        "file": [os.open(file, os.O_RDONLY)],
        "deleted directory": [os.open(deleted, os.O_PATH)],
        "socket": [socket.socket(socket.AF_UNIX).detach()],
        "pipe": list(os.pipe()),
        "many": [os.open("/", os.O_PATH) for _ in range(200)],
    }
    deleted.rmdir()
    try:
        for name, numbers in descriptors.items():
            with open_socket(path) as connection:
                send(connection, encode(), numbers)
                reply = read_reply(connection)
                assert not reply.get("ok") or name == "many", (name, reply)
    finally:
        for numbers in descriptors.values():
            for number in numbers:
                os.close(number)


def test_a_renamed_directory_has_its_new_path(path: Path, tmp_path: Path) -> None:
    """Another directory that has its old path now is never used."""
    place = tmp_path / "place"
    place.mkdir()
    descriptor = os.open(place, os.O_PATH | os.O_DIRECTORY)
    place.rename(tmp_path / "moved")
    place.mkdir()
    try:
        with open_socket(path) as connection:
            send(connection, encode(), [descriptor])
            assert read_reply(connection)["ok"]
            directories = {
                each["directory"] for each in ask(path, {"kind": "status"})["applications"]
            }
            assert str(tmp_path / "moved") in directories
            assert str(place) not in directories
    finally:
        os.close(descriptor)


def test_half_requests_silence_and_early_ends_stop_nobody(path: Path, victim: RawClient) -> None:
    directory = os.open("/", os.O_PATH | os.O_DIRECTORY)
    with ExitStack() as stack:
        stack.callback(os.close, directory)
        for number in range(SILENT):
            connection = stack.enter_context(open_socket(path))
            if number % 4 == 1:
                send(connection, b'{"protocol": 1, "ki', [directory])
            elif number % 4 == 2:
                send(connection, encode()[:-1], [directory])
                connection.close()
            elif number % 4 == 3:
                connection.close()
        started = time.monotonic()
        for _ in range(10):
            assert text_of(victim.run("1 + 1")) == "2"
        assert ask(path, {"kind": "status"})["ok"]
        assert time.monotonic() - started < 10


def test_a_huge_request_is_cut(shared: DaemonHome, path: Path, victim: RawClient) -> None:
    before = read_peak_bytes(shared.daemon)
    directory = os.open("/", os.O_PATH | os.O_DIRECTORY)
    with open_socket(path) as connection:
        send(connection, b'{"protocol": 1, "env": {"X": "', [directory])
        os.close(directory)
        with pytest.raises(ConnectionError):  # noqa: PT012 - after some of them
            for _ in range(100):
                connection.sendall(b"x" * (1 << 20))
    assert text_of(victim.run("1 + 1")) == "2"
    assert read_peak_bytes(shared.daemon) - before < 60 << 20


def read_peak_bytes(process: int) -> int:
    status = Path(f"/proc/{process}/status").read_text("ascii", "replace")
    (line,) = [line for line in status.splitlines() if line.startswith("VmHWM:")]
    return int(line.split()[1]) << 10


def test_a_client_that_reads_nothing_fills_no_memory(
    shared: DaemonHome, path: Path, victim: RawClient
) -> None:
    """It speaks the protocol of stdio and asks for results that it never reads."""
    before = read_peak_bytes(shared.daemon)
    directory = os.open(shared.home, os.O_PATH | os.O_DIRECTORY)
    env = {"HOME": str(shared.home), "PATH": "/usr/bin:/bin"}
    with open_socket(path) as connection:
        send(connection, encode(env=env), [directory])
        os.close(directory)
        assert read_reply(connection)["ok"]
        hello = {
            "protocolVersion": "2025-06-18",
            "capabilities": {},
            "clientInfo": {"name": "deaf", "version": "1"},
        }
        send_line(connection, {"id": 0, "method": "initialize", "params": hello})
        send_line(connection, {"method": "notifications/initialized"})
        connection.settimeout(1)
        with pytest.raises(TimeoutError):  # noqa: PT012 - after some of them
            for number in range(200_000):
                send_line(connection, {"id": number + 1, "method": "tools/list"})
        for _ in range(3):
            assert text_of(victim.run("1 + 1")) == "2"
    assert read_peak_bytes(shared.daemon) - before < 100 << 20


def send_line(connection: socket.socket, message: dict[str, Any]) -> None:
    connection.sendall(json.dumps({"jsonrpc": "2.0", **message}).encode() + b"\n")
