"""List runs, with filters, and show what a run did. The ids of runs with effects or approvals begin with r_."""

import argparse
import json
from typing import TYPE_CHECKING, Any

from onetool.cli.app_runner import check_settings
from onetool.cli.identity import identify_owner
from onetool.cli.terminal import CommandOutput
from onetool.errors import ToolNotFound
from onetool.util.invisible import escape_invisible
from onetool.util.text import pluralize, shorten
from onetool.util.time_format import in_utc
from onetool_child.json_types import JsonObject

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterator

    from onetool.admin.durable_runs import DurableRun
    from onetool.admin.runs import RunListQuery, Timeline
    from onetool.app import OneTool
    from onetool.runs.run_list import ListedRun

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


async def execute(app: "OneTool", options: argparse.Namespace, output: CommandOutput) -> int:
    check_settings(app, output)
    if options.action == "show":
        await _show(app, options, output)
    elif getattr(options, "json_lines", False):
        await _export(app, options, output)
    else:
        await _list(app, options, output)
    return 0


# --- list ----------------------------------------------------------------------------------------------------------


async def _list(app: "OneTool", options: argparse.Namespace, output: CommandOutput) -> None:
    lines = [line async for line in _iter_lines(app, _read_query(options), getattr(options, "limit", DEFAULT_LIMIT))]
    if options.json:
        output.write_json({"runs": lines})
    elif not lines:
        output.write("No runs are recorded, or none matches.\n")
    else:
        output.write_lines(map(_format_line, lines))


def _read_query(options: argparse.Namespace) -> "RunListQuery":
    from onetool.admin.runs import RunListQuery

    values = {name: value for name, value in vars(options).items() if name in RunListQuery.model_fields}
    if "token" in options:
        values["actor"] = f"token {options.token}"
    return RunListQuery().model_copy(update=values)


async def _iter_lines(app: "OneTool", query: "RunListQuery", limit: int) -> "AsyncIterator[JsonObject]":
    """Yield runs, each with its state in the journal, if it is there."""
    from onetool.admin.durable_runs import describe_line
    from onetool.admin.runs import build_filter, read_page

    owner = identify_owner()
    left = max(1, limit)
    position = None
    while left > 0:
        page = await read_page(app, owner, build_filter(owner, query), position, min(left, PAGE_RUNS))
        for run in page.runs:
            durable = run.durable or app.state.runs.get_run(f"r_{run.record.run_id}")
            yield _describe_listed(run) | (describe_line(durable, app.redact) if durable is not None else {})
        left -= len(page.runs)
        position = page.next
        if position is None:
            break


def _describe_listed(listed: "ListedRun") -> JsonObject:
    run = listed.record
    return {
        "run": run.run_id,
        "kind": run.kind,
        "agent": run.agent,
        "actor": run.actor,
        "client": run.client,
        "state": "done" if listed.state == "completed" else listed.state,
        "reason": run.error_type or "",
        "started": in_utc(run.at, "seconds"),
        "expires": None,
        "code": run.command or run.name,
        "calls": run.calls,
        "duration_ms": None if run.seconds is None else round(run.seconds * 1000, 1),
        "directory": run.directory,
    }


def _format_line(run: JsonObject) -> str:
    code = next((line for line in run["code"].splitlines() if line.strip()), "")
    calls = pluralize(run["calls"], "call")
    duration = _format_duration(run["duration_ms"])
    about = f"{run['run']}  {run['started']}  {run['state']:11} {duration:>10}  agent {run['agent']}, {calls}"
    return f"{about}  {shorten(code, MAX_CODE_CHARS)}"


def _format_duration(milliseconds: float | None) -> str:
    return "-" if milliseconds is None else f"{milliseconds:,.0f} ms"


async def _export(app: "OneTool", options: argparse.Namespace, output: CommandOutput) -> None:
    """Print runs as the REST API exports them."""
    from onetool.admin.runs import export_runs
    from onetool_child.data import text

    left = getattr(options, "limit", None)
    async for batch in await export_runs(app, identify_owner(), _read_query(options)):
        for timeline in batch[:left]:
            output.write(f"{text(app.redact.redact_data(timeline.as_json()))}\n")
        if left is not None and (left := left - len(batch)) <= 0:
            break


# --- show ----------------------------------------------------------------------------------------------------------


async def _show(app: "OneTool", options: argparse.Namespace, output: CommandOutput) -> None:
    from anyio.to_thread import run_sync as run_in_thread

    from onetool.admin.durable_runs import DurableRun
    from onetool.admin.runs import RunListQuery, show_run

    run_id = options.run
    if options.as_test:
        newest = app.state.runs.list_runs(limit=1) if run_id == LAST else []
        output.write(await run_in_thread(_write_test, app, newest[0].id if newest else run_id))
        return
    if run_id == LAST:
        async for line in _iter_lines(app, RunListQuery(), limit=1):
            run_id = line["run"]
    run = (await show_run(app, identify_owner(), run_id)).root
    if options.json:
        output.write_json(app.redact.redact_data(run.as_json()))
    elif isinstance(run, DurableRun):
        output.write_lines(_describe_durable(run))
    else:
        output.write_lines(map(app.redact, _describe_timeline(run)))


def _write_test(app: "OneTool", run_id: str) -> str:
    from onetool import snippets
    from onetool.admin.durable_runs import find_run
    from onetool.cli.run_as_test import write_test
    from onetool.runner.fence_processor import strip
    from onetool.runs.replay import not_replayable
    from onetool.stats import history

    try:
        run = find_run(app.state.runs, run_id)
    except ToolNotFound:
        if history.find_run(app.state.recorder.database, run_id) is None:
            raise
        raise not_replayable(run_id) from None
    code = strip(run.code) if run.kind == "run" else run.code
    if snippets.is_snippet(code):
        code = snippets.expand(code, app.state.snippets.merge(app.settings.snippets, run.agent))
    return write_test(run, app.state.runs.list_calls(run.id), app.redact.redact_data, code)


def _describe_durable(run: "DurableRun") -> "Iterator[str]":
    yield f"{run.run}  {run.state}{': ' if run.reason else ''}{run.reason}"
    actor = f"{run.actor}, " if run.actor else ""
    yield f"{actor}agent {run.agent}, client {run.client or 'unknown'}, started {run.started}"
    yield from ("", *(f"    {line}" for line in run.code.splitlines()), "")
    for call in run.calls:
        by = f" by {call.by}" if call.by else ""
        yield f"{call.number}. {call.tool}  {call.state}{by}{': ' if call.reason else ''}{call.reason}"
        yield from (f"     {name}: {json.dumps(value, ensure_ascii=False)}" for name, value in call.arguments.items())
        if call.result is not None:
            yield f"     -> {json.dumps(call.result, ensure_ascii=False)}"
    if not run.calls:
        yield "No calls with effects."


def _describe_timeline(run: "Timeline") -> "Iterator[str]":
    """Yield what is shown of a run that is not in the journal. Values are hostile text."""
    state = "done" if run.state == "completed" else run.state
    yield f"{run.id}  {state}{': ' if run.error else ''}{run.error or ''}"
    actor = f"{run.actor}, " if run.actor else ""
    started = f"started {run.started_at.partition('.')[0]}Z, took {_format_duration(run.duration_ms)}"
    yield f"{actor}agent {run.agent}, client {run.client or 'unknown'}, {started}, in {run.directory or 'unknown'}"
    yield from ("", *(f"    {escape_invisible(text)}" for text in run.command.splitlines()), "")
    for number, call in enumerate(run.calls, 1):
        yield f"{number}. {call.name}  {call.error or 'done'}  {call.duration_ms or 0:,.0f} ms"
        for label, value in (("arguments", call.arguments), ("->", call.result), ("error", call.message)):
            if value is not None:
                yield f"     {label} {escape_invisible(value)}"
    for label, value in (("Printed", run.printed), ("Value", run.result), ("Error", run.message)):
        if value is not None:
            yield from ("", f"{label}:", escape_invisible(value))
