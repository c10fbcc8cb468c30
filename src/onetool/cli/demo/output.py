"""The printed output of the demonstration: titles, code, shortened responses, savings and next steps."""

import sys
from textwrap import wrap
from typing import TYPE_CHECKING

from onetool.cli.demo.steps import Step, StepResult
from onetool.cli.terminal import bold, dim, green, yellow
from onetool.util.text import pluralize
from onetool.util.version import __version__

if TYPE_CHECKING:
    from onetool.stats.summary import StatsSummary

WIDTH, MAX_LINES, MAX_ERROR_LINES = 100, 3, 6
TITLE = f"OneTool {__version__}: the model has one tool, run, and writes Python for it. These are real runs."
NEXT = """\
Next steps
  onetool init                  Create a tool of your own
  onetool connect claude-code   Connect an assistant (see `onetool connect --help` for others)
  onetool serve --http          Start the admin UI, REST API and MCP over HTTP: http://127.0.0.1:8765
"""


def print_title() -> None:
    print(bold(TITLE), end="\n\n")


def print_code(place: int, step: Step, code: str) -> None:
    print(f"{dim(f'{place:2}')}  {bold(step.title)}")
    print("\n".join(f"    {dim('>>>')} {line}" for line in code.splitlines()), flush=True)


def print_response(seen: StepResult) -> None:
    lines = seen.answer.splitlines()
    notes_last = "\n".join(sorted(lines, key=lambda line: line.startswith("Note: ")))
    if seen.problem:
        lines = [yellow(line) for line in shorten(seen.problem, MAX_ERROR_LINES)]
    else:
        lines = shorten(notes_last, MAX_ERROR_LINES if seen.is_error else MAX_LINES)
    print("\n".join(f"    {line}" for line in lines))
    print(dim(f"    ({seen.ms:,} ms)"), end="\n\n", flush=True)


def shorten(text: str, max_lines: int) -> list[str]:
    """Wrap the text and return at most `max_lines` lines, with the number of omitted characters."""
    lines = [part for line in text.splitlines() for part in wrap(line, WIDTH, subsequent_indent="  ") or [""]]
    if len(lines) <= max_lines:
        return lines
    left = sum(map(len, lines[max_lines:]))
    return [*lines[:max_lines], dim(f"... {pluralize(left, 'more character')}")]


def print_savings(summary: "StatsSummary", isolation: str) -> None:
    savings, runs = summary["savings"], summary["runs"]["total"]
    tools, own = savings["definition_tokens"], savings["own_tokens"]
    trips, seconds = round(savings["round_trips"]), summary["time_saved_ms"] / 1000
    made = f"{pluralize(summary['total_calls'], 'call')} in {pluralize(runs, 'run')}"
    print(bold("Savings of these runs (a token is about four bytes)"))
    print(f"    definitions  {tools:,} tokens if each tool were connected directly, {own:,} for the one tool")
    print(f"    results      {savings['result_tokens']:,} tokens processed by code and not read by the model")
    print(f"    round trips  {trips:,} fewer, with {made}: about {seconds:,.0f} s saved")
    print(green(f"    total        {summary['context_saved']:,} tokens of context"))
    print(dim(f"    Code ran in isolated processes: {isolation}"), end="\n\n")
    print(NEXT, end="")


def report_skipped(steps: list[StepResult]) -> None:
    skipped = [str(number) for number, seen in enumerate(steps, 1) if seen.problem]
    if skipped:
        which = f"step{'s' if len(skipped) > 1 else ''} {', '.join(skipped)}"
        print(f"onetool: cannot show {which}. Run `onetool doctor` for details", file=sys.stderr)
