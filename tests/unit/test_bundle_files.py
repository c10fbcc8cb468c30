"""The store as files: foreign and damaged files, manual edits, a lost index and killed writers."""

import json
import os
import shutil
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from tests.bundles_support import (
    bundle_body,
    bundle_directory,
    expect_error,
    list_slugs,
    new_bundle,
    open_store,
    search_slugs,
    tool_body,
)

from onetool.sources.bundles import BundleStore


@pytest.fixture
def root(tmp_path: Path) -> Path:
    return tmp_path / "bundles"


@pytest.fixture
def store(root: Path) -> Iterator[BundleStore]:
    with open_store(root) as opened:
        yield opened


def put(store: BundleStore, bundle: str, *slugs: str) -> None:
    for slug in slugs:
        store.put_tool(bundle, slug, "1", tool_body(displayName=slug))


def edit(file: Path, **change: object) -> None:
    file.write_text(json.dumps({**json.loads(file.read_text()), **change}))
    later = file.stat().st_mtime_ns + 1_000_000
    os.utime(file, ns=(later, later))


def get_identity(file: Path) -> tuple[int, ...]:
    status = file.lstat()
    return status.st_ino, status.st_mode, status.st_size, status.st_mtime_ns, status.st_ctime_ns


# --- damaged files --------------------------------------------------------------------------------


def damage_json(file: Path) -> None:
    file.write_text('{"schemaVersion": 1, "id":')


def add_unknown_field(file: Path) -> None:
    edit(file, surprise=True)


def set_newer_version(file: Path) -> None:
    edit(file, schemaVersion=2, new={"things": 1})


def remove_version(file: Path) -> None:
    file.write_text("{}")


def replace_with_link(file: Path) -> None:
    target = file.parent.parent / ".elsewhere"
    file.rename(target)
    file.symlink_to(target)


def replace_with_pipe(file: Path) -> None:
    file.unlink()
    os.mkfifo(file)


def replace_with_directory(file: Path) -> None:
    file.unlink()
    file.mkdir()


def make_huge(file: Path) -> None:
    file.write_text(" " * 2_000_000)


def make_deeply_nested(file: Path) -> None:
    file.write_text("[" * 100_000)


def remove_request(file: Path) -> None:
    edit(file, type="http")


def change_slug(file: Path) -> None:
    edit(file, slug="other")


DAMAGES: list[tuple[Callable[[Path], None], str]] = [
    (damage_json, "is not valid JSON"),
    (add_unknown_field, "surprise"),
    (set_newer_version, "newer OneTool"),
    (remove_version, "schemaVersion"),
    (replace_with_link, "cannot be read"),
    (replace_with_pipe, "not a regular file"),
    (replace_with_directory, "not a regular file"),
    (make_huge, "bytes"),
    (make_deeply_nested, "is not valid JSON"),
    (remove_request, "requires httpImpl"),
    (change_slug, "must be named other@1.json"),
]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("damage", "reason"), DAMAGES, ids=[damage.__name__ for damage, _ in DAMAGES]
)
@pytest.mark.parametrize("seen_by", ["a rescan", "a new index"])
def test_a_damaged_file_is_reported_skipped_and_not_changed(
    root: Path, store: BundleStore, damage: Callable[[Path], None], reason: str, seen_by: str
) -> None:
    bundle = new_bundle(store)
    put(store, bundle, "good", "bad")
    file = bundle_directory(root, bundle) / "bad@1.json"
    damage(file)
    before = get_identity(file)
    shutil.rmtree(root / ".index") if seen_by == "a new index" else store.rescan()
    assert list_slugs(store) == ["good"]
    assert search_slugs(store, "bad") == []
    (problem,) = map(str, store.problems)
    assert str(file) in problem
    assert reason in problem
    expect_error("not_found", lambda: store.get_tool(bundle, "bad", "1"))
    expect_error("duplicate", lambda: store.put_tool(bundle, "bad", "1", tool_body()))
    store.delete_tool(bundle, "good", "1")
    expect_error("bundle_not_empty", store.delete_bundle, bundle)
    assert get_identity(file) == before


def test_a_repaired_file_is_read_again_and_its_problem_is_removed(
    root: Path, store: BundleStore
) -> None:
    bundle = new_bundle(store)
    put(store, bundle, "tool")
    file = bundle_directory(root, bundle) / "tool@1.json"
    good = file.read_text()
    damage_json(file)
    store.rescan()
    assert store.problems
    file.write_text(good)
    assert store.get_tool(bundle, "tool", "1").slug == "tool"
    assert store.problems == []


def test_a_damaged_bundle_hides_its_tools_until_it_is_repaired(
    root: Path, store: BundleStore
) -> None:
    bundle = new_bundle(store)
    put(store, bundle, "tool")
    file = bundle_directory(root, bundle) / "bundle.json"
    good = file.read_text()
    damage_json(file)
    store.rescan()
    assert list_slugs(store) == []
    expect_error("not_found", lambda: store.get_bundle(bundle))
    expect_error(
        "duplicate",
        lambda: store.put_bundle(bundle, {"slug": "x", "displayName": "x", "isEnabled": True}),
    )
    assert [str(file) in problem for problem in map(str, store.problems)] == [True]
    file.write_text(good)
    store.rescan()
    assert list_slugs(store) == ["tool"]
    assert store.problems == []


def test_foreign_files_and_directories_are_reported_and_kept(
    root: Path, store: BundleStore
) -> None:
    bundle = new_bundle(store)
    foreign_files = [
        root / "notes.txt",
        root / "folder",
        bundle_directory(root, bundle) / "readme.md",
        root / b"\xff.json".decode("utf-8", "surrogateescape"),
    ]
    foreign_files[1].mkdir()
    for foreign_file in (foreign_files[0], foreign_files[2], foreign_files[3]):
        foreign_file.write_text("mine")
    (foreign_files[1] / "x").write_text("mine")
    for _ in range(2):
        store.rescan()
        assert len(store.problems) == len(foreign_files), store.problems
    assert all(os.path.lexists(foreign_file) for foreign_file in foreign_files)


def test_a_link_to_another_directory_is_never_followed(
    tmp_path: Path, root: Path, store: BundleStore
) -> None:
    bundle, elsewhere = new_bundle(store), tmp_path / "elsewhere"
    put(store, bundle, "tool")
    bundle_directory(root, bundle).rename(elsewhere)
    (root / f"tools-{bundle}").symlink_to(elsewhere)
    expect_error("duplicate", put, store, bundle, "new")
    expect_error("duplicate", store.set_tool_enabled, bundle, "tool", "1", switch=False)
    expect_error("duplicate", store.delete_tool, bundle, "tool", "1")
    store.rescan()
    assert list_slugs(store) == []
    expect_error("duplicate", store.put_bundle, bundle, bundle_body("other"))
    expect_error("not_found", put, store, bundle, "new")
    assert sorted(file.name for file in elsewhere.iterdir()) == ["bundle.json", "tool@1.json"]
    assert any("is not a file of the store" in problem for problem in map(str, store.problems))


def test_a_manually_copied_bundle_is_reported(root: Path, store: BundleStore) -> None:
    bundle = new_bundle(store)
    put(store, bundle, "tool")
    shutil.copytree(bundle_directory(root, bundle), root / f"copy-{bundle}")
    store.rescan()
    assert list_slugs(store) == ["tool"]
    assert any("same ID" in problem for problem in map(str, store.problems))


# --- manual edits ---------------------------------------------------------------------------------


def test_a_manual_edit_is_seen_when_the_tool_is_fetched(root: Path, store: BundleStore) -> None:
    bundle = new_bundle(store)
    put(store, bundle, "tool")
    before = store.version()
    edit(bundle_directory(root, bundle) / "tool@1.json", displayName="Changed", tags=["new"])
    assert store.get_tool(bundle, "tool", "1").display_name == "Changed"
    assert search_slugs(store, "changed") == ["tool"]
    assert list_slugs(store, tags=["new"]) == ["tool"]
    assert store.version() > before


def test_a_manually_deleted_file_is_not_found(root: Path, store: BundleStore) -> None:
    bundle = new_bundle(store)
    put(store, bundle, "tool")
    (bundle_directory(root, bundle) / "tool@1.json").unlink()
    expect_error("not_found", lambda: store.get_tool(bundle, "tool", "1"))
    assert list_slugs(store) == []


def test_a_manually_added_file_can_be_fetched_at_once(root: Path, store: BundleStore) -> None:
    bundle = new_bundle(store)
    put(store, bundle, "tool")
    directory = bundle_directory(root, bundle)
    shutil.copy(directory / "tool@1.json", directory / "other@1.json")
    edit(directory / "other@1.json", slug="other", id=store.new_id())
    assert store.get_tool(bundle, "other", "1").slug == "other"
    expect_error("duplicate", lambda: store.put_tool(bundle, "other", "1", tool_body()))


def test_a_bundle_disabled_by_hand_rejects_changes_at_once(root: Path, store: BundleStore) -> None:
    bundle = new_bundle(store)
    edit(bundle_directory(root, bundle) / "bundle.json", isEnabled=False)
    expect_error("bundle_disabled", lambda: put(store, bundle, "tool"))


def test_a_bundle_read_while_half_written_is_found_again(root: Path, store: BundleStore) -> None:
    bundle = new_bundle(store)
    file = bundle_directory(root, bundle) / "bundle.json"
    whole = file.read_text()
    file.write_text(whole[:20])
    store.rescan()
    expect_error("not_found", lambda: put(store, bundle, "tool"))
    assert store.problems
    file.write_text(whole)
    put(store, bundle, "tool")
    assert not store.problems


def test_a_new_process_finds_files_changed_in_the_meantime(root: Path) -> None:
    with open_store(root) as store:
        bundle = new_bundle(store)
        put(store, bundle, "kept", "gone", "edited")
    (bundle_directory(root, bundle) / "gone@1.json").unlink()
    edit(bundle_directory(root, bundle) / "edited@1.json", displayName="Fresh")
    with open_store(root) as store:
        store.rescan()
        assert list_slugs(store) == ["kept", "edited"]
        assert search_slugs(store, "fresh") == ["edited"]


# --- the index ------------------------------------------------------------------------------------


def overwrite_databases(root: Path) -> None:
    for file in (root / ".index").glob("*.db"):
        file.write_bytes(b"no database" * 1000)


def truncate_databases(root: Path) -> None:
    for file in (*(root / ".index").glob("*.db"), *(root / ".index").glob("*.db-wal")):
        os.truncate(file, file.stat().st_size // 2)


def delete_databases(root: Path) -> None:
    for file in (root / ".index").glob("*.db"):
        file.unlink()


def delete_pointer(root: Path) -> None:
    (root / ".index" / "current").unlink()


def write_invalid_pointer(root: Path) -> None:
    (root / ".index" / "current").write_text("\x00nothing")


def delete_index(root: Path) -> None:
    shutil.rmtree(root / ".index")


@pytest.mark.slow
@pytest.mark.parametrize(
    "loss",
    [
        overwrite_databases,
        truncate_databases,
        delete_databases,
        delete_pointer,
        write_invalid_pointer,
        delete_index,
    ],
)
@pytest.mark.parametrize("while_open", [True, False])
def test_losing_the_index_loses_no_data(
    root: Path, loss: Callable[[Path], None], while_open: bool
) -> None:
    with open_store(root) as store:
        bundle = new_bundle(store)
        put(store, bundle, "first", "second")
        before, numbers = store.list_tools(), {store.version()}
        if not while_open:
            store.close()
        loss(root)
        again = store if while_open else BundleStore(root)
        assert again.list_tools() == before
        assert search_slugs(again, "second") == ["second"]
        put(again, bundle, "third")
        assert list_slugs(again) == ["first", "second", "third"]
        assert again.version() not in numbers
        again.close()


def test_two_open_stores_agree_after_the_index_was_deleted(root: Path) -> None:
    with open_store(root) as one, open_store(root) as other:
        bundle = new_bundle(one)
        put(other, bundle, "before")
        delete_index(root)
        put(one, bundle, "from-one")
        put(other, bundle, "from-other")
        assert list_slugs(one) == list_slugs(other) == ["before", "from-one", "from-other"]


# --- killed writers -------------------------------------------------------------------------------


def test_the_next_reader_repairs_the_index_after_a_writer_is_killed(
    root: Path, store: BundleStore
) -> None:
    bundle = new_bundle(store)
    put(store, bundle, "kept", "deleted")
    directory = bundle_directory(root, bundle)
    put(store, bundle, "added")
    content = (directory / "added@1.json").read_text()
    store.delete_tool(bundle, "added", "1")
    # as if it had been killed after it changed the files and before it updated the index
    (directory / "added@1.json").write_text(content)
    (directory / "deleted@1.json").unlink()
    (root / ".lock").write_text(
        json.dumps([f"{directory.name}/added@1.json", f"{directory.name}/deleted@1.json"])
    )
    assert list_slugs(store) == ["kept", "added"]
    assert (root / ".lock").stat().st_size == 0


def test_an_incomplete_lock_file_is_ignored(root: Path, store: BundleStore) -> None:
    bundle = new_bundle(store)
    (root / ".lock").write_text('["half a')
    put(store, bundle, "tool")
    assert list_slugs(store) == ["tool"]


def test_an_empty_directory_of_a_killed_writer_is_removed(root: Path, store: BundleStore) -> None:
    new_bundle(store)
    left = root / f"left-{store.new_id()}"
    left.mkdir()
    (root / ".lock").write_text(json.dumps([f"{left.name}/bundle.json"]))
    store.list_bundles()
    assert not left.exists()


def test_only_temporary_files_of_killed_processes_are_removed(
    root: Path, store: BundleStore
) -> None:
    new_bundle(store)
    (living,) = (root / ".tmp").iterdir()
    dead, foreign = root / ".tmp" / ("a" * 16), root / ".tmp" / "mine"
    for directory in (dead, foreign):
        directory.mkdir()
        (directory / "owner").touch()
        (directory / f"{'b' * 16}.new").write_text("half")
    with open_store(root) as other:
        new_bundle(other, "other")
        assert not dead.exists()
        assert living.exists()
        assert foreign.exists()


def test_concurrent_threads_lose_no_writes(store: BundleStore) -> None:
    bundle = new_bundle(store)
    threads = [
        threading.Thread(
            target=lambda n=number: put(store, bundle, *(f"t-{n}-{i}" for i in range(10)))
        )
        for number in range(8)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(list_slugs(store)) == 80
    assert store.problems == []


def test_an_unwritable_directory_is_reported(tmp_path: Path) -> None:
    (tmp_path / "bundles").write_text("a file where the folder should be")
    with open_store(tmp_path / "bundles") as store:
        assert store.list_bundles().items == []
        expect_error("storage_unavailable", lambda: new_bundle(store))


CLOSED_WHILE_READ = """
import sys, threading
from pathlib import Path
from onetool.sources.bundles import BundleStore

for _ in range(100):
    store, begun = BundleStore(Path(sys.argv[1])), threading.Event()
    thread = threading.Thread(target=lambda: (begun.set(), store.bundle_by_slug("x")))
    thread.start()
    begun.wait()
    store.close()
    thread.join()
"""


def test_a_missing_store_can_be_closed_while_it_is_read(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-c", CLOSED_WHILE_READ, str(tmp_path / "missing")],
        capture_output=True,
        text=True,
        check=False,
    )
    assert (done.returncode, done.stderr) == (0, "")
