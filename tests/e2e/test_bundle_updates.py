"""Test updates of imported APIs over REST: the difference, local edits, preconditions, hosts and
secrets, previews.
"""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx2
import pytest
from tests.http_support import Site, page as web_page, serve_site
from tests.rest_support import Rest, get_error_code, make_client, serve_process
from tests.support import run_cli

from onetool.util.running_servers import create_code

SECRET = "s3cr3t-value-77"


def document(version: str = "1", **changes: Any) -> bytes:
    """Return an API with two operations. `changes` replace operations by path; None removes one."""
    limit = {"name": "limit", "in": "query", "schema": {"type": "integer"}}
    paths: dict[str, Any] = {
        "pets": {"get": {"operationId": "listPets", "parameters": [limit], "responses": {}}},
        "old": {"get": {"operationId": "old", "responses": {}}},
        **changes,
    }
    return json.dumps(
        {
            "openapi": "3.0.0",
            "info": {"title": "Pets", "version": version},
            "servers": [{"url": "https://pets.example.com"}],
            "components": {
                "securitySchemes": {"k": {"type": "apiKey", "in": "header", "name": "X-Key"}}
            },
            "security": [{"k": []}],
            "paths": {f"/{path}": item for path, item in paths.items() if item is not None},
        }
    ).encode()


@pytest.fixture(scope="module")
def site() -> Iterator[Site]:
    with serve_site() as found:
        found.pages["/api.json"] = web_page(document())
        yield found


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory, site: Site) -> Path:
    home = tmp_path_factory.mktemp("home")
    (home / ".onetool").mkdir()
    host = f"127.0.0.1:{site.port}"
    settings = (
        f'# mine\nhttp:\n  allowedHosts: ["{host}"]  # local\n  allowPrivateAddresses: true\n'
    )
    (home / ".onetool" / "onetool.yaml").write_text(settings)
    return home


@pytest.fixture(scope="module")
def rest(home: Path) -> Iterator[Rest]:
    with serve_process(home) as (_, started), make_client(started["url"]) as client:
        yield Rest(client)


def post(
    rest: Rest, content: bytes = b"", headers: dict[str, str] | None = None, **query: Any
) -> httpx2.Response:
    return rest.client.post("/api/import", params=query, content=content, headers=headers or {})


def test_the_difference_is_shown_and_local_edits_stay(rest: Rest, home: Path) -> None:
    first = post(rest, document())
    assert (first.status_code, first.json()["missingHosts"]) == (201, ["pets.example.com"])
    bundle = f"/tools/bundles/{first.json()['bundle']['id']}"
    text = {"name": "limit", "in": "query", "required": True, "schema": {"type": "string"}}
    newer = document(
        pets={"get": {"operationId": "listPets", "parameters": [text], "responses": {}}},
        old=None,
        new={"post": {"operationId": "new", "responses": {}}},
    )
    preview = post(rest, newer, dryRun="true")
    difference = preview.json()["difference"]
    assert [tool["slug"] for tool in difference["added"]] == ["new"]
    assert [tool["slug"] for tool in difference["removed"]] == ["old"]
    (change,) = difference["changed"]
    assert (change["slug"], change["version"], change["newVersion"]) == ("list-pets", "1", "1-2")
    limit = next(each for each in change["changes"] if each["part"] == "parameter")
    assert limit == {
        "part": "parameter",
        "name": "limit",
        "before": '{"type": "integer"}',
        "after": '{"type": "string"} (required)',
    }
    edited = rest.get(f"{bundle}/tools/list-pets/version/1")
    body = {
        key: edited[key] for key in ("displayName", "isEnabled", "type", "httpImpl", "argSchema")
    }
    assert (
        rest.send(
            "PUT", f"{bundle}/tools/list-pets/version/1.1", body | {"description": "ours"}
        ).status_code
        == 201
    )
    stale = post(rest, newer, {"If-Match": preview.headers["etag"]}, update="true")
    assert get_error_code(stale) == (412, "precondition_failed")
    again = post(rest, newer, dryRun="true")
    assert again.json()["difference"]["changed"][0]["isEdited"] is True
    printed = home / "newer.json"
    printed.write_bytes(newer)
    shown = run_cli(home, "import", str(printed), "--user", "--update", "--dry-run").stdout
    assert "~ list-pets@1.1 -> 1-2 (edited here, not updated)" in shown
    assert "- old@1" in shown
    match = {"If-Match": again.headers["etag"]}
    updated = post(rest, newer, match, update="true", disableRemoved="true").json()
    assert (updated["kept"], updated["disabled"], updated["toolCount"]) == (
        ["list-pets"],
        ["old"],
        1,
    )
    assert rest.get("/api/tools/pets.list-pets")["description"] == "ours"
    replaced = post(rest, newer, update="true", replace="list-pets").json()
    assert (replaced["kept"], replaced["toolCount"]) == ([], 1)
    assert rest.get("/api/tools/pets.list-pets")["inputSchema"]["required"] == ["limit"]
    assert not rest.get(f"{bundle}/tools/old/version/1")["isEnabled"]


def test_documents_are_fetched_from_allowed_hosts_only(rest: Rest, site: Site) -> None:
    found = post(rest, url=site.url("/api.json"), name="fetched", dryRun="true")
    assert (found.status_code, found.json()["isNew"], found.json()["bundle"]) == (200, True, None)
    denied = post(rest, url="http://169.254.169.254/latest")
    assert get_error_code(denied) == (400, "invalid")
    assert denied.json()["error"]["details"]["reason"] == "host_not_allowed"
    missing = post(rest, url=site.url("/none"))
    assert "status 404" in missing.json()["error"]["message"]


def test_only_people_allow_hosts_and_store_secrets(rest: Rest, home: Path) -> None:
    body = {"hosts": ["pets.example.com"], "secrets": {"PETS_K": SECRET}}
    assert get_error_code(rest.send("POST", "/api/requirements", body)) == (403, "forbidden")
    session = rest.send("POST", "/api/session", {"code": create_code(home / ".onetool")})
    headers = {
        "X-OneTool-CSRF": session.json()["csrf"],
        "Origin": str(rest.client.base_url).rstrip("/"),
    }
    for host in ("not a host", "*", "${HOME}"):
        bad = rest.send("POST", "/api/requirements", {"hosts": [host]}, headers=headers)
        assert get_error_code(bad) == (400, "invalid")
    bad = rest.send("POST", "/api/requirements", {"secrets": {"a: b": "x"}}, headers=headers)
    assert get_error_code(bad) == (400, "invalid")
    stored = rest.send("POST", "/api/requirements", body, headers=headers)
    assert stored.status_code == 200, stored.text
    assert SECRET not in stored.text
    settings = (home / ".onetool" / "onetool.yaml").read_text()
    assert "# mine" in settings
    assert "pets.example.com]  # local" in settings
    assert (home / ".onetool" / "secrets.yaml").read_text() == f"PETS_K: {SECRET}\n"
    assert (home / ".onetool" / "secrets.yaml").stat().st_mode & 0o77 == 0
    again = rest.send("POST", "/api/requirements", body, headers=headers)
    assert get_error_code(again) == (409, "duplicate")
    found = post(rest, document(), name="another", dryRun="true").json()
    assert (found["missingHosts"], found["missingSecrets"]) == ([], ["ANOTHER_K"])
    audit = "".join(
        file.read_text() for file in (home / ".onetool").rglob("audit*") if file.is_file()
    )
    assert SECRET not in audit


def test_a_preview_shows_references_instead_of_secrets(rest: Rest) -> None:
    impl = {
        "method": "POST",
        "urlTemplate": "https://a.example/${id}?key=${secret:PETS_K}",
        "headers": {"X-Key": "${secret:PETS_K}", "Cookie": "session=abcdef0123456789"},
        "auth": {"type": "basic", "value": "me:${secret:PETS_K}"},
        "body": {"token": "${secret:PETS_K}"},
    }
    schema = {"type": "object", "properties": {"id": {"type": "string"}}, "required": ["id"]}
    body = {"httpImpl": impl, "argSchema": schema, "args": {"id": "a/b"}}
    shown = rest.send("POST", "/api/request-preview", body)
    assert shown.json()["url"] == "https://a.example/a%2Fb?key=${secret:PETS_K}"
    assert dict(shown.json()["headers"])["X-Key"] == "${secret:PETS_K}"
    assert json.loads(shown.json()["body"]) == {"token": "${secret:PETS_K}"}
    assert SECRET not in shown.text
    assert "abcdef0123456789" not in shown.text
    assert get_error_code(rest.send("POST", "/api/request-preview", {**body, "args": {}})) == (
        400,
        "invalid",
    )
    many = {**impl, "body": ["${id}"] * 9_000}  # 450 MB
    large = rest.send(
        "POST", "/api/request-preview", {**body, "httpImpl": many, "args": {"id": "x" * 50_000}}
    )
    assert get_error_code(large) == (400, "invalid")
    assert "makes the request larger" in large.text
