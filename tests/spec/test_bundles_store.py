# ruff: noqa: RUF001 - some tests are about characters that look alike
"""Specification 4, the store alone: without transports, calls or network."""

import json
import os
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest
from tests.bundles_support import (
    Clock,
    bundle_body,
    bundle_directory,
    expect_error,
    list_slugs,
    new_bundle,
    open_store,
    search_slugs,
    tool_body,
)
from tests.support import eventually

from onetool.sources.bundles import BundleStore, Page
from onetool.sources.bundles.bundle_storage import BundleDirectory

HTTP: dict[str, Any] = {
    "type": "http",
    "pythonImpl": None,
    "httpImpl": {"method": "GET", "urlTemplate": "https://api.example.com/x"},
}


@pytest.fixture
def root(tmp_path: Path) -> Path:
    return tmp_path / "bundles"


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def store(root: Path, clock: Clock) -> Iterator[BundleStore]:
    with open_store(root, clock=clock, steady=clock.read_seconds) as opened:
        yield opened


def put(store: BundleStore, bundle: str, slug: str, version: str = "1", **more: Any) -> str:
    return store.put_tool(bundle, slug, version, tool_body(**more)).id


# --- types, ids, slugs, versions, tags ------------------------------------------------------------


@pytest.mark.spec("bundles.type.python-or-http", "bundles.type.go-means-python")
def test_a_tool_is_python_or_http_and_go_is_stored_as_sent(root: Path, store: BundleStore) -> None:
    bundle = new_bundle(store)
    put(store, bundle, "p")
    put(store, bundle, "h", **HTTP)
    put(store, bundle, "g", type="go")
    output = {tool.slug: tool.as_json() for tool in store.list_bundle_tools(bundle)}
    assert {slug: tool["type"] for slug, tool in output.items()} == {
        "p": "python",
        "h": "http",
        "g": "go",
    }
    assert "httpImpl" not in output["g"]
    assert "pythonImpl" not in output["h"]
    assert json.loads((bundle_directory(root, bundle) / "g@1.json").read_text())["type"] == "go"
    for wrong in (
        {"type": "ruby"},
        {"type": "http"},
        {**HTTP, "type": "python"},
        {"type": "python", "pythonImpl": None},
    ):
        expect_error("invalid", put, store, bundle, "x", **wrong)


@pytest.mark.spec("bundles.id.uuid-7")
def test_ids_must_be_uuids_of_version_7(store: BundleStore) -> None:
    bundle = new_bundle(store)
    assert store.put_tool(bundle, "tool", "1", tool_body()).id[14] == "7"
    for wrong in (
        "",
        "x",
        str(uuid4()),
        store.new_id().replace("-", ""),
        f"{{{store.new_id()}}}",
        "../etc",
        None,
        7,
    ):
        expect_error("invalid", store.put_bundle, wrong, bundle_body("other"))
        expect_error("invalid", store.get_tool, wrong, "tool", "1")
        expect_error("invalid", store.list_tools, bundle_ids=[wrong])


@pytest.mark.spec(
    "bundles.slug.letters-digits-and-dash",
    "bundles.slug.one-to-64-code-points",
    "bundles.slug.any-file-system",
)
@pytest.mark.parametrize(
    "slug", ["a", "-", "con", "Ünïcode-٣", "検索", "ꙮ" * 64, "𝒳" * 64, "A" * 64, "nul", "ſ", "ß"]
)
def test_letters_and_digits_of_any_script_and_dashes_are_valid_slugs(
    root: Path, store: BundleStore, slug: str
) -> None:
    bundle = new_bundle(store, slug)
    put(store, bundle, slug, slug)
    with open_store(root) as again:
        again.rescan()
        assert again.problems == []
        assert again.get_tool(bundle, slug, slug).slug == slug
        assert again.get_bundle(bundle).slug == slug


@pytest.mark.spec(
    "bundles.slug.nothing-else",
    "bundles.version.slug-characters-and-dot",
    "bundles.version.no-dot-names",
)
def test_other_characters_are_rejected_in_slugs_and_versions(store: BundleStore) -> None:
    bundle = new_bundle(store)
    for wrong in (
        "",
        "a_b",
        "a b",
        "a/b",
        "a\\b",
        "a.b",
        "a\n",
        "a\x00",
        "+a",
        "a@b",
        "é\u0301",
        "😀",
        "x" * 65,
    ):
        expect_error("invalid", put, store, bundle, wrong)
        expect_error("invalid", new_bundle, store, wrong)
    put(store, bundle, "tool", "1.0.0-beta.2")
    put(store, bundle, "tool", "...")
    for wrong in (".", "..", "", "1_0", "1/0", "x" * 65):
        expect_error("invalid", put, store, bundle, "tool", wrong)


@pytest.mark.spec("bundles.slug.compared-exactly", "bundles.version.opaque")
def test_slugs_and_versions_are_compared_exactly(store: BundleStore) -> None:
    bundle = new_bundle(store)
    alike = ["read", "Read", "READ", "ｒead", "reａd", "rеad"]
    for slug in alike:
        put(store, bundle, slug, "v1")
        put(store, bundle, slug, "V1")
        put(store, bundle, slug, "01")
        put(store, bundle, slug, "1")
    assert len(list_slugs(store)) == 4 * len(alike)
    assert all(store.get_tool(bundle, slug, "V1").slug == slug for slug in alike)


@pytest.mark.spec("bundles.slug.unique-among-live-bundles")
def test_a_slug_belongs_to_one_live_bundle(store: BundleStore) -> None:
    first, second = new_bundle(store, "taken"), new_bundle(store, "free")
    expect_error("slug_taken", lambda: store.put_bundle(store.new_id(), bundle_body("taken")))
    expect_error("slug_taken", lambda: store.put_bundle(second, bundle_body("taken")))
    store.put_bundle(first, bundle_body("taken", displayName="the same one"))
    new_bundle(store, "Taken")
    store.delete_bundle(first)
    new_bundle(store, "taken")
    expect_error("slug_taken", lambda: store.put_bundle(first, bundle_body("taken")))


@pytest.mark.spec(
    "bundles.version.unique-within-a-bundle", "bundles.version.may-repeat-across-bundles"
)
@pytest.mark.spec(
    "bundles.tool.put-creates", "bundles.tool.put-of-existing-pair", "bundles.tool.get"
)
def test_a_pair_is_unique_in_a_bundle_and_a_second_put_changes_nothing(
    root: Path, store: BundleStore
) -> None:
    first, second = new_bundle(store, "one"), new_bundle(store, "two")
    created = store.put_tool(first, "tool", "1", tool_body(displayName="First"))
    before = (bundle_directory(root, first) / "tool@1.json").read_bytes()
    expect_error("duplicate", lambda: put(store, first, "tool", displayName="Second"))
    assert store.get_tool(first, "tool", "1") == created
    assert (bundle_directory(root, first) / "tool@1.json").read_bytes() == before
    put(store, first, "tool", "2")
    put(store, second, "tool", "1")


@pytest.mark.spec("bundles.tags.shape", "bundles.tags.no-duplicates")
def test_tags_are_validated_and_unique(store: BundleStore) -> None:
    bundle = new_bundle(store)
    put(store, bundle, "good", tags=["a", "_", "A-b_9", "x" * 64])
    for wrong in (["1a"], ["-a"], [""], ["a b"], ["é"], ["x" * 65], ["a", "a"], "a", [1], None):
        expect_error("invalid", put, store, bundle, "bad", tags=wrong)


@pytest.mark.spec("bundles.routes.body-fields", "bundles.routes.camel-case")
def test_bodies_with_unknown_or_invalid_fields_are_rejected(store: BundleStore) -> None:
    bundle = new_bundle(store)
    for wrong in (
        {"surprise": 1},
        {"display_name": "x"},
        {"isEnabled": "yes"},
        {"isEnabled": 1},
        {"displayName": " "},
        {"displayName": "\ud800"},
    ):
        expect_error("invalid", put, store, bundle, "x", **wrong)
        expect_error("invalid", store.put_bundle, store.new_id(), {**bundle_body("x"), **wrong})
    for field in ("displayName", "isEnabled", "type"):
        body = tool_body()
        del body[field]
        expect_error("invalid", store.put_tool, bundle, "x", "1", body)
    no_objects: list[Any] = [[], "x", None, 7]
    for no_object in no_objects:
        expect_error("invalid", store.put_tool, bundle, "x", "1", no_object)
    schemas: list[Any] = [
        {"type": "string"},
        {"type": 7},
        {"$ref": "https://example.com/x"},
        {"properties": 3},
        True,
        [],
    ]
    for schema in schemas:
        expect_error("invalid", put, store, bundle, "x", argSchema=schema)
    deep: Any = {}
    for _ in range(5_000):
        deep = {"not": deep}
    expect_error("invalid", lambda: put(store, bundle, "x", outputSchema=deep))
    large = {"type": "object", "description": "x" * ((1 << 19) - 100)}  # one alone is not too large
    expect_error("too_large", lambda: put(store, bundle, "x", argSchema=large, outputSchema=large))
    assert set(store.put_tool(bundle, "x", "1", tool_body()).as_json()) == {
        "id", "bundleID", "bundleSlug", "slug", "version", "displayName", "description", "tags", "type", "argSchema",
        "outputSchema", "pythonImpl", "isEnabled", "isBuiltIn", "createdAt", "modifiedAt", "callCount", "lastCalledAt",
    }  # fmt: skip
    assert set(store.get_bundle(bundle).as_json()) == {
        "id", "slug", "displayName", "description", "isEnabled", "isBuiltIn", "createdAt", "modifiedAt",
    }  # fmt: skip


# --- times ----------------------------------------------------------------------------------------


@pytest.mark.spec(
    "bundles.time.created-at-never-moves", "bundles.time.modified-at-moves-with-content"
)
@pytest.mark.spec(
    "bundles.time.modified-at-ignores-toggles",
    "bundles.bundle.patch-toggles",
    "bundles.tool.patch-toggles",
)
def test_the_modification_time_changes_only_with_the_content(
    store: BundleStore, clock: Clock
) -> None:
    bundle = new_bundle(store)
    tool = store.put_tool(bundle, "tool", "1", tool_body())
    created = store.get_bundle(bundle)
    assert created.as_json()["createdAt"] == "2026-11-15T12:00:00.000000Z"
    clock.move(hours=1)
    off = store.set_bundle_enabled(bundle, {"isEnabled": False})
    assert off == created.model_copy(update={"is_enabled": False})
    store.put_bundle(bundle, bundle_body("tools"))
    assert store.get_bundle(bundle) == created
    toggled = store.set_tool_enabled(bundle, "tool", "1", False)
    assert toggled == tool.model_copy(update={"is_enabled": False})
    store.put_bundle(bundle, bundle_body("tools", description="new"))
    changed = store.get_bundle(bundle)
    assert (changed.created_at, changed.modified_at) == (created.created_at, clock.now)


# --- bundles --------------------------------------------------------------------------------------


@pytest.mark.spec(
    "bundles.bundle.put-creates", "bundles.bundle.put-replaces", "bundles.bundle.list"
)
@pytest.mark.spec("bundles.bundle.list-hides-disabled")
def test_bundles_are_created_replaced_and_listed(store: BundleStore) -> None:
    ids = [store.new_id() for _ in range(3)]
    for number, one in enumerate(ids):
        bundle, is_new = store.put_bundle(one, bundle_body(f"pack-{number}"))
        assert is_new
        assert bundle == store.get_bundle(one)
    replaced, is_new = store.put_bundle(ids[0], bundle_body("renamed", isEnabled=False))
    assert (replaced.slug, is_new) == ("renamed", False)
    assert [one.id for one in store.list_bundles().items] == ids[1:]
    assert [one.id for one in store.list_bundles(include_disabled=True).items] == ids
    assert [one.id for one in store.list_bundles(ids=[ids[2], ids[0], store.new_id()]).items] == [
        ids[2]
    ]
    assert (
        store.bundle_by_slug("pack-1") == store.bundle_by_slug("pack_1") == store.get_bundle(ids[1])
    )
    assert store.bundle_by_slug("pack.1") is None


@pytest.mark.spec(
    "bundles.bundle.group-switch",
    "bundles.tool.list-hides-disabled",
    "bundles.search.hides-disabled",
)
def test_disabling_a_bundle_disables_all_its_tools(store: BundleStore) -> None:
    bundle, other = new_bundle(store, "one"), new_bundle(store, "two")
    put(store, bundle, "in-use")
    put(store, bundle, "not-in-use", isEnabled=False)
    put(store, other, "elsewhere")
    assert list_slugs(store) == ["in-use", "elsewhere"]
    assert search_slugs(store, "use") == ["in-use"]
    store.set_bundle_enabled(bundle, False)
    assert list_slugs(store) == ["elsewhere"]
    assert search_slugs(store, "use") == []
    assert sorted(search_slugs(store, "use", include_disabled=True)) == ["in-use", "not-in-use"]
    assert list_slugs(store, include_disabled=True) == ["in-use", "not-in-use", "elsewhere"]
    assert [tool.in_use for tool in store.list_bundle_tools(bundle)] == [False, False]
    store.set_bundle_enabled(bundle, True)
    assert list_slugs(store) == ["in-use", "elsewhere"]
    assert [tool.in_use for tool in store.list_bundle_tools(bundle)] == [True, False]


@pytest.mark.spec(
    "bundles.deletion.soft",
    "bundles.deletion.not-empty",
    "bundles.deletion.hidden",
    "bundles.deletion.revived",
)
@pytest.mark.spec("bundles.state.deleted-bundle")
def test_a_deleted_bundle_is_hidden_and_restored_by_a_put(
    root: Path, store: BundleStore, clock: Clock
) -> None:
    bundle = new_bundle(store)
    put(store, bundle, "tool")
    expect_error("bundle_not_empty", lambda: store.delete_bundle(bundle))
    store.delete_tool(bundle, "tool", "1")
    created = store.get_bundle(bundle)
    store.delete_bundle(bundle)
    kept = json.loads((bundle_directory(root, bundle) / "bundle.json").read_text())
    assert kept["softDeletedAt"] == "2026-11-15T12:00:00.000000Z"
    assert store.list_bundles(include_disabled=True).items == []
    assert store.list_bundles(ids=[bundle], include_disabled=True).items == []
    assert store.bundle_by_slug("tools") is None
    for gone in (store.get_bundle, store.delete_bundle, store.list_bundle_tools):
        expect_error("not_found", gone, bundle)
    expect_error("not_found", lambda: store.set_bundle_enabled(bundle, False))
    expect_error("not_found", lambda: put(store, bundle, "tool"))
    expect_error("not_found", lambda: store.get_tool(bundle, "tool", "1"))
    expect_error("not_found", lambda: store.set_tool_enabled(bundle, "tool", "1", True))
    clock.move(days=1, hours=23)
    store.remove_expired()
    revived, is_new = store.put_bundle(bundle, bundle_body("tools"))
    assert (revived, is_new) == (created, False)
    put(store, bundle, "tool")


@pytest.mark.spec("bundles.deletion.reaped", "bundles.deletion.reaper-spares-content")
def test_only_empty_deleted_bundles_are_removed_after_two_days(
    root: Path, store: BundleStore, clock: Clock
) -> None:
    empty, full, live = (new_bundle(store, slug) for slug in ("empty", "full", "live"))
    store.delete_bundle(empty)
    store.delete_bundle(full)
    directory, spared = bundle_directory(root, empty), bundle_directory(root, full)
    (spared / ".keep").write_text("mine")
    clock.move(days=2)
    store.remove_expired()
    assert not directory.exists()
    assert (spared / ".keep").read_text() == "mine"
    assert (spared / "bundle.json").exists()
    assert [one.id for one in store.list_bundles().items] == [live]
    expect_error("not_found", lambda: put(store, full, "tool"))
    again, is_new = store.put_bundle(empty, bundle_body("empty"))
    assert (again.created_at, is_new) == (clock.now, True)
    again, is_new = store.put_bundle(full, bundle_body("full"))
    assert (again.created_at, is_new) == (clock.now, True)
    assert (spared / ".keep").exists()


def test_opening_a_store_removes_expired_bundles(
    root: Path, store: BundleStore, clock: Clock
) -> None:
    bundle = new_bundle(store)
    store.delete_bundle(bundle)
    clock.move(days=3)
    with open_store(root, clock=clock, steady=clock.read_seconds) as again:
        again.list_bundles()
        assert eventually(lambda: not list(root.glob(f"*{bundle}")))


def test_an_open_store_removes_expired_bundles_again_and_again(root: Path, clock: Clock) -> None:
    make_directory = partial(BundleDirectory, interval=0.01)
    with open_store(
        root, clock=clock, steady=clock.read_seconds, make_directory=make_directory
    ) as store:
        for _ in range(2):
            bundle = new_bundle(store)
            store.delete_bundle(bundle)
            clock.move(days=3)
            pattern = f"*{bundle}"
            assert eventually(partial(_is_missing, root, pattern))


@pytest.mark.parametrize("days", [8, -8])
def test_a_deleted_bundle_is_kept_after_the_clock_has_jumped(
    root: Path, clock: Clock, days: int
) -> None:
    with open_store(root, clock=clock) as store:
        bundle = new_bundle(store)
        created = store.get_bundle(bundle)
        store.delete_bundle(bundle)
        clock.move(days=days)
        store.remove_expired()
        clock.move(days=-days)
        assert store.put_bundle(bundle, bundle_body()) == (created, False)


def _is_missing(root: Path, pattern: str) -> bool:
    return not list(root.glob(pattern))


# --- tools ----------------------------------------------------------------------------------------


@pytest.mark.spec("bundles.tool.delete", "bundles.tool.list", "bundles.tool.list-by-tags")
def test_tools_are_listed_by_bundle_and_tag_and_deleted_permanently(
    root: Path, store: BundleStore
) -> None:
    one, two, three = (new_bundle(store, slug) for slug in ("one", "two", "three"))
    put(store, one, "a", tags=["red", "round"])
    put(store, two, "b", tags=["red"])
    put(store, two, "c", tags=["Red", "blue"])
    put(store, three, "d")
    assert list_slugs(store) == ["a", "b", "c", "d"]
    assert list_slugs(store, bundle_ids=[two, one, two]) == ["a", "b", "c"]
    assert list_slugs(store, tags=["red"]) == ["a", "b"]
    assert list_slugs(store, tags=["blue", "round", "red", "none"]) == ["a", "b", "c"]
    assert list_slugs(store, tags=["red", "blue"], bundle_ids=[two, three]) == ["b", "c"]
    assert list_slugs(store, tags=[]) == list_slugs(store, bundle_ids=[]) == []
    store.delete_tool(two, "b", "1")
    assert list_slugs(store) == ["a", "c", "d"]
    assert not list(root.rglob("b@1*"))
    expect_error("not_found", lambda: store.delete_tool(two, "b", "1"))
    put(store, two, "b")


@pytest.mark.spec("bundles.state.disabled-bundle")
def test_tools_of_a_disabled_bundle_cannot_be_changed(store: BundleStore) -> None:
    bundle = new_bundle(store)
    put(store, bundle, "tool")
    put(store, bundle, "other")
    store.set_bundle_enabled(bundle, False)
    expect_error("bundle_disabled", lambda: put(store, bundle, "new"))
    expect_error("bundle_disabled", lambda: store.put_many(bundle, []))
    expect_error("bundle_disabled", lambda: store.set_tool_enabled(bundle, "tool", "1", False))
    assert store.get_tool(bundle, "tool", "1").is_enabled
    store.delete_tool(bundle, "tool", "1")


@pytest.mark.spec("bundles.error.precedence")
def test_the_first_error_takes_precedence(store: BundleStore) -> None:
    bundle = new_bundle(store)
    put(store, bundle, "tool")
    expect_error("invalid", lambda: store.put_tool("no id", "no slug", "..", {}))
    expect_error("invalid", lambda: store.put_tool(store.new_id(), "no slug", "1", {}))
    expect_error("not_found", lambda: store.put_tool(store.new_id(), "tool", "1", {}))
    expect_error("invalid", lambda: store.put_tool(bundle, "tool", "1", {}))
    store.set_bundle_enabled(bundle, False)
    expect_error("bundle_disabled", lambda: store.put_tool(bundle, "tool", "1", {}))
    expect_error(
        "not_found", lambda: store.set_tool_enabled(bundle, "missing", "1", {"nonsense": 1})
    )
    expect_error(
        "bundle_disabled", lambda: store.set_tool_enabled(bundle, "tool", "1", {"nonsense": 1})
    )
    expect_error("invalid", lambda: store.set_bundle_enabled(bundle, {"nonsense": 1}))


@pytest.mark.spec("bundles.limit.number-of-tools")
def test_the_number_of_tools_in_a_store_is_limited(root: Path) -> None:
    with open_store(root, max_tools=3) as store:
        bundle, other = new_bundle(store, "one"), new_bundle(store, "two")
        put(store, bundle, "a")
        put(store, other, "b")
        expect_error(
            "too_large",
            lambda: store.put_many(bundle, [("c", "1", tool_body()), ("d", "1", tool_body())]),
        )
        put(store, bundle, "c")
        expect_error("too_large", lambda: put(store, other, "d"))
        store.delete_tool(other, "b", "1")
        put(store, other, "d")


def test_many_tools_are_stored_all_or_none(store: BundleStore) -> None:
    bundle = new_bundle(store)
    put(store, bundle, "old")
    good = [(f"new-{number}", "1", tool_body()) for number in range(3)]
    for bad, code in (
        (("old", "1", tool_body()), "duplicate"),
        (good[0], "duplicate"),
        (("x", "1", {}), "invalid"),
        (("x y", "1", {}), "invalid"),
    ):
        error = expect_error(code, store.put_many, bundle, [*good, bad])
        assert error.details["index"] == 3
    assert list_slugs(store) == ["old"]
    assert [tool.slug for tool in store.put_many(bundle, good)] == ["new-0", "new-1", "new-2"]
    assert [
        tool.slug
        for tool in sorted(store.list_bundle_tools(bundle), key=lambda tool: tool.modified_at)
    ][-1] == "new-2"


# --- built-ins ------------------------------------------------------------------------------------


@pytest.fixture
def shipped(tmp_path: Path) -> Path:
    """Create a built-in bundle with a store, because the format is the same."""
    with open_store(tmp_path / "shipped") as maker:
        bundle = new_bundle(maker, "basics")
        put(maker, bundle, "hello", displayName="Say hello", tags=["greeting"])
    return tmp_path / "shipped"


@pytest.mark.spec(
    "bundles.builtin.content-is-read-only",
    "bundles.builtin.switch-works",
    "bundles.builtin.ordinary-routes",
)
def test_built_in_bundles_are_listed_and_can_only_be_enabled_or_disabled(
    root: Path, shipped: Path
) -> None:
    before = {file: file.read_bytes() for file in shipped.rglob("*.json")}
    with open_store(root, builtin=shipped) as store:
        own = new_bundle(store, "own")
        put(store, own, "hello-own")
        builtin = store.bundle_by_slug("basics")
        assert builtin is not None
        assert builtin.is_built_in
        assert sorted(list_slugs(store)) == ["hello", "hello-own"]
        assert sorted(search_slugs(store, "hello")) == ["hello", "hello-own"]
        assert list_slugs(store, tags=["greeting"], bundle_ids=[builtin.id]) == ["hello"]
        assert [one.slug for one in store.list_bundles().items] == ["basics", "own"]
        assert store.get_tool(builtin.id, "hello", "1").is_built_in
        for action in (
            lambda: store.put_bundle(builtin.id, {}),
            lambda: store.delete_bundle(builtin.id),
            lambda: put(store, builtin.id, "new"),
            lambda: store.delete_tool(builtin.id, "hello", "1"),
            lambda: store.set_bundle_enabled(builtin.id, {"displayName": "x"}),
            lambda: store.set_tool_enabled(
                builtin.id, "hello", "1", {"isEnabled": True, "displayName": "x"}
            ),
        ):
            expect_error("builtin_read_only", action)
        expect_error("slug_taken", lambda: new_bundle(store, "basics"))
        number = store.version()
        assert not store.set_tool_enabled(builtin.id, "hello", "1", {"isEnabled": False}).is_enabled
        assert store.version() != number
        assert list_slugs(store) == ["hello-own"]
    with open_store(root, builtin=shipped) as store, open_store(root, builtin=shipped) as other:
        assert list_slugs(store) == ["hello-own"]
        store.set_tool_enabled(builtin.id, "hello", "1", True)
        assert not store.set_bundle_enabled(builtin.id, False).is_enabled
        assert list_slugs(other) == ["hello-own"]
        other.set_bundle_enabled(builtin.id, True)
        assert sorted(search_slugs(store, "hello")) == ["hello", "hello-own"]
        assert store.problems == []
    assert {file: file.read_bytes() for file in shipped.rglob("*.json")} == before


def test_pages_contain_built_in_and_own_tools(root: Path, shipped: Path) -> None:
    with open_store(root, builtin=shipped) as store:
        own = new_bundle(store, "own")
        store.put_many(own, [(f"hello-{number}", "1", tool_body()) for number in range(5)])
        questions: list[Callable[..., Page[Any]]] = [
            store.list_tools,
            lambda **page: store.search("hello", **page),
        ]
        for ask in questions:
            given: list[str] = []
            token = None
            while token is not None or not given:
                page = ask(size=1, token=token)
                given, token = (
                    given + [getattr(item, "tool", item).slug for item in page.items],
                    page.next_token,
                )
            assert sorted(given) == ["hello", *(f"hello-{number}" for number in range(5))]


def test_a_damaged_states_file_is_reported_and_not_overwritten(root: Path, shipped: Path) -> None:
    with open_store(root, builtin=shipped) as store:
        new_bundle(store)
        (root / "builtins.json").write_text("{")
        builtin = store.bundle_by_slug("basics")
        assert builtin is not None
        assert not builtin.is_enabled  # a person may have disabled it
        expect_error("busy", lambda: store.set_bundle_enabled(builtin.id, False))
        assert any("builtins.json" in str(problem) for problem in store.problems)
        assert (root / "builtins.json").read_text() == "{"


# --- pages ----------------------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.spec("bundles.page.size")
def test_a_page_has_25_items_by_default_and_256_at_most(store: BundleStore) -> None:
    bundle = new_bundle(store)
    store.put_many(bundle, [(f"tool-{number}", "1", tool_body()) for number in range(260)])
    assert len(store.list_tools().items) == 25
    assert len(store.list_tools(size=1000).items) == 256
    assert len(store.search("tool").items) == 25
    for wrong in (0, -1, True, "ten", 2.5, None):
        expect_error("invalid", store.list_tools, size=wrong)
        expect_error("invalid", store.search, "tool", size=wrong)
        expect_error("invalid", store.list_bundles, size=wrong)


@pytest.mark.spec(
    "bundles.page.token-is-signed",
    "bundles.page.token-survives-restart",
    "bundles.page.token-pins-filters",
)
def test_a_page_token_is_valid_for_its_list_even_after_a_restart(
    root: Path, store: BundleStore
) -> None:
    bundle = new_bundle(store)
    store.put_many(bundle, [(f"tool-{number}", "1", tool_body(tags=["a"])) for number in range(6)])
    token = store.list_tools(tags=["a"], size=2).next_token
    found = store.search("tool", size=2).next_token
    assert token
    assert found
    with open_store(root) as again:
        assert [tool.slug for tool in again.list_tools(tags=["a"], size=3, token=token).items] == [
            "tool-2",
            "tool-3",
            "tool-4",
        ]
        assert [hit.tool.slug for hit in again.search("tool", size=2, token=found).items] == [
            "tool-3",
            "tool-2",
        ]
    expect_error("invalid", lambda: store.list_tools(tags=["b"], token=token))
    expect_error("invalid", lambda: store.list_tools(token=token))
    expect_error(
        "invalid", lambda: store.list_tools(tags=["a"], include_disabled=True, token=token)
    )
    expect_error("invalid", lambda: store.search("other", token=found))
    expect_error("invalid", lambda: store.list_bundles(token=token))
    expect_error(
        "invalid",
        lambda: store.list_tools(tags=["a"], token=token[:-1] + ("A" if token[-1] != "A" else "B")),
    )


# --- search ---------------------------------------------------------------------------------------


@pytest.mark.spec(
    "bundles.search.classes", "bundles.search.best-class-counts", "bundles.search.field-order"
)
@pytest.mark.spec("bundles.search.recency-last")
def test_search_ranks_prefixes_over_words_over_similarity_and_by_field(
    store: BundleStore, clock: Clock
) -> None:
    bundle = new_bundle(store)
    by_rank: list[dict[str, Any]] = [
        {"slug": "mail-a", "displayName": "X"},
        {"slug": "b", "displayName": "Mail b"},
        {"slug": "send-mail", "displayName": "X"},
        {"slug": "d", "displayName": "The mail"},
        {"slug": "e", "displayName": "X", "tags": ["mail"]},
        {"slug": "f", "displayName": "X", "description": "sends mail"},
        {"slug": "gmailer", "displayName": "X"},
        {"slug": "h", "displayName": "Webmailer"},
        {"slug": "i", "displayName": "X", "tags": ["webmailer"]},
        {"slug": "j", "displayName": "X", "description": "sends emails"},
        {"slug": "k", "displayName": "X", "description": "sends mial"},
    ]
    for body in reversed(
        by_rank
    ):  # the newest is the best, so that time alone would give the same order
        put(
            store,
            bundle,
            body["slug"],
            **{key: value for key, value in body.items() if key != "slug"},
        )
    for version in ("2", "3"):  # and again with time against the ranking
        for body in by_rank:
            clock.move(seconds=1)
            put(
                store,
                bundle,
                body["slug"],
                version,
                **{key: value for key, value in body.items() if key != "slug"},
            )
    found = store.search("mail", size=256).items
    places = [body["slug"] for body in by_rank]
    # j and k have the same rank: similarity in the description
    expected = [(slug, version) for slug in places[:-2] for version in ("3", "2", "1")]
    expected += [("k", "3"), ("j", "3"), ("k", "2"), ("j", "2"), ("j", "1"), ("k", "1")]
    assert [(hit.tool.slug, hit.tool.version) for hit in found] == expected
    assert [hit.match for hit in found] == ["prefix"] * 6 + ["word"] * 12 + ["fuzzy"] * 15
    scores = [hit.score for hit in found]
    assert scores == sorted(scores, reverse=True)


@pytest.mark.spec(
    "bundles.search.case-and-diacritics", "bundles.search.plain-text", "bundles.search.blank-query"
)
def test_search_ignores_case_and_diacritics_and_has_no_syntax(store: BundleStore) -> None:
    bundle = new_bundle(store)
    put(store, bundle, "café-Reader", displayName="Übersicht", description='100% "quoted" (x)')
    for q in (
        "CAFE",
        "café",
        "cafe\u0301",
        "reader",
        "ubersicht",
        "ÜBERSICHT",
        '"quoted"',
        "(x)",
        "100%",
    ):
        assert search_slugs(store, q) == ["café-Reader"], q
    for q in ("caf*", "slug:cafe", "cafe NOT reader"):
        assert search_slugs(store, q) in ([], ["café-Reader"]), q
    for blank in ("", " ", "\t\n", "\u3000", None):
        expect_error("invalid", store.search, blank)


@pytest.mark.spec("bundles.search.at-once")
def test_the_next_search_of_any_process_finds_a_change(root: Path, store: BundleStore) -> None:
    with open_store(root) as other:
        bundle = new_bundle(store)
        for number in range(5):
            put(store, bundle, f"tool-{number}", displayName=f"unique{number}")
            assert search_slugs(other, f"unique{number}") == [f"tool-{number}"]
            before = other.version()
            other.set_tool_enabled(bundle, f"tool-{number}", "1", False)
            assert search_slugs(store, f"unique{number}") == []
            store.delete_tool(bundle, f"tool-{number}", "1")
            assert search_slugs(other, f"unique{number}", include_disabled=True) == []
            assert other.version() != before


# --- on disk --------------------------------------------------------------------------------------


@pytest.mark.spec("bundles.store.readable-json", "bundles.store.index-is-a-cache")
def test_bundles_are_stored_in_readable_files(root: Path, store: BundleStore) -> None:
    bundle = new_bundle(store, "my-pack")
    put(store, bundle, "read-file", "1.0", description="Liest Überschriften – 読む")
    directory = root / f"my-pack-{bundle}"
    text = (directory / "read-file@1.0.json").read_text("utf-8")
    assert "Liest Überschriften – 読む" in text
    assert text.startswith('{\n  "schemaVersion": 1,\n')
    assert json.loads((directory / "bundle.json").read_text())["slug"] == "my-pack"
    assert {file.stat().st_mode & 0o077 for file in root.rglob("*.json")} == {0}


@pytest.mark.spec("bundles.store.offline")
def test_the_store_works_without_a_network(
    store: BundleStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    def no_network(*_: object, **__: object) -> None:
        raise AssertionError("the store opened a socket")

    monkeypatch.setattr(socket, "socket", no_network)
    bundle = new_bundle(store)
    put(store, bundle, "tool", **HTTP)
    assert search_slugs(store, "tool") == list_slugs(store) == ["tool"]


@pytest.mark.spec("bundles.store.foreign-files")
def test_a_foreign_or_damaged_file_is_reported_and_never_deleted(
    root: Path, store: BundleStore
) -> None:
    bundle = new_bundle(store)
    put(store, bundle, "good")
    foreign, damaged = (
        bundle_directory(root, bundle) / "notes.txt",
        bundle_directory(root, bundle) / "bad@1.json",
    )
    foreign.write_text("mine")
    damaged.write_text("{")
    store.rescan()
    assert list_slugs(store) == ["good"]
    assert [
        str(file) in str(problem)
        for file, problem in zip((damaged, foreign), store.problems, strict=True)
    ] == [
        True,
        True,
    ]
    assert (foreign.read_text(), damaged.read_text()) == ("mine", "{")


@pytest.mark.slow
@pytest.mark.spec("bundles.store.atomic")
def test_a_reader_sees_the_old_file_or_the_new_one(root: Path, store: BundleStore) -> None:
    bundle = new_bundle(store)
    put(store, bundle, "tool", description="x" * 15_000)
    file = bundle_directory(root, bundle) / "tool@1.json"
    with ThreadPoolExecutor(1) as pool:
        toggling = pool.submit(
            lambda: [store.set_tool_enabled(bundle, "tool", "1", bool(n % 2)) for n in range(100)]
        )
        seen = set()
        while not toggling.done():
            seen.add(json.loads(file.read_bytes())["isEnabled"])
        toggling.result()
    assert seen <= {True, False}


RACE = """
import sys
from pathlib import Path
from onetool.sources.bundles import BundleStore, Page
from onetool.errors import BundleError

store = BundleStore(Path(sys.argv[1]))
won = 0
sys.stdin.readline()
for number in range(30):
    try:
        store.put_tool(sys.argv[2], f"tool-{number}", "1", {
            "displayName": sys.argv[3], "isEnabled": True, "type": "python", "pythonImpl": {"function": "f"}})
        won += 1
    except BundleError as error:
        assert error.code == "duplicate", error
store.close()
print(won)
"""


@pytest.mark.slow
@pytest.mark.spec("bundles.store.unique-across-processes")
def test_exactly_one_of_several_processes_stores_the_same_pair(
    root: Path, store: BundleStore
) -> None:
    bundle = new_bundle(store)
    racers = [
        subprocess.Popen(
            [sys.executable, "-c", RACE, str(root), bundle, f"racer {number}"],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=os.environ,
        )
        for number in range(4)
    ]  # fmt: skip
    for racer in racers:
        assert racer.stdin is not None
        racer.stdin.write("go\n")
        racer.stdin.flush()
    won = [int(racer.communicate(timeout=60)[0]) for racer in racers]
    assert sum(won) == 30
    tools = store.list_tools(size=256).items
    assert len(tools) == 30
    assert sorted(won) == sorted(
        sum(tool.display_name == f"racer {number}" for tool in tools) for number in range(4)
    )
    assert store.problems == []
