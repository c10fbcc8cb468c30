"""The whole of onetool.yaml as frozen data: every key, its kind and its default.

Where values come from, and in which file and line a wrong one stands, is the business of `ot.config.load`.
Keys are spelt as in the file; Python sees `allowedHosts` as `allowed_hosts`. Schemas are built at first use.
"""

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

from ot.context import Permission, permissions as permissions_of

Loc = tuple[str | int, ...]


def _no_switch(value: Any) -> Any:
    if isinstance(value, bool):
        raise ValueError("must be a number")  # noqa: TRY004 - pydantic collects ValueErrors only
    return value


def _digits_as_text(value: Any) -> Any:
    return str(value) if type(value) is int else value


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


def _upper(value: Any) -> Any:
    return value.upper() if isinstance(value, str) else value


Count = Annotated[int, BeforeValidator(_no_switch), Field(gt=0)]
CountOrZero = Annotated[int, BeforeValidator(_no_switch), Field(ge=0)]
Seconds = Annotated[float, BeforeValidator(_no_switch), Field(gt=0, allow_inf_nan=False)]
Cost = Annotated[float, BeforeValidator(_no_switch), Field(ge=0, allow_inf_nan=False)]
Text = Annotated[str, BeforeValidator(_digits_as_text)]
Name = Annotated[str, Field(min_length=1)]
Names = tuple[Name, ...]
Permissions = Annotated[frozenset[Permission], BeforeValidator(_permission_words)]
WebAddress = Annotated[str, AfterValidator(_web_address)]
Host = Annotated[str, AfterValidator(_host)]
LogLevel = Annotated[Literal["DEBUG", "INFO", "WARNING", "ERROR", "CRITICAL"], BeforeValidator(_upper)]


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
    description: str = ""
    default: Any = None

    @property
    def required(self) -> bool:
        return "default" not in self.model_fields_set


class Snippet(Section):
    description: str = ""
    params: Mapping[str, Param] = {}
    body: str


class ToolFilter(Section):
    include: Names = ()
    exclude: Names = ()


class Server(Section):
    command: Name | None = None
    args: tuple[Text, ...] = ()
    env: Mapping[str, Text] = Field(default={}, repr=False)
    cwd: Name | None = None
    url: WebAddress | None = None
    headers: Mapping[str, Text] = Field(default={}, repr=False)
    transport: Literal["http", "sse"] = "http"
    enabled: bool = True
    timeout: Seconds = 30
    idle_timeout: Seconds = 600
    tools: ToolFilter = Field(default_factory=ToolFilter)
    pin: Literal["warn", "strict", "off"] = "warn"
    sanitize: bool = False

    @model_validator(mode="after")
    def _runs_or_is_reached(self) -> Self:
        if (self.command is None) == (self.url is None):
            raise ValueError("needs exactly one of command: and url:")
        return self


class Prompts(Section):
    instructions: str = ""
    packs: Mapping[str, str] = {}


class Sandbox(Section):
    enabled: bool = True
    allowed_paths: Names = ()
    denied_patterns: Names = ()


class Pack(Section):
    """`tools.<pack>`: what the product reads, and `options`, what only the pack itself understands."""

    model_config = ConfigDict(extra="allow")
    timeout: Seconds | None = None
    permissions: Permissions | None = None
    secrets: Names = ()
    sandbox: Sandbox | None = None
    cost_per_call: Cost = 0

    @property
    def options(self) -> Mapping[str, Any]:
        return self.model_extra or {}


class Execution(Section):
    timeout: Seconds = 120
    memory_mb: Count = 512
    max_tool_calls: Count = 1000
    max_command_bytes: Count = 1_000_000
    max_output_bytes: Count = 104_857_600
    isolation: Literal["auto", "require", "off"] = "auto"
    cells: Count = 2


class Workers(Section):
    idle_timeout: Seconds = 600
    start_timeout: Seconds = 120
    call_timeout: Seconds = 60


class Output(Section):
    max_inline_size: CountOrZero = 50_000
    preview_lines: CountOrZero = 10
    result_ttl: Seconds = 3600
    sanitize: bool = False


class Stats(Section):
    enabled: bool = True
    round_trip_ms: CountOrZero = 4000


class Topic(Section):
    pattern: Name
    file: Name


class Notify(Section):
    topics: tuple[Topic, ...] = ()


class Http(CamelSection):
    allowed_hosts: tuple[Host, ...] = ()
    allow_private_addresses: bool = False
    timeout_ms: Count = 10_000
    max_response_bytes: Count = 10_485_760
    retries: CountOrZero = 2


class Bundles(CamelSection):
    dir: Name = "bundles"
    max_tools: Count = 100_000


class Audit(Section):
    file: Name = "logs/audit.jsonl"


class Budgets(Section):
    time_seconds: Seconds | None = None
    calls: CountOrZero | None = None
    tokens: CountOrZero | None = None
    cost: Cost | None = None
    permissions: Permissions | None = None


class Agent(Section):
    """A named set of limits. `tools` is None where all are allowed; an agent without `sandbox:` has one."""

    permissions: Permissions = frozenset()
    tools: Names | None = None
    sandbox: Sandbox = Field(default_factory=Sandbox)
    budgets: Budgets = Field(default_factory=Budgets)
    tool_config: Mapping[str, Mapping[str, Any]] = {}
    clients: Names = ()

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
    name: Name
    hash: Name | None = Field(default=None, repr=False)
    token_env: Name | None = None
    agent: Name = "default"

    @model_validator(mode="after")
    def _is_kept_in_one_place(self) -> Self:
        if (self.hash is None) == (self.token_env is None):
            raise ValueError("needs exactly one of hash: and token_env:")
        return self


class Auth(Section):
    tokens: tuple[Token, ...] = ()


class Settings(Section):
    aliases: Mapping[str, Name] = {}
    snippets: Mapping[str, Snippet] = {}
    servers: Mapping[str, Server] = {}
    projects: Mapping[str, Name] = {}
    prompts: Prompts = Field(default_factory=Prompts)
    tools: Mapping[str, Pack] = {}
    tools_dir: Names = ()
    execution: Execution = Field(default_factory=Execution)
    workers: Workers = Field(default_factory=Workers)
    output: Output = Field(default_factory=Output)
    stats: Stats = Field(default_factory=Stats)
    notify: Notify = Field(default_factory=Notify)
    http: Http = Field(default_factory=Http)
    bundles: Bundles = Field(default_factory=Bundles)
    audit: Audit = Field(default_factory=Audit)
    agents: Mapping[str, Agent] = Field(default={}, validate_default=True)
    auth: Auth = Field(default_factory=Auth)
    docs_url: WebAddress = "https://onetool.beycom.online/reference/tools/"
    log_level: LogLevel = "INFO"

    @field_validator("agents", mode="before")
    @classmethod
    def _there_is_always_a_default_agent(cls, agents: Any) -> Any:
        return {**agents, "default": _default_agent(agents.get("default"))} if isinstance(agents, dict) else agents


def _permissions_in_budgets(agent: Any) -> Any:
    budgets = agent.get("budgets") if isinstance(agent, dict) else None
    return budgets.get("permissions") if isinstance(budgets, dict) else None


def _default_agent(written: Any) -> Any:
    if written is not None and (not isinstance(written, dict) or _permissions_in_budgets(written) is not None):
        return written
    return {"permissions": ["read", "network"], **(written or {})}


def contradictions(settings: Settings) -> Iterator[tuple[Loc, str]]:
    """What each key alone cannot show to be wrong."""
    for alias in settings.aliases:
        if not alias.isidentifier() or iskeyword(alias):
            yield ("aliases", alias), "is no name that code can use; take letters, digits and _"
    for index, token in enumerate(settings.auth.tokens):
        if token.agent not in settings.agents:
            known = ", ".join(settings.agents)
            yield ("auth", "tokens", index, "agent"), f"must be one of the agents: {known}"
    yield from _clients_claimed_twice(settings.agents)


def _clients_claimed_twice(agents: Mapping[str, Agent]) -> Iterator[tuple[Loc, str]]:
    owners: dict[str, str] = {}
    for name, agent in agents.items():
        for index, client in enumerate(agent.clients):
            if owners.setdefault(client, name) != name:
                yield ("agents", name, "clients", index), f"is a client of the agent {owners[client]} already"


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
