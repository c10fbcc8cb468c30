"""What an owner disabled stays disabled when it is deleted and stored again, by a request or an
import.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx2
import pytest
from tests.replicas_support import KEY
from tests.rest_support import http_draft, new_id
from tests.settings_support import TOKENS, EditedHome, serve_home
from tests.support import run_cli

from onetool.sources.bundles import archive

ADDRESS = "https://example.com/now"


@dataclass(frozen=True)
class Place:
    """A server with files, or with PostgreSQL."""

    home: EditedHome
    variables: dict[str, str]

    def send(
        self, method: str, path: str, body: object = None, scope: str = "use"
    ) -> httpx2.Response:
        return self.home.send(method, path, body, scope)

    def add_bundle(self, slug: str, scope: str = "use", bundle: str = "") -> str:
        path = bundle or f"/tools/bundles/{new_id()}"
        added = self.send("PUT", path, bundle_body(slug), scope)
        assert added.is_success, added.text
        return path

    def add_tool(
        self, bundle: str, version: str = "1", scope: str = "use", **fields: Any
    ) -> httpx2.Response:
        return self.send("PUT", f"{bundle}/tools/now/version/{version}", draft(**fields), scope)

    def switch(self, path: str, *, on: bool, scope: str = "use") -> httpx2.Response:
        return self.send("PATCH", path, {"isEnabled": on}, scope)

    def is_usable(self, name: str = "rain.now") -> bool:
        found = self.send("GET", f"/api/tools/{name}", scope="owner")
        return found.status_code == 200 and bool(found.json()["isEnabled"])

    def import_archive(self, slug: str, scope: str = "use", **query: str) -> httpx2.Response:
        headers = {"authorization": f"Bearer {TOKENS[scope]}"}
        return self.home.rest.client.post(
            "/api/import", params=query, content=pack(slug), headers=headers
        )

    def cli(self, *arguments: str) -> None:
        done = run_cli(self.home.home, *arguments, **self.variables)
        assert done.returncode == 0, done.stderr


def bundle_body(slug: str, *, is_enabled: bool = True) -> dict[str, Any]:
    return {"slug": slug, "displayName": slug, "isEnabled": is_enabled}


def draft(**fields: Any) -> dict[str, Any]:
    return {**http_draft(ADDRESS), **fields}


def pack(slug: str) -> bytes:
    """Return an archive of a bundle with one tool."""
    return archive.pack(bundle_body(slug), [{"slug": "now", "version": "1", **draft()}])


@pytest.fixture(scope="module", params=["files", "postgresql"])
def place(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Place]:
    variables = {}
    if request.param == "postgresql":
        server = request.getfixturevalue("postgres_server")
        variables = {"ONETOOL_STORE": server.url(server.create_database()), "ONETOOL_KEY": KEY}
    with serve_home(tmp_path_factory.mktemp("home"), **variables) as home:
        reviewer = {"permissions": ["read", "write", "network"], "tools": None}
        assert home.send("PATCH", "/api/agents/reviewer", {"settings": reviewer}).is_success
        yield Place(home, variables)


@pytest.fixture(autouse=True)
def cleaned(place: Place) -> Iterator[None]:
    yield
    for bundle in place.home.get("/tools/bundles?includeDisabled=true")["bundles"]:
        path = f"/tools/bundles/{bundle['id']}"
        place.switch(path, on=True, scope="owner")
        for tool in place.home.get(f"/tools/tools?includeDisabled=true&bundleIDs={bundle['id']}")[
            "tools"
        ]:
            version = f"{path}/tools/{tool['slug']}/version/{tool['version']}"
            place.switch(version, on=True, scope="owner")
            place.send("DELETE", version, scope="owner")
        place.send("DELETE", path, scope="owner")


@pytest.mark.parametrize("by", ["version", "name", "command"])
def test_a_tool_that_is_stored_again_stays_disabled(place: Place, by: str) -> None:
    bundle = place.add_bundle("rain")
    assert place.add_tool(bundle).status_code == 201
    assert place.is_usable()
    if by == "version":
        assert place.switch(f"{bundle}/tools/now/version/1", on=False, scope="admin").is_success
    elif by == "name":
        assert place.switch("/api/tools/rain.now", on=False, scope="owner").is_success
    else:
        place.cli("bundles", "disable", "rain.now")
    assert place.send("DELETE", f"{bundle}/tools/now/version/1").status_code == 204
    for version in ("1", "2"):
        refused = place.add_tool(bundle, version)
        assert refused.status_code == 403, refused.text
        assert "an owner disabled it" in refused.text
    assert place.send("DELETE", bundle).status_code == 204
    again = place.add_bundle("rain")
    assert place.add_tool(again).status_code == 403
    assert place.add_tool(again, isEnabled=False).status_code == 201
    for path in (f"{again}/tools/now/version/1", "/api/tools/rain.now"):
        assert place.switch(path, on=True).status_code == 403
    assert not place.is_usable()
    assert place.switch(f"{again}/tools/now/version/1", on=True, scope="admin").is_success
    assert place.is_usable()
    assert place.add_tool(again, "2").status_code == 201
    assert place.switch("/api/tools/rain.now", on=False).is_success
    assert place.switch("/api/tools/rain.now", on=True).is_success


def test_other_versions_are_not_affected_while_one_is_enabled(place: Place) -> None:
    bundle = place.add_bundle("rain")
    for version in ("1", "2"):
        assert place.add_tool(bundle, version).status_code == 201
    assert place.switch(f"{bundle}/tools/now/version/1", on=False, scope="owner").is_success
    assert place.add_tool(bundle, "3").status_code == 201
    assert place.send("DELETE", f"{bundle}/tools/now/version/1").status_code == 204
    assert place.add_tool(bundle, "1").status_code == 403
    assert place.add_tool(bundle, "1", scope="owner").status_code == 201
    assert place.switch(f"{bundle}/tools/now/version/1", on=False).is_success
    assert place.switch(f"{bundle}/tools/now/version/1", on=True).is_success


def test_a_bundle_that_is_stored_again_stays_disabled(place: Place) -> None:
    bundle = place.add_bundle("rain")
    assert place.switch("/api/packs/rain", on=False, scope="owner").is_success
    assert place.send("DELETE", bundle).status_code == 204
    for path in (bundle, f"/tools/bundles/{new_id()}"):
        assert place.send("PUT", path, bundle_body("rain")).status_code == 403
    other = place.add_bundle("sun")
    assert place.send("PUT", other, bundle_body("rain")).status_code == 403
    assert place.send("PUT", other, bundle_body("rain", is_enabled=False)).is_success
    assert place.switch(other, on=True).status_code == 403
    assert place.switch("/api/packs/rain", on=True, scope="admin").is_success


def test_a_renamed_bundle_does_not_enable_a_tool(place: Place) -> None:
    rain = place.add_bundle("rain")
    assert place.add_tool(rain).status_code == 201
    assert place.switch("/api/tools/rain.now", on=False, scope="owner").is_success
    assert place.send("PUT", rain, bundle_body("snow")).is_success
    assert place.switch(f"{rain}/tools/now/version/1", on=True).status_code == 403
    sun = place.add_bundle("sun")
    assert place.add_tool(sun).status_code == 201
    for is_enabled in (True, False):
        assert place.send("PUT", sun, bundle_body("rain", is_enabled=is_enabled)).status_code == 403
    assert place.send("PUT", sun, bundle_body("rain"), scope="owner").is_success
    assert place.switch("/api/tools/rain.now", on=True, scope="owner").is_success


@pytest.mark.parametrize("scope", ["use", "owner"])
def test_an_import_stores_what_an_owner_disabled_as_disabled(
    place: Place, scope: str, tmp_path: Path
) -> None:
    imported = place.import_archive("rain")
    assert imported.status_code == 201, imported.text
    bundle = f"/tools/bundles/{imported.json()['bundle']['id']}"
    assert place.is_usable()
    place.cli("bundles", "disable", "rain.now")
    assert place.send("DELETE", f"{bundle}/tools/now/version/1").status_code == 204
    again = place.import_archive("rain", scope, update="true")
    assert again.status_code == 200, again.text
    assert "rain.now: stored as disabled, because an owner disabled it" in again.json()["problems"]
    assert not place.is_usable()
    assert place.send("DELETE", f"{bundle}/tools/now/version/1").status_code == 204
    assert place.switch(bundle, on=False, scope="owner").is_success
    assert place.send("DELETE", bundle).status_code == 204
    new = place.import_archive("rain", scope)
    assert new.status_code == 201, new.text
    assert new.json()["bundle"]["isEnabled"] is False
    bundle = f"/tools/bundles/{new.json()['bundle']['id']}"
    assert place.switch(bundle, on=True).status_code == 403
    assert place.switch(bundle, on=True, scope="owner").is_success
    assert not place.is_usable()
    assert place.send("DELETE", f"{bundle}/tools/now/version/1").status_code == 204
    assert place.send("DELETE", bundle).status_code == 204
    file = tmp_path / "rain.zip"
    file.write_bytes(pack("rain"))
    place.cli("import", str(file), "--user")
    assert not place.is_usable()
    place.cli("bundles", "enable", "rain.now")
    assert place.is_usable()
