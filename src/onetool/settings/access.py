"""Settings of agents, tokens, sign-ins and approvals, and the matching of tokens.

A token is 32 random bytes, so that a plain hash of it can be neither guessed nor reversed. Hashes
are compared in constant time.
"""

import hmac
import secrets
import time
from collections.abc import Iterable, Mapping
from math import inf
from typing import Annotated, Any, Literal, Self

from pydantic import BeforeValidator, Field, model_validator

from onetool.settings.sections import (
    Cost,
    Count,
    CountOrZero,
    Effects,
    Host,
    HostName,
    IssuerUrl,
    Name,
    Names,
    NamesOrName,
    Network,
    Permissions,
    Seconds,
    SecondsOrZero,
    Section,
    Text,
    Timestamp,
    Url,
)
from onetool.util.clock_watch import Clock
from onetool.util.time_format import parse_time
from onetool.util.token_ids import TOKEN_ID_CHARS, hash_token
from onetool_child.json_types import JsonMapping

PREFIX = "ot_"


class Sandbox(Section):
    enabled: bool = True
    """Whether file access is restricted; if disabled, only files of OneTool itself are protected"""
    allowed_paths: Names = ()
    """Allowed directories; the working directory if empty"""
    denied_patterns: Names = ()
    """Patterns of file names that are denied in every directory"""


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
    arguments: JsonMapping = Field(default={})
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


def permissions_in_budgets(agent: Any) -> Any:
    budgets = agent.get("budgets") if isinstance(agent, dict) else None
    return budgets.get("permissions") if isinstance(budgets, dict) else None


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
        within = permissions_in_budgets(data)
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


def new_token() -> str:
    return PREFIX + secrets.token_urlsafe(32)


def identify_token(token: Token) -> str:
    """Return an identifier of a token in the settings, the same in every process."""
    return hash_token(f"{(token.hash or '').lower()} {token.token_env or ''}")[:TOKEN_ID_CHARS]


class TokenSet:
    """The tokens in the settings.

    Expired tokens, and those whose environment variable is not set, match nothing.
    """

    def __init__(
        self, tokens: Iterable[Token], env: Mapping[str, str], clock: Clock = time.time
    ) -> None:
        self._clock = clock
        self._tokens = [
            (
                token.hash
                or (hash_token(value) if (value := env.get(token.token_env or "")) else None),
                token,
            )
            for token in tokens
        ]

    def __bool__(self) -> bool:
        return any(known for known, _ in self._tokens)

    def find(self, token_hash: str) -> Token | None:
        """Return the token with this hash, unless it has expired."""
        token = self.match(token_hash)
        return None if token is None or token.expires_at <= self._clock() else token

    def is_expired(self, token_hash: str) -> bool:
        """Return whether there is a token with this hash that has expired."""
        token = self.match(token_hash)
        return token is not None and token.expires_at <= self._clock()

    def match(self, token_hash: str) -> Token | None:
        """Return the token with this hash, expired or not. Compares all hashes, in constant time."""
        found = None
        for known, token in self._tokens:
            if known and hmac.compare_digest(known.lower().encode(), token_hash.encode()):
                found = token
        return found
