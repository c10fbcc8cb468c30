"""Middleware for every route: authentication, size limits, security headers, request log.

Requests without a token are accepted only from the local machine, on a loopback address and with a
local Host header, so that other websites cannot reach the server through a browser. All other
requests need a token, a JWT of an issuer, or a session of a browser that has signed in. Permissions
of agents are checked elsewhere. When a token is revoked, its open requests end; when it expires,
its streams end.

Approvals need a token of scope `approve` or a session of the admin UI, even on the local machine:
code and assistants can send local requests too. A token of scope `approve` reads and approves; it
cannot call tools or change anything.

Every request has an id: the client's, if it is valid, so that both logs can be correlated. The log
has the route, never the path or the query, which may hold anything.
"""

import asyncio
import os
import re
import time
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import cache
from typing import Any

from starlette.datastructures import Headers
from starlette.responses import Response
from starlette.types import ASGIApp, Receive, Scope, Send

from onetool.core.agents import DEFAULT
from onetool.server.fair_queue import QUEUES, Queues
from onetool.server.http import request_checks as checks
from onetool.server.http.errors import STATUS, ApiError
from onetool.server.http.json_body import BodyLimiter
from onetool.server.http.jwt_verifier import JwtVerifier
from onetool.server.http.live_tokens import (
    BEARER_HINT,
    STORE_AWAY,
    FindToken,
    RequestCredential,
    TokenUse,
    unauthorized_error,
)
from onetool.server.http.request_checks import AuthThrottle, Bind
from onetool.server.http.resource_metadata import METADATA_PATHS, build_challenge
from onetool.server.http.sessions import CSRF_HEADER, BrowserSessions
from onetool.settings.access import Auth, Token, TokenSet, identify_token
from onetool.settings.model import RunLimits
from onetool.util.logging import Log
from onetool.util.running_servers import is_loopback
from onetool.util.token_ids import TOKEN_ID_CHARS, hash_token

SESSION_PATH = "/api/session"
SIGN_IN_PATH = "/auth/sign-in"
CALLBACK_PATH = "/auth/callback"
# Answered without checking tokens, which may need the database.
PROBES = frozenset({"/healthz", "/readyz"})
PUBLIC_PATHS = frozenset({"/", "/healthz", "/readyz", "/favicon.ico"})
# Of sign-ins to upstream servers.
OAUTH_PATHS = frozenset({"/oauth/callback", "/oauth/client.json"})
# Requests that need no token: their responses contain no private data, or they check a code or a
# state.
OPEN_PATHS = {
    "GET": (
        PUBLIC_PATHS | OAUTH_PATHS | METADATA_PATHS | {SESSION_PATH, SIGN_IN_PATH, CALLBACK_PATH}
    ),
    "POST": frozenset({SESSION_PATH}),
}
UI_PREFIX = "/page/"
SCOPE = "scope"  # key in the state of a request: the scope of its token or session
ACTOR = "actor"  # key in the state of a request: its token or session, for the audit log
APPROVALS_PATH = "/api/approvals"
MCP_PATH = "/mcp"
STOPPING = "stopping"  # key in the state of a request: an event, set on shutdown
ANONYMOUS = ""  # not the name of any agent, so it owns nothing
CONTENT_SECURITY_POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; media-src"
    " 'self' data:; connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)
REQUEST_ID_PATTERN = re.compile(r"[A-Za-z0-9_.-]{1,64}", re.ASCII)
TRACEPARENT_PATTERN = re.compile(
    r"[0-9a-f]{2}-(?!0{32})([0-9a-f]{32})-[0-9a-f]{16}-[0-9a-f]{2}", re.ASCII
)
MAX_METHOD_CHARS = 16
SECURITY_HEADERS = {
    "content-security-policy": CONTENT_SECURITY_POLICY,
    "x-content-type-options": "nosniff",
    "x-frame-options": "DENY",
    "referrer-policy": "no-referrer",
    "cross-origin-resource-policy": "same-origin",
    "cross-origin-opener-policy": "same-origin",
    "permissions-policy": "camera=(), geolocation=(), microphone=()",
}
RAW_SECURITY_HEADERS = {name.encode(): value.encode() for name, value in SECURITY_HEADERS.items()}


@dataclass(frozen=True, slots=True)
class BearerTokens:
    """The check for bearer tokens: local tokens and, with issuers in the settings, JWTs.

    Failed attempts with local tokens are rate-limited by address. JWTs are not: a signature cannot
    be guessed, and a client whose JWT has expired must not block others behind the same address.
    """

    tokens: Callable[[], TokenSet]
    throttle: AuthThrottle
    jwts: JwtVerifier | None = None
    use: TokenUse | None = None

    async def check(self, text: str, address: str) -> RequestCredential:
        """Return the credential of a token. Raise an ApiError if it is not accepted."""
        token_hash = hash_token(text)
        if self.jwts is not None and self.jwts.is_candidate(text):
            # A token of an environment variable may look like a JWT.
            token = self.tokens().find(token_hash)
            if token is None:
                return await self.jwts.check(text)
        else:
            token = await self._find_token(token_hash, address)
        if self.use is not None:
            self.use.record(identify_token(token))
        return RequestCredential(
            f"token {token.name}",
            token.agent,
            token.scope,
            _is_unchanged(token_hash, token),
            token_hash[:TOKEN_ID_CHARS],
            token.expires_at,
        )

    async def _find_token(self, token_hash: str, address: str) -> Token:
        tokens = self.tokens()
        token = tokens.find(token_hash)
        if token is None:
            await self.throttle.record_failure(address, token_hash)
            if tokens.is_expired(token_hash):
                hint = "create another one with onetool token create NAME"
                raise unauthorized_error("the token has expired", reason="expired", hint=hint)
            raise unauthorized_error(
                "unknown token", hint="create a token with onetool token create NAME"
            )
        await self.throttle.record_success(address, token_hash)
        return token


def _is_unchanged(token_hash: str, token: Token) -> Callable[[FindToken], bool]:
    return lambda find: find(token_hash) == token


class AuthMiddleware:
    """The middleware.

    Without `bind`, the address that the server listens on is that of each connection.
    """

    def __init__(
        self,
        inner: ASGIApp,
        bind: Bind | None,
        tokens: Callable[[], TokenSet],
        *,
        throttle: AuthThrottle,
        log: Log | None = None,
        allowed_hosts: Callable[[], Collection[str]] = tuple,
        limits: Callable[[], RunLimits] = RunLimits,
        sessions: BrowserSessions | None = None,
        jwts: JwtVerifier | None = None,
        use: TokenUse | None = None,
        settings: Callable[[], Auth] = Auth,
    ) -> None:
        self._inner = inner
        self._bind = bind
        self._tokens = tokens
        self._allowed_hosts = allowed_hosts
        self._bearer = BearerTokens(tokens, throttle, jwts, use)
        self._body_limiter = BodyLimiter()
        self._log = log or Log()
        self._sessions = sessions
        self._settings = settings
        self._open: dict[
            asyncio.Task[Any], tuple[RequestCredential, bool]
        ] = {}  # open requests; whether they are streams
        self._revoked: set[asyncio.Task[Any]] = set()
        self._queues = Queues(limits)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan":
            await self._inner(scope, receive, send)
            return
        if scope["type"] != "http":
            await send(
                {"type": "websocket.close", "code": 1008, "reason": "WebSockets are not supported"}
            )
            return
        headers = Headers(scope=scope)
        started = time.perf_counter()
        state = scope.setdefault("state", {})
        state["request_id"] = _get_request_id(headers)
        response = _ResponseSender(send, state["request_id"])
        body = self._body_limiter.body(scope["path"], receive)
        try:
            credential = await self._authenticate(scope)
            state[QUEUES] = self._queues
            body.check_content_length(headers)
            with self._cancel_when_revoked(credential, is_stream=scope["method"] == "GET"):
                await self._inner(scope, body, response)
        except ApiError as error:
            if response.status is None:  # otherwise the response has begun and can only be cut off
                await self._render(error, scope)(scope, receive, response)
            elif error is REVOKED:
                await response.end()
        except asyncio.CancelledError:
            if response.status is not None or not (STOPPING in state and state[STOPPING].is_set()):
                raise
            await ApiError(
                "busy", "the server is shutting down; the request did not finish in time"
            ).response(scope, receive, response)
        finally:
            body.end()
            self._log_request(scope, response.status, started)

    def _log_request(self, scope: Scope, status: int | None, started: float) -> None:
        self._log.event(
            "http.request",
            level="WARNING" if status is None or status >= STATUS["internal"] else "INFO",
            correlation_id=scope["state"]["request_id"],
            method=scope["method"][:MAX_METHOD_CHARS],
            route=getattr(scope.get("route"), "path", None),
            status=status,
            duration_ms=round((time.perf_counter() - started) * 1000, 3),
            agent=scope["state"].get("agent"),
            **({"actor": scope["state"][ACTOR]} if ACTOR in scope["state"] else {}),
            client=scope["client"][0] if scope.get("client") else None,
        )

    # --- revoked tokens ---------------------------------------------------------------------------

    @contextmanager
    def _cancel_when_revoked(
        self, credential: RequestCredential | None, *, is_stream: bool
    ) -> Iterator[None]:
        """Raise REVOKED inside the block when the credential of the request is no longer accepted."""
        task = asyncio.current_task()
        if credential is None or task is None:
            yield
            return
        self._open[task] = credential, is_stream
        try:
            yield
        except asyncio.CancelledError:
            if task not in self._revoked:
                raise
            task.uncancel()
            raise REVOKED from None
        finally:
            self._open.pop(task, None)
            self._revoked.discard(task)

    def end_revoked(self) -> None:
        """End open requests with rejected tokens, and streams with expired tokens."""
        if not self._open:
            return
        try:
            tokens = self._tokens()
        except ApiError as error:
            if error.details.get("reason") == STORE_AWAY:
                return  # requests that were admitted continue while the database is away
            tokens = TokenSet((), {})
        find = cache(tokens.match)
        now = time.time()
        for task, (credential, is_stream) in self._open.items():
            is_over = not credential.is_live(find) or (is_stream and credential.expires <= now)
            if is_over and task not in self._revoked:
                self._revoked.add(task)
                task.cancel()

    # --- authentication ---------------------------------------------------------------------------

    async def _authenticate(self, scope: Scope) -> RequestCredential | None:
        """Set the agent of the request and return its credential, if it has one.

        The agent is None for the owner, who is on the local machine and needs no credential.
        """
        headers = Headers(scope=scope)
        state = scope["state"]
        checks.check_head(headers, scope)
        bind = self._bind or checks.read_bind(scope)
        name = self._check_host(headers, bind)
        checks.check_origin(headers, scope)
        checks.check_path(scope)
        address = scope["client"][0] if scope.get("client") else ""
        is_local_peer = is_loopback(address) if address else self._bind is not None
        is_local = bind.is_loopback and checks.is_local_name(name, bind) and is_local_peer
        token = None if scope["path"] in PROBES else _parse_token(headers)
        proxy_header = None if token else checks.find_proxy_header(headers)
        if token is not None:
            client = checks.find_client_address(headers, address, self._settings().trusted_proxies)
            credential: RequestCredential | None = await self._bearer.check(token, client)
        else:
            credential = await self._find_session(
                headers, is_local=is_local and proxy_header is None
            )
        if credential is not None:
            state.update(
                {SCOPE: credential.scope, ACTOR: credential.actor, "token_id": credential.token_id}
            )
            state["agent"] = credential.agent
            _check_approver(credential, scope)
        elif is_local and proxy_header is None:
            state["agent"] = None
        elif _is_open(scope):
            state["agent"] = ANONYMOUS
        else:
            suffix = f" (header {proxy_header})" if proxy_header else ""
            source = (
                f"forwarded requests{suffix}" if bind.is_loopback else "requests to this address"
            )
            raise unauthorized_error(f"{source} need a token", hint=BEARER_HINT)
        return credential

    async def _find_session(self, headers: Headers, *, is_local: bool) -> RequestCredential | None:
        """Return the credential of the session.

        Sessions of `onetool ui` are valid on the local machine only.
        """
        if self._sessions is None or CSRF_HEADER not in headers:
            return None
        session = await self._sessions.find(headers)
        return session if session is not None and (is_local or session.agent is not None) else None

    def _render(self, error: ApiError, scope: Scope) -> Response:
        response = error.response
        if error.code == "unauthorized":
            settings = self._settings()
            bind = self._bind or checks.read_bind(scope)
            base_url = (
                checks.find_base_url(scope, bind, settings.public_url) if settings.issuers else None
            )
            response.headers["www-authenticate"] = build_challenge(error, base_url, scope["path"])
        return response

    def _check_host(self, headers: Headers, bind: Bind) -> str:
        hosts = headers.getlist("host")
        match = checks.HOST_PATTERN.fullmatch(hosts[0]) if len(hosts) == 1 else None
        if match is None:
            raise ApiError(
                "invalid", "invalid Host header: expected exactly one host name or IP address"
            )
        name = match[1].lower()
        if (
            bind.is_loopback
            and not checks.is_local_name(name, bind)
            and name not in self._allowed_hosts()
        ):
            setting = f"auth: {{allowed_hosts: [{', '.join([*self._allowed_hosts(), name])}]}}"
            expected = ", ".join([*self._allowed_hosts(), "localhost"])
            raise ApiError(
                "forbidden",
                f"unknown Host {name!r}: expected {expected} or 127.0.0.1",
                hint=(
                    "if a proxy forwards requests with this Host, add this to onetool.yaml:"
                    f" {setting}"
                ),
            )
        return name


def _is_open(scope: Scope) -> bool:
    """Return whether the request needs no token, wherever it comes from."""
    method = "GET" if scope["method"] == "HEAD" else scope["method"]
    is_file = method == "GET" and scope["path"].startswith(UI_PREFIX)
    return is_file or scope["path"] in OPEN_PATHS.get(method, ())


def _check_approver(credential: RequestCredential, scope: Scope) -> None:
    """Reject whatever a token of scope `approve` may not do: everything but reading and approving."""
    path = scope["path"]
    if credential.agent is None or credential.scope != "approve":
        return
    is_read = scope["method"] in {"GET", "HEAD"} and path != MCP_PATH
    if not is_read and path != SESSION_PATH and not path.startswith(f"{APPROVALS_PATH}/"):
        message = (
            "a token of scope 'approve' cannot call tools or change anything: it reads, and"
            " approves calls"
        )
        raise ApiError(
            "forbidden", message, {"scope": credential.scope}, hint="use a token of scope 'use'"
        )


def _parse_token(headers: Headers) -> str | None:
    """Return the bearer token, or None without an Authorization header."""
    values = headers.getlist("authorization")
    if not values:
        return None
    scheme, _, token = values[0].partition(" ")
    if len(values) > 1 or scheme.lower() != "bearer" or not token.strip():
        raise unauthorized_error("invalid Authorization header", hint=BEARER_HINT)
    return token.strip()


def _get_request_id(headers: Headers) -> str:
    ids = headers.getlist("x-request-id")
    if len(ids) == 1 and REQUEST_ID_PATTERN.fullmatch(ids[0]):
        return ids[0]
    trace = TRACEPARENT_PATTERN.fullmatch(headers.get("traceparent", ""))
    return trace[1] if trace else os.urandom(8).hex()


REVOKED = unauthorized_error("the token was revoked or has expired", reason="revoked")


# --- responses ------------------------------------------------------------------------------------


class _ResponseSender:
    """The `send` function of one request, which adds the fixed headers.

    `status` is None until the response begins.
    """

    def __init__(self, send: Send, request_id: str) -> None:
        self._send = send
        self._headers = {**RAW_SECURITY_HEADERS, b"x-request-id": request_id.encode()}
        self.status: int | None = None
        self._is_complete = False

    async def __call__(self, message: Any) -> None:
        if message["type"] == "http.response.start":
            self.status = message["status"]
            headers = [
                (name.lower(), value)
                for name, value in message.get("headers", ())
                if name.lower() not in RAW_SECURITY_HEADERS
            ]
            if all(name != b"cache-control" for name, _ in headers):
                headers.append((b"cache-control", b"no-store"))
            message["headers"] = [*headers, *self._headers.items()]
        self._is_complete = message["type"] == "http.response.body" and not message.get(
            "more_body", False
        )
        await self._send(message)

    async def end(self) -> None:
        """Finish a stream that has begun."""
        if not self._is_complete:
            with suppress(Exception):  # the server cuts off a response of known length instead
                await self._send({"type": "http.response.body", "body": b"", "more_body": False})


def get_token_id(scope: Scope) -> str:
    """Return an ID that does not reveal the request's token; empty without a token."""
    return str(scope.get("state", {}).get("token_id", ""))


def get_agent(scope: Scope) -> str:
    """Return the agent of the request; the owner uses the default agent."""
    agent = scope.get("state", {}).get("agent")
    return DEFAULT if agent is None else str(agent)
