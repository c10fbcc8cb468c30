"""The demonstration for the eye: titles, code, and as much of each answer as fits; what was saved, and what is next."""

import sys
from textwrap import wrap
from typing import TYPE_CHECKING

from onetool.cli.demo.steps import Seen, Step
from onetool.cli.terminal import bold, dim, green, yellow
from onetool.version import __version__
from onetool_child.summary import number

if TYPE_CHECKING:
    from onetool.stats.summary import Summary

WIDTH, MOST_LINES, MOST_LINES_OF_REFUSAL = 100, 3, 6
HEAD = f"OneTool {__version__}: a model has one tool, run, and writes Python for it. All of this is real."
NEXT = """\
Next
  onetool init                  a tool of your own: the function in the file that it names
  onetool connect claude-code   your assistant; `onetool connect --help` lists the others
  onetool serve --http          a page to look at it all, and REST and MCP for programs: http://127.0.0.1:8765
"""


def head() -> None:
    print(bold(HEAD), end="\n\n")


def asked(place: int, step: Step, code: str) -> None:
    print(f"{dim(f'{place:2}')}  {bold(step.title)}")
    print("\n".join(f"    {dim('>>>')} {line}" for line in code.splitlines()), flush=True)


def answered(seen: Seen) -> None:
    if seen.problem:
        lines = [yellow(line) for line in cut(seen.problem, MOST_LINES_OF_REFUSAL)]
    else:
        lines = cut(seen.answer, MOST_LINES_OF_REFUSAL if seen.is_error else MOST_LINES)
    print("\n".join(f"    {line}" for line in lines))
    print(dim(f"    ({seen.ms:,} ms)"), end="\n\n", flush=True)


def cut(text: str, most: int) -> list[str]:
    """The text in lines that fit, and how much there is beyond them."""
    lines = [part for line in text.splitlines() for part in wrap(line, WIDTH, subsequent_indent="  ") or [""]]
    if len(lines) <= most:
        return lines
    left = sum(map(len, lines[most:]))
    return [*lines[:most], dim(f"... {number(left, 'more character')}")]


def saved(summary: "Summary", isolation: str) -> None:
    savings, runs = summary["savings"], summary["runs"]["total"]
    tools, own = savings["definition_tokens"], savings["own_tokens"]
    trips, seconds = round(savings["round_trips"]), summary["time_saved_ms"] / 1000
    made = f"{number(summary['total_calls'], 'call')} in {number(runs, 'run')}"
    print(bold("What that saved, counted in these very runs (a token is about four bytes)"))
    print(f"    definitions  {tools:,} tokens, had each tool been connected itself; {own:,} for the one there is")
    print(f"    results      {savings['result_tokens']:,} tokens that code used and the model did not have to read")
    print(f"    round trips  {trips:,} fewer, with {made}: some {seconds:,.0f} s of waiting for a model")
    print(green(f"    in all       {summary['context_saved']:,} tokens of context"))
    print(dim(f"    Code ran in processes of its own: {isolation}"), end="\n\n")
    print(NEXT, end="")


def incomplete(steps: list[Seen]) -> None:
    which = ", ".join(f"{place}" for place, seen in enumerate(steps, 1) if seen.problem)
    if which:
        print(f"onetool: not everything could be shown here: step {which}. Try also: onetool doctor", file=sys.stderr)
