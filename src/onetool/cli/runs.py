"""List runs, with filters, and show what a run did. The ids of runs with effects or approvals begin with r_."""

import argparse
import json
import sys
from typing import TYPE_CHECKING, Any

from onetool.cli.approver import RunJournal, open_journal
from onetool.errors import ToolNotFound
from onetool.util.text import pluralize, shorten
from onetool.util.time_format import in_utc
from onetool_child.json_types import JsonObject

if TYPE_CHECKING:
    from collections.abc import Iterator

    from onetool.runs.run_list import ListedRun
    from onetool.stats.history import RunFilter, RunWithValues
    from onetool.stats.record import RunRecord

DEFAULT_LIMIT = 20
MAX_CODE_CHARS = 60
PAGE_RUNS = 200
LAST = "last"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    actions = parser.add_subparsers(dest="action", metavar="ACTION")
    listing = actions.add_parser("list", help="List runs, newest first (the default action)")
    show = actions.add_parser("show", help="Show a run with its calls")
    about = "id of the run (of one that begins with r_, its first characters), or last for the newest"
    show.add_argument("run", metavar="RUN", help=about)
    show.add_argument("--as-test", action="store_true", help="print a Python test that replays the run")
    for action in (parser, listing, show):
        action.add_argument("--json", action="store_true", default=argparse.SUPPRESS, help="print JSON")
    for action in (parser, listing):
        _add_filters(action)


def _add_filters(parser: argparse.ArgumentParser) -> None:
    def add(name: str, help_text: str, **options: Any) -> None:
        parser.add_argument(name, default=argparse.SUPPRESS, help=help_text, **options)

    add("--limit", f"maximum number of runs (default: {DEFAULT_LIMIT})", type=int, metavar="N")
    add("--agent", "only runs of this agent", metavar="AGENT")
    add("--token", "only runs with this token", metavar="NAME")
    add("--tool", "only runs that called this tool", metavar="TOOL")
    add("--state", "only runs in this state", choices=("running", "waiting", "completed", "failed"))
    add("--error", "only runs that failed with this type of error", metavar="TYPE")
    add("--text", "only runs whose code, id, error or client contains this text", metavar="TEXT")
    add("--min-ms", "minimum duration in milliseconds", type=float, metavar="MS")
    add("--max-ms", "maximum duration in milliseconds", type=float, metavar="MS")
    add("--order", "order of the runs (default: newest)", choices=("newest", "oldest", "slowest"))
    add("--json-lines", "print all matching runs with calls and values, one JSON object per line", action="store_true")


def main(options: argparse.Namespace) -> int:
    as_json = getattr(options, "json", False)
    with open_journal(options) as journal:
        if options.action == "show":
            return _show(journal, options, as_json=as_json)
        if getattr(options, "json_lines", False):
            return _export(journal, options)
        runs = _list(journal, options)
    if as_json:
        print(json.dumps({"runs": runs}, indent=2, ensure_ascii=False))
    elif not runs:
        print("No runs are recorded, or none matches.")
    for run in [] if as_json else runs:
        first = next((line for line in run["code"].splitlines() if line.strip()), "")
        counted = pluralize(run["calls"], "call")
        duration = _format_duration(run["duration_ms"])
        print(
            f"{run['run']}  {run['started']}  {run['state']:11} {duration}  agent {run['agent']}, {counted}  ", end=""
        )
        print(shorten(first, MAX_CODE_CHARS))
    return 0


def _format_duration(milliseconds: float | None) -> str:
    return f"{'-' if milliseconds is None else f'{milliseconds:,.0f} ms':>10}"


# --- list ----------------------------------------------------------------------------------------------------------


def _build_filter(options: argparse.Namespace) -> "RunFilter":
    from onetool.stats.history import RunFilter

    names = ("agent", "tool", "state", "error", "text", "order")
    given: JsonObject = {name: getattr(options, name) for name in names if name in options}
    given |= {
        f"{side}_seconds": getattr(options, f"{side}_ms") / 1000 for side in ("min", "max") if f"{side}_ms" in options
    }
    given |= {"actor": f"token {options.token}"} if "token" in options else {}
    return RunFilter(**given)


def _list(journal: RunJournal, options: argparse.Namespace) -> list[JsonObject]:
    from onetool.runs.run_list import AllRuns

    runs = AllRuns([journal.statistics], journal.store, journal.redact)
    criteria = _build_filter(options)
    left = max(1, getattr(options, "limit", DEFAULT_LIMIT))
    lines: list[JsonObject] = []
    position = None
    while left > 0:
        page = runs.list_page(criteria, position, min(left, PAGE_RUNS))
        lines += [_describe_line(journal, run) for run in page.runs]
        left -= len(page.runs)
        position = page.next
        if position is None:
            break
    return lines


def _describe_line(journal: RunJournal, run: "ListedRun") -> JsonObject:
    """Return a run with its state in the journal, if it is there."""
    from onetool.runs.views import describe_line

    line = _describe_record(run.record)
    durable = run.durable or journal.store.get_run(f"r_{run.record.run_id}")
    return line if durable is None else {**line, **describe_line(durable, journal.redact)}


def _describe_record(run: "RunRecord") -> JsonObject:
    return {
        "run": run.run_id,
        "kind": run.kind,
        "agent": run.agent,
        "actor": run.actor,
        "client": run.client,
        "state": "failed" if run.error_type else "done",
        "reason": run.error_type or "",
        "started": in_utc(run.at, "seconds"),
        "expires": None,
        "code": run.command or run.name,
        "calls": run.calls,
        "duration_ms": None if run.seconds is None else round(run.seconds * 1000, 1),
        "directory": run.directory,
    }


def _export(journal: RunJournal, options: argparse.Namespace) -> int:
    """Print runs as the REST API exports them."""
    from onetool.stats.history import iter_runs
    from onetool.transports.http.api.runs import build_timeline
    from onetool_child.data import text

    left = getattr(options, "limit", None)
    for batch in iter_runs(journal.statistics, _build_filter(options)):
        for found in batch if left is None else batch[:left]:
            line = journal.redact.redact_data(build_timeline(found, shows_directory=True).as_json())
            sys.stdout.write(f"{text(line)}\n")
        if left is not None and (left := left - len(batch)) <= 0:
            break
    sys.stdout.flush()
    return 0


# --- show ----------------------------------------------------------------------------------------------------------


def _show(journal: RunJournal, options: argparse.Namespace, *, as_json: bool) -> int:
    from onetool.runs.views import describe_run
    from onetool.stats.history import find_run
    from onetool.transports.http.api.runs import build_timeline

    if options.as_test:
        newest = journal.store.list_runs(limit=1) if options.run == LAST else []
        print(_write_test(journal, newest[0].id if newest else options.run), end="")
        return 0
    latest = _list(journal, argparse.Namespace(limit=1)) if options.run == LAST else []
    run_id = latest[0]["run"] if latest else options.run
    try:
        run = describe_run(journal.store, run_id, journal.redact)
    except ToolNotFound:
        found = find_run(journal.statistics, run_id)
        if found is None:
            raise
        if as_json:
            timeline = build_timeline(found, shows_directory=True).as_json()
            print(json.dumps(journal.redact.redact_data(timeline), indent=2, ensure_ascii=False))
        else:
            print(journal.redact("\n".join(_describe_recorded(found))))
        return 0
    print(json.dumps(run, indent=2, ensure_ascii=False) if as_json else "\n".join(_describe(run)))
    return 0


def _write_test(journal: RunJournal, run_id: str) -> str:
    from onetool import snippets
    from onetool.cli.run_as_test import write_test
    from onetool.runner.fence_processor import strip
    from onetool.runs.replay import not_replayable
    from onetool.runs.views import find_run
    from onetool.stats import history

    try:
        run = find_run(journal.store, run_id)
    except ToolNotFound:
        if history.find_run(journal.statistics, run_id) is None:
            raise
        raise not_replayable(run_id) from None
    code = strip(run.code) if run.kind == "run" else run.code
    if snippets.is_snippet(code):
        code = snippets.expand(code, journal.state.snippets.merge(journal.loaded.settings.snippets, run.agent))
    return write_test(run, journal.store.list_calls(run.id), journal.redact.redact_data, code)


def _describe(run: JsonObject) -> "list[str]":
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


def _describe_recorded(found: "RunWithValues") -> "Iterator[str]":
    """Yield what is shown of a run that is not in the journal. Values are hostile text."""
    from onetool.stats.details import StoredValues
    from onetool.util.invisible import escape_invisible

    run = found.run
    own = found.values.get(0, StoredValues())
    line = _describe_record(run)
    yield f"{run.run_id}  {line['state']}{': ' if run.error_type else ''}{run.error_type or ''}"
    actor = f"{run.actor}, " if run.actor else ""
    started = f"started {line['started']}, took {_format_duration(line['duration_ms']).strip()}"
    yield f"{actor}agent {run.agent}, client {run.client or 'unknown'}, {started}, in {run.directory or 'unknown'}"
    yield from ("", *(f"    {escape_invisible(text)}" for text in run.command.splitlines()), "")
    for number, call in enumerate(found.calls, 1):
        values = found.values.get(call.call_id, StoredValues())
        yield f"{number}. {call.name}  {call.error_type or 'done'}  {(call.seconds or 0) * 1000:,.0f} ms"
        for label, value in (("arguments", values.arguments), ("->", values.result), ("error", values.error)):
            if value is not None:
                yield f"     {label} {escape_invisible(value)}"
    for label, value in (("Printed", own.printed), ("Value", own.result), ("Error", own.error)):
        if value is not None:
            yield from ("", f"{label}:", escape_invisible(value))
