"""List runs whose calls have effects or wait for approval, and show what they did."""

import argparse
import json
from typing import Any

from onetool.cli.approver import RunJournal, open_journal
from onetool.util.text import pluralize, shorten

DEFAULT_LIMIT = 20
MAX_CODE_CHARS = 60


def add_arguments(parser: argparse.ArgumentParser) -> None:
    actions = parser.add_subparsers(dest="action", metavar="ACTION")
    listing = actions.add_parser("list", help="List runs, newest first (the default action)")
    show = actions.add_parser("show", help="Show a run with its calls")
    show.add_argument("run", metavar="RUN", help="id of the run, or its first characters")
    show.add_argument("--as-test", action="store_true", help="print a Python test that replays the run")
    for action in (parser, listing, show):
        action.add_argument("--json", action="store_true", default=argparse.SUPPRESS, help="print JSON")
    for action in (parser, listing):
        action.add_argument(
            "--limit",
            type=int,
            default=argparse.SUPPRESS,
            metavar="N",
            help=f"maximum number of runs (default: {DEFAULT_LIMIT})",
        )


def main(options: argparse.Namespace) -> int:
    from onetool.runs.views import describe_run, describe_runs

    as_json = getattr(options, "json", False)
    with open_journal(options) as journal:
        if options.action == "show" and options.as_test:
            print(_write_test(journal, options.run), end="")
            return 0
        if options.action == "show":
            run = describe_run(journal.store, options.run, journal.redact)
            print(json.dumps(run, indent=2, ensure_ascii=False) if as_json else "\n".join(_describe(run)))
            return 0
        runs = describe_runs(journal.store, journal.redact, limit=getattr(options, "limit", DEFAULT_LIMIT))
    if as_json:
        print(json.dumps({"runs": runs}, indent=2, ensure_ascii=False))
    elif not runs:
        print("No runs are recorded. Runs are recorded when a call has an effect or waits for approval.")
    for run in [] if as_json else runs:
        first = next((line for line in run["code"].splitlines() if line.strip()), "")
        counted = pluralize(run["calls"], "call")
        print(f"{run['run']}  {run['started']}  {run['state']:11}  agent {run['agent']}, {counted}  ", end="")
        print(shorten(first, MAX_CODE_CHARS))
    return 0


def _write_test(journal: RunJournal, run_id: str) -> str:
    from onetool import snippets
    from onetool.runner.fence_processor import strip
    from onetool.runs.replay_source import write_test
    from onetool.runs.views import find_run

    run = find_run(journal.store, run_id)
    code = strip(run.code) if run.kind == "run" else run.code
    if snippets.is_snippet(code):
        code = snippets.expand(code, journal.loaded.settings.snippets)
    return write_test(run, journal.store.list_calls(run.id), journal.redact.redact_data, code)


def _describe(run: dict[str, Any]) -> "list[str]":
    lines = [f"{run['run']}  {run['state']}{': ' if run['reason'] else ''}{run['reason']}"]
    actor = f"{run['actor']}, " if run["actor"] else ""
    lines += [f"{actor}agent {run['agent']}, client {run['client'] or 'unknown'}, started {run['started']}"]
    lines += ["", *(f"    {line}" for line in run["code"].splitlines()), ""]
    for call in run["calls"]:
        by = f" by {call['by']}" if call["by"] else ""
        lines.append(
            f"{call['number']}. {call['tool']}  {call['state']}{by}{': ' if call['reason'] else ''}{call['reason']}"
        )
        lines += [f"     {name}: {json.dumps(value, ensure_ascii=False)}" for name, value in call["arguments"].items()]
        if call["result"] is not None:
            lines.append(f"     -> {json.dumps(call['result'], ensure_ascii=False)}")
    return lines if run["calls"] else [*lines, "No calls with effects."]
