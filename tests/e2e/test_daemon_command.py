"""Test `onetool daemon` with a real shared server and a client over stdio that started it."""

import json
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import IO, Any

import pytest
from tests.daemon_support import CLIENT, StdioClient, make_environment
from tests.support import PROGRAM, TIMEOUT_SECONDS, ProcessWatch, environment, eventually

from onetool.util.version import __version__


@pytest.fixture
def home() -> Iterator[Path]:
    """Return a directory with a short path: that of a socket has at most 107 bytes."""
    with TemporaryDirectory() as directory:
        yield Path(directory)


def run_daemon(home: Path, *arguments: str, status: int = 0) -> str:
    """Run `onetool daemon` and return its output; that of a failure is its error."""
    done = subprocess.run(
        [PROGRAM, "daemon", *arguments],
        cwd=home,
        env=make_environment(home),
        stdin=subprocess.DEVNULL,
        capture_output=True,
        encoding="utf-8",
        timeout=TIMEOUT_SECONDS,
        check=False,
    )
    assert done.returncode == status, done.stdout + done.stderr
    return done.stderr if status else done.stdout


@contextmanager
def connect_client(home: Path) -> Iterator[StdioClient]:
    client = StdioClient(home, home, "editor")
    try:
        yield client
    finally:
        client.close()
        run_daemon(home, "stop")


def read_line(stream: IO[str] | None) -> dict[str, Any]:
    assert stream is not None
    line: dict[str, Any] = json.loads(stream.readline())
    return line


def test_without_a_shared_server_the_commands_say_so(home: Path) -> None:
    assert run_daemon(home, "status").startswith("No shared server is running.")
    nothing: dict[str, Any] = {"pid": None, "version": None, "clients": [], "applications": []}
    assert json.loads(run_daemon(home, "status", "--json")) == nothing
    assert run_daemon(home, "stop").startswith("No shared server is running.")
    assert run_daemon(home, "restart").startswith("No shared server is running.")
    assert f"no log at {home}/.onetool/logs/daemon.log" in run_daemon(home, "logs", status=1)
    assert "expected 0 or more" in run_daemon(home, "logs", "-n", "-1", status=2)


@pytest.mark.slow
def test_a_shared_server_is_shown_followed_restarted_and_stopped(home: Path) -> None:
    with connect_client(home) as client:
        found = json.loads(run_daemon(home, "status", "--json"))
        assert (found["version"], [each["name"] for each in found["clients"]]) == (
            __version__,
            ["editor"],
        )
        assert [each["directory"] for each in found["applications"]] == [str(home)]
        assert not found.keys() & {"ok", "installation"}
        shown = run_daemon(home, "status")
        assert [line.split()[:2] for line in shown.splitlines()][:2] == [
            ["process", str(found["pid"])],
            ["version", f"{__version__},"],
        ]
        assert any(line.split()[::2][:2] == ["editor", str(home)] for line in shown.splitlines())
        assert any(line.split() == [str(home), "1", "-", "-"] for line in shown.splitlines())
        assert f"log      {home}/.onetool/logs/daemon.log" in shown

        log = home / ".onetool" / "logs" / "daemon.log"
        assert eventually(log.exists)  # lines are written a moment later
        command = [PROGRAM, "daemon", "logs", "-n", "1", "--follow"]
        variables = make_environment(home)
        with subprocess.Popen(
            command, env=variables, cwd=home, stdout=subprocess.PIPE, text=True
        ) as following:
            first = read_line(following.stdout)
            assert json.loads(run_daemon(home, "logs", "-n", "1")) == first
            assert run_daemon(home, "logs", "-n", "0") == ""
            with ProcessWatch([found["pid"]]) as watch:
                assert "Clients reconnect by themselves" in run_daemon(home, "restart")
                assert watch.all_ended()
            while read_line(following.stdout)["name"] != "daemon.stop":
                pass
            log.rename(log.with_name("daemon.log.1"))  # as rotation does
            assert "result" in client.request("tools/list")
            while (line := read_line(following.stdout))["name"] != "daemon.start":
                pass
            following.terminate()

        again = json.loads(run_daemon(home, "status", "--json"))
        assert again["pid"] == line["pid"] != found["pid"]
        with ProcessWatch([again["pid"]]) as watch:
            assert "1 client still connected" in run_daemon(home, "stop")
            assert watch.all_ended()
        assert run_daemon(home, "status").startswith("No shared server is running.")


@pytest.mark.slow
def test_a_command_that_is_terminated_ends_in_the_shared_server(home: Path) -> None:
    def list_kinds() -> list[str]:
        return [
            each["kind"] for each in json.loads(run_daemon(home, "status", "--json"))["clients"]
        ]

    with connect_client(home):
        command = [*CLIENT, "run", "import time; time.sleep(20)"]
        with subprocess.Popen(command, env=make_environment(home), cwd=home) as running:
            assert eventually(lambda: list_kinds() == ["stdio", "command"])
            running.terminate()
            assert running.wait(TIMEOUT_SECONDS) == 143
        assert eventually(lambda: list_kinds() == ["stdio"])


@pytest.mark.slow
def test_commands_print_the_same_with_and_without_a_shared_server(home: Path) -> None:
    (home / "code.py").write_text("'from a file'", encoding="utf-8")
    (home / "latin.py").write_bytes(b"'\xff'")
    commands: tuple[tuple[tuple[str, ...], int], ...] = (
        (("run", "print('\u00e4'); [1]"), 0),
        (("run", "-f", "code.py"), 0),
        (("run", "-f", "latin.py"), 1),
        (("run", "-f", "missing.py"), 1),
        (("run", "-"), 0),
        (("run",), 2),
        (("run", "1", "--config", "missing.yaml"), 1),
        (("call", "json.parse", r'json=["\udcff"]'), 0),
        (("call", "machine.nwo"), 1),
        (("call", "machine.memory", "unit"), 2),
        (("search", "disk"), 0),
    )
    with connect_client(home):
        for argv, status in commands:
            alone = run_client(home, [PROGRAM, *argv], environment(home))
            assert (argv, run_client(home, [*CLIENT, *argv], make_environment(home))) == (
                argv,
                alone,
            )
            assert alone[0] == status, alone


def run_client(home: Path, command: list[str], env: dict[str, str]) -> tuple[int, bytes, bytes]:
    done = subprocess.run(
        command,
        cwd=home,
        env=env,
        input=b"6 * 7",
        capture_output=True,
        timeout=TIMEOUT_SECONDS,
        check=False,
    )
    return done.returncode, done.stdout, done.stderr
