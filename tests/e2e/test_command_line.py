"""Test the commands of the CLI: their output, its stream and the exit status."""

import contextlib
import json
import os
import pty
import random
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.cells_support import NIGHTLY
from tests.support import PROGRAM, configure, environment, eventually, run_cli, scratch_directory
from tests.workers_support import write_pack

from onetool.util.version import __version__


def test_the_doctor_finds_no_problems_on_a_working_machine(tmp_path: Path) -> None:
    done = run_cli(tmp_path, "doctor")
    assert done.returncode == 0, done.stdout
    assert "test run succeeded" in done.stdout
    assert "FAIL" not in done.stdout


def test_the_doctor_reports_invalid_settings(tmp_path: Path) -> None:
    configure(tmp_path, "executon: {}")
    done = run_cli(tmp_path, "doctor")
    assert done.returncode == 1
    assert "onetool.yaml:1" in done.stdout
    assert "execution" in done.stdout


def test_run_prints_the_same_text_as_a_client_gets(tmp_path: Path) -> None:
    done = run_cli(tmp_path, "run", "print('a'); {'b': [1]}")
    assert (done.returncode, done.stdout) == (0, 'a\n\n{"b":[1]}\n')
    failed = run_cli(tmp_path, "run", "1/0")
    assert failed.returncode == 1
    assert failed.stdout.startswith("ZeroDivisionError: division by zero\n  line 1: 1/0")


def test_run_accepts_a_file_standard_input_and_a_format(tmp_path: Path) -> None:
    (tmp_path / "code.py").write_text("x = {'a': None}\nx\n", encoding="utf-8")
    assert run_cli(tmp_path, "run", "-f", "code.py", "--format", "yml").stdout == "{a: null}\n"
    fed = subprocess.run(
        [PROGRAM, "run", "-"],
        input="6 * 7",
        env=environment(tmp_path),
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
    )
    assert fed.stdout == "42\n"
    assert json.loads(run_cli(tmp_path, "run", "--json", "5").stdout) == {
        "blocks": ["5"],
        "is_error": False,
    }


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (("run", "-f", "missing.py"), "cannot read"),
        (("call", "machine.memory", "unit=furlong"), "is not one of"),
        (("call", "machine.memroy"), "Did you mean machine.memory"),
        (("trust",), "no .onetool directory"),
    ],
)
def test_invalid_input_prints_an_error_and_exits_with_status_1(
    tmp_path: Path, arguments: tuple[str, ...], expected: str
) -> None:
    done = run_cli(tmp_path, *arguments)
    assert done.returncode == 1
    assert expected in done.stderr
    assert "Traceback" not in done.stderr + done.stdout


def test_an_unknown_command_lists_the_commands(tmp_path: Path) -> None:
    done = run_cli(tmp_path, "tolls")
    assert done.returncode == 2
    assert "tools" in done.stderr


def test_call_prints_json(tmp_path: Path) -> None:
    done = run_cli(tmp_path, "call", "machine.memory", 'unit="MiB"')
    assert json.loads(done.stdout)["unit"] == "MiB"
    assert json.loads(run_cli(tmp_path, "call", "ot.version").stdout) == __version__
    assert run_cli(tmp_path, "call", "json.parse", "json=1").stdout == "1\n", (
        "a string parameter gets a string"
    )


def test_discovery_does_not_load_the_server(tmp_path: Path) -> None:
    code = (
        "import sys; from onetool.cli.main import main; main(['tools']); sys.exit('mcp' in"
        " sys.modules)"
    )
    done = subprocess.run(
        [sys.executable, "-c", code],
        env=environment(tmp_path),
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert "machine.disk" in done.stdout


def test_help_shows_a_tool_searches_by_keyword_and_explains_itself(tmp_path: Path) -> None:
    assert "Signature: machine.disk(" in run_cli(tmp_path, "help", "machine.disk").stdout
    assert "machine.cpu" in run_cli(tmp_path, "help", "busy").stdout
    assert "Find tools" in run_cli(tmp_path, "help").stdout


def test_search_lists_the_hits_of_ot_search(tmp_path: Path) -> None:
    assert run_cli(tmp_path, "search", "how", "busy", "--limit", "2").stdout.startswith(
        "machine.cpu "
    )
    found = json.loads(run_cli(tmp_path, "search", "how busy", "--limit", "2", "--json").stdout)
    assert found == json.loads(
        run_cli(tmp_path, "call", "ot.search", "query=how busy", "limit=2").stdout
    )
    assert "Run `onetool tools`" in run_cli(tmp_path, "search", "xyzzyqwv").stdout


@pytest.mark.parametrize("name", ["machine.now", "machine"])
def test_a_tool_or_pack_is_disabled_and_enabled(tmp_path: Path, name: str) -> None:
    assert run_cli(tmp_path, "tools", "--disable", name).stdout == f"Disabled {name}\n"
    failed = run_cli(tmp_path, "call", "machine.now")
    assert (failed.returncode, "machine.now is disabled" in failed.stderr) == (1, True)
    assert json.loads(run_cli(tmp_path, "tools", "--disable", name, "--json").stdout) == {
        "changed": [name],
        "isEnabled": False,
    }
    assert run_cli(tmp_path, "tools", "--enable", name).stdout == f"Enabled {name}\n"
    assert run_cli(tmp_path, "call", "machine.now").returncode == 0
    audit = (tmp_path / ".onetool" / "logs" / "audit.jsonl").read_text(encoding="utf-8")
    assert [f".{done}" in audit for done in ("enabled", "disabled")] == [True, True]


@pytest.mark.parametrize("name", ["", "machine.now ", "x" * 100_000, "\x1b[31m../../etc", "*"])
def test_an_invalid_name_cannot_be_disabled(tmp_path: Path, name: str) -> None:
    failed = run_cli(tmp_path, "tools", "--disable", name)
    assert (failed.returncode, failed.stdout, "\x1b" in failed.stderr) == (1, "", False)
    assert "no tool or pack is named" in failed.stderr
    assert len(failed.stderr) < 1_000
    assert not (tmp_path / ".onetool" / "state").exists()


def test_an_unknown_tool_cannot_be_disabled(tmp_path: Path) -> None:
    failed = run_cli(tmp_path, "tools", "--disable", "machine.nwo")
    assert (failed.returncode, failed.stdout) == (1, "")
    assert "Did you mean machine.now?" in failed.stderr
    assert "onetool bundles" in failed.stderr


def test_project_settings_apply_only_while_trusted(tmp_path: Path) -> None:
    project = tmp_path / "project"
    (project / ".onetool").mkdir(parents=True)
    (project / ".onetool" / "onetool.yaml").write_text(
        "aliases: {t: machine.now}\n", encoding="utf-8"
    )

    def onetool(*arguments: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [PROGRAM, *arguments],
            cwd=project,
            env=environment(tmp_path),
            input="yes\n",
            capture_output=True,
            text=True,
            check=False,
        )

    assert onetool("run", "t()").returncode == 1
    assert "note:" in onetool("tools").stderr
    assert onetool("trust").returncode == 0
    assert onetool("run", "t()").returncode == 0
    assert onetool("untrust").returncode == 0
    assert onetool("run", "t()").returncode == 1


def test_without_arguments_a_terminal_shows_the_next_command(tmp_path: Path) -> None:
    ours, theirs = pty.openpty()
    done = subprocess.run(
        [PROGRAM],
        stdin=theirs,
        env=environment(tmp_path),
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=30,
        check=False,
    )
    os.close(ours)
    os.close(theirs)
    assert done.returncode == 0
    assert "onetool demo" in done.stdout
    assert "No assistant is connected." in done.stdout
    assert "Next: onetool connect claude-code --write" in done.stdout


def run_in_terminal(home: Path, *arguments: str, keys: str = "") -> str:
    """Run the program in a terminal with this input and return its output."""
    ours, theirs = pty.openpty()
    os.write(ours, keys.encode())
    with subprocess.Popen(
        [PROGRAM, *arguments],
        stdin=theirs,
        stdout=theirs,
        stderr=theirs,
        env=environment(home),
        cwd=home,
    ) as process:
        os.close(theirs)
        output = b""
        with contextlib.suppress(OSError):  # a terminal raises this when its last process has ended
            while part := os.read(ours, 65536):
                output += part
        assert process.wait(30) == 0, output
    os.close(ours)
    return output.decode()


def test_the_status_shows_tool_counts_and_connected_clients(tmp_path: Path) -> None:
    run_cli(tmp_path, "init")
    run_cli(tmp_path, "connect", "cursor", "--write")
    listed = json.loads(run_cli(tmp_path, "tools", "--info", "list", "--json").stdout)
    output = run_in_terminal(tmp_path)
    assert f"{len(listed)} tools in " in output
    assert "Connected: Cursor." in output
    assert 'Next: ask your assistant: "' in output


def test_the_status_shows_invalid_settings_first(tmp_path: Path) -> None:
    configure(tmp_path, "executon: {}")
    output = run_in_terminal(tmp_path)
    assert "Next: fix the settings" in output
    assert "onetool.yaml:1" in output


@pytest.mark.parametrize(
    ("keys", "connects"), [("\n", True), ("y\n", True), ("n\n", False), ("\x04", False)]
)
def test_init_asks_whether_to_connect_a_client(tmp_path: Path, keys: str, connects: bool) -> None:
    (tmp_path / ".cursor").mkdir()
    output = run_in_terminal(tmp_path, "init", keys=keys)
    assert "Connect Cursor? [Y/n]" in output
    assert (tmp_path / ".cursor" / "mcp.json").exists() == connects


def test_init_asks_which_of_several_clients_to_connect(tmp_path: Path) -> None:
    (tmp_path / ".cursor").mkdir()
    (tmp_path / ".codex").mkdir()
    assert "cursor, codex, or none? [cursor]" in run_in_terminal(tmp_path, "init", keys="codex\n")
    assert (tmp_path / ".codex" / "config.toml").exists()
    assert not (tmp_path / ".cursor" / "mcp.json").exists()


def test_init_does_not_prompt_without_a_terminal_or_with_yes(tmp_path: Path) -> None:
    (tmp_path / ".cursor").mkdir()
    assert "onetool connect cursor --write" in run_cli(tmp_path, "init").stdout
    assert not (tmp_path / ".cursor" / "mcp.json").exists()
    assert "Restart Cursor" in run_in_terminal(tmp_path, "init", "--yes")
    assert (tmp_path / ".cursor" / "mcp.json").exists()


def test_output_to_a_closed_pipe_prints_no_traceback(tmp_path: Path) -> None:
    done = subprocess.run(
        f"{PROGRAM} tools | true",
        shell=True,
        env=environment(tmp_path),
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.stderr == ""


# --- JSON -----------------------------------------------------------------------------------------

API = {
    "openapi": "3.0.0",
    "info": {"title": "Pets", "version": "1"},
    "servers": [{"url": "https://pets.example"}],
    "paths": {
        "/pets": {"get": {"operationId": "listPets", "responses": {"200": {"description": "ok"}}}}
    },
}


@pytest.mark.nightly
@pytest.mark.slow
def test_every_command_that_prints_data_supports_json(tmp_path: Path) -> None:
    """The order matters: some commands need the output of others.

    `serve --http --json` is in test_http_server.
    """
    (tmp_path / "pets.json").write_text(json.dumps(API), encoding="utf-8")
    (tmp_path / "servers.json").write_text(
        '{"mcpServers": {"own": {"command": "true"}}}', encoding="utf-8"
    )
    commands = (
        "init",
        "tools",
        "tools --info full",
        "tools nothing-of-this-name",
        "search free disk space",
        "daemon status",
        "help machine",
        "run 1/0",
        "call machine.now",
        "call machine.nwo",
        "connect cursor",
        "connect cursor --write",
        "import servers.json --dry-run",
        "import servers.json --user",
        "import pets.json",
        "bundles",
        "bundles list --all",
        "bundles disable pets",
        "bundles enable pets",
        "bundles export pets",
        "stats",
        "token create laptop",
        "token list",
        "token revoke laptop",
    )
    for command in commands:
        done = run_cli(tmp_path, *command.split(), "--json")
        output = json.loads(done.stdout)
        assert isinstance(output, dict | list) or command.startswith("call"), (
            command
        )  # the result of a call can have any type


def test_trust_and_untrust_print_json(tmp_path: Path) -> None:
    project = tmp_path / "project"
    (project / ".onetool").mkdir(parents=True)
    for command, trusted in (("trust", True), ("untrust", False)):
        done = subprocess.run(
            [PROGRAM, command, "--json"],
            cwd=project,
            env=environment(tmp_path),
            input=b"yes\n",
            capture_output=True,
            check=True,
        )
        assert json.loads(done.stdout)["trusted"] is trusted


def test_with_json_errors_are_plain_text_on_standard_error(tmp_path: Path) -> None:
    done = run_cli(tmp_path, "connect", "codex", "--folder", "missing", "--json")
    assert (done.returncode, done.stdout) == (1, "")
    assert "is not a directory" in done.stderr


# --- the exit status ------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("command", "status"),
    [
        ("--version", 0),
        ("--help", 0),
        ("run --help", 0),
        ("run 1", 0),
        ("run 1/0", 1),
        ("run -f missing.py", 1),
        ("call machine.nwo", 1),
        ("trust", 1),
        ("run", 2),
        ("run 1 -f x", 2),
        ("run 1 --nonsense", 2),
        ("call machine.memory unit", 2),
        ("call machine.memory unit=GiB unit=MiB", 2),
        ("tools --info much", 2),
        ("search", 2),
        ("search disk --limit 0", 2),
        ("connect nobody", 2),
        ("serve --port 1", 2),
        ("token", 2),
        ("completion", 2),
        ("tolls", 2),
        ("--nonsense", 2),
    ],
)
def test_the_exit_status_shows_success_failure_or_usage_error(
    tmp_path: Path, command: str, status: int
) -> None:
    done = run_cli(tmp_path, *command.split())
    assert done.returncode == status, done.stderr
    assert (done.stderr == "") == (status == 0 or command == "run 1/0")


def test_the_help_text_lists_the_exit_statuses(tmp_path: Path) -> None:
    assert (
        "0 success, 1 failure, 2 usage error, 130 interrupted (Ctrl+C), 143"
        in run_cli(tmp_path, "--help").stdout
    )


# --- hostile environments -------------------------------------------------------------------------

EVERYTHING = (
    "run 1",
    "call machine.now",
    "tools",
    "search disk",
    "daemon status",
    "help",
    "connect cursor --write",
    "import cursor",
    "bundles",
    "init",
    "stats",
    "token create a",
    "token list",
    "servers accept x",
    "trust",
    "completion bash",
)


def run_in_shell(home: Path, script: str, **env: str) -> subprocess.CompletedProcess[bytes]:
    """Run a shell script in which `$o` is the program."""
    variables = {**environment(home), "o": PROGRAM, **env}
    return subprocess.run(
        ["sh", "-c", script],
        cwd=home,
        env=variables,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        timeout=60,
        check=False,
    )


def assert_no_traceback(done: subprocess.CompletedProcess[bytes], *statuses: int) -> None:
    output = (done.stdout + done.stderr).decode(errors="replace")
    assert done.returncode in statuses, output
    for trace in ("Traceback", "Exception ignored", "should not"):
        assert trace not in output


LATIN = {"LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"}
# A script in which `$o {0}` is the command, its environment variables, and the allowed exit
# statuses.
ENVIRONMENTS: tuple[tuple[str, dict[str, str], set[int]], ...] = (
    ("$o {0} >&-", {}, {0, 1}),
    ("$o {0} >&- 2>&- <&-", {}, {0, 1}),
    ("$o {0} >/dev/full", {}, {1}),
    ("mkdir gone; cd gone; rmdir ../gone; $o {0}", {}, {1}),
    ("$o {0}", {"HOME": "/dev/null/nowhere"}, {0, 1}),
    ("set -- {0}; c=$1; shift; $o $c --config . $*", {}, {0, 1}),
    ("set -- {0}; c=$1; shift; $o $c --config missing.yaml $*", {}, {0, 1}),
    ("$o {0}", LATIN, {0, 1}),
    ("$o {0} $(printf '\\377')", {}, {0, 1, 2}),
)


@pytest.mark.sampled(4)
@pytest.mark.slow
@pytest.mark.parametrize("at", range(len(EVERYTHING)), ids=EVERYTHING)
def test_commands_print_no_traceback_in_hostile_environments(tmp_path: Path, at: int) -> None:
    """Run every command in one of the environments; nightly in all of them."""
    home = tmp_path / "home"
    home.mkdir()
    for script, env, statuses in (
        ENVIRONMENTS if NIGHTLY else [ENVIRONMENTS[at % len(ENVIRONMENTS)]]
    ):
        assert_no_traceback(run_in_shell(home, script.format(EVERYTHING[at]), **env), *statuses)


def test_output_that_cannot_be_written_is_a_failure(tmp_path: Path) -> None:
    done = run_in_shell(tmp_path, "$o --version >/dev/full")
    assert (done.returncode, done.stderr) == (
        1,
        b"onetool: cannot write the output: No space left on device\n",
    )


@pytest.mark.nightly
def test_unusual_characters_are_printed_in_any_locale(tmp_path: Path) -> None:
    code = "'\\u2026\\udcff'"
    assert_no_traceback(run_in_shell(tmp_path, f'$o run "{code}"', **LATIN), 0)
    assert_no_traceback(run_in_shell(tmp_path, f'$o run "{code}"'), 0)


CRASH = (
    "import sys; from onetool.cli import main, tools; from onetool.cli.command import"
    " Command; tools.COMMANDS['tools'] = Command('', main=lambda _: {}['odd']);"
    " sys.exit(main.main(['tools']))"
)


def run_crashing(home: Path, **env: str) -> subprocess.CompletedProcess[str]:
    variables = {**environment(home), **env}
    return subprocess.run(
        [sys.executable, "-c", CRASH],
        cwd=home,
        env=variables,
        capture_output=True,
        text=True,
        check=False,
    )


def test_an_internal_error_prints_two_lines_and_is_logged(tmp_path: Path) -> None:
    done = run_crashing(tmp_path)
    log = tmp_path / ".onetool" / "logs" / "onetool.log"
    assert done.returncode == 1
    assert done.stderr.splitlines() == [
        "onetool: internal error: KeyError: 'odd'",
        f"onetool: see {log} for details",
    ]
    entry = json.loads(log.read_text(encoding="utf-8"))
    assert entry["error_type"] == "KeyError"
    assert "exit_status.py" in entry["text"]
    assert "odd" not in entry["text"].replace("{}['odd']", "")  # the message may contain a secret


def test_a_debug_variable_shows_the_traceback(tmp_path: Path) -> None:
    done = run_crashing(tmp_path, ONETOOL_DEBUG="1")
    assert done.returncode == 1
    assert "Traceback" in done.stderr
    unwritable = run_crashing(tmp_path, HOME="/dev/null")
    assert (
        unwritable.stderr.splitlines()[1] == "onetool: set ONETOOL_DEBUG=1 and retry to see details"
    )


# --- signals --------------------------------------------------------------------------------------

# The program prints a line when it starts: signals during the start of Python itself are out of
# scope.
BEGINS = (
    "import sys; from onetool.cli.main import main; print('begins', flush=True);"
    " sys.exit(main(sys.argv[1:]))"
)
SLOW_TOOL = (
    "import time\ndef wait(seconds: float) -> float:\n    time.sleep(seconds)\n    return seconds\n"
)
ENDLESS = {
    "run": ("run", "while True: pass"),
    "call": ("call", "slow.wait", "seconds=600"),
    "import": ("import", "cursor", "--user"),
    "serve": ("serve",),
    "serve --http": ("serve", "--http", "--port", "0"),
}


def list_session(session: int) -> list[str]:
    """Return the command lines of live processes in a session, zombies excluded."""
    found = []
    for status in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError):
            state, _, _, its = status.read_text(errors="replace").rpartition(") ")[2].split()[:4]
            if int(its) == session and state != "Z":
                found.append((status.parent / "cmdline").read_text(errors="replace"))
    return found


def list_processes(home: Path) -> list[str]:
    """Return the command lines of processes with this home directory, in any session."""
    mark, found = f"HOME={home}".encode(), []
    for environ in Path("/proc").glob("[0-9]*/environ"):
        with contextlib.suppress(OSError):
            if mark in environ.read_bytes().split(b"\0"):
                found.append((environ.parent / "cmdline").read_text(errors="replace"))
    return found


@contextlib.contextmanager
def start_command(home: Path, *command: str) -> Iterator[subprocess.Popen[str]]:
    tool = home / ".onetool" / "tools" / "slow" / "slow_tools.py"
    tool.parent.mkdir(parents=True)
    tool.write_text(SLOW_TOOL, encoding="utf-8")
    (home / ".cursor").mkdir()
    (home / ".cursor" / "mcp.json").write_text(
        '{"mcpServers": {"own": {"command": "true"}}}', encoding="utf-8"
    )
    with subprocess.Popen(
        [sys.executable, "-c", BEGINS, *command],
        cwd=home,
        env=environment(home),
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    ) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "begins\n"
        yield process


def list_leftovers(home: Path) -> list[Path]:
    temporary = [path for path in scratch_directory(home).iterdir() if path.name != "uv"]
    return [*temporary, *home.rglob("*.tmp"), *home.rglob("*.new")]


def assert_nothing_is_left(session: int, home: Path) -> None:
    assert eventually(lambda: not list_session(session)), list_session(session)
    assert eventually(lambda: not list_processes(home)), list_processes(home)
    assert list_leftovers(home) == []


@pytest.mark.sampled(2)
@pytest.mark.slow
@pytest.mark.parametrize("command", ENDLESS)
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_command_ended_by_a_signal_leaves_nothing_behind(
    tmp_path: Path, command: str, number: signal.Signals
) -> None:
    for turn in range(10) if NIGHTLY else [int(number == signal.SIGTERM)]:
        home = tmp_path / str(turn)
        home.mkdir()
        with start_command(home, *ENDLESS[command]) as process:
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(random.uniform(0, 2.0))
            ended_itself = process.poll() is not None
            for _ in range(1 + turn % 2):  # sometimes twice
                with contextlib.suppress(ProcessLookupError):
                    os.killpg(process.pid, number)  # as a terminal does
            out, err = process.communicate(timeout=30)
        fine = {0} if command in {"import", "serve --http"} else set()
        assert process.returncode in {130 if number == signal.SIGINT else 143, -number, *fine}, (
            out,
            err,
        )
        assert "Traceback" not in out + err
        assert command == "import" or not ended_itself
        assert_nothing_is_left(process.pid, home)


@pytest.mark.parametrize("more", [(), ("--json",)])
@pytest.mark.parametrize("tool", ["leaky.give", "leaky.nest", "leaky.fail"])
def test_a_call_prints_no_secret(tmp_path: Path, tool: str, more: tuple[str, ...]) -> None:
    configure(tmp_path, "{}")
    secret = 'tok-5f2a"99é1c'
    file = tmp_path / ".onetool" / "secrets.yaml"
    file.write_text(json.dumps({"TOKEN": secret}), encoding="utf-8")
    file.chmod(0o600)
    source = f"""
SECRET = {secret!r}

def give():
    return SECRET

def nest():
    return {{"deep": [SECRET.encode().hex()]}}

def fail():
    raise ValueError("rejected: " + SECRET)
"""
    write_pack(tmp_path / ".onetool", "leaky", source)
    done = run_cli(tmp_path, "call", *more, tool)
    assert done.returncode == (1 if tool == "leaky.fail" else 0), done
    assert "[REDACTED]" in done.stdout + done.stderr
    assert not [
        form for form in ("tok-5f2a", secret.encode().hex()) if form in done.stdout + done.stderr
    ]
