"""The commands as a person types them: what they print, where, and with which exit status."""

import json
import os
import pty
import subprocess
import sys
from pathlib import Path

import pytest
from tests.support import PROGRAM, command_line, configure, environment

from ot.version import __version__


def test_the_demonstration_runs_and_says_what_is_next(tmp_path: Path) -> None:
    done = command_line(tmp_path, "demo")
    assert done.returncode == 0, done.stderr
    assert '"cores"' in done.stdout
    assert "PermissionError" in done.stdout
    assert "Next: connect your assistant" in done.stdout
    assert "\033" not in done.stdout


def test_the_doctor_finds_nothing_on_a_good_machine(tmp_path: Path) -> None:
    done = command_line(tmp_path, "doctor")
    assert done.returncode == 0, done.stdout
    assert "a run works" in done.stdout
    assert "FAIL" not in done.stdout


def test_the_doctor_says_what_is_wrong(tmp_path: Path) -> None:
    configure(tmp_path, "executon: {}")
    done = command_line(tmp_path, "doctor")
    assert done.returncode == 1
    assert "onetool.yaml:1" in done.stdout
    assert "execution" in done.stdout


def test_run_prints_what_a_client_sees(tmp_path: Path) -> None:
    done = command_line(tmp_path, "run", "print('a'); {'b': [1]}")
    assert (done.returncode, done.stdout) == (0, 'a\n\n{"b":[1]}\n')
    failed = command_line(tmp_path, "run", "1/0")
    assert failed.returncode == 1
    assert failed.stdout.startswith("ZeroDivisionError: division by zero\n  line 1: 1/0")


def test_run_takes_a_file_stdin_and_a_format(tmp_path: Path) -> None:
    (tmp_path / "code.py").write_text("x = {'a': None}\nx\n", encoding="utf-8")
    assert command_line(tmp_path, "run", "-f", "code.py", "--format", "yml").stdout == "{a: null}\n"
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
    assert json.loads(command_line(tmp_path, "run", "--json", "5").stdout) == {"blocks": ["5"], "is_error": False}


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("run",), "give the code once"),
        (("run", "1", "-f", "x"), "give the code once"),
        (("run", "-f", "missing.py"), "cannot be read"),
        (("call", "machine.memory", "unit"), "write key=value"),
        (("call", "machine.memory", "unit=furlong"), "is not one of"),
        (("call", "machine.memroy"), "Did you mean machine.memory"),
        (("trust",), "no .onetool folder"),
    ],
)
def test_bad_input_gets_words_and_status_one(tmp_path: Path, arguments: tuple[str, ...], words: str) -> None:
    done = command_line(tmp_path, *arguments)
    assert done.returncode == 1
    assert words in done.stderr
    assert "Traceback" not in done.stderr + done.stdout


def test_an_unknown_command_lists_the_commands(tmp_path: Path) -> None:
    done = command_line(tmp_path, "tolls")
    assert done.returncode == 2
    assert "tools" in done.stderr


def test_call_prints_json(tmp_path: Path) -> None:
    done = command_line(tmp_path, "call", "machine.memory", 'unit="MiB"')
    assert json.loads(done.stdout)["unit"] == "MiB"
    assert json.loads(command_line(tmp_path, "call", "ot.version").stdout) == __version__
    assert command_line(tmp_path, "call", "json.parse", "json=1").stdout == "1\n", "what is to be a text is one"


def test_discovery_does_not_load_the_server(tmp_path: Path) -> None:
    code = "import sys; from ot.cli.main import main; main(['tools']); sys.exit('mcp' in sys.modules)"
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


def test_help_finds_tools_packs_and_words(tmp_path: Path) -> None:
    assert "Signature: machine.disk(" in command_line(tmp_path, "help", "machine.disk").stdout
    assert "machine.cpu" in command_line(tmp_path, "help", "busy").stdout
    assert "Find tools" in command_line(tmp_path, "help").stdout


def test_trust_lets_a_folder_take_effect(tmp_path: Path) -> None:
    project = tmp_path / "project"
    (project / ".onetool").mkdir(parents=True)
    (project / ".onetool" / "onetool.yaml").write_text("aliases: {t: machine.now}\n", encoding="utf-8")

    def onetool(*arguments: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [PROGRAM, *arguments], cwd=project, env=environment(tmp_path), capture_output=True, text=True, check=False
        )

    assert onetool("run", "t()").returncode == 1
    assert "note:" in onetool("tools").stderr
    assert onetool("trust").returncode == 0
    assert onetool("run", "t()").returncode == 0
    assert onetool("untrust").returncode == 0
    assert onetool("run", "t()").returncode == 1


def test_in_a_terminal_it_says_what_to_type(tmp_path: Path) -> None:
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


def test_output_into_a_closed_pipe_is_no_traceback(tmp_path: Path) -> None:
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
