"""Models of REST requests and responses. They validate input, serialize output and define the OpenAPI schemas.

Names are snake_case here and camelCase in JSON. A response has every field, except `absent` fields that are empty.
"""

from typing import Annotated, Any, Literal, get_args, get_origin, get_type_hints, is_typeddict

from pydantic import (
    BeforeValidator,
    ConfigDict,
    Field,
    RootModel,
    WithJsonSchema,
    create_model,
)

from onetool.admin.model import (
    MAX_NUMBER,
    SIZE_DESCRIPTION,
    ApiModel,
    Count,
    Finding,
    Flag,
    Milliseconds,
    Moments,
    Number,
    Query,
    Size,
    Text,
    Time,
    absent,
    take_single,
)
from onetool.bundles.model import (
    is_none,
)
from onetool.results.window import Unit
from onetool.runs.decisions import MAX_SECONDS, TOOL_PATTERN
from onetool.runs.grants import MAX_COUNT
from onetool.state.run_records import CallState, RunState
from onetool.stats.history import State as RunListState
from onetool.stats.summary import PERIODS, StatsSummary
from onetool.transports.http.errors import STATUS
from onetool_child.data import FORMATS
from onetool_child.json_types import JsonObject

DEFAULT_LINES = 100
ALL_TIME = "all"


class ErrorBody(ApiModel):
    code: Annotated[str, WithJsonSchema({"type": "string", "enum": sorted(STATUS)})]
    message: str
    details: JsonObject


class ErrorResponse(ApiModel):
    error: ErrorBody


class WindowQuery(Query):
    offset: Number = Field(default=1, description="First line, character or match, counted from 1")
    limit: Number = Field(default=DEFAULT_LINES, description="Maximum number of lines, characters or matches")
    search: Text = Field(default="", description="Regular expression; with fuzzy=true, words")
    fuzzy: Flag = Field(default=False, description="Rank lines by similarity")
    ignore_case: Flag = Field(default=False, description="Ignore case")
    unit: Annotated[Unit, BeforeValidator(take_single)] = Field(default="auto", description="Unit of offset and limit")


class StatisticsQuery(Query):
    period: Annotated[Literal[(*PERIODS, ALL_TIME)], BeforeValidator(take_single)] = Field(  # type: ignore[valid-type]
        default=ALL_TIME, description="Period to summarize"
    )
    tool: Text = Field(default="", description="Only this tool")


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


# --- calls and runs ------------------------------------------------------------------------------------------------


class Call(ApiModel):
    args: JsonObject = Field(default_factory=dict, description="Arguments, as defined by the tool's argSchema")


class Success(ApiModel):
    ok: Literal[True] = True
    value: Any

    def as_json(self) -> JsonObject:
        """Return the value without copying it: it may be large."""
        return {"ok": True, "value": self.value}


class ToolFailure(ApiModel):
    """The error of a tool, with its fields."""

    model_config = ConfigDict(extra="allow")

    type: str
    message: str


class FailedCall(ApiModel):
    ok: Literal[False] = False
    error: ToolFailure


class CallOutcome(RootModel[Success | FailedCall]):
    """The outcome of a call: a value or an error."""


class RunRequest(ApiModel):
    command: Annotated[str, Field(strict=True, description="Python code, as for the tool `run` over MCP")]
    format: Literal[FORMATS] | None = Field(default=None, description="Output format, as set by __format__ in code")  # type: ignore[valid-type]


class SignIn(ApiModel):
    code: Annotated[
        str, Field(strict=True, max_length=4000, description="One-time code of `onetool ui` or of a sign-in")
    ]


class Session(ApiModel):
    csrf: str = Field(description="Value for the header X-OneTool-CSRF, which requests need besides the cookie")
    actor: str = Field(description="Who has signed in")
    scope: str


class SignInOption(ApiModel):
    issuer: str
    path: str = Field(description="Path to open in a browser")


class SessionStatus(ApiModel):
    """The sender of the request; without a token or a session, `actor` and `scope` are null."""

    actor: str | None
    agent: str | None
    scope: str | None
    sign_in: list[SignInOption] = Field(description="Issuers with which people can sign in")


class Medium(ApiModel):
    handle: str
    mime_type: str
    data: Annotated[str, WithJsonSchema({"type": "string", "contentEncoding": "base64"})]


class RunAnswer(ApiModel):
    run_id: str | None
    blocks: list[str]
    is_error: bool
    error: str = absent()
    line: int | None = absent(None, "Line of the code on which it failed")
    media: list[Medium]


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


class DurableRunLine(ApiModel):
    """A run that has made calls with effects, or whose calls wait for a person."""

    run: str
    kind: Literal["run", "call"]
    agent: str
    actor: str
    client: str
    state: Annotated[str, WithJsonSchema({"type": "string", "enum": [*RunState]})]
    reason: str
    started: Time
    expires: Time | None
    code: str
    calls: Count


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


class DurableRunCall(ApiModel):
    number: int
    tool: str
    state: Annotated[str, WithJsonSchema({"type": "string", "enum": [*CallState]})]
    effects: list[str]
    arguments: JsonObject
    by: str
    reason: str
    result: Any
    at: Time
    ended: Time | None


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


class DurableRun(DurableRunLine):
    calls: list[DurableRunCall]  # type: ignore[assignment]


class RunDetails(RootModel[Timeline | DurableRun]):
    """A run of the history, or, for an id that begins with `r_`, a durable run."""


class ApprovalCall(ApiModel):
    number: int
    tool: str
    effects: list[str]
    arguments: JsonObject
    reason: str
    state: Literal["pending", "unknown"]


class Approval(ApiModel):
    """A run whose calls wait for a person. It is `halted` if a person must say whether a call happened."""

    run: str
    agent: str
    actor: str
    client: str
    asked: Time
    expires: Time | None
    state: Literal["waiting", "halted"]
    calls: list[ApprovalCall]


class ApprovalList(ApiModel):
    approvals: list[Approval]


class GrantRequest(ApiModel):
    tool: Annotated[str, Field(strict=True, pattern=TOOL_PATTERN.pattern)]
    arguments: JsonObject = Field(
        default={},
        description="Patterns of strings; other values must be equal. Arguments without a pattern stay as they are in "
        "the approved calls",
    )
    varying: list[Annotated[str, Field(strict=True, max_length=1000)]] = Field(
        default=[], max_length=100, description="Names of arguments that may be anything; `*` for all others"
    )
    count: Annotated[int, Field(strict=True, ge=1, le=MAX_COUNT)] = 1
    seconds: Annotated[float, Field(gt=0, le=MAX_SECONDS)] | None = Field(
        default=None, description="For all runs of the agent and this long; for this run if null"
    )


class DecisionRequest(ApiModel):
    decision: Literal["approve", "reject", "happened", "not-happened", "repeat"] = Field(
        description="For calls that wait: approve or reject. For calls that may have happened: what is known about them"
    )
    calls: list[Annotated[int, Field(strict=True, ge=0, le=MAX_NUMBER)]] | None = Field(
        default=None, max_length=10_000, description="Numbers of calls; all that wait if null"
    )
    reason: Annotated[str, Field(strict=True, max_length=2000)] = ""
    grants: list[GrantRequest] = Field(default=[], max_length=20, description="Further calls to allow")
    stop: Annotated[bool, Field(strict=True)] = Field(default=False, description="Reject all calls and end the run")


class DecisionResponse(ApiModel):
    run: str
    calls: list[int] = Field(description="Numbers of the calls that were decided")


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


# --- statistics and health -----------------------------------------------------------------------------------------


def _create_model(shape: Any, **extra_fields: Any) -> type[ApiModel]:
    """Return a model for a TypedDict."""

    def convert(kind: Any) -> Any:
        if get_origin(kind) is list:
            return list.__class_getitem__(convert(get_args(kind)[0]))
        return _create_model(kind) if is_typeddict(kind) else kind

    fields: Any = {name: (convert(kind), ...) for name, kind in get_type_hints(shape).items()}
    return create_model(f"{shape.__name__}Statistics", __base__=ApiModel, **fields, **extra_fields)


Statistics = _create_model(StatsSummary, is_enabled=(bool, ...), problem=(str, absent()))


class RegistryHealth(ApiModel):
    status: str
    tool_count: Count


class ProxyHealth(ApiModel):
    status: str
    server_count: Count
    servers: dict[str, str]


class Health(ApiModel):
    model_config = ConfigDict(extra="allow")

    version: str
    python: str
    cwd: str
    registry: RegistryHealth
    proxy: ProxyHealth
    workers: dict[str, str]
    isolation: dict[str, str]
    problems: list[str]
    findings: list[Finding] = Field(description="The same problems, structured")
