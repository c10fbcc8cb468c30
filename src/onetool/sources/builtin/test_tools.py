"""The `test` pack: runs the tests of the working directory with pytest or mix.

Only a run that completed, and whose report and exit status agree, has a result. Everything else is
an error, so that a partial run is never taken for a success. Processes that the tests started end
with them.
"""

import asyncio
import json
import os
import re
import shutil
import sys
import tempfile
from collections.abc import Callable, Container, Iterator, Mapping
from dataclasses import asdict
from pathlib import Path
from typing import NamedTuple

from anyio.to_thread import run_sync as run_in_thread

from onetool.core.tool import tool
from onetool.errors import ArgumentError, ToolError, ToolTimeout
from onetool.processes import programs
from onetool.processes.process import Printed, describe_status
from onetool.sources.builtin.reports import ReportError, SuiteReport, parse_junit, parse_mix
from onetool.sources.extensions.environments import make_worker_environment
from onetool.sources.files import Files
from onetool.sources.files.open_paths import find_open_paths
from onetool.sources.system import get_system
from onetool.util.context import Permission, ToolContext
from onetool.util.text import pluralize, quote
from onetool_child import confined_program
from onetool_child.confine import can_confine_programs
from onetool_child.guard import SIGNAL_STATUS_OFFSET
from onetool_child.json_types import JsonObject

__all__ = ["run"]

Variables = Mapping[str, str]
MAX_TIMEOUT_MS = 86_400_000
MAX_OUTPUT_CHARS = 1 << 20
MAX_TAIL_CHARS = 4000
VENV_ENTRIES = ("bin", "lib", "lib64", "pyvenv.cfg")
VENV_PYTHON = ("Scripts", "python.exe") if sys.platform == "win32" else ("bin", "python")
# exit statuses of pytest
INTERRUPTED = 2
NO_TESTS = 5
PYTEST_STATUSES = {
    INTERRUPTED: "the run was interrupted",
    3: "pytest failed with an internal error",
    4: "pytest rejected its arguments, or the tests do not exist",
    NO_TESTS: "no tests found",
}
MIX_LINES = re.compile(r"(?::\d++){1,20}$")


@tool(permissions=["exec"], labels=["private"], limits=("timeout_ms",))
async def run(
    context: ToolContext,
    path: str | None = None,
    timeout_ms: int = 60_000,
    env: dict[str, str] | None = None,
) -> JsonObject:
    """Run the tests of the working directory: how many passed, failed and were skipped, and the
    failures.

    A directory with a mix.exs is tested with mix, any other with pytest from its .venv or the PATH.
    Dependencies are never installed. Tests use the files of the agent only, and sockets only with
    the permission network. A run that times out, crashes or finds no tests is an error.

    Args:
        path: A file, a directory or one test, like "tests/test_a.py::test_b"; for mix "test/a_test.exs:12". All tests
            by default.
        timeout_ms: Timeout in milliseconds, after which the run and its processes are killed.
        env: Environment variables for the tests, in addition to a minimal set.

    Example:
        test.run(path="tests/test_agent.py", timeout_ms=30000)
    """
    if timeout_ms < 1:
        raise ArgumentError(
            f"invalid timeout_ms {timeout_ms} (expected 1 or more)", field="timeout_ms"
        )
    variables = _check_variables(env or {})
    directory = await run_in_thread(Files(context).resolve_search_root, ".")
    private = await run_in_thread(_make_private_directory)
    try:
        suite = await run_in_thread(_choose_suite, context, directory, private, path, variables)
        command, environment = await run_in_thread(_confine, context, suite, private)
        output = Printed(max_chars=MAX_OUTPUT_CHARS)
        seconds = min(timeout_ms, MAX_TIMEOUT_MS) / 1000
        program = programs.Program(command, directory, environment, seconds, starts_others=True)
        ended = await programs.run(program, output.add, output.add)
        return await run_in_thread(_build_result, suite, ended, output.tail, timeout_ms)
    finally:  # not awaited, so that it also happens after a cancellation
        asyncio.get_running_loop().run_in_executor(None, shutil.rmtree, private, True)


def _make_private_directory() -> Path:
    return Path(tempfile.mkdtemp(prefix="onetool-test-")).resolve()


def _check_variables(extra: Variables) -> Variables:
    for name, value in extra.items():
        if not name or "=" in name or "\0" in name + value:
            raise ArgumentError(
                f"invalid environment variable {quote(name)}: it contains = or NUL", field="env"
            )
        try:
            (name + value).encode()
        except UnicodeEncodeError:
            raise ArgumentError(
                f"invalid environment variable {quote(name)}: it contains an unpaired surrogate",
                field="env",
            ) from None
    return extra


# --- the command ----------------------------------------------------------------------------------


class _Suite(NamedTuple):
    """A command that runs tests.

    `report` parses its report; `failed` are its exit statuses if tests failed.
    """

    name: str
    command: list[str]
    variables: Variables
    report: Callable[[str], SuiteReport]
    failed: Container[int]


def _choose_suite(
    context: ToolContext, directory: Path, private: Path, path: str | None, extra: Variables
) -> _Suite:
    variables = {**_make_environment(context, private), **extra}
    if (directory / "mix.exs").exists():
        target = _resolve_target(context, path, MIX_LINES)
        mix = shutil.which("mix", path=variables.get("PATH"))
        if mix is None:
            raise ToolError("mix.exs found, but mix is not installed; see elixir-lang.org/install")
        build = directory / "_build"  # tests cannot create entries beside protected files
        if Files(context).is_allowed(build, writing=True):
            build.mkdir(exist_ok=True)
        return _Suite(
            "mix test", [mix, "test", *target], variables, parse_mix, range(1, SIGNAL_STATUS_OFFSET)
        )
    target = _resolve_target(context, path, re.compile(r"::.*", re.DOTALL))
    report = private / "report.xml"
    options = [
        f"--junitxml={report}",
        "-o",
        "junit_family=xunit1",
        "-o",
        f"cache_dir={private / 'cache'}",
    ]
    command = [*_find_pytest(directory, variables), *options, "--color=no", *target]
    return _Suite("pytest", command, variables, lambda _: parse_junit(report), {1, INTERRUPTED})


def _make_environment(context: ToolContext, private: Path) -> dict[str, str]:
    """Return the variables of the tests: no secrets, and directories of their own instead of the
    user's.
    """
    environment = os.environ if context.system is None else get_system(context).environment
    passed = make_worker_environment(environment)
    kept = {name: value for name, value in passed.items() if not name.lower().endswith("_proxy")}
    home = private / "home"
    home.mkdir()
    mix_home = Path(environment.get("HOME", "")) / ".mix"
    return {
        **{name: value for name, value in kept.items() if not name.startswith("XDG_")},
        **dict.fromkeys(("HOME", "TMPDIR", "UV_CACHE_DIR"), str(home)),
        "MIX_HOME": str(mix_home),
        "COVERAGE_FILE": str(private / "coverage"),
    }


def _resolve_target(context: ToolContext, path: str | None, inner: re.Pattern[str]) -> list[str]:
    """Return the tests to run as an absolute path, so that it is inside the sandbox and never
    parsed as an option.
    """
    if path is None:
        return []
    if "\0" in path:
        raise ArgumentError("path contains a NUL character", field="path")
    found = inner.search(path)
    file = path[: found.start()] if found else path
    return [f"{Files(context).resolve_search_root(file)}{found[0] if found else ''}"]


def _find_pytest(directory: Path, variables: Variables) -> list[str]:
    python = directory.joinpath(".venv", *VENV_PYTHON)
    if python.exists():
        return [str(python), "-m", "pytest"]
    if (directory / "uv.lock").exists():
        raise ToolError(f"{directory} has a uv.lock, but no .venv", hint="run `uv sync` there")
    found = shutil.which("pytest", path=variables.get("PATH"))
    if found is None:
        message = f"pytest not found for {directory}: no .venv, and no pytest on the PATH"
        raise ToolError(message, hint="run `uv venv && uv pip install pytest`")
    return [found]


def _confine(context: ToolContext, suite: _Suite, private: Path) -> tuple[list[str], Variables]:
    """Return the command and environment that run a suite: confined to the files of the agent, if
    possible.
    """
    rules = Files(context).rules
    is_off = (
        context.system is not None and get_system(context).settings.execution.isolation == "off"
    )
    if is_off or rules.is_unrestricted or not can_confine_programs():
        context.note("test.run: the tests were not confined; they had the privileges of your user")
        return suite.command, suite.variables
    paths = find_open_paths(rules)
    file = private / "rules.json"
    limits = {
        "read": [
            *paths.read,
            *_list_interpreter_paths(suite.command[0]),
            suite.variables["MIX_HOME"],
        ],
        "write": [*paths.write, str(private)],
        "listed": paths.listed,
        "network": Permission.NETWORK in context.permissions,
        "makes_special_files": True,
        "environment": suite.variables,
    }
    file.write_text(json.dumps(limits), encoding="utf-8")
    launcher = [sys.executable, "-I", "-S", confined_program.__file__, str(file)]
    return [*launcher, *suite.command], {"LANG": "C.UTF-8"}


def _list_interpreter_paths(program: str) -> Iterator[str]:
    """Yield what the interpreter of a program loads: of its virtual environment, and of the
    installation behind it.
    """
    real = Path(os.path.realpath(program))
    directories = (
        Path(program).parent.resolve(),
        real.parent,
        real.with_name("python").resolve().parent,
    )
    for directory in dict.fromkeys(directories):
        yield from (str(directory.parent / name) for name in VENV_ENTRIES)


# --- the result -----------------------------------------------------------------------------------


def _build_result(suite: _Suite, ended: programs.Ended, output: str, timeout_ms: int) -> JsonObject:
    tail = output[-MAX_TAIL_CHARS:]
    if ended.timed_out or ended.status is None:
        raise ToolTimeout(
            f"the tests took longer than {timeout_ms} ms and were killed; their outcome is unknown"
            f"{_format_output(tail)}",
            timeout_ms=timeout_ms,
            output=tail,
        )
    try:
        report = _read_report(suite, ended.status, output)
    except ReportError as error:
        raise _no_result_error(suite, ended.status, str(error), tail) from None
    incomplete = "not all tests ran: some could not be collected, or the run was interrupted"
    return {
        "passed": report.passed,
        "failed": report.failed,
        "skipped": report.skipped,
        "duration_ms": round(ended.seconds * 1000),
        "failures": [asdict(failure) for failure in report.failures],
        "output": tail,
        **(
            {"incomplete": incomplete}
            if suite.name == "pytest" and ended.status == INTERRUPTED
            else {}
        ),
    }


def _read_report(suite: _Suite, status: int, output: str) -> SuiteReport:
    """Return the report if it agrees with the exit status; raise ReportError otherwise."""
    report = suite.report(output)
    if report.is_empty:
        raise ReportError(
            PYTEST_STATUSES[NO_TESTS] if status in {0, NO_TESTS} else "no tests were run"
        )
    if not (status in suite.failed if report.failed else status == 0):
        counted = pluralize(report.failed, "failure")
        raise ReportError(f"its report counts {counted}, which contradicts the exit status")
    return report


def _no_result_error(suite: _Suite, status: int, problem: str, tail: str) -> ToolError:
    meaning = PYTEST_STATUSES.get(status, "") if suite.name == "pytest" else ""
    reason = "; ".join(dict.fromkeys(part for part in (meaning, problem) if part))
    return ToolError(
        f"no test result: {suite.name} exited with {describe_status(status)}:"
        f" {reason}{_format_output(tail)}",
        status=status,
        output=tail,
    )


def _format_output(tail: str) -> str:
    return f". Last output:\n{tail[-1500:]}" if tail else ""
