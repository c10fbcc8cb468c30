"""Hostile authorization servers, callbacks and token responses: each is rejected, with a reason and
without a leak.
"""

import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import anyio
import pytest
from tests.authorization_server import (
    AuthorizationServer,
    Knobs,
    authorization_server,
    find_callback,
)
from tests.oauth_support import call_as, open_signed_app, sign_in
from tests.support import App

from onetool.errors import NetworkError, SignInRequired, ToolError
from onetool.net import ANY_HOST, Net
from onetool.net.oauth import guarded_http
from onetool.net.oauth.credential import Credential, Identity, SignInTarget, TokenRejected
from onetool.net.oauth.discovery import ServerMetadata
from onetool.net.oauth.guarded_http import GuardedHttp
from onetool.net.oauth.pending import PENDING_SECONDS, PendingSignIns, parse_callback
from onetool.net.oauth.sign_ins import identify
from onetool.net.oauth.token_requests import TokenRequests
from onetool.settings.access import OAuth

REDIRECT = "http://127.0.0.1:9/callback"


@pytest.fixture(scope="module")
def shared_server() -> Iterator[AuthorizationServer]:
    with authorization_server() as running:
        yield running


@pytest.fixture
def server(shared_server: AuthorizationServer) -> AuthorizationServer:
    shared_server.knobs = Knobs()
    shared_server.counts.clear()
    return shared_server


@pytest.fixture
def app(tmp_path: Path, server: AuthorizationServer) -> Iterator[App]:
    settings = {"servers": {"gh": {"url": server.url, "auth": "oauth"}}}
    with open_signed_app(tmp_path, settings) as opened:
        yield opened


def begin(app: App) -> str:
    async def work() -> str:
        identity = identify(await app.onetool.sign_ins.find_target("gh"))
        return (await app.onetool.sign_ins.begin(identity, REDIRECT)).url

    return app.portal.call(work)


async def find_target(app: App) -> SignInTarget:
    return await app.onetool.sign_ins.find_target("gh")


def finish(app: App, url: str) -> Any:
    return app.portal.call(app.onetool.sign_ins.finish, parse_callback(url))


FOREIGN = "http://203.0.113.7"
DOCUMENTS = {
    "an issuer that is not the expected one": (
        "metadata",
        {"issuer": "https://evil.example"},
        "issuer is",
    ),
    "no issuer": ("metadata", {"issuer": None}, "issuer is missing"),
    "no token endpoint": ("metadata", {"token_endpoint": None}, "token_endpoint is missing"),
    "no authorization endpoint": (
        "metadata",
        {"authorization_endpoint": None},
        "authorization_endpoint is missing",
    ),
    "no PKCE": (
        "metadata",
        {"code_challenge_methods_supported": None},
        "code_challenge_methods_supported is missing",
    ),
    "plain PKCE": (
        "metadata",
        {"code_challenge_methods_supported": ["plain"]},
        "does not contain S256",
    ),
    "a token endpoint over http": ("metadata", {"token_endpoint": f"{FOREIGN}/token"}, "not https"),
    "a registration over http": (
        "metadata",
        {"registration_endpoint": f"{FOREIGN}/register"},
        "not https",
    ),
    "a browser URL over http": (
        "metadata",
        {"authorization_endpoint": f"{FOREIGN}/authorize"},
        "not https",
    ),
    "a browser URL of another scheme": (
        "metadata",
        {"authorization_endpoint": "javascript:alert(1)"},
        "not a valid URL",
    ),
    "a URL with a password": (
        "metadata",
        {"token_endpoint": "https://a:b@example.com/t"},
        "not a valid URL",
    ),
    "a list as endpoint": ("metadata", {"token_endpoint": ["x"]}, "token_endpoint is missing"),
    "a string as scopes": (
        "metadata",
        {"scopes_supported": "read"},
        "scopes_supported is missing or invalid",
    ),
    "a revocation over http": (
        "metadata",
        {"revocation_endpoint": f"{FOREIGN}/revoke"},
        "not https",
    ),
    "a number as resource": (
        "resource_metadata",
        {"resource": 7},
        "resource is missing or invalid",
    ),
    "another resource": (
        "resource_metadata",
        {"resource": "https://evil.example/mcp"},
        "resource is",
    ),
    "no resource": ("resource_metadata", {"resource": None}, "resource is missing"),
    "no servers": (
        "resource_metadata",
        {"authorization_servers": None},
        "authorization_servers is missing",
    ),
    "a server over http": ("resource_metadata", {"authorization_servers": [FOREIGN]}, "not https"),
}


@pytest.mark.parametrize("case", DOCUMENTS)
def test_documents_are_checked(app: App, server: AuthorizationServer, case: str) -> None:
    knob, value, reason = DOCUMENTS[case]
    setattr(server.knobs, knob, value)
    with pytest.raises(NetworkError, match=reason):
        begin(app)
    assert server.counts["authorize"] == server.counts["register"] == 0


def test_redirects_sizes_and_slow_documents(
    app: App, server: AuthorizationServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    server.knobs.redirects_metadata_to = f"{server.issuer}/.well-known/oauth-authorization-server"
    assert begin(app).startswith(
        f"{server.origin}/authorize"
    )  # no redirect was followed: its own endpoints are used
    assert server.counts["server_metadata"] == 1
    server.knobs.redirects_metadata_to = ""
    server.knobs.padding_bytes = guarded_http.MAX_DOCUMENT_BYTES
    with pytest.raises(NetworkError, match="larger than"):
        begin(app)
    server.knobs.padding_bytes, server.knobs.delay_seconds = 0, 30
    monkeypatch.setattr(guarded_http, "TIMEOUT_SECONDS", 0.5)
    started = time.monotonic()
    with pytest.raises(ToolError, match="timed out"):
        begin(app)
    assert time.monotonic() - started < 10


def test_addresses_that_a_public_server_must_not_name() -> None:
    http = GuardedHttp(Net(ANY_HOST), "https://mcp.example.com/mcp")
    for url in (
        "http://127.0.0.1/token",
        "http://localhost:8080/token",
        "http://mcp.example.com/token",
    ):
        with pytest.raises(NetworkError, match="not https"):
            http.check_url(url, "token_endpoint")
    for url in (
        "https://127.0.0.1/token",
        "https://169.254.169.254/latest",
        "https://[::1]/",
        "https://10.0.0.1/",
    ):
        with pytest.raises(NetworkError, match="not public"):
            anyio.run(http.get, url, "token_endpoint")
    with pytest.raises(NetworkError, match="plain http"):
        GuardedHttp(Net(ANY_HOST), "http://mcp.example.com/mcp")


def test_a_callback_is_bound_to_its_sign_in(app: App) -> None:
    first, second = begin(app), begin(app)
    callback = find_callback(first)
    with pytest.raises(ToolError, match="unknown"):
        finish(app, callback.replace("state=", "state=x"))
    with pytest.raises(ToolError, match="not a callback URL"):
        finish(app, "http://127.0.0.1:9/callback?code=1")
    finish(app, callback)
    with pytest.raises(ToolError, match="was used before"):
        finish(app, callback)
    denied = f"{REDIRECT}?error=access_denied&state={find_callback(second).split('state=')[1]}"
    with pytest.raises(ToolError, match="access_denied"):
        finish(app, denied)


@pytest.mark.parametrize("iss", ["https://evil.example", None])
def test_the_issuer_of_the_answer_is_checked(
    app: App, server: AuthorizationServer, iss: str | None
) -> None:
    server.knobs.iss = iss
    callback = find_callback(begin(app))
    with pytest.raises(ToolError, match="iss"):
        finish(app, callback)
    assert server.counts["token authorization_code"] == 0  # the code was not sent anywhere


def test_pending_sign_ins_expire() -> None:
    now = [0.0]
    pending = PendingSignIns(lambda: now[0])
    target = SignInTarget("gh", "https://example.com/mcp", OAuth())
    metadata = ServerMetadata.model_validate({"issuer": "https://i"})
    waiting = pending.add(Identity(target), Credential("https://i", "https://i/t", "c"), metadata)
    now[0] = PENDING_SECONDS
    with pytest.raises(ToolError, match="expired"):
        pending.take(waiting.state)
    assert waiting.state not in repr(waiting)
    assert waiting.verifier not in repr(waiting)


TOKEN_RESPONSES: dict[str, dict[str, Any]] = {
    "no token": {"access_token": None},
    "a header in the token": {"access_token": "a\r\nX-Evil: 1"},
    "a number": {"access_token": 7},
    "another type": {"token_type": "mac"},
}


@pytest.mark.parametrize("case", TOKEN_RESPONSES)
def test_token_responses_are_checked(app: App, server: AuthorizationServer, case: str) -> None:
    server.knobs.token_response = TOKEN_RESPONSES[case]
    callback = find_callback(begin(app))
    with pytest.raises(NetworkError, match="cannot use the answer"):
        finish(app, callback)


@pytest.mark.parametrize("seconds", [-1, "60", "never", 1e400, None, True])
def test_strange_lifetimes_are_accepted(
    app: App, server: AuthorizationServer, seconds: object
) -> None:
    server.knobs.token_response = {"expires_in": seconds if seconds != 1e400 else 10**300}
    sign_in(app)
    assert call_as(app, "gh.whoami") == "ada"


def test_another_issuer_needs_a_new_sign_in(tmp_path: Path, server: AuthorizationServer) -> None:
    settings = {"servers": {"gh": {"url": server.url, "auth": "oauth"}}}
    with open_signed_app(tmp_path, settings) as app:
        sign_in(app)
        assert call_as(app, "gh.whoami") == "ada"
    with authorization_server() as other:
        server.knobs.resource_metadata = {"authorization_servers": [other.issuer]}
        server.expire_access_tokens()
        for family in server.families:
            family.is_revoked = True
        with open_signed_app(tmp_path, settings) as app:
            with pytest.raises(SignInRequired):
                call_as(app, "gh.whoami")
            assert (
                other.counts["token refresh_token"] == 0
            )  # the old refresh token is never sent to another issuer
            url = begin(app)
            assert url.startswith(other.issuer)
            finish(app, find_callback(url))
            state = app.portal.call(
                app.onetool.sign_ins.describe, identify(app.portal.call(find_target, app))
            )
            assert state["issuer"] == other.issuer
            assert len(app.onetool.state.credentials.list_keys()) == 1


def test_a_client_secret_is_never_sent_to_the_issuer_of_an_older_sign_in(
    server: AuthorizationServer,
) -> None:
    settings = OAuth(client_id="app", client_secret="hush-hush", issuer="https://id.example.com")
    old = Credential(
        server.issuer, f"{server.issuer}/token", "app", auth_method="client_secret_post"
    )
    old = replace(old, refresh_token="r", revocation_endpoint=f"{server.issuer}/revoke")
    requests = TokenRequests(GuardedHttp(Net(ANY_HOST), server.url), settings)
    for send in (requests.refresh, requests.revoke):
        with pytest.raises(
            TokenRejected, match=r"the settings name the issuer https://id\.example\.com"
        ):
            anyio.run(send, old)
    assert not server.counts


def test_a_server_cannot_name_another_issuer_than_the_settings(
    tmp_path: Path, server: AuthorizationServer
) -> None:
    auth = {"client_id": "app", "client_secret": "hush-hush", "issuer": server.issuer}
    settings = {"servers": {"gh": {"url": server.url, "auth": auth}}}
    with authorization_server() as other, open_signed_app(tmp_path, settings) as app:
        server.knobs.resource_metadata = {"authorization_servers": [other.issuer]}
        with pytest.raises(NetworkError, match="gh names the authorization server"):
            begin(app)
        assert not other.counts


def test_a_token_is_bound_to_the_url_of_the_server(
    tmp_path: Path, server: AuthorizationServer
) -> None:
    with open_signed_app(
        tmp_path, {"servers": {"gh": {"url": server.url, "auth": "oauth"}}}
    ) as app:
        sign_in(app)
    with authorization_server() as other:
        settings = {"servers": {"gh": {"url": other.url, "auth": "oauth"}}}
        with open_signed_app(tmp_path, settings) as app, pytest.raises(SignInRequired):
            call_as(app, "gh.whoami")
        assert other.counts["mcp"] == 0  # nothing was sent at all
