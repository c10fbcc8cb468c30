"""Test a home on a full or read-only disk: reading works, deleting frees space, and errors name the
disk.
"""

import json
import subprocess
from collections.abc import Iterator
from pathlib import Path

import httpx2
import pytest
from tests.bundles_support import (
    bundle_body,
    expect_error,
    list_slugs,
    new_bundle,
    open_store,
    search_slugs,
    tool_body,
)
from tests.disk_support import Disk, mount_disk
from tests.rest_support import (
    Rest,
    draft,
    get_error_code,
    make_client,
    new_id,
    serve_app,
    serve_process,
)
from tests.support import eventually, run_cli

from onetool.state.documents import DocumentFile


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[Disk]:
    with mount_disk(tmp_path) as disk:
        yield disk


def create_bundle(disk: Disk) -> str:
    """Create a bundle with two tools and return its id."""
    with open_store(disk.bundles) as store:
        bundle = new_bundle(store, "kept")
        for slug in ("one", "two"):
            store.put_tool(bundle, slug, "1", tool_body(pythonImpl={"function": "machine.now"}))
        return bundle


def check_storage_error(answer: httpx2.Response, disk: Disk, why: str) -> None:
    assert get_error_code(answer) == (507, "storage_unavailable"), answer.text
    error = answer.json()["error"]
    assert f"cannot write {disk.place}" in error["message"]
    assert f"the disk mounted at {disk.place} is {why}" in error["message"]
    assert error["details"]["mount"] == str(disk.place)


def check_reading(rest: Rest, bundle: str) -> None:
    assert {"kept.one", "kept.two"} <= {
        tool["name"] for tool in rest.get("/api/tools", pageSize=256)["tools"]
    }
    assert "nextPageToken" in rest.get("/api/tools", pageSize=1)
    assert "kept" in {pack["name"] for pack in rest.get("/api/packs")["packs"]}
    assert rest.get("/api/health")["registry"]["status"] == "ok"
    assert [tool["slug"] for tool in rest.get("/tools", pageSize=5, bundleIDs=bundle)["tools"]] == [
        "one",
        "two",
    ]
    first = rest.get("/tools", pageSize=1, bundleIDs=bundle)
    rest.get("/tools", pageSize=1, bundleIDs=bundle, pageToken=first["nextPageToken"])
    assert rest.get(f"/tools/bundles/{bundle}/tools/one/version/1")["slug"] == "one"
    assert rest.get("/tools/search", q="one")["tools"][0]["slug"] == "one"


# --- read-only ------------------------------------------------------------------------------------


@pytest.mark.parametrize("has_index", [True, False], ids=["index", "no-index"])
def test_a_read_only_home_is_readable_over_rest_and_rejects_writes(
    disk: Disk, has_index: bool
) -> None:
    bundle = create_bundle(disk)
    if not has_index:
        subprocess.run(["rm", "-r", disk.bundles / ".index"], check=True)
    disk.make_read_only()
    with serve_process(disk.home) as (_, info), make_client(info["url"]) as client:
        rest = Rest(client)
        check_reading(rest, bundle)
        one = f"/tools/bundles/{bundle}/tools/one/version/1"
        for method, path, body in (
            ("PATCH", "/api/tools/kept.one", {"isEnabled": False}),
            ("PATCH", "/api/tools/machine.now", {"isEnabled": False}),
            ("PATCH", "/api/packs/kept", {"isEnabled": False}),
            ("PATCH", "/api/packs/machine", {"isEnabled": False}),
            ("PATCH", f"/tools/bundles/{bundle}", {"isEnabled": False}),
            ("PATCH", one, {"isEnabled": False}),
            ("PUT", f"/tools/bundles/{bundle}/tools/three/version/1", draft()),
            ("PUT", f"/tools/bundles/{new_id()}", bundle_body("new")),
            ("DELETE", one, None),
        ):
            check_storage_error(rest.send(method, path, body), disk, "read-only")
        assert client.get(one).status_code == 200
        assert any("read-only" in problem for problem in rest.get("/api/health")["problems"])


def test_a_read_only_home_is_readable_by_runs_and_the_doctor(disk: Disk) -> None:
    create_bundle(disk)
    assert run_cli(disk.home, "run", "machine.now()").returncode == 0
    disk.make_read_only()
    recorded = run_cli(disk.home, "stats", "--json")
    assert json.loads(recorded.stdout)["total_calls"] > 0, recorded.stderr
    assert "is damaged" not in run_cli(disk.home, "run", "ot.health()").stdout
    assert "kept.one" in run_cli(disk.home, "run", "ot.tools(pattern='kept')").stdout
    health = run_cli(disk.home, "run", "ot.health()")
    assert health.returncode == 0
    assert "tool_count" in health.stdout
    assert run_cli(disk.home, "run", "kept.one()").returncode == 0
    assert "Traceback" not in run_cli(disk.home, "doctor").stdout


def test_an_external_edit_is_seen_on_a_read_only_disk(disk: Disk) -> None:
    bundle = create_bundle(disk)
    disk.make_read_only()
    with open_store(disk.bundles) as store:
        assert list_slugs(store) == ["one", "two"]
        disk.make_writable()
        (file,) = disk.bundles.glob("*/one@1.json")
        file.write_text(file.read_text().replace('"A tool"', '"Another"'))
        disk.make_read_only()
        assert store.get_tool(bundle, "one", "1").display_name == "Another"


# --- full -----------------------------------------------------------------------------------------


def test_space_can_be_freed_over_rest_on_a_full_disk(disk: Disk) -> None:
    bundle = create_bundle(disk)
    with serve_process(disk.home) as (_, info), make_client(info["url"]) as client:
        rest = Rest(client)
        disk.fill()
        check_reading(rest, bundle)
        check_storage_error(
            rest.send("PATCH", f"/tools/bundles/{bundle}", {"isEnabled": False}), disk, "full"
        )
        check_storage_error(
            rest.send("PATCH", "/api/tools/machine.now", {"isEnabled": False}), disk, "full"
        )
        check_storage_error(
            rest.send("PUT", f"/tools/bundles/{new_id()}", bundle_body("new")), disk, "full"
        )
        disk.fill()  # a failed attempt may have freed space
        assert (
            rest.send("DELETE", f"/tools/bundles/{bundle}/tools/one/version/1").status_code == 204
        )
        disk.fill()
        assert [tool["slug"] for tool in rest.get("/tools", bundleIDs=bundle)["tools"]] == ["two"]
        assert (
            rest.send("DELETE", f"/tools/bundles/{bundle}/tools/two/version/1").status_code == 204
        )
        disk.fill()
        assert rest.send("DELETE", f"/tools/bundles/{bundle}").status_code == 204
        assert client.get(f"/tools/bundles/{bundle}").status_code == 404
        disk.free()
        assert (
            rest.send("PUT", f"/tools/bundles/{new_id()}", bundle_body("kept")).status_code == 201
        )


def list_tokens(client: httpx2.Client) -> list[str]:
    return [token["name"] for token in client.get("/api/tokens").json()["tokens"]]


@pytest.mark.parametrize("way", ["command", "REST"])
def test_a_token_can_be_revoked_on_a_full_disk(disk: Disk, way: str) -> None:
    """Its hash is overwritten in the file. The entry is removed when the disk has space again."""
    tokens = {}
    for name, scope in (("lost", "use"), ("kept", "admin")):
        created = run_cli(disk.home, "token", "create", name, "--scope", scope, "--json")
        tokens[name] = json.loads(created.stdout)["token"]
    settings = disk.place / "onetool.yaml"
    with (
        serve_process(disk.home) as (_, info),
        make_client(info["url"]) as lost,
        make_client(info["url"]) as kept,
    ):
        lost.headers["Authorization"] = f"Bearer {tokens['lost']}"
        kept.headers["Authorization"] = f"Bearer {tokens['kept']}"
        assert lost.get("/api/tools").status_code == 200
        disk.fill()
        size = settings.stat().st_size
        if way == "command":
            done = run_cli(disk.home, "token", "revoke", "lost")
            assert done.returncode == 0, done.stderr
        else:
            assert kept.delete("/api/tokens/lost").status_code == 200
        assert settings.stat().st_size == size
        assert eventually(lambda: lost.get("/api/tools").status_code == 401)
        assert kept.get("/api/tools").status_code == 200
        assert eventually(lambda: list_tokens(kept) == ["kept"])
        disk.free()
        assert run_cli(disk.home, "token", "revoke", "lost").returncode == 0
        assert "lost" not in settings.read_text("utf-8")


def test_deletions_on_a_full_disk_are_permanent_for_every_process(disk: Disk) -> None:
    bundle = create_bundle(disk)
    with open_store(disk.bundles) as one, open_store(disk.bundles) as other:
        assert list_slugs(one) == list_slugs(other) == ["one", "two"]
        disk.fill()
        one.delete_tool(bundle, "one", "1")
        assert list_slugs(one) == list_slugs(other) == ["two"]
        assert (
            expect_error("storage_unavailable", new_bundle, one, "new").details["reason"] == "full"
        )
        disk.free()
        with open_store(disk.bundles) as third:
            assert list_slugs(third) == ["two"]
            assert search_slugs(third, "one") == []
            third.put_tool(bundle, "three", "1", tool_body())
        assert (disk.bundles / ".lock").stat().st_size == 0
        with open_store(disk.bundles) as fourth:
            assert list_slugs(fourth) == ["two", "three"]
            assert fourth.problems == []


def test_a_failed_write_leaves_no_files_on_a_full_disk(disk: Disk) -> None:
    bundle = create_bundle(disk)
    with open_store(disk.bundles) as store:
        store.list_bundles()
        disk.fill()
        before = sorted(disk.bundles.rglob("*"))
        for _ in range(3):
            expect_error(
                "storage_unavailable",
                store.put_tool,
                bundle,
                "three",
                "1",
                tool_body(description="x" * 5000),
            )
        assert {path.suffix for path in {*disk.bundles.rglob("*")} - {*before}} <= {""}


# --- switches -------------------------------------------------------------------------------------


@pytest.mark.sampled(3)
@pytest.mark.parametrize("damaged", ["", "{", "no database at all" * 1000])
def test_damaged_switches_disable_every_tool_and_are_reported(tmp_path: Path, damaged: str) -> None:
    file = DocumentFile(tmp_path / ".onetool").file
    file.parent.mkdir(parents=True)
    file.write_text(damaged)
    call = run_cli(tmp_path, "run", "machine.now()")
    assert call.returncode == 1
    assert f"cannot read {file}" in call.stdout + call.stderr
    assert f"rm {file}" in call.stdout + call.stderr
    assert f"cannot read {file}" in run_cli(tmp_path, "run", "ot.health()").stdout
    assert run_cli(tmp_path, "run", "ot.help()").returncode == 0
    assert run_cli(tmp_path, "run", "6 * 7").stdout == "42\n"
    assert str(file) in run_cli(tmp_path, "doctor").stdout
    file.unlink()
    assert run_cli(tmp_path, "run", "machine.now()").returncode == 0


def test_damaged_switches_disable_every_tool_over_rest_and_reject_changes(tmp_path: Path) -> None:
    with serve_app(tmp_path) as served:
        rest = served.rest
        stored = rest.tool(rest.bundle("stored"), **draft("machine.now"))
        assert rest.invoke(stored).json()["ok"]
        file = DocumentFile(tmp_path).file
        file.parent.mkdir(exist_ok=True)
        file.write_text("{")
        for name in ("machine.now", "stored.now"):
            answer = rest.send("POST", f"/api/tools/{name}/call", {"args": {}})
            assert "documents.db" in answer.text, answer.text
            assert answer.status_code == 409 or not answer.json()["ok"]
        assert not any(
            pack["isEnabled"]
            for pack in rest.get("/api/packs")["packs"]
            if pack["name"] in {"machine", "stored"}
        )
        answer = rest.send("PATCH", "/api/tools/machine.now", {"isEnabled": False})
        assert get_error_code(answer) == (507, "storage_unavailable")
        assert file.read_text() == "{"
        assert "documents.db" in str(rest.get("/api/health")["problems"])
