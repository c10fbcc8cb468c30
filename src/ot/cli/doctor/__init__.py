"""Check everything and say what to do; the exit status is 1 where something is wrong."""

import argparse
from collections.abc import Sequence

from ot.checks.finding import MARKS, OK, PROBLEM, WARNING, Finding
from ot.cli.signals import heeding_signals
from ot.cli.terminal import green, red, yellow

COLOURS = {OK: green, WARNING: yellow, PROBLEM: red}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--json", action="store_true", help="print the findings as JSON")


def main(options: argparse.Namespace) -> int:
    from ot.cli.doctor.examination import examined

    findings = heeding_signals(lambda: examined(options.config))
    print(_as_json(findings) if options.json else "\n".join([*map(_line, findings), "", _sum(findings)]))
    return int(any(found.level == PROBLEM for found in findings))


def _as_json(findings: Sequence[Finding]) -> str:
    from ot.render import render

    listed = [{"level": found.level, "what": found.what, "advice": found.advice} for found in findings]
    return render({"findings": listed}, "json")


def _line(found: Finding) -> str:
    what, advice = (text.replace("\n", "\n      ") for text in (found.what, found.advice))
    return f"{COLOURS[found.level](MARKS[found.level])}  {what}" + (f"\n      -> {advice}" if advice else "")


def _sum(findings: Sequence[Finding]) -> str:
    counts = {level: sum(found.level == level for found in findings) for level in (PROBLEM, WARNING)}
    said = [f"{count} {level}{'s' if count > 1 else ''}" for level, count in counts.items() if count]
    return f"{' and '.join(said)}. Do what the arrows say, then type: onetool doctor" if said else "All is well."
