"""Broken installations, each made for real: `onetool doctor` names the file and the line and says what to type.

Where the advice can be followed by a machine the test follows it, and the finding is gone.
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
from contextlib import suppress
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

from onetool.app import OneTool, examine_settings, read_settings
from onetool.bundles.bundle_store import BundleStore
from onetool.errors import ToolError
from onetool.stats.record import VERSION as STATISTICS_VERSION

pytestmark = pytest.mark.slow
ECHO = "def echo(text: str) -> str:\n    return text\n"
CANARY = "sk-canary-canary-canary-canary"
Findings = list[dict[str, Any]]
Work = Callable[[Path], object]


@dataclass(frozen=True)
class Case:
    """`file` is what the finding names, from the home folder, and `line` where in it; `fix` does what is advised."""

    name: str
    make: Work
    file: str
    says: str
    advises: str
    line: int | None = None
    fix: "Callable[[Path, str], object] | None" = None
    level: str = "problem"
    folder: str = "."
    env: Mapping[str, str] = field(default_factory=dict)


Ended = subprocess.CompletedProcess[str]


def doctor(home: Path, folder: str = ".", env: Mapping[str, str] | None = None, start: Sequence[str] = ()) -> Findings:
    """What it finds, and that the text for people says the same. At night for every folder, else for these."""
    found = examined(home, folder, env, start)
    shown = typed(home, folder, env, start)
    assert "Traceback" not in shown.stdout
    assert shown.stdout.count("FAIL") == sum(each["level"] == "problem" for each in found)
    return found


def examined(
    home: Path, folder: str = ".", env: Mapping[str, str] | None = None, start: Sequence[str] = ()
) -> Findings:
    data = typed(home, folder, env, start, "--json")
    found: Findings = json.loads(data.stdout)["findings"]
    assert data.returncode == int(any(each["level"] == "problem" for each in found))
    return found


def typed(home: Path, folder: str, env: Mapping[str, str] | None, start: Sequence[str], *arguments: str) -> Ended:
    variables = {**environment(home), **{name: value.format(home=home) for name, value in (env or {}).items()}}
    command = [*start, PROGRAM, "doctor", *arguments]
    where = home / folder
    done = subprocess.run(
        command, cwd=where, env=variables, stdin=subprocess.DEVNULL, capture_output=True, timeout=120, check=False,
        encoding="utf-8",
    )  # fmt: skip
    assert done.stderr == ""
    return done


def wrong(findings: Findings) -> Findings:
    return [each for each in findings if each["level"] != "ok"]


def health(home: Path, folder: str = ".", env: Mapping[str, str] | None = None) -> Findings:
    """The problems that `ot.health()` of a running OneTool reports, after everything in it was used once."""
    variables = {**environment(home), **{name: value.format(home=home) for name, value in (env or {}).items()}}
    place = (variables, home / folder, None, home)

    async def problems() -> Findings:
        app = OneTool(
            read=lambda: read_settings(*place), examine=lambda: examine_settings(*place), environment=variables
        )
        async with app:
            for name in app.servers.names:
                with suppress(ToolError):
                    await app.servers.upstream(name).connection()
            await app.discover()
            for pack in app.extensions.states:
                await app.bus.call_tool(f"{pack}.echo", {"text": "x"}, app.context())
            found = await app.health()
            findings: Findings = found["findings"]
            said = zip(findings, found["problems"], strict=True)
            assert all(text.startswith(each["message"]) and text.endswith(each["hint"]) for each, text in said)
            return findings

    return anyio.run(problems)


def follow(home: Path, advice: str, folder: str = ".") -> None:
    """Type what is to be typed."""
    quoted, made = re.search(r"`([^`]+)`", advice), re.search(r"mkdir -p \S+", advice)
    command = quoted[1] if quoted else made[0] if made else advice
    env = environment(home)
    env["PATH"] = f"{Path(PROGRAM).parent}{os.pathsep}{env.get('PATH', os.defpath)}"
    done = subprocess.run(
        ["/bin/sh", "-c", command], cwd=home / folder, env=env, input=b"yes\n", capture_output=True, check=False
    )
    assert done.returncode == 0, (command, done.stderr)


# --- how things are broken and fixed --------------------------------------------------------------------------------


def settings(text: str) -> Work:
    return lambda home: configure(home, text)


def servers(**entries: Mapping[str, Any]) -> Work:
    return lambda home: configure(home, yaml.safe_dump({"servers": entries}))


def written(path: str, content: str | bytes) -> Work:
    def write(home: Path) -> None:
        file = home / path
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_bytes(content if isinstance(content, bytes) else content.encode())

    return write


def both(*works: Work) -> Work:
    return lambda home: [work(home) for work in works]


def replaced(path: str, old: str, new: str) -> Callable[[Path, str], object]:
    return lambda home, _: edit(home / path, old, new)


def edit(file: Path, old: str, new: str) -> None:
    text = file.read_text(encoding="utf-8")
    assert old in text
    file.write_text(text.replace(old, new), encoding="utf-8")


def as_advised(home: Path, advice: str) -> None:
    follow(home, advice)


def pack(text: str, name: str = "mine", folder: str = "") -> Work:
    return lambda home: write_pack(home / ".onetool" / "tools", folder or name, text, name)


def removed(path: str) -> Callable[[Path, str], object]:
    return lambda home, _: (home / path).unlink()


def project(text: str = "log_level: DEBUG\n") -> Work:
    return lambda home: configure(home / "project", text)


def changed_project(home: Path) -> None:
    project()(home)
    follow(home, "onetool trust", "project")
    project("servers: {git: {command: git, enabled: false}}\n")(home)


def changed_server(home: Path) -> None:
    notes = home / "notes"
    notes.mkdir()
    configure(home, yaml.safe_dump({"servers": {"odd": hostile_server("changes", notes, pin="strict")}}))
    assert run_cli(home, "servers", "accept", "odd").returncode == 0
    (notes / "changed").touch()


def refused_server(home: Path) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        port = taken.getsockname()[1]
    configure(home, f"servers:\n  far: {{url: 'http://127.0.0.1:{port}/mcp'}}\n")


def bundle_file(home: Path) -> Path:
    store = BundleStore(home / ".onetool" / "bundles")
    ident = store.new_id()
    store.put_bundle(ident, {"slug": "pets", "displayName": "Pets", "isEnabled": True})
    store.close()
    (file,) = (home / ".onetool" / "bundles").glob("*/bundle.json")
    return file.rename(file.parent.rename(file.parent.with_name(f"pets-{ident}")) / file.name)


def damaged_bundle(home: Path) -> None:
    bundle_file(home).write_text('{"schemaVersion": 1, "id":', encoding="utf-8")


def newer_bundle(home: Path) -> None:
    edit(bundle_file(home), '"schemaVersion": 1', '"schemaVersion": 2')


def database(path: str, version: int) -> Work:
    def make(home: Path) -> None:
        written(path, b"")(home)
        with sqlite3.connect(home / path) as opened:
            opened.execute(f"pragma user_version = {version}")

    return make


def cursor(entry: Mapping[str, Any]) -> Work:
    return written(".cursor/mcp.json", json.dumps({"mcpServers": {"onetool": entry}}))


WITHOUT_UV = written("shadow/uv/__init__.py", "def find_uv_bin() -> str:\n    raise FileNotFoundError('uv')\n")
CONFIG, TOOLS, MINE = ".onetool/onetool.yaml", ".onetool/tools", ".onetool/tools/mine/mine_tools.py"
IMPOSSIBLE = HEADER.replace("six", "onetool-there-is-no-such-package")
DIES = "import sys; print('these are my last words', file=sys.stderr); sys.exit(3)"

CASES = [
    Case(
        "YAML that is none",
        settings("log_level: INFO\nexecution: {timeout: 5\n"),
        CONFIG,
        "is not valid YAML",
        "fix line",
        3,
        replaced(CONFIG, "5", "5}"),
    ),
    Case(
        "an unknown key",
        settings("executon: {}\n"),
        CONFIG,
        "unknown key",
        "did you mean execution?",
        1,
        replaced(CONFIG, "executon", "execution"),
    ),
    Case(
        "a value of the wrong kind",
        settings("output:\n  preview_lines: many\n"),
        CONFIG,
        "must be an integer",
        "fix line 2",
        2,
        replaced(CONFIG, "many", "5"),
    ),
    Case(
        "settings of a newer version",
        settings("# mine\nversion: 2\nthings: {}\n"),
        CONFIG,
        "was written by a newer OneTool (version 2; this one supports 1)",
        "upgrade OneTool",
        2,
        replaced(CONFIG, "version: 2\nthings: {}", "version: 1"),
    ),
    Case(
        "a variable that is not set",
        settings("docs_url: ${DOCS_ADDRESS}\n"),
        CONFIG,
        "docs_url refers to DOCS_ADDRESS, which is not set",
        "set it in secrets.yaml",
        1,
        lambda home, _: write_secrets(home / ".onetool", "DOCS_ADDRESS: https://example.org/\n"),
    ),
    Case(
        "secrets that others can read",
        written(".onetool/secrets.yaml", f"KEY: {CANARY}\n"),
        ".onetool/secrets.yaml",
        "other users can read this file",
        "chmod 600",
        None,
        as_advised,
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
        "a project that nobody trusts",
        project(),
        "project/.onetool",
        "is not trusted and is ignored",
        "onetool trust",
        fix=lambda home, advice: follow(home, advice, "project"),
        folder="project",
    ),
    Case(
        "a project that has changed",
        changed_project,
        "project/.onetool",
        "changed since it was trusted",
        "onetool trust",
        fix=lambda home, advice: follow(home, advice, "project"),
        folder="project",
    ),
    Case(
        "an extension that is no Python",
        pack("import os\ndef echo(:\n"),
        MINE,
        "invalid syntax",
        "fix line 2",
        2,
        replaced(MINE, "def echo(:\n", ECHO),
    ),
    Case(
        "an extension whose dependency does not exist",
        pack(f"{IMPOSSIBLE}{ECHO}"),
        MINE,
        "uv could not create the environment",
        "fix the dependencies in the header",
        fix=lambda home, _: pack(f"{HEADER}{ECHO}")(home),
    ),
    Case(
        "an extension that fails at import",
        pack(f"import os\n1 / 0\n{ECHO}"),
        MINE,
        "ZeroDivisionError",
        "fix line 2",
        2,
        replaced(MINE, "1 / 0\n", ""),
    ),
    Case(
        "an extension that does not name what it imports",
        pack(f"import a_package_that_nobody_has\n{ECHO}"),
        MINE,
        "No module named 'a_package_that_nobody_has'",
        '# dependencies = ["a_package_that_nobody_has"]',
        1,
        replaced(MINE, "import a_package_that_nobody_has\n", ""),
    ),
    Case(
        "two extensions with one name",
        both(pack(ECHO, folder="one"), pack(ECHO, folder="two")),
        f"{TOOLS}/two/mine_tools.py",
        "duplicate extension pack mine",
        "delete or rename one of them",
        fix=removed(f"{TOOLS}/two/mine_tools.py"),
    ),
    Case(
        "an extension with the name of a pack that ships",
        pack(ECHO, "fs"),
        f"{TOOLS}/fs/fs_tools.py",
        "pack name 'fs' conflicts with a built-in pack",
        'add `pack = "another_name"`',
        fix=lambda home, _: pack(f'pack = "another_name"\n{ECHO}', "fs")(home),
    ),
    Case(
        "an alias that leads nowhere",
        settings("aliases:\n  disk: machine.dsk\n"),
        CONFIG,
        "unknown tool 'machine.dsk'",
        "write machine.disk instead of machine.dsk",
        2,
        replaced(CONFIG, "machine.dsk", "machine.disk"),
    ),
    Case(
        "an alias with the name of a builtin",
        settings("aliases:\n  print: machine.disk\n"),
        CONFIG,
        "alias print has a name reserved",
        "rename the alias",
        2,
        replaced(CONFIG, "print", "show"),
    ),
    Case(
        "an alias with the name of a pack",
        settings("aliases:\n  fs: machine.disk\n"),
        CONFIG,
        "alias fs has the name of a pack",
        "rename the alias",
        2,
        replaced(CONFIG, "fs", "show"),
    ),
    Case(
        "an extension with the name of a builtin",
        pack(ECHO, "map"),
        "",
        "pack map has a name reserved",
        'ot.pack("map")',
        fix=lambda home, _: pack(f'pack = "another_name"\n{ECHO}', "map")(home),
        level="warning",
    ),
    Case(
        "a snippet that is no template",
        settings("snippets:\n  greet:\n    body: '{{ name'\n    params: {name: {}}\n"),
        CONFIG,
        "cannot render the body of $greet",
        "correct the body of the snippet greet",
        3,
        replaced(CONFIG, "{{ name", "{{ name }}"),
    ),
    Case(
        "a server whose program is not there",
        settings("servers:\n  gone: {command: a-program-that-nobody-has}\n"),
        CONFIG,
        "program 'a-program-that-nobody-has' not found",
        "install a-program-that-nobody-has",
        2,
        lambda home, _: servers(gone=hostile_server("echo"))(home),
    ),
    Case(
        "a server that dies at once",
        servers(ill={"command": sys.executable, "args": ["-c", DIES]}),
        CONFIG,
        "these are my last words",
        shlex.quote(DIES),
        2,
        lambda home, _: servers(ill=hostile_server("echo"))(home),
    ),
    Case("a server that nobody answers for", refused_server, CONFIG, "cannot connect to far", "url", 2),
    Case(
        "a server that never answers",
        servers(mute=hostile_server("hangs", timeout=2)),
        CONFIG,
        "mute did not respond within 2 s",
        "set servers.mute.enabled to false",
        2,
        replaced(CONFIG, "timeout: 2", "enabled: false"),
    ),
    Case(
        "a server whose tools have changed",
        changed_server,
        "",
        "changed definition of odd.echo",
        "onetool servers accept odd",
        fix=lambda home, _: follow(home, "onetool servers accept odd"),
    ),
    Case(
        "a server with the name of a pack",
        servers(fs=hostile_server("echo")),
        CONFIG,
        "has the name of another pack",
        "rename the server",
        2,
        replaced(CONFIG, "  fs:", "  other:"),
    ),
    Case(
        "two servers with one name in code",
        servers(**{"a-b": hostile_server("echo"), "a_b": hostile_server("echo")}),
        CONFIG,
        "server a_b has the name of another pack (server a-b)",
        "rename the server",
        9,
        replaced(CONFIG, "  a_b:", "  other:"),
    ),
    Case(
        "a server with the name of an extension",
        both(servers(mine=hostile_server("echo")), pack(ECHO)),
        CONFIG,
        "has the name of another pack ({home}/.onetool/tools/mine/mine_tools.py)",
        "rename the server",
        2,
        replaced(CONFIG, "  mine:", "  other:"),
    ),
    Case(
        "an agent with a permission that is none",
        written(".onetool/agents/pilot.yaml", "sandbox: {}\npermissions: [read, fly]\n"),
        ".onetool/agents/pilot.yaml",
        "must be a list of permissions (read, write, exec, network)",
        "fix line 2",
        2,
        replaced(".onetool/agents/pilot.yaml", ", fly", ""),
    ),
    Case(
        "an agent whose folder is not there",
        written(".onetool/agents/pilot.yaml", "sandbox:\n  allowed_paths: [~/planes]\n"),
        ".onetool/agents/pilot.yaml",
        "planes, which does not exist",
        "mkdir -p",
        2,
        as_advised,
    ),
    Case(
        "a token of an agent that is none",
        settings("auth:\n  tokens:\n    - {name: a, hash: b, agent: pilto}\nagents: {pilot: {}}\n"),
        CONFIG,
        "must be an agent (pilot, default)",
        "fix line 3",
        3,
        replaced(CONFIG, "pilto", "pilot"),
    ),
    Case(
        "a token whose variable is not set",
        settings("auth:\n  tokens:\n    - {name: laptop, token_env: LAPTOP_TOKEN}\n"),
        CONFIG,
        "token laptop is disabled: environment variable LAPTOP_TOKEN is not set",
        "export LAPTOP_TOKEN=",
        3,
        level="warning",
    ),
    Case("a damaged bundle", damaged_bundle, ".onetool/bundles/pets-", "is not valid JSON", "mv ", fix=as_advised),
    Case(
        "a bundle of a newer version", newer_bundle, ".onetool/bundles/pets-", "written by a newer OneTool", "upgrade"
    ),
    Case(
        "damaged statistics",
        written(".onetool/stats/stats.db", b"no database at all" * 1000),
        ".onetool/stats/stats.db",
        "is damaged",
        "onetool run 1",
        fix=as_advised,
    ),
    Case(
        "statistics of a newer version",
        database(".onetool/stats/stats.db", 9),
        ".onetool/stats/stats.db",
        f"was written by a newer OneTool (version 9; this one supports {STATISTICS_VERSION})",
        "upgrade OneTool",
    ),
    *(
        Case(
            f"damaged {name}",
            written(f".onetool/{name}", "{"),
            f".onetool/{name}",
            "is damaged",
            "rm ",
            fix=as_advised,
        )
        for name in ("stats/shapes.json", "switches.json", "pins.json", "trust.json")
    ),
    Case(
        "a file in the place of the folder for results",
        written(".onetool/tmp", "x"),
        ".onetool/tmp",
        "is not a directory",
        "mv ",
        fix=as_advised,
    ),
    *(
        Case(
            f"a file in the place of {name}",
            written(name, "x"),
            name,
            "is not a directory",
            f"mv {{home}}/{name} {{home}}/{name}.old",
            fix=as_advised,
        )
        for name in (".onetool", ".onetool/bundles", ".onetool/logs")
    ),
    Case(
        "a folder for scratch that is not there",
        lambda _home: None,
        "nowhere",
        "cannot write to TMPDIR",
        "mkdir -p",
        fix=as_advised,
        level="warning",
        env={"TMPDIR": "{home}/nowhere"},
    ),
    Case(
        "a project that is not there",
        settings("projects:\n  docs: ~/docs\n"),
        CONFIG,
        "docs, which does not exist",
        "mkdir -p",
        2,
        as_advised,
    ),
    Case(
        "a folder of tools that is not there",
        settings("tools_dir:\n  - more\n"),
        CONFIG,
        "more, which does not exist",
        "mkdir -p",
        2,
        as_advised,
    ),
    Case(
        "a machine without uv, and a pack that needs it",
        both(WITHOUT_UV, pack(f"{HEADER}{ECHO}")),
        MINE,
        "uv is not installed",
        "-m pip install uv",
        fix=removed("shadow/uv/__init__.py"),
        env={"PYTHONPATH": "{home}/shadow"},
    ),
    Case(
        "a machine without uv that needs none",
        WITHOUT_UV,
        "",
        "uv is not installed",
        "-m pip install uv",
        level="warning",
        env={"PYTHONPATH": "{home}/shadow"},
    ),
    Case(
        "an assistant that starts what is not there",
        cursor({"command": "/gone/onetool", "args": []}),
        ".cursor/mcp.json",
        "Cursor starts /gone/onetool, which does not exist",
        "onetool connect cursor --write",
        fix=as_advised,
    ),
    Case(
        "an assistant that starts it in a folder that is not there",
        cursor({"command": PROGRAM, "args": [], "env": {"OT_CWD": "/gone"}}),
        ".cursor/mcp.json",
        "in /gone, which is not a directory",
        "onetool connect cursor --write --folder",
        fix=as_advised,
    ),
    Case(
        "an assistant whose configuration cannot be read",
        written(".cursor/mcp.json", '{\n"mcpServers": nothing}'),
        ".cursor/mcp.json",
        "Cursor",
        "fix line 2",
        2,
        level="warning",
    ),
    Case(
        "isolation that is switched off",
        settings("execution: {isolation: off}\n"),
        "",
        "isolation is disabled",
        "set execution.isolation to auto",
        fix=replaced(CONFIG, "off", "auto"),
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


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_what_is_broken_is_found_once_and_gone_when_it_is_fixed(tmp_path: Path, case: Case) -> None:
    case.make(tmp_path)
    findings = wrong((doctor if NIGHTLY else examined)(tmp_path, case.folder, case.env))
    assert len(findings) == 1, findings
    (found,) = findings
    assert found["level"] == case.level
    assert case.says.replace("{home}", str(tmp_path)) in found["message"]
    assert case.advises.replace("{home}", str(tmp_path)) in found["hint"]
    assert str(tmp_path / case.file) in found["message"] or not case.file
    assert case.line is None or found["location"]["line"] == case.line
    assert case.line is None or found["location"]["file"] == str(tmp_path / case.file)
    if case.level == "problem" and not case.env:
        (reported,) = health(tmp_path, case.folder)
        assert case.says.replace("{home}", str(tmp_path)) in reported["message"]
        assert {**reported, "message": found["message"]} == found  # uv has its own words for each of its commands
    if case.fix is not None:
        case.fix(tmp_path, found["hint"])
        assert wrong(examined(tmp_path, case.folder, case.env)) == []


# --- directories that cannot be written ----------------------------------------------------------------------------


@pytest.fixture
def open_home() -> Iterator[Path]:
    """A home that an ordinary user reaches: the directories of the tests are root's alone."""
    with tempfile.TemporaryDirectory() as folder:
        Path(folder).chmod(0o755)
        home = Path(folder) / "home"
        configure(home, "log_level: DEBUG\n")
        (home / "tmp").mkdir()
        yield home
        subprocess.run(["chmod", "-R", "u+rwX", folder], check=False)


def test_a_folder_that_may_not_be_written_is_named_once_however_much_is_in_it(open_home: Path) -> None:
    for name in ("logs", "stats", "tmp"):
        (open_home / ".onetool" / name).mkdir()
    if IS_ROOT:
        subprocess.run(["chown", "-R", str(ORDINARY_USER), open_home], check=True)
    subprocess.run(["chmod", "-R", "a-w", open_home / ".onetool"], check=True)
    start = as_ordinary_user([]) if IS_ROOT else []
    (found,) = wrong(doctor(open_home, start=start))
    assert found["message"].startswith(f"cannot write to {open_home / '.onetool'}")
    assert found["hint"] == f"chmod -R u+rwX {open_home / '.onetool'}"
    follow(open_home, found["hint"])
    assert wrong(doctor(open_home, start=start)) == []


def test_a_full_disk_is_told(tmp_path: Path) -> None:
    folder = tmp_path / ".onetool"
    folder.mkdir()
    mount = f"mount -t tmpfs -o size=64k tmpfs {shlex.quote(str(folder))}"
    if not IS_ROOT or subprocess.run(["unshare", "-m", "/bin/sh", "-c", mount], check=False).returncode:
        pytest.skip("only who may mount can make a small disk")
    start = ["unshare", "-m", "/bin/sh", "-c", f'{mount} && exec "$@"', "sh"]
    (found,) = wrong(doctor(tmp_path, start=start))
    assert f"{folder}: the disk is almost full" in found["message"]
    assert "df -h" in found["hint"]


# --- all together --------------------------------------------------------------------------------------------------


def test_a_healthy_folder_is_only_fine(tmp_path: Path) -> None:
    follow(tmp_path, "onetool init")
    configure(
        tmp_path,
        yaml.safe_dump({"version": 1, "servers": {"echo": hostile_server("echo")}, "aliases": {"e": "echo.echo"}}),
    )
    write_secrets(tmp_path / ".onetool", "KEY: value\n")
    bundle_file(tmp_path)
    follow(tmp_path, "onetool run 1 && onetool connect cursor --write && onetool connect codex --write")
    findings = doctor(tmp_path)
    assert wrong(findings) == []
    told = "\n".join(each["message"] for each in findings)
    assert "server echo responds: 1 tool" in told
    assert "extension pack hello starts" in told
    assert f"Cursor is connected ({tmp_path / '.cursor' / 'mcp.json'})" in told
    assert "Codex is connected" in told
    assert "test run succeeded" in told


def test_many_broken_things_are_all_found_each_once(tmp_path: Path) -> None:
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
    damaged_bundle(tmp_path)
    written(".onetool/agents/pilot.yaml", "permissions: [fly]\n")(tmp_path)
    written(".onetool/stats/stats.db", b"no database at all" * 1000)(tmp_path)
    written(".onetool/switches.json", "{")(tmp_path)
    pack("def echo(:\n")(tmp_path)
    pack(f"1 / 0\n{ECHO}", "late")(tmp_path)
    cursor({"command": "/gone/onetool"})(tmp_path)
    findings = doctor(tmp_path)
    said = [each["message"] for each in wrong(findings)]
    for words in (
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
        "switches.json: it is damaged",
        "invalid syntax",
        "ZeroDivisionError",
        "/gone/onetool",
    ):
        assert len([what for what in said if words in what]) == 1, (words, said)
    assert len(said) == 17, said
    problems = [each["message"] for each in health(tmp_path)]
    # Nothing is started while the settings are wrong, and nothing is called while the switches cannot be read.
    unused = ("these are my last words", "ZeroDivisionError")
    assert problems == [what for what in said if not any(words in what for words in unused)]
    assert "server fine responds: 1 tool" in [each["message"] for each in findings]
    assert "test run succeeded" not in [each["message"] for each in findings]


def test_no_secret_is_shown(tmp_path: Path) -> None:
    """Neither of secrets.yaml, nor of the environment, nor of the file itself, whoever repeats it."""
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
    findings = wrong(doctor(tmp_path, env={"AROUND_TOKEN": f"{CANARY}-2"}))
    assert len(findings) == 4
    assert all("[REDACTED]" in each["message"] for each in findings[:3])
    assert "canary" not in json.dumps(findings)


def test_a_terminal_shows_what_is_waited_for(tmp_path: Path) -> None:
    servers(tardy=hostile_server("slow"))(tmp_path)
    ours, theirs = pty.openpty()
    env = {**environment(tmp_path), "TERM": "xterm"}
    done = subprocess.run(
        [PROGRAM, "doctor"], cwd=tmp_path, env=env, stderr=theirs, stdout=subprocess.PIPE, encoding="utf-8", check=False
    )
    os.close(theirs)
    shown = os.read(ours, 1 << 16).decode()
    os.close(ours)
    assert done.returncode == 0, done.stdout
    assert "waiting for tardy" in shown
    assert "waiting" not in done.stdout


def test_the_doctor_changes_nothing_that_is_kept(tmp_path: Path) -> None:
    follow(tmp_path, "onetool init && onetool run 1")
    written(".onetool/stats/stats.db", b"no database at all" * 1000)(tmp_path)
    written(".onetool/switches.json", "{")(tmp_path)
    before = kept(tmp_path)
    assert len(wrong(doctor(tmp_path))) == 2
    assert kept(tmp_path) == before


def kept(home: Path) -> dict[str, bytes]:
    """What the product keeps, without its logs and caches."""
    root = home / ".onetool"
    caches = {"logs", "cache", "environments"}
    files = (file for file in root.rglob("*") if file.is_file() and file.relative_to(root).parts[0] not in caches)
    return {str(file.relative_to(root)): file.read_bytes() for file in files}


def test_a_configuration_that_is_not_there_is_told_and_its_folder_is_not_made(tmp_path: Path) -> None:
    done = run_cli(tmp_path, "doctor", "--config", str(tmp_path / "gone" / "onetool.yaml"))
    assert done.returncode == 1
    assert f"{tmp_path / 'gone' / 'onetool.yaml'}: file not found" in done.stdout
    assert "check --config" in done.stdout
    assert not (tmp_path / "gone").exists()


def test_clashes_of_names_are_reported_also_while_the_settings_are_wrong(tmp_path: Path) -> None:
    entries = {
        "fs": hostile_server("echo"),
        "mine": hostile_server("echo"),
        "a-b": hostile_server("echo"),
        "a_b": hostile_server("echo"),
    }
    configure(tmp_path, yaml.safe_dump({"executon": {}, "servers": entries}, sort_keys=False))
    pack(ECHO)(tmp_path)
    found = wrong(examined(tmp_path))
    assert len(found) == 4
    assert health(tmp_path) == found


def test_a_server_without_its_program_is_named_where_tools_are_listed(tmp_path: Path) -> None:
    servers(gone={"command": "a-program-that-nobody-has"})(tmp_path)
    listed = run_cli(tmp_path, "tools", "machine.now")
    assert "program 'a-program-that-nobody-has' not found" in listed.stderr
