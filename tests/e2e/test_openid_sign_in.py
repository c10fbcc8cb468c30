"""Sign-in with a certified OpenID provider: JWTs over REST and MCP, an MCP client, and the admin UI
in a browser.
"""

import asyncio
import contextlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any, Final
from urllib.parse import parse_qsl, urlsplit

import httpx2
import pytest
from mcp import Client
from mcp.client.auth import OAuthClientProvider
from mcp.client.streamable_http import streamable_http_client
from mcp.shared.auth import (
    AuthorizationCodeResult,
    OAuthClientInformationFull,
    OAuthClientMetadata,
    OAuthToken,
)
from playwright.sync_api import Browser, Page, expect
from pydantic import AnyUrl
from tests.oidc_support import Provider, serve_provider
from tests.openapi_support import free_port
from tests.rest_support import ServedApp, serve_app
from tests.support import eventually, get_texts

pytestmark = pytest.mark.slow
FORWARDED: Final = {
    "X-Forwarded-For": "192.0.2.1"
}  # so that requests of this machine need a credential
AGENTS: Final = {"default": {}, "engineer": {"permissions": ["read", "network"]}, "lead": {}}
SECRET: Final = "s3cr3t-of-the-client"


@dataclass(frozen=True)
class Setup:
    app: ServedApp
    provider: Provider
    url: str
    settings: dict[str, Any]

    @property
    def mcp(self) -> str:
        return f"{self.url}/mcp"

    @contextlib.contextmanager
    def without_issuers(self, group: str = "") -> Iterator[None]:
        """Remove the issuers that have an agent for this group, or all."""
        auth = self.settings["auth"]
        left = [entry for entry in auth["issuers"] if group and group not in entry["agents"]]
        self.app.change({**self.settings, "auth": {**auth, "issuers": left}})
        try:
            yield
        finally:
            self.app.change(self.settings)


@pytest.fixture(scope="module")
def setup(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Setup]:
    folder, port = tmp_path_factory.mktemp("setup"), free_port()
    url = f"http://127.0.0.1:{port}"
    with serve_provider(folder, f"{url}/auth/callback") as provider:
        table = {"issuer": provider.url, "audience": f"{url}/mcp", "agent_claim": "groups"}
        client = {"client_id": "onetool", "client_secret": SECRET}
        leads = {**table, **client, "agents": {"leads": "lead"}, "scope": "approve"}
        engineers = {**table, **client, "agents": {"engineers": "engineer"}}
        robots = {**table, "agent_claim": "sub", "agents": {"robot": "engineer"}}
        settings = {
            "agents": AGENTS,
            "auth": {"issuers": [leads, engineers, robots], "public_url": url},
        }
        with serve_app(folder, settings, port=port) as app:
            yield Setup(app, provider, url, settings)


# --- programs -------------------------------------------------------------------------------------


def test_a_program_uses_its_jwt_over_rest(setup: Setup) -> None:
    asked = {"grant_type": "client_credentials", "resource": setup.mcp, "scope": "openid"}
    credentials = ("robot", "s3cr3t-of-the-robot")
    answer = httpx2.post(
        f"{setup.provider.url}/token", data=asked, auth=credentials, trust_env=False
    )
    token = answer.json()["access_token"]
    headers = {**FORWARDED, "Authorization": f"Bearer {token}"}
    ran = setup.app.rest.client.post("/api/run", json={"command": "6 * 7"}, headers=headers).json()
    assert ran["blocks"] == ["42"]
    (run,) = setup.app.rest.client.get("/api/runs", headers=headers).json()["runs"]
    assert run["actor"] == f"subject robot ({setup.provider.url.removeprefix('http://')})"


@dataclass
class MemoryStorage:
    """The storage of the SDK's client."""

    tokens: OAuthToken | None = None
    client: OAuthClientInformationFull | None = None
    visited: list[str] = field(default_factory=list)

    async def get_tokens(self) -> OAuthToken | None:
        return self.tokens

    async def set_tokens(self, tokens: OAuthToken) -> None:
        self.tokens = tokens

    async def get_client_info(self) -> OAuthClientInformationFull | None:
        return self.client

    async def set_client_info(self, client_info: OAuthClientInformationFull) -> None:
        self.client = client_info


def test_an_mcp_client_signs_in_by_itself(setup: Setup) -> None:
    storage = MemoryStorage()
    assert asyncio.run(_run_with_sdk(setup, storage, "alice")) == ["42"]
    assert len(storage.visited) == 1
    assert f"resource={setup.mcp.replace(':', '%3A').replace('/', '%2F')}" in storage.visited[0]
    assert storage.client is not None, "it registered itself"
    headers = {
        **FORWARDED,
        "Authorization": f"Bearer {storage.tokens.access_token if storage.tokens else ''}",
    }
    caller = setup.app.rest.client.get("/api/session", headers=headers).json()
    assert (caller["agent"], caller["scope"]) == ("engineer", "use")
    actors = {
        run["actor"].partition(" (")[0]
        for run in setup.app.rest.client.get("/api/runs").json()["runs"]
    }
    assert "subject alice" in actors


async def _run_with_sdk(setup: Setup, storage: MemoryStorage, name: str) -> list[str]:
    """Connect with the SDK's OAuth client, which discovers everything from the first 401, and run
    code.
    """
    callback: dict[str, str] = {}

    async def open_browser(url: str) -> None:
        storage.visited.append(url)
        target = await asyncio.to_thread(setup.provider.sign_in, url, name)
        callback.update(parse_qsl(urlsplit(target).query))

    async def wait_for_callback() -> AuthorizationCodeResult:
        return AuthorizationCodeResult(
            code=callback["code"], state=callback["state"], iss=callback.get("iss")
        )

    metadata = OAuthClientMetadata(
        client_name="a test",
        redirect_uris=[AnyUrl("http://127.0.0.1:1/callback")],
        application_type="native",
    )
    oauth = OAuthClientProvider(
        setup.mcp,
        metadata,
        storage,
        redirect_handler=open_browser,
        callback_handler=wait_for_callback,
    )
    async with (
        httpx2.AsyncClient(auth=oauth, headers=FORWARDED, trust_env=False, timeout=30) as http,
        Client(streamable_http_client(setup.mcp, http_client=http)) as client,
    ):
        return get_texts(await client.call_tool("run", {"command": "6 * 7"}))


def test_the_metadata_names_the_resource_and_the_issuer(setup: Setup) -> None:
    client = setup.app.rest.client
    rejected = client.get("/mcp", headers=FORWARDED)
    assert rejected.status_code == 401
    document = f"{setup.url}/.well-known/oauth-protected-resource"
    assert rejected.headers["www-authenticate"] == f'Bearer resource_metadata="{document}/mcp"'
    assert (
        client.get("/api/runs", headers=FORWARDED)
        .headers["www-authenticate"]
        .endswith(f'{document}"')
    )
    for path, resource in ((document, setup.url), (f"{document}/mcp", setup.mcp)):
        found = client.get(path, headers=FORWARDED).json()
        assert (found["resource"], found["authorization_servers"]) == (
            resource,
            [setup.provider.url],
        )


# --- the admin UI ---------------------------------------------------------------------------------


@contextlib.contextmanager
def open_browser(browser: Browser) -> Iterator[Page]:
    """Open a tab whose requests look forwarded, so that they need a credential."""
    context = browser.new_context(extra_http_headers=FORWARDED)
    context.route("**/fonts.googleapis.com/**", lambda route: route.abort())
    try:
        yield context.new_page()
    finally:
        context.close()


def sign_in(page: Page, setup: Setup, name: str) -> None:
    page.goto(setup.url)
    page.get_by_role("link", name="Sign in with 127.0.0.1").click()
    page.locator("input[name=login]").fill(name)
    page.locator("input[name=password]").fill("x")
    page.locator("button[type=submit]").click()
    page.locator("input[name=prompt][value=consent]").wait_for(state="attached")
    page.locator("button[type=submit]").click()


def test_a_person_signs_in_to_the_admin_ui_and_out(browser: Browser, setup: Setup) -> None:
    with open_browser(browser) as page:
        page.goto(f"{setup.url}/#/sign-in/no-agent")
        expect(page.locator("#notices")).to_contain_text("Your account has no agent on this server")
        sign_in(page, setup, "alice")
        account = page.get_by_role("button", name="Sign out")
        alice = f"Signed in as subject alice ({setup.provider.url.removeprefix('http://')})"
        expect(account).to_have_attribute("title", alice)
        expect(page.locator("ot-tools")).to_be_visible()
        assert page.get_by_role("dialog").count() == 0
        assert "code" not in page.url
        session = next(each for each in page.context.cookies() if each["sameSite"] == "Strict")
        assert session["httpOnly"]
        assert page.evaluate("document.cookie") == ""
        csrf = page.evaluate("JSON.parse(localStorage.getItem('onetool.csrf'))")
        fields = {**FORWARDED, "cookie": f"{session['name']}={session['value']}"}
        client = setup.app.rest.client
        assert client.get("/api/runs", headers=fields).status_code == 401, (
            "the cookie alone proves nothing"
        )
        fields["x-onetool-csrf"] = csrf
        assert client.get("/api/session", headers=fields).json()["agent"] == "engineer"
        assert client.get("/api/approvals", headers=fields).status_code == 403, "the scope is use"
        page.reload()
        account.click()
        expect(page.get_by_role("dialog")).to_contain_text("This server needs a token")
        assert client.get("/api/runs", headers=fields).status_code == 401


# --- attacks on the sign-in -----------------------------------------------------------------------


def start(client: httpx2.Client) -> dict[str, str]:
    answer = client.get("/auth/sign-in")
    assert answer.status_code == 303
    assert "HttpOnly; SameSite=Lax" in answer.headers["set-cookie"]
    return dict(parse_qsl(urlsplit(answer.headers["location"]).query)) | {
        "url": answer.headers["location"]
    }


def finish(client: httpx2.Client, callback: str) -> str:
    """Return the fragment that the browser is sent to."""
    answer = client.get(callback)
    assert answer.status_code == 303, answer.text
    return urlsplit(answer.headers["location"]).fragment


@pytest.fixture
def make_client(setup: Setup) -> Iterator[Callable[[], httpx2.Client]]:
    with contextlib.ExitStack() as stack:
        yield lambda: stack.enter_context(
            httpx2.Client(base_url=setup.url, headers=FORWARDED, trust_env=False, timeout=30)
        )


def test_a_sign_in_belongs_to_the_browser_that_started_it(
    setup: Setup, make_client: Callable[[], httpx2.Client]
) -> None:
    victim, attacker = make_client(), make_client()
    query = start(attacker)
    assert (query["code_challenge_method"], query["response_type"]) == ("S256", "code")
    callback = setup.provider.sign_in(query["url"], "alice")
    assert finish(victim, callback) == "/sign-in/expired", "another browser cannot finish it"
    assert finish(attacker, callback) == "/sign-in/expired", "a state is used once"
    callback = setup.provider.sign_in(start(attacker)["url"], "alice")
    code = finish(attacker, callback).removeprefix("/code/")
    start(victim)
    assert victim.post("/api/session", json={"code": code}).status_code == 403, "nor use its code"
    assert attacker.post("/api/session", json={"code": code}).status_code == 403, (
        "a code is used once"
    )
    for changed in (
        "state=wrong&code=x",
        "code=x",
        f"error=access_denied&state={start(attacker)['state']}",
    ):
        assert finish(attacker, f"/auth/callback?{changed}").startswith("/sign-in/")
    query = start(attacker)
    other = start(attacker)
    callback = setup.provider.sign_in(query["url"], "alice").replace(query["state"], other["state"])
    assert finish(attacker, callback) == "/sign-in/failed", (
        "the code belongs to another verifier and nonce"
    )
    callback = setup.provider.sign_in(start(attacker)["url"], "alice")
    assert finish(attacker, callback.replace("iss=http", "iss=https")) == "/sign-in/failed"


def open_session(setup: Setup, client: httpx2.Client, name: str) -> httpx2.Response:
    code = finish(client, setup.provider.sign_in(start(client)["url"], name)).removeprefix("/code/")
    return client.post("/api/session", json={"code": code})


def test_the_group_of_a_person_gives_agent_and_scope(
    setup: Setup, make_client: Callable[[], httpx2.Client]
) -> None:
    client = make_client()
    opened = open_session(setup, client, "boss").json()
    fields = {"x-onetool-csrf": opened["csrf"]}
    caller = client.get("/api/session", headers=fields).json()
    assert (caller["agent"], caller["scope"], caller["actor"]) == (
        "lead",
        "approve",
        opened["actor"],
    )
    assert client.get("/api/approvals", headers=fields).status_code == 200
    assert client.post("/api/run", json={"command": "1"}, headers=fields).status_code == 403
    assert client.delete("/api/session", headers=fields).status_code == 204
    with setup.without_issuers("engineers"):
        assert (
            finish(client, setup.provider.sign_in(start(client)["url"], "alice"))
            == "/sign-in/no-agent"
        )


def test_a_session_ends_with_its_issuer(
    setup: Setup, make_client: Callable[[], httpx2.Client]
) -> None:
    client = make_client()
    opened = open_session(setup, client, "alice")
    assert "Max-Age=3" in opened.headers["set-cookie"], (
        "not longer than the ID token, which expires after an hour"
    )
    fields = {"x-onetool-csrf": opened.json()["csrf"]}
    assert client.get("/api/runs", headers=fields).status_code == 200
    with setup.without_issuers():
        assert client.get("/api/runs", headers=fields).status_code == 401
    assert client.get("/api/runs", headers={**fields, "x-onetool-csrf": "wrong"}).status_code == 401
    assert client.delete("/api/session", headers=fields).status_code == 204
    assert eventually(lambda: client.get("/api/runs", headers=fields).status_code == 401, 1)
