"""Outcomes of a pack's examples and tests, as text and as JSON."""

from collections.abc import Callable
from dataclasses import dataclass, field
from textwrap import indent

from onetool.cli.terminal import dim, green, red, yellow
from onetool.util.problem import OK as NOTE, PROBLEM, WARNING, Problem
from onetool.util.text import shorten
from onetool_child.json_types import JsonObject

OK = "ok"
FAILED = "failed"
SKIPPED = "skipped"
COLORS = {OK: green, FAILED: red, SKIPPED: yellow}
COUNTS = {"passed": OK, "failed": FAILED, "skipped": SKIPPED}
MARKS = {NOTE: ("note", dim), WARNING: ("warning", yellow), PROBLEM: ("problem", red)}
MAX_NAME_CHARS = 120
MAX_DETAIL_CHARS = 4000
Redact = Callable[[str], str]


@dataclass(frozen=True, slots=True)
class CheckOutcome:
    """The outcome of an example or a test. `detail` says why it failed or was skipped."""

    name: str  # the code of an example, or the id of a test
    status: str
    seconds: float = 0.0
    detail: str = ""
    tool: str = ""  # empty for a test

    def to_json(self) -> JsonObject:
        return {
            "kind": "example" if self.tool else "test",
            "tool": self.tool or None,
            "name": self.name,
            "status": self.status,
            "duration_ms": round(self.seconds * 1000, 1),
            "detail": self.detail,
        }


@dataclass(frozen=True, slots=True)
class PackReport:
    """A pack's problems, and the outcomes of its examples and tests."""

    problems: list[Problem] = field(default_factory=list)
    outcomes: list[CheckOutcome] = field(default_factory=list)

    @property
    def is_ok(self) -> bool:
        return not self.counts["failed"] and all(
            problem.level != PROBLEM for problem in self.problems
        )

    @property
    def counts(self) -> dict[str, int]:
        return {
            word: sum(each.status == status for each in self.outcomes)
            for word, status in COUNTS.items()
        }

    def to_json(self) -> JsonObject:
        return {
            **self.counts,
            "problems": [problem.to_json() for problem in self.problems],
            "results": [outcome.to_json() for outcome in self.outcomes],
        }

    def print(self, redact: Redact) -> None:
        """Print a line for each problem, example and test, with the details of failures, and the
        counts.
        """
        for problem in self.problems:
            mark, color = MARKS[problem.level]
            print(f"{color(f'{mark:7}')}  {indent(redact(str(problem)), ' ' * 9).lstrip()}")
        for outcome in self.outcomes:
            _print_outcome(outcome, redact)
        print(
            ", ".join(
                f"{count} {word}"
                for word, count in self.counts.items()
                if count or word == "passed"
            )
        )


def _print_outcome(outcome: CheckOutcome, redact: Redact) -> None:
    name = shorten(redact(" ".join(outcome.name.split())), MAX_NAME_CHARS)
    detail = shorten(redact(outcome.detail), MAX_DETAIL_CHARS)
    time = "" if outcome.status == SKIPPED else f"{outcome.seconds * 1000:.0f} ms"
    reason = dim(f"  ({detail})") if outcome.status == SKIPPED else ""
    print(f"{COLORS[outcome.status](f'{outcome.status:7}')}  {time:>8}  {name}{reason}")
    if outcome.status == FAILED:
        print(indent(detail, "    "))
