"""Check the installation and suggest fixes. The exit status is 1 if a problem is found."""

from argparse import ArgumentParser, Namespace
from collections.abc import Sequence

from onetool.cli.command import Command, print_result
from onetool.cli.exit_status import run_cancellable
from onetool.cli.terminal import green, red, yellow
from onetool.util.problem import OK, PROBLEM, WARNING, Problem
from onetool.util.text import pluralize

MARKS = {OK: ("ok  ", green), WARNING: ("warn", yellow), PROBLEM: ("FAIL", red)}


def add_arguments(parser: ArgumentParser) -> None:
    parser.add_argument(
        "--fix",
        action="store_true",
        help="make the fixes that are safe: create directories, rename damaged caches",
    )


def main(options: Namespace) -> int:
    from onetool.cli.doctor.run_checks import run_all_checks

    problems = run_cancellable(lambda: run_all_checks(options.config, makes_fixes=options.fix))
    data = {"findings": [problem.to_json() for problem in problems]}
    print_result(options, data, [*map(_line, problems), "", _summarize(problems)])
    return int(any(each.level == PROBLEM for each in problems))


def _line(problem: Problem) -> str:
    what, hint = (text.replace("\n", "\n      ") for text in (problem.message, problem.hint))
    mark, color = MARKS[problem.level]
    return f"{color(mark)}  {what}" + (f"\n      -> {hint}" if hint else "")


def _summarize(problems: Sequence[Problem]) -> str:
    levels = [problem.level for problem in problems]
    counts = {level: levels.count(level) for level in (PROBLEM, WARNING)}
    parts = [pluralize(count, level) for level, count in counts.items() if count]
    if any(problem.fix for problem in problems):
        return (
            f"{' and '.join(parts)}. Apply the suggested fixes, some of them with: onetool doctor"
            " --fix"
        )
    if parts:
        return f"{' and '.join(parts)}. Apply the suggested fixes, then run: onetool doctor"
    return "No problems found."


COMMANDS = {"doctor": Command(__doc__, add_arguments, main=main, json="print the findings as JSON")}
