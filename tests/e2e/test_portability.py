"""OneTool without what only Linux or POSIX has.

Only the GitHub workflow runs on macOS and Windows themselves.
"""

import itertools
import subprocess
import sys
from pathlib import Path

import pytest
from tests.approvals_support import make_notes
from tests.support import TIMEOUT_SECONDS, environment

from onetool.runs.launch import SpawnLauncher, ZygoteLauncher, launcher_for
from onetool.runs.wasm_launcher import INSTALL, WasmLauncher, find_wasm_problem

ROOT = Path(__file__).parents[2]
START = "import sys; from onetool.cli.main import main; sys.exit(main(sys.argv[1:]))"


@pytest.mark.slow
def test_commands_work_without_posix(tmp_path: Path) -> None:
    """Import all modules, run code, pause a run for a person, reject a file tool, and serve HTTP
    until a signal.
    """
    make_notes(tmp_path)
    commands = [
        "run",
        "1+1",
        ",",
        "run",
        "notes.add('x')",
        ",",
        "run",
        "fs.read('x')",
        ",",
        "serve",
        "--http",
        "--port",
        "0",
    ]
    with subprocess.Popen(
        [sys.executable, "-m", "tests.e2e.without_posix", *commands],
        cwd=ROOT,
        env={**environment(tmp_path), "PYTHONWARNINGS": "ignore", "PYTHONUNBUFFERED": "1"},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        encoding="utf-8",
    ) as process:
        assert process.stdout is not None
        printed = list(
            itertools.takewhile(lambda line: "http://127.0.0.1" not in line, process.stdout)
        )
        process.terminate()
        printed += process.stdout
    assert "2\n" in printed, printed
    assert any("file tools are not available on Windows" in line for line in printed), printed
    assert printed[-1] == "[0, 3, 1, 0]\n", printed


def test_the_launcher_depends_on_the_platform_and_the_setting() -> None:
    elsewhere = SpawnLauncher if find_wasm_problem() else WasmLauncher
    assert launcher_for("linux", "auto") is ZygoteLauncher
    assert launcher_for("linux", "wasm") is WasmLauncher
    for platform in ("darwin", "win32"):
        assert launcher_for(platform, "auto") is launcher_for(platform, "require") is elsewhere
        assert launcher_for(platform, "off") is SpawnLauncher
        assert launcher_for(platform, "wasm") is WasmLauncher


def test_a_missing_extra_is_an_error_and_nothing_runs(tmp_path: Path) -> None:
    """Hide the extra, if it is installed, by a directory with a broken package of its name."""
    (tmp_path / "hidden" / "eryx").mkdir(parents=True)
    (tmp_path / "hidden" / "eryx" / "__init__.py").write_text(
        "raise ImportError('it is broken')", encoding="utf-8"
    )
    (tmp_path / ".onetool").mkdir()
    (tmp_path / ".onetool" / "onetool.yaml").write_text(
        "execution: {isolation: wasm}", encoding="utf-8"
    )
    result = subprocess.run(
        [sys.executable, "-c", START, "run", "open('ran', 'w')"],
        cwd=tmp_path,
        env={**environment(tmp_path), "PYTHONPATH": str(tmp_path / "hidden")},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        encoding="utf-8",
        timeout=TIMEOUT_SECONDS,
        check=False,
    )
    expected = (
        "it is broken"
        if sys.version_info >= (3, 12)
        else "requires Python 3.12 or newer, this is 3.11"
    )
    assert expected in result.stdout + result.stderr
    assert result.returncode == 1
    assert not (tmp_path / "ran").exists()


@pytest.mark.skipif(
    sys.version_info < (3, 12) or not find_wasm_problem(), reason="the extra is installed"
)
def test_the_missing_extra_is_named_with_the_command_that_installs_it() -> None:
    assert find_wasm_problem().endswith(INSTALL)
