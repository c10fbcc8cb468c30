"""What runs of tests leave behind, read into one form: pytest's JUnit file, and what `mix test` prints.

A report was written by the tests that it is about, so nothing in it is trusted: it is bounded, it may not declare
entities, and what does not add up is no report. Whether a run was a success is decided in `test_tools`.
"""

import os
import re
import stat
from collections import Counter
from dataclasses import dataclass
from itertools import groupby, islice
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:  # loaded by the first report
    from xml.etree.ElementTree import Element

MOST_BYTES = 64 << 20
MOST_FAILURES = 1000
LONGEST_MESSAGE = 4000
FAILED, SKIPPED = {"failure", "error"}, "skipped"
COLLECTION = "collection failure"
PLACE = re.compile(r"^(?P<file>[^\s:][^:\n]*):(?P<line>\d+): ", re.MULTILINE)
COLOURS = re.compile(r"\x1b\[[0-9;]*m")
MIX_SUMMARY = re.compile(r"^(?:\d+ [a-z]+, )*\d+ (?:tests?|failures?)\b[^\n]*$", re.MULTILINE)
MIX_COUNT = re.compile(r"(\d+) ([a-z]+)")
MIX_TESTS = ("test", "tests", "doctest", "doctests", "property", "properties", "feature", "features")
MIX_FAILURE = re.compile(
    r"^ {2}\d+\) (?P<name>[^\n]+)\n"
    r" {5}(?P<file>[^\s:][^:\n]*):(?P<line>\d+)\n"
    r"(?P<message>(?: {5}[^\n]*\n|\n(?= {5}))*)",
    re.MULTILINE,
)


class NoReport(Exception):
    """There is none, or none that can be believed."""


@dataclass(frozen=True, slots=True)
class Failure:
    name: str
    message: str
    file: str | None
    line: int | None


@dataclass(frozen=True, slots=True)
class Report:
    passed: int
    failed: int
    skipped: int
    failures: tuple[Failure, ...]

    @property
    def is_empty(self) -> bool:
        return not self.passed + self.failed + self.skipped


# --- JUnit ----------------------------------------------------------------------------------------------------------


def from_junit(file: Path) -> Report:
    suites = list(_parsed(_text_of(file)).iter("testsuite"))
    cases = [case for suite in suites for case in suite.iter("testcase")]
    if not suites or sum(_number(suite.get("tests")) for suite in suites) > len(cases):
        raise NoReport("its report names fewer tests than it counts")
    # A test that failed, and whose cleaning up failed too, stands there twice.
    tests = groupby(cases, lambda case: (case.get("file"), case.get("classname"), case.get("name")))
    outcomes = [_outcome(list(parts)) for _, parts in tests]
    failures = tuple(failure for failure in outcomes if isinstance(failure, Failure))
    skipped = outcomes.count(SKIPPED)
    return Report(len(outcomes) - len(failures) - skipped, len(failures), skipped, failures[:MOST_FAILURES])


def _text_of(file: Path) -> str:
    # Without waiting and without following a link: the tests may have put anything there.
    flags = os.O_RDONLY | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_NOFOLLOW", 0)
    try:
        with open(file, "rb", opener=lambda path, mode: os.open(path, mode | flags)) as opened:
            if not stat.S_ISREG(os.fstat(opened.fileno()).st_mode):
                raise NoReport("its report is no file")
            data = opened.read(MOST_BYTES + 1)
    except OSError:
        raise NoReport("it left no report") from None
    if len(data) > MOST_BYTES:
        raise NoReport(f"its report is larger than {MOST_BYTES >> 20} MiB")
    return data.decode("utf-8", "replace")


def _parsed(text: str) -> "Element":
    """Entities can make a small text a huge one; without a document type there are none. pytest writes none."""
    from xml.etree import ElementTree as ET

    if "<!DOCTYPE" in text:
        raise NoReport("its report declares a document type")
    try:
        return ET.fromstring(text)  # noqa: S314 - see above
    except (ET.ParseError, ValueError):
        raise NoReport("its report is damaged or not complete") from None


def _number(text: str | None) -> int:
    try:
        return int(text or "")
    except ValueError:
        raise NoReport("its report does not say how many tests it is about") from None


def _outcome(parts: list["Element"]) -> Failure | str:
    problems = [problem for case in parts for problem in case if problem.tag in FAILED]
    if problems:
        return _failure(parts[0], problems)
    return SKIPPED if any(case.find(SKIPPED) is not None for case in parts) else ""


def _failure(case: "Element", problems: list["Element"]) -> Failure:
    file = case.get("file")
    lines = [int(place["line"][:9]) for place in PLACE.finditer(problems[0].text or "") if place["file"] == file]
    defined = case.get("line", "")
    line = lines[-1] if lines else int(defined) + 1 if defined.isdecimal() else None
    return Failure(_name(case), "\n".join(map(_message, problems))[:LONGEST_MESSAGE], file, line)


def _message(problem: "Element") -> str:
    said, text = problem.get("message") or "", (problem.text or "").strip()
    return text[-LONGEST_MESSAGE:] if said in {"", COLLECTION} else said


def _name(case: "Element") -> str:
    """As pytest takes it: `tests/test_a.py::TestB::test_c`."""
    file, name, around = case.get("file") or "", case.get("name") or "", case.get("classname") or ""
    module = file.removesuffix(".py").replace("/", ".")
    if not around:  # a file that could not be collected
        return file or name
    classes = around.removeprefix(module).strip(".").split(".") if around.startswith(module) else [around]
    return "::".join(part for part in (file, *classes, name) if part)


# --- mix ------------------------------------------------------------------------------------------------------------


def from_mix(output: str) -> Report:
    """Projects under one umbrella print a summary each."""
    text = COLOURS.sub("", output)
    summaries = [MIX_COUNT.findall(summary[0]) for summary in MIX_SUMMARY.finditer(text)]
    counts: Counter[str] = Counter()
    for summary in summaries:
        by_word = {word: int(number[:18]) for number, word in summary}
        counts.update(by_word if by_word.keys() & {"failure", "failures"} else {})
    if not counts:
        raise NoReport("it printed no summary")
    failed = sum(counts[word] for word in ("failure", "failures", "invalid"))
    skipped = counts["skipped"] + counts["excluded"]
    passed = max(0, sum(counts[word] for word in MIX_TESTS) - failed - skipped)
    failures = []
    for found in islice(MIX_FAILURE.finditer(text), MOST_FAILURES):
        message = "\n".join(line[5:] for line in found["message"].rstrip().splitlines())[:LONGEST_MESSAGE]
        failures.append(Failure(found["name"].strip(), message, found["file"], int(found["line"][:9])))
    return Report(passed, failed, skipped, tuple(failures))
