"""The schema of onetool.yaml as frozen models: every key, its type and its default.

`onetool.settings.load` reads the values and reports errors with file and line. Keys are spelled as
in the file; the attribute of `allowedHosts` is `allowed_hosts`. Pydantic builds the schemas at
first use. The docstring below a key describes it in the reference.
"""

import re
from collections.abc import Iterator, Mapping
from ipaddress import ip_network
from keyword import iskeyword
from math import inf
from types import NoneType
from typing import Annotated, Any, ClassVar, Literal, Self, TypeAlias, get_args, get_origin
from urllib.parse import urlsplit

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

from onetool.util.context import Effect, Permission, permissions as permissions_of
from onetool.util.invisible import find_in_name
from onetool.util.running_servers import is_loopback
from onetool.util.store_url import FILES, SCHEMES
from onetool.util.time_format import parse_time
from onetool_child.json_types import JsonMapping

QUEUE_NAME = re.compile(r"[a-z][a-z0-9_-]{0,62}", re.ASCII)
HOST_NAME = re.compile(r"(?:[a-z0-9-]{1,63}\.)*[a-z0-9-]{1,63}", re.ASCII | re.IGNORECASE)
ORIGIN = re.compile(r"https?://[^\s/?#@\\]+", re.IGNORECASE)
Loc = tuple[str | int, ...]
VERSION = 1  # of the settings format; increased by changes that an older OneTool would misread


def _reject_bool(value: Any) -> Any:
    if isinstance(value, bool):
        raise ValueError("must be a number")  # noqa: TRY004 - pydantic collects ValueErrors only
    return value


def _parse_permissions(value: Any) -> frozenset[Permission]:
    try:
        return permissions_of(value)
    except (TypeError, ValueError):
        raise ValueError(f"must be a list of permissions ({', '.join(Permission)})") from None


def _check_url(value: str) -> str:
    if not value.startswith(("http://", "https://")):
        raise ValueError("must start with http:// or https://")
    return value


def _check_queue(value: str) -> str:
    if value and not QUEUE_NAME.fullmatch(value):
        raise ValueError("must be a name of lower-case letters, digits, - and _, such as gpu")
    return value


def _check_store(value: str) -> str:
    if value in {"", FILES}:
        return ""
    if not value.startswith(SCHEMES):
        raise ValueError("must be `files`, or a URL such as postgresql://user@host/database")
    return value


def _check_host_pattern(value: str) -> str:
    name = value.removeprefix("*.")
    if (
        not name
        or set(name) & set("/@?# ")
        or not name.isprintable()
        or ("*" in name and name != "*")
    ):
        raise ValueError("must be a host such as *.example.com or a.example.com:8080, not a URL")
    return value


def _check_origin(value: str) -> str:
    if not ORIGIN.fullmatch(value):
        raise ValueError("must be an origin such as https://api.example.com, without a path")
    return value


def _check_host_name(value: str) -> str:
    if not HOST_NAME.fullmatch(value):
        raise ValueError(
            "must be a host name such as tools.example.com, without scheme, port or path"
        )
    if value.lower() in {"localhost", "127.0.0.1"}:
        raise ValueError("is a loopback name, which needs no token; use the host name of the proxy")
    return value.lower()


def _check_network(value: str) -> str:
    try:
        return str(ip_network(value))
    except ValueError:
        raise ValueError("must be an IP address or a network such as 10.0.0.0/8") from None


def _check_time(value: str) -> str:
    try:
        parse_time(value)
    except ValueError:
        raise ValueError("must be a time such as 2027-01-31T12:00:00Z") from None
    return value


def _check_issuer(value: str) -> str:
    host = urlsplit(_check_url(value)).hostname or ""
    if value.startswith("http://") and not is_loopback(host):
        raise ValueError(
            "must start with https://; plain http is for issuers on loopback addresses only"
        )
    if not host or set(value) & set("?#@ \t\n"):
        raise ValueError(
            "must be a URL without user name, query and fragment, such as https://id.example.com"
        )
    return value


def to_upper(value: Any) -> Any:
    return value.upper() if isinstance(value, str) else value


def _as_list(value: Any) -> Any:
    return [value] if isinstance(value, str) else value


Count = Annotated[int, BeforeValidator(_reject_bool), Field(gt=0)]
CountOrZero = Annotated[int, BeforeValidator(_reject_bool), Field(ge=0)]
Seconds = Annotated[float, BeforeValidator(_reject_bool), Field(gt=0, allow_inf_nan=False)]
SecondsOrZero = Annotated[float, BeforeValidator(_reject_bool), Field(ge=0, allow_inf_nan=False)]
Cost = SecondsOrZero
Text = Annotated[str, BeforeValidator(lambda value: str(value) if type(value) is int else value)]
Name = Annotated[str, Field(min_length=1)]
Names = tuple[Name, ...]
Permissions = Annotated[frozenset[Permission], BeforeValidator(_parse_permissions)]
Effects = Annotated[frozenset[Effect], BeforeValidator(_as_list)]
Labels = Annotated[frozenset[Literal["private", "untrusted"]], BeforeValidator(_as_list)]
Url = Annotated[str, AfterValidator(_check_url)]
QueueName = Annotated[str, AfterValidator(_check_queue)]
StoreUrl = Annotated[str, AfterValidator(_check_store), Field(repr=False)]
Host = Annotated[str, AfterValidator(_check_host_pattern)]
IssuerUrl = Annotated[str, AfterValidator(_check_issuer)]
Timestamp = Annotated[str, AfterValidator(_check_time)]
NamesOrName = Annotated[Names, BeforeValidator(_as_list), Field(min_length=1)]
HostName = Annotated[str, AfterValidator(_check_host_name)]
Network = Annotated[str, AfterValidator(_check_network)]
Origin = Annotated[str, AfterValidator(_check_origin)]
LogLevel = Annotated[
    Literal["DEBUG", "INFO", "WARNING", "ERROR", "CRITICAL"], BeforeValidator(to_upper)
]


class Section(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, defer_build=True)
    nullable_keys: ClassVar[frozenset[str]] = frozenset()

    @classmethod
    def kinds(cls) -> dict[str, Any]:
        """Return the type of each key, by its name in the file."""
        return {field.alias or name: field.annotation for name, field in cls.model_fields.items()}

    @model_validator(mode="before")
    @classmethod
    def _drop_nulls(cls, data: Any) -> Any:
        """Treat a key without a value, such as `servers:` with all its entries commented out, as a
        missing key.
        """
        if data is None:
            return {}
        if not isinstance(data, dict):
            return data
        removable = cls.kinds().keys() - cls.nullable_keys
        return {
            key: value for key, value in data.items() if value is not None or key not in removable
        }


class CamelSection(Section):
    model_config = ConfigDict(alias_generator=to_camel)


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


class OAuth(Section):
    """A way to sign in to an upstream server or an API. `auth: oauth` stands for the defaults."""

    type: Literal["oauth"] = "oauth"
    """Kind of authentication"""
    client_id: Text | None = None
    """Client that you registered; without it, OneTool registers itself where it can"""
    client_secret: Text | None = Field(default=None, repr=False)
    """Secret of the client, as a reference such as `${secret:GH_CLIENT_SECRET}`"""
    private_key: Text | None = Field(default=None, repr=False)
    """Private key of the client in PEM format, as a reference, to sign assertions instead of using a secret"""
    key_id: Text | None = None
    """Identifier of the private key (`kid`)"""
    grant: Literal["authorization_code", "client_credentials"] = "authorization_code"
    """`authorization_code`: a person signs in with `onetool login`; `client_credentials`: OneTool signs in as the
    client itself
    """
    issuer: Url | None = None
    """Issuer of the authorization server; by default, the one that the server names. Required with `client_secret`
    or `private_key`, which are sent to no other
    """
    scopes: Names = ()
    """Scopes to request; by default, those that the server asks for"""
    callback_port: Count | None = None
    """Port of the loopback callback, for clients that are registered with a fixed port"""
    shared: bool = False
    """Whether all agents use the same sign-in; by default, each agent has its own"""

    @model_validator(mode="after")
    def _check_client(self) -> Self:
        if self.client_secret is not None and self.private_key is not None:
            raise ValueError("has both client_secret and private_key; keep only one of them")
        has_proof = self.client_secret is not None or self.private_key is not None
        if self.client_id is None and (has_proof or self.grant == "client_credentials"):
            raise ValueError("requires client_id")
        if self.grant == "client_credentials" and not has_proof:
            raise ValueError("requires client_secret or private_key for grant client_credentials")
        if has_proof and self.issuer is None:
            raise ValueError(
                "requires issuer, the only authorization server that gets client_secret or"
                " private_key"
            )
        return self


OAuthSettings = Annotated[OAuth, BeforeValidator(lambda value: {} if value == "oauth" else value)]


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


class Sandbox(Section):
    enabled: bool = True
    """Whether file access is restricted; if disabled, only files of OneTool itself are protected"""
    allowed_paths: Names = ()
    """Allowed directories; the working directory if empty"""
    denied_patterns: Names = ()
    """Patterns of file names that are denied in every directory"""


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
    options: JsonMapping = {}
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


class Budgets(Section):
    time_seconds: Seconds | None = None
    """Maximum total duration of all calls, in seconds"""
    calls: CountOrZero | None = None
    """Maximum number of calls"""
    tokens: CountOrZero | None = None
    """Maximum number of tokens in all results (estimated)"""
    cost: Cost | None = None
    """Maximum sum of `cost_per_call`"""
    permissions: Permissions | None = None
    """Alternative to `permissions` of the agent; set only one of them"""


class Rule(Section):
    """A rule of a policy. All conditions must hold; the first rule that matches a call decides."""

    tools: Name = "*"
    """Name or pattern of tools, such as `gh.*`"""
    effect: Effects | None = None
    """Effects of which the tool has at least one: `read`, `write`, `exec`, `external`"""
    arguments: JsonMapping = {}
    """Patterns of arguments, such as `{repo: me/*}`; other values than strings must be equal"""
    account: Name | None = None
    """Name or pattern of the account that the call uses, such as `work`"""
    decision: Literal["allow", "ask", "deny"]
    """Decision about the call"""


class AgentApprovals(Section):
    via: tuple[Literal["client", "app", "ui", "cli"], ...] = ("client", "app", "ui", "cli")
    """Where people may approve calls of this agent: in the MCP client, in an app that the client shows, in the
    admin UI (and REST), or on the command line. Over HTTP, `client` and `app` count only if your own settings list
    them, not a project's, or if the client has a token of scope `approve` or more
    """


class Agent(Section):
    """A named set of permissions and limits. `tools` is None if all tools are allowed."""

    permissions: Permissions = frozenset()
    """Any of `read`, `write`, `exec`, `network`"""
    tools: Names | None = None
    """Tools that the agent may call, as names, packs or patterns; all tools by default"""
    hosts: tuple[Host, ...] | None = None
    """Hosts that its HTTP tools may reach, among those of `http.allowedHosts` and written in the same way; all of
    those by default. Upstream servers and extensions send requests that this does not limit
    """
    sandbox: Sandbox = Field(default_factory=Sandbox)
    """File access of its calls"""
    budgets: Budgets = Field(default_factory=Budgets)
    """Usage limits, counted from the start of the server"""
    tool_config: Mapping[str, JsonMapping] = {}
    """Default arguments by tool. The default of a limit is also its maximum: a call may only lower it. The tool
    finds all values in `context.agent_config`
    """
    clients: Names = ()
    """Names of MCP clients that use this agent over stdio"""
    policy: Literal["open", "ask-writes", "read-only", "guarded"] | tuple[Rule, ...] = "open"
    """Calls that a person must approve: `open` (none), `ask-writes` (calls that write or execute), `read-only`
    (such calls are rejected), `guarded` (calls that send data out after the client has read private and untrusted
    data), or a list of rules
    """
    approvals: AgentApprovals = Field(default_factory=AgentApprovals)
    """Who may approve its calls"""

    @model_validator(mode="before")
    @classmethod
    def _copy_permissions_from_budgets(cls, data: Any) -> Any:
        within = _permissions_in_budgets(data)
        if within is None or data.get("permissions") is not None:
            return data
        return {**data, "permissions": within}

    @model_validator(mode="after")
    def _check_permissions(self) -> Self:
        if self.budgets.permissions not in {None, self.permissions}:
            raise ValueError(
                "has conflicting permissions and budgets.permissions; keep only one of them"
            )
        return self


class Token(Section):
    name: Name
    """Name of the token"""
    hash: Name | None = Field(default=None, repr=False)
    """SHA-256 hash of the token, as written by `onetool token create`"""
    token_env: Name | None = None
    """Environment variable with the token, instead of a hash"""
    agent: Name = "default"
    """Agent of clients that use the token"""
    scope: Literal["use", "approve", "admin", "owner"] = "use"
    """What the token may do: `use` tools, `approve` calls, `admin` to manage, `owner` for everything"""
    created: Timestamp | None = None
    """When the token was created"""
    expires: Timestamp | None = None
    """Time from which the token is rejected, such as `2027-01-31T12:00:00Z`"""

    @model_validator(mode="after")
    def _check_hash_or_variable(self) -> Self:
        if (self.hash is None) == (self.token_env is None):
            raise ValueError("requires exactly one of hash and token_env")
        return self

    @property
    def expires_at(self) -> float:
        """The end of the token in seconds since 1970; infinite without an expiry."""
        return inf if self.expires is None else parse_time(self.expires)


Algorithm = Literal[
    "RS256", "RS384", "RS512", "PS256", "PS384", "PS512", "ES256", "ES384", "ES512", "EdDSA"
]


class Issuer(Section):
    """An OpenID provider whose JWTs are accepted.

    If several entries accept a JWT, the first that maps it counts.
    """

    issuer: IssuerUrl
    """URL of the OpenID provider, exactly as in the claim `iss`, such as `https://id.example.com`"""
    audience: NamesOrName
    """Accepted values of the claim `aud`: names of this server at the issuer"""
    algorithms: tuple[Algorithm, ...] = Field(
        default=("RS256", "PS256", "ES256", "EdDSA"), min_length=1
    )
    """Accepted signature algorithms"""
    agent_claim: Name = "sub"
    """Claim that selects the agent, such as `email`, `groups` or `realm_access.roles`"""
    agents: Mapping[str, Name] = {}
    """Agents by the value of the claim; of several values, the first in this table counts"""
    default_agent: Name | None = None
    """Agent for all other values; without it, they are rejected"""
    scope: Literal["use", "approve", "admin"] = "use"
    """What the subjects may do, as for tokens; no claim can grant more"""
    client_id: Name | None = None
    """Client of the issuer with which people sign in to the admin UI in a browser"""
    client_secret: Text | None = Field(default=None, repr=False)
    """Secret of the client, as a reference such as `${secret:SSO_SECRET}`"""
    scopes: NamesOrName = ("openid",)
    """OAuth scopes that clients request at the issuer"""


class Auth(Section):
    tokens: tuple[Token, ...] = ()
    """Tokens of HTTP clients on other machines"""
    issuers: tuple[Issuer, ...] = ()
    """OpenID providers whose JWTs are accepted as tokens"""
    public_url: Url | None = None
    """URL under which browsers and clients reach this server, such as `https://tools.example.com`"""
    allowed_hosts: tuple[HostName, ...] = ()
    """Host names of a reverse proxy, such as `tools.example.com`; requests for them need a token"""
    trusted_proxies: tuple[Network, ...] = ()
    """Addresses or networks of reverse proxies, such as `127.0.0.1` or `10.0.0.0/8`, whose header `X-Forwarded-For`
    tells the address of the client: failed sign-ins are limited by it. It authenticates nobody
    """


class ApprovalNotice(Section):
    command: tuple[Text, ...] = ()
    """Command to start when a call waits, such as `[notify-send, OneTool]`"""
    webhook: Url | None = None
    """URL that receives a POST request when a call waits"""


MAX_APPROVAL_SECONDS = 30 * 86_400.0


class Approvals(Section):
    """Questions to people about calls. Only the user can set it."""

    wait: SecondsOrZero = 25
    """Seconds for which a request waits for an approval before its run is reported as paused"""
    ttl: Annotated[Seconds, Field(le=MAX_APPROVAL_SECONDS)] = 86_400
    """Seconds after which a call that nobody approved expires; at most 30 days"""
    by: Literal["terminal", "token"] = "terminal"
    """`terminal`: `onetool approve` asks in the terminal for confirmation; `token`: it needs a token of scope
    `approve`, and answers of MCP clients and their apps never count
    """
    notify: ApprovalNotice = Field(default_factory=ApprovalNotice)
    """Notice to people when a call waits"""
    record: bool = False
    """Whether all runs are recorded with the results of their calls, encrypted, for a week. Runs whose policy can
    ask always are, if they have effects
    """


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
            or _permissions_in_budgets(written) is not None
        ):
            return agents
        return {**agents, "default": {"permissions": ["read", "network"], **(written or {})}}


def _permissions_in_budgets(agent: Any) -> Any:
    budgets = agent.get("budgets") if isinstance(agent, dict) else None
    return budgets.get("permissions") if isinstance(budgets, dict) else None


def needs_own_application(settings: Settings) -> bool:
    """Return whether each client needs its own application, because a server keeps state that
    belongs to a client.
    """
    return any(
        server.enabled and server.stateful and not server.is_shared
        for server in settings.servers.values()
    )


def find_contradictions(settings: Settings) -> Iterator[tuple[Loc, str] | tuple[Loc, str, str]]:
    """Yield problems that involve more than one key: the location, the reason and, if there is one,
    a hint.
    """
    for alias in settings.aliases:
        if iskeyword(alias):
            yield (
                ("aliases", alias),
                "is a Python keyword, so code cannot call it",
                "choose another name",
            )
        elif not alias.isidentifier():
            yield ("aliases", alias), "is not a valid Python name", "use letters, digits and _"
    yield from _unknown_agents(settings)
    owners: dict[str, str] = {}
    for name, agent in settings.agents.items():
        for index, client in enumerate(agent.clients):
            if owners.setdefault(client, name) != name:
                yield (
                    ("agents", name, "clients", index),
                    f"is already a client of agent {owners[client]}",
                )
    yield from _invisible_names(settings)


def _unknown_agents(settings: Settings) -> Iterator[tuple[Loc, str]]:
    """Yield the tokens and issuers that name an agent that does not exist."""
    named: dict[Loc, str | None] = {}
    for index, token in enumerate(settings.auth.tokens):
        named["tokens", index, "agent"] = token.agent
    for index, issuer in enumerate(settings.auth.issuers):
        named |= {
            ("issuers", index, "agents", value): agent for value, agent in issuer.agents.items()
        }
        named["issuers", index, "default_agent"] = issuer.default_agent
    for loc, agent in named.items():
        if agent is not None and agent not in settings.agents:
            yield ("auth", *loc), f"must be an agent ({', '.join(settings.agents)})"


def _invisible_names(settings: Settings) -> Iterator[tuple[Loc, str]]:
    names: list[Loc] = [("auth", "tokens", token.name) for token in settings.auth.tokens]
    for section in ("agents", "servers", "snippets", "tools", "projects"):
        names += [(section, name) for name in getattr(settings, section)]
    for loc in names:
        if character := find_in_name(str(loc[-1])):
            yield (
                (*loc[:-1], ascii(loc[-1])),
                f"must not contain the invisible character {character}",
            )


def known_keys(kind: Any) -> tuple[str, ...]:
    return tuple(kind.kinds()) if _is_section(kind) else ()


def accepts_any_key(kind: Any) -> bool:
    return (
        kind is Any
        or get_origin(kind) is Mapping
        or (_is_section(kind) and kind.model_config["extra"] == "allow")
    )


def kind_under(kind: Any, key: str | int) -> Any:
    """Return the type of the value under a key or an index, or None if there cannot be one."""
    if _is_section(kind) and key in kind.kinds():
        return _strip_optional(kind.kinds()[key])
    if get_origin(kind) in {Mapping, tuple}:
        return _strip_optional(get_args(kind)[0 if get_origin(kind) is tuple else 1])
    return Any if accepts_any_key(kind) else None


def kind_at(loc: Loc) -> Any:
    kind: Any = Settings
    for key in loc:
        kind = kind_under(kind, key)
    return kind


def _is_section(kind: Any) -> bool:
    return isinstance(kind, type) and issubclass(kind, Section)


def _strip_optional(kind: Any) -> Any:
    """Return the type without annotations and without `| None`."""
    if get_origin(kind) is Annotated:
        return _strip_optional(get_args(kind)[0])
    others = [inner for inner in get_args(kind) if inner is not NoneType]
    return _strip_optional(others[0]) if NoneType in get_args(kind) else kind
