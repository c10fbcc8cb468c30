"""`onetool demo` as a stranger meets it: it works, nothing is left of it, and it can be stopped at any moment."""

import json
import os
import pty
import signal
import subprocess
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any
from xml.etree import ElementTree as ET

import pytest
from tests.cells_support import NIGHTLY
from tests.conftest import find_program
from tests.support import (
    PROGRAM,
    ProcessWatch,
    configure,
    environment,
    eventually,
    list_descendants,
    run_cli,
    scratch_directory,
)

pytestmark = pytest.mark.slow
REFUSED = {"open('/etc/passwd').read()", "fs.write('notes.md', 'Call Ada back')", "machine.dsk()"}
LONGEST_LINE = 104
STOPPED = {signal.SIGINT: 130, signal.SIGTERM: 143}


@pytest.fixture(scope="module")
def seen(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    home = tmp_path_factory.mktemp("home")
    done = run_cli(home, "demo", "--json")
    assert (done.returncode, done.stderr) == (0, "")
    assert left_in(home) == []
    told: dict[str, Any] = json.loads(done.stdout)
    return told


def left_in(home: Path) -> list[Path]:
    return [path for path in home.rglob("*") if path != scratch_directory(home)]


def answer_to(seen: Mapping[str, Any], start: str) -> str:
    (answer,) = (step["answer"] for step in seen["steps"] if step["code"].startswith(start))
    return str(answer)


def test_every_step_shows_what_it_is_to_show(seen: dict[str, Any]) -> None:
    assert [step["problem"] for step in seen["steps"] if step["problem"]] == []
    assert {step["code"] for step in seen["steps"] if step["is_error"]} == REFUSED
    assert "orders.list-orders" in answer_to(seen, "ot.search")
    assert " years" in answer_to(seen, "hello.since")
    assert len(json.loads(answer_to(seen, "old = "))) == 3
    assert answer_to(seen, "sum(") == "61.0"
    assert "permissions: [read, write, network]" in answer_to(seen, "fs.write")
    assert "Did you mean machine.disk?" in answer_to(seen, "machine.dsk")


def test_a_large_result_is_looked_into_and_passed_on_without_being_shown(seen: dict[str, Any]) -> None:
    summary = json.loads(answer_to(seen, "tickets.export_log"))
    assert summary["total_lines"] == 1800
    found = next(step for step in seen["steps"] if step["code"].startswith("ot.result"))
    assert summary["handle"] in found["code"]
    assert found["answer"].count("the till prints nothing") == 2
    assert json.loads(answer_to(seen, "orders.archive_log"))["kept_lines"] == 1800


def test_what_was_saved_is_counted_and_not_made_up(seen: dict[str, Any]) -> None:
    saved, calls = seen["saved"], [len(step["calls"]) for step in seen["steps"]]
    assert (saved["runs"], saved["calls"]) == (len(calls), sum(calls))
    assert saved["round_trips"] == sum(max(0, count - 1) for count in calls)
    assert saved["context_saved"] == saved["definition_tokens"] - saved["own_tokens"] + saved["result_tokens"]
    assert saved["definition_tokens"] > 10 * saved["own_tokens"]
    assert saved["result_tokens"] > 25_000, "two logs of 54,025 bytes did not pass through the model"


def test_a_person_sees_no_more_than_fits_and_what_is_next(tmp_path: Path) -> None:
    done = run_cli(tmp_path, "demo")
    assert (done.returncode, done.stderr) == (0, "")
    shown = [line for line in done.stdout.splitlines() if ">>>" not in line and "http://" not in line]
    assert [line for line in shown if len(line) > LONGEST_LINE] == []
    assert "more characters" in done.stdout
    assert "Not shown" not in done.stdout
    assert "\033" not in done.stdout
    for command in ("onetool init", "onetool connect", "onetool serve --http"):
        assert command in done.stdout
    assert left_in(tmp_path) == []


@pytest.mark.skipif(not NIGHTLY, reason="it plays the demonstration and starts a browser; `make nightly` does")
def test_the_pictures_of_the_documents_can_be_made_anew(tmp_path: Path) -> None:
    find_program("chromium")
    script = Path(__file__).parents[2] / "docs" / "pictures" / "make.py"
    done = subprocess.run([sys.executable, script, tmp_path], capture_output=True, text=True, timeout=110, check=False)
    assert done.returncode == 0, done.stderr
    drawn = "".join(ET.parse(tmp_path / "demo.svg").getroot().itertext())
    assert "Savings of these runs" in drawn
    assert 20_000 < (tmp_path / "ui.png").stat().st_size < 200_000


# --- other machines --------------------------------------------------------------------------------------------------


def demo(home: Path, **variables: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [PROGRAM, "demo"],
        cwd=home,
        env={**environment(home), **variables},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        encoding="utf-8",
        timeout=60,
        check=False,
    )


def test_without_a_network_it_says_what_cannot_be_shown_and_why(tmp_path: Path) -> None:
    """Settings of the person, and a terminal that knows few letters, change nothing."""
    configure(tmp_path, "this: is wrong\n")
    before = left_in(tmp_path)
    of_the_person = {"ONETOOL_OUTPUT__MAX_INLINE_SIZE": "0", "OT_CWD": "/nowhere"}
    done = demo(tmp_path, PYTHONIOENCODING="ascii", UV_OFFLINE="1", **of_the_person)
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("Skipped: ") == 1
    assert "uv downloads the package humanize from PyPI" in done.stdout
    assert "step 5" in done.stderr
    assert '"handle"' in done.stdout
    assert "Savings of these runs" in done.stdout
    assert left_in(tmp_path) == before, "not even statistics"


def test_a_machine_without_room_for_it_is_told_in_words(tmp_path: Path) -> None:
    code = f"import tempfile; tempfile.tempdir = {str(tmp_path / 'missing')!r}; from onetool.cli.main import main"
    done = subprocess.run(
        [sys.executable, "-c", f"{code}; raise SystemExit(main(['demo']))"],
        env=environment(tmp_path),
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 1
    assert done.stderr.startswith("onetool: no usable directory for temporary files")
    assert "Traceback" not in done.stderr


def test_a_reader_that_goes_away_is_no_traceback(tmp_path: Path) -> None:
    command = f"{PROGRAM} demo | head -n 2"
    done = subprocess.run(
        command, shell=True, env=environment(tmp_path), cwd=tmp_path, capture_output=True, text=True, check=False
    )
    assert done.stderr == ""
    assert left_in(tmp_path) == []


# --- in a terminal ---------------------------------------------------------------------------------------------------


class Terminal:
    """A demonstration on a terminal of its own, and all that was written there so far."""

    def __init__(self, home: Path, **variables: str) -> None:
        self.home, self.shown = home, ""
        self._ours, theirs = pty.openpty()
        self.process = subprocess.Popen(
            [PROGRAM, "demo"],
            cwd=home,
            env={**environment(home), "TERM": "xterm", **variables},
            stdin=theirs,
            stdout=theirs,
            stderr=theirs,
            start_new_session=True,
        )
        os.close(theirs)

    def read_until(self, words: str) -> None:
        while words not in self.shown and self._read():
            pass
        assert words in self.shown, self.shown

    def read_to_the_end(self) -> str:
        while self._read():
            pass
        self.process.wait(10)
        os.close(self._ours)
        return self.shown

    def _read(self) -> bool:
        try:
            self.shown += os.read(self._ours, 1 << 16).decode("utf-8", "replace")
        except OSError:  # Linux says so when nobody has the other end any more
            return False
        return True

    def stop(self, number: int, times: int = 1) -> str:
        """What was shown in all; that nothing is left is seen to here."""
        with ProcessWatch(list_descendants(self.process.pid)) as everything:
            for _ in range(times):
                self.process.send_signal(number)
            shown = self.read_to_the_end()
            assert everything.all_ended()
        assert left_in(self.home) == []
        return shown


def test_colours_are_for_terminals_that_want_them(tmp_path: Path) -> None:
    coloured = Terminal(tmp_path)
    coloured.read_until("\033[1m")
    coloured.stop(signal.SIGINT)
    assert "\033[" not in Terminal(tmp_path, UV_OFFLINE="1", NO_COLOR="1").read_to_the_end().replace("\r\033[K", "")


MOMENTS: dict[str, Callable[[Terminal], None]] = {
    "the folder is made": lambda terminal: _folder_is_there(terminal.home),
    "it begins": lambda terminal: terminal.read_until("OneTool"),
    "the first run": lambda terminal: terminal.read_until("ot.search"),
    "a server is called": lambda terminal: terminal.read_until("tickets.list_tickets"),
    "it closes": lambda terminal: terminal.read_until("onetool serve --http"),
}


def _folder_is_there(home: Path) -> None:
    assert eventually(lambda: list(scratch_directory(home).iterdir()))


@pytest.mark.parametrize(
    ("moment", "number", "times"),
    [
        ("the folder is made", signal.SIGINT, 1),
        ("the folder is made", signal.SIGTERM, 1),
        ("it begins", signal.SIGINT, 1),
        ("the first run", signal.SIGINT, 1),
        ("a server is called", signal.SIGINT, 5),
        ("it closes", signal.SIGINT, 5),
    ],
)
def test_it_can_be_stopped_at_any_moment(tmp_path: Path, moment: str, number: signal.Signals, times: int) -> None:
    terminal = Terminal(tmp_path)
    MOMENTS[moment](terminal)
    shown = terminal.stop(number, times)
    assert "Traceback" not in shown
    allowed = {STOPPED[number], 0} if moment == "it closes" else {STOPPED[number]}
    assert terminal.process.returncode in allowed, shown


def test_uv_at_work_is_seen_and_stopped(tmp_path: Path, silent_index: str) -> None:
    terminal = Terminal(tmp_path, UV_DEFAULT_INDEX=silent_index, UV_INDEX_URL=silent_index)
    terminal.read_until("hello.since")
    terminal.read_until("uv is preparing")
    assert "Traceback" not in terminal.stop(signal.SIGINT)
    assert terminal.process.returncode == STOPPED[signal.SIGINT]


@pytest.mark.skipif(not NIGHTLY, reason="it waits for ten seconds; `make nightly` does")
def test_an_index_that_never_answers_holds_up_one_step_only(tmp_path: Path, silent_index: str) -> None:
    done = demo(tmp_path, UV_DEFAULT_INDEX=silent_index, UV_INDEX_URL=silent_index)
    assert done.returncode == 0
    assert done.stdout.count("Skipped: ") == 1
    assert "Savings of these runs" in done.stdout
    assert left_in(tmp_path) == []
