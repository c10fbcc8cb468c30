"""Test shell completion: pressing Tab in real shells, and the candidates that `onetool` prints."""

import json
import os
import pty
import select
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import yaml
from tests.conftest import find_program
from tests.support import PROGRAM, TIMEOUT_SECONDS, configure, environment, run_cli

from onetool.cli.main import COMMANDS
from onetool.settings.trust import trust
from onetool.state.documents import DocumentFile, Documents

SETTINGS = """
http: {allowedHosts: [api.example.com]}
servers: {github: {command: "false"}}
agents: {reader: {permissions: [read]}}
auth: {tokens: [{name: laptop, token_env: X}]}
"""
PINS: dict[str, Any] = {
    "github": {"list_issues": {"input_schema": {"properties": {"owner": {}, "state": {}}}}}
}
PACK = (
    "from ot import ToolContext\ndef poke(context: ToolContext, where: str, *, hard: bool ="
    " False):\n    pass\n"
)
IN_BASH = """
eval "$(onetool completion bash)"
COMP_WORDS=(onetool "$@"); COMP_CWORD=$#
_onetool onetool
printf '%s\\n' "${COMPREPLY[@]}"
"""


@pytest.fixture
def home(tmp_path: Path) -> Path:
    configure(tmp_path, SETTINGS)
    Documents(DocumentFile(tmp_path / ".onetool"), "pins").update_all([*PINS], lambda _: PINS)
    file = tmp_path / ".onetool" / "tools" / "mine" / "mine_tools.py"
    file.parent.mkdir(parents=True)
    file.write_text(PACK, encoding="utf-8")
    return tmp_path


def shell_environment(home: Path) -> dict[str, str]:
    return {
        **environment(home),
        "PATH": f"{Path(PROGRAM).parent}:{os.environ['PATH']}",
        "TERM": "xterm",
    }


def complete_in_bash(home: Path, *words: str) -> list[str]:
    done = subprocess.run(
        ["bash", "--norc", "-c", IN_BASH, "bash", *words],
        cwd=home,
        env=shell_environment(home),
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    )
    assert done.stderr == ""
    return done.stdout.split()


def complete(home: Path, *words: str) -> list[str]:
    done = run_cli(home, "completion", "--answer", *words)
    assert (done.returncode, done.stderr) == (0, "")
    return done.stdout.splitlines()


def test_bash_inserts_names_as_words(home: Path) -> None:
    hostile = [
        "$(touch ran)",
        "a; touch ran",
        "*",
        "two words",
        "'quoted\"",
        "`touch ran`",
        "~",
        "a\\b",
    ]
    configure(home, yaml.safe_dump({"agents": {name: {"permissions": []} for name in hostile}}))
    done = subprocess.run(
        ["bash", "--norc", "-c", IN_BASH.replace("'%s\\n'", "'%s '"), "bash", "run", "--agent", ""],
        cwd=home,
        env=shell_environment(home),
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    )
    # The inserted text is read by the shell again, when the person presses Enter.
    words = subprocess.run(
        ["bash", "-c", f"printf '%s\\n' {done.stdout}"],
        cwd=home,
        capture_output=True,
        text=True,
        check=True,
    )
    assert words.stdout.splitlines() == ["default", *sorted(hostile)]
    assert not (home / "ran").exists()


@pytest.mark.sampled(3)
@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (("unt",), ["untrust"]),
        (("tools", "--in"), ["--info"]),
        (("tools", "--info", ""), ["list", "min", "full"]),
        (("call", "machine.m"), ["machine.memory"]),
        (("call", "mine."), ["mine.poke"]),
        (("call", "mine.poke", ""), ["where=", "hard="]),
        (("call", "mine.poke", "where", "=", "x", ""), ["hard="]),
        (("connect", "cu"), ["cursor"]),
        (("servers", "accept", ""), ["github"]),
        (("hosts", "remove", ""), ["api.example.com"]),
        (("dev", ""), ["mine"]),
        (("search", "mac"), ["machine.cpu", "machine.disk", "machine.memory", "machine.now"]),
        (("daemon", ""), ["status", "stop", "restart", "logs"]),
        (("daemon", "logs", "--f"), ["--follow"]),
    ],
)
def test_bash_gets_the_candidates(home: Path, words: tuple[str, ...], expected: list[str]) -> None:
    assert complete_in_bash(home, *words) == expected


def test_all_commands_are_completed(home: Path) -> None:
    assert complete(home, "") == list(COMMANDS)
    assert complete(home) == list(COMMANDS)


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (("call", "github."), ["github.list_issues"]),
        (("call", "github.list_issues", "st"), ["state="]),
        (("call", "gr"), ["grep"]),
        (("help", "git"), ["github.list_issues"]),
        (("stats", "--tool", "json."), ["json.parse"]),
        (("call", "essentials.readfile", "en"), ["encoding="]),
        (("run", "--agent", ""), ["default", "reader"]),
        (("run", "--json", "--agent", "r"), ["reader"]),
        (("token", ""), ["create", "list", "revoke"]),
        (("token", "revoke", ""), ["laptop"]),
        (("bundles", "enable", "ess"), ["essentials"]),
        (("bundles", "disable", "essentials.re"), ["essentials.readfile"]),
        (("import", "cod"), ["codex"]),
        (("import", "petstore"), [":files"]),
        (("run", "-f", ""), [":files"]),
        (("test", "m"), ["mine"]),
        (("test", "tools/"), [":files"]),
        (("run", "--config", "x"), [":files"]),
        (("call", "mine.poke", "where=./"), [":files"]),
        (("completion", ""), ["bash", "zsh", "fish"]),
        (("--v",), ["--version"]),
        (("nonsense", ""), []),
        (("connect", "cursor", ""), []),
        (("call", "nonsense.x", ""), []),
        (("run", "\x1b[31m"), []),
    ],
)
def test_each_position_has_its_candidates(
    home: Path, words: tuple[str, ...], expected: list[str]
) -> None:
    assert complete(home, *words) == expected


def test_packs_are_completed_before_their_tools(home: Path) -> None:
    assert {"machine.", "mine.", "github.", "grep"} <= set(complete(home, "call", ""))
    assert complete(home, "call", "mi") == ["mine.poke"]


def test_the_config_option_selects_the_settings(home: Path) -> None:
    other = home / "other.yaml"
    other.write_text("agents: {writer: {}}", encoding="utf-8")
    assert "writer" in complete(home, "run", "--config", str(other), "--agent", "")


def test_an_untrusted_directory_is_not_read(tmp_path: Path) -> None:
    configure(tmp_path / "work", SETTINGS)
    directory, user = tmp_path / "work" / ".onetool", tmp_path / ".onetool"
    env = {**environment(tmp_path), "OT_CWD": str(tmp_path / "work")}

    def servers() -> str:
        command = [PROGRAM, "completion", "--answer", "servers", "accept", ""]
        return subprocess.run(
            command, env=env, cwd=tmp_path, capture_output=True, text=True, check=True
        ).stdout

    assert servers() == ""
    trust(directory, user)
    assert servers() == "github\n"


@pytest.mark.parametrize(
    "broken", ["servers: [", "servers: 1\nagents: []\nauth: {tokens: {}}", "\x00"]
)
def test_invalid_files_do_not_break_completion(home: Path, broken: str) -> None:
    configure(home, broken)
    DocumentFile(home / ".onetool").file.write_text("[", encoding="utf-8")
    (home / ".onetool" / "tools" / "mine" / "mine_tools.py").write_text("def (", encoding="utf-8")
    assert complete(home, "servers", "accept", "") == []
    assert "machine." in complete(home, "call", "")
    assert complete(home, "call", "mine.") == []


def test_completion_loads_no_heavy_modules_and_starts_no_server(home: Path) -> None:
    code = (
        "import sys; from onetool.cli.main import main; main(['completion', '--answer', 'call',"
        " 'github.'])\nheavy = {'pydantic', 'mcp', 'anyio', 'asyncio', 'httpx2', 'jsonschema_rs',"
        " 'subprocess', 'onetool.app'}\nsys.exit(','.join(heavy & sys.modules.keys()) or 0)"
    )
    done = subprocess.run(
        [sys.executable, "-c", code],
        env=environment(home),
        cwd=home,
        capture_output=True,
        text=True,
        check=False,
    )
    assert (done.returncode, done.stderr, done.stdout) == (0, "", "github.list_issues\n")


def test_the_completed_tools_are_all_existing_tools(tmp_path: Path) -> None:
    listed = json.loads(run_cli(tmp_path, "tools", "--info", "list", "--json").stdout)
    packs = ("fs.", "http.", "json.", "llm.", "machine.", "ot.", "test.", "yaml.", "grep")
    assert sorted(name for pack in packs for name in complete(tmp_path, "call", pack)) == sorted(
        listed
    )


# --- interactive shells ---------------------------------------------------------------------------


@contextmanager
def open_terminal(home: Path, *shell: str) -> Iterator[int]:
    """Start a shell in a terminal and yield the descriptor of the terminal."""
    ours, theirs = pty.openpty()
    with subprocess.Popen(
        shell,
        stdin=theirs,
        stdout=theirs,
        stderr=theirs,
        cwd=home,
        env=shell_environment(home),
        start_new_session=True,
    ) as process:
        os.close(theirs)
        try:
            yield ours
        finally:
            process.kill()
            os.close(ours)


def read_until(terminal: int, words: str) -> str:
    seen, until = "", time.monotonic() + 3 * TIMEOUT_SECONDS
    while words not in seen:
        ready, _, _ = select.select([terminal], [], [], max(0.0, until - time.monotonic()))
        assert ready, f"{words!r} did not appear: {seen!r}"
        seen += os.read(terminal, 65536).decode(errors="replace")
    return seen


SHELLS = {
    "bash": (
        ("bash", "--norc", "-i"),
        'PS1="> "; eval "$(onetool completion bash)"; echo rea""dy\n',
    ),
    "zsh": (
        ("zsh", "-f", "-i"),
        "autoload -U compinit; compinit -u -D; eval \"$(onetool completion zsh)\"; echo rea''dy\n",
    ),
}


@pytest.mark.sampled(2)
@pytest.mark.slow
@pytest.mark.parametrize("shell", SHELLS)
def test_tab_completes_in_an_interactive_shell(home: Path, shell: str) -> None:
    find_program(shell)
    command, setup = SHELLS[shell]
    with open_terminal(home, *command) as terminal:
        os.write(terminal, setup.encode())
        read_until(terminal, "ready")
        os.write(terminal, b"onetool cal\tmachine.mem\tun\t")
        read_until(terminal, "it=")  # zsh rings a bell before it
        os.write(terminal, b"GiB | cut -c1-9; echo do''ne\n")
        assert '{"total"' in read_until(terminal, "done")


@pytest.mark.slow
def test_fish_gets_the_candidates(home: Path) -> None:
    find_program("fish")

    def tab(line: str) -> list[str]:
        code = f"onetool completion fish | source; complete -C '{line}'"
        done = subprocess.run(
            ["fish", "--no-config", "-c", code],
            cwd=home,
            env=shell_environment(home),
            capture_output=True,
            check=True,
        )
        assert done.stderr == b""
        return done.stdout.decode().splitlines()

    assert tab("onetool unt") == ["untrust"]
    assert tab("onetool call mine.poke ") == ["hard=", "where="]
    assert tab("onetool run -f .one") == [".onetool/"]
