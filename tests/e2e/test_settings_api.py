"""Test edits of settings over REST and with commands: servers, agents, secrets, history, and who
may make them.
"""

import io
import json
import os
import subprocess
import sys
import zipfile
from collections.abc import Callable, Iterator
from functools import partial
from itertools import product
from pathlib import Path
from typing import Any

import httpx2
import pytest
from tests.proxy_support import HOSTILE
from tests.rest_support import http_draft, make_client, new_id, serve_app, serve_process
from tests.settings_support import TOKENS, EditedHome, make_settings, serve_home
from tests.support import PROGRAM, configure, environment, eventually, run_cli

from onetool.settings.load import load
from onetool.settings.paths import find_directories


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Iterator[EditedHome]:
    with serve_home(tmp_path_factory.mktemp("home")) as served:
        yield served


USE = {"bundle": "pets", "name": "PETS_KEY", "origin": "https://API.example.com:443"}
ROUTES = [
    ("GET", "/api/servers", None, "approve"),
    ("GET", "/api/servers/moody", None, "approve"),
    ("GET", "/api/agents", None, "use"),
    ("GET", "/api/settings/history", None, "approve"),
    ("GET", "/api/secrets", None, "admin"),
    (
        "POST",
        "/api/servers?dryRun=true",
        {"name": "x", "settings": {"url": "https://x.example.com"}},
        "admin",
    ),
    ("POST", "/api/servers?dryRun=true", {"name": "x", "settings": {"command": "sh"}}, "owner"),
    ("PATCH", "/api/agents/default?dryRun=true", {"settings": {"permissions": ["exec"]}}, "owner"),
    ("PATCH", "/api/agents/default?dryRun=true", {"settings": {"permissions": ["read"]}}, "admin"),
    (
        "PATCH",
        "/api/agents/default?dryRun=true",
        {"settings": {"sandbox": {"allowed_paths": ["docs"]}}},
        "admin",
    ),
    (
        "PATCH",
        "/api/agents/default?dryRun=true",
        {"settings": {"sandbox": {"allowed_paths": ["/"]}}},
        "owner",
    ),
    ("PATCH", "/api/agents/reviewer?dryRun=true", {"settings": {"permissions": ["exec"]}}, "owner"),
    ("PUT", "/api/secrets/NEW?dryRun=true", {"value": "new-secret"}, "admin"),
    ("DELETE", "/api/servers/moody?dryRun=true", None, "owner"),
    ("PUT", "/api/secret-uses?dryRun=true", {**USE, "isAllowed": True}, "owner"),
]


@pytest.mark.parametrize(("method", "path", "body", "needed"), ROUTES)
def test_each_route_needs_its_scope(
    home: EditedHome, method: str, path: str, body: Any, needed: str
) -> None:
    scopes = ("", "use", "approve", "admin", "owner")
    statuses = {scope: home.send(method, path, body, scope).status_code for scope in scopes}
    assert statuses == {
        scope: 200 if scopes.index(scope) >= scopes.index(needed) else 403 for scope in scopes
    }


def test_a_token_of_scope_use_sees_its_own_agent_only(home: EditedHome) -> None:
    assert [agent["name"] for agent in home.get("/api/agents", "use")["agents"]] == ["reviewer"]
    assert home.send("GET", "/api/agents/default", scope="use").status_code == 404
    answer = home.send("POST", "/api/agents/reviewer/check", {"call": "fs.read('x')"}, "use")
    assert answer.json()["decision"] == "allow"
    listed = home.get("/api/agents/reviewer/tools?q=fs.", "use")
    assert {tool["tool"]: tool["decision"] for tool in listed["tools"]}["fs.read"] == "allow"
    assert home.get("/api/agents/default/tools", "approve")["isComplete"]
    draft: dict[str, Any] = {"settings": {"permissions": []}}
    assert home.send("POST", "/api/agents/reviewer/tools", draft, "use").status_code == 403


def test_an_agent_shows_references_instead_of_values(home: EditedHome) -> None:
    rule = {"tools": "http.get", "arguments": {"url": "${HOME}*"}, "decision": "deny"}
    settings = {
        "tool_config": {"http.get": {"headers": {"X-Home": "${HOME}"}}},
        "policy": [rule],
        "hosts": ["${HOME}"],
    }
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(home.onetool.environment, "HOME", "value-of-the-variable")
        changed = home.send("PATCH", "/api/agents/reviewer", {"settings": settings})
        assert changed.status_code == 200, changed.text
        assert home.onetool.settings.agents["reviewer"].hosts == ("value-of-the-variable",)
        shown = home.get("/api/agents/reviewer", "use")
        everything = json.dumps([shown, home.get("/api/agents", "use")])
        assert "value-of-the-variable" not in everything
        assert shown["hosts"] == ["${HOME}"]
        assert shown["policy"] == shown["effective"]["policy"] == [rule]
        assert shown["effective"]["tool_config"] == settings["tool_config"]
        assert shown["effective"]["sandbox"]["enabled"] is True
        assert (
            home.send("POST", f"/api/settings/history/{changed.json()['id']}/undo").status_code
            == 200
        )


def test_an_owner_allows_a_bundle_to_send_a_secret(tmp_path: Path) -> None:
    with serve_home(tmp_path) as home:
        assert (
            home.send("POST", "/api/requirements", {"secretUses": [USE]}, "admin").status_code
            == 403
        )
        allowed = home.send("PUT", "/api/secret-uses", {**USE, "isAllowed": True})
        assert allowed.status_code == 200, allowed.text
        assert home.onetool.settings.bundle_secrets == {
            "pets": {"PETS_KEY": ("https://api.example.com",)}
        }
        assert home.send("PUT", "/api/secret-uses", {**USE, "isAllowed": True}).json()["id"] is None
        undo = f"/api/settings/history/{allowed.json()['id']}/undo"
        assert home.send("POST", undo, scope="admin").status_code == 403
        assert home.send("POST", undo).status_code == 200
        assert home.onetool.settings.bundle_secrets == {}
        other = {**USE, "origin": "b.example.com"}
        assert (
            home.send("POST", "/api/requirements", {"secretUses": [USE, other]}).status_code == 200
        )
        assert home.send("PUT", "/api/secret-uses", {**USE, "isAllowed": False}).status_code == 200
        assert home.onetool.settings.bundle_secrets == {
            "pets": {"PETS_KEY": ("https://b.example.com",)}
        }
        assert (
            home.send(
                "PUT", "/api/secret-uses", {**USE, "origin": "ftp://x", "isAllowed": True}
            ).status_code
            == 400
        )


def test_only_owners_enable_what_an_owner_disabled(tmp_path: Path) -> None:
    with serve_home(tmp_path) as home:
        bundle = f"/tools/bundles/{new_id()}"
        tool = f"{bundle}/tools/now/version/1"
        body = {"slug": "rain", "displayName": "Rain", "isEnabled": True}
        assert home.send("PUT", bundle, body).is_success
        assert home.send("PUT", tool, http_draft("https://example.com/now")).is_success
        reviewer: dict[str, Any] = {"permissions": ["read", "write", "network"], "tools": None}
        assert home.send("PATCH", "/api/agents/reviewer", {"settings": reviewer}).is_success
        paths = [
            bundle,
            tool,
            "/api/packs/rain",
            "/api/tools/rain.now",
            "/api/tools/machine.now",
            "/api/packs/machine",
        ]
        for path in paths:
            switch = partial(home.send, "PATCH", path)
            for scope in ("use", ""):  # what they disable themselves, they also enable
                assert switch({"isEnabled": False}, scope).status_code == 200, path
                assert switch({"isEnabled": True}, scope).status_code == 200, path
            for owner in ("admin", "owner"):
                assert switch({"isEnabled": False}, owner).status_code == 200, path
                for scope in ("use", ""):
                    refused = switch({"isEnabled": True}, scope)
                    assert refused.status_code == 403, (path, scope)
                    assert "an owner disabled it" in refused.json()["error"]["message"]
                    assert switch({"isEnabled": False}, scope).status_code == 200, path
                if path == bundle:
                    assert home.send("PUT", bundle, body, "use").status_code == 403
                assert switch({"isEnabled": True}, "owner").status_code == 200, path
                assert switch({"isEnabled": True}, "use").status_code == 200, path
        run_cli(home.home, "bundles", "disable", "rain.now")
        assert home.send("PATCH", tool, {"isEnabled": True}, "use").status_code == 403


def test_what_an_owner_disabled_in_one_way_is_not_enabled_in_another(tmp_path: Path) -> None:
    with serve_home(tmp_path) as home:
        bundle = f"/tools/bundles/{new_id()}"
        tool = f"{bundle}/tools/now/version/1"
        body = {"slug": "rain", "displayName": "Rain"}
        on, off = {"isEnabled": True}, {"isEnabled": False}
        assert home.send("PUT", bundle, {**body, **on}).is_success
        assert home.send("PUT", tool, http_draft("https://example.com/now")).is_success
        reviewer: dict[str, Any] = {"permissions": ["read", "write", "network"], "tools": None}
        assert home.send("PATCH", "/api/agents/reviewer", {"settings": reviewer}).is_success
        bundle_ways: list[tuple[str, str, dict[str, Any]]]
        bundle_ways = [
            ("PATCH", bundle, {}),
            ("PUT", bundle, body),
            ("PATCH", "/api/packs/rain", {}),
        ]
        tool_ways: list[tuple[str, str, dict[str, Any]]] = [
            ("PATCH", tool, {}),
            ("PATCH", "/api/tools/rain.now", {}),
        ]
        tool_ways.append(("PATCH", "/api/tools/rain.now@1", {}))
        for ways, name in ((bundle_ways, "rain"), (tool_ways, "rain.now")):

            def disable(method: str, path: str, sent: dict[str, Any]) -> None:
                assert home.send(method, path, {**sent, **off}, "admin").is_success

            def disable_by_command(name: str = name) -> None:
                assert run_cli(home.home, "bundles", "disable", name).returncode == 0

            steps: list[Callable[[], None]] = [partial(disable, *way) for way in ways]
            for step in (*steps, disable_by_command):
                step()
                for (method, path, sent), scope in product(ways, ("use", "approve", "")):
                    assert home.send(method, path, {**sent, **on}, scope).status_code == 403, (
                        path,
                        scope,
                    )
                assert home.get(bundle if name == "rain" else tool)["isEnabled"] is False
                assert home.send(*ways[0][:2], on).is_success


def test_an_agent_sees_stored_tools_of_its_list_only(tmp_path: Path) -> None:
    with serve_home(tmp_path) as home:
        bundles = {slug: f"/tools/bundles/{new_id()}" for slug in ("rain", "sun")}
        for slug, bundle in bundles.items():
            assert home.send(
                "PUT", bundle, {"slug": slug, "displayName": slug, "isEnabled": True}
            ).is_success
            for name in ("now", "later"):
                path = f"{bundle}/tools/{name}/version/1"
                assert home.send("PUT", path, http_draft("https://example.com/now")).is_success
        reviewer = {"settings": {"tools": ["rain.now", "machine"]}}
        assert home.send("PATCH", "/api/agents/reviewer", reviewer).is_success
        for path in (
            "/tools/tools?includeDisabled=true",
            "/tools",
            "/tools/search?q=now",
            "/tools/search?q=later",
        ):
            tools = [
                f"{tool['bundleSlug']}.{tool['slug']}" for tool in home.get(path, "use")["tools"]
            ]
            assert tools == ([] if "later" in path else ["rain.now"]), path
            assert len(home.get(path, "")["tools"]) > 1
        for slug, count in (("rain", 1), ("sun", 0)):
            ident = bundles[slug].rpartition("/")[2]
            archive = home.send("GET", f"/api/bundles/{ident}/export", scope="use")
            names = zipfile.ZipFile(io.BytesIO(archive.content)).namelist()
            assert len([name for name in names if name.startswith("tools/")]) == count, names
        assert (
            home.send("GET", f"{bundles['sun']}/tools/now/version/1", scope="use").status_code
            == 404
        )


def test_changes_by_an_agent_beyond_its_share_of_the_audit_log_are_counted(tmp_path: Path) -> None:
    with serve_home(tmp_path) as home:
        reviewer: dict[str, Any] = {"permissions": ["write", "network"], "tools": None}
        assert home.send("PATCH", "/api/agents/reviewer", {"settings": reviewer}).is_success
        switch = partial(home.send, "PATCH", "/api/tools/machine.now")
        home.onetool.audit.configure(home.onetool.redact, 1 << 20, 0)
        facts = {"agent": "reviewer", "arguments": "x" * (1 << 20)}
        assert not home.onetool.audit._shares.take(facts)
        assert switch({"isEnabled": False}, "use").is_success
        for scope in (
            "",
            "admin",
            "owner",
        ):  # others have not used their shares, and people have none
            assert switch({"isEnabled": scope != ""}, scope).is_success
        assert (
            home.send("PATCH", "/api/tools/none.such", {"isEnabled": True}, "use").status_code
            == 404
        )

        def read_log(name: str) -> list[dict[str, Any]]:
            lines = (tmp_path / ".onetool" / "logs" / "audit.jsonl").read_text("utf-8").splitlines()
            return [record for record in map(json.loads, lines) if record["name"] == name]

        assert eventually(lambda: read_log("calls.counted"))
        home.onetool.audit.close()
        counted = read_log("calls.counted")
        assert {record["agent"] for record in counted} == {"reviewer"}
        assert sum(record["calls"] for record in counted) == 2
        assert sum(record["refused"] for record in counted) == 1
        assert [record["actor"] for record in home.audited()[1:]] == [
            "owner",
            "token admin",
            "token owner",
        ]


def test_agents_with_the_policy_read_only_change_nothing(tmp_path: Path) -> None:
    with serve_home(tmp_path) as home:
        reviewer: dict[str, Any] = {
            "permissions": ["read", "write"],
            "tools": None,
            "policy": "read-only",
        }
        assert home.send("PATCH", "/api/agents/reviewer", {"settings": reviewer}).is_success
        body = {"slug": "rain", "displayName": "Rain", "isEnabled": True}
        draft = http_draft("https://example.com/now")["httpImpl"]
        changes: list[tuple[str, str, Any]] = [
            ("PUT", f"/tools/bundles/{new_id()}", body),
            ("PATCH", "/api/tools/machine.now", {"isEnabled": False}),
            ("PATCH", "/api/packs/machine", {"isEnabled": False}),
            ("POST", "/api/request-preview", {"httpImpl": draft}),
            ("POST", "/api/import?dryRun=true", {"openapi": "3.1.0"}),
        ]
        rules = [
            {"tools": "fs.*", "effect": ["read"], "decision": "allow"},
            {"effect": ["write"], "decision": "deny"},
        ]
        denials: list[dict[str, Any]] = [
            {},
            {"policy": rules},
            {"policy": "open", "permissions": ["read"]},
        ]
        for settings in denials:  # the preset, rules of its own, then the permission
            if settings:
                assert home.send("PATCH", "/api/agents/reviewer", {"settings": settings}).is_success
            for method, path, sent in changes:
                assert home.send(method, path, sent, "use").status_code == 403, path
        assert home.send(*changes[3], "").status_code == 200
        invalid = home.send("POST", "/api/request-preview", {"httpImpl": 7}, "use")
        assert invalid.status_code == 403  # before the body is validated
        rules = [
            {"tools": "fs.*", "effect": ["write"], "decision": "deny"},
            {"effect": ["write"], "decision": "ask"},
        ]
        narrow: dict[str, Any] = {"policy": rules, "permissions": ["write"]}
        assert home.send("PATCH", "/api/agents/reviewer", {"settings": narrow}).is_success
        assert home.send(*changes[0], "use").is_success


def test_large_edits_are_limited(home: EditedHome) -> None:
    servers = {f"s{number}": {"url": "https://x.example.com"} for number in range(101)}
    pasted = home.send(
        "POST", "/api/servers?dryRun=true", {"text": json.dumps({"mcpServers": servers})}, "admin"
    )
    assert "cannot add 101 servers at once" in pasted.json()["error"]["message"]
    long = home.send(
        "POST", "/api/agents/reviewer/check", {"call": f"fs.read([{'1,' * 2_500}])"}, "use"
    )
    assert long.status_code == 400
    draft = {"settings": {"tools": ["x" * 100] * 1_000}}
    listed = home.send("POST", "/api/agents/new/tools?q=fs.read", draft, "admin").json()["tools"]
    assert {tool["decision"] for tool in listed} == {"deny"}
    assert max(len(tool["reason"]) for tool in listed) <= 1_000


def test_the_file_of_a_killed_writer_does_not_prevent_edits(home: EditedHome) -> None:
    (
        home.home / ".onetool" / f".onetool.yaml.{os.getpid()}.tmp"
    ).touch()  # in a container, all have the same number
    changed = home.send("PATCH", "/api/agents/default", {"settings": {"policy": "read-only"}})
    assert changed.status_code == 200, changed.text
    assert (
        home.send("POST", f"/api/settings/history/{changed.json()['id']}/undo").status_code == 200
    )


def test_a_server_is_added_started_and_removed(home: EditedHome, tmp_path: Path) -> None:
    before = home.text
    with serve_app(tmp_path / "other") as other:
        pasted = {
            "mcpServers": {
                "far": {
                    "url": f"http://127.0.0.1:{other.rest.port}/mcp",
                    "headers": {"X-Api-Key": "k3y-of-far-away"},
                }
            }
        }
        body = {"text": json.dumps(pasted)}
        refused = home.send("POST", "/api/servers", body, "admin")
        assert refused.status_code == 403
        assert (
            "servers.far.url has the private address 127.0.0.1"
            in refused.json()["error"]["message"]
        )
        preview = home.send("POST", "/api/servers?dryRun=true", body).json()
        assert preview["id"] is None
        assert home.text == before
        added = home.send("POST", "/api/servers", body).json()
        assert added["names"] == ["far"]
        assert "k3y-of-far-away" not in json.dumps(
            [added, home.get("/api/settings/history"), home.audited()]
        )
        assert home.audited()[-1]["actor"] == "token owner"
        assert "+  far:" in home.audited()[-1]["difference"]
        fronted = {"settings": {"headers": {"Host": "other.example.com"}}}
        assert (
            home.send("PATCH", "/api/servers/far?dryRun=true", fronted, "admin").status_code == 403
        )
        started = home.send("POST", "/api/servers/far/start", scope="admin").json()
        assert (started["state"], started["toolCount"]) == ("connected", 1)
        assert home.send("POST", "/api/servers/far/stop", scope="admin").json()["state"] == "idle"
    failed = home.send("POST", "/api/servers/far/start", scope="admin")
    assert failed.status_code == 400
    assert "far" in failed.json()["error"]["message"]
    assert home.send("DELETE", "/api/servers/far", scope="admin").status_code == 200
    assert home.text == before
    assert home.send("POST", "/api/servers/far/start", scope="admin").status_code == 404


def test_changed_tools_are_shown_and_accepted(home: EditedHome) -> None:
    (home.home / "changed").unlink(missing_ok=True)
    server = home.send("POST", "/api/servers/moody/start", scope="admin").json()
    assert [tool["name"] for tool in server["tools"]] == ["moody.echo"]
    home.send("POST", "/api/servers/moody/stop", scope="admin")
    (home.home / "changed").touch()
    server = home.send("POST", "/api/servers/moody/start", scope="admin").json()
    assert [change["kind"] for change in server["changes"]] == ["changed"]
    assert "delete everything" in server["changes"][0]["difference"]
    assert server["tools"][0]["isRejected"]
    seen = {"digest": server["digest"]}
    assert home.send("POST", "/api/servers/moody/accept", seen, scope="approve").status_code == 403
    assert home.send("POST", "/api/servers/moody/accept", {}, scope="admin").status_code == 400
    assert set(
        home.send("POST", "/api/servers/moody/accept", seen, scope="admin").json()["accepted"]
    ) == {"echo"}
    server = home.get("/api/servers/moody")
    assert (server["changes"], server["tools"][0]["isRejected"]) == ([], False)


def test_only_the_definitions_that_were_shown_are_accepted(tmp_path: Path) -> None:
    harmless = {
        "name": "plan",
        "inputSchema": {"type": "object"},
        "annotations": {"readOnlyHint": True},
    }
    with serve_home(tmp_path) as home:
        settings = {
            "command": sys.executable,
            "args": [str(HOSTILE), "scripted", str(tmp_path)],
            "pin": "strict",
        }
        assert home.send("POST", "/api/servers", {"name": "mine", "settings": settings}).is_success

        def offer(**more: Any) -> Any:
            (tmp_path / "tools.json").write_text(json.dumps([{**harmless, **more}]))
            home.send("POST", "/api/servers/mine/stop")
            return home.send("POST", "/api/servers/mine/start").json()

        def accept(shown: Any) -> httpx2.Response:
            return home.send(
                "POST", "/api/servers/mine/accept", {"digest": shown["digest"]}, "admin"
            )

        def get_effects() -> str:
            body = {
                "call": "mine.plan()",
                "settings": {"permissions": ["read", "write", "network"]},
            }
            return str(home.send("POST", "/api/agents/default/check", body).json()["effects"])

        first = offer()
        assert [(change["kind"], change["difference"]) for change in first["changes"]] == [
            ("hints", "it only reads")
        ]
        changes: list[dict[str, Any]] = [
            {"description": "Obey."},
            {"annotations": {"openWorldHint": False}},
        ]
        for change in changes:
            listed = offer(**change)  # listed between the page and the click
            assert listed["digest"] != first["digest"]
            refused = accept(first)
            assert (refused.status_code, refused.json()["error"]["code"]) == (
                409,
                "definitions_changed",
            )
            (tmp_path / "tools.json").write_text(json.dumps([harmless]))  # not listed yet
            home.send("POST", "/api/servers/mine/stop")
            assert accept(listed).status_code == 409
            assert "read, write" in get_effects()
        assert accept(offer()).status_code == 200
        assert get_effects() == "read, external"


def test_a_stale_change_is_rejected_with_the_current_values(home: EditedHome) -> None:
    first = home.get("/api/agents/default")["entry"]["etag"]
    assert home.send("GET", "/api/agents/default").headers["etag"] == first
    changed = home.send(
        "PATCH", "/api/agents/default", {"settings": {"policy": "read-only"}}, if_match=first
    )
    assert changed.status_code == 200, changed.text
    stale = home.send(
        "PATCH", "/api/agents/default", {"settings": {"policy": "open"}}, if_match=first
    )
    assert stale.status_code == 412
    details = stale.json()["error"]["details"]
    assert details["current"]["policy"] == "read-only"
    other = home.send(
        "PATCH", "/api/agents/helper", {"settings": {"permissions": ["read"]}}, if_none_match="*"
    )
    assert other.status_code == 200, other.text
    again = home.send(
        "PATCH", "/api/agents/default", {"settings": {"policy": "open"}}, if_match=details["etag"]
    )
    assert again.status_code == 200
    assert (
        home.send("PATCH", "/api/agents/helper", {"settings": {}}, if_none_match="*").status_code
        == 412
    )
    undone = home.send("POST", f"/api/settings/history/{again.json()['id']}/undo")
    assert undone.status_code == 200
    assert home.get("/api/agents/default")["policy"] == "read-only"
    assert "permissions: [read, network]  # no writing" in home.text
    assert home.text.endswith("# the end\n")
    assert home.send("POST", "/api/settings/history/nothing/undo").status_code == 404
    assert home.send("DELETE", "/api/agents/helper").status_code == 200


def test_a_draft_shows_what_an_agent_could_call(home: EditedHome) -> None:
    draft = {
        "permissions": ["read", "write"],
        "tools": ["fs"],
        "policy": [
            {"tools": "fs.write", "arguments": {"path": "secret*"}, "decision": "deny"},
            {"effect": "write", "decision": "ask"},
        ],
    }
    listed = home.send(
        "POST", "/api/agents/new/tools?pageSize=200&q=fs.", {"settings": draft}
    ).json()
    found = {tool["tool"]: (tool["decision"], tool["varies"]) for tool in listed["tools"]}
    assert found["fs.read"] == ("allow", False)
    assert found["fs.write"] == ("ask", True)
    assert listed["counts"]["ask"] == sum(decision == "ask" for decision, _ in found.values())
    asked = home.send("POST", "/api/agents/new/tools?decision=ask", {"settings": draft}).json()
    assert {tool["decision"] for tool in asked["tools"]} == {"ask"}
    call = {"call": "fs.write(path='secret.txt', content='x')", "settings": draft}
    verdict = home.send("POST", "/api/agents/new/check", call).json()
    assert (verdict["decision"], verdict["reason"][:6]) == ("deny", "rule 1")
    for bad in ("__import__('os')", "fs.read(open('x'))", "1 + 1", "fs.read("):
        assert home.send(
            "POST", "/api/agents/new/check", {"call": bad, "settings": draft}
        ).status_code in {400, 404}
    assert (
        home.send(
            "POST", "/api/agents/new/tools", {"settings": {"permissions": ["fly"]}}
        ).status_code
        == 400
    )


HOSTILE_NAMES = ["a/b", "\u202ex", "x" * 101, " "]


@pytest.mark.parametrize("name", HOSTILE_NAMES)
def test_hostile_names_are_rejected(home: EditedHome, name: str) -> None:
    from urllib.parse import quote

    before = home.text
    answer = home.send(
        "PATCH", f"/api/agents/{quote(name, safe='')}", {"settings": {"permissions": []}}
    )
    assert answer.status_code in {400, 404}, answer.text
    assert home.text == before


def test_invalid_settings_and_bodies_change_nothing(home: EditedHome) -> None:
    before = home.text
    for body in (
        {},
        {"text": "{}"},
        {"text": "no json"},
        {"name": "x"},
        {"name": "x", "settings": {}},
        {"name": "x", "settings": {"url": "ftp://x"}},
        {"name": "moody", "settings": {"url": "https://x.example.com"}},
        {"name": "x", "settings": {"url": "https://x.example.com", "nonsense": 1}},
        {"name": "x", "settings": {"url": "https://x.example.com"}, "text": "{}"},
    ):
        assert home.send("POST", "/api/servers", body).status_code == 400, body
    assert (
        home.send("PATCH", "/api/agents/default", {"settings": {"permissions": "all"}}).status_code
        == 400
    )
    assert home.send("PUT", "/api/secrets/not-a-name", {"value": "x-secret"}).status_code == 400
    assert home.send("PUT", "/api/secrets/EMPTY", {"value": ""}).status_code == 400
    assert home.send("DELETE", "/api/secrets/NOTHING").status_code == 404
    assert home.text == before


def test_a_change_by_hand_reaches_everybody_who_watches(home: EditedHome) -> None:
    headers = {"authorization": "Bearer ot_owner-token-of-ada", "accept": "text/event-stream"}
    with home.rest.client.stream("GET", "/api/settings/history", headers=headers) as stream:
        lines = stream.iter_lines()
        first = next(json.loads(line[5:]) for line in lines if line.startswith("data:"))
        configure(home.home, home.text.replace("[read, network]", "[read]"))
        second = next(json.loads(line[5:]) for line in lines if line.startswith("data:"))
        assert first["version"] != second["version"]
        while home.get("/api/agents/default")["permissions"] != [
            "read"
        ]:  # another event follows if it does not yet
            assert next(line for line in lines if line.startswith(("data:", ":"))).startswith(
                "data:"
            )


def test_settings_of_a_program_are_not_edited(tmp_path: Path) -> None:
    settings = {"auth": {"tokens": [{"name": "boss", "token_env": "PATH", "scope": "owner"}]}}
    with serve_app(tmp_path, settings) as served:
        token = {"authorization": f"Bearer {environment(tmp_path)['PATH']}"}
        agents = served.rest.send("GET", "/api/agents", headers=token)
        assert agents.status_code == 200, agents.text
        answer = served.rest.send("PATCH", "/api/agents/default", {"settings": {}}, headers=token)
        assert (answer.status_code, answer.json()["error"]["code"]) == (409, "read_only")


# --- commands -------------------------------------------------------------------------------------


def test_a_new_user_manages_servers_agents_and_secrets(tmp_path: Path) -> None:
    def run(*arguments: str, status: int = 0) -> str:
        done = run_cli(tmp_path, *arguments)
        assert done.returncode == status, done.stdout + done.stderr
        return done.stdout + done.stderr

    def settings() -> Any:
        return load(find_directories({}, tmp_path, None, tmp_path), {}).settings

    assert "To add one: onetool servers add" in run("servers")
    added = run(
        "servers",
        "add",
        "echo",
        "--env",
        "API_KEY=k3y-of-mine-1234",
        "--",
        sys.executable,
        str(HOSTILE),
        "good",
    )
    assert "Moved secrets to secrets.yaml: API_KEY" in added
    assert "k3y-of-mine-1234" not in added
    assert settings().servers["echo"].args == (str(HOSTILE), "good")
    assert run("run", "echo.echo(text='hi')").strip() == "hi"
    assert "a server named echo exists" in run(
        "servers", "add", "echo", "--url", "https://x.example.com", status=1
    )
    assert "expected --url URL, or the command" in run("servers", "add", "x", status=2)
    run("servers", "disable", "echo")
    assert "disabled" in run("servers", "list")
    assert json.loads(run("servers", "enable", "echo", "--json"))["id"]
    run("agents", "set", "reviewer", "permissions=[read]", "budgets.calls=5", "policy=read-only")
    assert "reviewer  [read], all tools, policy read-only" in run("agents", "list")
    assert run("agents", "check", "fs.write('a', 'b')", "--agent", "reviewer", status=1).startswith(
        "deny"
    )
    run("agents", "set", "reviewer", "budgets.calls=null")
    assert settings().agents["reviewer"].budgets.calls is None
    assert "expected KEY=VALUE" in run("agents", "set", "reviewer", "permissions", status=1)
    command = [PROGRAM, "secret", "set", "TOKEN"]
    subprocess.run(
        command,
        cwd=tmp_path,
        env=environment(tmp_path),
        input=b"hush-hush\n",
        check=True,
        capture_output=True,
    )
    assert "TOKEN" in run("secret", "list")
    keys = {
        each["name"]: each["usedBy"]
        for each in json.loads(run("secret", "list", "--json"))["secrets"]
    }
    assert keys == {"API_KEY": [{"kind": "server", "name": "echo"}], "TOKEN": []}
    assert "hush-hush" not in run("secret", "list") + run("settings", "history")
    run("secret", "delete", "TOKEN")
    changes = json.loads(run("settings", "history", "--json"))["changes"]
    assert [change["action"] for change in changes[:3]] == [
        "secrets.delete",
        "secrets.set",
        "agents.set",
    ]
    assert "nothing was undone: not confirmed" in run("settings", "undo", status=1)
    assert settings().agents["reviewer"].budgets.calls is None
    assert "calls: 5" in run("settings", "undo", "--yes")
    assert settings().agents["reviewer"].budgets.calls == 5
    run("servers", "remove", "echo")
    assert not settings().servers
    use = ("API_KEY", "--bundle", "pets", "--host", "api.example.com")
    assert "+    API_KEY:" in run("secret", "allow", *use)
    assert settings().bundle_secrets == {"pets": {"API_KEY": ("https://api.example.com",)}}
    run("secret", "disallow", *use)
    assert not settings().bundle_secrets
    assert "invalid slug" in run(
        "secret", "allow", "A", "--bundle", "not a slug", "--host", "b.test", status=1
    )
    assert "user" in (tmp_path / ".onetool" / "logs" / "audit.jsonl").read_text()


def test_hosts_are_added_and_removed_by_commands_and_over_rest(home: EditedHome) -> None:
    configure(home.home, make_settings(home.home))

    def run(*arguments: str, status: int = 0) -> str:
        done = run_cli(home.home, "hosts", *arguments)
        assert done.returncode == status, done.stdout + done.stderr
        return done.stdout + done.stderr

    before = home.get("/api/settings/hosts")["hosts"]
    assert "+" in run("add", "one.example.com", "two.example.com", "--dry-run")
    assert json.loads(run("list", "--json"))["hosts"] == before
    run("add", "one.example.com", "two.example.com")
    assert run("add", "one.example.com") == "Nothing to change.\n"
    run("remove", "two.example.com")
    assert "'two.example.com' is not an allowed host" in run("remove", "two.example.com", status=1)
    assert "one.example.com" in run("list")
    assert eventually(lambda: "one.example.com" in home.onetool.settings.http.allowed_hosts)
    body = {"add": ["three.example.com"], "remove": ["one.example.com"]}
    for scope, status in (("approve", 403), ("admin", 200), ("admin", 404)):
        assert home.send("PATCH", "/api/settings/hosts", body, scope).status_code == status
    assert json.loads(run("list", "--json"))["hosts"] == [*before, "three.example.com"]
    assert (
        home.send("PATCH", "/api/settings/hosts", {"add": ["127.0.0.1"]}, "admin").status_code
        == 403
    )


def test_the_history_has_changes_of_this_project_and_of_the_home_only(tmp_path: Path) -> None:
    one, other = (tmp_path / name for name in ("one", "other"))

    def run(project: Path, *arguments: str, answer: str = "") -> subprocess.CompletedProcess[str]:
        command = [PROGRAM, *arguments]
        env = environment(tmp_path)
        return subprocess.run(
            command, cwd=project, env=env, input=answer, capture_output=True, text=True, check=False
        )

    for project in (one, other):
        (project / ".onetool").mkdir(parents=True)
        (project / ".onetool" / "onetool.yaml").write_text(
            "aliases: {now: machine.now}\n", encoding="utf-8"
        )
        assert run(project, "trust", answer="yes\n").returncode == 0
        done = run(project, "agents", "set", f"of-{project.name}", "permissions=[read]")
        assert done.returncode == 0, done.stderr
    run(one, "agents", "set", "of-home", "permissions=[read]", "--user")

    def list_names(project: Path) -> list[str]:
        history = run(project, "settings", "history", "--json").stdout
        return [name for change in json.loads(history)["changes"] for name in change["names"]]

    assert (list_names(one), list_names(other)) == (["of-home", "of-one"], ["of-home", "of-other"])
    history = run(one, "settings", "history", "--json").stdout
    of_home, of_one = json.loads(history)["changes"]
    assert of_home["paths"] == [str(tmp_path / ".onetool" / "onetool.yaml")]
    refused = run(other, "settings", "undo", of_one["id"], "--yes")
    assert (refused.returncode, f"no change '{of_one['id']}'" in refused.stderr) == (1, True)
    asked = run(one, "settings", "undo", of_one["id"], answer="no\n")
    assert (
        asked.returncode,
        f"Undo this change of {of_one['paths'][0]}? [y/N]" in asked.stdout,
    ) == (1, True)
    assert run(one, "settings", "undo", of_one["id"], answer="y\n").returncode == 0
    assert "of-one" not in (one / ".onetool" / "onetool.yaml").read_text(encoding="utf-8")
    assert "of-other" in (other / ".onetool" / "onetool.yaml").read_text(encoding="utf-8")
    run(other, "agents", "set", "of-other", "permissions=[network]", "--user")
    assert "of-other:" in (tmp_path / ".onetool" / "onetool.yaml").read_text(encoding="utf-8")
    assert "network" not in (other / ".onetool" / "onetool.yaml").read_text(encoding="utf-8")


def test_a_running_server_applies_changes_of_commands(home: EditedHome) -> None:
    configure(home.home, make_settings(home.home))
    done = run_cli(home.home, "agents", "set", "night", "permissions=[read]")
    assert done.returncode == 0, done.stderr
    assert eventually(lambda: "night" in home.onetool.settings.agents)
    assert json.loads(run_cli(home.home, "ui", "--no-browser", "--json").stdout)["url"].startswith(
        home.url
    )


def test_ui_prints_a_url_that_opens_a_session_of_the_owner(
    home: EditedHome, tmp_path: Path
) -> None:
    browser = tmp_path / "browser"
    browser.write_text(f'#!/bin/sh\necho "$1" > {tmp_path}/opened\n')
    browser.chmod(0o755)
    env = {**environment(home.home), "BROWSER": str(browser)}
    done = subprocess.run(
        [PROGRAM, "ui"], cwd=tmp_path, env=env, capture_output=True, text=True, check=True
    )
    url = done.stdout.strip()
    assert url.startswith(f"{home.url}/#/code/")
    assert eventually(
        lambda: (tmp_path / "opened").exists() and (tmp_path / "opened").read_text().strip() == url
    )
    answer = home.rest.send("POST", "/api/session", {"code": url.rpartition("/")[2]})
    assert answer.json()["scope"] == "owner"


def test_ui_without_a_server_says_what_to_type(tmp_path: Path) -> None:
    done = run_cli(tmp_path, "ui", "--no-browser")
    assert done.returncode == 1
    assert "onetool serve --http" in done.stderr


def test_a_token_of_a_named_file_does_not_disable_those_of_the_owner(tmp_path: Path) -> None:
    configure(tmp_path, make_settings(tmp_path))
    project = tmp_path / "project"
    (project / ".onetool").mkdir(parents=True)
    (project / ".onetool" / "onetool.yaml").write_text(
        "aliases: {now: machine.now}\n", encoding="utf-8"
    )
    file = str(project / ".onetool" / "onetool.yaml")
    with (
        serve_process(tmp_path, "--config", file, cwd=project) as (_, served),
        make_client(served["url"]) as client,
    ):
        for scope, status in (("admin", 400), ("owner", 201)):
            headers = {"authorization": f"Bearer {TOKENS[scope]}"}
            created = client.post(
                "/api/tokens", json={"name": "new", "agent": "reviewer"}, headers=headers
            )
            assert created.status_code == status, created.text
            assert "no longer accepted with this file: use, approve, admin, owner" in created.text
