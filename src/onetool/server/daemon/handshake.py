"""The first message of a client, and who sent it.

The kernel says which process and user is at the other end, and what its working directory is.
Nothing that a client claims decides about trust.
"""

import asyncio
import errno
import json
import os
import select
import socket
import stat
import sys
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from onetool.processes.daemon_connection import PROTOCOL, describe_installation, get_peer
from onetool.util.version import __version__
from onetool_child.json_types import JsonObject

MAX_REQUEST_BYTES = 8 << 20  # the environment, and code from standard input
REQUEST_SECONDS = 10.0
READ_BYTES = 1 << 16
NAMESPACES = ("cgroup", "ipc", "mnt", "net", "pid", "user", "uts")
# Lines of /proc/PID/status. In a container, all processes have a seccomp filter; one that has more
# is confined more.
CONFINEMENT = ("Uid:", "Gid:", "Groups:", "Cap", "NoNewPrivs:", "Seccomp")
PEER_HANDLE = 77  # SO_PEERPIDFD, since Linux 6.5
Kind = Literal["stdio", "command", "status", "disconnect", "stop", "drain"]


class NotServed(Exception):
    """The daemon cannot serve this client, which then runs without it."""


@dataclass(frozen=True, slots=True)
class ClientRequest:
    """Request of a client: the service that it wants, and where it runs."""

    kind: Kind
    pid: int
    directory: Path
    argv: tuple[str, ...] = ()
    environment: dict[str, str] = field(default_factory=dict, repr=False)
    stdin: str | None = field(default=None, repr=False)
    terminals: frozenset[int] = frozenset()  # which of the standard streams 1 and 2 are terminals
    columns: int = 80


async def receive_request(connection: socket.socket) -> ClientRequest:
    """Read the request of a new client. Raise NotServed if it must run without the daemon."""
    pid, user = get_peer(connection)
    if user != os.getuid():
        raise NotServed("another user")
    handle = _open_peer(connection, pid)
    try:
        async with asyncio.timeout(REQUEST_SECONDS):
            data, directory = await _receive(connection)
        try:
            request = _read_request(data, pid, await asyncio.to_thread(_find_path, directory))
        finally:
            os.close(directory)
        _check_confinement(pid, handle)
    except (TimeoutError, OSError, ValueError):
        raise NotServed("no valid request") from None
    finally:
        os.close(handle)
    return request


def _open_peer(connection: socket.socket, pid: int) -> int:
    """Return a handle of the process that connected. Raise NotServed if it has ended."""
    try:
        data = connection.getsockopt(socket.SOL_SOCKET, PEER_HANDLE, 4)
        return int.from_bytes(data, sys.byteorder)
    except OSError as error:
        if error.errno != errno.ENOPROTOOPT:
            raise NotServed("its process has ended") from None
    try:
        return os.pidfd_open(pid)  # an older kernel
    except OSError:
        raise NotServed("its process has ended") from None


async def _receive(connection: socket.socket) -> tuple[Any, int]:
    """Return the message and the descriptor of the working directory that came with its first
    bytes.
    """
    loop = asyncio.get_running_loop()
    readable = asyncio.Event()
    loop.add_reader(connection, readable.set)
    try:
        await readable.wait()
    finally:
        loop.remove_reader(connection)
    data, descriptors, _, _ = socket.recv_fds(connection, READ_BYTES, 1)
    if len(descriptors) != 1:
        for each in descriptors:
            os.close(each)
        raise ValueError("no working directory")
    request = bytearray(data)
    try:
        while not request.endswith(b"\n") and len(request) <= MAX_REQUEST_BYTES and data:
            request += (data := await loop.sock_recv(connection, READ_BYTES))
        return json.loads(request), descriptors[0]
    except BaseException:
        os.close(descriptors[0])
        raise


def _find_path(directory: int) -> Path:
    """Return the path of an open directory. Raise if the path leads elsewhere."""
    path = Path(f"/proc/self/fd/{directory}").readlink()
    found = os.fstat(directory)
    try:
        if stat.S_ISDIR(found.st_mode) and os.path.samestat(path.stat(), found):
            return path
    except OSError:
        pass
    raise NotServed("its working directory is not the one of its path")


def _read_request(data: Any, pid: int, directory: Path) -> ClientRequest:
    try:
        if data["protocol"] != PROTOCOL:
            raise NotServed("another protocol")
        request = ClientRequest(
            data["kind"],
            pid,
            directory,
            tuple(map(str, data.get("argv") or ())),
            {str(name): str(value) for name, value in (data.get("env") or {}).items()},
            data.get("stdin"),
            frozenset(map(int, data.get("terminals") or ())),
            int(data.get("columns") or 80),
        )
    except (TypeError, KeyError, AttributeError, ValueError):
        raise NotServed("no valid request") from None
    return request


def _check_confinement(pid: int, handle: int) -> None:
    """Raise if the client is confined otherwise than the daemon, so that it could do more through
    the daemon.

    What was read is that of the client only if its process still runs: else its process ID may be
    that of another.
    """
    try:
        if _read_confinement(pid) != _read_confinement("self"):
            raise NotServed("it has other namespaces or privileges")
    except OSError:
        raise NotServed("its namespaces cannot be read") from None
    if select.select([handle], [], [], 0)[0]:
        raise NotServed("its process has ended")


def _read_confinement(pid: int | str) -> tuple[object, ...]:
    process = Path(f"/proc/{pid}")
    root = (process / "root").stat()
    status = (process / "status").read_text(encoding="ascii", errors="replace").splitlines()
    namespaces = [str((process / "ns" / name).readlink()) for name in NAMESPACES]
    return (
        *namespaces,
        str((process / "root").readlink()),
        root.st_dev,
        root.st_ino,
        _read_label(process),
        *(line for line in status if line.startswith(CONFINEMENT)),
    )


def _read_label(process: Path) -> bytes:
    """Return the label of a security module, such as an AppArmor profile.

    Without such a module there is none.
    """
    try:
        return (process / "attr" / "current").read_bytes()
    except OSError:
        return b""


async def send_reply(connection: socket.socket, reply: JsonObject) -> None:
    """Answer the request of a client. A client that is gone is ignored."""
    base = {"installation": describe_installation(), "pid": os.getpid(), "version": __version__}
    with suppress(OSError):
        await asyncio.get_running_loop().sock_sendall(
            connection, json.dumps({**base, **reply}).encode() + b"\n"
        )
