"""Test that commands executed in a server print what the command line prints, with the same exit status."""

import contextlib
import json
import os
import pty
import re
import subprocess
import threading
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import anyio
import pytest
from anyio.from_thread import start_blocking_portal
from tests.support import PROGRAM, TIMEOUT_SECONDS, App, configure, environment

from onetool import tool
from onetool.app import OneTool
from onetool.cli import remote, tools as tools_command
from onetool.cli.remote import STDERR, STDOUT, NotRemote, RemoteOutput
from onetool.cli.terminal import CLEAR_LINE
from onetool.config.settings_reader import examine_settings, read_settings
from onetool.logging import Log

SETTINGS = """
aliases: {t: machine.now}
servers: {gone: {command: missing-program}}
agents: {careful: {policy: ask-writes, permissions: [read, write]}}
approvals: {wait: 0}
"""
SECRET = "s3cr3t-value-0123456789"
VARYING = re.compile(r"r_[0-9a-f]{32}|in \d+ s\b")  # run IDs, and when a server is started again
TERMINAL = frozenset({STDOUT, STDERR})
PROGRESS = re.compile(rf"{re.escape(CLEAR_LINE)}([|/\\-] \d+ s  [^\r]*)?")  # shown if the machine is slow
Outcome = tuple[int, str, str]


@contextlib.contextmanager
def open_application(home: Path) -> Iterator[App]:
    """Open the application of a client in a project that it does not trust, which is a notice of every command."""
    configure(home, SETTINGS)
    secrets = home / ".onetool" / "secrets.yaml"
    secrets.touch(mode=0o600)
    secrets.write_text(f"KEY: {SECRET}\n", encoding="utf-8")
    configure(home / "project", "aliases: {u: machine.now}")
    variables, directory = environment(home), home / "project"
    place = variables, directory, None, home
    read, examine = partial(read_settings, *place), partial(examine_settings, *place)
    with start_blocking_portal("asyncio") as portal:
        onetool = OneTool(read=read, examine=examine, environment=variables, log=Log())
        with portal.wrap_async_context_manager(onetool) as app:
            yield App(portal, app)


@pytest.fixture(scope="module")
def app(tmp_path_factory: pytest.TempPathFactory) -> Iterator[App]:
    with open_application(tmp_path_factory.mktemp("home")) as opened:
        yield opened


def execute(app: App, *argv: str, terminals: frozenset[int] = frozenset(), stdin: str | None = None) -> Outcome:
    """Return the exit status and what the client receives for its streams."""
    sent: dict[int, list[str]] = {STDOUT: [], STDERR: []}
    output = RemoteOutput(lambda stream, text: sent[stream].append(text), terminals, {"TERM": "xterm"})
    status = app.portal.call(remote.execute, app.onetool, list(argv), output, stdin)
    return status, "".join(sent[STDOUT]), "".join(sent[STDERR])


def run_command(app: App, *argv: str) -> Outcome:
    done = subprocess.run(
        [PROGRAM, *argv],
        cwd=app.onetool.directories.working_dir,
        env=dict(app.onetool.environment),
        stdin=subprocess.DEVNULL,
        capture_output=True,
        encoding="utf-8",
        timeout=TIMEOUT_SECONDS,
        check=False,
    )
    return done.returncode, done.stdout, done.stderr


@pytest.mark.sampled(3)
@pytest.mark.parametrize(
    ("argv", "status"),
    [
        (("run", "print('a'); {'b': [1]}"), 0),
        (("run", "1/0", "--json"), 1),
        (("run", "1", "--agent", "nobody"), 1),
        (("run", "--plan", "fs.write(path='x', content='y')"), 0),
        (("run", f"'{SECRET[:7]}' + '{SECRET[7:]}'"), 0),
        (("call", "json.parse", f'json=["{SECRET}"]'), 0),
        (("call", "json.parse", f"json={SECRET}"), 1),
        (("call", "machine.memroy"), 1),
        (("call", "machine.nwo", "--json"), 1),
        (("call", "machine.now", "--agent", "nobody"), 1),
        (("call", "fs.write", "path=x", "content=y", "--agent", "careful"), 3),
        (("tools",), 0),
        (("tools", "disk", "--info", "full", "--json"), 0),
        (("search", "free", "disk", "--limit", "1"), 0),
        (("search", "xyzzyqwv"), 0),
        (("help", "machine.disk"), 0),
        (("help", "busy", "--json"), 0),
        (("agents", "list"), 0),
        (("agents", "list", "--json"), 0),
        (("agents", "check", "fs.read('a')", "--agent", "careful"), 0),
        (("agents", "check", "fs.write('a', 'b')", "--agent", "careful", "--json"), 3),
        (("agents", "check", "fs.read('a')", "--agent", "nobody"), 1),
        (("agents", "set", "night", "permissions=[read]", "--dry-run"), 0),
        (("agents", "set", "night", "permissions=[fly]"), 1),
        (("agents", "set", "night", "permissions"), 1),
        (("agents", "remove", "nobody"), 1),
        (("hosts", "list"), 0),
        (("hosts", "list", "--json"), 0),
        (("hosts", "add", "api.example.com", "--dry-run", "--json"), 0),
        (("hosts", "remove", "api.example.com"), 1),
        (("approvals",), 0),
        (("approvals", "--json"), 0),
        (("runs", "--state", "waiting"), 0),
        (("runs", "list", "--state", "waiting", "--json"), 0),
        (("runs", "--text", "xyzzyqwv", "--json-lines"), 0),
        (("runs", "show", "missing"), 1),
        (("stats", "--by", "token", "--month", "2001-01"), 0),
        (("stats", "--by", "token", "--month", "May"), 1),
        (("audit", "--text", "xyzzyqwv"), 0),
        (("audit", "--text", "xyzzyqwv", "--json"), 0),
    ],
)
def test_a_command_prints_the_same_in_a_server(app: App, argv: tuple[str, ...], status: int) -> None:
    expected = tuple(VARYING.sub("", str(part)) for part in run_command(app, *argv))
    assert tuple(VARYING.sub("", str(part)) for part in execute(app, *argv)) == expected
    assert int(expected[0]) == status
    assert SECRET not in "".join(expected)
    if status == 0:
        assert "is not trusted" in expected[1 if argv[0] == "run" else 2]


def test_an_edit_in_a_server_is_in_effect_when_the_command_ends(tmp_path: Path) -> None:
    with open_application(tmp_path) as app:
        status, printed, _ = execute(app, "agents", "set", "night", "permissions=[read]")
        assert (status, "onetool settings undo" in printed) == (0, True)
        assert app.onetool.settings.agents["night"].permissions == {"read"}
        assert execute(app, "hosts", "add", "one.example.com")[0] == 0
        assert execute(app, "hosts", "list")[1] == "one.example.com\n"
        audited = (tmp_path / ".onetool" / "logs" / "audit.jsonl").read_text(encoding="utf-8")
        assert '"transport": "cli"' in audited or '"transport":"cli"' in audited


def test_code_from_standard_input_is_sent_as_text(app: App) -> None:
    assert execute(app, "run", "-", stdin="x = 6\nx * 7")[1].endswith("\n42\n")
    assert execute(app, "run", "-", "--plan", stdin="-")[0] == 0


@pytest.mark.parametrize("argv", [("run", "'\x1b[31m\u202e'"), ("call", "json.parse", 'json={"a": [1]}')])
def test_a_terminal_gets_the_same_text(app: App, argv: tuple[str, ...]) -> None:
    ours, theirs = pty.openpty()
    directory, variables = app.onetool.directories.working_dir, dict(app.onetool.environment)
    with subprocess.Popen([PROGRAM, *argv], stdin=theirs, stdout=theirs, stderr=theirs, cwd=directory, env=variables):
        os.close(theirs)
        output = b""
        with contextlib.suppress(OSError):  # a terminal raises this when its last process has ended
            while part := os.read(ours, 65536):
                output += part
    os.close(ours)
    _, written, errors = execute(app, *argv, terminals=TERMINAL)
    expected = (errors + written).replace("\n", "\r\n")
    assert PROGRESS.sub("", expected) == PROGRESS.sub("", output.decode())


def test_progress_is_sent_only_to_a_terminal(app: App) -> None:
    slow = "run", "import time; time.sleep(1.3); 5"
    status, written, errors = execute(app, *slow, terminals=frozenset({STDERR}))
    assert (status, written[-3:]) == (0, "\n5\n")
    first, *frames, last = errors.split(CLEAR_LINE)
    assert (first, last) == ("", "")
    assert all(re.fullmatch(r"[|/\\-] 1 s  running", frame) for frame in frames)
    assert frames
    assert execute(app, *slow, terminals=frozenset({STDOUT})) == (0, written, "")


def test_a_run_that_may_ask_is_left_to_the_process_of_the_terminal(app: App) -> None:
    with pytest.raises(remote.NotRemote):
        execute(app, "run", "1 + 1", "--agent", "careful")


def test_cancelling_the_command_cancels_the_run(app: App) -> None:
    started, ended = threading.Event(), threading.Event()

    @tool("sample.wait", effects=["read"])
    async def wait() -> None:
        """Wait until cancelled."""
        started.set()
        try:
            await anyio.sleep_forever()
        finally:
            ended.set()

    app.onetool.bus.register_tool(wait)
    for argv in (("run", "sample.wait()"), ("call", "sample.wait")):
        started.clear()
        ended.clear()
        output = RemoteOutput(lambda *_: None, TERMINAL, {})
        command = app.portal.start_task_soon(remote.execute, app.onetool, list(argv), output)
        assert started.wait(TIMEOUT_SECONDS)
        command.cancel()
        assert ended.wait(TIMEOUT_SECONDS)
    assert execute(app, "run", "1 + 1")[0] == 0


@pytest.mark.parametrize(
    "argv",
    [
        (),
        ("doctor",),
        ("serve",),
        ("run",),
        ("run", "-"),
        ("run", "\udcff"),
        ("run", "1", "-f", "x"),
        ("run", "-f", "x"),
        ("run", "--help"),
        ("run", "1", "--config", "x"),
        ("run", "1", "--nonsense"),
        ("call", "machine.memory", "unit"),
        ("tools", "--info", "much"),
        ("search", " "),
        ("search", "x", "--limit", "0"),
        ("agents", "check", "fs.read(open('x'))"),
        ("servers", "list"),
        ("stats", "--month", "2001-01"),
    ],
)
def test_the_client_handles_usage_errors_and_its_own_files(
    app: App, argv: tuple[str, ...], capfd: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(NotRemote):
        execute(app, *argv)
    assert capfd.readouterr() == ("", "")


def test_the_client_executes_commands_itself_if_the_settings_changed(tmp_path: Path) -> None:
    with open_application(tmp_path) as app:
        assert execute(app, "run", "1")[0] == 0
        for changed in (SETTINGS + "log_level: DEBUG\n", "executon: {}"):
            configure(tmp_path, changed)
            with pytest.raises(NotRemote):
                execute(app, "run", "1")
        configure(tmp_path, SETTINGS)
        assert execute(app, "run", "1")[0] == 0


def test_an_internal_error_is_logged(app: App, monkeypatch: pytest.MonkeyPatch) -> None:
    async def fail(*_: object) -> int:
        raise KeyError("odd")

    monkeypatch.setattr(tools_command, "execute", fail)
    log = app.onetool.directories.user / "logs" / "onetool.log"
    expected = f"onetool: internal error: KeyError: 'odd'\nonetool: see {log} for details\n"
    assert execute(app, "tools") == (1, "", expected)
    assert json.loads(log.read_text(encoding="utf-8").splitlines()[-1])["error_type"] == "KeyError"
