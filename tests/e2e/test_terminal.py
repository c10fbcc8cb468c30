"""Colours and progress, in real pseudo-terminals and without one."""

import os
import pty
import re
import subprocess
import sys
from pathlib import Path

import pytest

COLOURS = "from onetool.cli.terminal import *; print(bold('b') + dim('d') + red('r') + green('g') + yellow('y'))"
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
QUICK = "from onetool.cli.terminal import Progress\nwith Progress('words') as progress:\n    progress.update('more')"


def in_terminal(code: str, **env: str) -> str:
    """What a terminal shows, of both streams."""
    ours, theirs = pty.openpty()
    with subprocess.Popen(
        [sys.executable, "-c", code], stdin=theirs, stdout=theirs, stderr=theirs, env={**os.environ, **env}
    ) as process:
        os.close(theirs)
        shown = b"".join(iter(lambda: _read(ours), b""))
        assert process.wait(30) == 0, shown
    os.close(ours)
    return shown.decode()


def _read(terminal: int) -> bytes:
    try:
        return os.read(terminal, 65536)
    except OSError:  # what a terminal says when its last process has gone
        return b""


def piped(code: str) -> tuple[str, str]:
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=30, check=True)
    return done.stdout, done.stderr


def test_a_terminal_gets_colours() -> None:
    shown = in_terminal(COLOURS, TERM="xterm", NO_COLOR="")
    assert re.findall(r"\033\[(\d+)m(\w)", shown) == [("1", "b"), ("2", "d"), ("31", "r"), ("32", "g"), ("33", "y")]


@pytest.mark.parametrize("env", [{"NO_COLOR": "1"}, {"NO_COLOR": "", "TERM": "dumb"}])
def test_who_wants_no_colours_gets_none(env: dict[str, str]) -> None:
    assert in_terminal(COLOURS, **env).strip() == "bdrgy"


def test_a_pipe_gets_neither_colours_nor_progress() -> None:
    assert piped(COLOURS) == ("bdrgy\n", "")
    assert piped(SLOW.replace("while not progress._is_drawn:", "if False:")) == ("after\n", "")


def test_progress_is_one_line_that_is_wiped() -> None:
    shown = in_terminal(SLOW, TERM="xterm")
    assert "first words" in shown
    assert [line.rpartition("\r\033[K")[2] for line in shown.split("\r\n")] == ["after", ""]
    assert all(len(line) < 80 for line in shown.replace("\r\033[K", "\n").splitlines())
    assert "\033[31m" not in shown, "words from elsewhere move no cursor"


def test_what_is_quick_shows_nothing() -> None:
    assert in_terminal(QUICK, TERM="xterm") == ""


def test_a_dumb_terminal_shows_no_progress() -> None:
    assert in_terminal(SLOW.replace("while not progress._is_drawn:", "if False:"), TERM="dumb") == "after\r\n"


def test_closed_streams_are_no_terminal() -> None:
    code = "import sys; sys.stderr = None\nfrom onetool.cli.terminal import *\n"
    code += "with Progress('x'): print(is_terminal(None))"
    assert piped(code) == ("False\n", "")


def test_progress_survives_a_terminal_that_goes_away(tmp_path: Path) -> None:
    ours, theirs = pty.openpty()
    code = SLOW.replace("while not progress._is_drawn:", "for _ in range(20):") + "open('done', 'w')"
    with subprocess.Popen(
        [sys.executable, "-c", code], stdin=theirs, stderr=theirs, stdout=subprocess.DEVNULL, cwd=tmp_path
    ) as process:
        os.close(theirs)
        os.close(ours)
        process.wait(30)
    assert (tmp_path / "done").exists()
