"""Signing in to a server in the browser: the callback, the client document and who may start it."""

import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx2
import pytest
import yaml
from tests.authorization_server import AuthorizationServer, authorization_server, find_callback
from tests.rest_support import serve_process
from tests.support import configure, run_cli


@pytest.fixture
def server() -> Iterator[AuthorizationServer]:
    with authorization_server() as running:
        yield running


@contextmanager
def open_session(home: Path, url: str) -> Iterator[httpx2.Client]:
    """Yield a browser that `onetool ui` has signed in to the admin UI."""
    link = json.loads(run_cli(home, "ui", "--json").stdout)["url"]
    with httpx2.Client(base_url=url, trust_env=False, timeout=30) as browser:
        answer = browser.post("/api/session", json={"code": link.rpartition("/")[2]})
        browser.headers["x-onetool-csrf"] = answer.json()["csrf"]
        yield browser


def test_a_person_signs_in_with_the_browser(tmp_path: Path, server: AuthorizationServer) -> None:
    configure(tmp_path, yaml.safe_dump({"servers": {"gh": {"url": server.url, "auth": "oauth"}}}))
    with (
        serve_process(tmp_path) as (_, info),
        httpx2.Client(base_url=info["url"], trust_env=False) as stranger,
    ):
        assert stranger.post("/api/sign-ins/gh", json={}).status_code == 403
        assert stranger.get("/api/sign-ins").status_code == 403
        assert stranger.get("/oauth/client.json").status_code == 404
        with open_session(tmp_path, info["url"]) as browser:
            listed = browser.get("/api/sign-ins").json()["signIns"]
            assert [(each["name"], each["signedIn"]) for each in listed] == [("gh", False)]
            assert browser.post("/api/sign-ins/other", json={}).status_code == 404
            started = browser.post("/api/sign-ins/gh", json={}).json()["url"]
            callback = find_callback(started, "grace")
            assert callback.startswith(f"{info['url']}/oauth/callback?")
            assert stranger.get(callback).status_code == 400  # another browser
            started = browser.post("/api/sign-ins/gh", json={}).json()["url"]
            callback = find_callback(started, "grace")
            answer = browser.get(callback)
            assert (answer.status_code, "You are signed in to gh" in answer.text) == (200, True)
            assert browser.get(callback).status_code == 400  # once
            called = browser.post("/api/tools/gh.whoami/call", json={"args": {}}).json()
            assert called == {"ok": True, "value": "grace"}
            assert browser.get("/api/sign-ins").json()["signIns"][0]["signedIn"] is True
            assert browser.delete("/api/sign-ins/gh").json() == {"signedOut": True}
            called = browser.post("/api/tools/gh.whoami/call", json={"args": {}}).json()
            assert called["error"]["type"] == "sign_in_required"


def test_the_client_document_is_the_client(tmp_path: Path, server: AuthorizationServer) -> None:
    server.knobs.metadata = {"client_id_metadata_document_supported": True}
    public = "https://tools.example.com"
    settings: dict[str, Any] = {
        "servers": {"gh": {"url": server.url, "auth": "oauth"}},
        "auth": {"public_url": public, "allowed_hosts": ["tools.example.com"]},
    }
    configure(tmp_path, yaml.safe_dump(settings))
    run_cli(tmp_path, "token", "create", "laptop")
    with (
        serve_process(tmp_path) as (_, info),
        httpx2.Client(base_url=info["url"], trust_env=False) as client,
    ):
        forwarded = {"host": "tools.example.com", "x-forwarded-for": "203.0.113.9"}
        document = client.get("/oauth/client.json", headers=forwarded).json()
        assert document["client_id"] == f"{public}/oauth/client.json"
        assert document["redirect_uris"][0] == f"{public}/oauth/callback"
        with open_session(tmp_path, info["url"]) as browser:
            started = browser.post("/api/sign-ins/gh", json={}).json()["url"]
            assert "client_id=https%3A%2F%2Ftools.example.com%2Foauth%2Fclient.json" in started
            callback = find_callback(started, "grace").removeprefix(public)
            cookie = browser.cookies.get("onetool_sign_in")
            answer = browser.get(
                callback, headers={**forwarded, "cookie": f"onetool_sign_in={cookie}"}
            )
            assert answer.status_code == 200, answer.text
    assert server.counts["register"] == 0
