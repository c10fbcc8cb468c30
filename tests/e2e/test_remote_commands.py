"""Test that commands executed in a server print what the command line prints, with the same exit
status.
"""

import argparse
import contextlib
import io
import json
import os
import pty
import re
import shlex
import subprocess
import threading
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

import anyio
import pytest
from anyio.from_thread import start_blocking_portal
from tests.rest_support import serve_process
from tests.support import PROGRAM, TIMEOUT_SECONDS, App, configure, environment

from onetool import tool
from onetool.app import OneTool
from onetool.cli import remote, tools as tools_command
from onetool.cli.main import COMMANDS, main, make_parser
from onetool.cli.remote import STDERR, STDOUT, NotRemote, RemoteOutput
from onetool.cli.terminal import CLEAR_LINE
from onetool.settings.settings_reader import examine_settings, read_settings
from onetool.util.logging import Log
from onetool.util.token_ids import hash_token

SETTINGS = """
aliases: {t: machine.now}
servers: {gone: {command: missing-program}}
agents: {careful: {policy: ask-writes, permissions: [read, write]}}
approvals: {wait: 0}
auth: {tokens: [{name: approver, hash: HASH, scope: approve}]}
""".replace("HASH", hash_token("ot_approver"))
SECRET = "s3cr3t-value-0123456789"
RUN = re.compile(r"r_[0-9a-f]{32}")
VARYING = re.compile(
    r"r_[0-9a-f]{8,32}|ot_[\w-]{43}|\b(?:[0-9a-f]{16}){1,2}\b|in \d+ s\b| *[\d,.]+ ms|\d+(\.\d+)?"
    r" (of|bytes)"
    r"|\d{4}-\d\d-\d\dT[\d:.]+Z|undo \w+"
)
TERMINAL = frozenset({STDOUT, STDERR})
PROGRESS = re.compile(
    rf"{re.escape(CLEAR_LINE)}([|/\\-] \d+ s  [^\r]*)?"
)  # shown if the machine is slow
Outcome = tuple[int, str, str]


def prepare_home(home: Path) -> None:
    """Write settings, and a project that is not trusted, which is a notice of every command."""
    configure(home, SETTINGS)
    secrets = home / ".onetool" / "secrets.yaml"
    secrets.touch(mode=0o600)
    secrets.write_text(f"KEY: {SECRET}\n", encoding="utf-8")
    configure(home / "project", "aliases: {u: machine.now}")


@contextlib.contextmanager
def open_application(home: Path) -> Iterator[App]:
    """Open the application of a client in the project."""
    prepare_home(home)
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


def execute(
    app: App, *argv: str, terminals: frozenset[int] = frozenset(), stdin: str | None = None
) -> Outcome:
    """Return the exit status and what the client receives for its streams."""
    sent: dict[int, list[str]] = {STDOUT: [], STDERR: []}
    output = RemoteOutput(
        lambda stream, text: sent[stream].append(text), terminals, {"TERM": "xterm"}
    )
    status = app.portal.call(remote.execute, app.onetool, list(argv), output, stdin)
    return status, "".join(sent[STDOUT]), "".join(sent[STDERR])


@dataclass
class Place:
    """A home directory. Commands run in the application, if there is one; a server runs beside it."""

    home: Path
    app: App | None
    run: str = ""  # the last run that a command named

    def run_command(
        self,
        argv: Sequence[str],
        monkeypatch: pytest.MonkeyPatch,
        capfd: pytest.CaptureFixture[str],
    ) -> Outcome:
        """Return the outcome of a command, without what differs between two homes."""
        argv = [word.replace("{run}", self.run) for word in argv]
        status, *texts = self._run(argv, monkeypatch, capfd)
        runs = RUN.findall("".join(texts))
        self.run = runs[-1] if runs else self.run
        out, err = (VARYING.sub("", text.replace(str(self.home), "HOME")) for text in texts)
        return status, out, err

    def _run(
        self, argv: list[str], monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
    ) -> Outcome:
        if self.app is not None:
            with contextlib.suppress(NotRemote):
                return execute(self.app, *argv)
        with monkeypatch.context() as patch:
            patch.chdir(self.home / "project")
            patch.setattr("sys.stdin", io.StringIO("yes\n"))
            for name in os.environ:
                patch.delenv(name)
            for name, value in environment(self.home).items():
                patch.setenv(name, value)
            capfd.readouterr()
            status = main(argv)
        return status, *capfd.readouterr()


@pytest.fixture(scope="module")
def places(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Place, Place]]:
    """Return a home directory where nothing runs, and one with an application and a server."""
    alone = tmp_path_factory.mktemp("alone")
    prepare_home(alone)
    shared = tmp_path_factory.mktemp("shared")
    with open_application(shared) as app, serve_process(shared):
        yield Place(alone, None), Place(shared, app)


def split_cases(text: str) -> list[tuple[int, list[str]]]:
    """Return the exit status and the arguments of each line."""
    lines = (shlex.split(line) for line in text.strip().splitlines())
    return [(int(status), argv) for status, *argv in lines]


# Commands in groups, each with its exit status: they run one after another.
CASES = (
    """
    0 run "print('a'); {'b': [1]}"
    1 run 1/0 --json
    1 run 1 --agent nobody
    0 run --plan "fs.write(path='x', content='y')"
    0 run "'s3cr3t-' + 'value-0123456789'"
    0 call json.parse 'json=["s3cr3t-value-0123456789"]'
    1 call json.parse json=s3cr3t-value-0123456789
    1 call machine.memroy
    1 call machine.nwo --json
    1 call machine.now --agent nobody
    0 tools
    0 tools disk --info full --json
    0 tools --disable machine.disk
    0 tools --enable machine.disk --json
    1 tools --enable machine.dsik
    0 search free disk --limit 1
    0 search xyzzyqwv
    0 help machine.disk
    0 help busy --json
    """,
    """
    0 agents list
    0 agents list --json
    0 agents check "fs.read('a')" --agent careful
    3 agents check "fs.write('a', 'b')" --agent careful --json
    1 agents check "fs.read('a')" --agent nobody
    0 agents set night permissions=[read] --dry-run
    0 agents set night permissions=[read]
    1 agents set night permissions=[fly]
    1 agents set night permissions
    0 agents remove night
    1 agents remove nobody
    0 hosts list
    0 hosts add api.example.com --dry-run --json
    0 hosts add api.example.com
    0 hosts list --json
    0 hosts remove api.example.com
    1 hosts remove api.example.com
    0 settings history
    0 settings undo --yes
    1 settings undo missing
    """,
    """
    0 servers
    0 servers list --json
    0 servers add docs --url https://mcp.example.com
    1 servers add docs --url https://mcp.example.com
    0 servers disable docs
    0 servers enable docs --json
    0 servers stop docs
    1 servers start gone
    1 servers start missing
    1 servers accept missing
    0 logout docs --json
    1 logout missing
    0 servers remove docs
    1 servers remove docs
    0 servers add local -- missing-program --flag
    2 servers add other
    0 servers remove local --json
    0 secret set NEW
    0 secret list
    0 secret allow NEW --bundle essentials --host https://api.example.com
    0 secret disallow NEW --bundle essentials --host https://api.example.com
    0 secret delete NEW --json
    1 secret delete NEW
    """,
    """
    0 bundles
    0 bundles list --all --json
    0 bundles enable essentials
    0 bundles disable essentials.parsejson
    1 bundles enable essentials.parsejsn
    0 bundles export essentials essentials.zip
    0 bundles import essentials.zip --name copy --json
    1 bundles import missing.zip
    0 bundles delete copy.parsejson --yes
    0 bundles delete copy --yes
    1 bundles delete copy --yes
    0 import essentials.zip --name again --dry-run
    0 snippets list
    1 snippets accept missing
    1 snippets delete missing
    """,
    """
    3 call fs.write path=x content=y --agent careful
    0 approvals
    0 approvals --json
    1 approve {run} --call 99 --token ot_approver
    0 runs show {run}
    0 reject {run} --stop --token ot_approver
    0 approvals
    1 reject {run} --token ot_approver
    0 runs --state waiting
    0 runs list --state waiting --json
    0 runs --text xyzzyqwv --json-lines
    1 runs show missing
    0 runs list --limit 1
    """,
    """
    0 token create laptop --scope admin --expires 1d
    1 token create laptop
    0 token list
    0 token revoke laptop --json
    1 token revoke laptop
    0 stats --by token --month 2001-01
    1 stats --by token --month May
    0 stats --by error
    0 audit --text xyzzyqwv
    0 audit --text xyzzyqwv --json
    0 disconnect
    1 disconnect missing
    0 store status
    0 api GET /api/packs/machine
    1 api GET /api/packs/machin
    1 api POST /api/approvals/missing --data {}
    0 trust
    0 untrust
    0 backup backup.tar.gz --secrets
    1 backup backup.tar.gz
    """,
)
LEFT_OUT = {
    "serve": "a server",
    "daemon": "the shared server itself",
    "worker": "a server, with a database",
    "reload": "prints the servers that run",
    "ui": "opens the admin UI of a server that runs",
    "demo": "has a home of its own",
    "doctor": "starts everything, and has no function that runs elsewhere",
    "login": "opens a browser",
    "connect": "reads and writes only the files of assistants",
    "init": "writes only files that do not exist",
    "test": "runs the code of a pack in this process",
    "dev": "runs the code of a pack in this process",
    "completion": "has no state",
    "store upgrade": "needs a database",
    "store grants": "has no state",
    "store reset-budgets": "needs no application",
    "store migrate": "needs a database",
}


@pytest.mark.parametrize("group", CASES, ids=lambda group: " ".join(group.split()[1:3]))
def test_commands_do_the_same_in_a_server_and_alone(
    group: str,
    places: tuple[Place, Place],
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
) -> None:
    alone, shared = places
    for status, argv in split_cases(group):
        expected = alone.run_command(argv, monkeypatch, capfd)
        assert shared.run_command(argv, monkeypatch, capfd) == expected, argv
        assert expected[0] == status, (argv, expected)
        assert SECRET not in "".join(expected[1:])


def test_each_command_is_compared_or_left_out_for_a_reason() -> None:
    tried = [" ".join(argv) for group in CASES for _, argv in split_cases(group)]
    for name in list_commands():
        is_tried = any(line == name or line.startswith(f"{name} ") for line in tried)
        is_left_out = name in LEFT_OUT or name.partition(" ")[0] in LEFT_OUT
        assert is_tried != is_left_out, name


def list_commands() -> Iterator[str]:
    """Yield the commands, and their actions, from their parsers."""
    for name in COMMANDS:
        yield name
        for action in make_parser(name)._actions:
            if action.nargs == argparse.PARSER:
                yield from (f"{name} {word}" for word in action.choices or ())


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


@pytest.mark.parametrize(
    "argv", [("run", "'\x1b[31m\u202e'"), ("call", "json.parse", 'json={"a": [1]}')]
)
def test_a_terminal_gets_the_same_text(app: App, argv: tuple[str, ...]) -> None:
    ours, theirs = pty.openpty()
    directory, variables = app.onetool.directories.working_dir, dict(app.onetool.environment)
    with subprocess.Popen(
        [PROGRAM, *argv], stdin=theirs, stdout=theirs, stderr=theirs, cwd=directory, env=variables
    ):
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
        running = app.portal.start_task_soon(remote.execute, app.onetool, list(argv), output)
        assert started.wait(TIMEOUT_SECONDS)
        running.cancel()
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
        ("servers", "accept", "gone"),
        ("secret", "set", "KEY"),
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

    failing = replace(tools_command.COMMANDS["tools"], execute=fail)
    monkeypatch.setitem(tools_command.COMMANDS, "tools", failing)
    log = app.onetool.directories.user / "logs" / "onetool.log"
    expected = f"onetool: internal error: KeyError: 'odd'\nonetool: see {log} for details\n"
    status, printed, errors = execute(app, "tools")
    assert (status, printed, errors.endswith(expected)) == (1, "", True)
    assert json.loads(log.read_text(encoding="utf-8").splitlines()[-1])["error_type"] == "KeyError"
