"""The `test` pack: running the tests of the working folder, with pytest or with mix.

Only a run that came to its end, and whose report and status say the same, has a result. Everything else is an error,
so that half a run is never taken for a success. What the tests started ends with them.
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
from onetool.extensions.environments import for_uv, for_worker
from onetool.files import Files
from onetool.tools.reports import NoReport, Report, from_junit, from_mix
from onetool_child.guard import SIGNALLED

__all__ = ["run"]

LONGEST_MS = 86_400_000
OUTPUT_KEPT, OUTPUT_SHOWN = 1 << 20, 4000
IN_VENV = ("Scripts", "python.exe") if sys.platform == "win32" else ("bin", "python")
INTERRUPTED, NO_TESTS = 2, 5  # of pytest
MEANING = {
    INTERRUPTED: "the run was interrupted",
    3: "pytest itself failed",
    4: "pytest does not understand how it was called, or what it was asked to run is not there",
    NO_TESTS: "there are no tests",
}
MIX_LINES = re.compile(r"(?::\d+)+$")


@tool(permissions=["exec"], limits=("timeout_ms",))
async def run(
    context: ToolContext, path: str | None = None, timeout_ms: int = 60_000, env: dict[str, str] | None = None
) -> dict[str, Any]:
    """Run the tests of the working folder: how many passed, failed and were skipped, and what is wrong.

    A folder with a mix.exs is tested by mix, any other by pytest: that of its .venv, else that of its uv project, else
    the one on the PATH. A run that is cut, crashes or finds no tests is an error.

    Args:
        path: A file, a folder, or one test as in "tests/test_a.py::test_b"; for mix "test/a_test.exs:12". All tests
            where it is left out.
        timeout_ms: After so many milliseconds the run is ended, with everything that it started.
        env: Variables for the tests, beside the few that programs need to work at all.

    Example:
        test.run(path="tests/test_agent.py", timeout_ms=30000)
    """
    if timeout_ms < 1:
        raise ArgumentError(f"timeout_ms is {timeout_ms}; it must be 1 or more", field="timeout_ms")
    given = _variables(env or {})
    folder = await anyio.to_thread.run_sync(Files(context).search_root, ".")
    private = Path(await anyio.to_thread.run_sync(tempfile.mkdtemp, "", "onetool-test-"))
    try:
        suite = await anyio.to_thread.run_sync(_suite, context, folder, private / "report.xml", path, given)
        words = programs.OutputTail(OUTPUT_KEPT)
        seconds = min(timeout_ms, LONGEST_MS) / 1000
        program = programs.Program(suite.command, folder, suite.variables, seconds, starts_others=True)
        ended = await programs.run(program, words, words)
        return await anyio.to_thread.run_sync(_result, suite, ended, str(words), timeout_ms)
    finally:  # not awaited: it is to happen also where this was cancelled
        asyncio.get_running_loop().run_in_executor(None, shutil.rmtree, private, True)


def _variables(given: Mapping[str, str]) -> Mapping[str, str]:
    for name, value in given.items():
        if not name or "=" in name or "\0" in name + value:
            raise ArgumentError(f"env: {name!r} cannot be a variable: its name has an = or it has a NUL", field="env")
        try:
            (name + value).encode()
        except UnicodeEncodeError:
            raise ArgumentError(f"env: {name!r} has half of a surrogate pair in it", field="env") from None
    return given


# --- what to run ----------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _Suite:
    """`report` reads what a run left behind; `failed` are the statuses of a run in which tests failed."""

    name: str
    command: list[str]
    variables: Mapping[str, str]
    report: Callable[[str], Report]
    failed: Container[int]


def _suite(context: ToolContext, folder: Path, report: Path, path: str | None, given: Mapping[str, str]) -> _Suite:
    variables: Mapping[str, str] = {**for_worker(os.environ), **given}
    if (folder / "mix.exs").exists():
        target = _target(context, path, MIX_LINES)
        mix = shutil.which("mix", path=variables.get("PATH"))
        if mix is None:
            raise ToolError("the folder has a mix.exs, but mix is not installed: see elixir-lang.org/install")
        return _Suite("mix test", [mix, "test", *target], variables, from_mix, range(1, SIGNALLED))
    target = _target(context, path, re.compile(r"::.*", re.DOTALL))
    options = [f"--junitxml={report}", "-o", "junit_family=xunit1", "--color=no"]
    command, variables = _pytest(folder, variables, given)
    return _Suite("pytest", [*command, *options, *target], variables, lambda _: from_junit(report), {1, INTERRUPTED})


def _target(context: ToolContext, path: str | None, inner: re.Pattern[str]) -> list[str]:
    """What is asked for, as a whole path: so it is inside of the sandbox, and can be no option."""
    if path is None:
        return []
    if "\0" in path:
        raise ArgumentError("path has a NUL character in it", field="path")
    found = inner.search(path)
    file = path[: found.start()] if found else path
    return [f"{Files(context).search_root(file)}{found[0] if found else ''}"]


def _pytest(
    folder: Path, variables: Mapping[str, str], given: Mapping[str, str]
) -> tuple[list[str], Mapping[str, str]]:
    own = folder.joinpath(".venv", *IN_VENV)
    if own.exists():
        return [str(own), "-m", "pytest"], variables
    if (folder / "pyproject.toml").exists() and (folder / "uv.lock").exists():
        from uv import find_uv_bin

        return [find_uv_bin(), "run", "--no-progress", "python", "-m", "pytest"], {**for_uv(os.environ), **given}
    found = shutil.which("pytest", path=variables.get("PATH"))
    if found is None:
        raise ToolError(
            f"there is no pytest for {folder}: it has no .venv, no uv.lock, and there is none on the PATH. "
            "Type: uv venv && uv pip install pytest"
        )
    return [found], variables


# --- what came of it ------------------------------------------------------------------------------------------------


def _result(suite: _Suite, ended: programs.Ended, output: str, timeout_ms: int) -> dict[str, Any]:
    shown = output[-OUTPUT_SHOWN:]
    if ended.timed_out or ended.status is None:
        raise ToolTimeout(
            f"the tests took longer than {timeout_ms} ms and were ended; nothing is known of their outcome"
            f"{_printed(shown)}",
            timeout_ms=timeout_ms,
            output=shown,
        )
    report = _believed(suite, ended.status, output)
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


def _believed(suite: _Suite, status: int, output: str) -> Report:
    """The report, if there is one that says the same as the status."""
    shown = output[-OUTPUT_SHOWN:]
    try:
        report = suite.report(output)
    except NoReport as problem:
        raise _failed(suite, status, str(problem), shown) from None
    if report.is_empty:
        raise _failed(suite, status, MEANING[NO_TESTS] if status in {0, NO_TESTS} else "no test was run", shown)
    if not (status in suite.failed if report.failed else status == 0):
        raise _failed(suite, status, f"its report counts {report.failed} failures, which does not fit", shown)
    return report


def _failed(suite: _Suite, status: int, problem: str, shown: str) -> ToolError:
    meaning = MEANING.get(status, "") if suite.name == "pytest" else ""
    why = ": ".join(dict.fromkeys(part for part in (meaning, problem) if part))
    return ToolError(
        f"there is no result: {suite.name} ended with {_named(status)}, {why}{_printed(shown)}",
        status=status,
        output=shown,
    )


def _named(status: int) -> str:
    try:
        return signal.Signals(status - SIGNALLED if status > SIGNALLED else -status).name
    except ValueError:
        return f"status {status}"


def _printed(shown: str) -> str:
    return f". It last printed:\n{shown[-1500:]}" if shown else ""
