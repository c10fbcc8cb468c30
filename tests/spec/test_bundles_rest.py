"""Specification 4 over REST, against a real server on loopback."""

import fcntl
import json
import threading
from collections.abc import Iterator
from datetime import datetime
from pathlib import Path
from typing import Any

import httpx2
import pytest
from tests.http_support import Site, page, serve_site
from tests.rest_support import (
    UNKNOWN,
    Rest,
    ServedApp,
    draft,
    get_error_code,
    http_draft,
    new_id,
    new_slug,
    raw,
    serve_app,
)
from tests.support import eventually, give, search

from onetool import ToolContext, tool
from onetool.errors import ToolError
from onetool.sources.bundles import BundleStore, filesystem
from onetool.util.logging import Log
from onetool_child.json_types import JsonObject

SECRET = "correct-horse-battery"
ADDING = {
    "type": "object",
    "properties": {"left": {"type": "integer"}, "right": {"type": "integer", "default": 2}},
    "required": ["left"],
    "additionalProperties": False,
}


@tool("sample.add")
def add(left: int, right: int, context: ToolContext) -> dict[str, Any]:
    """Add two numbers and return the agent."""
    return {"sum": left + right, "agent": context.agent_id}


@tool("sample.fail")
def fail() -> None:
    """Raise an error."""
    raise ToolError(f"the disk said {SECRET}", sector=7)


@tool("sample.run_program", permissions=["exec"])
def run_program() -> None:
    """Require a permission that the agents lack."""


@pytest.fixture(scope="module")
def site() -> Iterator[Site]:
    with serve_site() as site:
        yield site


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory, site: Site) -> Iterator[ServedApp]:
    settings = {
        "http": {"allowedHosts": ["127.0.0.1"], "allowPrivateAddresses": True, "retries": 0},
        "bundle_secrets": {"bound": {"KEY": [site.url("")]}},
    }
    directory = tmp_path_factory.mktemp("rest")
    tools = [give, search, add, fail, run_program]
    with serve_app(directory, settings, tools, {"KEY": SECRET}) as server:
        yield server


@pytest.fixture
def rest(server: ServedApp) -> Rest:
    return server.rest


# --- bundles --------------------------------------------------------------------------------------


@pytest.mark.spec(
    "bundles.bundle.put-creates", "bundles.bundle.put-replaces", "bundles.routes.camel-case"
)
def test_a_put_creates_a_bundle_and_a_second_one_replaces_it(rest: Rest) -> None:
    path, slug = f"/tools/bundles/{new_id()}", new_slug()
    created = rest.send("PUT", path, {"slug": slug, "displayName": "One", "isEnabled": True})
    assert created.status_code == 201
    replaced = rest.send(
        "PUT", path, {"slug": slug, "displayName": "Two", "isEnabled": True, "description": "more"}
    )
    assert replaced.status_code == 200
    stored = replaced.json()
    assert list(stored) == [
        "id", "slug", "displayName", "description", "isEnabled", "isBuiltIn", "createdAt", "modifiedAt",
    ]  # fmt: skip
    assert (stored["displayName"], stored["description"]) == ("Two", "more")
    assert stored["createdAt"] == created.json()["createdAt"] < stored["modifiedAt"]
    assert datetime.fromisoformat(stored["createdAt"]).utcoffset() is not None
    assert rest.get(path) == stored


@pytest.mark.spec("bundles.bundle.patch-toggles")
def test_a_patch_enables_or_disables_a_bundle_and_changes_nothing_else(rest: Rest) -> None:
    path = rest.bundle()
    before = rest.get(path)
    assert rest.switch(path, on=False) == {**before, "isEnabled": False}
    more = rest.send("PATCH", path, {"isEnabled": True, "displayName": "other"})
    assert get_error_code(more) == (400, "invalid")
    assert rest.get(path) == {**before, "isEnabled": False}


@pytest.mark.spec(
    "bundles.bundle.list", "bundles.routes.list-parameters", "bundles.bundle.list-hides-disabled"
)
def test_bundles_are_listed_by_id_and_disabled_ones_only_on_request(rest: Rest) -> None:
    ids = [rest.bundle().rpartition("/")[2] for _ in range(3)]
    rest.switch(f"/tools/bundles/{ids[2]}", on=False)

    def list_names(*given: str, **parameters: Any) -> list[str]:
        return [
            bundle["id"]
            for bundle in rest.get("/tools/bundles", bundleIDs=list(given), **parameters)["bundles"]
        ]

    assert (
        set(list_names(ids[0], ids[1])) == set(list_names(f"{ids[0]},{ids[1]}")) == {ids[0], ids[1]}
    )
    assert list_names(f"{ids[0]},{ids[1]}", ids[2]) == list_names(ids[0].upper(), ids[1])
    assert set(list_names(*ids, includeDisabled="true")) == set(ids)
    everything = {bundle["id"] for bundle in rest.all("/tools/bundles", "bundles")}
    assert set(ids[:2]) <= everything
    assert ids[2] not in everything


@pytest.mark.spec("bundles.bundle.group-switch")
def test_a_disabled_bundle_disables_its_tools(rest: Rest) -> None:
    bundle = rest.bundle()
    path = rest.tool(bundle)
    ident = bundle.rpartition("/")[2]
    assert rest.invoke(path, {"value": 1}).json() == {"ok": True, "value": 1}
    rest.switch(bundle, on=False)
    assert get_error_code(rest.invoke(path)) == (409, "bundle_disabled")
    assert rest.get("/tools/tools", bundleIDs=ident) == {"tools": []}
    assert rest.get(path)["isEnabled"] is True
    rest.switch(bundle, on=True)
    assert rest.invoke(path, {"value": 2}).json() == {"ok": True, "value": 2}
    assert len(rest.get("/tools/tools", bundleIDs=ident)["tools"]) == 1


# --- tools ----------------------------------------------------------------------------------------


@pytest.mark.spec("bundles.tool.put-creates", "bundles.tool.get")
def test_a_put_creates_a_tool_and_a_get_returns_it(rest: Rest) -> None:
    bundle = rest.bundle()
    path = f"{bundle}/tools/now/version/1.0"
    created = rest.send("PUT", path, {**draft(), "tags": ["a", "b"], "description": "what it does"})
    assert created.status_code == 201
    stored = created.json()
    assert list(stored) == [
        "id", "bundleID", "bundleSlug", "slug", "version", "displayName", "description", "tags", "type", "argSchema",
        "outputSchema", "pythonImpl", "isEnabled", "isBuiltIn", "createdAt", "modifiedAt", "callCount", "lastCalledAt",
    ]  # fmt: skip
    assert (stored["slug"], stored["version"], stored["tags"]) == ("now", "1.0", ["a", "b"])
    assert (stored["callCount"], stored["lastCalledAt"], stored["isBuiltIn"]) == (0, None, False)
    assert rest.get(path) == stored


@pytest.mark.spec("bundles.tool.put-of-existing-pair")
def test_a_put_of_an_existing_pair_is_a_conflict_and_changes_nothing(rest: Rest) -> None:
    path = rest.tool(rest.bundle())
    before = rest.get(path)
    assert get_error_code(rest.send("PUT", path, {**draft(), "displayName": "Other"})) == (
        409,
        "duplicate",
    )
    assert rest.get(path) == before


@pytest.mark.spec(
    "bundles.tool.patch-toggles", "bundles.state.disabled-tool", "bundles.tool.list-hides-disabled"
)
def test_a_patch_enables_or_disables_a_tool_and_changes_nothing_else(rest: Rest) -> None:
    bundle = rest.bundle()
    path, ident = rest.tool(bundle), bundle.rpartition("/")[2]
    before = rest.get(path)
    assert rest.switch(path, on=False) == {**before, "isEnabled": False}
    assert get_error_code(rest.invoke(path)) == (409, "tool_disabled")
    assert rest.get("/tools/tools", bundleIDs=ident) == {"tools": []}
    assert len(rest.get("/tools/tools", bundleIDs=ident, includeDisabled="true")["tools"]) == 1
    assert get_error_code(rest.send("PATCH", path, {"isEnabled": True, "tags": []})) == (
        400,
        "invalid",
    )
    assert rest.switch(path, on=True) == before


@pytest.mark.spec("bundles.tool.delete")
def test_a_deleted_tool_is_gone_and_its_name_can_be_reused(rest: Rest) -> None:
    bundle = rest.bundle()
    path = rest.tool(bundle)
    first = rest.get(path)["id"]
    deleted = rest.send("DELETE", path)
    assert (deleted.status_code, deleted.content) == (204, b"")
    assert (
        get_error_code(rest.send("GET", path))
        == get_error_code(rest.send("DELETE", path))
        == (404, "not_found")
    )
    assert get_error_code(rest.invoke(path)) == (404, "not_found")
    rest.tool(bundle)
    assert rest.get(path)["id"] != first


@pytest.mark.spec(
    "bundles.tool.list", "bundles.tool.list-by-tags", "bundles.routes.global-list-and-search"
)
def test_the_global_list_is_served_at_both_paths(rest: Rest) -> None:
    bundles = [rest.bundle(), rest.bundle()]
    ids = [bundle.rpartition("/")[2] for bundle in bundles]
    rest.tool(bundles[0], "one", tags=["red", "round"])
    rest.tool(bundles[0], "two", tags=["blue"])
    rest.tool(bundles[1], "three", tags=["green"])

    def list_names(path: str = "/tools/tools", **parameters: Any) -> set[str]:
        return {
            found["slug"] for found in rest.all(path, "tools", **{"bundleIDs": ids, **parameters})
        }

    assert list_names() == list_names("/tools") == {"one", "two", "three"}
    assert list_names(bundleIDs=ids[0]) == {"one", "two"}
    assert list_names(tags="red,green") == list_names(tags=["red", "green"]) == {"one", "three"}
    assert list_names(tags="round") == {"one"}
    assert {"one", "two", "three"} <= {
        found["slug"] for found in rest.all("/tools", "tools", pageSize=256)
    }


def test_a_tool_with_a_missing_function_is_disabled_until_it_returns(server: ServedApp) -> None:
    rest = server.rest
    bundle = rest.bundle()
    path, ident = rest.tool(bundle, **draft("sample.later")), bundle.rpartition("/")[2]
    assert rest.get(path)["isEnabled"] is True
    assert "sample.later" in rest.get(path)["disabledReason"]
    status, body = (answer := rest.invoke(path)).status_code, answer.json()
    assert (status, body["error"]["code"]) == (409, "tool_disabled")
    assert "sample.later" in body["error"]["message"]
    assert rest.get("/tools", bundleIDs=ident) == {"tools": []}
    assert len(rest.get("/tools", bundleIDs=ident, includeDisabled="true")["tools"]) == 1

    @tool("sample.later")
    def later() -> str:
        """Return a value after a late registration."""
        return "here"

    server.onetool.bus.register_tool(later)
    assert "disabledReason" not in rest.get(path)
    assert rest.invoke(path).json() == {"ok": True, "value": "here"}


def test_a_page_is_full_even_if_tools_without_a_function_are_omitted(rest: Rest) -> None:
    bundle = rest.bundle()
    for number in range(6):
        rest.tool(bundle, f"t{number}", **draft("sample.gone" if number % 2 else "sample.give"))
    ident = bundle.rpartition("/")[2]
    sizes = [len(found) for found in rest.pages("/tools", "tools", bundleIDs=ident, pageSize=2)]
    assert sizes[0] == 2
    assert sum(sizes) == 3


# --- state and errors -----------------------------------------------------------------------------


@pytest.mark.spec("bundles.state.disabled-bundle")
def test_tools_of_a_disabled_bundle_cannot_be_added_or_changed(rest: Rest) -> None:
    bundle = rest.bundle()
    path = rest.tool(bundle)
    rest.switch(bundle, on=False)
    assert get_error_code(rest.send("PUT", f"{bundle}/tools/new/version/1", draft())) == (
        409,
        "bundle_disabled",
    )
    assert get_error_code(rest.send("PATCH", path, {"isEnabled": False})) == (
        409,
        "bundle_disabled",
    )
    assert get_error_code(rest.send("PUT", f"{bundle}/tools/new/version/1", {"wrong": 1})) == (
        409,
        "bundle_disabled",
    )


@pytest.mark.spec("bundles.state.deleted-bundle")
def test_a_deleted_bundle_is_hidden_and_restored_by_a_put(rest: Rest) -> None:
    bundle = rest.bundle()
    path = rest.tool(bundle)
    assert get_error_code(rest.send("DELETE", bundle)) == (409, "bundle_not_empty")
    rest.send("DELETE", path)
    stored = rest.get(bundle)
    assert rest.send("DELETE", bundle).status_code == 204
    for method, body in (("GET", None), ("PATCH", {"isEnabled": True}), ("DELETE", None)):
        assert get_error_code(rest.send(method, bundle, body)) == (404, "not_found")
    for method, body in (
        ("GET", None),
        ("PUT", draft()),
        ("PATCH", {"isEnabled": True}),
        ("DELETE", None),
    ):
        assert get_error_code(rest.send(method, path, body)) == (404, "not_found")
    assert get_error_code(rest.invoke(path)) == (404, "not_found")
    revived = rest.send(
        "PUT", bundle, {"slug": stored["slug"], "displayName": "Back", "isEnabled": True}
    )
    assert revived.status_code == 200
    assert revived.json()["createdAt"] == stored["createdAt"]
    rest.tool(bundle)


def test_a_slug_of_another_live_bundle_is_a_conflict(rest: Rest) -> None:
    slug = new_slug()
    rest.bundle(slug)
    body = {"slug": slug, "displayName": "x", "isEnabled": True}
    assert get_error_code(rest.send("PUT", f"/tools/bundles/{new_id()}", body)) == (
        409,
        "slug_taken",
    )


@pytest.mark.spec("bundles.error.uniform-body", "bundles.error.status")
@pytest.mark.parametrize(
    ("method", "path", "error"),
    [
        ("GET", "/tools/bundles/no-id", (400, "invalid")),
        ("GET", "/tools/bundles/0192f0c1-7a10-4c3e-9d2b-3f5a6b7c8d9e", (400, "invalid")),
        ("GET", f"/tools/bundles/{UNKNOWN}", (404, "not_found")),
        ("PATCH", f"/tools/bundles/{UNKNOWN}", (404, "not_found")),
        ("DELETE", f"/tools/bundles/{UNKNOWN}", (404, "not_found")),
        ("GET", f"/tools/bundles/{UNKNOWN}/tools/a_b/version/1", (400, "invalid")),
        ("GET", f"/tools/bundles/{UNKNOWN}/tools/a/version/%20", (400, "invalid")),
        ("GET", f"/tools/bundles/{UNKNOWN}/tools/a/version/1", (404, "not_found")),
        ("POST", f"/tools/bundles/{UNKNOWN}/tools/a/version/1/invoke", (404, "not_found")),
        ("GET", "/tools/bundles?bundleIDs=x", (400, "invalid")),
        ("GET", "/tools?bundleIDs=x", (400, "invalid")),
        ("GET", "/tools?tags=a&tags=", (400, "invalid")),
        ("GET", "/tools?tags=a,%C3%BC", (400, "invalid")),
        ("GET", "/tools/search", (400, "invalid")),
        ("GET", "/tools/search?q=%20", (400, "invalid")),
        ("GET", "/tools/bundles?includeDisabled=yes", (400, "invalid")),
        ("GET", "/tools/bundles?includeDisabled=true&includeDisabled=true", (400, "invalid")),
        ("GET", "/tools/nothing", (404, "not_found")),
        ("GET", "/tools/", (404, "not_found")),
        ("GET", "/tools/bundles/", (404, "not_found")),
        ("GET", f"/tools/bundles/{UNKNOWN}/", (404, "not_found")),
        ("GET", "/nothing", (404, "not_found")),
        ("POST", "/tools", (405, "method_not_allowed")),
        ("DELETE", "/tools/search", (405, "method_not_allowed")),
        ("OPTIONS", "/tools", (405, "method_not_allowed")),
        ("TRACE", "/healthz", (405, "method_not_allowed")),
    ],
)
def test_every_error_has_its_status_and_the_same_body(
    rest: Rest, method: str, path: str, error: tuple[int, str]
) -> None:
    assert get_error_code(rest.send(method, path)) == error


@pytest.mark.spec("bundles.error.transport-status")
def test_a_wrong_method_is_405_with_the_allowed_methods(rest: Rest) -> None:
    for path, allowed in (
        ("/tools/bundles", {"GET", "HEAD"}),
        (f"/tools/bundles/{UNKNOWN}", {"GET", "HEAD", "PUT", "PATCH", "DELETE"}),
        (f"/tools/bundles/{UNKNOWN}/tools/a/version/1/invoke", {"POST"}),
    ):
        answer = rest.send("OPTIONS", path)
        assert get_error_code(answer) == (405, "method_not_allowed")
        assert set(answer.headers["allow"].split(", ")) == allowed


@pytest.mark.spec("bundles.error.transport-status")
@pytest.mark.parametrize(
    "headers",
    [
        {},
        {"content-type": "text/plain"},
        {"content-type": "application/x-www-form-urlencoded"},
        {"content-type": "application/json; charset=latin-1"},
        {"content-type": "application/json", "content-encoding": "gzip"},
    ],
)
def test_a_body_of_another_media_type_is_415(rest: Rest, headers: dict[str, str]) -> None:
    content = json.dumps({"slug": new_slug(), "displayName": "x", "isEnabled": True}).encode()
    path = f"/tools/bundles/{new_id()}"
    assert get_error_code(rest.client.put(path, content=content, headers=headers)) == (
        415,
        "unsupported_media_type",
    )
    good = rest.client.put(
        path, content=content, headers={"content-type": 'Application/JSON; charset="UTF-8"'}
    )
    assert good.status_code == 201


def test_unknown_query_parameters_are_rejected(rest: Rest) -> None:
    misspelled = rest.send("GET", "/tools/bundles?pagesize=3")
    assert get_error_code(misspelled) == (400, "invalid")
    message = misspelled.json()["error"]["message"]
    assert message.startswith(
        "unknown query parameter 'pagesize': expected pageSize, pageToken, includeDisabled"
    )
    assert message.endswith("Hint: did you mean pageSize?")
    assert get_error_code(rest.send("GET", f"/tools/bundles/{new_id()}?x=1")) == (400, "invalid")


def test_messages_show_letters_and_escape_what_is_invisible(rest: Rest) -> None:
    answer = rest.client.put(
        f"/tools/bundles/{new_id()}",
        content=b'{"gr\xc3\xbc\xc3\x9fe":1,"gr\xc3\xbc\xc3\x9fe":2}',
        headers={"content-type": "application/json"},
    )
    assert "duplicate key 'grüße'" in answer.json()["error"]["message"]
    answer = rest.client.put(
        f"/tools/bundles/{new_id()}",
        content=b'{"a\xe2\x80\xae":1,"a\xe2\x80\xae":2}',
        headers={"content-type": "application/json"},
    )
    assert "duplicate key 'a\\u202e'" in answer.json()["error"]["message"]


def test_problems_of_a_body_are_described_in_plain_words(rest: Rest) -> None:
    answer = rest.send(
        "PUT", f"/tools/bundles/{new_id()}", {"slug": 5, "isEnabled": True, "color": "red"}
    )
    problems = {
        each["field"]: each["problem"] for each in answer.json()["error"]["details"]["problems"]
    }
    assert problems == {
        "slug": "must be a valid string",
        "displayName": "is required",
        "color": "unknown field",
    }


@pytest.mark.spec("bundles.error.transport-status")
def test_a_body_that_is_too_large_is_413_with_or_without_content_length(rest: Rest) -> None:
    path, headers = f"/tools/bundles/{new_id()}", {"content-type": "application/json"}
    large = b" " * ((4 << 20) + 1)
    assert get_error_code(rest.client.put(path, content=large, headers=headers)) == (
        413,
        "too_large",
    )
    in_pieces = rest.client.put(
        path, content=(large[at : at + 65536] for at in range(0, len(large), 65536))
    )
    assert get_error_code(in_pieces) == (413, "too_large")


@pytest.mark.spec("bundles.error.transport-status")
def test_a_store_locked_by_another_process_is_busy(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(filesystem, "LOCK_TIMEOUT_SECONDS", 0.1)
    with serve_app(tmp_path) as server:
        bundle = server.rest.bundle()
        with (tmp_path / "bundles" / ".lock").open("r+b") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            answer = server.rest.send("PATCH", bundle, {"isEnabled": False})
            assert get_error_code(answer) == (503, "busy")
            assert int(answer.headers["retry-after"]) > 0
            assert server.rest.get(bundle)["isEnabled"] is True
        assert server.rest.switch(bundle, on=False)["isEnabled"] is False


@pytest.mark.spec("bundles.error.precedence")
def test_the_first_error_takes_precedence(rest: Rest) -> None:
    broken: dict[str, Any] = {"content": b"{", "headers": {"content-type": "application/json"}}
    unknown = f"/tools/bundles/{UNKNOWN}"
    assert get_error_code(rest.send("PUT", "/tools/bundles/x", **broken)) == (400, "invalid")
    assert "invalid bundle ID" in rest.send("PUT", "/tools/bundles/x", **broken).text
    for path in (unknown, f"{unknown}/tools/a/version/1"):
        assert get_error_code(rest.send("PATCH", path, **broken)) == (404, "not_found")
    assert get_error_code(rest.send("PUT", f"{unknown}/tools/a/version/1", content=b"x")) == (
        404,
        "not_found",
    )
    bundle = rest.bundle()
    path = rest.tool(bundle)
    assert get_error_code(rest.send("PUT", path, {**draft(), "more": 1})) == (
        400,
        "invalid",
    )  # an invalid body takes precedence over a duplicate
    rest.switch(bundle, on=False)
    assert get_error_code(rest.send("PUT", path, **broken)) == (409, "bundle_disabled")
    assert get_error_code(rest.send("PATCH", path, **broken)) == (409, "bundle_disabled")
    assert get_error_code(rest.send("POST", f"{path}/invoke", **broken)) == (409, "bundle_disabled")
    rest.switch(bundle, on=True)
    rest.switch(path, on=False)
    assert get_error_code(rest.send("POST", f"{path}/invoke", **broken)) == (409, "tool_disabled")


@pytest.mark.spec("bundles.routes.body-fields")
@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"{",
        b"[]",
        b"true",
        b"null",
        b"{}",
        b'{"slug": "SLUG", "displayName": "x", "isEnabled": true, "more": 1}',
        b'{"slug": "SLUG", "displayName": "x", "isEnabled": "yes"}',
        b'{"slug": "SLUG", "displayName": "x", "isEnabled": 1}',
        b'{"slug": "SLUG", "displayName": null, "isEnabled": true}',
        b'{"slug": "SLUG", "display_name": "x", "isEnabled": true}',
        b'{"slug": "SLUG", "slug": "SLUG", "displayName": "x", "isEnabled": true}',
        b'{"slug": "SLUG", "displayName": "\\ud800", "isEnabled": true}',
        b'{"slug": "SLUG", "displayName": "x", "isEnabled": true, "description": NaN}',
        b'{"slug": "SLUG", "displayName": "x", "isEnabled": true, "description": 1e999}',
        b'{"slug": "SLUG", "displayName": "x", "isEnabled": true, "description": '
        + b"9" * 5000
        + b"}",
        b'{"slug": "SLUG", "displayName": "x", "isEnabled": true, "description": ' + b"[" * 100_000,
        b'{"slug": "SLUG", "displayName": "x", "isEnabled": true, "description": '
        + b"[" * 150
        + b"]" * 150
        + b"}",
        b'{"slug": "SLUG", "displayName": "\xff", "isEnabled": true}',
        '{"slug": "SLUG", "displayName": "x", "isEnabled": true}'.encode("utf-16"),
        b'\xef\xbb\xbf{"slug": "SLUG", "displayName": "x", "isEnabled": true}',
    ],
)
def test_an_invalid_body_is_400_and_creates_nothing(rest: Rest, content: bytes) -> None:
    path = f"/tools/bundles/{new_id()}"
    sent = content.replace(b"SLUG", new_slug().encode())
    answer = rest.client.put(path, content=sent, headers={"content-type": "application/json"})
    assert get_error_code(answer) == (400, "invalid")
    assert get_error_code(rest.send("GET", path)) == (404, "not_found")


@pytest.mark.parametrize(
    "body", [{"args": []}, {"args": None}, {"args": {}, "more": 1}, {"arguments": {}}]
)
def test_a_call_with_an_invalid_body_is_400(rest: Rest, body: JsonObject) -> None:
    assert get_error_code(rest.send("POST", f"{rest.tool(rest.bundle())}/invoke", body)) == (
        400,
        "invalid",
    )


# --- paths ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("slug", ["überschrift", "天气", "ПОГОДА", "\U0001d4b3-ray", "a" * 64, "٣"])
def test_slugs_of_every_script_work_in_a_path(rest: Rest, slug: str) -> None:
    bundle = rest.bundle()
    path = rest.tool(bundle, slug, slug)
    assert rest.get(path)["slug"] == rest.get(path)["version"] == slug
    assert rest.invoke(path, {"value": slug}).json() == {"ok": True, "value": slug}


@pytest.mark.parametrize(
    "path",
    [
        "/tools/bundles/ID/tools/now%2Fversion%2F1.0",
        "/tools/bundles/ID%2ftools%2fnow%2fversion%2f1.0",
        "/tools%2Fbundles",
        "/tools/bundles/ID/tools/now/version/1.0%0A",
        "/tools/search%0A?q=x",
        "/tools/bundles/ID/tools/now/version/..",
        "/tools/bundles/ID/tools/now/version/%2e%2e",
        "/tools/bundles/ID/tools/now/version/%252F",
        "/tools/bundles/ID/tools/n%6Fw/version/%00",
        "/tools/bundles/ID/tools/%FF/version/1.0",
        "/tools/bundles/ID/tools/now/version/1.0;x=1",
    ],
)
def test_no_encoding_of_a_path_reaches_another_route(rest: Rest, path: str) -> None:
    bundle = rest.bundle()
    rest.tool(bundle)
    spelt = path.replace("ID", bundle.rpartition("/")[2])
    request = f"GET {spelt} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n"
    status, headers, body = raw(rest.port, request.encode())
    assert (status, json.loads(body)["error"]["code"]) in {(400, "invalid"), (404, "not_found")}
    assert headers["content-type"] == "application/json"


# --- pages ----------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def large_bundle(server: ServedApp) -> str:
    """Return the id of a bundle with 300 tools."""
    bundle = server.rest.bundle()
    ident = bundle.rpartition("/")[2]
    tools = ((f"tool-{number}", "1", {**draft(), "tags": ["many"]}) for number in range(300))
    server.onetool.bundles.store.put_many(ident, list(tools))
    return ident


@pytest.mark.spec("bundles.page.size", "bundles.page.recommended-size")
def test_a_page_has_25_items_by_default_and_256_at_most(rest: Rest, large_bundle: str) -> None:
    def count_items(**parameters: Any) -> int:
        return len(rest.get("/tools", bundleIDs=large_bundle, **parameters)["tools"])

    assert count_items() == 25
    for name in ("recommendedPageSize", "pageSize"):
        assert count_items(**{name: 7}) == 7
        assert count_items(**{name: 257}) == count_items(**{name: "9" * 6000}) == 256
        for wrong in (0, -1, "x", "1.5", "1e2", "", " 5", "٣", "0x10", "1_0"):
            assert get_error_code(rest.client.get("/tools", params={name: wrong})) == (
                400,
                "invalid",
            )
    assert get_error_code(rest.client.get("/tools?pageSize=1&recommendedPageSize=1")) == (
        400,
        "invalid",
    )
    assert get_error_code(rest.client.get("/tools/bundles?pageSize=0")) == (400, "invalid")
    assert get_error_code(rest.client.get("/tools/search?q=x&pageSize=-3")) == (400, "invalid")


@pytest.mark.spec("bundles.page.token-is-signed", "bundles.page.token-pins-filters")
def test_a_page_token_is_valid_only_for_its_own_list(rest: Rest, large_bundle: str) -> None:
    token = rest.get("/tools", bundleIDs=large_bundle, tags="many")["nextPageToken"]
    assert (
        len(
            rest.get(
                "/tools/tools", bundleIDs=large_bundle, tags="many", pageToken=token, pageSize=3
            )["tools"]
        )
        == 3
    )
    changed = token[:-1] + ("A" if token[-1] != "A" else "B")
    lists = [
        ("/tools", {"bundleIDs": large_bundle, "tags": "many", "pageToken": changed}),
        ("/tools", {"bundleIDs": large_bundle, "tags": "many", "pageToken": "made-up"}),
        ("/tools", {"bundleIDs": large_bundle, "pageToken": token}),
        (
            "/tools",
            {
                "bundleIDs": large_bundle,
                "tags": "many",
                "pageToken": token,
                "includeDisabled": "true",
            },
        ),
        ("/tools/bundles", {"bundleIDs": large_bundle, "pageToken": token}),
        ("/tools/search", {"q": "tool", "pageToken": token}),
    ]
    for path, parameters in lists:
        assert get_error_code(rest.client.get(path, params=parameters)) == (
            400,
            "invalid",
        ), parameters


@pytest.mark.spec("bundles.page.token-survives-restart")
def test_a_page_token_is_valid_after_a_restart(tmp_path: Path) -> None:
    with serve_app(tmp_path) as first:
        created = [first.rest.bundle().rpartition("/")[2] for _ in range(4)]
        page_one = first.rest.get("/tools/bundles", pageSize=3)
    with serve_app(tmp_path) as second:
        page_two = second.rest.get(
            "/tools/bundles", pageSize=3, pageToken=page_one["nextPageToken"]
        )
    seen = [bundle["id"] for bundle in (*page_one["bundles"], *page_two["bundles"])]
    assert [ident for ident in seen if ident in created] == sorted(created)


@pytest.mark.spec("bundles.page.steady")
def test_unchanged_tools_are_listed_once_while_others_are_added_and_deleted(rest: Rest) -> None:
    bundle = rest.bundle()
    ident = bundle.rpartition("/")[2]
    paths = [rest.tool(bundle, f"t{number}") for number in range(12)]
    stay, go = paths[::2], paths[1::2]
    seen: list[str] = []
    for number, found in enumerate(rest.pages("/tools", "tools", bundleIDs=ident, pageSize=2)):
        seen += [one["slug"] for one in found]
        if number < len(go):
            rest.send("DELETE", go[number])
            rest.tool(bundle, f"new{number}")
    slugs = [path.split("/")[-3] for path in stay]
    assert [slug for slug in seen if slug in slugs] == slugs
    assert len(seen) == len(set(seen))


# --- search ---------------------------------------------------------------------------------------


@pytest.mark.spec(
    "bundles.search.classes", "bundles.routes.global-list-and-search", "bundles.search.at-once"
)
def test_a_search_at_both_paths_returns_the_best_match_first(rest: Rest) -> None:
    bundle = rest.bundle()
    rest.tool(bundle, "likeness", displayName="x", description="zebrafishs")
    rest.tool(bundle, "whole", displayName="y", description="a zebrafish swims")
    rest.tool(bundle, "zebrafish-tank", displayName="z")
    found = rest.get("/tools/search", q="zebrafish")["tools"]
    assert rest.get("/tools/tools/search", q="zebrafish")["tools"] == found
    assert [(one["slug"], one["match"]) for one in found] == [
        ("zebrafish-tank", "prefix"),
        ("whole", "word"),
        ("likeness", "fuzzy"),
    ]
    assert [one["score"] for one in found] == sorted((one["score"] for one in found), reverse=True)
    assert set(found[0]) >= {"id", "bundleID", "displayName", "score", "match"}
    path = f"{bundle}/tools/zebrafish-tank/version/1.0"
    rest.switch(path, on=False)
    assert len(rest.get("/tools/search", q="ZÉBRAFISH")["tools"]) == 2
    assert len(rest.get("/tools/search", q="zebrafish", includeDisabled="true")["tools"]) == 3
    rest.send("DELETE", path)
    assert len(rest.get("/tools/search", q="zebrafish", includeDisabled="true")["tools"]) == 2


@pytest.mark.spec("bundles.search.plain-text", "bundles.search.blank-query")
@pytest.mark.parametrize(
    "q",
    ['"', "*", "a AND", "NEAR(", "^x", "-", "col:x", "'; drop table tools;--", "\0", "%", "\u0301"],
)
def test_a_query_has_no_special_characters(rest: Rest, q: str) -> None:
    assert rest.client.get("/tools/search", params={"q": q}).status_code in {200, 400}
    assert get_error_code(rest.client.get("/tools/search", params={"q": " \t"})) == (400, "invalid")


# --- calls ----------------------------------------------------------------------------------------


@pytest.mark.spec(
    "bundles.invoke.python-dispatch",
    "bundles.invoke.success",
    "bundles.invoke.arguments-are-checked",
)
def test_a_python_tool_receives_validated_arguments_and_the_context(rest: Rest) -> None:
    path = rest.tool(rest.bundle(), **draft("sample.add"), argSchema=ADDING)
    assert rest.invoke(path, {"left": 1}).json() == {
        "ok": True,
        "value": {"sum": 3, "agent": "default"},
    }
    for wrong in ({}, {"left": "one"}, {"left": "1"}, {"left": 1, "up": 2}):
        answer = rest.invoke(path, wrong)
        assert get_error_code(answer) == (400, "invalid"), wrong
        assert "left" in answer.json()["error"]["message"]
    empty = rest.send("POST", f"{rest.tool(rest.bundle())}/invoke", {})
    assert empty.json() == {"ok": True, "value": None}


@pytest.mark.spec("bundles.invoke.arguments-are-checked")
def test_an_undeclared_argument_is_rejected(rest: Rest) -> None:
    bundle, properties = rest.bundle(), {"query": {"type": "string"}, "limit": {"type": "integer"}}
    path = rest.tool(bundle, "search", argSchema={"type": "object", "properties": properties})
    for name, nearest in (
        ("querry", "did you mean query?"),
        ("quer", "did you mean query?"),
        ("xyz", "'xyz'"),
    ):
        answer = rest.invoke(path, {name: "x"})
        assert get_error_code(answer) == (400, "invalid")
        assert nearest in answer.json()["error"]["message"]
        called = rest.send(
            "POST", f"/api/tools/{bundle_name(rest, bundle)}.search/call", {"args": {name: "x"}}
        )
        assert get_error_code(called) == (400, "invalid")
    open_schemas: list[dict[str, Any]] = [
        {"additionalProperties": {"type": "string"}},
        {"patternProperties": {"^x": {}}},
        {"required": ["xy"]},
    ]
    for more in open_schemas:
        schema = {"type": "object", "properties": properties, **more}
        path = rest.tool(bundle, f"more-{next(iter(more)).lower()}", argSchema=schema)
        reached = rest.invoke(path, {"xy": "1"}).json()["error"]["message"]
        assert reached.startswith(
            "sample.give() has no argument 'xy'"
        )  # the function, not the stored tool
    assert rest.invoke(rest.tool(bundle, "nothing"), {"value": 1}).json() == {
        "ok": True,
        "value": 1,
    }


def bundle_name(rest: Rest, bundle: str) -> str:
    return str(rest.get(bundle)["slug"])


@pytest.mark.spec(
    "bundles.invoke.http-dispatch", "bundles.invoke.success", "bundles.usage.off-the-path"
)
def test_an_http_tool_builds_its_request_from_its_templates(rest: Rest, site: Site) -> None:
    impl = {
        "query": {"q": "${city}"},
        "headers": {"X-Key": "${secret:KEY}"},
        "response": {"selector": "query"},
    }
    path = rest.tool(
        rest.bundle("bound"),
        **http_draft(site.url("/echo"), **impl),
        argSchema={"required": ["city"]},
    )
    assert rest.invoke(path, {"city": "Köln & Bonn"}).json() == {
        "ok": True,
        "value": {"q": ["Köln & Bonn"]},
    }
    assert site.last.header("x-key") == SECRET
    assert get_error_code(rest.invoke(path)) == (400, "invalid")


@pytest.mark.spec("bundles.invoke.failure")
def test_a_failed_tool_is_a_response_without_secrets(rest: Rest, site: Site) -> None:
    bundle = rest.bundle()
    failed = rest.invoke(rest.tool(bundle, "python", **draft("sample.fail")))
    assert failed.status_code == 200
    error = failed.json()["error"]
    assert (failed.json()["ok"], error["type"], error["sector"]) == (False, "execution_error", 7)
    assert "[REDACTED]" in error["message"]
    status = rest.invoke(rest.tool(bundle, "status", **http_draft(site.url("/status/418")))).json()
    assert (status["ok"], status["error"]["type"], status["error"]["status"]) == (
        False,
        "http_status",
        418,
    )
    rejected = rest.invoke(
        rest.tool(bundle, "host", **http_draft("http://example.invalid/"))
    ).json()
    assert (rejected["ok"], rejected["error"]["type"]) == (False, "network")
    leaked = rest.invoke(rest.tool(bundle, "give"), {"value": {SECRET: [SECRET, 1]}})
    assert leaked.json() == {"ok": True, "value": {"[REDACTED]": ["[REDACTED]", 1]}}


@pytest.mark.spec("bundles.invoke.refusal")
def test_a_call_without_the_permission_is_403(tmp_path: Path, rest: Rest, site: Site) -> None:
    answer = rest.invoke(rest.tool(rest.bundle(), **draft("sample.run_program")))
    assert get_error_code(answer) == (403, "permission_denied")
    assert answer.json()["error"]["details"]["required"] == ["exec"]
    with serve_app(tmp_path, {"agents": {"default": {"permissions": ["read"]}}}) as server:
        path = server.rest.tool(server.rest.bundle(), **http_draft(site.url("/echo")))
        asked = len(site.requests)
        assert get_error_code(server.rest.invoke(path)) == (403, "permission_denied")
        assert len(site.requests) == asked


@pytest.mark.spec("bundles.invoke.output-is-checked")
def test_a_value_that_violates_the_output_schema_is_a_failure(rest: Rest) -> None:
    path = rest.tool(rest.bundle(), outputSchema={"type": "integer"})
    assert rest.invoke(path, {"value": 5}).json() == {"ok": True, "value": 5}
    failed = rest.invoke(path, {"value": "five"})
    assert (failed.status_code, failed.json()["error"]["type"]) == (200, "output_validation")


@pytest.mark.spec("bundles.limit.calls-per-minute")
def test_calls_over_the_limit_are_429_with_retry_after(rest: Rest, site: Site) -> None:
    path = rest.tool(rest.bundle(), **http_draft(site.url("/echo"), maxCallsPerMinute=1))
    assert rest.invoke(path).json()["ok"] is True
    answer = rest.invoke(path)
    assert get_error_code(answer) == (429, "rate_limited")
    assert 0 < int(answer.headers["retry-after"]) <= 60


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        ("\u2028 é 💥", "\u2028 é 💥"),
        (2**70, 2**70),
        ([[[]]], [[[]]]),
        ({"": None}, {"": None}),
    ],
)
def test_json_values_are_returned_unchanged(rest: Rest, value: object, expected: object) -> None:
    assert rest.invoke(rest.tool(rest.bundle()), {"value": value}).json() == {
        "ok": True,
        "value": expected,
    }


@pytest.mark.slow
def test_values_that_are_not_json_are_converted(tmp_path: Path) -> None:
    circle: list[Any] = []
    circle.append(circle)
    deep: Any = None
    for _ in range(100_000):
        deep = [deep]
    values = {
        "nan": float("nan"),
        "half": "\ud800",
        "bytes": b"\0",
        "set": {1},
        "circle": circle,
        "deep": deep,
    }

    @tool("sample.odd")
    def odd(which: str) -> Any:
        """Return one of the values."""
        return values[which]

    with serve_app(tmp_path, tools=[odd]) as server:
        path = server.rest.tool(server.rest.bundle(), **draft("sample.odd"))
        for which, expected in (("nan", None), ("half", "?"), ("bytes", "AA=="), ("set", [1])):
            assert server.rest.invoke(path, {"which": which}).json() == {
                "ok": True,
                "value": expected,
            }
        for which in ("circle", "deep"):
            assert server.rest.invoke(path, {"which": which}).json()["ok"] is False


@pytest.mark.slow
@pytest.mark.spec("bundles.usage.off-the-path")
def test_a_call_succeeds_even_if_it_cannot_be_counted(tmp_path: Path) -> None:
    with serve_app(tmp_path, tools=[give]) as server:
        path = server.rest.tool(server.rest.bundle())
        server.rest.invoke(path)
        assert eventually(lambda: server.rest.get(path)["callCount"] == 1)
        with (tmp_path / "bundles" / ".lock").open("r+b") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            assert server.rest.invoke(path, {"value": 1}).json() == {"ok": True, "value": 1}
        assert eventually(lambda: server.rest.get(path)["callCount"] == 2)
        assert server.rest.get(path)["lastCalledAt"] is not None


def test_a_slow_tool_does_not_delay_other_requests(tmp_path: Path) -> None:
    release = threading.Event()

    @tool("sample.wait")
    def wait() -> str:
        """Wait until the test releases it."""
        return "done" if release.wait(30) else "late"

    with serve_app(tmp_path, tools=[wait, give]) as server:
        bundle = server.rest.bundle()
        slow, quick = (
            server.rest.tool(bundle, "slow", **draft("sample.wait")),
            server.rest.tool(bundle, "quick"),
        )
        answers: list[httpx2.Response] = []
        waiting = [
            threading.Thread(target=lambda: answers.append(server.rest.invoke(slow)))
            for _ in range(20)
        ]
        for thread in waiting:
            thread.start()
        assert server.rest.invoke(quick, {"value": 1}).json()["ok"] is True
        assert server.rest.get(slow)["slug"] == "slow"
        release.set()
        for thread in waiting:
            thread.join()
        assert [answer.json() for answer in answers] == [{"ok": True, "value": "done"}] * 20


# --- built-ins ------------------------------------------------------------------------------------


@pytest.mark.spec(
    "bundles.builtin.ordinary-routes",
    "bundles.builtin.content-is-read-only",
    "bundles.error.precedence",
)
def test_built_ins_are_served_by_the_ordinary_routes(tmp_path: Path) -> None:
    shipped, ident = BundleStore(tmp_path / "shipped"), new_id()
    shipped.put_bundle(ident, {"slug": "aquarium", "displayName": "Shipped", "isEnabled": True})
    shipped.put_tool(ident, "feed", "1.0", draft())
    shipped.close()
    with serve_app(tmp_path / "own", tools=[give]) as server:
        server.onetool.bundles._store = BundleStore(
            tmp_path / "own" / "bundles", builtin=tmp_path / "shipped"
        )
        rest, bundle = server.rest, f"/tools/bundles/{ident}"
        path = f"{bundle}/tools/feed/version/1.0"
        assert rest.get(bundle)["isBuiltIn"] is rest.get(path)["isBuiltIn"] is True
        assert [found["slug"] for found in rest.get("/tools/bundles")["bundles"]] == ["aquarium"]
        assert [found["slug"] for found in rest.get("/tools")["tools"]] == ["feed"]
        assert [found["slug"] for found in rest.get("/tools/search", q="feed")["tools"]] == ["feed"]
        assert rest.invoke(path, {"value": 1}).json() == {"ok": True, "value": 1}
        for method, at in (("PUT", bundle), ("DELETE", bundle), ("PUT", path), ("DELETE", path)):
            assert get_error_code(rest.send(method, at, {"wrong": 1})) == (403, "builtin_read_only")
        assert get_error_code(rest.send("PATCH", path, {"isEnabled": False, "tags": []})) == (
            403,
            "builtin_read_only",
        )
        rest.switch(path, on=False)
        assert get_error_code(rest.invoke(path)) == (409, "tool_disabled")
        rest.switch(bundle, on=False)
        assert get_error_code(rest.invoke(path)) == (409, "bundle_disabled")
        for on in (True, False):
            assert get_error_code(rest.send("PATCH", path, {"isEnabled": on})) == (
                409,
                "bundle_disabled",
            )


# --- all responses --------------------------------------------------------------------------------


def test_responses_have_an_etag_that_changes_with_the_content(rest: Rest) -> None:
    bundle = rest.bundle()
    path = rest.tool(bundle)
    for url in (
        bundle,
        path,
        "/tools/bundles",
        f"/tools?bundleIDs={bundle.rpartition('/')[2]}",
        "/tools/search?q=now",
    ):
        first = rest.client.get(url)
        tag = first.headers["etag"]
        assert first.headers["cache-control"] == "no-cache"
        for known in (tag, f"W/{tag}", f'"x", {tag}', "*"):
            again = rest.client.get(url, headers={"if-none-match": known})
            assert (again.status_code, again.content, again.headers["etag"]) == (304, b"", tag)
        assert rest.client.get(url, headers={"if-none-match": '"x"'}).status_code == 200
    tag = rest.client.get(path).headers["etag"]
    rest.switch(path, on=False)
    assert rest.client.get(path, headers={"if-none-match": tag}).status_code == 200


def test_a_head_has_the_headers_of_a_get_and_no_body(rest: Rest) -> None:
    bundle = rest.bundle()
    for url in (
        bundle,
        rest.tool(bundle),
        "/tools",
        "/tools/search?q=now",
        "/healthz",
        "/openapi.json",
    ):
        got, head = rest.client.get(url), rest.client.head(url)
        assert (head.status_code, head.content) == (200, b"")
        for name in ("content-length", "content-type", "etag"):
            assert head.headers.get(name) == got.headers.get(name)
    assert rest.client.head(f"/tools/bundles/{UNKNOWN}").status_code == 404
    assert rest.client.head(f"/tools/bundles/{UNKNOWN}/tools/a/version/1/invoke").status_code == 405


ROUTES = [
    ("GET", "/tools"),
    ("GET", "/tools/tools"),
    ("GET", "/tools/search?q=x"),
    ("GET", "/tools/tools/search?q=x"),
    ("GET", "/tools/bundles"),
    *((method, f"/tools/bundles/{UNKNOWN}") for method in ("GET", "PUT", "PATCH", "DELETE")),
    *(
        (method, f"/tools/bundles/{UNKNOWN}/tools/a/version/1")
        for method in ("GET", "PUT", "PATCH", "DELETE")
    ),
    ("POST", f"/tools/bundles/{UNKNOWN}/tools/a/version/1/invoke"),
    ("GET", "/healthz"),
    ("GET", "/openapi.json"),
    ("GET", "/nothing"),
]


@pytest.mark.parametrize(("method", "path"), ROUTES)
def test_every_route_rejects_other_hosts_and_origins(rest: Rest, method: str, path: str) -> None:
    for headers in (
        {"host": "evil.example"},
        {"origin": "https://evil.example"},
        {"origin": "null"},
        {"sec-fetch-site": "cross-site"},
    ):
        answer = rest.send(method, path, headers=headers)
        assert get_error_code(answer) == (403, "forbidden"), headers
        assert "access-control-allow-origin" not in answer.headers
    own = rest.send(method, path, headers={"origin": f"http://127.0.0.1:{rest.port}"})
    assert own.status_code != 403
    assert own.headers["x-content-type-options"] == "nosniff"


def test_an_invalid_token_is_rejected_even_if_none_is_required(rest: Rest) -> None:
    for path in ("/tools", "/openapi.json"):
        answer = rest.client.get(path, headers={"authorization": "Bearer ot_wrong"})
        assert get_error_code(answer) == (401, "unauthorized")
        assert answer.headers["www-authenticate"] == "Bearer"


class DefaultToUnknown(dict[str, str]):
    def __missing__(self, _name: str) -> str:
        return UNKNOWN


def test_every_documented_route_rejects_other_hosts_and_origins(rest: Rest) -> None:
    document = rest.get("/openapi.json")
    assert document["openapi"].startswith("3.1")
    described = {
        (method.upper(), path.format_map(DefaultToUnknown(toolSlug="a", version="1")))
        for path, item in document["paths"].items()
        for method in item
    }
    assert len(described) > len(ROUTES) / 2
    for method, path in described:
        for headers in ({"host": "evil.example"}, {"origin": "https://evil.example"}):
            answer = rest.send(method, path, headers=headers)
            assert get_error_code(answer) == (403, "forbidden"), (method, path, headers)


def test_an_unexpected_error_shows_a_log_id_and_no_traceback(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(*_: object, **__: object) -> None:
        raise ZeroDivisionError("of the inside")

    monkeypatch.setattr(BundleStore, "list_bundles", broken)
    log = tmp_path / "log"
    with serve_app(tmp_path, log=Log(log)) as server:
        answer = server.rest.client.get("/tools/bundles")
        assert get_error_code(answer) == (500, "internal")
        assert "inside" not in answer.text
        number = answer.json()["error"]["details"]["correlationID"]
    lines = [json.loads(line) for line in log.read_text().splitlines()]
    logged = next(line for line in lines if line.get("correlation_id") == number)
    assert "of the inside" in logged["text"]


# --- concurrency ----------------------------------------------------------------------------------


def test_one_of_many_concurrent_puts_of_the_same_pair_wins(rest: Rest) -> None:
    path = f"{rest.bundle()}/tools/now/version/1.0"
    statuses: list[int] = []
    threads = [
        threading.Thread(
            target=lambda: statuses.append(rest.send("PUT", path, draft()).status_code)
        )
        for _ in range(12)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(statuses) == [201] + [409] * 11


@pytest.mark.slow
def test_two_servers_on_one_directory_see_each_others_changes_at_once(tmp_path: Path) -> None:
    with serve_app(tmp_path, tools=[give]) as one, serve_app(tmp_path, tools=[give]) as two:
        bundle = one.rest.bundle()
        path = two.rest.tool(bundle)
        for value in (1, 2):
            assert one.rest.invoke(path, {"value": value}).json() == {"ok": True, "value": value}
            assert two.rest.invoke(path, {"value": value}).json() == {"ok": True, "value": value}
        one.rest.switch(path, on=False)
        assert get_error_code(two.rest.invoke(path)) == (409, "tool_disabled")
        two.rest.switch(path, on=True)
        assert one.rest.invoke(path).json()["ok"] is True
        one.rest.tool(bundle, version="2.0", outputSchema={"type": "string"})
        newer = path.replace("1.0", "2.0")
        assert two.rest.invoke(newer, {"value": "x"}).json() == {"ok": True, "value": "x"}
        assert len(two.rest.get("/tools/search", q="now")["tools"]) == 2
        two.rest.send("DELETE", newer)
        assert get_error_code(one.rest.invoke(newer)) == (404, "not_found")
        assert eventually(
            lambda: one.rest.get(path)["callCount"] == two.rest.get(path)["callCount"] == 5
        )


def test_a_redirect_from_another_site_is_rejected(site: Site, rest: Rest) -> None:
    site.pages["/away"] = page(
        b"", ("Location", f"http://127.0.0.1:{rest.port}/tools/bundles"), status=302
    )
    answer = httpx2.get(
        site.url("/away"), follow_redirects=True, headers={"origin": "http://evil.example"}
    )
    assert answer.status_code == 403


@pytest.mark.spec("bundles.routes.body-fields")
def test_an_error_lists_the_first_twenty_of_many_problems(rest: Rest) -> None:
    for count, listed in ((25, 20), (110_000, 0)):
        body = {"slug": new_slug(), "displayName": "x", "isEnabled": True} | {
            f"field{at}": at for at in range(count)
        }
        response = rest.send("PUT", f"/tools/bundles/{new_id()}", body)
        assert response.status_code == 400
        error = response.json()["error"]
        assert len(error["details"]["problems"]) == listed
        assert error["message"].endswith("and 5 more" if listed else "110,000 problems")
        assert len(response.content) < 8_000
