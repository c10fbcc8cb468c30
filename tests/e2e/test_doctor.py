"""Test `onetool doctor` on broken installations: it names the file and the line, and gives a hint.

If the hint can be applied automatically, the test applies it and checks that the finding is gone.
"""

import json
import os
import pty
import re
import shlex
import socket
import sqlite3
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import anyio
import pytest
import yaml
from tests.cells_support import IS_ROOT, NIGHTLY, ORDINARY_USER, as_ordinary_user
from tests.extensions_support import HEADER, write_pack, write_secrets
from tests.proxy_support import hostile_server
from tests.support import PROGRAM, configure, environment, run_cli

from onetool.app import OneTool
from onetool.errors import ToolError
from onetool.settings.settings_reader import examine_settings, read_settings
from onetool.sources.bundles.bundle_store import BundleStore
from onetool.state.run_records import RunRecord
from onetool.state.run_store import RunStore
from onetool.state.session_store import SessionStore
from onetool.state.stats.database import VERSION as STATISTICS_VERSION

pytestmark = pytest.mark.slow
ECHO = "def echo(text: str) -> str:\n    return text\n"
CANARY = "sk-canary-canary-canary-canary"
Findings = list[dict[str, Any]]
Work = Callable[[Path], object]


@dataclass(frozen=True)
class Case:
    """A broken installation.

    The finding names `file` (relative to the home) and `line`; `fix` applies the hint.
    """

    name: str
    make: Work
    file: str
    message: str
    hint: str
    line: int | None = None
    fix: "Callable[[Path, str], object] | None" = None
    level: str = "problem"
    directory: str = "."
    env: Mapping[str, str] = field(default_factory=dict)


Ended = subprocess.CompletedProcess[str]


def doctor(
    home: Path,
    directory: str = ".",
    env: Mapping[str, str] | None = None,
    start: Sequence[str] = (),
) -> Findings:
    """Return the findings, and check that the plain text reports the same."""
    found = examine(home, directory, env, start)
    shown = run_doctor(home, directory, env, start)
    assert "Traceback" not in shown.stdout
    assert shown.stdout.count("FAIL") == sum(each["level"] == "problem" for each in found)
    return found


def examine(
    home: Path,
    directory: str = ".",
    env: Mapping[str, str] | None = None,
    start: Sequence[str] = (),
) -> Findings:
    data = run_doctor(home, directory, env, start, "--json")
    found: Findings = json.loads(data.stdout)["findings"]
    assert data.returncode == int(any(each["level"] == "problem" for each in found))
    return found


def run_doctor(
    home: Path, directory: str, env: Mapping[str, str] | None, start: Sequence[str], *arguments: str
) -> Ended:
    variables = {
        **environment(home),
        **{name: value.format(home=home) for name, value in (env or {}).items()},
    }
    command = [*start, PROGRAM, "doctor", *arguments]
    cwd = home / directory
    done = subprocess.run(
        command, cwd=cwd, env=variables, stdin=subprocess.DEVNULL, capture_output=True, timeout=120, check=False,
        encoding="utf-8",
    )  # fmt: skip
    assert done.stderr == ""
    return done


def list_problems(findings: Findings) -> Findings:
    return [each for each in findings if each["level"] != "ok"]


def health(home: Path, directory: str = ".", env: Mapping[str, str] | None = None) -> Findings:
    """Return the problems that `ot.health()` reports after every component was used once."""
    variables = {
        **environment(home),
        **{name: value.format(home=home) for name, value in (env or {}).items()},
    }
    arguments = (variables, home / directory, None, home)

    async def problems() -> Findings:
        app = OneTool(
            read=lambda: read_settings(*arguments),
            examine=lambda: examine_settings(*arguments),
            environment=variables,
        )
        async with app:
            for name in app.servers.names:
                with suppress(ToolError):
                    await app.servers.upstream(name).main.connect()
            await app.discover()
            for write_extension in app.extensions.states:
                await app.bus.call_tool(f"{write_extension}.echo", {"text": "x"}, app.context())
            found = await app.health()
            findings: Findings = found["findings"]
            pairs = zip(findings, found["problems"], strict=True)
            for each, text in pairs:  # each is one line
                message, hint = ("; ".join(each[part].splitlines()) for part in ("message", "hint"))
                assert text == (f"{message}. Hint: {hint}" if hint else message)
            return findings

    return anyio.run(problems)


def run_hint(home: Path, hint: str, directory: str = ".") -> None:
    """Run the command in a hint."""
    quoted, made = re.search(r"`([^`]+)`", hint), re.search(r"mkdir -p \S+", hint)
    command = quoted[1] if quoted else made[0] if made else hint
    env = environment(home)
    env["PATH"] = f"{Path(PROGRAM).parent}{os.pathsep}{env.get('PATH', os.defpath)}"
    done = subprocess.run(
        ["/bin/sh", "-c", command],
        cwd=home / directory,
        env=env,
        input=b"yes\n",
        capture_output=True,
        check=False,
    )
    assert done.returncode == 0, (command, done.stderr)


# --- breaking and fixing --------------------------------------------------------------------------


def write_settings(text: str) -> Work:
    return lambda home: configure(home, text)


def write_servers(**entries: Mapping[str, Any]) -> Work:
    return lambda home: configure(home, yaml.safe_dump({"servers": entries}))


def write_content(path: str, content: str | bytes) -> Work:
    def write(home: Path) -> None:
        file = home / path
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_bytes(content if isinstance(content, bytes) else content.encode())

    return write


def combine(*works: Work) -> Work:
    return lambda home: [work(home) for work in works]


def replace_text(path: str, old: str, new: str) -> Callable[[Path, str], object]:
    return lambda home, _: edit(home / path, old, new)


def edit(file: Path, old: str, new: str) -> None:
    text = file.read_text(encoding="utf-8")
    assert old in text
    file.write_text(text.replace(old, new), encoding="utf-8")


def apply_hint(home: Path, hint: str) -> None:
    run_hint(home, hint)


def write_extension(text: str, name: str = "mine", directory: str = "") -> Work:
    return lambda home: write_pack(home / ".onetool" / "tools", directory or name, text, name)


def delete_file(path: str) -> Callable[[Path, str], object]:
    return lambda home, _: (home / path).unlink()


def write_project(text: str = "log_level: DEBUG\n") -> Work:
    return lambda home: configure(home / "project", text)


def change_project(home: Path) -> None:
    write_project()(home)
    run_hint(home, "onetool trust", "project")
    write_project("servers: {git: {command: git, enabled: false}}\n")(home)


def change_server(home: Path) -> None:
    notes = home / "notes"
    notes.mkdir()
    configure(
        home, yaml.safe_dump({"servers": {"odd": hostile_server("changes", notes, pin="strict")}})
    )
    assert run_cli(home, "servers", "accept", "odd").returncode == 0
    (notes / "changed").touch()


def configure_closed_port(home: Path) -> None:
    with socket.socket() as port_holder:
        port_holder.bind(("127.0.0.1", 0))
        port = port_holder.getsockname()[1]
    configure(home, f"servers:\n  far: {{url: 'http://127.0.0.1:{port}/mcp'}}\n")


def create_bundle(home: Path) -> Path:
    store = BundleStore(home / ".onetool" / "bundles")
    ident = store.new_id()
    store.put_bundle(ident, {"slug": "pets", "displayName": "Pets", "isEnabled": True})
    store.close()
    (file,) = (home / ".onetool" / "bundles").glob("*/bundle.json")
    return file.rename(file.parent.rename(file.parent.with_name(f"pets-{ident}")) / file.name)


def damage_bundle(home: Path) -> None:
    create_bundle(home).write_text('{"schemaVersion": 1, "id":', encoding="utf-8")


def write_newer_bundle(home: Path) -> None:
    edit(create_bundle(home), '"schemaVersion": 1', '"schemaVersion": 2')


def write_database(path: str, version: int) -> Work:
    def make(home: Path) -> None:
        write_content(path, b"")(home)
        with sqlite3.connect(home / path) as opened:
            opened.execute(f"pragma user_version = {version}")

    return make


def lose_run_key(home: Path) -> None:
    with closing(RunStore(home / ".onetool")) as store:
        store.put_run(RunRecord("r_1", "default", "1"))
    (home / ".onetool" / "runs" / "runs.key").unlink()


def lose_session_key(home: Path) -> None:
    with closing(SessionStore(home / ".onetool")) as store:
        store.create()
    (home / ".onetool" / "runs" / "sessions.key").unlink()


def configure_cursor(entry: Mapping[str, Any]) -> Work:
    return write_content(".cursor/mcp.json", json.dumps({"mcpServers": {"onetool": entry}}))


WITHOUT_UV = write_content(
    "shadow/uv/__init__.py", "def find_uv_bin() -> str:\n    raise FileNotFoundError('uv')\n"
)
CONFIG, TOOLS, MINE = ".onetool/onetool.yaml", ".onetool/tools", ".onetool/tools/mine/mine_tools.py"
IMPOSSIBLE = HEADER.replace("six", "onetool-there-is-no-such-package")
DIES = "import sys; print('these are my last words', file=sys.stderr); sys.exit(3)"

CASES = [
    Case(
        "invalid YAML",
        write_settings("log_level: INFO\nexecution: {timeout: 5\n"),
        CONFIG,
        "is not valid YAML",
        "fix line",
        3,
        replace_text(CONFIG, "5", "5}"),
    ),
    Case(
        "an unknown key",
        write_settings("executon: {}\n"),
        CONFIG,
        "unknown key",
        "did you mean execution?",
        1,
        replace_text(CONFIG, "executon", "execution"),
    ),
    Case(
        "a value of the wrong type",
        write_settings("output:\n  preview_lines: many\n"),
        CONFIG,
        "must be an integer",
        "fix line 2",
        2,
        replace_text(CONFIG, "many", "5"),
    ),
    Case(
        "settings of a newer version",
        write_settings("# mine\nversion: 2\nthings: {}\n"),
        CONFIG,
        "was written by a newer OneTool (version 2; this one supports 1)",
        "upgrade OneTool",
        2,
        replace_text(CONFIG, "version: 2\nthings: {}", "version: 1"),
    ),
    Case(
        "a variable that is not set",
        write_settings("docs_url: ${DOCS_ADDRESS}\n"),
        CONFIG,
        "docs_url refers to DOCS_ADDRESS, which is not set",
        "onetool secret set",
        1,
        lambda home, _: write_secrets(home / ".onetool", "DOCS_ADDRESS: https://example.org/\n"),
    ),
    Case(
        "secrets that others can read",
        write_content(".onetool/secrets.yaml", f"KEY: {CANARY}\n"),
        ".onetool/secrets.yaml",
        "other users can read this file",
        "chmod 600",
        None,
        apply_hint,
    ),
    Case(
        "secrets that are a list",
        lambda home: write_secrets(home / ".onetool", f"- {CANARY}\n"),
        ".onetool/secrets.yaml",
        "the file must contain `key: value` lines",
        "fix line 1",
        1,
        lambda home, _: write_secrets(home / ".onetool", f"KEY: {CANARY}\n"),
    ),
    Case(
        "an untrusted project",
        write_project(),
        "project/.onetool",
        "is not trusted and is ignored",
        "onetool trust",
        fix=lambda home, hint: run_hint(home, hint, "project"),
        directory="project",
    ),
    Case(
        "a changed project",
        change_project,
        "project/.onetool",
        "changed since it was trusted",
        "onetool trust",
        fix=lambda home, hint: run_hint(home, hint, "project"),
        directory="project",
    ),
    Case(
        "an extension with a syntax error",
        write_extension("import os\ndef echo(:\n"),
        MINE,
        "invalid syntax",
        "fix line 2",
        2,
        replace_text(MINE, "def echo(:\n", ECHO),
    ),
    Case(
        "an extension whose dependency does not exist",
        write_extension(f"{IMPOSSIBLE}{ECHO}"),
        MINE,
        "uv could not create the environment",
        "fix the dependencies in the header",
        fix=lambda home, _: write_extension(f"{HEADER}{ECHO}")(home),
    ),
    Case(
        "an extension that fails at import",
        write_extension(f"import os\n1 / 0\n{ECHO}"),
        MINE,
        "ZeroDivisionError",
        "fix line 2",
        2,
        replace_text(MINE, "1 / 0\n", ""),
    ),
    Case(
        "an extension with an undeclared dependency",
        write_extension(f"import a_package_that_nobody_has\n{ECHO}"),
        MINE,
        "No module named 'a_package_that_nobody_has'",
        '# dependencies = ["a_package_that_nobody_has"]',
        1,
        replace_text(MINE, "import a_package_that_nobody_has\n", ""),
    ),
    Case(
        "two extensions with one name",
        combine(write_extension(ECHO, directory="one"), write_extension(ECHO, directory="two")),
        f"{TOOLS}/two/mine_tools.py",
        "duplicate extension pack mine",
        "delete or rename one of them",
        fix=delete_file(f"{TOOLS}/two/mine_tools.py"),
    ),
    Case(
        "an extension with the name of a built-in pack",
        write_extension(ECHO, "fs"),
        f"{TOOLS}/fs/fs_tools.py",
        "pack name 'fs' conflicts with a built-in pack",
        'add `pack = "another_name"`',
        fix=lambda home, _: write_extension(f'pack = "another_name"\n{ECHO}', "fs")(home),
    ),
    Case(
        "an alias of an unknown tool",
        write_settings("aliases:\n  disk: machine.dsk\n"),
        CONFIG,
        "unknown tool 'machine.dsk'",
        "write machine.disk instead of machine.dsk",
        2,
        replace_text(CONFIG, "machine.dsk", "machine.disk"),
    ),
    Case(
        "an alias with the name of a builtin",
        write_settings("aliases:\n  print: machine.disk\n"),
        CONFIG,
        "alias print has a name reserved",
        "rename the alias",
        2,
        replace_text(CONFIG, "print", "show"),
    ),
    Case(
        "an alias with the name of a pack",
        write_settings("aliases:\n  fs: machine.disk\n"),
        CONFIG,
        "alias fs has the name of a pack",
        "rename the alias",
        2,
        replace_text(CONFIG, "fs", "show"),
    ),
    Case(
        "an extension with the name of a builtin",
        write_extension(ECHO, "map"),
        "",
        "pack map has a name reserved",
        'ot.pack("map")',
        fix=lambda home, _: write_extension(f'pack = "another_name"\n{ECHO}', "map")(home),
        level="warning",
    ),
    Case(
        "a snippet with an invalid template",
        write_settings("snippets:\n  greet:\n    body: '{{ name'\n    params: {name: {}}\n"),
        CONFIG,
        "cannot render the body of $greet",
        "correct the body of the snippet greet",
        3,
        replace_text(CONFIG, "{{ name", "{{ name }}"),
    ),
    Case(
        "a server with a missing program",
        write_settings("servers:\n  gone: {command: a-program-that-nobody-has}\n"),
        CONFIG,
        "program 'a-program-that-nobody-has' not found",
        "install a-program-that-nobody-has",
        2,
        lambda home, _: write_servers(gone=hostile_server("echo"))(home),
    ),
    Case(
        "a server that exits immediately",
        write_servers(ill={"command": sys.executable, "args": ["-c", DIES]}),
        CONFIG,
        "these are my last words",
        shlex.quote(DIES),
        2,
        lambda home, _: write_servers(ill=hostile_server("echo"))(home),
    ),
    Case("an unreachable server", configure_closed_port, CONFIG, "cannot connect to far", "url", 2),
    Case(
        "an unresponsive server",
        write_servers(mute=hostile_server("hangs", timeout=2)),
        CONFIG,
        "mute did not respond within 2 s",
        "set servers.mute.enabled to false",
        2,
        replace_text(CONFIG, "timeout: 2", "enabled: false"),
    ),
    Case(
        "a server whose tools have changed",
        change_server,
        "",
        "changed definition of odd.echo",
        "onetool servers accept odd",
        fix=lambda home, _: run_hint(home, "onetool servers accept odd"),
    ),
    Case(
        "a server with the name of a pack",
        write_servers(fs=hostile_server("echo")),
        CONFIG,
        "has the name of another pack",
        "rename the server",
        2,
        replace_text(CONFIG, "  fs:", "  other:"),
    ),
    Case(
        "two servers with one name in code",
        write_servers(**{"a-b": hostile_server("echo"), "a_b": hostile_server("echo")}),
        CONFIG,
        "server a_b has the name of another pack (server a-b)",
        "rename the server",
        9,
        replace_text(CONFIG, "  a_b:", "  other:"),
    ),
    Case(
        "a server with the name of an extension",
        combine(write_servers(mine=hostile_server("echo")), write_extension(ECHO)),
        CONFIG,
        "has the name of another pack ({home}/.onetool/tools/mine/mine_tools.py)",
        "rename the server",
        2,
        replace_text(CONFIG, "  mine:", "  other:"),
    ),
    Case(
        "an agent with an unknown permission",
        write_content(".onetool/agents/pilot.yaml", "sandbox: {}\npermissions: [read, fly]\n"),
        ".onetool/agents/pilot.yaml",
        "must be a list of permissions (read, write, exec, network)",
        "fix line 2",
        2,
        replace_text(".onetool/agents/pilot.yaml", ", fly", ""),
    ),
    Case(
        "an agent with a missing directory",
        write_content(".onetool/agents/pilot.yaml", "sandbox:\n  allowed_paths: [~/planes]\n"),
        ".onetool/agents/pilot.yaml",
        "planes, which does not exist",
        "mkdir -p",
        2,
        apply_hint,
    ),
    Case(
        "a token of an unknown agent",
        write_settings(
            "auth:\n  tokens:\n    - {name: a, hash: b, agent: pilto}\nagents: {pilot: {}}\n"
        ),
        CONFIG,
        "must be an agent (pilot, default)",
        "fix line 3",
        3,
        replace_text(CONFIG, "pilto", "pilot"),
    ),
    Case(
        "a token whose variable is not set",
        write_settings("auth:\n  tokens:\n    - {name: laptop, token_env: LAPTOP_TOKEN}\n"),
        CONFIG,
        "token laptop is disabled: environment variable LAPTOP_TOKEN is not set",
        "export LAPTOP_TOKEN=",
        3,
        level="warning",
    ),
    Case(
        "a token that has expired",
        write_settings(
            "auth:\n  tokens:\n    - {name: old, hash: b, expires: 2026-01-31T12:00:00Z}\n"
        ),
        CONFIG,
        "token old has expired (2026-01-31T12:00:00Z)",
        "onetool token revoke old",
        3,
        apply_hint,
        level="warning",
    ),
    Case(
        "a damaged bundle",
        damage_bundle,
        ".onetool/bundles/pets-",
        "is not valid JSON",
        "mv ",
        fix=apply_hint,
    ),
    Case(
        "a bundle of a newer version",
        write_newer_bundle,
        ".onetool/bundles/pets-",
        "written by a newer OneTool",
        "upgrade",
    ),
    Case(
        "damaged statistics",
        write_content(".onetool/stats/stats.db", b"no database at all" * 1000),
        ".onetool/stats/stats.db",
        "is damaged",
        "onetool run 1",
        fix=apply_hint,
    ),
    Case(
        "damaged durable runs",
        write_content(".onetool/runs/runs.db", b"no database at all" * 1000),
        ".onetool/runs/runs.db",
        "is damaged",
        "rm ",
        fix=apply_hint,
    ),
    *(
        Case(
            f"an empty {name}",
            write_content(f".onetool/{name}", b""),
            f".onetool/{name}",
            "is damaged: it is empty",
            hint,
            fix=apply_hint,
        )
        for name, hint in (
            ("runs/runs.db", "rm "),
            ("runs/sessions.db", "rm "),
            ("stats/stats.db", "run `onetool run 1`"),
        )
    ),
    Case(
        "durable runs without their key",
        lose_run_key,
        ".onetool/runs",
        "runs.key is missing: what it sealed cannot be read",
        "rm -r ",
        fix=apply_hint,
    ),
    Case(
        "damaged sessions",
        write_content(".onetool/runs/sessions.db", b"no database at all" * 1000),
        ".onetool/runs/sessions.db",
        "is damaged",
        "rm ",
        fix=apply_hint,
    ),
    Case(
        "sessions without their key",
        lose_session_key,
        ".onetool/runs",
        "sessions.key is missing: what it sealed cannot be read",
        "rm -r ",
        fix=apply_hint,
    ),
    Case(
        "statistics of a newer version",
        write_database(".onetool/stats/stats.db", 9),
        ".onetool/stats/stats.db",
        f"was written by a newer OneTool (version 9; this one supports {STATISTICS_VERSION})",
        "upgrade OneTool",
    ),
    *(
        Case(
            f"damaged {name}",
            write_content(f".onetool/{name}", "{"),
            f".onetool/{name}",
            message,
            "rm ",
            fix=apply_hint,
        )
        for name, message in (("state/documents.db", "cannot read"), ("trust.json", "is damaged"))
    ),
    Case(
        "a file instead of the results directory",
        write_content(".onetool/tmp", "x"),
        ".onetool/tmp",
        "is not a directory",
        "mv ",
        fix=apply_hint,
    ),
    *(
        Case(
            f"a file instead of {name}",
            write_content(name, "x"),
            name,
            "is not a directory",
            f"mv {{home}}/{name} {{home}}/{name}.old",
            fix=apply_hint,
        )
        for name in (".onetool", ".onetool/bundles", ".onetool/logs")
    ),
    Case(
        "a missing scratch directory",
        lambda _home: None,
        "nowhere",
        "cannot write to TMPDIR",
        "mkdir -p",
        fix=apply_hint,
        level="warning",
        env={"TMPDIR": "{home}/nowhere"},
    ),
    Case(
        "a missing project",
        write_settings("projects:\n  docs: ~/docs\n"),
        CONFIG,
        "docs, which does not exist",
        "mkdir -p",
        2,
        apply_hint,
    ),
    Case(
        "a missing tools directory",
        write_settings("tools_dir:\n  - more\n"),
        CONFIG,
        "more, which does not exist",
        "mkdir -p",
        2,
        apply_hint,
    ),
    Case(
        "a machine without uv, and a pack that needs it",
        combine(WITHOUT_UV, write_extension(f"{HEADER}{ECHO}")),
        MINE,
        "uv is not installed",
        "-m pip install uv",
        fix=delete_file("shadow/uv/__init__.py"),
        env={"PYTHONPATH": "{home}/shadow"},
    ),
    Case(
        "a machine without uv that does not need it",
        WITHOUT_UV,
        "",
        "uv is not installed",
        "-m pip install uv",
        level="warning",
        env={"PYTHONPATH": "{home}/shadow"},
    ),
    Case(
        "an assistant that starts a missing program",
        configure_cursor({"command": "/gone/onetool", "args": []}),
        ".cursor/mcp.json",
        "Cursor starts /gone/onetool, which does not exist",
        "onetool connect cursor --write",
        fix=apply_hint,
    ),
    Case(
        "an assistant with a missing working directory",
        configure_cursor({"command": PROGRAM, "args": [], "env": {"OT_CWD": "/gone"}}),
        ".cursor/mcp.json",
        "in /gone, which is not a directory",
        "onetool connect cursor --write --folder",
        fix=apply_hint,
    ),
    Case(
        "an assistant whose configuration cannot be read",
        write_content(".cursor/mcp.json", '{\n"mcpServers": nothing}'),
        ".cursor/mcp.json",
        "Cursor",
        "fix line 2",
        2,
        level="warning",
    ),
    Case(
        "disabled isolation",
        write_settings("execution: {isolation: off}\n"),
        "",
        "isolation is disabled",
        "set execution.isolation to auto",
        fix=replace_text(CONFIG, "off", "auto"),
        level="warning",
    ),
    Case(
        "a variable that looks like a setting",
        lambda _home: None,
        "",
        "environment variable ONETOOL_EXECUTON",
        "execution",
        level="warning",
        env={"ONETOOL_EXECUTON": "x"},
    ),
]


@pytest.mark.sampled(3)
@pytest.mark.parametrize("case", CASES if NIGHTLY else CASES[::2], ids=lambda case: case.name)
def test_a_problem_is_reported_once_and_gone_when_fixed(tmp_path: Path, case: Case) -> None:
    case.make(tmp_path)
    findings = list_problems((doctor if NIGHTLY else examine)(tmp_path, case.directory, case.env))
    assert len(findings) == 1, findings
    (found,) = findings
    assert found["level"] == case.level
    assert case.message.replace("{home}", str(tmp_path)) in found["message"]
    assert case.hint.replace("{home}", str(tmp_path)) in found["hint"]
    assert str(tmp_path / case.file) in found["message"] or not case.file
    assert case.line is None or found["location"]["line"] == case.line
    assert case.line is None or found["location"]["file"] == str(tmp_path / case.file)
    if case.level == "problem" and not case.env:
        (reported,) = health(tmp_path, case.directory)
        assert case.message.replace("{home}", str(tmp_path)) in reported["message"]
        assert {
            **reported,
            "message": found["message"],
        } == found  # the message of uv depends on its command
    if case.fix is not None:
        case.fix(tmp_path, found["hint"])
        assert list_problems(examine(tmp_path, case.directory, case.env)) == []


# --- directories that cannot be written -----------------------------------------------------------


@pytest.fixture
def open_home() -> Iterator[Path]:
    """Return a home directory that an ordinary user can access: the directories of tests belong to
    root.
    """
    with tempfile.TemporaryDirectory() as directory:
        Path(directory).chmod(0o755)
        home = Path(directory) / "home"
        configure(home, "log_level: DEBUG\n")
        (home / "tmp").mkdir()
        yield home
        subprocess.run(["chmod", "-R", "u+rwX", directory], check=False)


def test_an_unwritable_directory_is_reported_once(open_home: Path) -> None:
    for name in ("logs", "stats", "tmp"):
        (open_home / ".onetool" / name).mkdir()
    if IS_ROOT:
        subprocess.run(["chown", "-R", str(ORDINARY_USER), open_home], check=True)
    subprocess.run(["chmod", "-R", "a-w", open_home / ".onetool"], check=True)
    start = as_ordinary_user([]) if IS_ROOT else []
    (found,) = list_problems(doctor(open_home, start=start))
    assert found["message"].startswith(f"cannot write to {open_home / '.onetool'}")
    assert found["hint"] == f"chmod -R u+rwX {open_home / '.onetool'}"
    run_hint(open_home, found["hint"])
    assert list_problems(doctor(open_home, start=start)) == []


def test_a_full_disk_is_reported(tmp_path: Path) -> None:
    directory = tmp_path / ".onetool"
    directory.mkdir()
    mount = f"mount -t tmpfs -o size=64k tmpfs {shlex.quote(str(directory))}"
    if (
        not IS_ROOT
        or subprocess.run(["unshare", "-m", "/bin/sh", "-c", mount], check=False).returncode
    ):
        pytest.skip("mounting a small disk requires root")
    start = ["unshare", "-m", "/bin/sh", "-c", f'{mount} && exec "$@"', "sh"]
    (found,) = list_problems(doctor(tmp_path, start=start))
    assert f"{directory}: the disk is almost full" in found["message"]
    assert "df -h" in found["hint"]


# --- all together ---------------------------------------------------------------------------------


def test_a_healthy_installation_has_no_problems(tmp_path: Path) -> None:
    run_hint(tmp_path, "onetool init")
    configure(
        tmp_path,
        yaml.safe_dump(
            {
                "version": 1,
                "servers": {"echo": hostile_server("echo")},
                "aliases": {"e": "echo.echo"},
            }
        ),
    )
    write_secrets(tmp_path / ".onetool", "KEY: value\n")
    create_bundle(tmp_path)
    run_hint(
        tmp_path, "onetool run 1 && onetool connect cursor --write && onetool connect codex --write"
    )
    findings = doctor(tmp_path)
    assert list_problems(findings) == []
    messages = "\n".join(each["message"] for each in findings)
    assert "server echo responds: 1 tool" in messages
    assert "extension pack hello starts" in messages
    assert f"Cursor is connected ({tmp_path / '.cursor' / 'mcp.json'})" in messages
    assert "Codex is connected" in messages
    assert "test run succeeded" in messages


@pytest.mark.nightly
def test_many_problems_are_each_reported_once(tmp_path: Path) -> None:
    configure(
        tmp_path,
        yaml.safe_dump(
            {
                "executon": {},
                "output": {"preview_lines": "many"},
                "aliases": {"d": "machine.dsk"},
                "snippets": {"s": {"body": "{{ x"}},
                "projects": {"docs": "~/docs"},
                "servers": {
                    "gone": {"command": "a-program-that-nobody-has"},
                    "ill": {"command": sys.executable, "args": ["-c", DIES]},
                    "unknown": {"comand": "x"},
                    "needy": {"command": sys.executable, "env": {"A": "${NOBODY_SET_THIS}"}},
                    "fine": hostile_server("echo"),
                },
                "auth": {"tokens": [{"name": "a", "hash": "b", "agent": "pilto"}]},
            }
        ),
    )
    damage_bundle(tmp_path)
    write_content(".onetool/agents/pilot.yaml", "permissions: [fly]\n")(tmp_path)
    write_content(".onetool/stats/stats.db", b"no database at all" * 1000)(tmp_path)
    write_content(".onetool/state/documents.db", "{")(tmp_path)
    write_extension("def echo(:\n")(tmp_path)
    write_extension(f"1 / 0\n{ECHO}", "late")(tmp_path)
    configure_cursor({"command": "/gone/onetool"})(tmp_path)
    findings = doctor(tmp_path)
    messages = [each["message"] for each in list_problems(findings)]
    for expected in (
        "executon is an unknown key",
        "output.preview_lines must be",
        "machine.dsk",
        "the body of $s",
        "docs, which does not exist",
        "a-program-that-nobody-has",
        "these are my last words",
        "servers.unknown.comand is an unknown key",
        "refers to NOBODY_SET_THIS",
        "must be an agent (pilot, default)",
        "is not valid JSON",
        "must be a list of permissions (read, write, exec, network)",
        "stats.db is damaged",
        "documents.db",
        "invalid syntax",
        "ZeroDivisionError",
        "/gone/onetool",
    ):
        assert len([message for message in messages if expected in message]) == 1, (
            expected,
            messages,
        )
    assert len(messages) == 17, messages
    problems = [each["message"] for each in health(tmp_path)]
    # Invalid settings prevent starts, and unreadable switches prevent calls.
    unused = ("these are my last words", "ZeroDivisionError")
    assert problems == [
        message for message in messages if not any(text in message for text in unused)
    ]
    assert "server fine responds: 1 tool" in [each["message"] for each in findings]
    assert "test run succeeded" not in [each["message"] for each in findings]


def test_secrets_are_redacted_in_findings(tmp_path: Path) -> None:
    """Redact secrets from secrets.yaml, the environment and the settings, whichever program prints
    them.
    """
    code = "import os, sys; sys.exit(os.environ['API_KEY'])"
    entry = {"command": sys.executable, "args": ["-c", code]}
    entries = {
        "kept": {**entry, "env": {"API_KEY": "${KEPT}"}},
        "around": {**entry, "env": {"API_KEY": "${AROUND_TOKEN}"}},
        "inside": {**entry, "env": {"API_KEY": f"{CANARY}-3"}},
        "given": {**entry, "args": ["-c", f"import sys; sys.exit('{CANARY}-4')", f"{CANARY}-4"]},
    }
    configure(tmp_path, yaml.safe_dump({"servers": entries}))
    write_secrets(tmp_path / ".onetool", f"KEPT: {CANARY}-1\n")
    findings = list_problems(doctor(tmp_path, env={"AROUND_TOKEN": f"{CANARY}-2"}))
    assert len(findings) == 4
    assert all("[REDACTED]" in each["message"] for each in findings[:3])
    assert "canary" not in json.dumps(findings)


def test_a_terminal_shows_which_server_is_awaited(tmp_path: Path) -> None:
    write_servers(tardy=hostile_server("slow"))(tmp_path)
    ours, theirs = pty.openpty()
    env = {**environment(tmp_path), "TERM": "xterm"}
    done = subprocess.run(
        [PROGRAM, "doctor"],
        cwd=tmp_path,
        env=env,
        stderr=theirs,
        stdout=subprocess.PIPE,
        encoding="utf-8",
        check=False,
    )
    os.close(theirs)
    shown = os.read(ours, 1 << 16).decode()
    os.close(ours)
    assert done.returncode == 0, done.stdout
    assert "waiting for tardy" in shown
    assert "waiting" not in done.stdout


@pytest.mark.nightly
def test_the_doctor_changes_no_stored_files(tmp_path: Path) -> None:
    run_hint(tmp_path, "onetool init && onetool run 1")
    write_content(".onetool/stats/stats.db", b"no database at all" * 1000)(tmp_path)
    write_content(".onetool/state/documents.db", "{")(tmp_path)
    before = read_stored_files(tmp_path)
    assert len(list_problems(doctor(tmp_path))) == 2
    assert read_stored_files(tmp_path) == before


def read_stored_files(home: Path) -> dict[str, bytes]:
    """Return the stored files, without logs and caches."""
    root = home / ".onetool"
    caches = {"logs", "cache", "environments"}
    files = (
        file
        for file in root.rglob("*")
        if file.is_file() and file.relative_to(root).parts[0] not in caches
    )
    return {str(file.relative_to(root)): file.read_bytes() for file in files}


def test_a_missing_configuration_is_reported_and_not_created(tmp_path: Path) -> None:
    done = run_cli(tmp_path, "doctor", "--config", str(tmp_path / "gone" / "onetool.yaml"))
    assert done.returncode == 1
    assert f"{tmp_path / 'gone' / 'onetool.yaml'}: file not found" in done.stdout
    assert "check --config" in done.stdout
    assert not (tmp_path / "gone").exists()


@pytest.mark.nightly
def test_name_conflicts_are_reported_even_with_invalid_settings(tmp_path: Path) -> None:
    entries = {
        "fs": hostile_server("echo"),
        "mine": hostile_server("echo"),
        "a-b": hostile_server("echo"),
        "a_b": hostile_server("echo"),
    }
    configure(tmp_path, yaml.safe_dump({"executon": {}, "servers": entries}, sort_keys=False))
    write_extension(ECHO)(tmp_path)
    found = list_problems(examine(tmp_path))
    assert len(found) == 4
    assert health(tmp_path) == found


def test_listing_tools_reports_a_server_with_a_missing_program(tmp_path: Path) -> None:
    write_servers(gone={"command": "a-program-that-nobody-has"})(tmp_path)
    listed = run_cli(tmp_path, "tools", "machine.now")
    assert "program 'a-program-that-nobody-has' not found" in listed.stderr
