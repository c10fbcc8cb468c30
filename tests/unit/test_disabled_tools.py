"""Disabled tools: shared between processes; an unreadable file disables everything and is not
overwritten.
"""

import json
import os
import sqlite3
import stat
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import pytest

from onetool.errors import BundleError, StorageError
from onetool.state.document_kinds import EVERYTHING, DisabledTools
from onetool.state.documents import DocumentFile, Documents


@pytest.fixture
def file(tmp_path: Path) -> Path:
    """Return the database, whose directory exists."""
    path = DocumentFile(tmp_path).file
    path.parent.mkdir()
    return path


def test_a_disabled_tool_stays_disabled_until_it_is_enabled(tmp_path: Path) -> None:
    one = DisabledTools(DocumentFile(tmp_path))
    other = DisabledTools(DocumentFile(tmp_path))
    assert one.off() == frozenset()
    one.set("a.b", on=False)
    one.set("ünï", on=False)
    assert other.off() == one.off() == {"a.b", "ünï"}
    other.set("a.b", on=True)
    assert one.off() == {"ünï"}
    assert DisabledTools(DocumentFile(tmp_path)).off() == {"ünï"}
    assert stat.S_IMODE(DocumentFile(tmp_path).file.stat().st_mode) == 0o600


def set_document(document: object) -> Callable[[Path], None]:
    def change(file: Path) -> None:
        DisabledTools(DocumentFile(file.parents[1])).set("a", on=False)
        with closing(sqlite3.connect(file)) as database, database:
            database.execute("UPDATE documents SET content = ?", (json.dumps(document).encode(),))

    return change


@pytest.mark.parametrize(
    "damage",
    [
        lambda file: file.write_bytes(b""),
        lambda file: file.write_bytes(b"{"),
        lambda file: file.write_bytes(b"no database at all" * 1000),
        set_document({"a": 1}),
        set_document("a"),
        set_document(["a", 1]),
    ],
)
def test_a_damaged_file_disables_everything_and_is_not_overwritten(
    tmp_path: Path, file: Path, damage: Callable[[Path], None]
) -> None:
    damage(file)
    before = file.read_bytes()
    disabled = DisabledTools(DocumentFile(tmp_path))
    assert disabled.off() == {EVERYTHING}
    assert disabled.problem is not None
    assert "all tools are disabled" in disabled.problem.message
    assert "backup" in disabled.problem.hint
    with pytest.raises(BundleError, match=file.name) as caught:
        disabled.set("a", on=False)
    assert caught.value.code == "storage_unavailable"
    assert file.read_bytes() == before
    for path in file.parent.iterdir():
        path.unlink()
    assert disabled.off() == frozenset()
    assert disabled.problem is None


def test_a_file_that_cannot_be_opened_disables_everything_until_it_can(
    tmp_path: Path, file: Path
) -> None:
    for target in (file.name, "nowhere"):
        file.symlink_to(target)  # to itself, which even root cannot open, or to nothing
        disabled = DisabledTools(DocumentFile(tmp_path))
        assert disabled.off() == {EVERYTHING}
        file.unlink()
        assert disabled.off() == frozenset()


def test_a_replaced_file_is_read_again(tmp_path: Path) -> None:
    other = DisabledTools(DocumentFile(tmp_path / "other"))
    other.set("b", on=False)
    disabled = DisabledTools(DocumentFile(tmp_path))
    disabled.set("a", on=False)
    assert disabled.off() == {"a"}
    for path in DocumentFile(tmp_path).file.parent.iterdir():
        path.unlink()
    with closing(sqlite3.connect(DocumentFile(tmp_path / "other").file)) as source:
        source.execute(f"VACUUM INTO '{DocumentFile(tmp_path).file}'")
    assert disabled.off() == {"b"}
    disabled.set("c", on=False)
    assert DisabledTools(DocumentFile(tmp_path)).off() == {"b", "c"}


def test_a_pipe_in_place_of_the_file_disables_everything_without_blocking(
    tmp_path: Path, file: Path
) -> None:
    os.mkfifo(file)
    disabled = DisabledTools(DocumentFile(tmp_path))
    assert disabled.off() == {EVERYTHING}
    assert "not a regular file" in str(disabled.problem)


def test_a_lone_surrogate_in_a_name_is_supported(tmp_path: Path) -> None:
    disabled = DisabledTools(DocumentFile(tmp_path))
    disabled.set("pack.\ud800", on=False)
    assert disabled.off() == {"pack.\ud800"}


def test_an_endless_view_is_rejected(tmp_path: Path) -> None:
    file = tmp_path / "state" / "documents.db"
    file.parent.mkdir()
    endless = (
        "WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n) SELECT i AS version FROM n"
    )
    with closing(sqlite3.connect(file)) as database:
        database.execute(f"CREATE VIEW documents AS {endless}")
        database.execute("PRAGMA user_version = 1")
    with pytest.raises(StorageError, match="it contains views or triggers"):
        Documents(DocumentFile(tmp_path), "disabled").get("all")
