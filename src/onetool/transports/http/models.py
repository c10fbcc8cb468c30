"""Models of REST requests and responses. They validate input, serialize output and define the OpenAPI schemas.

Names are snake_case here and camelCase in JSON. A response has every field, except `absent` fields that are empty.
"""

from collections.abc import Mapping
from typing import Annotated, Any, Literal, Self, get_args, get_origin, get_type_hints, is_typeddict

from pydantic import (
    AliasChoices,
    BeforeValidator,
    ConfigDict,
    Field,
    RootModel,
    WithJsonSchema,
    create_model,
)

from onetool.admin.errors import AdminError
from onetool.admin.model import (
    BUNDLE_IDS,
    DEFAULT_PAGE_SIZE,
    LIST_DESCRIPTION,
    MAX_NUMBER,
    MAX_PAGE_SIZE,
    SIZE_DESCRIPTION,
    ApiModel,
    Count,
    Flag,
    Ids,
    Milliseconds,
    Moments,
    Number,
    PageQuery,
    Query,
    Size,
    Tags,
    Text,
    Time,
    absent,
    take_single,
)
from onetool.backends.http.definition import HttpImpl
from onetool.bundles.difference import Part
from onetool.bundles.model import (
    Bundle,
    Id,
    Match,
    Moment,
    PythonImpl,
    StoredTool,
    ToolDraft,
    is_none,
)
from onetool.bundles.secret_bindings import SecretUse, normalize_origin
from onetool.core.schema import ANY_OBJECT
from onetool.results.window import Unit
from onetool.runs.decisions import MAX_SECONDS, TOOL_PATTERN
from onetool.runs.grants import MAX_COUNT
from onetool.state.run_records import CallState, RunState
from onetool.stats.history import State as RunListState
from onetool.stats.summary import PERIODS, StatsSummary
from onetool.transports.http.api.catalog import Kind
from onetool.transports.http.errors import STATUS
from onetool_child.data import FORMATS
from onetool_child.json_types import JsonObject

DEFAULT_LINES = 100
ALL_TIME = "all"


Permissions = list[Literal["read", "write", "exec", "network"]]


class ErrorBody(ApiModel):
    code: Annotated[str, WithJsonSchema({"type": "string", "enum": sorted(STATUS)})]
    message: str
    details: JsonObject


class ErrorResponse(ApiModel):
    error: ErrorBody


class StoredQuery(PageQuery):
    include_disabled: Flag = Field(default=False, description="Include disabled items")


class BundlesQuery(StoredQuery):
    bundle_ids: Ids | None = BUNDLE_IDS


class StoredToolsQuery(StoredQuery):
    tags: Tags | None = Field(default=None, description=f"Only tools with any of these tags; {LIST_DESCRIPTION}")
    bundle_ids: Ids | None = BUNDLE_IDS
    page_size: Size = Field(
        default=DEFAULT_PAGE_SIZE,
        validation_alias=AliasChoices("recommendedPageSize", "pageSize"),
        description=f"{SIZE_DESCRIPTION}. pageSize is an alias; send only one",
    )

    ALIASES = ("pageSize",)

    @classmethod
    def read(cls, values: Mapping[str, list[str]]) -> Self:
        if {"pageSize", "recommendedPageSize"} <= values.keys():
            message = "pageSize and recommendedPageSize are aliases: send only one"
            raise AdminError("invalid", message, {"parameter": "pageSize"})
        return super().read(values)


class StoredSearchQuery(StoredQuery):
    q: Annotated[Text, WithJsonSchema({"type": "string", "pattern": r"\S"})] = Field(
        description="Search text; ignores case and accents and has no special characters"
    )


class ToolsQuery(PageQuery):
    q: Text = Field(default="", description="Search text")
    pack: Text = Field(default="", description="Only tools of this pack")
    kind: Annotated[Kind, BeforeValidator(take_single)] | None = Field(
        default=None, description="Only tools of this kind"
    )
    is_enabled: Flag | None = Field(default=None, description="true: only enabled tools; false: only disabled tools")


class CompletionsQuery(Query):
    prefix: Text = Field(default="", description="Start of a pack's name, or a pack, a dot and the start of a tool's")


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


class ImportQuery(Query):
    name: Text = Field(default="", description="Slug for the bundle")
    server: Text = Field(default="", description="Base URL of the API; overrides the one in the document")
    auth: Text = Field(
        default="",
        description="Authentication of operations that declare none: bearer, basic, header:NAME or query:NAME",
    )
    header: list[str] = Field(default=[], description="Header that all tools send, like X-Version: 2; repeatable")
    update: Flag = Field(default=False, description="Add new versions to an existing bundle with this slug")
    dry_run: Flag = Field(default=False, description="Return the difference without storing anything")
    replace: list[str] = Field(default=[], description="Tool whose local edits the update replaces; repeatable")
    disable_removed: Flag = Field(default=False, description="Disable imported tools that the document lacks")
    url: Text = Field(default="", description="URL of the document, instead of a body. The host must be allowed")


# --- stored tools --------------------------------------------------------------------------------------------------


class ToolBody(ToolDraft):
    """A tool to store, with the implementation of its type."""

    model_config = ConfigDict(
        json_schema_extra={
            "oneOf": [
                {"properties": {"type": {"const": "http"}, "pythonImpl": {"type": "null"}}, "required": ["httpImpl"]},
                {
                    "properties": {"type": {"enum": ["python", "go"]}, "httpImpl": {"type": "null"}},
                    "required": ["pythonImpl"],
                },
            ]
        },
    )
    http_impl: HttpImpl | None = None  # type: ignore[assignment]
    python_impl: PythonImpl | None = None


class StoredToolView(StoredTool):
    """A stored tool. Literal credentials are masked."""

    warnings: list[str] = absent([], "Literal credentials in the tool")


class FoundTool(StoredToolView):
    score: float
    match: Match


class PageResponse(ApiModel):
    next_page_token: str = absent(description="Send as pageToken with the same filters to get the next page")


class BundlePage(PageResponse):
    bundles: Annotated[list[Bundle], Field(max_length=MAX_PAGE_SIZE)]


class StoredToolPage(PageResponse):
    tools: Annotated[list[StoredToolView], Field(max_length=MAX_PAGE_SIZE)]


class FoundToolPage(PageResponse):
    tools: Annotated[list[FoundTool], Field(max_length=MAX_PAGE_SIZE)]


class FieldChangeView(ApiModel):
    part: Part
    name: str
    before: str | None = Field(description="null if it is new")
    after: str | None = Field(description="null if it is removed")


class ToolChangeView(ApiModel):
    slug: str
    version: str = Field(description="Version that is called now")
    new_version: str
    is_edited: bool = Field(description="Whether the current version was not imported, but written here")
    changes: list[FieldChangeView]


class ToolOutlineView(ApiModel):
    slug: str
    version: str
    request: str


class DifferenceView(ApiModel):
    """The changes that the document makes in the bundle."""

    added: list[ToolOutlineView]
    removed: list[ToolOutlineView]
    changed: list[ToolChangeView]
    unchanged: Count


class SecretUseKey(ApiModel):
    """A secret that tools of a bundle send to an origin."""

    bundle: str
    name: str
    origin: str = Field(description="Such as `https://api.example.com`")

    def to_use(self) -> SecretUse:
        return SecretUse(self.bundle, self.name, normalize_origin(self.origin))


class SecretUseInfo(SecretUseKey):
    is_allowed: bool = Field(description="Whether an owner allowed it; if not, calls of these tools fail")


class ImportedBundle(ApiModel):
    bundle: Bundle | None = Field(description="null for a new bundle that is not stored yet")
    slug: str
    display_name: str
    is_new: bool
    tool_count: Count = Field(description="Number of new versions")
    difference: DifferenceView
    kept: list[str] = Field(description="Tools that were not updated, because of local edits")
    disabled: list[str] = Field(description="Tools that the update disables")
    hosts: list[str] = Field(description="Hosts to add to http.allowedHosts")
    secrets: list[str] = Field(description="Secrets to add to secrets.yaml")
    missing_hosts: list[str] = Field(description="Hosts that the settings do not allow")
    missing_secrets: list[str] = Field(description="Secrets that have no value")
    secret_uses: list[SecretUseInfo] = Field(description="Where the tools send secrets, and whether they may")
    problems: list[str]
    warnings: list[str] = Field(description="Literal credentials in the tools")


# --- completions ---------------------------------------------------------------------------------------------------


class NameCompletion(ApiModel):
    text: str = Field(description="The name as written in code; for a tool without its pack")
    kind: Literal["pack", "tool"]
    signature: str = absent()
    description: str = absent()


class CompletionList(ApiModel):
    completions: list[NameCompletion]
    is_complete: bool = Field(description="Whether these are all names with this prefix")


# --- calls and runs ------------------------------------------------------------------------------------------------


class RequirementsBody(ApiModel):
    """Hosts and secrets that imported tools need. Values of secrets are stored and never shown."""

    hosts: Annotated[list[str], Field(max_length=100, description="Hosts to add to http.allowedHosts")] = Field(
        default=[]
    )
    secrets: Annotated[
        dict[str, Annotated[str, Field(min_length=1, max_length=20_000)]],
        Field(max_length=100, description="Values by the names of secrets"),
    ] = Field(default={})
    secret_uses: Annotated[
        list[SecretUseKey], Field(max_length=100, description="Secrets that tools may send; needs scope `owner`")
    ] = Field(default=[])


class RequirementsResult(ApiModel):
    hosts: list[str] = Field(description="Hosts that were added")
    secrets: list[str] = Field(description="Names of secrets that were stored")
    difference: str = Field(description="Difference of the settings file")


class RequestView(ApiModel):
    """A request as it would be sent, with secrets redacted."""

    step: str = absent(description="Name of the first step, if the tool has steps")
    method: str
    url: str
    headers: list[tuple[str, str]]
    body: str | None = None


class PreviewBody(ApiModel):
    """A call of an HTTP tool, which does not have to be stored."""

    http_impl: JsonObject
    arg_schema: JsonObject = Field(default_factory=lambda: dict(ANY_OBJECT))
    args: JsonObject = Field(default_factory=dict)


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


class SignInRequest(ApiModel):
    account: Annotated[str, Field(max_length=200, description="Account of the server; the first by default")] = ""


class SignOutQuery(Query):
    account: Text = Field(default="", description="Account of the server; the first by default")


class SignInStarted(ApiModel):
    url: str = Field(description="URL of the authorization server, to be opened in the same browser")


class SignOut(ApiModel):
    signed_out: bool


class ServerSignIn(ApiModel):
    name: str = Field(description="Name of the server")
    account: str | None = None
    agent: str | None = Field(default=None, description="Agent of the sign-in; null if all agents share it")
    signed_in: bool
    user: str | None = Field(default=None, description="Name of the user, if the authorization server sent it")
    expires_at: str | None = Field(default=None, description="Expiry of the current token")
    refreshes: bool = Field(default=False, description="Whether the token is refreshed without a person")
    scope: str | None = None
    issuer: str | None = None


class ServerSignInList(ApiModel):
    sign_ins: list[ServerSignIn]


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


# --- tools and packs of every kind ---------------------------------------------------------------------------------


class ToolLine(ApiModel):
    name: str
    python_name: str = Field(description="Name as written in code; also accepted in paths")
    pack: str
    kind: Kind
    source: str
    description: str
    signature: str
    permissions: Permissions
    effects: list[Literal["read", "write", "exec", "external"]]
    is_idempotent: bool = Field(description="Whether a call may be repeated without harm")
    labels: list[Literal["private", "untrusted"]] = Field(description="Labels of results, for the policy `guarded`")
    is_enabled: bool
    disabled_reason: str = absent()


class LastError(ApiModel):
    type: str
    at: Time


class ToolUsage(ApiModel):
    calls: Count
    errors: Count
    p50_ms: float | None
    last_called_at: Time = absent()
    last_error: LastError | None = absent(None)


class ToolVersion(ApiModel):
    id: Id
    bundle_id: Id
    version: str
    is_enabled: bool
    disabled_reason: str | None = absent(None)
    modified_at: Moment
    call_count: Count
    last_called_at: Moment | None


class ToolDetails(ToolLine):
    input_schema: JsonObject
    output_schema: Any
    example: str
    returns: str
    observed_shape: str | None
    file: str
    timeout_seconds: float | None
    usage: ToolUsage
    versions: list[ToolVersion] = absent([])


class UnlistedServer(ApiModel):
    server: str
    state: str
    reason: str


class ToolPage(PageResponse):
    tools: Annotated[list[ToolLine], Field(max_length=MAX_PAGE_SIZE)]
    total: Count
    version: str = Field(description="Changes with the tools; `/api/changes` sends it")
    unlisted: list[UnlistedServer] = absent([], "Servers whose tools are not loaded yet")


class FindingLocation(ApiModel):
    file: str
    line: int | None


class Finding(ApiModel):
    """A problem or warning."""

    message: str
    hint: str
    location: FindingLocation | None
    code: str
    level: Literal["problem", "warning"]
    fix: str = absent("", "Fix that is safe to make, for POST /api/health/fixes")


class PackInfo(ApiModel):
    name: str
    kind: Kind
    source: str
    description: str = ""
    tool_count: Count = 0
    is_enabled: bool = True
    state: str = absent()
    problem: Finding | None = absent(None)
    bundle_id: Id = absent()


class PackList(ApiModel):
    packs: list[PackInfo]


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
