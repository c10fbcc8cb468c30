"""The schema of onetool.yaml as frozen models: every key, its type and its default.

`sections` has the types of values, `access` the sections about agents, tokens and sign-ins.
`onetool.settings.load` reads the values and reports errors with file and line. Keys are spelled as
in the file; the attribute of `allowedHosts` is `allowed_hosts`. Pydantic builds the schemas at
first use. The docstring below a key describes it in the reference.
"""

from collections.abc import Mapping
from typing import Any, Literal, Self, TypeAlias

from pydantic import ConfigDict, Field, field_validator, model_validator

from onetool.settings.access import (
    Agent,
    Approvals,
    Auth,
    OAuthSettings,
    Sandbox,
    permissions_in_budgets,
)
from onetool.settings.sections import (
    CamelSection,
    Cost,
    Count,
    CountOrZero,
    Effects,
    Host,
    Labels,
    LogLevel,
    Name,
    Names,
    Origin,
    Permissions,
    QueueName,
    Seconds,
    Section,
    StoreUrl,
    Text,
    Url,
)
from onetool_child.json_types import JsonMapping

VERSION = 1  # of the settings format; increased by changes that an older OneTool would misread
PARAM_TYPES: Mapping[str, Any] = {
    "string": str,
    "integer": int,
    "number": int | float,
    "array": list | tuple,
    "object": Mapping,
}


class Param(Section):
    """A parameter of a snippet, required if it has no default."""

    nullable_keys = frozenset({"default"})
    type: Literal["string", "integer", "number", "boolean", "array", "object"] | None = None
    """JSON type of its values. Without one, a value becomes data if the default is not a string"""
    description: str = ""
    """Description of the parameter"""
    default: Any = None
    """Default value; a parameter without a default is required"""

    @property
    def required(self) -> bool:
        return "default" not in self.model_fields_set

    def accepts(self, value: Any) -> bool:
        """Return whether the value has the declared type. None is valid if it is the default."""
        if self.type is None or (value is None and self.default is None and not self.required):
            return True
        is_boolean = isinstance(value, bool)
        return (
            is_boolean
            if self.type == "boolean"
            else not is_boolean and isinstance(value, PARAM_TYPES[self.type])
        )

    @model_validator(mode="after")
    def _check_default(self) -> Self:
        if not self.required and not self.accepts(self.default):
            raise ValueError(f"the default {self.default!r} does not have the type {self.type}")
        return self


class Snippet(Section):
    description: str = ""
    """Description of the snippet"""
    params: Mapping[str, Param] = {}
    """Parameters by name"""
    body: str
    """Python code with `{{ name }}` placeholders; values are inserted as data, not code"""


Expose: TypeAlias = Literal["auto", "code", "direct", "both"]


class ToolFilter(Section):
    include: Names = ()
    """Names or patterns of tools to include; all tools if empty"""
    exclude: Names = ()
    """Names or patterns of tools to exclude"""


class Server(Section):
    command: Name | None = None
    """Command that starts the server, for servers on stdio"""
    args: tuple[Text, ...] = ()
    """Arguments of the command"""
    env: Mapping[str, Text] = Field(default={}, repr=False)
    """Environment variables, in addition to `PATH`, `HOME` and a few others"""
    cwd: Name | None = None
    """Directory in which the server starts; `project` is the directory that contains the project's `.onetool`, or
    else the working directory. By default, a private directory for servers of `~/.onetool`, and `project` for those
    of a project
    """
    url: Url | None = None
    """URL of the server, for servers over HTTP"""
    headers: Mapping[str, Text] = Field(default={}, repr=False)
    """Headers of every request to the server"""
    auth: OAuthSettings | None = None
    """How OneTool signs in to the server: `oauth`, or a mapping with the options below. Without it, OneTool
    connects without a sign-in unless you ran `onetool login NAME`
    """
    accounts: Names = ()
    """Names of the accounts to sign in with, such as `[work, home]`; the first is the default"""
    transport: Literal["http", "sse"] = "http"
    """HTTP transport: streamable HTTP, or the older SSE"""
    enabled: bool = True
    """Whether the server is used"""
    timeout: Seconds = 30
    """Timeout of a start or a call, in seconds. A start by npx, uvx or another program that downloads packages has
    at least 120 s
    """
    idle_timeout: Seconds = 600
    """Seconds without a call after which the server is stopped"""
    tools: ToolFilter = Field(default_factory=ToolFilter)
    """Tools of the server to include or exclude"""
    expose: Expose | None = None
    """How MCP clients see the tools of the server: `code`, `direct`, `both` or `auto`; by default, as the setting
    `expose` says
    """
    pin: Literal["warn", "strict", "off"] = "warn"
    """Handling of new and changed tool definitions: print a notice, reject calls until `onetool servers accept`, or
    ignore
    """
    sanitize: bool = False
    """Whether results of the server are marked as untrusted and prompt injections removed"""
    stateful: bool = False
    """Whether the server keeps state that belongs to one client, such as an open browser page: clients then do not
    share it, unless `shared` is true
    """
    shared: bool | None = None
    """Whether projects with the same settings, environment and directory of the server share one connection to it;
    by default, if it is not `stateful`
    """

    @property
    def is_shared(self) -> bool:
        return not self.stateful if self.shared is None else self.shared

    @model_validator(mode="after")
    def _check_command_or_url(self) -> Self:
        if (self.command is None) == (self.url is None):
            raise ValueError("requires exactly one of command and url")
        if self.url is None and (self.auth is not None or self.accounts):
            raise ValueError(
                "has auth or accounts, which require url; servers on stdio get credentials in env"
            )
        if self.auth is not None and any(name.lower() == "authorization" for name in self.headers):
            raise ValueError("has both auth and a header Authorization; keep only one of them")
        return self


class Prompts(Section):
    instructions: str = ""
    """Instructions for the model, sent to every MCP client"""
    packs: Mapping[str, str] = {}
    """Instructions for the model by pack, shown by `ot.help`"""


class PackSettings(Section):
    """The settings under `tools.<pack>`.

    Keys other than the declared ones are options of the pack itself.
    """

    model_config = ConfigDict(extra="allow")
    timeout: Seconds | None = None
    """Timeout of a call, in seconds"""
    permissions: Permissions | None = None
    """Permissions that its tools require, instead of those that they declare"""
    secrets: Names = ()
    """Names of secrets that its worker receives as environment variables"""
    sandbox: Sandbox | None = None
    """File access of its worker (Linux only); unrestricted by default"""
    cost_per_call: Cost = 0
    """Cost of a call, counted against budgets"""
    effects: Mapping[str, Effects] = {}
    """Effects by tool or pattern, instead of those that they declare: any of `read`, `write`, `exec`, `external`"""
    idempotent: Names = ()
    """Tools or patterns whose calls may be repeated without harm"""
    labels: Mapping[str, Labels] = {}
    """Labels for the policy `guarded`, by tool or pattern: `private` if results are confidential, `untrusted` if
    they come from outside
    """
    shared: bool = True
    """Whether projects with the same file, settings, environment and directory share one worker"""
    queue: QueueName = ""
    """Queue whose workers (`onetool worker`) make its calls, instead of a worker of this machine; needs `store`;
    only in your own settings
    """
    auth: OAuthSettings | None = None
    """How OneTool signs in to the API of stored tools that use OAuth, as for servers"""
    accounts: Names = ()
    """Names of the accounts to sign in with; the first is the default"""

    @property
    def options(self) -> JsonMapping:
        return self.model_extra or {}


class Execution(Section):
    timeout: Seconds = 120
    """Timeout of a run, in seconds"""
    memory_mb: Count = 512
    """Memory limit of a run, in MiB"""
    max_tool_calls: Count = 1000
    """Maximum number of tool calls in one run"""
    max_command_bytes: Count = 1_000_000
    """Maximum size of the code, in bytes"""
    max_output_bytes: Count = 104_857_600
    """Maximum size of the output of a run, of its scratch directory and of its result, in bytes each"""
    isolation: Literal["auto", "require", "wasm", "off"] = "auto"
    """`auto`: use the isolation of the kernel, or else WebAssembly if the extra `wasm` is installed; `require`:
    reject runs without one of them; `wasm`: use WebAssembly; `off`: run in a plain process; only in your own
    settings, not in a project's
    """
    cells: Count = 2
    """Number of processes kept ready for runs"""


class Workers(Section):
    idle_timeout: Seconds = 600
    """Seconds without a call after which a worker is stopped"""
    start_timeout: Seconds = 120
    """Timeout of the start of a worker, in seconds"""
    call_timeout: Seconds = 60
    """Timeout of a call of an extension tool, in seconds"""
    job_ttl: Seconds = 86_400
    """Seconds for which jobs of queues are kept after they ended, and for which a background call may wait for a
    worker
    """


class Output(Section):
    max_inline_size: CountOrZero = 50_000
    """Maximum size of a result that is shown in full, in bytes; 0 for no limit"""
    preview_lines: CountOrZero = 10
    """Lines of a large result in its summary"""
    result_ttl: Seconds = 3600
    """Seconds for which a large result is stored"""
    max_stored_bytes: Count = 1_073_741_824
    """Maximum disk space of all stored results, in bytes; the oldest are removed first. Media have a separate limit
    of the same size
    """
    max_stored_bytes_per_agent: Count = 268_435_456
    """The same limit for each agent"""
    sanitize: bool = False
    """Whether every result is marked as untrusted and prompt injections are removed"""


class Stats(Section):
    enabled: bool = True
    """Whether statistics are collected"""
    keep_days: Count = 365
    """Days to keep recorded calls (at most 2,000,000 calls)"""
    round_trip_ms: CountOrZero = 4000
    """Assumed duration of one model turn, in milliseconds, to estimate the time saved"""


class RunHistory(Section):
    """Values of runs: arguments, results and printed output, redacted, each up to 64 kB."""

    values: bool = True
    """Whether values of runs and calls are kept for the screen Runs"""
    value_days: Count = 7
    """Days to keep values of runs and calls"""
    max_value_bytes: Count = 268_435_456
    """Maximum total size of kept values in bytes; the oldest are deleted first"""


class Topic(Section):
    pattern: Name
    """Pattern of topics, such as `notes` or `build:*`"""
    file: Name
    """File to append messages to, relative to the data directory"""


class Notify(Section):
    topics: tuple[Topic, ...] = ()
    """Files for the messages of `ot.notify`, by topic"""
    per_minute: Count = 60
    """Maximum number of messages per agent and minute"""
    max_file_bytes: Count = 10_485_760
    """Maximum size of a file, in bytes; further messages are rejected"""


class Http(CamelSection):
    allowed_hosts: tuple[Host, ...] = ()
    """Hosts that tools may call, such as `api.example.com`, `*.example.com` or `localhost:8080`"""
    allow_private_addresses: bool = False
    """Whether allowed hosts may have private or loopback addresses"""
    timeout_ms: Count = 10_000
    """Timeout of a request of an HTTP tool, in milliseconds"""
    max_response_bytes: Count = 10_485_760
    """Maximum size of a response, in bytes"""
    retries: CountOrZero = 2
    """Number of retries of a failed request of an HTTP tool, if the request is idempotent"""


class Llm(Section):
    """The language model that tools use: an endpoint, or the model of the MCP client.

    Only the user can set it.
    """

    base_url: Url | None = None
    """URL of an API that is compatible with OpenAI's chat completions, such as `https://api.openai.com/v1` or
    `http://localhost:11434/v1`
    """
    model: Name | None = None
    """Name of the model; required with `base_url`"""
    api_key: Text | None = Field(default=None, repr=False)
    """API key, as a reference such as `${secret:OPENAI_API_KEY}`"""
    sampling: bool = False
    """Whether to use the model of the MCP client, if the client supports sampling and `base_url` is not set"""
    timeout: Seconds = 60
    """Timeout of a request, in seconds"""
    max_tokens: Count = 4096
    """Maximum number of tokens of an answer"""
    max_tokens_per_run: Count = 100_000
    """Maximum number of tokens of all prompts and answers of one run"""
    max_tokens_per_day: Count = 1_000_000
    """Maximum number of tokens of all prompts and answers of one day (UTC)"""
    options: JsonMapping = Field(default={})
    """Fields to add to each request, such as `{temperature: 0}`; null removes a field"""

    @model_validator(mode="after")
    def _check_model(self) -> Self:
        if (self.base_url is None) != (self.model is None):
            raise ValueError("requires both or neither of base_url and model")
        return self


class Bundles(CamelSection):
    dir: Name = "bundles"
    """Directory of bundles, relative to the data directory"""
    max_tools: Count = 100_000
    """Maximum number of tools in all bundles"""


class Audit(Section):
    file: Name = "logs/audit.jsonl"
    """Path of the audit log, relative to the data directory"""
    max_bytes: Count = 104_857_600
    """Size in bytes at which the audit log is rotated (renamed to `audit.jsonl.1`)"""
    keep: CountOrZero = 10
    """Number of rotated audit logs to keep"""


class Daemon(Section):
    """The server that all clients of a user share. Only the user can set it."""

    shared: bool = True
    """Whether clients over stdio share one server; false starts one for each client"""
    idle: Seconds = 600
    """Seconds without clients after which the shared server ends"""
    http: bool = False
    """Whether the shared server also serves HTTP and the admin UI"""


class RunLimits(Section):
    """Limits on the number of runs of HTTP clients."""

    running: Count = 8
    """Maximum number of concurrent runs per agent; further runs wait"""
    total: Count = 32
    """Maximum number of concurrent runs of all agents"""
    waiting: Count = 128
    """Maximum number of waiting runs or calls per agent; more are rejected with status 429"""


class Settings(Section):
    version: Count = VERSION
    """Version of the file format; newer versions are rejected"""
    aliases: Mapping[str, Name] = {}
    """Short names for tools"""
    snippets: Mapping[str, Snippet] = {}
    """Code templates, run as `$name key=value`"""
    servers: Mapping[str, Server] = {}
    """Upstream MCP servers; each becomes a pack"""
    expose: Expose = "code"
    """How MCP clients see the tools of servers, extensions and bundles: only through `run` (`code`), as tools of
    their own that code cannot call (`direct`), both ways (`both`), or both ways while all definitions together have
    less than 1,500 tokens (`auto`)
    """
    projects: Mapping[str, Name] = {}
    """Readable directories by name, used as `proj.NAME / "file"`"""
    prompts: Prompts = Field(default_factory=Prompts)
    """Instructions for the model, here or in `prompts.yaml`"""
    tools: Mapping[str, PackSettings] = {}
    """Settings by pack; other keys than those below are available to the pack as `ot.settings`"""
    tools_dir: Names = ()
    """Additional directories with extension packs"""
    disabled_packages: Names = ()
    """Installed packages whose packs (`onetool.packs`) are not used; `*` for all"""
    execution: Execution = Field(default_factory=Execution)
    """Limits of runs"""
    workers: Workers = Field(default_factory=Workers)
    """Worker processes of extension packs"""
    output: Output = Field(default_factory=Output)
    """Size and storage of results"""
    stats: Stats = Field(default_factory=Stats)
    """Usage statistics"""
    runs: RunHistory = Field(default_factory=RunHistory)
    """Values in the history of runs"""
    notify: Notify = Field(default_factory=Notify)
    """Messages of `ot.notify`"""
    http: Http = Field(default_factory=Http)
    """Outgoing HTTP requests of tools"""
    llm: Llm = Field(default_factory=Llm)
    """Language model for tools; only in your own settings, not in a project's"""
    bundles: Bundles = Field(default_factory=Bundles)
    """Storage of bundles"""
    bundle_secrets: Mapping[str, Mapping[str, tuple[Origin, ...]]] = {}
    """Origins to which tools of a bundle may send secrets, by bundle and secret, as `onetool secret allow` writes
    them; only in your own settings, not in a project's
    """
    audit: Audit = Field(default_factory=Audit)
    """Audit log of calls that write, execute or use the network; only in your own settings, not in a project's"""
    agents: Mapping[str, Agent] = Field(default={}, validate_default=True)
    """Agents and their permissions, here or in `agents/NAME.yml`; the agent `default` has `[read, network]` unless
    set
    """
    approvals: Approvals = Field(default_factory=Approvals)
    """Approval of calls by people; only in your own settings, not in a project's"""
    daemon: Daemon = Field(default_factory=Daemon)
    """The server that all clients of a user share; only in your own settings, not in a project's"""
    store: StoreUrl = ""
    """PostgreSQL URL of state that replicas share, `postgresql://…`; files if empty; only in your own settings or
    `ONETOOL_STORE`
    """
    auth: Auth = Field(default_factory=Auth)
    """Authentication of HTTP clients; only in your own settings, not in a project's"""
    limits: RunLimits = Field(default_factory=RunLimits)
    """Concurrency limits for HTTP clients"""
    docs_url: Url = "https://onetool.beycom.online/reference/tools/"
    """Base URL of documentation links in `ot.help`"""
    log_level: LogLevel = "INFO"
    """Minimum level of log entries"""

    @field_validator("agents", mode="before")
    @classmethod
    def _add_default_agent(cls, agents: Any) -> Any:
        written = agents.get("default") if isinstance(agents, dict) else ()
        if (
            not (written is None or isinstance(written, dict))
            or permissions_in_budgets(written) is not None
        ):
            return agents
        return {**agents, "default": {"permissions": ["read", "network"], **(written or {})}}


def needs_own_application(settings: Settings) -> bool:
    """Return whether each client needs its own application, because a server keeps state that
    belongs to a client.
    """
    return any(
        server.enabled and server.stateful and not server.is_shared
        for server in settings.servers.values()
    )
