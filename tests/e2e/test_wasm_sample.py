"""Start the tests of WebAssembly sandboxes with an interpreter that can run them: a sample, or
nightly all of them.
"""

import functools
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from tests.cells_support import NIGHTLY
from tests.support import ISOLATION

from onetool.runs.wasm_launcher import MIN_PYTHON, find_wasm_problem

ROOT = Path(__file__).parents[2]
SAMPLE = (
    "tests/e2e/test_wasm_cells.py",
    "tests/e2e/test_wasm_attacks.py::test_a_forged_call_is_validated_and_needs_permission",
    "tests/e2e/test_wasm_attacks.py::test_a_run_that_floods_after_its_answer_is_ended",
    "tests/e2e/test_mcp_stdio.py::test_output_of_a_run_is_sent_as_progress[auto]",
    "tests/spec/test_run_snippets.py::test_a_snippet_may_await_in_sync_and_async_code",
)
SCENARIOS = (
    *("tests/e2e/test_wasm_attacks.py", "tests/spec/test_run_snippets.py"),
    *(
        "tests/spec/test_run_tool.py",
        "tests/spec/test_run_details.py",
        "tests/spec/test_run_results.py",
    ),
    *(
        "tests/spec/test_tool_execution.py",
        "tests/spec/test_ot_pack.py",
        "tests/e2e/test_escapes.py",
    ),
    *("tests/e2e/test_python_idioms.py", "tests/e2e/test_plans.py", "tests/e2e/test_sessions.py"),
    *(
        "tests/e2e/test_recorded_runs.py",
        "tests/e2e/test_names.py",
        "tests/e2e/test_huge_arguments.py",
    ),
    *(
        "tests/e2e/test_cells.py",
        "tests/e2e/test_hostile_results.py",
        "tests/e2e/test_replayable_cells.py",
    ),
    *(
        "tests/e2e/test_approvals.py",
        "tests/e2e/test_approval_kills.py",
        "tests/e2e/test_message_floods.py",
    ),
    "tests/e2e/test_mcp_stdio.py::test_a_long_run_reports_its_progress",
)
CHECK = f"import sys; sys.exit(sys.version_info < {MIN_PYTHON})"


@functools.cache
def find_python() -> str:
    """Return an interpreter that can run sandboxes: this one, or one of the machine."""
    names = [shutil.which(f"python3.{minor}") for minor in (12, 13, 14)]
    installed = sorted(
        Path(sys.base_prefix).parent.glob("3.1[2-9]*/bin/python")
    )  # as pyenv installs them
    for candidate in (sys.executable, *filter(None, names), *map(str, installed)):
        if (
            subprocess.run([candidate, "-c", CHECK], capture_output=True, check=False).returncode
            == 0
        ):
            return candidate
    pytest.skip("Python 3.12 or newer is not installed")  # no package of the distribution has it


@pytest.mark.slow
@pytest.mark.skipif(ISOLATION == "wasm", reason="this is the run that the test starts")
@pytest.mark.timeout(4 * 3600 if NIGHTLY else 600)
def test_runs_work_in_sandboxes(tmp_path: Path) -> None:
    files = (*SAMPLE, *(SCENARIOS if NIGHTLY else ()))
    command = [
        "uv",
        "run",
        "--quiet",
        "--extra",
        "wasm",
        "--python",
        find_python(),
        "pytest",
        "-n",
        "0",
        *files,
    ]
    if not find_wasm_problem():
        command = [sys.executable, "-m", "pytest", "-n", "0", *files]
    command += (
        [] if NIGHTLY else ["-k", "not (pause_for or shared_directory or sleep)"]
    )  # they take half of the time
    command += ["--timeout", "3000"] if NIGHTLY else []  # one fixture makes all attempts to escape
    # Each file in its short version: the long ones would take hours.
    left_out = ("PYTEST", "ONETOOL_NIGHTLY")
    environment = {
        name: value for name, value in os.environ.items() if not name.startswith(left_out)
    }
    result = subprocess.run(
        [
            *command,
            "--isolation",
            "wasm",
            "-p",
            "no:cacheprovider",
            "--basetemp",
            str(tmp_path / "base"),
        ],
        cwd=ROOT,
        env={**environment, "UV_PROJECT_ENVIRONMENT": str(tmp_path / "environment")},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        encoding="utf-8",
        check=False,
    )
    assert result.returncode == 0, result.stdout[-5000:]
    assert "skipped" not in result.stdout, result.stdout[-5000:]
