"""Test read_changes of stored tools over REST and the CLI: preconditions, updates, audit log,
deletion, rate limits.
"""

import json
import subprocess
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
import yaml
from tests.bundles_support import new_bundle, open_store, search_slugs, tool_body
from tests.http_support import serve_site
from tests.rest_support import Rest, draft, get_error_code, http_draft, new_id, serve_app
from tests.support import PROGRAM, configure, environment, eventually, run_cli

from onetool.errors import BudgetExceeded
from onetool.state.counters import CounterFile, Counters, CounterTables, RateLimiter

BODY = {"slug": "shop", "displayName": "Shop", "isEnabled": True}


def document(version: str = "1.0", path: str = "/pets") -> bytes:
    operation = {"get": {"operationId": "listPets", "responses": {"200": {"description": "Pets"}}}}
    info = {"title": "Petstore", "version": version}
    servers = [{"url": "https://pets.example.com/v1"}]
    return json.dumps(
        {"openapi": "3.0.3", "info": info, "servers": servers, "paths": {path: operation}}
    ).encode()


# --- preconditions --------------------------------------------------------------------------------


def send_with_headers(
    rest: Rest, method: str, path: str, body: object = None, **headers: str
) -> Any:
    header_names = {name.replace("_", "-"): value for name, value in headers.items()}
    return rest.send(method, path, body, headers=header_names)


def test_a_bundle_is_changed_only_if_its_etag_matches(tmp_path: Path) -> None:
    with serve_app(tmp_path) as served_app:
        rest, path = served_app.rest, f"/tools/bundles/{new_id()}"
        failed = (412, "precondition_failed")
        assert get_error_code(send_with_headers(rest, "PUT", path, BODY, If_Match='"x"')) == failed
        assert get_error_code(send_with_headers(rest, "PUT", path, BODY, If_Match="*")) == failed
        created = send_with_headers(rest, "PUT", path, BODY, If_None_Match="*")
        assert created.status_code == 201
        assert (
            get_error_code(send_with_headers(rest, "PUT", path, BODY, If_None_Match="*")) == failed
        )
        tag = created.headers["etag"]
        assert rest.client.get(path).headers["etag"] == tag
        changed = send_with_headers(rest, "PUT", path, {**BODY, "description": "New"}, If_Match=tag)
        assert changed.status_code == 200
        for method, body in (("PUT", BODY), ("PATCH", {"isEnabled": False}), ("DELETE", None)):
            assert (
                get_error_code(send_with_headers(rest, method, path, body, If_Match=tag)) == failed
            )
            assert (
                get_error_code(
                    send_with_headers(
                        rest, method, path, body, If_Match=f"W/{changed.headers['etag']}"
                    )
                )
                == failed
            )
        assert rest.get(path)["description"] == "New"
        both = f'"old", {changed.headers["etag"]}'
        assert (
            send_with_headers(rest, "PATCH", path, {"isEnabled": False}, If_Match=both).status_code
            == 200
        )
        assert send_with_headers(rest, "DELETE", path, If_Match="*").status_code == 204


def test_tool_changes_need_a_matching_etag_which_calls_keep_valid(tmp_path: Path) -> None:
    with serve_app(tmp_path) as served_app:
        rest, app = served_app.rest, served_app.onetool
        path = f"{rest.bundle('shop')}/tools/now/version/1"
        assert (
            send_with_headers(
                rest, "PUT", path, draft("machine.now"), If_None_Match="*"
            ).status_code
            == 201
        )
        assert get_error_code(send_with_headers(rest, "PUT", path, draft(), If_None_Match="*")) == (
            412,
            "precondition_failed",
        )
        assert get_error_code(rest.send("PUT", path, draft())) == (409, "duplicate")
        tag = rest.client.get(path).headers["etag"]
        assert rest.invoke(path).json()["ok"]
        app.state.recorder.flush()
        assert (
            rest.client.get(path, headers={"If-None-Match": tag}).status_code == 200
        )  # the call changed the representation
        off = send_with_headers(rest, "PATCH", path, {"isEnabled": False}, If_Match=tag)
        assert off.status_code == 200
        assert get_error_code(send_with_headers(rest, "DELETE", path, If_Match=tag)) == (
            412,
            "precondition_failed",
        )
        assert (
            send_with_headers(rest, "DELETE", path, If_Match=off.headers["etag"]).status_code == 204
        )


def test_only_one_of_several_writers_with_the_same_etag_succeeds(tmp_path: Path) -> None:
    with serve_app(tmp_path) as served_app:
        rest, path = served_app.rest, served_app.rest.bundle("shop")
        tag = rest.client.get(path).headers["etag"]

        def put(number: int) -> int:
            body = {**BODY, "description": str(number)}
            return int(send_with_headers(rest, "PUT", path, body, If_Match=tag).status_code)

        with ThreadPoolExecutor(8) as threads:
            assert sorted(threads.map(put, range(8))) == [200, *[412] * 7]


# --- imports --------------------------------------------------------------------------------------


def test_an_import_over_rest_updates_a_bundle_only_on_request(tmp_path: Path) -> None:
    with serve_app(tmp_path) as served_app:
        post = served_app.rest.client.post
        assert post("/api/import", content=document()).status_code == 201
        rejected = post("/api/import", content=document("2.0"))
        assert get_error_code(rejected) == (409, "slug_taken")
        assert "?update=true" in rejected.json()["error"]["message"]
        updated = post("/api/import", params={"update": "true"}, content=document("2.0"))
        assert (updated.status_code, updated.json()["toolCount"]) == (200, 1)
        tools = served_app.rest.get("/tools", bundleIDs=updated.json()["bundle"]["id"])["tools"]
        assert [tool["version"] for tool in tools] == ["1.0", "2.0"]
        new = post("/api/import", params={"update": "true", "name": "other"}, content=document())
        assert new.status_code == 201
        other = post("/api/import", params={"update": "true"}, content=document("3.0", "/unlike"))
        assert other.status_code in {200, 409}


def test_the_server_option_replaces_the_base_url_of_the_document(tmp_path: Path) -> None:
    (tmp_path / "api.json").write_bytes(document())
    assert (
        run_cli(tmp_path, "import", "api.json", "--server", "http://127.0.0.1:9999").returncode == 0
    )
    (file,) = (tmp_path / ".onetool" / "bundles").glob("petstore-*/list-pets@1.0.json")
    assert json.loads(file.read_text())["httpImpl"]["urlTemplate"] == "http://127.0.0.1:9999/pets"


def test_tools_are_imported_into_a_trusted_project_or_the_user_directory(tmp_path: Path) -> None:
    work = tmp_path / "work"
    (work / ".onetool").mkdir(parents=True)
    (work / ".onetool" / "onetool.yaml").write_text("servers: {x: {command: evil}}\n")
    (work / "api.json").write_bytes(document())

    def run(*arguments: str) -> str:
        command, env = [PROGRAM, *arguments], environment(tmp_path)
        done = subprocess.run(
            command, cwd=work, env=env, input="yes\n", capture_output=True, text=True, check=False
        )
        assert done.returncode == 0, done.stderr
        return done.stdout

    output = run("import", "api.json")
    assert f"{work / '.onetool'} is not trusted" in output
    assert str(tmp_path / ".onetool" / "bundles") in output
    assert not (work / ".onetool" / "bundles").exists()
    output = run("import", "api.json", "--project")
    assert f"{work / '.onetool'} is now trusted" in output
    assert list((work / ".onetool" / "bundles").glob("petstore-*"))
    assert str(work / ".onetool" / "bundles") in run("import", "api.json", "--name", "second")
    assert str(tmp_path / ".onetool" / "bundles") in run(
        "import", "api.json", "--name", "third", "--user"
    )


# --- deleting, and the audit log ------------------------------------------------------------------


def read_audit_log(home: Path, name: str) -> list[dict[str, Any]]:
    (file,) = home.rglob("audit.jsonl")
    lines = [json.loads(line) for line in file.read_text().splitlines()]
    return [line for line in lines if line["name"] == name]


def read_changes(home: Path) -> list[tuple[str, tuple[str, ...], str, str]]:
    """Return the successful read_changes in the audit log."""
    found = [line for line in read_audit_log(home, "change") if line["outcome"] == "ok"]
    return [
        (line["action"], tuple(line["names"]), line["actor"], line["transport"]) for line in found
    ]


def test_changes_over_rest_are_audited_with_actor_but_without_values(tmp_path: Path) -> None:
    with serve_app(tmp_path) as served_app:
        rest = served_app.rest
        bundle = rest.bundle("shop")
        rest.send("PUT", bundle, {**BODY, "description": "hunter2"})
        tool = rest.tool(
            bundle, "t", "1", **http_draft("https://example.com", headers={"X-Api-Key": "hunter2"})
        )
        rest.switch(tool, on=False)
        rest.switch(bundle, on=False)
        rest.switch(bundle, on=True)
        rest.send("PATCH", "/api/tools/machine.now", {"isEnabled": False})
        rest.send("PATCH", "/api/packs/machine", {"isEnabled": False})
        rest.send("DELETE", tool)
        rest.send("DELETE", bundle)
        rest.client.post("/api/import", content=document())
        assert get_error_code(rest.send("DELETE", bundle)) == (404, "not_found")
    by = ("owner", "http")
    assert read_changes(tmp_path) == [
        ("bundle.created", ("shop",), *by),
        ("bundle.updated", ("shop",), *by),
        ("tool.created", ("shop.t@1",), *by),
        ("tool.disabled", ("shop.t@1",), *by),
        ("bundle.disabled", ("shop",), *by),
        ("bundle.enabled", ("shop",), *by),
        ("tool.disabled", ("machine.now",), *by),
        ("pack.disabled", ("machine",), *by),
        ("tool.deleted", ("shop.t@1",), *by),
        ("bundle.deleted", ("shop",), *by),
        ("bundle.imported", ("petstore", "petstore.list-pets@1.0"), *by),
    ]
    assert "hunter2" not in next(tmp_path.rglob("audit.jsonl")).read_text()
    started, ended = read_audit_log(tmp_path, "change.started"), read_audit_log(tmp_path, "change")
    assert [line["action"] for line in started[:3]] == ["bundle.put", "bundle.put", "tool.created"]
    assert len(started) == len(ended)
    failed = ended[-1]
    bundle_id = bundle.rpartition("/")[2]
    assert (failed["action"], failed["names"], failed["outcome"]) == (
        "bundle.deleted",
        [bundle_id],
        "not_found",
    )


def test_a_change_over_rest_that_cannot_be_audited_is_not_made(tmp_path: Path) -> None:
    with serve_app(tmp_path) as served_app:
        rest = served_app.rest
        bundle = rest.bundle("shop")
        tool = rest.tool(bundle, "t", "1", **http_draft("https://example.com"))
        before = [
            each["slug"] for each in rest.get("/tools/bundles", includeDisabled="true")["bundles"]
        ]
        assert eventually(
            lambda: len(read_changes(tmp_path)) == 2
        )  # otherwise the file could be written while it is replaced
        audit = next(tmp_path.rglob("audit.jsonl"))
        audit.unlink()
        audit.mkdir()  # even root cannot write to a directory
        for method, path, body in (
            ("PUT", f"{bundle[:-1]}{'0' if bundle[-1] != '0' else '1'}", {**BODY, "slug": "other"}),
            ("PUT", bundle, {**BODY, "description": "new"}),
            ("PATCH", bundle, {"isEnabled": False}),
            ("PATCH", tool, {"isEnabled": False}),
            ("DELETE", tool, None),
            ("PATCH", "/api/tools/machine.now", {"isEnabled": False}),
            ("PATCH", "/api/packs/machine", {"isEnabled": False}),
        ):
            assert get_error_code(rest.send(method, path, body)) == (507, "storage_unavailable"), (
                method,
                path,
            )
        assert get_error_code(rest.client.post("/api/import", content=document())) == (
            507,
            "storage_unavailable",
        )
        assert [
            each["slug"] for each in rest.get("/tools/bundles", includeDisabled="true")["bundles"]
        ] == before
        assert rest.get(tool)["isEnabled"]
        assert rest.get("/api/packs/machine")["isEnabled"]


def test_bundles_and_tools_are_deleted_on_the_command_line_after_a_confirmation(
    tmp_path: Path,
) -> None:
    with open_store(tmp_path / ".onetool" / "bundles") as store:
        bundle = new_bundle(store, "shop")
        for slug, version in (("one", "1"), ("one", "2"), ("two", "1"), ("three", "1")):
            store.put_tool(bundle, slug, version, tool_body())
    unconfirmed = run_cli(tmp_path, "bundles", "delete", "shop")
    assert unconfirmed.returncode == 2
    assert "cannot confirm the deletion of the bundle shop with 3 tools" in unconfirmed.stderr
    assert "use --yes" in unconfirmed.stderr
    assert (
        run_cli(tmp_path, "bundles", "delete", "shop.one@2", "--yes").stdout
        == "Deleted shop.one@2\n"
    )
    assert (
        "shop.two@1" in run_cli(tmp_path, "bundles", "delete", "shop.two", "--yes", "--json").stdout
    )
    assert "did you mean" in run_cli(tmp_path, "bundles", "delete", "shopp", "--yes").stderr.lower()
    assert "part of OneTool" in run_cli(tmp_path, "bundles", "delete", "essentials", "--yes").stderr
    run_cli(tmp_path, "bundles", "disable", "shop")
    done = run_cli(tmp_path, "bundles", "delete", "shop", "--yes")
    assert done.stdout == "Deleted the bundle shop with 2 tools\n", done.stderr
    with open_store(tmp_path / ".onetool" / "bundles") as store:
        assert store.list_bundles(include_disabled=True).items == []
    actions = [(action, transport) for action, _, _, transport in read_changes(tmp_path)]
    assert actions == [
        (name, "cli")
        for name in ("tool.deleted", "tool.deleted", "bundle.disabled", "bundle.deleted")
    ]


# --- limits ---------------------------------------------------------------------------------------


def test_calls_per_minute_are_counted_over_all_processes(tmp_path: Path) -> None:
    with serve_site() as site:
        configure(
            tmp_path,
            yaml.safe_dump({"http": {"allowedHosts": ["*"], "allowPrivateAddresses": True}}),
        )
        with open_store(tmp_path / ".onetool" / "bundles") as store:
            store.put_tool(
                new_bundle(store, "shop"), "t", "1", http_draft(site.url(), maxCallsPerMinute=2)
            )
        calls = [run_cli(tmp_path, "call", "shop.t") for _ in range(3)]
        assert [call.returncode for call in calls] == [0, 0, 1]
        assert "maxCallsPerMinute is 2" in calls[2].stderr + calls[2].stdout
        assert len(site.requests) == 2


def test_the_rate_limit_resets_after_a_minute(tmp_path: Path) -> None:
    times = [1000.0]
    files = (CounterFile(tmp_path / "rates.db") for _ in range(2))
    one, other = (RateLimiter(CounterTables(file, lambda: times[0])) for file in files)
    one.acquire("tool", 2)
    other.acquire("tool", 2)
    other.acquire("another", 1)
    with pytest.raises(BudgetExceeded) as caught:
        one.acquire("tool", 2)
    assert caught.value.retry_after == 60
    times[0] += 60
    one.acquire("tool", 2)
    times[0] -= 3600  # the clock was set back
    one.acquire("tool", 1)
    assert one.problem is None


def test_without_a_usable_file_each_process_counts_its_own_calls(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    file = CounterFile(tmp_path / "file" / "rates.db")
    rates = RateLimiter(CounterTables(file), fallback=Counters())
    rates.acquire("tool", 1)
    assert "maxCallsPerMinute" in (rates.problem or "")
    with pytest.raises(BudgetExceeded):
        rates.acquire("tool", 1)


# --- search ---------------------------------------------------------------------------------------


def test_a_search_for_the_name_of_a_bundle_finds_its_tools(tmp_path: Path) -> None:
    with serve_app(tmp_path) as served_app:
        rest = served_app.rest
        bundle = rest.bundle("petstore")
        rest.tool(bundle, "list-all", "1", **draft("machine.now"))
        for q in ("petstore", "PETSTORE", "petstore list", "petst", "petstroe"):
            assert [tool["slug"] for tool in rest.get("/tools/search", q=q)["tools"]] == [
                "list-all"
            ], q
        rest.send("PUT", bundle, {**BODY, "displayName": "Zoo"})
        assert rest.get("/tools/search", q="petstore")["tools"] == []
        assert [tool["slug"] for tool in rest.get("/tools/search", q="zoo")["tools"]] == [
            "list-all"
        ]


def test_a_match_of_the_tool_name_ranks_before_the_bundle_name(tmp_path: Path) -> None:
    with open_store(tmp_path) as store:
        store.put_tool(new_bundle(store, "other"), "weather", "1", tool_body())
        store.put_tool(new_bundle(store, "weather"), "today", "1", tool_body())
        assert search_slugs(store, "weather") == ["weather", "today"]
