"""Statistics of calls and runs, the use of each token, and failures in groups."""

import re
from collections.abc import Callable
from typing import Any, Literal, TypeVar, get_args, get_origin, get_type_hints, is_typeddict

from anyio.to_thread import run_sync as run_in_thread
from pydantic import Field, create_model

from onetool.admin.action import Person, action
from onetool.admin.model import AdminError, ApiModel, Count, Query, Time, absent, raising
from onetool.app import OneTool
from onetool.errors import ToolError
from onetool.state.stats import details, rollup
from onetool.state.stats.summary import PERIODS, StatsSummary, summarize
from onetool.state.storage import State

T = TypeVar("T")
ALL_TIME = "all"
MONTH = re.compile(r"[0-9]{4}-[0-9]{2}", re.ASCII)


class StatisticsQuery(Query):
    period: Literal[(*PERIODS, ALL_TIME)] = Field(  # type: ignore[valid-type]
        default=ALL_TIME, description="Period to summarize"
    )
    tool: str = Field(default="", description="Only this tool")


def _create_model(shape: Any, **extra_fields: Any) -> type[ApiModel]:
    """Return a model for a TypedDict."""

    def convert(kind: Any) -> Any:
        if get_origin(kind) is list:
            return list.__class_getitem__(convert(get_args(kind)[0]))
        return _create_model(kind) if is_typeddict(kind) else kind

    fields: Any = {name: (convert(kind), ...) for name, kind in get_type_hints(shape).items()}
    return create_model(f"{shape.__name__}Statistics", __base__=ApiModel, **fields, **extra_fields)


Statistics = _create_model(StatsSummary, is_enabled=(bool, ...), problem=(str, absent()))


class SpendingQuery(Query):
    month: str = Field(default="", description="Only this month (UTC), such as 2027-01")


class SpendingRow(ApiModel):
    """The use of a token or subject in a month.

    `actor` is empty for clients of the machine, without a token.
    """

    month: str
    actor: str
    agent: str
    runs: Count
    calls: Count
    failed: Count
    answer_tokens: Count = Field(
        description="Tokens of answers, which the model of the client read (estimated)"
    )
    result_tokens: Count = Field(description="Tokens of the results of tools (estimated)")
    cost: float = Field(description="Sum of `cost_per_call` of the called tools")
    last_used: Time


class SpendingList(ApiModel):
    spending: list[SpendingRow]


class ErrorGroup(ApiModel):
    """Failures with the same tool, type and message, apart from numbers in it."""

    name: str
    type: str
    message: str = Field(description="Message of the last failure")
    count: Count
    agent: str
    actor: str
    first_at: Time
    last_at: Time
    run_id: str = Field(description="Run of the last failure")


class ErrorGroupList(ApiModel):
    errors: list[ErrorGroup]


@action("GET /api/stats", "Statistics")
async def show_statistics(app: OneTool, person: Person, query: StatisticsQuery) -> Statistics:  # type: ignore[valid-type]
    """Get statistics."""
    with raising("busy"):
        return await run_in_thread(_summarize, app, query, person.visible_agent)


def _summarize(app: OneTool, query: StatisticsQuery, agent: str | None) -> ApiModel:
    recorder = app.state.recorder
    recorder.flush()  # include calls that just ended
    name = app.registry.aliases.get(query.tool, query.tool) or None
    settings = app.settings.stats
    values = summarize(
        recorder.database, query.period, name, agent=agent, round_trip_ms=settings.round_trip_ms
    )
    return Statistics.model_validate(
        {**values, "is_enabled": settings.enabled, "problem": recorder.problem or ""}
    )


@action("GET /api/spending", "What each token used")
async def list_spending(app: OneTool, person: Person, query: SpendingQuery) -> SpendingList:
    """Get the use of each token per month."""
    month = query.month
    if month and not MONTH.fullmatch(month):
        raise AdminError(
            "invalid", f"month: {month!r} is not a month, such as 2027-01", {"parameter": "month"}
        )
    rows = await _read_all(app, person, rollup.list_spending, month or None)
    return SpendingList(spending=[SpendingRow.model_validate(row) for row in rows])


@action("GET /api/errors", "Failures in groups, the latest first")
async def list_errors(app: OneTool, person: Person) -> ErrorGroupList:
    """List failures in groups."""
    groups = sorted(
        await _read_all(app, person, details.list_failures), key=lambda group: -group.last_at
    )
    return ErrorGroupList(errors=[ErrorGroup.model_validate(group) for group in groups])


# --- sources --------------------------------------------------------------------------------------


def list_states(app: OneTool, person: Person) -> list[list[State]]:
    """Return the states with runs that the person may see: those of all applications for the owner.

    Applications that share a directory or a database are in one list.
    """
    states: dict[str, list[State]] = {}
    for other in (app, *(app.list_neighbors() if person.sees_all else ())):
        states.setdefault(other.state.recorder.database.place, []).append(other.state)
    return list(states.values())


async def _read_all(
    app: OneTool, person: Person, function: Callable[..., list[T]], *arguments: object
) -> list[T]:
    """Return the rows of all sources that the person may see."""
    rows: list[T] = []
    for states in list_states(app, person):
        rows += await read(person, states, function, *arguments, *person.visible_runs) or ()
    return rows


async def read(
    person: Person, states: list[State], function: Callable[..., T], *arguments: object
) -> T | None:
    """Read statistics after writing what is queued.

    Over REST, return None if that fails, because the health check reports it and there may be other
    sources.
    """

    def flush_and_read() -> T | None:
        flush_all(states)  # include runs that just ended
        try:
            return function(states[0].recorder.database, *arguments)
        except (ToolError, OSError):
            if person.transport == "cli":
                raise
            return None

    return await run_in_thread(flush_and_read)


def flush_all(states: list[State]) -> None:
    for state in states:
        state.recorder.flush()
