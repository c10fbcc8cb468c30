"""The `test` pack: runs the tests of the working directory with pytest or mix.

Only a run that completed, and whose report and exit status agree, has a result. Everything else is
an error, so that a partial run is never taken for a success. Processes that the tests started end
with them.

The tests themselves may have written the report, so it is not trusted: its size is limited, it may
not declare entities, and inconsistent reports are rejected.
"""

import asyncio
import json
import os
import re
import shutil
import stat
import sys
import tempfile
from collections import Counter
from collections.abc import Callable, Container, Iterator, Mapping
from dataclasses import asdict, dataclass
from itertools import groupby, islice
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from anyio.to_thread import run_sync as run_in_thread

from onetool.core.tool import tool
from onetool.errors import ArgumentError, ToolError, ToolTimeout
from onetool.processes import programs
from onetool.processes.process import Printed, describe_status
from onetool.sources.extensions.environments import make_worker_environment
from onetool.sources.files import Files
from onetool.sources.files.reading import find_open_paths
from onetool.sources.system import get_system
from onetool.util.context import Permission, ToolContext
from onetool.util.text import pluralize, quote
from onetool_child import confined_program
from onetool_child.confine import can_confine_programs
from onetool_child.guard import SIGNAL_STATUS_OFFSET
from onetool_child.json_types import JsonObject

if TYPE_CHECKING:
    from xml.etree.ElementTree import Element

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
MAX_REPORT_BYTES = 64 << 20
MAX_FAILURES = 1000
MAX_MESSAGE_CHARS = 4000
FAILED = {"failure", "error"}
SKIPPED = "skipped"
COLLECTION = "collection failure"
LOCATION = re.compile(r"^(?P<file>[^\s:][^:\n]*):(?P<line>\d+): ", re.MULTILINE)
COLOR_CODES = re.compile(r"\x1b\[[0-9;]*m")
MIX_SUMMARY = re.compile(r"^(?:\d+ [a-z]+, )*\d+ (?:tests?|failures?)\b[^\n]*$", re.MULTILINE)
MIX_COUNT = re.compile(r"(?<!\d)(\d++) ([a-z]+)")
MIX_TESTS = (
    "test",
    "tests",
    "doctest",
    "doctests",
    "property",
    "properties",
    "feature",
    "features",
)
MIX_FAILURE = re.compile(
    r"^ {2}\d+\) (?P<name>[^\n]+)\n"
    r" {5}(?P<file>[^\s:][^:\n]*):(?P<line>\d+)\n"
    r"(?P<message>(?: {5}[^\n]*\n|\n(?= {5}))*)",
    re.MULTILINE,
)


class ReportError(Exception):
    """The report is missing or cannot be trusted."""


@dataclass(frozen=True, slots=True)
class FailedTest:
    name: str
    message: str
    file: str | None
    line: int | None


class SuiteReport(NamedTuple):
    passed: int
    failed: int
    skipped: int
    failures: tuple[FailedTest, ...]

    @property
    def is_empty(self) -> bool:
        return not self.passed + self.failed + self.skipped


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
    """Return the tests' variables: without secrets, and with directories of their own."""
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
    """Return the tests as an absolute path in the sandbox, which is never an option."""
    if path is None:
        return []
    if "\0" in path:
        raise ArgumentError("path contains a NUL character", field="path")
    match = inner.search(path)
    file = path[: match.start()] if match else path
    return [f"{Files(context).resolve_search_root(file)}{match[0] if match else ''}"]


def _find_pytest(directory: Path, variables: Variables) -> list[str]:
    python = directory.joinpath(".venv", *VENV_PYTHON)
    if python.exists():
        return [str(python), "-m", "pytest"]
    if (directory / "uv.lock").exists():
        raise ToolError(f"{directory} has a uv.lock, but no .venv", hint="run `uv sync` there")
    program = shutil.which("pytest", path=variables.get("PATH"))
    if program is None:
        message = f"pytest not found for {directory}: no .venv, and no pytest on the PATH"
        raise ToolError(message, hint="run `uv venv && uv pip install pytest`")
    return [program]


def _confine(context: ToolContext, suite: _Suite, private: Path) -> tuple[list[str], Variables]:
    """Return command and environment, confined to the agent's files if possible."""
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
    """Yield what a program's interpreter loads, also behind a virtual environment."""
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


# --- JUnit ----------------------------------------------------------------------------------------


def parse_junit(file: Path) -> SuiteReport:
    suites = list(_parse_xml(_read(file)).iter("testsuite"))
    cases = [case for suite in suites for case in suite.iter("testcase")]
    if not suites or sum(_parse_count(suite.get("tests")) for suite in suites) > len(cases):
        raise ReportError("its report lists fewer tests than it counts")
    # A test whose teardown failed too is listed twice.
    tests = groupby(cases, lambda case: (case.get("file"), case.get("classname"), case.get("name")))
    outcomes = [_read_outcome(list(parts)) for _, parts in tests]
    failures = tuple(failure for failure in outcomes if isinstance(failure, FailedTest))
    skipped = outcomes.count(SKIPPED)
    return SuiteReport(
        len(outcomes) - len(failures) - skipped, len(failures), skipped, failures[:MAX_FAILURES]
    )


def _read(file: Path) -> str:
    # Do not block and do not follow links: the tests may have put anything there.
    flags = os.O_RDONLY | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_NOFOLLOW", 0)
    try:
        with open(file, "rb", opener=lambda path, mode: os.open(path, mode | flags)) as report:
            if not stat.S_ISREG(os.fstat(report.fileno()).st_mode):
                raise ReportError("its report is not a regular file")
            data = report.read(MAX_REPORT_BYTES + 1)
    except OSError:
        raise ReportError("it wrote no report") from None
    if len(data) > MAX_REPORT_BYTES:
        raise ReportError(f"its report is larger than {MAX_REPORT_BYTES >> 20} MiB")
    return data.decode("utf-8", "replace")


def _parse_xml(text: str) -> "Element":
    """Parse XML without a document type, which could declare entities that expand to huge texts."""
    from xml.etree import ElementTree as ET

    if "<!DOCTYPE" in text:
        raise ReportError("its report declares a document type")
    try:
        return ET.fromstring(text)  # noqa: S314 - see above
    except (ET.ParseError, ValueError):
        raise ReportError("its report is damaged or incomplete") from None


def _parse_count(text: str | None) -> int:
    try:
        return int(text or "")
    except ValueError:
        raise ReportError("its report does not say how many tests it contains") from None


def _read_outcome(parts: list["Element"]) -> FailedTest | str:
    problems = [problem for case in parts for problem in case if problem.tag in FAILED]
    if problems:
        return _read_failure(parts[0], problems)
    return SKIPPED if any(case.find(SKIPPED) is not None for case in parts) else ""


def _read_failure(case: "Element", problems: list["Element"]) -> FailedTest:
    file = case.get("file")
    lines = [
        int(location["line"][:9])
        for location in LOCATION.finditer(problems[0].text or "")
        if location["file"] == file
    ]
    defined_at = case.get("line", "")
    line = lines[-1] if lines else int(defined_at) + 1 if defined_at.isdecimal() else None
    return FailedTest(
        _build_name(case), "\n".join(map(_read_message, problems))[:MAX_MESSAGE_CHARS], file, line
    )


def _read_message(problem: "Element") -> str:
    message = problem.get("message") or ""
    text = (problem.text or "").strip()
    return text[-MAX_MESSAGE_CHARS:] if message in {"", COLLECTION} else message


def _build_name(case: "Element") -> str:
    """Return the node ID for pytest: `tests/test_a.py::TestB::test_c`."""
    file = case.get("file") or ""
    name = case.get("name") or ""
    class_name = case.get("classname") or ""
    module = file.removesuffix(".py").replace("/", ".")
    if not class_name:  # a file that could not be collected
        return file or name
    classes = [class_name]
    if class_name.startswith(module):
        classes = class_name.removeprefix(module).strip(".").split(".")
    return "::".join(part for part in (file, *classes, name) if part)


# --- mix ------------------------------------------------------------------------------------------


def parse_mix(output: str) -> SuiteReport:
    """Parse mix output. Each project in an umbrella prints its own summary."""
    text = COLOR_CODES.sub("", output)
    summaries = [MIX_COUNT.findall(summary[0]) for summary in MIX_SUMMARY.finditer(text)]
    counts: Counter[str] = Counter()
    for summary in summaries:
        by_word = {word: int(number[:18]) for number, word in summary}
        counts.update(by_word if by_word.keys() & {"failure", "failures"} else {})
    if not counts:
        raise ReportError("it printed no summary")
    failed = sum(counts[word] for word in ("failure", "failures", "invalid"))
    skipped = counts["skipped"] + counts["excluded"]
    passed = max(0, sum(counts[word] for word in MIX_TESTS) - failed - skipped)
    failures = []
    for match in islice(MIX_FAILURE.finditer(text), MAX_FAILURES):
        message = "\n".join(line[5:] for line in match["message"].rstrip().splitlines())[
            :MAX_MESSAGE_CHARS
        ]
        failures.append(
            FailedTest(match["name"].strip(), message, match["file"], int(match["line"][:9]))
        )
    return SuiteReport(passed, failed, skipped, tuple(failures))
