"""Test colors and progress, with and without a pseudo-terminal."""

import os
import pty
import re
import subprocess
import sys
from pathlib import Path

import pytest

COLORS = (
    "from onetool.cli.terminal import *; print(bold('b') + dim('d') + red('r') + green('g') +"
    " yellow('y'))"
)
SLOW = """
import asyncio, sys, time
from onetool.cli import terminal
terminal.PATIENCE = 0.0
async def work(progress):
    progress.update('second\\x1b[31m\\nwords ' + 'long ' * 100)
    while not progress._is_drawn:
        await asyncio.sleep(0.01)
with terminal.Progress('first words') as progress:
    while not progress._is_drawn:
        time.sleep(0.01)
    asyncio.run(work(progress))
print('after')
"""
QUICK = (
    "from onetool.cli.terminal import Progress\nwith Progress('words') as progress:\n   "
    " progress.update('more')"
)


def run_in_terminal(code: str, **env: str) -> str:
    """Run code in a terminal and return the output of both streams."""
    ours, theirs = pty.openpty()
    with subprocess.Popen(
        [sys.executable, "-c", code],
        stdin=theirs,
        stdout=theirs,
        stderr=theirs,
        env={**os.environ, **env},
    ) as process:
        os.close(theirs)
        output = b"".join(iter(lambda: _read(ours), b""))
        assert process.wait(30) == 0, output
    os.close(ours)
    return output.decode()


def _read(terminal: int) -> bytes:
    try:
        return os.read(terminal, 65536)
    except OSError:  # raised by a terminal when its last process has ended
        return b""


def run_with_pipes(code: str) -> tuple[str, str]:
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=30, check=True
    )
    return done.stdout, done.stderr


def test_output_to_a_terminal_is_colored() -> None:
    output = run_in_terminal(COLORS, TERM="xterm", NO_COLOR="")
    assert re.findall(r"\033\[(\d+)m(\w)", output) == [
        ("1", "b"),
        ("2", "d"),
        ("31", "r"),
        ("32", "g"),
        ("33", "y"),
    ]


@pytest.mark.parametrize("env", [{"NO_COLOR": "1"}, {"NO_COLOR": "", "TERM": "dumb"}])
def test_colors_are_disabled_by_no_color_and_dumb_terminals(env: dict[str, str]) -> None:
    assert run_in_terminal(COLORS, **env).strip() == "bdrgy"


def test_output_to_a_pipe_has_no_colors_or_progress() -> None:
    assert run_with_pipes(COLORS) == ("bdrgy\n", "")
    assert run_with_pipes(SLOW.replace("while not progress._is_drawn:", "if False:")) == (
        "after\n",
        "",
    )


def test_progress_is_one_line_that_is_erased() -> None:
    output = run_in_terminal(SLOW, TERM="xterm")
    assert "first words" in output
    assert [line.rpartition("\r\033[K")[2] for line in output.split("\r\n")] == ["after", ""]
    assert all(len(line) < 80 for line in output.replace("\r\033[K", "\n").splitlines())
    assert "\033[31m" not in output, "control sequences are removed"


def test_a_short_operation_shows_no_progress() -> None:
    assert run_in_terminal(QUICK, TERM="xterm") == ""


def test_a_dumb_terminal_shows_no_progress() -> None:
    assert (
        run_in_terminal(SLOW.replace("while not progress._is_drawn:", "if False:"), TERM="dumb")
        == "after\r\n"
    )


def test_closed_streams_are_not_terminals() -> None:
    code = "import sys; sys.stderr = None\nfrom onetool.cli.terminal import *\n"
    code += "with Progress('x'): print(is_terminal(None))"
    assert run_with_pipes(code) == ("False\n", "")


def test_progress_tolerates_a_closed_terminal(tmp_path: Path) -> None:
    ours, theirs = pty.openpty()
    code = (
        SLOW.replace("while not progress._is_drawn:", "for _ in range(20):") + "open('done', 'w')"
    )
    with subprocess.Popen(
        [sys.executable, "-c", code],
        stdin=theirs,
        stderr=theirs,
        stdout=subprocess.DEVNULL,
        cwd=tmp_path,
    ) as process:
        os.close(theirs)
        os.close(ours)
        process.wait(30)
    assert (tmp_path / "done").exists()
