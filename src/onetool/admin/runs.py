"""List runs, show what they did, and export them: those of this application and, for people who see all, its neighbors.

Recent runs are in the statistics, active ones in memory, and those with effects or approvals in the journal.
"""

import re
from collections.abc import AsyncIterator
from contextlib import suppress
from typing import Annotated, Literal, TypeVar, get_args

from anyio.to_thread import run_sync as run_in_thread
from pydantic import BeforeValidator, Field, RootModel, WithJsonSchema

from onetool.admin.action import action
from onetool.admin.durable_runs import DurableRun, DurableRunCall, DurableRunLine, describe_line, describe_run, find_run
from onetool.admin.errors import AdminError
from onetool.admin.model import (
    SIZE_DESCRIPTION,
    ApiModel,
    Count,
    Milliseconds,
    Moments,
    Query,
    Size,
    Text,
    Time,
    absent,
    take_single,
)
from onetool.admin.person import Person
from onetool.admin.statistics import flush_all, list_states, read
from onetool.app import OneTool
from onetool.errors import ToolError, ToolNotFound
from onetool.runs.live_runs import to_ms
from onetool.runs.run_list import AllRuns, ListedRun, ListPage
from onetool.stats import history
from onetool.stats.details import StoredValues
from onetool.stats.history import Position, RunFilter, RunWithValues, State as RunListState
from onetool.util.time_format import in_utc
from onetool_child.json_types import JsonObject

T = TypeVar("T")
ERROR_LINE = re.compile(r"^  line ([0-9]{1,6})\b", re.MULTILINE)
POSITION = re.compile(r"([0-9.e+-]{1,40})_([!-~]{1,300})", re.ASCII)
NO_VALUES = StoredValues()


class RunFilterQuery(Query):
    agent: Text = Field(default="", description="Only runs of this agent")
    actor: Text = Field(default="", description="Only runs of this token or subject, such as `token laptop`")
    tool: Text = Field(default="", description="Only runs that called this tool")
    text: Text = Field(default="", description="Only runs whose code, id, error or client contains this text")
    state: Annotated[RunListState, BeforeValidator(take_single)] = Field(
        default="", description="Only runs in this state"
    )
    error: Text = Field(default="", description="Only runs that failed with this type of error")
    min_ms: Milliseconds = Field(default=None, description="Minimum duration in milliseconds")
    max_ms: Milliseconds = Field(default=None, description="Maximum duration in milliseconds")
    since: Moments = Field(default=None, description="Only runs that started at this time or later (RFC 3339)")
    until: Moments = Field(default=None, description="Only runs that started before this time (RFC 3339)")
    order: Annotated[Literal["newest", "oldest", "slowest"], BeforeValidator(take_single)] = Field(
        default="newest", description="Order of the runs"
    )


class RunListQuery(RunFilterQuery):
    page_size: Size = Field(default=200, description=SIZE_DESCRIPTION)
    page_token: Text = Field(default="", description="nextPageToken of the previous page, with the same filters")


class Run(ApiModel):
    id: str
    kind: Literal["run", "call"]
    name: str
    agent: str
    actor: str
    client: str
    started_at: Time
    duration_ms: float | None
    state: Annotated[str, WithJsonSchema({"type": "string", "enum": list(get_args(RunListState)[1:])})]
    error: str | None
    command: str
    call_count: Count
    failed_count: Count
    directory: str = absent("", "Working directory; only callers who see the runs of all agents see it")


class RunList(ApiModel):
    runs: list[Run]
    next_page_token: str | None = absent(None, "Token of the next page, if there is one; pages may have few runs")
    durable: list[DurableRunLine] = absent([], "Runs that are recorded, because a call had an effect or had to wait")


class RunCall(ApiModel):
    name: str
    start_ms: float
    duration_ms: float | None
    error: str | None
    lane: Count
    arguments: str | None = absent(None, "Arguments as JSON, which may be truncated")
    result: str | None = absent(None, "Result as JSON or text, which may be truncated")
    message: str | None = absent(None, "Error message")


class Timeline(Run):
    calls: list[RunCall]
    calls_left_out: Count
    most_at_once: Count
    cost: float = 0.0
    printed: str | None = absent(None, "Printed output")
    result: str | None = absent(None, "Value, as the client saw it")
    message: str | None = absent(None, "Error message with its location")
    error_line: int | None = absent(None, "Line of the code that failed")
    approvals: list[DurableRunCall] = absent([], "Calls that were recorded, with the decisions of people")


class RunDetails(RootModel[Timeline | DurableRun]):
    """A run of the history, or, for an id that begins with `r_`, a durable run."""

    def as_json(self) -> JsonObject:
        return self.root.as_json()


@action()
async def list_runs(app: OneTool, person: Person, query: RunListQuery) -> RunList:
    """List runs."""
    after = parse_position(query.page_token)
    criteria = build_filter(person, query)
    page = await read_page(app, person, criteria, after, query.page_size)
    is_plain = after is None and criteria == build_filter(person, RunListQuery())
    return RunList(
        runs=[build_run(run, shows_directory=person.sees_all) for run in page.runs],
        next_page_token=None if page.next is None else f"{page.next.value!r}_{page.next.run_id}",
        durable=await run_in_thread(_list_durable, app, person) if is_plain else [],
    )


@action()
async def show_run(app: OneTool, person: Person, run_id: str) -> RunDetails:
    """Get a run with its calls."""
    if run_id.startswith("r_"):
        return RunDetails(await run_in_thread(_describe_durable, app, person, run_id))
    recorded = await _find_recorded(app, person, run_id)
    try:
        durable = await run_in_thread(_describe_durable, app, person, f"r_{run_id}")
    except ToolError as error:  # most runs are not in the journal
        if recorded is not None:
            return RunDetails(build_timeline(recorded, shows_directory=person.sees_all))
        if not isinstance(error, ToolNotFound):
            raise
        hint = "list recent runs with GET /api/runs" if person.transport == "http" else error.hint
        message = f"no run {run_id!r}, or it has expired"
        raise AdminError("not_found", message, {"runID": run_id}, hint=hint) from None
    if recorded is None:  # it waits, and its process has ended
        return RunDetails(durable)
    timeline = build_timeline(recorded, shows_directory=person.sees_all)
    timeline.approvals = [call for call in durable.calls if call.by or call.reason]
    return RunDetails(timeline)


@action()
async def export_runs(app: OneTool, person: Person, query: RunFilterQuery) -> AsyncIterator[list[Timeline]]:
    """Export runs as JSON Lines."""
    return _export(app, person, build_filter(person, query))


async def _export(app: OneTool, person: Person, criteria: RunFilter) -> AsyncIterator[list[Timeline]]:
    for states in list_states(app, person):
        await run_in_thread(flush_all, states)
        batches = history.iter_runs(states[0].recorder.database, criteria)
        while (batch := await run_in_thread(next, batches, None)) is not None:
            yield [build_timeline(run, shows_directory=person.sees_all) for run in batch]


# --- sources -------------------------------------------------------------------------------------------------------


async def read_page(
    app: OneTool, person: Person, criteria: RunFilter, after: Position | None = None, size: int = history.MAX_RUNS
) -> ListPage:
    """Return a page of the runs that the person may see, after writing what is queued."""
    sources = list_states(app, person)
    databases = [states[0].recorder.database for states in sources]
    active = app.live_runs.runs(*person.visible_runs)  # before the statistics, so that none is missing in both
    runs = AllRuns(databases, app.state.runs, app.redact, active, skips_unreadable=person.transport == "http")

    def flush_and_read() -> ListPage:
        for states in sources:
            flush_all(states)
        return runs.list_page(criteria, after, size)

    return await run_in_thread(flush_and_read)


async def _find_recorded(app: OneTool, person: Person, run_id: str) -> RunWithValues | None:
    """Return a run that is active or in the statistics."""
    live = app.live_runs.find(run_id, *person.visible_runs)
    if live is not None:
        return RunWithValues(*live, {})
    for states in list_states(app, person):
        recorded = await read(person, states, history.find_run, run_id, *person.visible_runs)
        if recorded is not None:
            return recorded
    return None


def _list_durable(app: OneTool, person: Person) -> list[DurableRunLine]:
    agent, token_id = person.visible_runs
    journal = app.state.runs
    return [
        DurableRunLine(**describe_line(run, app.redact), calls=len(journal.list_calls(run.id)))
        for run in journal.list_runs(agent=agent)
        if token_id in {None, run.token_id}
    ]


def _describe_durable(app: OneTool, person: Person, run_id: str) -> DurableRun:
    run = find_run(app.state.runs, run_id)
    agent, token_id = person.visible_runs
    if agent not in {None, run.agent} or token_id not in {None, run.token_id}:
        raise ToolNotFound(f"no run {run_id!r}, or it has expired")
    return describe_run(app.state.runs, run, app.redact)


# --- filters -------------------------------------------------------------------------------------------------------


def build_filter(person: Person, query: RunFilterQuery) -> RunFilter:
    """Return the filter of a query. A person who sees only their own runs cannot choose others."""
    agent, token_id = person.visible_runs
    return RunFilter(
        agent=agent if agent is not None else query.agent or None,
        actor=query.actor or None if token_id is None else None,
        token_id=token_id,
        min_seconds=None if query.min_ms is None else query.min_ms / 1000,
        max_seconds=None if query.max_ms is None else query.max_ms / 1000,
        **{name: getattr(query, name) for name in ("tool", "text", "state", "error", "since", "until", "order")},
    )


def parse_position(token: str) -> Position | None:
    if not token:
        return None
    match = POSITION.fullmatch(token)
    with suppress(ValueError):
        if match is not None:
            return Position(float(match[1]), match[2])
    raise AdminError(
        "invalid", "pageToken: expected the nextPageToken of the previous page", {"parameter": "pageToken"}
    )


# --- responses -----------------------------------------------------------------------------------------------------


def build_run(listed: ListedRun, *, shows_directory: bool = False) -> Run:
    run = listed.record
    return Run(
        id=run.run_id,
        kind="run" if run.kind == "run" else "call",
        name=run.name,
        agent=run.agent,
        actor=run.actor,
        client=run.client,
        started_at=in_utc(run.at, "microseconds"),
        duration_ms=to_ms(run.seconds),
        state=listed.state,
        error=run.error_type,
        command=run.command,
        call_count=run.calls,
        failed_count=run.failed,
        directory=run.directory if shows_directory else "",
    )


def build_timeline(recorded: RunWithValues, *, shows_directory: bool = False) -> Timeline:
    """Return the run with its calls. Each call gets the first lane that is free when it starts."""
    run = recorded.run
    lane_ends: list[float] = []
    calls: list[RunCall] = []
    for call in recorded.calls:
        lane = next((row for row, end in enumerate(lane_ends) if end <= call.at), len(lane_ends))
        lane_ends[lane : lane + 1] = [float("inf") if call.seconds is None else call.at + call.seconds]
        values = recorded.values.get(call.call_id, NO_VALUES) if call.call_id else NO_VALUES
        calls.append(
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
    own = recorded.values.get(0, NO_VALUES)
    line = ERROR_LINE.search(own.error or "")
    return Timeline(
        **build_run(ListedRun(run), shows_directory=shows_directory).model_dump(),
        calls=calls,
        calls_left_out=max(0, run.calls - len(calls)),
        most_at_once=len(lane_ends),
        cost=run.cost,
        printed=own.printed,
        result=own.result,
        message=own.error,
        error_line=int(line[1]) if line else None,
    )
