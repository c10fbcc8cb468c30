"""Signing in to an API: imported HTTP tools with OAuth get tokens, which are refreshed, and only
for their origin.
"""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from tests.authorization_server import AuthorizationServer, authorization_server
from tests.oauth_support import login
from tests.support import configure, eventually, run_cli


@pytest.fixture
def server() -> Iterator[AuthorizationServer]:
    with authorization_server(clients={"app": "app-secret"}) as running:
        yield running


def configure_api(home: Path, server: AuthorizationServer, **auth: Any) -> None:
    settings = {
        "http": {"allowedHosts": ["127.0.0.1"], "allowPrivateAddresses": True},
        "tools": {
            "notes": {
                "auth": {
                    "client_id": "app",
                    "client_secret": "app-secret",
                    "issuer": server.issuer,
                    **auth,
                }
            }
        },
    }
    configure(home, yaml.safe_dump(settings))


def write_document(home: Path, server: AuthorizationServer, scheme: dict[str, Any]) -> Path:
    operation = {
        "operationId": "me",
        "responses": {"200": {"description": "me"}},
        "security": [{"o": ["read"]}],
    }
    document = {
        "openapi": "3.0.3",
        "info": {"title": "Notes", "version": "1"},
        "servers": [{"url": server.api}],
        "paths": {"/me": {"get": operation}},
        "components": {"securitySchemes": {"o": scheme}},
    }
    file = home / "api.json"
    file.write_text(json.dumps(document), encoding="utf-8")
    return file


def test_imported_tools_use_a_sign_in_and_refresh_it(
    tmp_path: Path, server: AuthorizationServer
) -> None:
    configure_api(tmp_path, server)
    urls = {
        "authorizationUrl": f"{server.issuer}/authorize",
        "tokenUrl": f"{server.issuer}/token",
        "scopes": {},
    }
    file = write_document(
        tmp_path, server, {"type": "oauth2", "flows": {"authorizationCode": urls}}
    )
    imported = run_cli(tmp_path, "import", str(file), "--name", "notes", "--user")
    assert "onetool login notes" in imported.stdout, imported.stdout + imported.stderr
    before = run_cli(tmp_path, "call", "notes.me", "--json")
    assert json.loads(before.stdout)["error"]["type"] == "sign_in_required"
    login(tmp_path, "notes", user="grace")
    assert server.requests[-2][1]["scope"] == "read"
    assert json.loads(run_cli(tmp_path, "call", "notes.me").stdout) == {"user": "grace"}
    server.expire_access_tokens()
    assert json.loads(run_cli(tmp_path, "call", "notes.me").stdout) == {"user": "grace"}
    assert server.counts["token refresh_token"] == 1
    run_cli(tmp_path, "logout", "notes")
    assert "onetool login notes" in run_cli(tmp_path, "call", "notes.me").stderr


def test_openid_connect_and_client_credentials(tmp_path: Path, server: AuthorizationServer) -> None:
    configure_api(tmp_path, server, grant="client_credentials")
    url = f"{server.issuer}/.well-known/oauth-authorization-server"
    file = write_document(tmp_path, server, {"type": "openIdConnect", "openIdConnectUrl": url})
    run_cli(tmp_path, "import", str(file), "--name", "notes", "--user")
    assert json.loads(run_cli(tmp_path, "call", "notes.me").stdout) == {"user": "app"}


@pytest.mark.parametrize("has_metadata", [True, False])
@pytest.mark.parametrize("kind", ["oauth2", "openIdConnect"])
def test_a_secret_is_sent_to_the_issuer_of_the_settings_only(
    tmp_path: Path, server: AuthorizationServer, kind: str, has_metadata: bool
) -> None:
    """The definition of the tool names another authorization server, which gets no request."""
    configure_api(tmp_path, server, grant="client_credentials")
    if not has_metadata:
        server.knobs.has_metadata = False
    with authorization_server(clients={"app": "app-secret"}) as evil:
        flow = {"tokenUrl": f"{evil.issuer}/token", "scopes": {}}
        well_known = f"{evil.issuer}/.well-known/oauth-authorization-server"
        schemes: dict[str, dict[str, Any]] = {
            "oauth2": {"type": kind, "flows": {"clientCredentials": flow}},
            "openIdConnect": {"type": kind, "openIdConnectUrl": well_known},
        }
        file = write_document(tmp_path, server, schemes[kind])
        run_cli(tmp_path, "import", str(file), "--name", "notes", "--user")
        called = run_cli(tmp_path, "call", "notes.me")
        if has_metadata:
            assert json.loads(called.stdout) == {"user": "app"}
        else:
            assert f"{evil.issuer}" in called.stderr
            assert "tools.notes.auth.issuer" in called.stderr
        assert not evil.counts


def test_endpoints_below_an_issuer_without_metadata_are_used(
    tmp_path: Path, server: AuthorizationServer
) -> None:
    configure_api(tmp_path, server, grant="client_credentials")
    server.knobs.has_metadata = False
    flow = {"tokenUrl": f"{server.issuer}/token", "scopes": {}}
    file = write_document(
        tmp_path, server, {"type": "oauth2", "flows": {"clientCredentials": flow}}
    )
    run_cli(tmp_path, "import", str(file), "--name", "notes", "--user")
    assert json.loads(run_cli(tmp_path, "call", "notes.me").stdout) == {"user": "app"}


def test_two_bundles_of_one_origin_do_not_share_a_sign_in(
    tmp_path: Path, server: AuthorizationServer
) -> None:
    configure_api(tmp_path, server, grant="client_credentials")
    url = f"{server.issuer}/.well-known/oauth-authorization-server"
    file = write_document(tmp_path, server, {"type": "openIdConnect", "openIdConnectUrl": url})
    for name in ("notes", "mail"):
        assert run_cli(tmp_path, "import", str(file), "--name", name, "--user").returncode == 0
    assert json.loads(run_cli(tmp_path, "call", "notes.me").stdout) == {"user": "app"}
    mail = json.loads(run_cli(tmp_path, "call", "mail.me", "--json").stdout)
    assert mail["error"]["type"] == "sign_in_required"
    configure_api(tmp_path, server)  # the same client, now for a person
    notes = json.loads(run_cli(tmp_path, "call", "notes.me", "--json").stdout)
    assert notes["error"]["type"] == "sign_in_required"


def test_a_token_is_sent_to_the_origin_of_its_sign_in_only(
    tmp_path: Path, server: AuthorizationServer
) -> None:
    """Another tool of the bundle, for another origin, does not get the token."""
    configure_api(tmp_path, server)
    urls = {
        "authorizationUrl": f"{server.issuer}/authorize",
        "tokenUrl": f"{server.issuer}/token",
        "scopes": {},
    }
    file = write_document(
        tmp_path, server, {"type": "oauth2", "flows": {"authorizationCode": urls}}
    )
    run_cli(tmp_path, "import", str(file), "--name", "notes", "--user")
    login(tmp_path, "notes")
    stored = next((tmp_path / ".onetool" / "bundles").rglob("me@*.json"))
    data = json.loads(stored.read_text(encoding="utf-8"))
    step = {
        "name": "first",
        **{key: data["httpImpl"][key] for key in ("method", "urlTemplate", "auth")},
    }
    elsewhere = (  # another port is another origin; there is nothing there
        f"{server.issuer}/api/other"
    )
    data["httpImpl"] |= {"urlTemplate": elsewhere, "steps": [step]}
    stored.write_text(json.dumps(data), encoding="utf-8")
    assert eventually(
        lambda: "sign_in_required" in run_cli(tmp_path, "call", "notes.me", "--json").stdout
    )
    del data["httpImpl"]["auth"]["oauth"]  # the secret alone does not stand for the token
    stored.write_text(json.dumps(data), encoding="utf-8")
    assert eventually(
        lambda: "is not set" in run_cli(tmp_path, "call", "notes.me", "--json").stdout
    )
    assert server.counts["other"] == 0
