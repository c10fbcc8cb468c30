"""The servers and APIs to sign in to, the credential that a sign-in leaves behind, and its errors."""

import json
import re
import time
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import asdict, dataclass, field, fields, replace
from typing import TYPE_CHECKING, Protocol, Self

from onetool.errors import SignInRequired, StorageError, ToolError
from onetool.settings.access import OAuth
from onetool.state.credentials import CredentialKey

if TYPE_CHECKING:
    from onetool.net.oauth.token_requests import TokenAnswer
    from onetool_child.json_types import JsonMapping

MAX_MARGIN_SECONDS = 30.0  # before its expiry, a token is refreshed
MARGIN_PART = 10  # the margin is at most this part of the lifetime
MAX_LIFETIME_SECONDS = 1e9
_FAILURES: ContextVar[list[ToolError] | None] = ContextVar("_FAILURES", default=None)
ERROR_CODE = re.compile(r"[a-zA-Z0-9_.-]{1,64}")


class SignInEndpoints(Protocol):
    """The endpoints that an HTTP tool names."""

    authorization_url: str
    token_url: str
    open_id_connect_url: str
    scopes: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class SignInTarget:
    """A server or an API to sign in to. Its token is sent to `url` only."""

    name: str
    url: str
    settings: OAuth = field(default_factory=OAuth)
    accounts: tuple[str, ...] = ()
    headers: tuple[tuple[str, str], ...] = field(default=(), repr=False)
    # whether requests without a sign-in are sent, because the settings do not ask for one
    is_optional: bool = False
    endpoints: SignInEndpoints | None = (
        None  # that the definition of an HTTP tool names, instead of discovered ones
    )

    @property
    def scopes(self) -> tuple[str, ...]:
        return self.settings.scopes or (self.endpoints.scopes if self.endpoints is not None else ())

    def accepts_sign_in(self, challenge: str) -> bool:
        """Return whether a 401 response asks for a sign-in, not for another header value."""
        return (
            not self.is_optional
            or challenge.lower().startswith("bearer")
            or not (challenge or self.headers)
        )

    @property
    def is_machine(self) -> bool:
        """Whether OneTool signs in as the client itself, without a person."""
        return self.settings.grant == "client_credentials"


@dataclass(frozen=True, slots=True)
class Identity:
    """An account at a target, for one agent or, if `subject` is empty, for all."""

    target: SignInTarget
    account: str = ""
    subject: str = ""

    @property
    def key(self) -> CredentialKey:
        """The key in the store."""
        target = self.target
        bundle = target.name if target.endpoints is not None else ""
        client = target.settings.client_id or ""
        return CredentialKey(
            target.url, self.account, self.subject, bundle, client, target.settings.grant
        )

    @property
    def command(self) -> str:
        """The command that signs in."""
        account = f" --account {self.account}" if self.account else ""
        agent = f" --agent {self.subject}" if self.subject not in {"", "default"} else ""
        return f"onetool login {self.target.name}{account}{agent}"

    @property
    def label(self) -> str:
        return f"{self.target.name} (account {self.account})" if self.account else self.target.name

    def require_sign_in(self, reason: str = "") -> SignInRequired:
        """Return the error for a call that needs a sign-in."""
        other = ""
        if self.target.is_optional:
            other = f", or set its credentials in servers.{self.target.name}.headers"
        return SignInRequired(
            reason or f"{self.label} requires a sign-in",
            hint=f"run `{self.command}`, then repeat the call{other}",
            server=self.target.name,
            **({"account": self.account} if self.account else {}),
            command=self.command,
        )


@dataclass(frozen=True, slots=True)
class Credential:
    """A sign-in's tokens and what is needed to refresh them.

    Times are seconds since the epoch.
    """

    issuer: str
    token_endpoint: str
    client_id: str
    client_secret: str = field(default="", repr=False)
    auth_method: str = "none"
    redirect_uri: str = ""
    resource: str = ""  # the parameter of token requests
    revocation_endpoint: str = ""
    access_token: str = field(default="", repr=False)
    refresh_token: str = field(default="", repr=False)
    expires_at: float | None = None
    refresh_at: float | None = None
    scope: str = ""
    missing_scope: str = ""  # that a call needed: the next sign-in requests it
    user: str = ""

    @property
    def is_due(self) -> bool:
        """Whether the token has expired, or is about to."""
        return self.refresh_at is not None and time.time() >= self.refresh_at

    @property
    def is_valid(self) -> bool:
        """Whether there is a token that has not expired."""
        return bool(self.access_token) and not self.is_due

    @property
    def is_usable(self) -> bool:
        """Whether there is a valid token, or one can be requested without a person."""
        return self.is_valid or bool(self.access_token and self.refresh_token)

    def add_tokens(self, answer: "TokenAnswer") -> Self:
        """Return the credential with new tokens; a response may omit refresh token and scope."""
        expires_at = None
        refresh_at = None
        if answer.expires_in is not None:
            lifetime = min(max(answer.expires_in, 0.0), MAX_LIFETIME_SECONDS)
            expires_at = time.time() + lifetime
            refresh_at = expires_at - min(MAX_MARGIN_SECONDS, lifetime / MARGIN_PART)
        return replace(
            self,
            access_token=answer.access_token,
            refresh_token=answer.refresh_token or self.refresh_token,
            expires_at=expires_at,
            refresh_at=refresh_at,
            scope=self.scope if answer.scope is None else answer.scope,
            user=answer.read_user() or self.user,
        )

    def drop_tokens(self) -> Self:
        """Return the credential without tokens.

        The registration of the client is kept for the next sign-in.
        """
        return replace(self, access_token="", refresh_token="", expires_at=None, refresh_at=None)

    def to_json(self) -> str:
        return json.dumps(
            {name: value for name, value in asdict(self).items() if value not in ("", None)}
        )

    @classmethod
    def from_json(cls, text: str) -> Self:
        try:
            data: JsonMapping = json.loads(text)
            names = {field.name for field in fields(cls)}
            return cls(**{name: value for name, value in data.items() if name in names})
        except (ValueError, TypeError, AttributeError):
            raise StorageError(
                "a stored credential is damaged", hint="sign in again with onetool login"
            ) from None


# --- Errors ---------------------------------------------------------------------------------------


class TokenRejected(ToolError):
    """The authorization server rejected a request; `error` is its code, such as `invalid_grant`."""


def describe_code(code: str) -> str:
    """Return a server's error code, unless it may be anything else."""
    return code if ERROR_CODE.fullmatch(code) else "an invalid error code"


@contextmanager
def collect_failures() -> Iterator[list[ToolError]]:
    """Collect request errors inside the block."""
    failures: list[ToolError] = []
    token = _FAILURES.set(failures)
    try:
        yield failures
    finally:
        _FAILURES.reset(token)


def record_failure(error: ToolError) -> None:
    """Add the error to the current call's list, if there is one."""
    failures = _FAILURES.get()
    if failures is not None:
        failures.append(error)
