"""Starting and finding the daemon: races, sockets of others, other users and namespaces, full and
read-only disks.

A home directory on a network file system is not tested as such. Instead: the daemon has no socket
and no lock in the home directory, and it works if that is read-only or full.
"""

import json
import os
import socket
import stat
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest
from tests.cells_support import IS_ROOT, ORDINARY_USER
from tests.daemon_support import CLIENT, DaemonHome, open_daemon_home, text_of
from tests.disk_support import mount_disk
from tests.support import RawClient

from onetool.processes import daemon_connection
from onetool.server.daemon.applications import NotServed, _check_confinement

CLIENTS = 10
IMPATIENT = (
    CLIENT[0],
    "-c",
    (
        "from onetool.processes import daemon_connection, stdio_bridge as bridge;"
        " daemon_connection.CONNECT_SECONDS = bridge.CONNECT_SECONDS = bridge.SILENCE_SECONDS = 1;"
        " from onetool.cli.start import main; main()"
    ),
)


def works(client: RawClient) -> bool:
    with client:
        return text_of(client.run("1 + 1")) == "2"


@pytest.fixture(scope="module")
def shared() -> Iterator[DaemonHome]:
    """Return a home with a daemon that no test may harm."""
    with open_daemon_home() as found, found.client():
        yield found


@pytest.fixture(scope="module")
def home() -> Iterator[DaemonHome]:
    """Return a home whose daemon is not running when a test starts."""
    with open_daemon_home() as found:
        yield found


def find_path(home: DaemonHome, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return the path of the socket of this home, and create its directory."""
    home.stop()
    monkeypatch.setenv("HOME", str(home.home))
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(home.runtime))
    found = daemon_connection.find_socket()
    assert found is not None
    path = Path(found)
    assert path.parent == home.runtime / "onetool"
    path.unlink(missing_ok=True)
    return path


# --- one daemon -----------------------------------------------------------------------------------


def test_ten_clients_that_start_together_start_one_daemon() -> None:
    with open_daemon_home() as home, ExitStack() as stack:
        clients = [home.client() for _ in range(CLIENTS)]
        for client in clients:
            stack.enter_context(client)
        pids = {client.process.pid for client in clients}
        assert {each["pid"] for each in home.status()["clients"]} == pids
        assert [each["clients"] for each in home.applications()] == [CLIENTS]
        assert home.daemon
        (path,) = home.sockets
        assert stat.S_IMODE(path.lstat().st_mode) == 0o600
        assert stat.S_IMODE(path.parent.lstat().st_mode) == 0o700
        found = [
            file
            for file in home.home.rglob("*")
            if file.is_socket() or file.name.endswith(".sock.lock")
        ]
        assert found == [], "a home directory on a network may not support them"


def test_a_client_that_is_stopped_while_it_starts_the_daemon_stops_nobody(
    home: DaemonHome, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A process that holds the lock, as such a client does, is stopped."""
    path = find_path(home, monkeypatch)
    with daemon_connection._locked(f"{path}.lock") as has_lock:
        assert has_lock
        started = time.monotonic()
        assert works(home.client())
        assert time.monotonic() - started < 20
        assert home.daemons == []
    assert works(home.client())
    assert home.daemon


# --- what may be at the path of the socket --------------------------------------------------------


def write_regular_file(path: Path) -> None:
    path.write_text("x", encoding="utf-8")


def link_elsewhere(path: Path) -> None:
    path.symlink_to(path.parent / "elsewhere")


def make_directory(path: Path) -> None:
    (path / "inside").mkdir(parents=True)


@pytest.mark.sampled(3)
@pytest.mark.parametrize(
    ("plant", "is_shared"),
    [(write_regular_file, True), (link_elsewhere, True), (make_directory, False)],
)
def test_what_is_left_at_the_path_is_replaced_or_avoided(
    home: DaemonHome,
    monkeypatch: pytest.MonkeyPatch,
    plant: Callable[[Path], None],
    is_shared: bool,
) -> None:
    path = find_path(home, monkeypatch)
    plant(path)
    with home.client() as client:
        assert text_of(client.run("1 + 1")) == "2"
        assert len(home.daemons) == is_shared
    if not is_shared:
        (path / "inside").rmdir()
        path.rmdir()


@contextmanager
def listening(path: Path, *replies: bytes | None) -> Iterator[list[socket.socket]]:
    """Listen at the path. Send one reply after the other to those who connect, or nothing."""
    accepted: list[socket.socket] = []
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(path))
        listener.listen(8)

        def serve() -> None:
            for reply in replies:
                connection, _ = listener.accept()
                accepted.append(connection)
                if reply is not None:
                    connection.sendall(reply)
                    connection.close()

        thread = threading.Thread(target=serve)
        thread.start()
        try:
            yield accepted
        finally:
            thread.join()
            for connection in accepted:
                connection.close()
            path.unlink(missing_ok=True)


@pytest.mark.nightly
def test_listeners_that_are_not_the_daemon_are_avoided(
    home: DaemonHome, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = find_path(home, monkeypatch)
    other_installation = b'{"ok": true, "pid": 1}\n'
    with listening(
        path, b"", b"garbage\n", b"[" * 100_000 + b"\n", b"[]\n", other_installation
    ) as accepted:
        assert works(home.client())
        assert len(accepted) == 5
    with listening(path, None):
        assert works(home.client(command=IMPATIENT))
    assert home.daemons == []


def test_a_daemon_that_hangs_is_left(home: DaemonHome, monkeypatch: pytest.MonkeyPatch) -> None:
    """It is not stopped, and has replied to the client, but reads nothing more."""
    path = find_path(home, monkeypatch)
    reply = {
        "ok": True,
        "pid": os.getpid(),
        "installation": daemon_connection.describe_installation(),
    }
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(path))
        listener.listen(8)
        client = home.client(command=IMPATIENT)
        connection, _ = listener.accept()
        with connection:
            connection.sendall(json.dumps(reply).encode() + b"\n")
            with client:  # the client repeats `initialize`
                assert text_of(client.run("1 + 1")) == "2"
    path.unlink()


# --- the directory of the socket ------------------------------------------------------------------


def make_link(directory: Path) -> None:
    (directory.parent / "target").mkdir(mode=0o700)
    directory.symlink_to("target")


def make_group_writable(directory: Path) -> None:
    directory.mkdir()
    directory.chmod(0o770)


def make_readable(directory: Path) -> None:
    directory.mkdir()
    directory.chmod(0o755)


def make_file(directory: Path) -> None:
    directory.write_text("x", encoding="utf-8")


def give_to_another_user(directory: Path) -> None:
    directory.mkdir(mode=0o700)
    if not IS_ROOT:
        pytest.skip("only root can give a directory away")
    os.chown(directory, ORDINARY_USER, ORDINARY_USER)


@pytest.mark.parametrize(
    "make", [make_link, make_group_writable, make_readable, make_file, give_to_another_user]
)
def test_a_directory_that_others_control_is_not_used(
    tmp_path_factory: pytest.TempPathFactory,
    monkeypatch: pytest.MonkeyPatch,
    make: Callable[[Path], None],
) -> None:
    base = tmp_path_factory.mktemp("s")
    (base / "run").mkdir()
    (base / "tmp").mkdir()
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(base / "run"))
    monkeypatch.setenv("TMPDIR", str(base / "tmp"))
    make(base / "run" / "onetool")
    fallback = base / "tmp" / f"onetool-{os.getuid()}"
    assert (
        daemon_connection.find_socket()
        == f"{fallback}/{Path(daemon_connection.find_socket() or '').name}"
    )
    fallback.rmdir()
    make(fallback)
    assert daemon_connection.find_socket() is None


def test_without_a_private_directory_each_client_serves_itself(home: DaemonHome) -> None:
    home.stop()
    shared, own = home.runtime.parent / "tmp", home.runtime.parent / "link"
    shared.mkdir()
    own.symlink_to(shared)
    (shared / f"onetool-{os.getuid()}").mkdir()
    (shared / f"onetool-{os.getuid()}").chmod(0o777)
    assert works(home.client(XDG_RUNTIME_DIR="", TMPDIR=str(shared)))
    assert home.daemons == []
    assert list((shared / f"onetool-{os.getuid()}").iterdir()) == []


def test_a_long_path_of_a_directory_is_not_used(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    long = tmp_path / ("x" * 100)
    long.mkdir()
    for name in ("XDG_RUNTIME_DIR", "TMPDIR"):
        monkeypatch.setenv(name, str(long))
    assert daemon_connection.find_socket() is None


# --- full and read-only disks ---------------------------------------------------------------------


def test_a_full_runtime_directory_is_not_used(home: DaemonHome) -> None:
    home.stop()
    with mount_disk(home.runtime) as disk:
        disk.fill()
        with home.client(XDG_RUNTIME_DIR=str(disk.place), TMPDIR=str(disk.place)) as client:
            assert "result" in client.request("tools/list")
            assert home.daemons == []
        disk.free()


@pytest.mark.parametrize("problem", ["full", "read-only"])
def test_a_home_that_cannot_be_written_has_a_daemon(problem: str) -> None:
    with open_daemon_home() as home, mount_disk(home.home) as disk:
        if problem == "full":
            disk.fill()
        else:
            disk.make_read_only()
        with home.client() as first, home.client() as second:
            assert text_of(first.run("1 + 1")) == text_of(second.run("1 + 1")) == "2"
            assert [each["clients"] for each in home.applications()] == [2]
        home.stop()


# --- other users ----------------------------------------------------------------------------------

SEND = """
import array, contextlib, json, os, socket, sys
path, kind = sys.argv[1], sys.argv[2]
connection = socket.socket(socket.AF_UNIX)
directory = os.open(".", os.O_PATH | os.O_DIRECTORY)
{confine}
try:
    connection.connect(path)
except OSError as error:
    print(type(error).__name__)
    sys.exit()
data = json.dumps({{"protocol": {protocol}, "kind": kind, "argv": [], "env": {{}}}}).encode() + b"\\n"
with contextlib.suppress(BrokenPipeError):  # it may have answered already
    socket.send_fds(connection, [data], [directory])
received = b""
while not received.endswith(b"\\n") and (chunk := connection.recv(65536)):
    received += chunk
print(received.decode())
"""
LIBC = "import ctypes; libc = ctypes.CDLL(None, use_errno=True)\n"


def send_confined(
    home: DaemonHome, confine: str, kind: str = "stdio", path: Path | None = None
) -> str:
    """Send a request as a process that first executes this code. Return what the daemon says."""
    code = SEND.format(confine=confine, protocol=daemon_connection.PROTOCOL)
    command = [sys.executable, "-c", code, str(path or home.sockets[0]), kind]
    done = subprocess.run(
        command, cwd=home.home, capture_output=True, text=True, timeout=30, check=False
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_another_user_cannot_use_the_daemon(shared: DaemonHome) -> None:
    if not IS_ROOT:
        pytest.skip("only root can become another user")
    become = (
        f"os.setgroups([]); os.setresgid(*[{ORDINARY_USER}] * 3); os.setresuid(*[{ORDINARY_USER}]"
        " * 3)"
    )
    assert send_confined(shared, become) == "PermissionError\n"
    (path,) = shared.sockets
    places = (path, path.parent, path.parent.parent, path.parent.parent.parent)
    modes = [place.stat().st_mode for place in places]
    try:
        for place in places:
            place.chmod(0o777)
        for kind in ("stdio", "status", "stop"):
            assert '"another user"' in send_confined(shared, become, kind)
    finally:
        for place, mode in zip(places, modes, strict=True):
            place.chmod(stat.S_IMODE(mode))
    assert works(shared.client())


def test_a_listener_of_another_user_receives_nothing(
    home: DaemonHome, monkeypatch: pytest.MonkeyPatch
) -> None:
    if not IS_ROOT:
        pytest.skip("only root can become another user")
    path = find_path(home, monkeypatch)
    code = f"""
import os, socket, sys
listener = socket.socket(socket.AF_UNIX)
listener.bind(sys.argv[1])
os.chown(sys.argv[1], {ORDINARY_USER}, {ORDINARY_USER})
os.setresuid(*[{ORDINARY_USER}] * 3)
listener.listen(8)
print("ready", flush=True)
connection, _ = listener.accept()
print(len(connection.recv(65536)), flush=True)
"""
    with subprocess.Popen(
        [sys.executable, "-c", code, str(path)], stdout=subprocess.PIPE, text=True
    ) as other:
        assert other.stdout is not None
        assert other.stdout.readline() == "ready\n"
        with home.client() as client:
            assert text_of(client.run("1 + 1")) == "2"
            assert home.daemon  # its own
        assert other.stdout.readline() == "0\n"


# --- other namespaces and privileges --------------------------------------------------------------

FILTER = """
class Filter(ctypes.Structure):
    _fields_ = [("length", ctypes.c_ushort), ("code", ctypes.c_void_p)]
allow = ctypes.create_string_buffer(bytes([6, 0, 0, 0, 0, 0, 255, 127]))
assert libc.prctl(22, 2, ctypes.byref(Filter(1, ctypes.addressof(allow)))) == 0
"""
DROP_BOUND = "assert libc.prctl(24, 25, 0, 0, 0) == 0"
CONFINEMENTS = {
    "seccomp": LIBC + FILTER,
    "bounding set": LIBC + DROP_BOUND,
    "host name": LIBC + "assert libc.unshare(0x04000000) == 0",
    "message queues": LIBC + "assert libc.unshare(0x08000000) == 0",
    "control groups": LIBC + "assert libc.unshare(0x02000000) == 0",
    "network": LIBC + "assert libc.unshare(0x40000000) == 0",
    "mounts": LIBC + "assert libc.unshare(0x00020000) == 0",
    "user": LIBC + "assert libc.unshare(0x10000000) == 0",
    "no_new_privs": LIBC + "assert libc.prctl(38, 1, 0, 0, 0) == 0",
    "groups": "os.setgroups([1, 2, 3])",
    "chroot": (
        "folder, _, name = path.rpartition('/run/onetool/'); os.chroot(folder); path ="
        " '/run/onetool/' + name"
    ),
}


@pytest.mark.parametrize("confine", CONFINEMENTS.values(), ids=CONFINEMENTS)
def test_a_confined_client_is_not_served(shared: DaemonHome, confine: str) -> None:
    if not IS_ROOT:
        pytest.skip("only root can confine itself in all these ways")
    assert '"pid"' in send_confined(shared, "")
    for kind in ("stdio", "command", "stop"):
        answer = send_confined(shared, confine, kind)
        assert (
            "it has other namespaces or privileges" in answer
            or "its namespaces cannot be read" in answer
        )


def test_a_client_with_one_more_filter_is_not_served(home: DaemonHome) -> None:
    """In a container, the daemon has a filter too, and no new privileges."""
    if not IS_ROOT:
        pytest.skip("an ordinary user cannot set a filter without no_new_privs")
    home.stop()
    code = f"import sys\n{LIBC}\n{FILTER}\nfrom onetool.cli.start import main\nsys.exit(main())"
    with home.client(command=(sys.executable, "-c", code)) as client:
        assert text_of(client.run("1 + 1")) == "2"
        assert '"pid"' in send_confined(home, LIBC + FILTER)
        assert "it has other namespaces or privileges" in send_confined(
            home, LIBC + FILTER + FILTER
        )


def test_a_connection_of_a_process_that_has_ended_is_not_served(shared: DaemonHome) -> None:
    """Another process may have its ID now, so nothing is known about who sends."""
    code = SEND.format(confine="", protocol=daemon_connection.PROTOCOL).replace(
        "    connection.connect(path)\n", "    connection.connect(path)\n    leave()\n"
    )
    leave = """
def leave():
    handle = os.pidfd_open(os.getpid())
    if os.fork():
        os._exit(0)
    select.select([handle], [], [])
"""
    command = [
        sys.executable,
        "-c",
        "import os, select\n" + leave + code,
        str(shared.sockets[0]),
        "stdio",
    ]
    done = subprocess.run(
        command, cwd=shared.home, capture_output=True, text=True, timeout=30, check=False
    )
    assert "has ended" in done.stdout or "cannot be read" in done.stdout, done


def test_another_process_with_the_id_of_the_client_says_nothing_about_it() -> None:
    child = subprocess.Popen([sys.executable, "-c", ""])
    handle = os.pidfd_open(child.pid)
    try:
        child.wait()
        with pytest.raises(NotServed, match="its process has ended"):
            _check_confinement(os.getpid(), handle)
    finally:
        os.close(handle)


def test_a_client_in_another_pid_namespace_is_not_served(shared: DaemonHome) -> None:
    if not IS_ROOT:
        pytest.skip("only root can create a namespace")
    fork = "child = os.fork()\nif child:\n    os.waitpid(child, 0)\n    sys.exit()"
    answer = send_confined(shared, LIBC + "assert libc.unshare(0x20000000) == 0\n" + fork)
    assert "namespaces" in answer


def test_a_confined_client_serves_itself(shared: DaemonHome) -> None:
    code = (
        f"import sys\n{CONFINEMENTS['no_new_privs']}\nfrom onetool.cli.start import"
        " main\nsys.exit(main())"
    )
    with shared.client(command=(sys.executable, "-c", code)) as client:
        assert text_of(client.run("1 + 1")) == "2"
        assert client.process.pid not in {each["pid"] for each in shared.status()["clients"]}
