"""List runs, with filters, and show what a run did."""

import argparse
import json
from typing import TYPE_CHECKING, Any

from onetool.cli.command import Actions, Command
from onetool.cli.invocation import Invocation
from onetool.errors import ToolNotFound
from onetool.util.text import pluralize, shorten

if TYPE_CHECKING:
    from collections.abc import Iterator

    from onetool.admin.runs import Run, RunDetails, RunListQuery
    from onetool.app import OneTool

DEFAULT_LIMIT = 20
MAX_CODE_CHARS = 60
LAST = "last"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    actions = Actions(parser, _list)
    listing = actions.add("list", _list, "List runs, newest first (the default action)")
    show = actions.add("show", _show, "Show a run with its calls")
    about = (
        "id of the run (of one with effects or approvals, its first characters), or last for the"
        " newest"
    )
    show.add_argument("run", metavar="RUN", help=about)
    show.add_argument(
        "--as-test", action="store_true", help="print a Python test that replays the run"
    )
    for action in (parser, listing):
        _add_filters(action)


def _add_filters(parser: argparse.ArgumentParser) -> None:
    def add(name: str, help_text: str, **options: Any) -> None:
        parser.add_argument(name, default=argparse.SUPPRESS, help=help_text, **options)

    add("--limit", f"maximum number of runs (default: {DEFAULT_LIMIT})", type=int, metavar="N")
    add("--agent", "only runs of this agent", metavar="AGENT")
    add("--token", "only runs with this token", metavar="NAME")
    add("--tool", "only runs that called this tool", metavar="TOOL")
    add("--state", "only runs in this state", choices=("running", "waiting", "done", "failed"))
    add("--error", "only runs that failed with this type of error", metavar="TYPE")
    add("--text", "only runs whose code, id, error or client contains this text", metavar="TEXT")
    add("--min-ms", "minimum duration in milliseconds", type=float, metavar="MS")
    add("--max-ms", "maximum duration in milliseconds", type=float, metavar="MS")
    add("--order", "order of the runs (default: newest)", choices=("newest", "oldest", "slowest"))
    add(
        "--json-lines",
        "print all matching runs with calls and values, one JSON object per line",
        action="store_true",
    )


# --- list -----------------------------------------------------------------------------------------


async def _list(command: Invocation) -> None:
    from onetool.admin.runs import list_runs

    if "json_lines" in command.options:
        await _export(command)
        return
    limit = getattr(command.options, "limit", DEFAULT_LIMIT)
    runs = await command.list_all(list_runs, _read_query(command.options), max(1, limit))
    data = {"runs": [run.model_dump() for run in runs]}
    command.show(data, map(_format_line, runs), "No runs are recorded, or none matches.")


def _read_query(options: argparse.Namespace) -> "RunListQuery":
    from onetool.admin.runs import RunListQuery

    values = {
        name: value for name, value in vars(options).items() if name in RunListQuery.model_fields
    }
    if "token" in options:
        values["actor"] = f"token {options.token}"
    return RunListQuery().model_copy(update=values)


def _format_line(run: "Run") -> str:
    code = next((line for line in run.command.splitlines() if line.strip()), run.name)
    calls = pluralize(run.call_count, "call")
    duration = _format_duration(run.duration_ms)
    about = (
        f"{run.id}  {_format_time(run)}  {run.state:11} {duration:>10}  agent {run.agent}, {calls}"
    )
    return f"{about}  {shorten(code, MAX_CODE_CHARS)}"


def _format_time(run: "Run") -> str:
    return f"{run.started_at.partition('.')[0]}Z"


def _format_duration(milliseconds: float | None) -> str:
    return "-" if milliseconds is None else f"{milliseconds:,.0f} ms"


async def _export(command: Invocation) -> None:
    """Print runs as the REST API exports them."""
    from onetool.admin.runs import export_runs

    left = getattr(command.options, "limit", None)
    async for batch in await command.do(export_runs, _read_query(command.options)):
        command.write_json_lines(run.as_json() for run in batch[:left])
        if left is not None and (left := left - len(batch)) <= 0:
            break


# --- show -----------------------------------------------------------------------------------------


async def _show(command: Invocation) -> None:
    from anyio.to_thread import run_sync as run_in_thread

    from onetool.admin.runs import RunListQuery, list_runs, show_run

    app = command.app
    run_id = command.options.run
    if command.options.as_test:
        newest = app.state.runs.list_runs(limit=1) if run_id == LAST else []
        command.output.write(
            await run_in_thread(_write_test, app, newest[0].id if newest else run_id)
        )
        return
    if run_id == LAST:
        runs = await command.list_all(list_runs, RunListQuery(), 1)
        run_id = runs[0].id if runs else run_id
    run = await command.do(show_run, run_id)
    command.show(run.model_dump(), _describe(run))


def _write_test(app: "OneTool", run_id: str) -> str:
    from onetool.admin.recorded_calls import find_run
    from onetool.cli.run_as_test import write_test
    from onetool.runs import snippets
    from onetool.runs.fence_processor import strip
    from onetool.runs.replay import not_replayable
    from onetool.state.stats import history

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


def _describe(run: "RunDetails") -> "Iterator[str]":
    """Yield what is shown of a run. Values are hostile text."""
    reason = run.reason or run.error
    yield f"{run.id}  {run.state}{f': {reason}' if reason else ''}"
    actor = f"{run.actor}, " if run.actor else ""
    started = f"started {_format_time(run)}, took {_format_duration(run.duration_ms)}"
    yield (
        f"{actor}agent {run.agent}, client {run.client or 'unknown'}, {started}, in"
        f" {run.directory or 'unknown'}"
    )
    yield from ("", *(f"    {line}" for line in run.command.splitlines()), "")
    if not run.calls or any(call.by or call.reason for call in run.recorded):
        yield from _describe_recorded(run)
    for number, call in enumerate(run.calls, 1):
        yield f"{number}. {call.name}  {call.error or 'done'}  {call.duration_ms or 0:,.0f} ms"
        for label, value in (
            ("arguments", call.arguments),
            ("->", call.result),
            ("error", call.message),
        ):
            if value is not None:
                yield f"     {label} {value}"
    for label, value in (("Printed", run.printed), ("Value", run.result), ("Error", run.message)):
        if value is not None:
            yield from ("", f"{label}:", value)


def _describe_recorded(run: "RunDetails") -> "Iterator[str]":
    for call in run.recorded:
        by = f" by {call.by}" if call.by else ""
        yield (
            f"{call.number}. {call.tool} "
            f" {call.state}{by}{': ' if call.reason else ''}{call.reason}"
        )
        yield from (
            f"     {name}: {json.dumps(value, ensure_ascii=False)}"
            for name, value in call.arguments.items()
        )
        if call.result is not None:
            yield f"     -> {json.dumps(call.result, ensure_ascii=False)}"


COMMANDS = {"runs": Command(__doc__, add_arguments)}
