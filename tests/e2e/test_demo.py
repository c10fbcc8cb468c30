"""Test `onetool demo`: it works, leaves no files behind, and can be stopped at any time."""

import json
import os
import pty
import re
import signal
import subprocess
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any
from xml.etree import ElementTree as ET

import pytest
from docs.pictures.make import select_steps
from docs.pictures.terminal_svg import CONTROL_CHARACTERS
from tests.cells_support import NIGHTLY
from tests.support import (
    PROGRAM,
    TIMEOUT_SECONDS,
    ProcessWatch,
    configure,
    environment,
    eventually,
    list_descendants,
    run_cli,
    scratch_directory,
)
from tests.ui_support import find_browser

from onetool.cli import demo

pytestmark = pytest.mark.slow
REJECTED = {"open('/etc/passwd').read()", "fs.write('notes.md', 'Call Ada back')", "machine.dsk()"}
MAX_LINE_LENGTH = 104
DOCS = Path(__file__).parents[2] / "docs"
EXIT_STATUSES = {signal.SIGINT: 130, signal.SIGTERM: 143}


@pytest.fixture(scope="module")
def demo_result(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    home = tmp_path_factory.mktemp("home")
    done = run_cli(home, "demo", "--json")
    assert (done.returncode, done.stderr) == (0, "")
    assert list_files(home) == []
    result: dict[str, Any] = json.loads(done.stdout)
    return result


def list_files(home: Path) -> list[Path]:
    return [path for path in home.rglob("*") if path != scratch_directory(home)]


def get_answer(demo_result: Mapping[str, Any], start: str) -> str:
    (answer,) = (step["answer"] for step in demo_result["steps"] if step["code"].startswith(start))
    return str(answer)


def test_every_step_has_the_expected_result(demo_result: dict[str, Any]) -> None:
    assert [step["problem"] for step in demo_result["steps"] if step["problem"]] == []
    assert {step["code"] for step in demo_result["steps"] if step["is_error"]} == REJECTED
    assert "orders.list-orders" in get_answer(demo_result, "ot.search")
    assert " years" in get_answer(demo_result, "hello.since")
    assert len(json.loads(get_answer(demo_result, "old = "))) == 3
    assert get_answer(demo_result, "sum(") == "61.0"
    assert "permissions: [read, write, network]" in get_answer(demo_result, "fs.write")
    assert "Did you mean machine.disk?" in get_answer(demo_result, "machine.dsk")


def test_a_large_result_is_searched_and_passed_on_by_handle(demo_result: dict[str, Any]) -> None:
    summary = json.loads(get_answer(demo_result, "tickets.export_log"))
    assert summary["total_lines"] == 1800
    found = next(step for step in demo_result["steps"] if step["code"].startswith("ot.result"))
    assert summary["handle"] in found["code"]
    assert found["answer"].count("the till prints nothing") == 2
    assert json.loads(get_answer(demo_result, "orders.archive_log"))["kept_lines"] == 1800


def test_the_savings_are_computed_from_the_runs(demo_result: dict[str, Any]) -> None:
    saved, calls = demo_result["saved"], [len(step["calls"]) for step in demo_result["steps"]]
    assert (saved["runs"], saved["calls"]) == (len(calls), sum(calls))
    assert saved["round_trips"] == sum(max(0, count - 1) for count in calls)
    assert (
        saved["context_saved"]
        == saved["definition_tokens"] - saved["own_tokens"] + saved["result_tokens"]
    )
    assert saved["definition_tokens"] > 10 * saved["own_tokens"]
    assert saved["result_tokens"] > 25_000, (
        "two logs of 54,025 bytes did not pass through the model"
    )


NUMBERS = re.compile(
    r"[0-9a-f]{32}|\d[\d.,:T+-]*"
)  # times, sizes and handles, which differ from run to run


def mask(line: str) -> str:
    """Return a line of the demonstration without numbers, except in code."""
    text = CONTROL_CHARACTERS.sub("", line)
    return text if ">>>" in text else NUMBERS.sub("0", text.partition("isolated processes:")[0])


def print_steps(demo_result: Mapping[str, Any]) -> None:
    """Print the results as `onetool demo` does."""
    saved = demo_result["saved"]
    demo.print_title()
    for number, result in enumerate(demo_result["steps"], 1):
        demo.print_code(number, result["title"], result["code"])
        demo.print_response(demo.StepResult(**result))
    summary: Any = {
        **saved,
        "savings": saved,
        "runs": {"total": saved["runs"]},
        "total_calls": saved["calls"],
    }
    demo.print_savings(summary, "")


def test_the_image_shows_what_the_demonstration_prints(
    demo_result: dict[str, Any], capsys: pytest.CaptureFixture[str]
) -> None:
    print_steps(demo_result)
    printed = select_steps(capsys.readouterr().out)
    drawn = ET.parse(DOCS / "pictures" / "demo.svg").iter("{http://www.w3.org/2000/svg}text")
    shown = ["".join(line.itertext()) for line in drawn]
    assert list(map(mask, shown)) == list(map(mask, printed)), (
        "run `uv run python docs/pictures/make.py`"
    )


@pytest.mark.nightly
def test_output_fits_the_terminal_and_names_the_next_commands(tmp_path: Path) -> None:
    done = run_cli(tmp_path, "demo")
    assert (done.returncode, done.stderr) == (0, "")
    shown = [
        line for line in done.stdout.splitlines() if ">>>" not in line and "http://" not in line
    ]
    assert [line for line in shown if len(line) > MAX_LINE_LENGTH] == []
    assert "more characters" in done.stdout
    assert "Not shown" not in done.stdout
    assert "call: orders.list_orders(customer)" in done.stdout, "hits are shown before notes"
    assert "\033" not in done.stdout
    for command in ("onetool init", "onetool connect", "onetool serve --http"):
        assert command in done.stdout
    assert list_files(tmp_path) == []


@pytest.mark.skipif(
    not NIGHTLY, reason="slow: plays the demo and starts a browser; `make nightly` runs it"
)
def test_the_images_of_the_documentation_can_be_regenerated(tmp_path: Path) -> None:
    find_browser()
    script = DOCS / "pictures" / "make.py"
    done = subprocess.run(
        [sys.executable, script, tmp_path], capture_output=True, text=True, timeout=110, check=False
    )
    assert done.returncode == 0, done.stderr
    drawn = "".join(ET.parse(tmp_path / "demo.svg").getroot().itertext())
    assert "Savings of these runs" in drawn
    assert 20_000 < (tmp_path / "ui.png").stat().st_size < 200_000


@pytest.mark.skipif(not NIGHTLY, reason="slow: creates thirty issues; `make nightly` runs it")
def test_the_recording_of_approvals_can_be_regenerated(tmp_path: Path) -> None:
    script = DOCS / "pictures" / "make_approvals.py"
    done = subprocess.run(
        [sys.executable, script, tmp_path], capture_output=True, text=True, timeout=110, check=False
    )
    assert done.returncode == 0, done.stderr
    drawn = "".join(ET.parse(tmp_path / "approvals.svg").getroot().itertext())
    assert "30 issues.txt" in drawn
    assert "kill -9" in drawn


@pytest.mark.skipif(not NIGHTLY, reason="slow: starts a shared server; `make nightly` runs it")
def test_the_recording_of_the_shared_server_can_be_regenerated(tmp_path: Path) -> None:
    script = DOCS / "pictures" / "make_shared_server.py"
    done = subprocess.run(
        [sys.executable, script, tmp_path], capture_output=True, text=True, timeout=110, check=False
    )
    assert done.returncode == 0, done.stderr
    drawn = "".join(ET.parse(tmp_path / "shared-server.svg").getroot().itertext())
    assert [line.split()[0] for line in drawn.splitlines() if "/home/babbage/shop" in line][:2] == [
        "claude-code",
        "cursor",
    ]


# --- other machines -------------------------------------------------------------------------------


def run_demo(home: Path, **variables: str) -> subprocess.CompletedProcess[str]:
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


@pytest.mark.nightly
def test_without_network_the_demo_skips_a_step_and_says_why(tmp_path: Path) -> None:
    """User settings and an ASCII terminal have no effect."""
    configure(tmp_path, "this: is wrong\n")
    before = list_files(tmp_path)
    user_settings = {"ONETOOL_OUTPUT__MAX_INLINE_SIZE": "0", "OT_CWD": "/nowhere"}
    done = run_demo(tmp_path, PYTHONIOENCODING="ascii", UV_OFFLINE="1", **user_settings)
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("Skipped: ") == 1
    assert "uv downloads the package humanize from PyPI" in done.stdout
    assert "step 5" in done.stderr
    assert '"handle"' in done.stdout
    assert "Savings of these runs" in done.stdout
    assert list_files(tmp_path) == before, "no statistics are written"


def test_a_missing_temporary_directory_is_a_clear_error(tmp_path: Path) -> None:
    code = (
        f"import tempfile; tempfile.tempdir = {str(tmp_path / 'missing')!r}; from onetool.cli.main"
        " import main"
    )
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


@pytest.mark.nightly
def test_a_closed_pipe_prints_no_traceback(tmp_path: Path) -> None:
    command = f"{PROGRAM} demo | head -n 2"
    done = subprocess.run(
        command,
        shell=True,
        env=environment(tmp_path),
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.stderr == ""
    assert list_files(tmp_path) == []


# --- in a terminal --------------------------------------------------------------------------------


class Terminal:
    """A demo in its own terminal, with the output so far."""

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

    def read_until(self, text: str) -> None:
        while text not in self.shown and self._read():
            pass
        assert text in self.shown, self.shown

    def read_to_the_end(self) -> str:
        while self._read():
            pass
        self.process.wait(TIMEOUT_SECONDS)
        os.close(self._ours)
        return self.shown

    def _read(self) -> bool:
        try:
            self.shown += os.read(self._ours, 1 << 16).decode("utf-8", "replace")
        except OSError:  # raised by Linux when the other end is closed
            return False
        return True

    def stop(self, number: int, times: int = 1) -> str:
        """Stop the demo, check that nothing is left, and return all output."""
        with ProcessWatch(list_descendants(self.process.pid)) as everything:
            for _ in range(times):
                self.process.send_signal(number)
            shown = self.read_to_the_end()
            assert everything.all_ended()
        assert list_files(self.home) == []
        return shown


@pytest.mark.nightly
def test_colors_are_disabled_by_no_color(tmp_path: Path) -> None:
    colored = Terminal(tmp_path)
    colored.read_until("\033[1m")
    colored.stop(signal.SIGINT)
    assert "\033[" not in Terminal(
        tmp_path, UV_OFFLINE="1", NO_COLOR="1"
    ).read_to_the_end().replace("\r\033[K", "")


MOMENTS: dict[str, Callable[[Terminal], None]] = {
    "directory created": lambda terminal: _wait_for_directory(terminal.home),
    "start": lambda terminal: terminal.read_until("OneTool"),
    "first run": lambda terminal: terminal.read_until("ot.search"),
    "server call": lambda terminal: terminal.read_until("tickets.list_tickets"),
    "end": lambda terminal: terminal.read_until("onetool serve --http"),
}


def _wait_for_directory(home: Path) -> None:
    assert eventually(lambda: list(scratch_directory(home).iterdir()))


@pytest.mark.sampled(5)
@pytest.mark.parametrize(
    ("moment", "number", "times"),
    [
        ("directory created", signal.SIGINT, 1),
        ("directory created", signal.SIGTERM, 1),
        ("start", signal.SIGINT, 1),
        ("first run", signal.SIGINT, 1),
        ("server call", signal.SIGINT, 5),
        ("end", signal.SIGINT, 5),
    ],
)
def test_the_demo_can_be_stopped_at_any_time(
    tmp_path: Path, moment: str, number: signal.Signals, times: int
) -> None:
    terminal = Terminal(tmp_path)
    MOMENTS[moment](terminal)
    shown = terminal.stop(number, times)
    assert "Traceback" not in shown
    allowed = {EXIT_STATUSES[number], 0} if moment == "end" else {EXIT_STATUSES[number]}
    assert terminal.process.returncode in allowed, shown


def test_a_running_uv_is_shown_and_can_be_stopped(tmp_path: Path, silent_index: str) -> None:
    terminal = Terminal(tmp_path, UV_DEFAULT_INDEX=silent_index, UV_INDEX_URL=silent_index)
    terminal.read_until("hello.since")
    terminal.read_until("uv is preparing")
    assert "Traceback" not in terminal.stop(signal.SIGINT)
    assert terminal.process.returncode == EXIT_STATUSES[signal.SIGINT]


@pytest.mark.skipif(not NIGHTLY, reason="waits for ten seconds; `make nightly` runs it")
def test_an_unresponsive_package_index_skips_only_one_step(
    tmp_path: Path, silent_index: str
) -> None:
    done = run_demo(tmp_path, UV_DEFAULT_INDEX=silent_index, UV_INDEX_URL=silent_index)
    assert done.returncode == 0
    assert done.stdout.count("Skipped: ") == 1
    assert "Savings of these runs" in done.stdout
    assert list_files(tmp_path) == []
