"""The `test` pack: runs the tests of the working directory with pytest or mix.

Only a run that completed, and whose report and exit status agree, has a result. Everything else is an error, so that a
partial run is never taken for a success. Processes that the tests started end with them.
"""

import asyncio
import os
import re
import shutil
import signal
import sys
import tempfile
from collections.abc import Callable, Container, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import anyio.to_thread

from onetool._tool import tool
from onetool.children import programs
from onetool.context import ToolContext
from onetool.errors import ArgumentError, ToolError, ToolTimeout
from onetool.extensions.environments import make_uv_environment, make_worker_environment
from onetool.files import Files
from onetool.tools.reports import ReportError, SuiteReport, parse_junit, parse_mix
from onetool.util.text import pluralize, quote
from onetool_child.guard import SIGNALLED

__all__ = ["run"]

MAX_TIMEOUT_MS = 86_400_000
MAX_OUTPUT_BYTES, MAX_SHOWN_CHARS = 1 << 20, 4000
IN_VENV = ("Scripts", "python.exe") if sys.platform == "win32" else ("bin", "python")
INTERRUPTED, NO_TESTS = 2, 5  # exit statuses of pytest
MEANING = {
    INTERRUPTED: "the run was interrupted",
    3: "pytest failed with an internal error",
    4: "pytest rejected its arguments, or the tests do not exist",
    NO_TESTS: "no tests found",
}
MIX_LINES = re.compile(r"(?::\d+)+$")


@tool(permissions=["exec"], limits=("timeout_ms",))
async def run(
    context: ToolContext, path: str | None = None, timeout_ms: int = 60_000, env: dict[str, str] | None = None
) -> dict[str, Any]:
    """Run the tests of the working directory: how many passed, failed and were skipped, and the failures.

    A directory with a mix.exs is tested with mix, any other with pytest from its .venv, its uv project or the PATH. A
    run that times out, crashes or finds no tests is an error.

    Args:
        path: A file, a directory or one test, like "tests/test_a.py::test_b"; for mix "test/a_test.exs:12". All tests
            by default.
        timeout_ms: Timeout in milliseconds, after which the run and its processes are killed.
        env: Environment variables for the tests, in addition to a minimal set.

    Example:
        test.run(path="tests/test_agent.py", timeout_ms=30000)
    """
    if timeout_ms < 1:
        raise ArgumentError(f"invalid timeout_ms {timeout_ms} (expected 1 or more)", field="timeout_ms")
    variables = _check_variables(env or {})
    folder = await anyio.to_thread.run_sync(Files(context).resolve_search_root, ".")
    private = Path(await anyio.to_thread.run_sync(tempfile.mkdtemp, "", "onetool-test-"))
    try:
        suite = await anyio.to_thread.run_sync(_choose_suite, context, folder, private / "report.xml", path, variables)
        output = programs.OutputTail(MAX_OUTPUT_BYTES)
        seconds = min(timeout_ms, MAX_TIMEOUT_MS) / 1000
        program = programs.Program(suite.command, folder, suite.variables, seconds, starts_others=True)
        ended = await programs.run(program, output, output)
        return await anyio.to_thread.run_sync(_build_result, suite, ended, str(output), timeout_ms)
    finally:  # not awaited, so that it also happens after a cancellation
        asyncio.get_running_loop().run_in_executor(None, shutil.rmtree, private, True)


def _check_variables(given: Mapping[str, str]) -> Mapping[str, str]:
    for name, value in given.items():
        if not name or "=" in name or "\0" in name + value:
            raise ArgumentError(f"invalid environment variable {quote(name)}: it contains = or NUL", field="env")
        try:
            (name + value).encode()
        except UnicodeEncodeError:
            raise ArgumentError(
                f"invalid environment variable {quote(name)}: it contains an unpaired surrogate", field="env"
            ) from None
    return given


# --- the command ----------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _Suite:
    """A command that runs tests. `report` parses its report; `failed` are its exit statuses if tests failed."""

    name: str
    command: list[str]
    variables: Mapping[str, str]
    report: Callable[[str], SuiteReport]
    failed: Container[int]


def _choose_suite(
    context: ToolContext, folder: Path, report: Path, path: str | None, given: Mapping[str, str]
) -> _Suite:
    variables: Mapping[str, str] = {**make_worker_environment(os.environ), **given}
    if (folder / "mix.exs").exists():
        target = _resolve_target(context, path, MIX_LINES)
        mix = shutil.which("mix", path=variables.get("PATH"))
        if mix is None:
            raise ToolError("mix.exs found, but mix is not installed; see elixir-lang.org/install")
        return _Suite("mix test", [mix, "test", *target], variables, parse_mix, range(1, SIGNALLED))
    target = _resolve_target(context, path, re.compile(r"::.*", re.DOTALL))
    options = [f"--junitxml={report}", "-o", "junit_family=xunit1", "--color=no"]
    command, variables = _find_pytest(folder, variables, given)
    return _Suite("pytest", [*command, *options, *target], variables, lambda _: parse_junit(report), {1, INTERRUPTED})


def _resolve_target(context: ToolContext, path: str | None, inner: re.Pattern[str]) -> list[str]:
    """Return the tests to run as an absolute path, so that it is inside the sandbox and never parsed as an option."""
    if path is None:
        return []
    if "\0" in path:
        raise ArgumentError("path contains a NUL character", field="path")
    found = inner.search(path)
    file = path[: found.start()] if found else path
    return [f"{Files(context).resolve_search_root(file)}{found[0] if found else ''}"]


def _find_pytest(
    folder: Path, variables: Mapping[str, str], given: Mapping[str, str]
) -> tuple[list[str], Mapping[str, str]]:
    python = folder.joinpath(".venv", *IN_VENV)
    if python.exists():
        return [str(python), "-m", "pytest"], variables
    if (folder / "pyproject.toml").exists() and (folder / "uv.lock").exists():
        from uv import find_uv_bin

        return [find_uv_bin(), "run", "--no-progress", "python", "-m", "pytest"], {
            **make_uv_environment(os.environ),
            **given,
        }
    found = shutil.which("pytest", path=variables.get("PATH"))
    if found is None:
        raise ToolError(
            f"pytest not found for {folder}: no .venv, no uv.lock, and no pytest on the PATH",
            hint="run `uv venv && uv pip install pytest`",
        )
    return [found], variables


# --- the result ---------------------------------------------------------------------------------------------------


def _build_result(suite: _Suite, ended: programs.Ended, output: str, timeout_ms: int) -> dict[str, Any]:
    shown = output[-MAX_SHOWN_CHARS:]
    if ended.timed_out or ended.status is None:
        raise ToolTimeout(
            f"the tests took longer than {timeout_ms} ms and were killed; their outcome is unknown"
            f"{_format_output(shown)}",
            timeout_ms=timeout_ms,
            output=shown,
        )
    report = _read_report(suite, ended.status, output)
    incomplete = "not all tests ran: some could not be collected, or the run was interrupted"
    return {
        "passed": report.passed,
        "failed": report.failed,
        "skipped": report.skipped,
        "duration_ms": round(ended.seconds * 1000),
        "failures": [asdict(failure) for failure in report.failures],
        "output": shown,
        **({"incomplete": incomplete} if suite.name == "pytest" and ended.status == INTERRUPTED else {}),
    }


def _read_report(suite: _Suite, status: int, output: str) -> SuiteReport:
    """Return the report if it agrees with the exit status; raise an error otherwise."""
    shown = output[-MAX_SHOWN_CHARS:]
    try:
        report = suite.report(output)
    except ReportError as problem:
        raise _no_result_error(suite, status, str(problem), shown) from None
    if report.is_empty:
        reason = MEANING[NO_TESTS] if status in {0, NO_TESTS} else "no tests were run"
        raise _no_result_error(suite, status, reason, shown)
    if not (status in suite.failed if report.failed else status == 0):
        raise _no_result_error(
            suite,
            status,
            f"its report counts {pluralize(report.failed, 'failure')}, which contradicts the exit status",
            shown,
        )
    return report


def _no_result_error(suite: _Suite, status: int, problem: str, shown: str) -> ToolError:
    meaning = MEANING.get(status, "") if suite.name == "pytest" else ""
    why = ": ".join(dict.fromkeys(part for part in (meaning, problem) if part))
    return ToolError(
        f"no test result: {suite.name} exited with {_format_status(status)}, {why}{_format_output(shown)}",
        status=status,
        output=shown,
    )


def _format_status(status: int) -> str:
    try:
        return signal.Signals(status - SIGNALLED if status > SIGNALLED else -status).name
    except ValueError:
        return f"status {status}"


def _format_output(shown: str) -> str:
    return f". Last output:\n{shown[-1500:]}" if shown else ""
