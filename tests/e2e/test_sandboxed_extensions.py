"""Try escapes from the sandbox of an extension, with and without it; ordinary code works inside it."""

import os
import platform
import socket
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.workers_support import Workers, open_workers

from onetool_child.confine import landlock_version

pytestmark = pytest.mark.skipif(
    sys.platform != "linux"
    or landlock_version() < 1
    or platform.machine() not in {"x86_64", "aarch64"},
    reason="this machine cannot sandbox an extension",
)

PACK = """
    import ctypes, os, platform, socket, struct
    libc = ctypes.CDLL(None, use_errno=True)
    def call(numbers, *arguments):
        number = numbers[platform.machine() == "aarch64"] if isinstance(numbers, tuple) else numbers
        result = libc.syscall(ctypes.c_long(number), *arguments)
        if result < 0:
            raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
        return result
    def attempt(code: str, read: str, hidden: str, listener: str, own: str):
        names = {**globals(), "READ": read, "HIDDEN": hidden, "LISTENER": listener, "OWN": own}
        try:
            exec(code, names)
        except OSError as error:
            return f"OSError {error.errno}"
        return names.get("result", "done")
    """
# READ may be read, HIDDEN may not, OWN is a directory that may be written. Each leaves nothing
# behind if it succeeds.
DENIED = {
    "a datagram by path": (
        "socket.socketpair(socket.AF_UNIX, socket.SOCK_DGRAM)[0].sendto(b'x', LISTENER)"
    ),
    "a datagram by an abstract name": (
        "socket.socketpair(1, socket.SOCK_DGRAM)[0].sendto(b'x', bytes(1) + b'onetool-test')"
    ),
    "a datagram socket": "socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM).sendto(b'x', LISTENER)",
    "a pair of raw sockets": "socket.socketpair(1, socket.SOCK_RAW)[0].sendto(b'x', LISTENER)",
    "an attribute": "os.setxattr(READ, 'user.mark', b'x')",
    "an attribute by descriptor": "os.setxattr(os.open(READ, os.O_RDONLY), 'user.mark', b'x')",
    "an attribute of a hidden file": "os.setxattr(HIDDEN, 'user.mark', b'x')",
    "an owner": "os.chown(READ, os.getuid(), os.getgid())",
    "an owner by descriptor": "os.fchown(os.open(READ, os.O_RDONLY), os.getuid(), os.getgid())",
    "an owner of a hidden file": "os.chown(HIDDEN, os.getuid(), os.getgid())",
    "flags of a file": (
        "import fcntl; fcntl.ioctl(os.open(READ, os.O_RDONLY), 0x40086602, struct.pack('l', 0x80))"
    ),
    "shared memory of System V": "call((31, 195), call((29, 194), 0, 4096, 0o1600), 0, 0)",
    "a message queue of System V": "call((71, 187), call((68, 186), 0, 0o1600), 0, 0)",
    "a semaphore of System V": "call((66, 191), call((64, 190), 0, 1, 0o1600), 0, 0, 0)",
    "a message queue of POSIX": (
        "call((240, 180), b'onetool-test', 0o102, 0o600, None); call((241, 181), b'onetool-test')"
    ),
    "a key": "call((248, 217), b'user', b'onetool-test', b'x', ctypes.c_size_t(1), -2)",
    "a keyring": "call((250, 219), 0, -2, 1)",
    "a key by request": "call((249, 218), b'user', b'onetool-none', None, -2)",
    "a file in shared memory": (
        "open('/dev/shm/onetool-test', 'w').close(); os.unlink('/dev/shm/onetool-test')"
    ),
    "userfaultfd": "call((323, 282), 1)",
    "io_uring": "call(425, 2, ctypes.create_string_buffer(120))",
}
# Calls that report success and change nothing.
PRETENDED = {
    "a mode": "os.chmod(READ, 0o777)",
    "a mode by descriptor": "os.fchmod(os.open(READ, os.O_RDONLY), 0o777)",
    "a mode of a hidden file": "os.chmod(HIDDEN, 0o777)",
    "a mode by fchmodat2": "call(452, -100, READ.encode(), 0o777, 0)",
    "a mode by a link of its own": (
        "os.symlink(READ, OWN + '/link'); os.chmod(OWN + '/link', 0o777)"
    ),
    "times": "os.utime(READ, (5, 5))",
    "times by descriptor": "os.utime(os.open(READ, os.O_RDONLY), (5, 5))",
    "times of a hidden file": "os.utime(HIDDEN, (5, 5))",
    "changes by a program": (
        "import subprocess; subprocess.run(['chmod', '777', READ]); subprocess.run(['touch',"
        " '-d@5', READ])"
    ),
}
# These depend on the kernel and the file system, so they need not succeed without a sandbox.
UNSURE = {
    "an attribute", "an attribute by descriptor", "an attribute of a hidden file", "flags of a file", "userfaultfd",
    "io_uring", "a key", "a keyring", "a key by request", "a message queue of POSIX", "a pair of raw sockets",
    "a datagram by an abstract name", "a mode by fchmodat2",
}  # fmt: skip
WORKS = {
    "copies": (
        "import shutil; open(OWN + '/a', 'w').write('x'); shutil.copy(OWN + '/a', OWN + '/b');"
        " shutil.copy2(OWN + '/a', OWN + '/c'); result = sorted(os.listdir(OWN))[:3]"
    ),
    "archives": (
        """
import tarfile, zipfile
with tarfile.open(OWN + '/t', 'w') as tar: tar.add(READ, 'r')
with tarfile.open(OWN + '/t') as tar: tar.extractall(OWN + '/in')
with zipfile.ZipFile(OWN + '/z', 'w') as zipped: zipped.write(READ, 'r')
result = os.listdir(OWN + '/in')
"""
    ),
    "temporary files": (
        "import tempfile; tempfile.TemporaryFile(dir=OWN).write(b'x'); tempfile.mkdtemp(dir=OWN)"
    ),
    "databases": (
        "import sqlite3; sqlite3.connect(OWN + '/db').executescript('pragma journal_mode=wal;"
        " create table t (x)')"
    ),
    "event loops": "import asyncio; result = asyncio.run(asyncio.sleep(0, 'slept'))",
    "programs": (
        "import subprocess; result = subprocess.run(['echo', 'x'], capture_output=True,"
        " text=True).stdout"
    ),
    "pipes to processes": (
        "import multiprocessing; a, b = multiprocessing.Pipe(); a.send('x'); result = b.recv()"
    ),
    "threads and locks": (
        "import concurrent.futures as f; result = f.ThreadPoolExecutor().submit(len,"
        " 'abc').result()"
    ),
}


@pytest.fixture(scope="module")
def packs(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Workers]:
    home = tmp_path_factory.mktemp("home")
    (home / "own").mkdir()
    settings = f"""
        tools:
          fenced: {{sandbox: {{allowed_paths: [{home}/own]}}}}
          online: {{sandbox: {{allowed_paths: [{home}/own]}}, permissions: [network]}}
          shared: {{sandbox: {{allowed_paths: [{home}/own, /dev/shm]}}}}
        """
    with open_workers(home, settings) as opened:
        for pack in ("fenced", "online", "shared", "free"):
            opened.write(pack, PACK)
            (opened.folder / "tools" / pack / "read").write_text("x", encoding="utf-8")
        yield opened


class Outside:
    """A readable file, a forbidden file, and a socket that receives datagrams."""

    def __init__(self, packs: Workers, pack: str, directory: Path) -> None:
        self._packs, self._pack, self._directory = packs, pack, directory
        self.files = [packs.folder / "tools" / pack / "read", directory / "hidden"]
        self.files[1].write_text("x", encoding="utf-8")
        self.own = packs.folder.parent / "own" / directory.name
        self.own.mkdir()
        for file in self.files:
            os.utime(file, (1_000_000_000, 1_000_000_000))
            file.chmod(0o640)

    def attempt(self, code: str) -> Any:
        with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as listener:
            path = os.path.relpath(self._directory / "listener")
            listener.bind(path)
            read, hidden = map(str, self.files)
            address = str(self._directory / "listener")
            paths = {"read": read, "hidden": hidden, "listener": address, "own": str(self.own)}
            try:
                return self._packs.value(f"{self._pack}.attempt", code=code, **paths)
            finally:
                (self._directory / "listener").unlink()

    def facts(self) -> list[tuple[Any, ...]]:
        stats = [file.stat() for file in self.files]
        return [
            (stat.st_mode & 0o7777, stat.st_mtime, os.listxattr(file))
            for stat, file in zip(stats, self.files, strict=True)
        ]


UNCHANGED: list[tuple[Any, ...]] = [(0o640, 1_000_000_000, [])] * 2


@pytest.mark.parametrize("name", DENIED)
def test_attempts_of_an_extension_without_network_are_denied(
    packs: Workers, tmp_path: Path, name: str
) -> None:
    outside = Outside(packs, "fenced", tmp_path)
    assert outside.attempt(DENIED[name]) in {"OSError 1", "OSError 13"}  # EPERM, EACCES
    assert outside.facts() == UNCHANGED


@pytest.mark.parametrize("pack", ["fenced", "online"])
@pytest.mark.parametrize("name", PRETENDED)
def test_a_sandboxed_extension_cannot_change_modes_or_times(
    packs: Workers, tmp_path: Path, pack: str, name: str
) -> None:
    outside = Outside(packs, pack, tmp_path)
    outside.attempt(PRETENDED[name])
    assert outside.facts() == UNCHANGED


@pytest.mark.parametrize(
    "name", [name for name in DENIED if "datagram" not in name and "sockets" not in name]
)
def test_attempts_of_an_extension_with_network_are_denied(
    packs: Workers, tmp_path: Path, name: str
) -> None:
    assert Outside(packs, "online", tmp_path).attempt(DENIED[name]) in {"OSError 1", "OSError 13"}


@pytest.mark.parametrize("name", [name for name in (*DENIED, *PRETENDED) if name not in UNSURE])
def test_the_attempts_succeed_without_a_sandbox(packs: Workers, tmp_path: Path, name: str) -> None:
    outside = Outside(packs, "free", tmp_path)
    assert outside.attempt({**DENIED, **PRETENDED}[name]) == "done"
    assert name in DENIED or outside.facts() != UNCHANGED


@pytest.mark.parametrize("name", WORKS)
def test_ordinary_code_works_in_the_sandbox(packs: Workers, tmp_path: Path, name: str) -> None:
    assert not str(Outside(packs, "fenced", tmp_path).attempt(WORKS[name])).startswith("OSError")


def test_multiprocessing_locks_need_an_allowed_path(packs: Workers, tmp_path: Path) -> None:
    """`multiprocessing` keeps its locks in /dev/shm, which is open only if the settings name it."""
    code = "import multiprocessing; multiprocessing.Lock()"
    assert Outside(packs, "shared", tmp_path).attempt(code) == "done"
    (tmp_path / "again").mkdir()
    assert Outside(packs, "fenced", tmp_path / "again").attempt(code) == "OSError 13"
