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
from onetool.system import get_system
from onetool.tools.reports import ReportError, SuiteReport, parse_junit, parse_mix
from onetool.util.text import pluralize, quote
from onetool_child.guard import SIGNAL_STATUS_OFFSET

__all__ = ["run"]

MAX_TIMEOUT_MS = 86_400_000
MAX_OUTPUT_BYTES, MAX_TAIL_CHARS = 1 << 20, 4000
VENV_PYTHON = ("Scripts", "python.exe") if sys.platform == "win32" else ("bin", "python")
INTERRUPTED, NO_TESTS = 2, 5  # exit statuses of pytest
PYTEST_STATUSES = {
    INTERRUPTED: "the run was interrupted",
    3: "pytest failed with an internal error",
    4: "pytest rejected its arguments, or the tests do not exist",
    NO_TESTS: "no tests found",
}
MIX_LINES = re.compile(r"(?::\d+)+$")


@tool(permissions=["exec"], labels=["private"], limits=("timeout_ms",))
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
    directory = await anyio.to_thread.run_sync(Files(context).resolve_search_root, ".")
    private = Path(await anyio.to_thread.run_sync(tempfile.mkdtemp, "", "onetool-test-"))
    try:
        suite = await anyio.to_thread.run_sync(
            _choose_suite, context, directory, private / "report.xml", path, variables
        )
        output = programs.OutputTail(MAX_OUTPUT_BYTES)
        seconds = min(timeout_ms, MAX_TIMEOUT_MS) / 1000
        program = programs.Program(suite.command, directory, suite.variables, seconds, starts_others=True)
        ended = await programs.run(program, output, output)
        return await anyio.to_thread.run_sync(_build_result, suite, ended, str(output), timeout_ms)
    finally:  # not awaited, so that it also happens after a cancellation
        asyncio.get_running_loop().run_in_executor(None, shutil.rmtree, private, True)


def _check_variables(extra: Mapping[str, str]) -> Mapping[str, str]:
    for name, value in extra.items():
        if not name or "=" in name or "\0" in name + value:
            raise ArgumentError(f"invalid environment variable {quote(name)}: it contains = or NUL", field="env")
        try:
            (name + value).encode()
        except UnicodeEncodeError:
            raise ArgumentError(
                f"invalid environment variable {quote(name)}: it contains an unpaired surrogate", field="env"
            ) from None
    return extra


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
    context: ToolContext, directory: Path, report: Path, path: str | None, extra: Mapping[str, str]
) -> _Suite:
    environment = os.environ if context.system is None else get_system(context).environment
    variables: Mapping[str, str] = {**make_worker_environment(environment), **extra}
    if (directory / "mix.exs").exists():
        target = _resolve_target(context, path, MIX_LINES)
        mix = shutil.which("mix", path=variables.get("PATH"))
        if mix is None:
            raise ToolError("mix.exs found, but mix is not installed; see elixir-lang.org/install")
        return _Suite("mix test", [mix, "test", *target], variables, parse_mix, range(1, SIGNAL_STATUS_OFFSET))
    target = _resolve_target(context, path, re.compile(r"::.*", re.DOTALL))
    options = [f"--junitxml={report}", "-o", "junit_family=xunit1", "--color=no"]
    command, variables = _find_pytest(directory, environment, variables, extra)
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
    directory: Path, environment: Mapping[str, str], variables: Mapping[str, str], extra: Mapping[str, str]
) -> tuple[list[str], Mapping[str, str]]:
    python = directory.joinpath(".venv", *VENV_PYTHON)
    if python.exists():
        return [str(python), "-m", "pytest"], variables
    if (directory / "pyproject.toml").exists() and (directory / "uv.lock").exists():
        from uv import find_uv_bin

        return [find_uv_bin(), "run", "--no-progress", "python", "-m", "pytest"], {
            **make_uv_environment(environment),
            **extra,
        }
    found = shutil.which("pytest", path=variables.get("PATH"))
    if found is None:
        raise ToolError(
            f"pytest not found for {directory}: no .venv, no uv.lock, and no pytest on the PATH",
            hint="run `uv venv && uv pip install pytest`",
        )
    return [found], variables


# --- the result ---------------------------------------------------------------------------------------------------


def _build_result(suite: _Suite, ended: programs.Ended, output: str, timeout_ms: int) -> dict[str, Any]:
    tail = output[-MAX_TAIL_CHARS:]
    if ended.timed_out or ended.status is None:
        raise ToolTimeout(
            f"the tests took longer than {timeout_ms} ms and were killed; their outcome is unknown"
            f"{_format_output(tail)}",
            timeout_ms=timeout_ms,
            output=tail,
        )
    report = _read_report(suite, ended.status, output)
    incomplete = "not all tests ran: some could not be collected, or the run was interrupted"
    return {
        "passed": report.passed,
        "failed": report.failed,
        "skipped": report.skipped,
        "duration_ms": round(ended.seconds * 1000),
        "failures": [asdict(failure) for failure in report.failures],
        "output": tail,
        **({"incomplete": incomplete} if suite.name == "pytest" and ended.status == INTERRUPTED else {}),
    }


def _read_report(suite: _Suite, status: int, output: str) -> SuiteReport:
    """Return the report if it agrees with the exit status; raise an error otherwise."""
    tail = output[-MAX_TAIL_CHARS:]
    try:
        report = suite.report(output)
    except ReportError as problem:
        raise _no_result_error(suite, status, str(problem), tail) from None
    if report.is_empty:
        reason = PYTEST_STATUSES[NO_TESTS] if status in {0, NO_TESTS} else "no tests were run"
        raise _no_result_error(suite, status, reason, tail)
    if not (status in suite.failed if report.failed else status == 0):
        raise _no_result_error(
            suite,
            status,
            f"its report counts {pluralize(report.failed, 'failure')}, which contradicts the exit status",
            tail,
        )
    return report


def _no_result_error(suite: _Suite, status: int, problem: str, tail: str) -> ToolError:
    meaning = PYTEST_STATUSES.get(status, "") if suite.name == "pytest" else ""
    reason = "; ".join(dict.fromkeys(part for part in (meaning, problem) if part))
    return ToolError(
        f"no test result: {suite.name} exited with {_format_status(status)}: {reason}{_format_output(tail)}",
        status=status,
        output=tail,
    )


def _format_status(status: int) -> str:
    try:
        return signal.Signals(status - SIGNAL_STATUS_OFFSET if status > SIGNAL_STATUS_OFFSET else -status).name
    except ValueError:
        return f"status {status}"


def _format_output(tail: str) -> str:
    return f". Last output:\n{tail[-1500:]}" if tail else ""
