"""Check everything and say what to do; the exit status is 1 where something is wrong."""

import argparse
from collections.abc import Sequence

from onetool.cli.signals import heeding_signals
from onetool.cli.terminal import green, red, yellow
from onetool.problem import OK, PROBLEM, WARNING, Problem

MARKS = {OK: ("ok  ", green), WARNING: ("warn", yellow), PROBLEM: ("FAIL", red)}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--json", action="store_true", help="print the findings as JSON")


def main(options: argparse.Namespace) -> int:
    from onetool.cli.doctor.examination import examine_all

    problems = heeding_signals(lambda: examine_all(options.config))
    if options.json:
        from onetool.render import render

        print(render({"findings": [each.to_json() for each in problems]}, "json"))
    else:
        print("\n".join([*map(_line, problems), "", _sum(problems)]))
    return int(any(each.level == PROBLEM for each in problems))


def _line(problem: Problem) -> str:
    what, hint = (text.replace("\n", "\n      ") for text in (problem.message, problem.hint))
    mark, color = MARKS[problem.level]
    return f"{color(mark)}  {what}" + (f"\n      -> {hint}" if hint else "")


def _sum(problems: Sequence[Problem]) -> str:
    counts = {level: sum(each.level == level for each in problems) for level in (PROBLEM, WARNING)}
    said = [f"{count} {level}{'s' if count > 1 else ''}" for level, count in counts.items() if count]
    return f"{' and '.join(said)}. Do what the arrows say, then type: onetool doctor" if said else "All is well."
