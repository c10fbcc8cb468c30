"""Runs: list them, show what they did, export them, and read their stored results.

They are those of this application and, for people who see all, its neighbors;
`onetool.runs.live_runs` says where they are.
"""

import re
from collections.abc import AsyncIterator, Iterable
from contextlib import suppress
from typing import Annotated, Literal, NamedTuple

from anyio.to_thread import run_sync as run_in_thread
from pydantic import Field, WithJsonSchema

from onetool.admin.action import Person, action
from onetool.admin.model import (
    SIZE_DESCRIPTION,
    AdminError,
    ApiModel,
    Count,
    Flag,
    Milliseconds,
    Moments,
    Number,
    Query,
    Size,
    Time,
    absent,
)
from onetool.admin.recorded_calls import (
    RecordedCall,
    find_run,
    list_recorded,
    make_not_found,
    show_line,
)
from onetool.admin.statistics import flush_all, list_states, read
from onetool.app import OneTool
from onetool.errors import ToolError, ToolNotFound
from onetool.runs.live_runs import AllRuns, merge, to_ms
from onetool.runs.results.window import Unit
from onetool.sources.bundles.model import is_none
from onetool.state.run_records import OPEN, RunRecord, RunState, StoredValues
from onetool.state.stats import history
from onetool.state.stats.history import Position, RunFilter, StateGroup
from onetool.state.stats.record import CallRecord
from onetool.util.redact import Redactor
from onetool.util.time_format import in_utc
from onetool_child.json_types import JsonObject

ERROR_LINE = re.compile(r"^  line ([0-9]{1,6})\b", re.MULTILINE)
POSITION = re.compile(r"([0-9.e+-]{1,40})_([!-~]{1,300})", re.ASCII)
NO_VALUES = StoredValues()
DEFAULT_LINES = 100
MAX_LINES = 10_000
MAX_CHARACTERS = 1_000_000
MISSING_REASONS = ("not_found", "expired")


class RunFilterQuery(Query):
    agent: str = Field(default="", description="Only runs of this agent")
    actor: str = Field(
        default="", description="Only runs of this token or subject, such as `token laptop`"
    )
    tool: str = Field(default="", description="Only runs that called this tool")
    text: str = Field(
        default="", description="Only runs whose code, id, error or client contains this text"
    )
    state: StateGroup = Field(
        default="",
        description=(
            "Only runs in this state; `failed` is every end without a value, `waiting` includes"
            " `halted`"
        ),
    )
    error: str = Field(default="", description="Only runs that failed with this type of error")
    min_ms: Milliseconds = Field(default=None, description="Minimum duration in milliseconds")
    max_ms: Milliseconds = Field(default=None, description="Maximum duration in milliseconds")
    since: Moments = Field(
        default=None, description="Only runs that started at this time or later (RFC 3339)"
    )
    until: Moments = Field(
        default=None, description="Only runs that started before this time (RFC 3339)"
    )
    order: Literal["newest", "oldest", "slowest"] = Field(
        default="newest", description="Order of the runs"
    )


class RunListQuery(RunFilterQuery):
    page_size: Size = Field(default=200, description=SIZE_DESCRIPTION)
    page_token: str = Field(
        default="", description="nextPageToken of the previous page, with the same filters"
    )


class Run(ApiModel):
    id: str
    kind: Literal["run", "call"]
    name: str
    agent: str
    actor: str
    client: str
    started_at: Time
    duration_ms: float | None
    state: Annotated[str, WithJsonSchema({"type": "string", "enum": [*RunState]})]
    reason: str = absent("", "Reason for the state")
    error: str | None
    command: str
    call_count: Count
    failed_count: Count
    expires: Time | None = absent(None, "End of the time in which a person may answer")
    directory: str = absent(
        "", "Working directory; only callers who see the runs of all agents see it"
    )


class RunList(ApiModel):
    runs: list[Run]
    next_page_token: str | None = absent(
        None, "Token of the next page, if there is one; pages may have few runs"
    )


class RunCall(ApiModel):
    name: str
    start_ms: float
    duration_ms: float | None
    error: str | None
    lane: Count
    arguments: str | None = absent(None, "Arguments as JSON, which may be truncated")
    result: str | None = absent(None, "Result as JSON or text, which may be truncated")
    message: str | None = absent(None, "Error message")


class RunDetails(Run):
    calls: list[RunCall]
    calls_left_out: Count
    most_at_once: Count
    cost: float = 0.0
    printed: str | None = absent(None, "Printed output")
    result: str | None = absent(None, "Value, as the client saw it")
    message: str | None = absent(None, "Error message with its location")
    error_line: int | None = absent(None, "Line of the code that failed")
    recorded: list[RecordedCall] = absent(
        [],
        "Calls in the journal: those with effects, or all of a run that can be repeated, with"
        " people's decisions",
    )


@action("GET /api/runs", "Runs")
async def list_runs(app: OneTool, person: Person, query: RunListQuery) -> RunList:
    """List runs."""
    after = parse_position(query.page_token)
    criteria = build_filter(person, query)
    sources = list_states(app, person)
    databases = [states[0].recorder.database for states in sources]
    # Before the statistics, so that none is missing in both.
    active = app.live_runs.runs(*person.visible_runs)
    runs = AllRuns(
        databases, app.state.runs, app.redact, active, skips_unreadable=person.transport == "http"
    )

    def flush_and_read() -> history.RunPage:
        for states in sources:
            flush_all(states)
        return runs.list_page(criteria, after, query.page_size)

    page = await run_in_thread(flush_and_read)
    return RunList(
        runs=[Run(**_describe(run, person, app.redact)) for run in page.runs],
        next_page_token=None if page.next is None else f"{page.next.value!r}_{page.next.run_id}",
    )


@action("GET /api/runs/{runID}", "The run with its calls and values")
async def show_run(app: OneTool, person: Person, run_id: str) -> RunDetails:
    """Get a run with its calls."""
    try:
        journaled = await run_in_thread(_find_in_journal, app, person, run_id)
    except ToolError as error:  # most runs are not in the journal
        recorded = await _find_recorded(app, person, run_id)
        if recorded is not None:
            return build_details(*recorded, person, app.redact)
        if not isinstance(error, ToolNotFound):
            raise
        hint = "list recent runs with GET /api/runs" if person.transport == "http" else error.hint
        raise AdminError("not_found", error.message, {"runID": run_id}, hint=hint) from None
    run, calls = await _find_recorded(app, person, journaled.id) or (None, [])
    details = build_details(merge(journaled, run, app.redact), calls, person, app.redact)
    details.recorded = await run_in_thread(list_recorded, app.state.runs, journaled.id, app.redact)
    details.call_count = details.call_count or len(details.recorded)
    return details


@action("GET /api/runs/export", "Runs with their calls and values, one per line")
async def export_runs(
    app: OneTool, person: Person, query: RunFilterQuery
) -> AsyncIterator[list[RunDetails]]:
    """Export runs as JSON Lines."""
    return _export(app, person, build_filter(person, query))


async def _export(
    app: OneTool, person: Person, criteria: RunFilter
) -> AsyncIterator[list[RunDetails]]:
    for states in list_states(app, person):
        await run_in_thread(flush_all, states)
        batches = history.iter_runs(states[0].recorder.database, criteria)
        while (batch := await run_in_thread(next, batches, None)) is not None:
            yield [build_details(run, calls, person, app.redact) for run, calls in batch]


# --- sources --------------------------------------------------------------------------------------


async def _find_recorded(app: OneTool, person: Person, run_id: str) -> history.RunWithCalls | None:
    """Return a run that is active or in the statistics."""
    live = app.live_runs.find(run_id, *person.visible_runs)
    if live is not None:
        return live
    for states in list_states(app, person):
        recorded = await read(person, states, history.find_run, run_id)
        if recorded is not None and recorded[0].is_visible(*person.visible_runs):
            return recorded
    return None


def _find_in_journal(app: OneTool, person: Person, run_id: str) -> RunRecord:
    run = find_run(app.state.runs, run_id)
    if not run.is_visible(*person.visible_runs):
        raise make_not_found(run_id)
    return run


# --- filters --------------------------------------------------------------------------------------


def build_filter(person: Person, query: RunFilterQuery) -> RunFilter:
    """Return the filter of a query. A person who sees only their own runs cannot choose others."""
    agent, token_id = person.visible_runs
    return RunFilter(
        agent=agent if agent is not None else query.agent or None,
        actor=query.actor or None if token_id is None else None,
        token_id=token_id,
        min_seconds=None if query.min_ms is None else query.min_ms / 1000,
        max_seconds=None if query.max_ms is None else query.max_ms / 1000,
        **{
            name: getattr(query, name)
            for name in ("tool", "text", "state", "error", "since", "until", "order")
        },
    )


def parse_position(token: str) -> Position | None:
    if not token:
        return None
    match = POSITION.fullmatch(token)
    with suppress(ValueError):
        if match is not None:
            return Position(float(match[1]), match[2])
    raise AdminError(
        "invalid",
        "pageToken: expected the nextPageToken of the previous page",
        {"parameter": "pageToken"},
    )


# --- responses ------------------------------------------------------------------------------------


def _describe(run: RunRecord, person: Person, redact: Redactor) -> JsonObject:
    """Return the fields of a `Run`."""
    return {
        "id": run.id,
        "kind": run.kind,
        "name": run.name,
        "agent": run.agent,
        "actor": show_line(run.actor, redact),
        "client": show_line(run.client, redact),
        "started_at": in_utc(run.at, "microseconds"),
        "duration_ms": to_ms(run.seconds),
        "state": str(run.state),
        "reason": show_line(run.reason, redact),
        "error": run.error_type,
        "command": run.code,
        "call_count": run.calls,
        "failed_count": run.failed,
        "expires": run.expires if run.expires and run.state in OPEN else None,
        "directory": run.directory if person.sees_all else "",
    }


def build_details(
    run: RunRecord, calls: Iterable[CallRecord], person: Person, redact: Redactor
) -> RunDetails:
    """Return the run with its calls. Each call gets the first lane that is free when it starts."""
    lane_ends: list[float] = []
    shown: list[RunCall] = []
    for call in calls:
        lane = next((row for row, end in enumerate(lane_ends) if end <= call.at), len(lane_ends))
        lane_ends[lane : lane + 1] = [
            float("inf") if call.seconds is None else call.at + call.seconds
        ]
        values = call.values or NO_VALUES
        shown.append(
            RunCall(
                name=call.name,
                start_ms=max(0.0, round((call.at - run.at) * 1000, 1)),
                duration_ms=to_ms(call.seconds),
                error=call.error_type,
                lane=lane,
                arguments=values.arguments,
                result=values.result,
                message=values.error,
            )
        )
    values = run.values or NO_VALUES
    line = ERROR_LINE.search(values.error or "")
    return RunDetails(
        **_describe(run, person, redact),
        calls=shown,
        calls_left_out=max(0, run.calls - len(shown)),
        most_at_once=len(lane_ends),
        cost=run.cost,
        printed=values.printed,
        result=values.result,
        message=values.error,
        error_line=int(line[1]) if line else None,
    )


# --- results --------------------------------------------------------------------------------------


class WindowQuery(Query):
    offset: Number = Field(default=1, description="First line, character or match, counted from 1")
    limit: Number = Field(
        default=DEFAULT_LINES, description="Maximum number of lines, characters or matches"
    )
    search: str = Field(default="", description="Regular expression; with fuzzy=true, words")
    fuzzy: Flag = Field(default=False, description="Rank lines by similarity")
    ignore_case: Flag = Field(default=False, description="Ignore case")
    unit: Unit = Field(default="auto", description="Unit of offset and limit")


class ResultWindow(ApiModel):
    lines: list[str]
    total_lines: Count
    returned: Count
    offset: Count
    has_more: bool
    matched_lines: Count | None = Field(default=None, exclude_if=is_none)
    positions: list[int] | None = Field(default=None, exclude_if=is_none)
    unit: Literal["chars"] | None = absent(None)
    total_chars: Count | None = Field(default=None, exclude_if=is_none)


class StoredMedium(NamedTuple):
    content: bytes
    mime_type: str


@action("GET /api/results/{handle}", "Part of the result", is_redacted=False)
async def read_result(
    app: OneTool, person: Person, handle: str, query: WindowQuery
) -> ResultWindow:
    """Read part of a stored result."""

    def read() -> ResultWindow:
        window = app.results.window(
            handle,
            query.offset,
            min(query.limit, MAX_CHARACTERS if query.unit == "chars" else MAX_LINES),
            query.search,
            query.fuzzy,
            unit=query.unit,
            ignore_case=query.ignore_case,
            agent=person.agent_name,
            token_id=person.token_id,
        )
        return ResultWindow.model_validate(window)

    try:
        return await run_in_thread(read)
    except ToolError as error:
        if error.fields.get("reason") in MISSING_REASONS:
            raise _missing() from None
        raise AdminError("invalid", error.message) from None


@action("GET /api/media/{handle}", "File content")
async def read_medium(app: OneTool, person: Person, handle: str) -> StoredMedium:
    """Get an image or audio file."""
    try:
        return StoredMedium(
            *await run_in_thread(app.media.get, handle, person.agent_name, person.token_id)
        )
    except ToolError:
        raise _missing() from None


def _missing() -> AdminError:
    return AdminError("not_found", "unknown or expired handle", hint="run the call again")
