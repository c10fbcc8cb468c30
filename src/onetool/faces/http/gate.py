"""The one gate before every route: who gets in, as which agent, with how much, what every answer carries, and the log.

Without a token only the machine itself is let in, to an address that only the machine itself can reach, and only by
its own names, so that no page of another site can talk to us through somebody's browser. Everybody else shows a token.
What an agent may do is not decided here. When a token is revoked, the requests that it opened end.

Every request has an id, the client's own if that is a sane one, so that both logs can be laid side by side. Its line in
the log tells the route and not the path, and nothing of the query: there is no end to what stands in those.
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
from onetool.config.model import RunLimits
from onetool.faces.http.errors import STATUS, ApiError
from onetool.faces.http.failures import Failures
from onetool.faces.http.intake import Intake
from onetool.faces.http.keys import Keys, hash_of
from onetool.faces.queue import QUEUES, Queues
from onetool.logging import Log
from onetool.net.exchange import OUTGOING

MOST_HEAD: Final = 16 << 10
LOCAL_NAMES: Final = frozenset({"localhost", "127.0.0.1", "[::1]"})
HOST = re.compile(r"(\[[0-9a-f:.]+\]|[a-z0-9._-]+)(?::[0-9]{1,5})?", re.ASCII | re.IGNORECASE)
OPEN_PATHS: Final = frozenset({"/", "/healthz", "/readyz", "/favicon.ico"})  # nothing in them is anybody's
PAGE: Final = "/page/"
TOKEN_HASH: Final = "token_hash"  # noqa: S105 - where the state of a request has it
TOKEN_ID_CHARACTERS: Final = 32
STOPPING: Final = "stopping"  # an event in the state of a request: the server wants to end
STRANGER: Final = ""  # no agent has this name, so whoever has it owns nothing
# Headers that no client sends by itself: they tell that a proxy, or a tool of OneTool, passed the request on.
PROXY_HEADERS: Final = frozenset(
    {
        *("cdn-loop", "client-ip", "forwarded", "max-forwards", "surrogate-capability", "true-client-ip", "via"),
        *("x-backend-server", "x-host", "x-request-start", "x-rewrite-url", "x-scheme", "x-served-by", "x-url-scheme"),
        *(OUTGOING.lower(),),
    }
)
PROXY_PREFIXES: Final = (
    *("akamai-", "cf-", "cloudfront-", "fastly-", "fly-", "forwarded-", "incap-", "ngrok-", "proxy-", "remote-"),
    *("ssl-", "tailscale-", "x-akamai", "x-amz-cf-", "x-amzn-", "x-appengine", "x-arr-", "x-azure", "x-bluecoat"),
    *("x-cache", "x-cdn", "x-client-cert", "x-client-ip", "x-clientip", "x-cloud", "x-cluster", "x-edge", "x-envoy"),
    *("x-forward", "x-goog", "x-haproxy", "x-heroku", "x-iinfo", "x-istio", "x-kong", "x-nf-", "x-nginx"),
    *("x-original", "x-originating", "x-proxy", "x-railway", "x-real", "x-remote", "x-squid", "x-ssl", "x-sucuri"),
    *("x-traefik", "x-varnish", "x-vercel", "x-wap", "x-zscaler"),
)
# Clients send these by themselves, with numbers of versions and their own address in them.
CLIENT_HEADERS: Final = frozenset(
    {"host", "user-agent", "origin", "referer", "cookie", "authorization", "last-event-id"}
)
CLIENT_PREFIXES: Final = ("accept", "if-", "mcp-", "sec-")
ADDRESS = re.compile(
    r"(?<![A-Za-z0-9./])(?:[0-9]{1,3}(?:\.[0-9]{1,3}){3}(?!\.?[A-Za-z0-9])|[0-9A-Fa-f:]{3,39}(?![A-Za-z0-9:]))",
    re.ASCII,
)
ADDRESS_LIST = re.compile(r"[0-9a-f:.,;=\[\]\"'\sfor]{2,}", re.ASCII | re.IGNORECASE)
POLICY: Final = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; media-src 'self' data:; "
    "connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)
REQUEST_ID = re.compile(r"[A-Za-z0-9_.-]{1,64}", re.ASCII)
TRACE = re.compile(r"[0-9a-f]{2}-(?!0{32})([0-9a-f]{32})-[0-9a-f]{16}-[0-9a-f]{2}", re.ASCII)
LONGEST_METHOD: Final = 16
ALWAYS: Final = {
    "content-security-policy": POLICY,
    "x-content-type-options": "nosniff",
    "x-frame-options": "DENY",
    "referrer-policy": "no-referrer",
    "cross-origin-resource-policy": "same-origin",
    "cross-origin-opener-policy": "same-origin",
    "permissions-policy": "camera=(), geolocation=(), microphone=()",
}
FIXED: Final = {name.encode(): value.encode() for name, value in ALWAYS.items()}


@dataclass(frozen=True, slots=True)
class Bind:
    """Where the server listens."""

    host: str
    port: int

    @property
    def is_loopback(self) -> bool:
        return self.host == "localhost" or is_loopback(self.host)

    @property
    def url(self) -> str:
        host = f"[{self.host}]" if ":" in self.host and not self.host.startswith("[") else self.host
        return f"http://{host}:{self.port}"


class Gate:
    def __init__(
        self,
        inner: ASGIApp,
        bind: Bind,
        keys: Callable[[], Keys],
        *,
        log: Log | None = None,
        names: Callable[[], Collection[str]] = tuple,
        failures: Failures | None = None,
        limits: Callable[[], RunLimits] = RunLimits,
    ) -> None:
        self._inner, self._bind, self._keys, self._names = inner, bind, keys, names
        self._failures, self._intake, self._log = failures or Failures(), Intake(), log or Log()
        self._open: dict[asyncio.Task[Any], tuple[str, str]] = {}  # requests with the hash and the agent of their token
        self._revoked: set[asyncio.Task[Any]] = set()
        self._queues = Queues(limits)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan":
            await self._inner(scope, receive, send)
            return
        if scope["type"] != "http":
            await send({"type": "websocket.close", "code": 1008, "reason": "there are no web sockets here"})
            return
        headers, started = Headers(scope=scope), time.perf_counter()
        state = scope.setdefault("state", {})
        state["request_id"] = _request_id(headers)
        answer, body = _Answer(send, state["request_id"]), self._intake.body(scope["path"], receive)
        try:
            state.update({"agent": self._admitted(scope), QUEUES: self._queues})
            body.refuse_announced(headers)
            with self._ending_when_revoked(state):
                await self._inner(scope, body, answer)
        except ApiError as error:
            if answer.status is None:  # else it is cut off, which is all that is left to say
                await error.response(scope, receive, answer)
            elif error is REVOKED:
                await answer.end()
        except asyncio.CancelledError:
            if answer.status is not None or not (STOPPING in state and state[STOPPING].is_set()):
                raise
            await ApiError("busy", "the server is ending, and this was not done in time").response(
                scope, receive, answer
            )
        finally:
            body.end()
            self._write(scope, answer.status, started)

    def _write(self, scope: Scope, status: int | None, started: float) -> None:
        self._log.event(
            "http.request",
            level="WARNING" if status is None or status >= STATUS["internal"] else "INFO",
            correlation_id=scope["state"]["request_id"],
            method=scope["method"][:LONGEST_METHOD],
            route=getattr(scope.get("route"), "path", None),
            status=status,
            duration_ms=round((time.perf_counter() - started) * 1000, 3),
            agent=scope["state"].get("agent"),
            client=scope["client"][0] if scope.get("client") else None,
        )

    # --- revoked tokens -------------------------------------------------------------------------------------------

    @contextlib.contextmanager
    def _ending_when_revoked(self, state: Mapping[str, Any]) -> Iterator[None]:
        """Raise REVOKED inside of the block when the token of the request is revoked."""
        shown, agent, task = state.get(TOKEN_HASH), state["agent"], asyncio.current_task()
        if shown is None or task is None:
            yield
            return
        self._open[task] = shown, agent
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
        """End the open requests whose tokens are not accepted any more."""
        if not self._open:
            return
        try:
            keys = self._keys()
        except ApiError:
            keys = Keys((), {})
        valid = {shown: keys.agent_of_hash(shown) for shown, _ in set(self._open.values())}
        for task, (shown, agent) in self._open.items():
            if valid[shown] != agent and task not in self._revoked:
                self._revoked.add(task)
                task.cancel()

    # --- who gets in --------------------------------------------------------------------------------------------

    def _admitted(self, scope: Scope) -> str | None:
        """The agent of the token; None is the owner, who is at the machine itself and needs none."""
        headers = Headers(scope=scope)
        _check_head(headers, scope)
        name = self._checked_host(headers)
        _check_origin(headers, scope)
        _check_path(scope)
        address = scope["client"][0] if scope.get("client") else ""
        token = _token(headers)
        if token is not None:
            shown = hash_of(token)
            scope["state"].update({TOKEN_HASH: shown, "token_id": shown[:TOKEN_ID_CHARACTERS]})
            return self._known(shown, address)
        is_here = self._is_own(name) and (not address or is_loopback(address))
        sign = _proxy_sign(headers)
        if self._bind.is_loopback and is_here and sign is None:
            return None
        if scope["method"] in {"GET", "HEAD"} and (scope["path"] in OPEN_PATHS or scope["path"].startswith(PAGE)):
            return STRANGER
        header = f" (header {sign})" if sign else ""
        why = f"a request through a proxy{header}" if self._bind.is_loopback else "this address"
        raise _unauthorized(f"{why} needs a token: send it as `Authorization: Bearer ot_...`")

    def _checked_host(self, headers: Headers) -> str:
        hosts = headers.getlist("host")
        found = HOST.fullmatch(hosts[0]) if len(hosts) == 1 else None
        if found is None:
            raise ApiError("invalid", "a request needs exactly one Host header, which is a name or an address")
        name = found[1].lower()
        if self._bind.is_loopback and not self._is_own(name) and name not in self._names():
            line = f"auth: {{allowed_hosts: [{', '.join([*self._names(), name])}]}}"
            known = ", ".join([*self._names(), "localhost"])
            raise ApiError(
                "forbidden",
                f"this server answers to {known} and 127.0.0.1, not to the Host {name!r}. "
                f"Where a proxy passes requests on by that name, add this to onetool.yaml: {line}",
            )
        return name

    def _is_own(self, name: str) -> bool:
        """Whether the machine itself is called so; another name comes from a proxy, whatever that tells."""
        return name in LOCAL_NAMES or name == self._bind.host.lower()

    def _known(self, shown: str, address: str) -> str:
        self._failures.check(address, shown)
        agent = self._keys().agent_of_hash(shown)
        if agent is None:
            self._failures.failed(address, shown)
            raise _unauthorized("this token is not known: type `onetool token create NAME` to make one")
        self._failures.passed(address, shown)
        return agent


def _check_head(headers: Headers, scope: Scope) -> None:
    """Whatever came in one piece has been read, however long it is."""
    if "transfer-encoding" in headers and "content-length" in headers:
        # two lengths of one body are how a request is smuggled past a proxy: this connection is not believed
        message = "a body is either chunked or has a Content-Length, not both"
        raise ApiError("invalid", message, headers={"connection": "close"})
    fields = sum(len(name) + len(value) + len(b": \r\n") for name, value in scope["headers"])
    if fields + len(scope.get("raw_path", b"")) + len(scope.get("query_string", b"")) > MOST_HEAD:
        raise ApiError("too_large", f"path, query and headers have more than {MOST_HEAD} bytes", {"limit": MOST_HEAD})
    if scope.get("http_version", "1.1") not in {"1.0", "1.1"}:
        raise ApiError("invalid", "this server speaks HTTP/1.1")


def _check_origin(headers: Headers, scope: Scope) -> None:
    """A page may talk to the server it came from, and to no other."""
    host, origins = headers["host"].lower(), headers.getlist("origin")
    if origins and (len(origins) > 1 or origins[0].lower() not in {f"http://{host}", f"https://{host}"}):
        raise ApiError("forbidden", "a page of another site may not use this server (wrong Origin)")
    sites = headers.getlist("sec-fetch-site")
    # somebody who follows a link to us sees us, and no page does
    is_link = headers.get("sec-fetch-mode") == "navigate" and headers.get("sec-fetch-dest") == "document"
    if not all(site in {"same-origin", "none"} for site in sites) and not (is_link and scope["method"] == "GET"):
        raise ApiError("forbidden", "a page of another site may not use this server (wrong Sec-Fetch-Site)")


def _check_path(scope: Scope) -> None:
    """A path means what it seems to mean, to whoever looks at it."""
    path = scope["path"]
    if b"%2f" in scope.get("raw_path", b"").lower():
        raise ApiError("invalid", "a slash that is written as %2F cannot stand in a path here")
    if any(letter < " " for letter in path):
        raise ApiError("invalid", "a control character cannot stand in a path")
    if not path.startswith("/"):
        raise ApiError("invalid", "ask for a path that begins with a slash; this server is no proxy")
    if any(part in {".", ".."} for part in path.split("/")):
        raise ApiError("invalid", "a path cannot have . or .. as a part of it here")


def _proxy_sign(headers: Headers) -> str | None:
    """Return the name of a header by which a proxy says that somebody else sent this, if there is one.

    A header of any other name with an address in its value counts too: that is how unknown proxies name the sender.
    """
    for name, value in headers.items():
        is_of_client = name in CLIENT_HEADERS or name.startswith(CLIENT_PREFIXES)
        if _is_proxy_header(name) or (not is_of_client and _names_an_address(value)):
            return name
    return None


@functools.lru_cache(maxsize=1024)
def _is_proxy_header(name: str) -> bool:
    return name in PROXY_HEADERS or name.startswith(PROXY_PREFIXES)


def _names_an_address(value: str) -> bool:
    if any(_is_address(found[0]) for found in ADDRESS.finditer(value)):
        return True
    if not ADDRESS_LIST.fullmatch(value):
        return False
    return any(_is_address(part.lower().strip().removeprefix("for=").strip("\"'")) for part in re.split("[,;]", value))


def _is_address(text: str) -> bool:
    """Tell whether it is an address like 192.0.2.1, 192.0.2.1:8080, 2001:db8::1 or [2001:db8::1]:443."""
    bare = text[1:].partition("]")[0] if text.startswith("[") else text
    try:
        ip_address(bare.rpartition(":")[0] if bare.count(":") == 1 else bare)
    except ValueError:
        return False
    return True


def _token(headers: Headers) -> str | None:
    """What stands behind `Bearer`; another scheme is no token of ours."""
    given = headers.getlist("authorization")
    if not given:
        return None
    scheme, _, token = given[0].partition(" ")
    if len(given) > 1 or scheme.lower() != "bearer" or not token.strip():
        raise _unauthorized("send the token as `Authorization: Bearer ot_...`")
    return token.strip()


def _request_id(headers: Headers) -> str:
    own = headers.getlist("x-request-id")
    if len(own) == 1 and REQUEST_ID.fullmatch(own[0]):
        return own[0]
    traced = TRACE.fullmatch(headers.get("traceparent", ""))
    return traced[1] if traced else os.urandom(8).hex()


def _unauthorized(message: str) -> ApiError:
    return ApiError("unauthorized", message, headers={"www-authenticate": "Bearer"})


REVOKED: Final = _unauthorized("this token was revoked")


def is_loopback(host: str) -> bool:
    try:
        address = ip_address(host.strip("[]"))
    except ValueError:
        return False
    mapped = getattr(address, "ipv4_mapped", None)
    return bool((mapped or address).is_loopback)


# --- what goes out -------------------------------------------------------------------------------------------------


class _Answer:
    """`send` of one request, with what every answer carries. `status` is None until the answer begins."""

    def __init__(self, send: Send, request_id: str) -> None:
        self._send, self._own = send, {**FIXED, b"x-request-id": request_id.encode()}
        self.status: int | None = None
        self._is_complete = False

    async def __call__(self, message: Any) -> None:
        if message["type"] == "http.response.start":
            self.status = message["status"]
            kept = [(name.lower(), value) for name, value in message.get("headers", ()) if name.lower() not in FIXED]
            if all(name != b"cache-control" for name, _ in kept):
                kept.append((b"cache-control", b"no-store"))
            message["headers"] = [*kept, *self._own.items()]
        self._is_complete = message["type"] == "http.response.body" and not message.get("more_body", False)
        await self._send(message)

    async def end(self) -> None:
        """Complete a stream that has begun."""
        if not self._is_complete:
            with contextlib.suppress(Exception):  # an answer of a known length is cut off by the server instead
                await self._send({"type": "http.response.body", "body": b"", "more_body": False})


def token_id_of(scope: Scope) -> str:
    """Return what identifies the token of the request, and does not reveal it; empty if the request needed none."""
    return str(scope.get("state", {}).get("token_id", ""))


def agent_of(scope: Scope) -> str:
    """The agent that the gate let in; the owner is the default one."""
    agent = scope.get("state", {}).get("agent")
    return DEFAULT if agent is None else str(agent)
