"""The checks of an extension pack: examples in docstrings, and outcomes as text and JSON.

Examples run in the same kind of cell as a model's code. One after `>>>` is compared with the output
below it, as by doctest; without output it only has to succeed. Other examples are Python statements
that have to succeed. The examples of one docstring share their variables.
"""

import ast
import doctest
import json
import re
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from itertools import islice, zip_longest
from textwrap import indent
from typing import Any

from onetool.app import OneTool
from onetool.cli.terminal import dim, green, red, yellow
from onetool.core.tool import Tool
from onetool.runs.run_output import ClientChannel, RunOutput
from onetool.util.context import Caller, Permission, sort_permissions
from onetool.util.problem import OK as NOTE, PROBLEM, WARNING, Problem
from onetool.util.text import shorten
from onetool_child.json_types import JsonObject

FLAGS = doctest.ELLIPSIS | doctest.NORMALIZE_WHITESPACE
CHECKER = doctest.OutputChecker()
IDENTIFIER = re.compile(r"[^\W\d]\w*")
Listener = Callable[[str, Any], None]
USE_EFFECTS = "use --effects to run it"
# The code of the run. It prints a line for each example, so that the results of the first ones
# survive a timeout.
RUN_EXAMPLES = """
def run_examples(names, sources):
    import contextlib, io, json, time

    for source in sources:
        printed, error, started = io.StringIO(), None, time.perf_counter()
        with contextlib.redirect_stdout(printed):
            try:
                exec(compile(source, "<example>", "single"), names)
            except (Exception, SystemExit) as raised:
                error = f"{type(raised).__name__}: {raised}"
        seconds = time.perf_counter() - started
        result = {"output": printed.getvalue(), "error": error, "seconds": seconds}
        print(json.dumps(result), flush=True)

"""
OK = "ok"
FAILED = "failed"
SKIPPED = "skipped"
COLORS = {OK: green, FAILED: red, SKIPPED: yellow}
COUNTS = {"passed": OK, "failed": FAILED, "skipped": SKIPPED}
MARKS = {NOTE: ("note", dim), WARNING: ("warning", yellow), PROBLEM: ("problem", red)}
MAX_NAME_CHARS = 120
MAX_DETAIL_CHARS = 4000
Redact = Callable[[str], str]


# --- outcomes -------------------------------------------------------------------------------------


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
            word: sum(outcome.status == status for outcome in self.outcomes)
            for word, status in COUNTS.items()
        }

    def to_json(self) -> JsonObject:
        return {
            **self.counts,
            "problems": [problem.to_json() for problem in self.problems],
            "results": [outcome.to_json() for outcome in self.outcomes],
        }

    def print(self, redact: Redact) -> None:
        """Print a line for each problem, example and test, failure details, and counts."""
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


# --- examples -------------------------------------------------------------------------------------


async def run_examples(
    app: OneTool, tool: Tool, listener: Listener, *, effects: bool
) -> list[CheckOutcome]:
    """Run the examples of a tool.

    Without `effects`, those of tools that need more than read permission are skipped.
    """
    try:
        examples = parse_examples(tool.example)
    except (MemoryError, RecursionError, SyntaxError, ValueError) as error:
        return [_reject_example(tool, error)]
    reason = "" if effects else explain_effects(tool.permissions)
    chosen = [
        example for example in examples if not reason and not example.options.get(doctest.SKIP)
    ]
    skipped = [
        CheckOutcome(
            example.source.strip(),
            SKIPPED,
            detail=reason or "it has the directive +SKIP",
            tool=tool.name,
        )
        for example in examples
        if example not in chosen
    ]
    return [*await _run_chosen(app, tool.name, chosen, listener, effects=effects), *skipped]


async def _run_chosen(
    app: OneTool, tool: str, examples: list[doctest.Example], listener: Listener, *, effects: bool
) -> list[CheckOutcome]:
    if not examples:
        return []
    sources = [example.source for example in examples]
    await app.discover({word for source in sources for word in IDENTIFIER.findall(source)})
    output = RunOutput(ClientChannel(listener=listener))
    answer = await app.runs.run(
        f"{RUN_EXAMPLES}run_examples(dict(globals()), {sources!r})", Caller(is_owner=True), output
    )
    failure = answer.blocks[-1].partition("\n")[0] if answer.is_error else ""
    results = islice(_parse_results("".join(output.printed)), len(examples))
    return list(_judge_all(tool, examples, results, failure, effects=effects))


def parse_examples(text: str) -> list[doctest.Example]:
    """Return the examples in the text of an example section.

    Raise SyntaxError or ValueError if it is invalid.
    """
    if ">>>" in text:
        return doctest.DocTestParser().get_examples(text)
    return [
        doctest.Example(ast.get_source_segment(text, node) or "", "")
        for node in ast.parse(text).body
    ]


def explain_effects(permissions: frozenset[Permission]) -> str:
    """Return why something with these permissions needs `--effects`; empty if it only reads."""
    needed = sort_permissions(permissions - {Permission.READ})
    return f"needs {' and '.join(needed)} permission; {USE_EFFECTS}" if needed else ""


def _reject_example(tool: Tool, error: Exception) -> CheckOutcome:
    """Return the outcome of an invalid example.

    A text that does not call the tool is taken for prose.
    """
    first_line = tool.example.partition("\n")[0]
    if ">>>" in tool.example or f"{tool.short_name}(" in tool.example:
        reason = error.msg if isinstance(error, SyntaxError) else str(error) or type(error).__name__
        return CheckOutcome(first_line, FAILED, detail=f"invalid example: {reason}", tool=tool.name)
    return CheckOutcome(first_line, SKIPPED, detail="not Python code", tool=tool.name)


# --- comparison -----------------------------------------------------------------------------------


def _parse_results(printed: str) -> Iterator[JsonObject]:
    """Yield the results that the run printed. Other lines come from threads of an example."""
    for line in printed.splitlines():
        with suppress(ValueError):
            result = json.loads(line)
            if isinstance(result, dict) and result.keys() == {"output", "error", "seconds"}:
                yield result


def _judge_all(
    tool: str,
    examples: list[doctest.Example],
    results: Iterable[JsonObject],
    failure: str,
    *,
    effects: bool,
) -> Iterator[CheckOutcome]:
    """Yield the outcome of each example.

    If the run failed, the first example without a result is its cause.
    """
    for example, result in zip_longest(examples, results):
        name = example.source.strip()
        if result is None:
            status, detail = (
                (FAILED, failure) if failure else (SKIPPED, "the example before it ended the run")
            )
            yield CheckOutcome(name, status, detail=detail, tool=tool)
            failure = ""
            continue
        status, detail = _judge(example, result["output"], result["error"], effects=effects)
        yield CheckOutcome(name, status, result["seconds"], detail, tool)


def _judge(
    example: doctest.Example, output: str, error: str | None, *, effects: bool
) -> tuple[str, str]:
    """Return the status of an example and the difference from its expected output."""
    if error is not None and example.exc_msg is None:
        if error.startswith("PermissionDenied:") and not effects:
            return SKIPPED, f"{error.partition('. ')[0]}; {USE_EFFECTS}"
        return FAILED, error
    expected = example.want if example.exc_msg is None else example.exc_msg
    actual = output if error is None else f"{error}\n"
    flags = FLAGS
    for flag, is_on in example.options.items():
        flags = flags | flag if is_on else flags & ~flag
    if (
        not expected
        or CHECKER.check_output(expected, actual, flags)
        or _are_equal(expected, actual)
    ):
        return OK, ""
    shown = doctest.Example(example.source, expected)
    return FAILED, CHECKER.output_difference(shown, actual, flags | doctest.REPORT_UDIFF).rstrip()


def _are_equal(expected: str, actual: str) -> bool:
    """Return whether both are Python literals with the same value, in any quotes."""
    try:
        return bool(ast.literal_eval(expected) == ast.literal_eval(actual))
    except (MemoryError, RecursionError, SyntaxError, TypeError, ValueError):
        return False
