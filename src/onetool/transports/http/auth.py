"""ASGI middleware in front of every route: authentication, size limits, security headers and the request log.

Requests without a token are accepted only from the local machine, on a loopback address and with a local Host header,
so that other websites cannot reach the server through a browser. All other requests need a token. Permissions of agents
are checked elsewhere. When a token is revoked, its open requests end.

Approvals need a token of scope `approve` or a session of the admin UI, even on the local machine: code and assistants
can send local requests too. A token of scope `approve` reads and approves; it cannot call tools or change anything.

Every request has an id: the client's, if it is valid, so that both logs can be correlated. The log has the route, never
the path or the query, which may hold anything.
"""

import asyncio
import contextlib
import functools
import os
import re
import time
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass
from ipaddress import ip_address
from typing import Any, Final

from starlette.datastructures import Headers
from starlette.types import ASGIApp, Receive, Scope, Send

from onetool.agents import DEFAULT
from onetool.config.model import RunLimits, Token
from onetool.logging import Log
from onetool.net.messages import OUTGOING_HEADER
from onetool.transports.fair_queue import QUEUES, Queues
from onetool.transports.http.body_limit import BodyLimiter
from onetool.transports.http.errors import STATUS, ApiError
from onetool.transports.http.sessions import BrowserSessions
from onetool.transports.http.throttle import AuthThrottle
from onetool.transports.http.tokens import STORE_AWAY, TokenSet, hash_token

MAX_HEAD_BYTES: Final = 16 << 10
LOCAL_NAMES: Final = frozenset({"localhost", "127.0.0.1", "[::1]"})
HOST_PATTERN = re.compile(r"(\[[0-9a-f:.]+\]|[a-z0-9._-]+)(?::[0-9]{1,5})?", re.ASCII | re.IGNORECASE)
OPEN_PATHS: Final = frozenset({"/", "/healthz", "/readyz", "/favicon.ico"})  # contain no private data
UI_PREFIX: Final = "/page/"
TOKEN: Final = "token"  # noqa: S105 - key in the state of a request: the settings of its token
TOKEN_HASH: Final = "token_hash"  # noqa: S105 - key in the state of a request
TOKEN_ID_CHARS: Final = 32
SCOPE: Final = "scope"  # key in the state of a request: the scope of its token or session
ACTOR: Final = "actor"  # key in the state of a request: its token or session, for the audit log
APPROVALS_PATH: Final = "/api/approvals"
MCP_PATH: Final = "/mcp"
STOPPING: Final = "stopping"  # key in the state of a request: an event, set on shutdown
ANONYMOUS: Final = ""  # not the name of any agent, so it owns nothing
# Headers that clients do not send themselves: they show that a proxy, or a tool of OneTool, forwarded the request.
PROXY_HEADERS: Final = frozenset(
    {
        *("cdn-loop", "client-ip", "forwarded", "max-forwards", "surrogate-capability", "true-client-ip", "via"),
        *("x-backend-server", "x-host", "x-request-start", "x-rewrite-url", "x-scheme", "x-served-by", "x-url-scheme"),
        *(OUTGOING_HEADER.lower(),),
    }
)
PROXY_HEADER_PREFIXES: Final = (
    *("akamai-", "cf-", "cloudfront-", "fastly-", "fly-", "forwarded-", "incap-", "ngrok-", "proxy-", "remote-"),
    *("ssl-", "tailscale-", "x-akamai", "x-amz-cf-", "x-amzn-", "x-appengine", "x-arr-", "x-azure", "x-bluecoat"),
    *("x-cache", "x-cdn", "x-client-cert", "x-client-ip", "x-clientip", "x-cloud", "x-cluster", "x-edge", "x-envoy"),
    *("x-forward", "x-goog", "x-haproxy", "x-heroku", "x-iinfo", "x-istio", "x-kong", "x-nf-", "x-nginx"),
    *("x-original", "x-originating", "x-proxy", "x-railway", "x-real", "x-remote", "x-squid", "x-ssl", "x-sucuri"),
    *("x-traefik", "x-varnish", "x-vercel", "x-wap", "x-zscaler"),
)
# Headers of clients, which may contain version numbers and addresses.
CLIENT_HEADERS: Final = frozenset(
    {"authorization", "cookie", "host", "last-event-id", "origin", "referer", "user-agent"}
)
CLIENT_HEADER_PREFIXES: Final = ("accept", "if-", "mcp-", "sec-")
ADDRESS_PATTERN = re.compile(
    r"(?<![A-Za-z0-9./])(?:[0-9]{1,3}(?:\.[0-9]{1,3}){3}(?!\.?[A-Za-z0-9])|[0-9A-Fa-f:]{3,39}(?![A-Za-z0-9:]))",
    re.ASCII,
)
ADDRESS_LIST_PATTERN = re.compile(r"[0-9a-f:.,;=\[\]\"'\sfor]{2,}", re.ASCII | re.IGNORECASE)
CONTENT_SECURITY_POLICY: Final = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; media-src 'self' data:; "
    "connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)
REQUEST_ID_PATTERN = re.compile(r"[A-Za-z0-9_.-]{1,64}", re.ASCII)
TRACEPARENT_PATTERN = re.compile(r"[0-9a-f]{2}-(?!0{32})([0-9a-f]{32})-[0-9a-f]{16}-[0-9a-f]{2}", re.ASCII)
MAX_METHOD_CHARS: Final = 16
SECURITY_HEADERS: Final = {
    "content-security-policy": CONTENT_SECURITY_POLICY,
    "x-content-type-options": "nosniff",
    "x-frame-options": "DENY",
    "referrer-policy": "no-referrer",
    "cross-origin-resource-policy": "same-origin",
    "cross-origin-opener-policy": "same-origin",
    "permissions-policy": "camera=(), geolocation=(), microphone=()",
}
RAW_SECURITY_HEADERS: Final = {name.encode(): value.encode() for name, value in SECURITY_HEADERS.items()}


@dataclass(frozen=True, slots=True)
class Bind:
    """The address that the server listens on."""

    host: str
    port: int

    @property
    def is_loopback(self) -> bool:
        return self.host == "localhost" or is_loopback(self.host)

    @property
    def url(self) -> str:
        host = f"[{self.host}]" if ":" in self.host and not self.host.startswith("[") else self.host
        return f"http://{host}:{self.port}"


class AuthMiddleware:
    """The middleware. Without `bind`, the address that the server listens on is that of each connection."""

    def __init__(
        self,
        inner: ASGIApp,
        bind: Bind | None,
        tokens: Callable[[], TokenSet],
        *,
        log: Log | None = None,
        allowed_hosts: Callable[[], Collection[str]] = tuple,
        throttle: AuthThrottle | None = None,
        limits: Callable[[], RunLimits] = RunLimits,
        sessions: BrowserSessions | None = None,
    ) -> None:
        self._inner, self._bind, self._tokens, self._allowed_hosts = inner, bind, tokens, allowed_hosts
        self._throttle, self._body_limiter, self._log = throttle or AuthThrottle(), BodyLimiter(), log or Log()
        self._sessions = sessions
        self._open: dict[asyncio.Task[Any], tuple[str, Token]] = {}  # open requests with their tokens
        self._revoked: set[asyncio.Task[Any]] = set()
        self._queues = Queues(limits)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan":
            await self._inner(scope, receive, send)
            return
        if scope["type"] != "http":
            await send({"type": "websocket.close", "code": 1008, "reason": "WebSockets are not supported"})
            return
        headers, started = Headers(scope=scope), time.perf_counter()
        state = scope.setdefault("state", {})
        state["request_id"] = _get_request_id(headers)
        response, body = _ResponseSender(send, state["request_id"]), self._body_limiter.body(scope["path"], receive)
        try:
            state.update({"agent": self._authenticate(scope), QUEUES: self._queues})
            body.check_content_length(headers)
            with self._cancel_when_revoked(state):
                await self._inner(scope, body, response)
        except ApiError as error:
            if response.status is None:  # otherwise the response has begun and can only be cut off
                await error.response(scope, receive, response)
            elif error is REVOKED:
                await response.end()
        except asyncio.CancelledError:
            if response.status is not None or not (STOPPING in state and state[STOPPING].is_set()):
                raise
            await ApiError("busy", "the server is shutting down; the request did not finish in time").response(
                scope, receive, response
            )
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
            client=scope["client"][0] if scope.get("client") else None,
        )

    # --- revoked tokens -------------------------------------------------------------------------------------------

    @contextlib.contextmanager
    def _cancel_when_revoked(self, state: Mapping[str, Any]) -> Iterator[None]:
        """Raise REVOKED inside the block when the token of the request is revoked."""
        token, task = state.get(TOKEN), asyncio.current_task()
        if token is None or task is None:
            yield
            return
        self._open[task] = state[TOKEN_HASH], token
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
        """End open requests whose tokens are no longer accepted."""
        if not self._open:
            return
        try:
            tokens = self._tokens()
        except ApiError as error:
            if error.details.get("reason") == STORE_AWAY:
                return  # requests that were admitted continue while the database is away
            tokens = TokenSet((), {})
        valid = {token_hash: tokens.find(token_hash) for token_hash, _ in self._open.values()}
        for task, (token_hash, token) in self._open.items():
            if valid[token_hash] != token and task not in self._revoked:
                self._revoked.add(task)
                task.cancel()

    # --- authentication ------------------------------------------------------------------------------------------

    def _authenticate(self, scope: Scope) -> str | None:
        """Return the agent of the token, or None for the owner, who is on the local machine and needs no token."""
        headers = Headers(scope=scope)
        _check_head(headers, scope)
        bind = self._bind or _read_bind(scope)
        name = self._check_host(headers, bind)
        _check_origin(headers, scope)
        _check_path(scope)
        address = scope["client"][0] if scope.get("client") else ""
        token = _parse_token(headers)
        if token is not None:
            token_hash = hash_token(token)
            found = self._find_token(token_hash, address)
            _check_approver(found, scope)
            scope["state"].update({TOKEN: found, TOKEN_HASH: token_hash, "token_id": token_hash[:TOKEN_ID_CHARS]})
            scope["state"].update({SCOPE: found.scope, ACTOR: f"token {found.name}"})
            return found.agent
        is_local_peer = is_loopback(address) if address else self._bind is not None
        is_local = _is_local_name(name, bind) and is_local_peer
        proxy_header = _find_proxy_header(headers)
        if bind.is_loopback and is_local and proxy_header is None:
            if self._sessions is not None and self._sessions.is_open(headers):
                scope["state"].update({SCOPE: "approve", ACTOR: "admin UI"})
            return None
        if scope["method"] in {"GET", "HEAD"} and (scope["path"] in OPEN_PATHS or scope["path"].startswith(UI_PREFIX)):
            return ANONYMOUS
        suffix = f" (header {proxy_header})" if proxy_header else ""
        source = f"forwarded requests{suffix}" if bind.is_loopback else "requests to this address"
        raise _unauthorized_error(f"{source} need a token", hint="send the header Authorization: Bearer ot_...")

    def _check_host(self, headers: Headers, bind: Bind) -> str:
        hosts = headers.getlist("host")
        found = HOST_PATTERN.fullmatch(hosts[0]) if len(hosts) == 1 else None
        if found is None:
            raise ApiError("invalid", "invalid Host header: expected exactly one host name or IP address")
        name = found[1].lower()
        if bind.is_loopback and not _is_local_name(name, bind) and name not in self._allowed_hosts():
            setting = f"auth: {{allowed_hosts: [{', '.join([*self._allowed_hosts(), name])}]}}"
            expected = ", ".join([*self._allowed_hosts(), "localhost"])
            raise ApiError(
                "forbidden",
                f"unknown Host {name!r}: expected {expected} or 127.0.0.1",
                hint=f"if a proxy forwards requests with this Host, add this to onetool.yaml: {setting}",
            )
        return name

    def _find_token(self, token_hash: str, address: str) -> Token:
        self._throttle.check(address, token_hash)
        token = self._tokens().find(token_hash)
        if token is None:
            self._throttle.record_failure(address, token_hash)
            raise _unauthorized_error("unknown token", hint="create a token with onetool token create NAME")
        self._throttle.record_success(address, token_hash)
        return token


def _check_approver(token: Token, scope: Scope) -> None:
    """Reject whatever a token of scope `approve` may not do: everything but reading and approving."""
    path = scope["path"]
    is_read = scope["method"] in {"GET", "HEAD"} and path != MCP_PATH
    if token.scope == "approve" and not is_read and not path.startswith(f"{APPROVALS_PATH}/"):
        message = "a token of scope 'approve' cannot call tools or change anything: it reads, and approves calls"
        raise ApiError("forbidden", message, {"scope": token.scope}, hint="use a token of scope 'use'")


def _read_bind(scope: Scope) -> Bind:
    """Return the address of the connection; without one, such as on a Unix socket, requests need a token."""
    host, port = scope.get("server") or ("", None)
    return Bind(str(host), port or 0)


def _is_local_name(name: str, bind: Bind) -> bool:
    """Tell whether this is a name of the local machine. Other names come from a proxy."""
    return name in LOCAL_NAMES or name == bind.host.lower()


def _check_head(headers: Headers, scope: Scope) -> None:
    """Check the framing and size of the head. Without this, a head in one packet could have any size."""
    if "transfer-encoding" in headers and "content-length" in headers:
        # two lengths for one body allow request smuggling through a proxy: close the connection
        message = "conflicting headers: send either Transfer-Encoding or Content-Length, not both"
        raise ApiError("invalid", message, headers={"connection": "close"})
    fields = sum(len(name) + len(value) + len(b": \r\n") for name, value in scope["headers"])
    if fields + len(scope.get("raw_path", b"")) + len(scope.get("query_string", b"")) > MAX_HEAD_BYTES:
        raise ApiError("too_large", f"path, query and headers exceed {MAX_HEAD_BYTES} bytes", {"limit": MAX_HEAD_BYTES})
    if scope.get("http_version", "1.1") not in {"1.0", "1.1"}:
        raise ApiError("invalid", "unsupported HTTP version: expected HTTP/1.1")


def _check_origin(headers: Headers, scope: Scope) -> None:
    """Reject cross-origin requests."""
    host, origins = headers["host"].lower(), headers.getlist("origin")
    if origins and (len(origins) > 1 or origins[0].lower() not in {f"http://{host}", f"https://{host}"}):
        raise ApiError("forbidden", "cross-origin request rejected (Origin header)")
    sites = headers.getlist("sec-fetch-site")
    # following a link shows the response to the user, not to the other site
    is_link = headers.get("sec-fetch-mode") == "navigate" and headers.get("sec-fetch-dest") == "document"
    if not all(site in {"same-origin", "none"} for site in sites) and not (is_link and scope["method"] == "GET"):
        raise ApiError("forbidden", "cross-origin request rejected (Sec-Fetch-Site header)")


def _check_path(scope: Scope) -> None:
    """Reject paths that proxies and servers could interpret differently."""
    path = scope["path"]
    if b"%2f" in scope.get("raw_path", b"").lower():
        raise ApiError("invalid", "invalid path: encoded slashes (%2F) are not allowed")
    if any(character < " " for character in path):
        raise ApiError("invalid", "invalid path: control characters are not allowed")
    if not path.startswith("/"):
        raise ApiError("invalid", "invalid path: it must begin with '/' (this server is not a proxy)")
    if any(part in {".", ".."} for part in path.split("/")):
        raise ApiError("invalid", "invalid path: '.' and '..' segments are not allowed")


def _find_proxy_header(headers: Headers) -> str | None:
    """Return the name of a header that shows that a proxy forwarded the request, if there is one.

    Any other header with an IP address in its value counts too: unknown proxies report the sender that way.
    """
    for name, value in headers.items():
        is_client_header = name in CLIENT_HEADERS or name.startswith(CLIENT_HEADER_PREFIXES)
        if _is_proxy_header(name) or (not is_client_header and _contains_address(value)):
            return name
    return None


@functools.lru_cache(maxsize=1024)
def _is_proxy_header(name: str) -> bool:
    return name in PROXY_HEADERS or name.startswith(PROXY_HEADER_PREFIXES)


def _contains_address(value: str) -> bool:
    if any(_is_address(found[0]) for found in ADDRESS_PATTERN.finditer(value)):
        return True
    if not ADDRESS_LIST_PATTERN.fullmatch(value):
        return False
    return any(_is_address(part.lower().strip().removeprefix("for=").strip("\"'")) for part in re.split("[,;]", value))


def _is_address(text: str) -> bool:
    """Tell whether the text is an address like 192.0.2.1, 192.0.2.1:8080, 2001:db8::1 or [2001:db8::1]:443."""
    bare = text[1:].partition("]")[0] if text.startswith("[") else text
    try:
        ip_address(bare.rpartition(":")[0] if bare.count(":") == 1 else bare)
    except ValueError:
        return False
    return True


def _parse_token(headers: Headers) -> str | None:
    """Return the bearer token, or None without an Authorization header."""
    values = headers.getlist("authorization")
    if not values:
        return None
    scheme, _, token = values[0].partition(" ")
    if len(values) > 1 or scheme.lower() != "bearer" or not token.strip():
        raise _unauthorized_error("invalid Authorization header", hint="send the header Authorization: Bearer ot_...")
    return token.strip()


def _get_request_id(headers: Headers) -> str:
    ids = headers.getlist("x-request-id")
    if len(ids) == 1 and REQUEST_ID_PATTERN.fullmatch(ids[0]):
        return ids[0]
    trace = TRACEPARENT_PATTERN.fullmatch(headers.get("traceparent", ""))
    return trace[1] if trace else os.urandom(8).hex()


def _unauthorized_error(message: str, hint: str = "") -> ApiError:
    return ApiError("unauthorized", message, headers={"www-authenticate": "Bearer"}, hint=hint)


REVOKED: Final = _unauthorized_error("the token was revoked")


def is_loopback(host: str) -> bool:
    try:
        address = ip_address(host.strip("[]"))
    except ValueError:
        return False
    mapped = getattr(address, "ipv4_mapped", None)
    return bool((mapped or address).is_loopback)


# --- responses -----------------------------------------------------------------------------------------------------


class _ResponseSender:
    """The `send` function of one request, which adds the fixed headers. `status` is None until the response begins."""

    def __init__(self, send: Send, request_id: str) -> None:
        self._send, self._headers = send, {**RAW_SECURITY_HEADERS, b"x-request-id": request_id.encode()}
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
        self._is_complete = message["type"] == "http.response.body" and not message.get("more_body", False)
        await self._send(message)

    async def end(self) -> None:
        """Finish a stream that has begun."""
        if not self._is_complete:
            with contextlib.suppress(Exception):  # the server cuts off a response of known length instead
                await self._send({"type": "http.response.body", "body": b"", "more_body": False})


def get_token_id(scope: Scope) -> str:
    """Return an id of the request's token that does not reveal it, or an empty string without a token."""
    return str(scope.get("state", {}).get("token_id", ""))


def get_agent(scope: Scope) -> str:
    """Return the agent of the request; the owner uses the default agent."""
    agent = scope.get("state", {}).get("agent")
    return DEFAULT if agent is None else str(agent)
