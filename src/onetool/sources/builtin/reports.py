"""Parsers of test reports: the JUnit file of pytest and the output of `mix test`.

The tests themselves may have written the report, so it is not trusted: its size is limited, it may
not declare entities, and inconsistent reports are rejected. `test_tools` decides whether a run
succeeded.
"""

import os
import re
import stat
from collections import Counter
from dataclasses import dataclass
from itertools import groupby, islice
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:  # imported for the first report
    from xml.etree.ElementTree import Element

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
    classes = (
        class_name.removeprefix(module).strip(".").split(".")
        if class_name.startswith(module)
        else [class_name]
    )
    return "::".join(part for part in (file, *classes, name) if part)


# --- mix ------------------------------------------------------------------------------------------


def parse_mix(output: str) -> SuiteReport:
    """Parse the output of mix. Each project of an umbrella prints its own summary."""
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
    for found in islice(MIX_FAILURE.finditer(text), MAX_FAILURES):
        message = "\n".join(line[5:] for line in found["message"].rstrip().splitlines())[
            :MAX_MESSAGE_CHARS
        ]
        failures.append(
            FailedTest(found["name"].strip(), message, found["file"], int(found["line"][:9]))
        )
    return SuiteReport(passed, failed, skipped, tuple(failures))
