"""The whole of onetool.yaml as frozen data: every key, its kind and its default.

Where values come from, and in which file and line a wrong one stands, is the business of `onetool.config.load`.
Keys are spelt as in the file; Python sees `allowedHosts` as `allowed_hosts`. Schemas are built at first use.
"""

import re
from collections.abc import Iterator, Mapping
from keyword import iskeyword
from types import NoneType
from typing import Annotated, Any, ClassVar, Literal, Self, get_args, get_origin

from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    field_validator,
    model_validator,
)
from pydantic.alias_generators import to_camel

from onetool.context import Permission, permissions as permissions_of
from onetool.util.invisible import find_in_name

OWN_NAME = re.compile(r"(?:[a-z0-9-]{1,63}\.)*[a-z0-9-]{1,63}", re.ASCII | re.IGNORECASE)
Loc = tuple[str | int, ...]
VERSION = 1  # of the files of settings; a change that an older OneTool would misread raises it


def _no_switch(value: Any) -> Any:
    if isinstance(value, bool):
        raise ValueError("must be a number")  # noqa: TRY004 - pydantic collects ValueErrors only
    return value


def _permission_words(value: Any) -> frozenset[Permission]:
    try:
        return permissions_of(value)
    except (TypeError, ValueError):
        raise ValueError(f"must be a list of some of {', '.join(Permission)}") from None


def _web_address(value: str) -> str:
    if not value.startswith(("http://", "https://")):
        raise ValueError("must start with http:// or https://")
    return value


def _host(value: str) -> str:
    name = value.removeprefix("*.")
    if not name or set(name) & set("/@? \t\n") or ("*" in name and name != "*"):
        raise ValueError("must be a host like *.example.com or a.example.com:8080, no URL")
    return value


def _own_name(value: str) -> str:
    if not OWN_NAME.fullmatch(value):
        raise ValueError("must be a name like tools.example.com, without https://, port and path")
    if value.lower() in {"localhost", "127.0.0.1"}:
        raise ValueError("is what the machine calls itself, by which no token is needed; take the name of the proxy")
    return value.lower()


def upper(value: Any) -> Any:
    return value.upper() if isinstance(value, str) else value


Count = Annotated[int, BeforeValidator(_no_switch), Field(gt=0)]
CountOrZero = Annotated[int, BeforeValidator(_no_switch), Field(ge=0)]
Seconds = Annotated[float, BeforeValidator(_no_switch), Field(gt=0, allow_inf_nan=False)]
Cost = Annotated[float, BeforeValidator(_no_switch), Field(ge=0, allow_inf_nan=False)]
Text = Annotated[str, BeforeValidator(lambda value: str(value) if type(value) is int else value)]
Name = Annotated[str, Field(min_length=1)]
Names = tuple[Name, ...]
Permissions = Annotated[frozenset[Permission], BeforeValidator(_permission_words)]
WebAddress = Annotated[str, AfterValidator(_web_address)]
Host = Annotated[str, AfterValidator(_host)]
OwnName = Annotated[str, AfterValidator(_own_name)]
LogLevel = Annotated[Literal["DEBUG", "INFO", "WARNING", "ERROR", "CRITICAL"], BeforeValidator(upper)]


class Section(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, defer_build=True)
    null_counts: ClassVar[frozenset[str]] = frozenset()

    @classmethod
    def kinds(cls) -> dict[str, Any]:
        """What each key holds, by the key's name in the file."""
        return {field.alias or name: field.annotation for name, field in cls.model_fields.items()}

    @model_validator(mode="before")
    @classmethod
    def _leave_out_what_is_empty(cls, data: Any) -> Any:
        """`servers:` with all its lines commented out says no more than a missing line."""
        if data is None:
            return {}
        if not isinstance(data, dict):
            return data
        silent = cls.kinds().keys() - cls.null_counts
        return {key: value for key, value in data.items() if value is not None or key not in silent}


class CamelSection(Section):
    model_config = ConfigDict(alias_generator=to_camel)


class Param(Section):
    """A parameter of a snippet; one whose default is not written must be given."""

    null_counts = frozenset({"default"})
    description: str = Field(default="", description="What to give, for whoever fills it in")
    default: Any = Field(
        default=None, description="Taken where nothing is given; a parameter without one must be given"
    )

    @property
    def required(self) -> bool:
        return "default" not in self.model_fields_set


class Snippet(Section):
    description: str = Field(default="", description="What it does")
    params: Mapping[str, Param] = Field(default={}, description="Its parameters, by name")
    body: str = Field(description="Python with `{{ name }}` where a value goes; a value never becomes code")


class ToolFilter(Section):
    include: Names = Field(default=(), description="Names or patterns of tools to show; all where it is empty")
    exclude: Names = Field(default=(), description="Names or patterns of tools to leave out")


class Server(Section):
    command: Name | None = Field(
        default=None, description="The program to start, for a server on standard input and output"
    )
    args: tuple[Text, ...] = Field(default=(), description="Its arguments")
    env: Mapping[str, Text] = Field(
        default={}, repr=False, description="Variables for it, beside PATH, HOME and the like"
    )
    cwd: Name | None = Field(
        default=None,
        description="Where it starts; `project` is the working directory. If left out, a private directory for "
        "servers of `~/.onetool` and the working directory for those of a project",
    )
    url: WebAddress | None = Field(default=None, description="The address, for a server that is reached over HTTP")
    headers: Mapping[str, Text] = Field(default={}, repr=False, description="Headers to send with every request to it")
    transport: Literal["http", "sse"] = Field(
        default="http", description="Which kind of HTTP it speaks: streamable HTTP, or the older SSE"
    )
    enabled: bool = Field(default=True, description="Whether it is used at all")
    timeout: Seconds = Field(default=30, description="Seconds after which a start or a call is given up")
    idle_timeout: Seconds = Field(default=600, description="Seconds without a call after which it is stopped")
    tools: ToolFilter = Field(default_factory=ToolFilter, description="Which of its tools are shown")
    pin: Literal["warn", "strict", "off"] = Field(
        default="warn",
        description="When a tool is new or changed: a note, a rejection until `onetool servers accept`, or nothing",
    )
    sanitize: bool = Field(
        default=False, description="Whether whatever it says is marked as foreign and traps are taken out"
    )

    @model_validator(mode="after")
    def _runs_or_is_reached(self) -> Self:
        if (self.command is None) == (self.url is None):
            raise ValueError("needs exactly one of command: and url:")
        return self


class Prompts(Section):
    instructions: str = Field(default="", description="Words for the model, sent to every client that connects")
    packs: Mapping[str, str] = Field(default={}, description="Words for the model on a pack, shown by `ot.help`")


class Sandbox(Section):
    enabled: bool = Field(
        default=True, description="Whether there is one; without it all is open but settings and programs of OneTool"
    )
    allowed_paths: Names = Field(
        default=(), description="Folders that may be used; the working folder where it is empty"
    )
    denied_patterns: Names = Field(default=(), description="Names that may not be used, wherever they are")


class Pack(Section):
    """`tools.<pack>`: what the product reads, and `options`, what only the pack itself understands."""

    model_config = ConfigDict(extra="allow")
    timeout: Seconds | None = Field(default=None, description="Seconds after which a call of its tools is given up")
    permissions: Permissions | None = Field(
        default=None, description="What its tools need to be allowed, instead of what they say themselves"
    )
    secrets: Names = Field(default=(), description="Names of secrets that its worker gets as variables")
    sandbox: Sandbox | None = Field(
        default=None, description="What its worker may touch (Linux); all that the user may if left out"
    )
    cost_per_call: Cost = Field(default=0, description="What a call counts in the cost of a budget")

    @property
    def options(self) -> Mapping[str, Any]:
        return self.model_extra or {}


class Execution(Section):
    timeout: Seconds = Field(default=120, description="Seconds that a run may take")
    memory_mb: Count = Field(default=512, description="Memory of a run, in MiB")
    max_tool_calls: Count = Field(default=1000, description="Calls of tools in one run")
    max_command_bytes: Count = Field(default=1_000_000, description="How long the code may be")
    max_output_bytes: Count = Field(
        default=104_857_600, description="How much a run may print, write into its scratch folder, and give back"
    )
    isolation: Literal["auto", "require", "off"] = Field(
        default="auto",
        description="`auto`: what the kernel offers; `require`: no run without all of it; `off`: a plain process",
    )
    cells: Count = Field(default=2, description="Processes that wait for a run")


class Workers(Section):
    idle_timeout: Seconds = Field(default=600, description="Seconds without a call after which a worker is stopped")
    start_timeout: Seconds = Field(default=120, description="Seconds in which a worker must be ready")
    call_timeout: Seconds = Field(default=60, description="Seconds after which a call of an extension tool is given up")


class Output(Section):
    max_inline_size: CountOrZero = Field(
        default=50_000, description="Bytes up to which a value is shown whole; 0 for no limit"
    )
    preview_lines: CountOrZero = Field(default=10, description="Lines that the summary of a large result shows")
    result_ttl: Seconds = Field(default=3600, description="Seconds for which a large result is kept")
    max_stored_bytes: Count = Field(
        default=1_073_741_824,
        description="Disk space of all stored results; the oldest are removed to make room. Media have as much again",
    )
    max_stored_bytes_per_agent: Count = Field(default=268_435_456, description="The same for the results of one agent")
    sanitize: bool = Field(
        default=False, description="Whether every answer is marked as foreign and traps are taken out"
    )


class Stats(Section):
    enabled: bool = Field(default=True, description="Whether calls are counted")
    keep_days: Count = Field(default=365, description="Days for which a recorded call is kept, 2,000,000 calls at most")
    round_trip_ms: CountOrZero = Field(
        default=4000, description="What one turn of a model is taken to last, for the time saved"
    )


class Topic(Section):
    pattern: Name = Field(description="Topics that it is for, like `notes` or `build:*`")
    file: Name = Field(description="The file that messages are appended to, in the data folder if it is no full path")


class Notify(Section):
    topics: tuple[Topic, ...] = Field(default=(), description="Where messages of `ot.notify` go")
    per_minute: Count = Field(default=60, description="How many messages an agent may send in a minute")
    max_file_bytes: Count = Field(
        default=10_485_760, description="Size at which a file of messages is full: further messages are rejected"
    )


class Http(CamelSection):
    allowed_hosts: tuple[Host, ...] = Field(
        default=(), description="Hosts that tools may call, like `api.example.com`, `*.example.com` or `localhost:8080`"
    )
    allow_private_addresses: bool = Field(
        default=False, description="Whether those may be on your own network or machine"
    )
    timeout_ms: Count = Field(default=10_000, description="Milliseconds that a request of a stored tool may take")
    max_response_bytes: Count = Field(default=10_485_760, description="How long an answer may be")
    retries: CountOrZero = Field(
        default=2, description="How often a stored tool asks again where asking twice does no harm"
    )


class Bundles(CamelSection):
    dir: Name = Field(default="bundles", description="Where bundles are kept, in the data folder if it is no full path")
    max_tools: Count = Field(default=100_000, description="How many stored tools there may be")


class Audit(Section):
    file: Name = Field(
        default="logs/audit.jsonl", description="The audit log, in the data folder if it is no full path"
    )
    max_bytes: Count = Field(
        default=104_857_600, description="Size at which the audit log is rotated: renamed to `audit.jsonl.1`"
    )
    keep: CountOrZero = Field(default=10, description="How many rotated audit logs are kept")


class Budgets(Section):
    time_seconds: Seconds | None = Field(default=None, description="Seconds that all calls may take together")
    calls: CountOrZero | None = Field(default=None, description="How many calls")
    tokens: CountOrZero | None = Field(default=None, description="Tokens of all results, estimated")
    cost: Cost | None = Field(default=None, description="The sum of `cost_per_call`")
    permissions: Permissions | None = Field(
        default=None, description="The same as `permissions` of the agent; write one of them"
    )


class Agent(Section):
    """A named set of limits. `tools` is None where all are allowed; an agent without `sandbox:` has one."""

    permissions: Permissions = Field(default=frozenset(), description="Some of `read`, `write`, `exec`, `network`")
    tools: Names | None = Field(
        default=None, description="Names, packs or patterns of the only tools that it may call; all if left out"
    )
    sandbox: Sandbox = Field(default_factory=Sandbox, description="Which files its calls may touch")
    budgets: Budgets = Field(
        default_factory=Budgets, description="How much it may use, counted from the start of the server"
    )
    tool_config: Mapping[str, Mapping[str, Any]] = Field(
        default={},
        description="Arguments by tool, for calls that give none; a call may ask for less than a limit, not for more",
    )
    clients: Names = Field(default=(), description="MCP clients, by the name they give themselves, that are this agent")

    @model_validator(mode="before")
    @classmethod
    def _take_permissions_from_budgets(cls, data: Any) -> Any:
        within = _permissions_in_budgets(data)
        if within is None or data.get("permissions") is not None:
            return data
        return {**data, "permissions": within}

    @model_validator(mode="after")
    def _grants_one_thing(self) -> Self:
        if self.budgets.permissions not in {None, self.permissions}:
            raise ValueError("has permissions: and budgets.permissions: that differ; keep one of them")
        return self


class Token(Section):
    name: Name = Field(description="What it is called")
    hash: Name | None = Field(
        default=None, repr=False, description="SHA-256 of the token, as `onetool token create` writes it"
    )
    token_env: Name | None = Field(default=None, description="The variable that holds the token, instead of a hash")
    agent: Name = Field(default="default", description="Which agent its clients are")

    @model_validator(mode="after")
    def _is_kept_in_one_place(self) -> Self:
        if (self.hash is None) == (self.token_env is None):
            raise ValueError("needs exactly one of hash: and token_env:")
        return self


class Auth(Section):
    tokens: tuple[Token, ...] = Field(default=(), description="Who may come over HTTP from elsewhere")
    allowed_hosts: tuple[OwnName, ...] = Field(
        default=(),
        description="Host names of a reverse proxy, such as `tools.example.com`; requests for them need a token",
    )


class RunLimits(Section):
    """How many runs clients over HTTP may have."""

    running: Count = Field(default=8, description="Runs of one agent at the same time; more wait for their turn")
    total: Count = Field(default=32, description="Runs of all agents at the same time")
    waiting: Count = Field(
        default=128, description="Runs or calls of one agent that may wait; more are rejected with status 429"
    )


class Settings(Section):
    version: Count = Field(default=VERSION, description="Of the format of the file; one that is newer is refused")
    aliases: Mapping[str, Name] = Field(default={}, description="Short names for tools")
    snippets: Mapping[str, Snippet] = Field(default={}, description="Code with blanks, run as `$name key=value`")
    servers: Mapping[str, Server] = Field(default={}, description="MCP servers whose tools become packs")
    projects: Mapping[str, Name] = Field(
        default={}, description='Folders by name, which may be read: `proj.NAME / "file"`'
    )
    prompts: Prompts = Field(
        default_factory=Prompts, description="Words for the model; `prompts.yaml` may hold them too"
    )
    tools: Mapping[str, Pack] = Field(
        default={},
        description="Settings of each pack; keys that are not below are the pack's own, `ot.settings` in its file",
    )
    tools_dir: Names = Field(default=(), description="More folders with extension packs")
    execution: Execution = Field(default_factory=Execution, description="Limits of a run")
    workers: Workers = Field(default_factory=Workers, description="Processes of extension packs")
    output: Output = Field(default_factory=Output, description="What of a result is shown")
    stats: Stats = Field(default_factory=Stats, description="Counting calls")
    notify: Notify = Field(default_factory=Notify, description="Messages for people")
    http: Http = Field(default_factory=Http, description="Which hosts tools may call, and how")
    bundles: Bundles = Field(default_factory=Bundles, description="Stored tools")
    audit: Audit = Field(
        default_factory=Audit, description="What is written down of calls that write, execute or use the network"
    )
    agents: Mapping[str, Agent] = Field(
        default={},
        validate_default=True,
        description="Who may do what, here or in `agents/NAME.yml`; `default` has `[read, network]` if it says nothing",
    )
    auth: Auth = Field(default_factory=Auth, description="Clients over HTTP")
    limits: RunLimits = Field(default_factory=RunLimits, description="How much clients over HTTP may run at once")
    docs_url: WebAddress = Field(
        default="https://onetool.beycom.online/reference/tools/",
        description="Where `ot.help` says that more is to be read",
    )
    log_level: LogLevel = Field(default="INFO", description="What is below it is left out of the log")

    @field_validator("agents", mode="before")
    @classmethod
    def _there_is_always_a_default_agent(cls, agents: Any) -> Any:
        written = agents.get("default") if isinstance(agents, dict) else ()
        if not (written is None or isinstance(written, dict)) or _permissions_in_budgets(written) is not None:
            return agents
        return {**agents, "default": {"permissions": ["read", "network"], **(written or {})}}


def _permissions_in_budgets(agent: Any) -> Any:
    budgets = agent.get("budgets") if isinstance(agent, dict) else None
    return budgets.get("permissions") if isinstance(budgets, dict) else None


def contradictions(settings: Settings) -> Iterator[tuple[Loc, str] | tuple[Loc, str, str]]:
    """What each key alone cannot show to be wrong: where, why and, where it can be said, what to do."""
    for alias in settings.aliases:
        if iskeyword(alias):
            yield ("aliases", alias), "is a keyword of Python, which code cannot call", "take another name"
        elif not alias.isidentifier():
            yield ("aliases", alias), "is no name that code can use", "take letters, digits and _"
    for index, token in enumerate(settings.auth.tokens):
        if token.agent not in settings.agents:
            known = ", ".join(settings.agents)
            yield ("auth", "tokens", index, "agent"), f"must be one of the agents: {known}"
    owners: dict[str, str] = {}
    for name, agent in settings.agents.items():
        for index, client in enumerate(agent.clients):
            if owners.setdefault(client, name) != name:
                yield ("agents", name, "clients", index), f"is a client of the agent {owners[client]} already"
    yield from _invisible_names(settings)


def _invisible_names(settings: Settings) -> Iterator[tuple[Loc, str]]:
    names: list[Loc] = [("auth", "tokens", token.name) for token in settings.auth.tokens]
    for section in ("agents", "servers", "snippets", "tools", "projects"):
        names += [(section, name) for name in getattr(settings, section)]
    for where in names:
        if character := find_in_name(str(where[-1])):
            yield (*where[:-1], ascii(where[-1])), f"must not contain the invisible character {character}"


def known_keys(kind: Any) -> tuple[str, ...]:
    return tuple(kind.kinds()) if _is_section(kind) else ()


def takes_any_key(kind: Any) -> bool:
    return kind is Any or get_origin(kind) is Mapping or (_is_section(kind) and kind.model_config["extra"] == "allow")


def kind_under(kind: Any, key: str | int) -> Any:
    """The kind of value that stands under a key or an index; None where nothing can."""
    if _is_section(kind) and key in kind.kinds():
        return _bare(kind.kinds()[key])
    if get_origin(kind) in {Mapping, tuple}:
        return _bare(get_args(kind)[0 if get_origin(kind) is tuple else 1])
    return Any if takes_any_key(kind) else None


def kind_at(loc: Loc) -> Any:
    kind: Any = Settings
    for key in loc:
        kind = kind_under(kind, key)
    return kind


def _is_section(kind: Any) -> bool:
    return isinstance(kind, type) and issubclass(kind, Section)


def _bare(kind: Any) -> Any:
    """The kind without its conditions and without `| None`."""
    if get_origin(kind) is Annotated:
        return _bare(get_args(kind)[0])
    others = [inner for inner in get_args(kind) if inner is not NoneType]
    return _bare(others[0]) if NoneType in get_args(kind) else kind
