"""The authentication middleware: hosts, origins, tokens, rate limits and headers of responses."""

import asyncio
import hashlib
import os
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import pytest
from pydantic import ValidationError
from starlette.datastructures import Headers
from starlette.responses import PlainTextResponse
from starlette.types import Receive, Scope, Send

from onetool.server.http.auth import ANONYMOUS, SECURITY_HEADERS, AuthMiddleware, get_agent
from onetool.server.http.errors import ApiError
from onetool.server.http.json_body import MAX_BODY_BYTES, MAX_IMPORT_BYTES, BodyLimiter
from onetool.server.http.request_checks import (
    MAX_ACCEPTED,
    MAX_FAILURES,
    MAX_HEAD_BYTES,
    WINDOW_SECONDS,
    AuthThrottle,
    Bind,
    find_client_address,
)
from onetool.server.http.sessions import CSRF_HEADER, SESSION_SECONDS, BrowserSessions
from onetool.settings.access import Auth, Token, TokenSet, new_token
from onetool.settings.paths import Directories
from onetool.state.counters import MAX_NAMES, Counters
from onetool.state.opening import open_files
from onetool.util.running_servers import create_code
from onetool.util.token_ids import SCOPES, hash_token, includes_scope

LOOPBACK, OPEN = Bind("127.0.0.1", 8765), Bind("0.0.0.0", 8765)
RIGHT: Final = "ot_right"
LOCAL: Final = ("host", "localhost:8765")
BEARER: Final = ("authorization", f"Bearer {RIGHT}")
Fields = Iterable[tuple[str, str]]


def make_throttle(clock: Callable[[], float]) -> AuthThrottle:
    counters = Counters(clock)
    return AuthThrottle(lambda: counters, clock)


def open_sessions(home: Path, clock: Callable[[], float] = time.time) -> BrowserSessions:
    state = open_files(Directories(home, home))
    return BrowserSessions(lambda: home, lambda: state, clock)


@dataclass
class AuthHarness:
    """The middleware and the agents of accepted requests.

    The clock moves only when a test moves it.
    """

    bind: Bind = LOOPBACK
    names: tuple[str, ...] = ()
    agents: list[str | None] = field(default_factory=list)
    scopes: list[str | None] = field(default_factory=list)
    sessions: BrowserSessions | None = None
    now: float = 0.0

    def __post_init__(self) -> None:
        token = Token(name="t", hash=hashlib.sha256(RIGHT.encode()).hexdigest(), agent="ada")
        given = [
            {"name": scope, "hash": hash_token(f"ot_{scope}"), "scope": scope} for scope in SCOPES
        ]
        others = map(Token.model_validate, given)
        keys = TokenSet([token, *others], {})
        self.middleware = AuthMiddleware(
            self._accept,
            self.bind,
            lambda: keys,
            allowed_hosts=lambda: self.names,
            throttle=make_throttle(lambda: self.now),
            sessions=self.sessions,
        )

    async def _accept(self, scope: Scope, receive: Receive, send: Send) -> None:
        while (await receive()).get("more_body"):
            pass
        self.agents.append(scope["state"]["agent"])
        self.scopes.append(scope["state"].get("scope"))
        await PlainTextResponse("in")(scope, receive, send)

    def get_status(
        self, *fields: tuple[str, str], path: str = "/api/tools", method: str = "GET", **more: Any
    ) -> int:
        return int(self.send(*fields, path=path, method=method, **more)["status"])

    def send(
        self,
        *fields: tuple[str, str],
        path: str = "/api/tools",
        method: str = "GET",
        client: str = "127.0.0.1",
        body: Iterable[bytes] = (b"",),
    ) -> dict[str, Any]:
        headers = [(name.encode(), value.encode("latin-1")) for name, value in fields]
        scope = {
            "type": "http",
            "method": method,
            "path": path,
            "headers": headers,
            "client": (client, 1),
        }
        return asyncio.run(_send(self.middleware, scope, list(body)))


async def _send(app: Any, scope: Scope, body: list[bytes]) -> dict[str, Any]:
    sent: list[Any] = []

    async def receive() -> dict[str, Any]:
        return {"type": "http.request", "body": body.pop(0), "more_body": bool(body)}

    async def send(message: Any) -> None:
        sent.append(message)

    await app(scope, receive, send)
    assert [one["type"] for one in sent].count("http.response.start") == 1
    start: dict[str, Any] = sent[0]
    return start


# --- hosts and origins ----------------------------------------------------------------------------


@pytest.mark.parametrize(
    "host",
    [
        "localhost",
        "localhost:8765",
        "LOCALHOST:8765",
        "127.0.0.1",
        "127.0.0.1:1",
        "[::1]",
        "[::1]:8765",
        "localhost:0",
    ],
)
def test_local_requests_need_no_token(host: str) -> None:
    auth = AuthHarness()
    assert auth.get_status(("host", host)) == 200
    assert auth.agents == [None]


@pytest.mark.parametrize(
    "host",
    [
        "evil.example",
        "evil.example:8765",
        "localhost.",
        "localhost.evil.example",
        "localhost:8765.evil.example",
        "localhost:8765:80",
        "localhost:",
        "localhost@evil.example",
        "evil.example@localhost",
        "evil.example#localhost",
        "evil.example\\@localhost",
        "localhost, evil.example",
        " localhost",
        "127.0.0.1.nip.io",
        "127.1",
        "2130706433",
        "0x7f000001",
        "0.0.0.0",
        "[::1",
        "::1",
        "[::1]evil.example",
        "[::ffff:127.0.0.1]",
        "[::1%lo]",
        "loc\xe4lhost",
        "localhost:\xb2",
        "localhost:999999",
        "",
        ":8765",
        "localhost" * 1000,
    ],
)
def test_unknown_hosts_are_rejected(host: str) -> None:
    auth = AuthHarness()
    for path in ("/", "/healthz", "/api/tools", "/mcp", "/page/index.js"):
        assert auth.get_status(("host", host), path=path) in {400, 403}, path
        assert auth.get_status(("host", host), BEARER, path=path) in {
            400,
            403,
        }, "a token does not help"
    assert auth.agents == []


def test_allowed_hosts_are_accepted_with_a_token() -> None:
    auth = AuthHarness(names=("tools.example.com",))
    assert auth.get_status(("host", "Tools.Example.com:8443"), BEARER) == 200
    assert auth.agents == ["ada"]
    assert auth.get_status(("host", "tools.example.com")) == 401, (
        "a local peer address is not sufficient"
    )
    assert auth.get_status(("host", "tools.example.com"), path="/healthz") == 200
    assert auth.get_status(("host", "sub.tools.example.com"), BEARER) == 403
    assert auth.get_status(LOCAL) == 200


def test_exactly_one_host_header_is_required() -> None:
    auth = AuthHarness()
    assert auth.get_status() == 400
    assert auth.get_status(LOCAL, LOCAL) == 400
    assert auth.get_status(LOCAL, ("host", "evil.example")) == 400


@pytest.mark.parametrize(
    "origin", ["http://localhost:8765", "https://localhost:8765", "HTTP://LocalHost:8765"]
)
def test_same_origin_requests_are_accepted(origin: str) -> None:
    assert (
        AuthHarness().get_status(
            LOCAL, ("origin", origin), ("sec-fetch-site", "same-origin"), method="POST"
        )
        == 200
    )


@pytest.mark.parametrize(
    "origin",
    [
        "null",
        "",
        "http://localhost",
        "http://localhost:3000",
        "http://127.0.0.1:8765",
        "http://evil.example",
        "http://localhost:8765.evil.example",
        "http://localhost:8765@evil.example",
        "http://evil.example@localhost:8765",
        "http://localhost:8765/",
        "http://[",
        "http://[::1",
        "chrome-extension://localhost:8765",
        "localhost:8765",
        "http://localhost:8765 http://evil.example",
        "http://localh\xf6st:8765",
    ],
)
@pytest.mark.parametrize("bind", [LOOPBACK, OPEN])
def test_cross_origin_requests_are_rejected_even_with_a_token(origin: str, bind: Bind) -> None:
    auth = AuthHarness(bind)
    for path in ("/", "/api/run", "/mcp", "/healthz"):
        assert auth.get_status(LOCAL, BEARER, ("origin", origin), path=path) == 403
    assert (
        auth.get_status(LOCAL, BEARER, ("origin", "http://localhost:8765"), ("origin", origin))
        == 403
    )
    assert auth.agents == []


def test_probes_check_no_token() -> None:
    """Its check may need the database, without which a server is still alive."""
    auth = AuthHarness()
    wrong = ("authorization", "Bearer ot_unknown")
    assert [auth.get_status(LOCAL, wrong, path=path) for path in ("/healthz", "/readyz", "/")] == [
        200,
        200,
        401,
    ]


@pytest.mark.parametrize("site", ["cross-site", "same-site", "odd", "CROSS-SITE"])
def test_cross_site_loads_are_rejected_and_links_are_accepted(site: str) -> None:
    auth, fetched = AuthHarness(), ("sec-fetch-site", site)
    assert auth.get_status(LOCAL, fetched, ("sec-fetch-mode", "no-cors")) == 403
    assert auth.get_status(LOCAL, fetched) == 403
    assert auth.get_status(LOCAL, ("sec-fetch-site", "same-origin"), fetched) == 403
    link = (LOCAL, fetched, ("sec-fetch-mode", "navigate"))
    assert auth.get_status(*link, ("sec-fetch-dest", "document"), path="/") == 200
    assert auth.get_status(*link, ("sec-fetch-dest", "iframe"), path="/") == 403
    assert (
        auth.get_status(*link, ("sec-fetch-dest", "document"), path="/api/run", method="POST")
        == 403
    )


def test_the_size_and_version_of_the_head_are_checked() -> None:
    auth = AuthHarness()
    assert auth.get_status(LOCAL, ("x", "x" * 10_000)) == 200
    assert auth.get_status(LOCAL, ("x", "x" * MAX_HEAD_BYTES)) == 413
    assert auth.get_status(LOCAL, *[("x", "y" * 8)] * (MAX_HEAD_BYTES // 8)) == 413
    scope = {
        "type": "http",
        "method": "GET",
        "path": "/",
        "headers": [(b"host", b"localhost")],
        "client": None,
    }
    assert (
        asyncio.run(_send(auth.middleware, {**scope, "http_version": "2.0"}, [b""]))["status"]
        == 400
    )
    assert (
        asyncio.run(
            _send(auth.middleware, {**scope, "query_string": b"x" * MAX_HEAD_BYTES}, [b""])
        )["status"]
        == 413
    )


# --- paths ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "path",
    [
        "//healthz",
        "/healthz/",
        "/healthz/../api/tools",
        "/page",
        "/page/../api/tools",
        "/page/./x",
        "/page/..",
        "/PAGE/x",
        "/readyz;/",
        "http://localhost/healthz",
        "localhost:8765",
        "*",
        "",
        "healthz",
    ],
)
def test_ambiguous_paths_are_rejected(path: str) -> None:
    auth = AuthHarness(OPEN)
    assert auth.get_status(LOCAL, path=path, client="192.0.2.1") in {400, 401}
    assert auth.agents == []


def test_public_paths_are_read_only_and_anonymous() -> None:
    auth = AuthHarness(OPEN)
    for path in ("/", "/healthz", "/readyz", "/favicon.ico", "/page/index.js"):
        assert auth.get_status(LOCAL, path=path, client="192.0.2.1") == 200
        assert auth.get_status(LOCAL, path=path, client="192.0.2.1", method="POST") == 401
    assert set(auth.agents) == {ANONYMOUS}
    assert (
        get_agent({"state": {"agent": ANONYMOUS}})
        == ANONYMOUS
        != get_agent({"state": {"agent": None}})
    )


# --- tokens ---------------------------------------------------------------------------------------


def test_other_addresses_need_a_token_even_from_the_local_machine() -> None:
    auth = AuthHarness(OPEN)
    for client in ("192.0.2.1", "127.0.0.1", "::1"):
        rejected = auth.send(LOCAL, client=client)
        assert rejected["status"] == 401
        assert (b"www-authenticate", b"Bearer") in rejected["headers"]
        assert auth.get_status(("host", "any.example"), BEARER, client=client) == 200
    assert auth.agents == ["ada"] * 3


@pytest.mark.parametrize(
    ("name", "value"),
    [
        *(
            (name, "192.0.2.1")
            for name in ("x-forwarded-for", "x-real-ip", "cf-connecting-ip", "true-client-ip")
        ),
        *(
            (name, "192.0.2.1")
            for name in (
                "x-client-ip",
                "fastly-client-ip",
                "x-cluster-client-ip",
                "x-original-host",
            )
        ),
        *(
            ("forwarded", "for=192.0.2.1;proto=https"),
            ("via", "1.1 squid"),
            ("x-forwarded-proto", "https"),
        ),
        *(
            ("x-envoy-external-address", "x"),
            ("cdn-loop", "cloudflare"),
            ("x-amzn-trace-id", "Root=1-2"),
            ("cf-ray", "8"),
        ),
        *(
            ("x-azure-ref", "0"),
            ("fly-region", "ams"),
            ("tailscale-user-login", "ada"),
            ("x-forwarded-user", "ada"),
        ),
        *(
            ("proxy-connection", "keep-alive"),
            ("max-forwards", "10"),
            ("remote-user", "ada"),
            ("x-varnish", "1"),
        ),
        *(
            ("onetool-outgoing", "1"),
            ("x-served-by", "cache-ams"),
            ("x-real", ""),
            ("x-proxyuser-ip", "x"),
        ),
        *(
            ("x-of-an-unknown-proxy", "192.0.2.1"),
            ("x-visitor", "192.0.2.1:4711"),
            ("x-visitor", "2001:db8::1"),
        ),
        *(
            ("x-visitor", "[2001:db8::1]:443"),
            ("x-visitor", '"192.0.2.1"'),
            ("x-visitor", "127.0.0.1, 192.0.2.1"),
        ),
        *(
            ("x-visitor", "ip=192.0.2.1"),
            ("x-visitor", "192.0.2.1 (client)"),
            ("x-visitor", "for 192.0.2.1."),
        ),
        *(
            ("x-visitor", "2001:db8::1%eth0"),
            ("x-visitor", "from [2001:db8::1]"),
            ("surrogate-capability", "a"),
        ),
        *(
            ("x-visitor", "for=192.0.2.1"),
            ("x-visitor", " 127.0.0.1 "),
            ("x-visitor", "::ffff:192.0.2.1"),
        ),
    ],
)
def test_forwarded_requests_need_a_token(name: str, value: str) -> None:
    auth = AuthHarness()
    assert auth.get_status(LOCAL, (name, value)) == 401
    assert auth.get_status(LOCAL, (name, value), path="/healthz") == 200
    assert auth.get_status(LOCAL, BEARER, (name, value)) == 200


def test_headers_of_clients_do_not_count_as_forwarded() -> None:
    usual = {
        "user-agent": (
            "Mozilla/5.0 (X11; Linux x86_64) AppleWebKit/537.36 (KHTML, like Gecko) 1.2.3.4"
            " Chrome/120.0.0.0"
        ),
        "accept": "text/html,application/xhtml+xml;q=0.9,*/*;q=0.8",
        "accept-language": "en-US,en;q=0.5",
        "sec-ch-ua-full-version": '"120.0.6099.71"',
        "content-length": "0",
        "dnt": "1",
        "mcp-session-id": "0f" * 16,
        "mcp-protocol-version": "2025-11-25",
        "last-event-id": "12:3",
        "traceparent": "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01",
        "x-request-id": "0192f0c1-7a10-7c3e-9d2b-3f5a6b7c8d9e",
        "x-requested-with": "XMLHttpRequest",
        "x-client-name": "editor",
        "if-modified-since": "Wed, 21 Oct 2015 07:28:00 GMT",
        "priority": "u=1, i",
        "sec-ch-ua-full-version-list": '"Chromium";v="120.0.0.0"',
        "referer": "http://127.0.0.1:8765/",
        "cookie": "last=127.0.0.1",
        "if-none-match": '"1.2.3.4"',
        "x-client-version": "editor/1.2.3.4",
        "x-current-url": "http://127.0.0.1:8765/admin",
        "x-started": "12:30:45",
        "x-symbol": "std::cafe",
    }
    assert AuthHarness().get_status(LOCAL, *usual.items()) == 200


def test_a_body_with_two_lengths_is_rejected_first() -> None:
    auth = AuthHarness()
    both = (("content-length", "4"), ("transfer-encoding", "chunked"))
    assert auth.get_status(("host", "evil.example"), *both) == 400
    assert auth.get_status(LOCAL, ("authorization", "Bearer wrong"), *both) == 400


@pytest.mark.parametrize("given", [f"bearer {RIGHT}", f"BEARER   {RIGHT}  ", f"Bearer {RIGHT}"])
def test_the_authorization_scheme_is_case_insensitive(given: str) -> None:
    auth = AuthHarness()
    assert auth.get_status(LOCAL, ("authorization", given)) == 200
    assert auth.agents == ["ada"]


@pytest.mark.parametrize(
    "given",
    [
        "",
        "Bearer",
        "Bearer ",
        RIGHT,
        f"Basic {RIGHT}",
        f"Bearer\t{RIGHT}",
        f"Bearer {RIGHT}x",
        f"Bearer {RIGHT.upper()}",
        f"Bearer {RIGHT},{RIGHT}",
        f"Bearer {hashlib.sha256(RIGHT.encode()).hexdigest()}",
        "Bearer \xff\xfe",
        "Bearer " + "x" * 10_000,
    ],
)
def test_a_wrong_token_is_rejected_even_if_none_is_needed(given: str) -> None:
    auth = AuthHarness()
    assert auth.get_status(LOCAL, ("authorization", given)) == 401
    assert auth.get_status(LOCAL, BEARER, BEARER) == 401
    assert auth.agents == []


def test_a_token_with_an_empty_variable_matches_nothing() -> None:
    keys = TokenSet(
        [Token(name="t", token_env="NONE"), Token(name="u", token_env="EMPTY")], {"EMPTY": ""}
    )
    assert not keys
    assert [keys.find(hash_token(token)) for token in ("", "None", "x")] == [None] * 3
    assert new_token() != new_token()


# --- scopes and sessions --------------------------------------------------------------------------


def test_a_token_of_scope_approve_reads_and_approves_only() -> None:
    auth = AuthHarness()
    approver = ("authorization", "Bearer ot_approve")
    assert auth.get_status(LOCAL, approver, path="/api/runs") == 200
    assert auth.get_status(LOCAL, approver, path="/api/approvals/r_1", method="POST") == 200
    for method, path in (
        ("POST", "/api/run"),
        ("POST", "/mcp"),
        ("GET", "/mcp"),
        ("PATCH", "/api/tools/a.b"),
    ):
        assert auth.get_status(LOCAL, approver, path=path, method=method) == 403, path
    assert auth.scopes == ["approve"] * 2
    for scope in ("use", "admin", "owner"):
        bearer = ("authorization", f"Bearer ot_{scope}")
        assert auth.get_status(LOCAL, bearer, path="/api/run", method="POST") == 200
    assert [
        includes_scope(scope, "approve")
        for scope in ("", "use", "approve", "admin", "owner", "root")
    ] == [*(False, False, True, True, True, False)]


def test_a_session_needs_its_cookie_and_its_header(tmp_path: Path) -> None:
    now = 0.0
    sessions = open_sessions(tmp_path, lambda: now)
    auth, code = AuthHarness(sessions=sessions), create_code(tmp_path)
    assert sessions.open("wrong") is None
    opened = sessions.open(code)
    assert opened is not None
    assert sessions.open(code) is None, "a code is used once"
    header, csrf = opened[0], opened[1].csrf
    assert "HttpOnly" in header
    assert "SameSite=Strict" in header
    assert "Secure" not in header
    secure = sessions.open(create_code(tmp_path), is_secure=True)
    assert secure is not None
    assert secure[0].endswith("; SameSite=Strict; Secure")
    assert sessions.begin_sign_in({}, is_secure=True)[0].endswith("; SameSite=Lax; Secure")
    assert sessions.open(create_code(tmp_path), is_local=False) is None, "a code of this machine"
    cookie = ("cookie", f"other=1; {header.partition(';')[0]}")
    for fields in (
        [],
        [cookie],
        [(CSRF_HEADER, csrf)],
        [cookie, (CSRF_HEADER, "wrong")],
        [cookie, (CSRF_HEADER, csrf)],
    ):
        assert auth.get_status(LOCAL, *fields) == 200
    now = SESSION_SECONDS
    assert auth.get_status(LOCAL, cookie, (CSRF_HEADER, csrf)) == 200
    assert auth.scopes == [None, None, None, None, "owner", None]
    assert auth.get_status(("host", "evil.example"), cookie, (CSRF_HEADER, csrf)) == 403
    assert (
        auth.get_status(LOCAL, cookie, (CSRF_HEADER, csrf), ("x-forwarded-for", "192.0.2.1")) == 401
    )


def test_a_code_expires(tmp_path: Path) -> None:
    code = create_code(tmp_path)
    (file,) = (tmp_path / "run").glob("*.code")
    assert file.stat().st_mode & 0o77 == 0
    assert code not in file.name
    os.utime(file, (1, 1))
    assert open_sessions(tmp_path).open(code) is None
    create_code(tmp_path)
    assert len(list((tmp_path / "run").glob("*.code"))) == 1


# --- rate limits ----------------------------------------------------------------------------------


def _guess(auth: AuthHarness, count: int, client: str = "192.0.2.1") -> list[int]:
    wrong = [("authorization", f"Bearer wrong-{number}") for number in range(count)]
    return [auth.get_status(LOCAL, one, client=client) for one in wrong]


def test_failed_attempts_are_rate_limited_even_if_the_next_is_correct() -> None:
    auth = AuthHarness(OPEN)
    assert _guess(auth, MAX_FAILURES + 2) == [401] * MAX_FAILURES + [429] * 2
    rejected = auth.send(LOCAL, BEARER, client="192.0.2.1")
    assert rejected["status"] == 429
    assert (b"retry-after", b"60") in rejected["headers"]
    assert auth.get_status(LOCAL, BEARER, client="192.0.2.2") == 200, (
        "other addresses are not limited"
    )
    auth.now += WINDOW_SECONDS + 1
    assert auth.get_status(LOCAL, BEARER, client="192.0.2.1") == 200


def test_failed_attempts_do_not_lock_out_known_tokens() -> None:
    auth = AuthHarness()
    assert auth.get_status(LOCAL, BEARER) == 200
    _guess(auth, MAX_FAILURES + 1, "127.0.0.1")
    assert auth.get_status(LOCAL, BEARER) == 200
    assert auth.get_status(LOCAL) == 200, "local requests need no token"
    assert _guess(auth, 1, "127.0.0.1") == [429]


@pytest.mark.parametrize(
    ("peer", "forwarded", "address"),
    [
        ("127.0.0.1", [], "127.0.0.1"),
        ("127.0.0.1", ["192.0.2.7"], "192.0.2.7"),
        ("::ffff:127.0.0.1", ["192.0.2.7:5000"], "192.0.2.7"),
        ("127.0.0.1", ["[2001:db8::1]:443"], "2001:db8::1"),
        ("127.0.0.1", ["198.51.100.9, 192.0.2.7"], "192.0.2.7"),
        ("127.0.0.1", ["198.51.100.9", "192.0.2.7, 10.1.2.3"], "192.0.2.7"),
        ("127.0.0.1", ["10.1.2.3"], "10.1.2.3"),
        ("127.0.0.1", ["192.0.2.7, unknown"], "127.0.0.1"),
        ("127.0.0.1", [""], "127.0.0.1"),
        ("192.0.2.1", ["198.51.100.9"], "192.0.2.1"),
        ("", ["198.51.100.9"], ""),
    ],
)
def test_only_trusted_proxies_name_the_address_of_a_client(
    peer: str, forwarded: list[str], address: str
) -> None:
    headers = Headers(raw=[(b"x-forwarded-for", text.encode()) for text in forwarded])
    assert find_client_address(headers, peer, ["127.0.0.1", "10.0.0.0/8"]) == address
    assert find_client_address(headers, peer, []) == peer


@pytest.mark.parametrize("text", ["*", "localhost", "10.0.0.1/8", "10.0.0.0/33"])
def test_a_trusted_proxy_is_an_address_or_a_network(text: str) -> None:
    with pytest.raises(ValidationError, match="must be an IP address or a network"):
        Auth(trusted_proxies=(text,))


def test_addresses_of_one_ipv6_network_share_a_limit() -> None:
    auth = AuthHarness(OPEN)
    for number in range(MAX_FAILURES):
        _guess(auth, 1, f"2001:db8::{number:x}")
    assert _guess(auth, 1, "2001:db8::ffff") == [429]
    assert _guess(auth, 1, "2001:db8:0:1::1") == [401]
    assert _guess(auth, 1, "fe80::1%eth0") == [401]


def test_recorded_failures_are_bounded() -> None:
    counters = Counters(lambda: 0.0)
    failures = AuthThrottle(lambda: counters, lambda: 0.0)

    async def record() -> None:
        for number in range(MAX_NAMES // 2 + 100):
            await failures.record_failure(
                f"10.{number >> 16}.{number >> 8 & 255}.{number & 255}", "x"
            )
            await failures.record_success(
                f"10.{number >> 16}.{number >> 8 & 255}.{number & 255}", f"{number}"
            )

    asyncio.run(record())
    assert len(counters._times) == MAX_NAMES
    assert len(failures._accepted) == MAX_ACCEPTED


# --- bodies and responses -------------------------------------------------------------------------


def test_a_body_is_limited_by_content_length_and_actual_size() -> None:
    auth, piece = AuthHarness(), b"x" * (1 << 20)
    sent: dict[str, Any] = {"method": "POST"}
    assert auth.get_status(LOCAL, ("content-length", str(MAX_BODY_BYTES + 1)), **sent) == 413
    assert auth.get_status(LOCAL, ("content-length", "9" * 9000), **sent) == 413
    assert auth.get_status(LOCAL, body=[piece] * 4, **sent) == 200
    assert auth.get_status(LOCAL, body=[*[piece] * 4, b"x", *[piece] * 100], **sent) == 413
    assert auth.get_status(LOCAL, body=[piece] * 64, path="/api/import", **sent) == 200
    assert (
        auth.get_status(
            LOCAL, ("content-length", str(MAX_IMPORT_BYTES + 1)), path="/api/import", **sent
        )
        == 413
    )
    assert (
        auth.get_status(LOCAL, ("content-length", "1"), ("transfer-encoding", "chunked"), **sent)
        == 400
    )
    assert auth.middleware._body_limiter.held_bytes == 0


def test_the_total_size_of_open_bodies_is_limited() -> None:
    async def whole() -> None:
        intake = BodyLimiter(max_bytes=100)

        async def piece() -> dict[str, Any]:
            return {"type": "http.request", "body": b"x" * 60, "more_body": False}

        first, second = intake.body("/", piece), intake.body("/", piece)
        await first()
        with pytest.raises(ApiError) as rejected:
            await second()
        assert rejected.value.code == "busy"
        first.end()
        second.end()
        await intake.body("/", piece)()
        assert intake.held_bytes == 60

    asyncio.run(whole())


@pytest.mark.parametrize("fields", [(LOCAL,), (), (LOCAL, ("authorization", "Bearer wrong"))])
def test_every_response_has_security_headers(fields: Fields) -> None:
    headers = AuthHarness().send(*fields)["headers"]
    for name, value in SECURITY_HEADERS.items():
        assert [each for each in headers if each[0] == name.encode()] == [
            (name.encode(), value.encode())
        ]
    assert (b"cache-control", b"no-store") in headers
    assert not any(name.startswith(b"access-control-") for name, _ in headers)


def test_an_error_after_the_response_began_sends_no_second_response() -> None:
    async def late(_scope: Scope, _receive: Receive, send: Send) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": []})
        raise ApiError("too_large", "late")

    scope = {
        "type": "http",
        "method": "GET",
        "path": "/",
        "headers": [(b"host", b"localhost")],
        "client": None,
    }
    middleware = AuthMiddleware(
        late, LOOPBACK, lambda: TokenSet([], {}), throttle=make_throttle(time.time)
    )
    assert asyncio.run(_send(middleware, scope, [b""]))["status"] == 200


# --- request ids ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("fields", "kept"),
    [
        ([("x-request-id", "my-id_1.2")], "my-id_1.2"),
        ([("x-request-id", "a b")], None),
        ([("x-request-id", "x" * 65)], None),
        ([("x-request-id", "é")], None),
        ([("x-request-id", 'a"\\')], None),
        ([("x-request-id", "a"), ("x-request-id", "b")], None),
        ([("traceparent", f"00-{'ab' * 16}-{'cd' * 8}-01")], "ab" * 16),
        ([("traceparent", f"00-{'00' * 16}-{'cd' * 8}-01")], None),
        ([("traceparent", "nonsense")], None),
        ([("x-request-id", "mine"), ("traceparent", f"00-{'ab' * 16}-{'cd' * 8}-01")], "mine"),
        ([], None),
    ],
)
def test_a_valid_request_id_is_kept_and_others_are_replaced(
    fields: Fields, kept: str | None
) -> None:
    headers = [(name.encode(), value.encode("latin-1")) for name, value in (LOCAL, *fields)]
    scope = {"type": "http", "method": "GET", "path": "/", "headers": headers, "client": None}
    answer = asyncio.run(_send(AuthHarness().middleware, scope, [b""]))
    (given,) = [value.decode() for name, value in answer["headers"] if name == b"x-request-id"]
    assert given == kept if kept else len(given) == 16
