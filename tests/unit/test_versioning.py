"""Versions of files: newer ones are rejected, and unknown ones are damage."""

import sqlite3
from contextlib import closing
from pathlib import Path

import pytest

from onetool.util.problem import NewerVersion, check_tables, check_version


@pytest.mark.parametrize("version", [2, 99, 1 << 80])
def test_a_newer_version_is_rejected_with_a_hint(version: int) -> None:
    message = rf"a\.json was written by a newer OneTool \(version {version}; this one supports 1\)"
    with pytest.raises(NewerVersion, match=message) as raised:
        check_version(version, 1, "a.json")
    assert raised.value.hint == "upgrade OneTool, the way it was installed"


@pytest.mark.parametrize("version", [None, 0, -5, "2", 2.0, True, [], {}])
def test_an_unknown_version_is_damage(version: object) -> None:
    with pytest.raises(ValueError, match="expected version 1, not ") as raised:
        check_version(version, 1, "a.json")
    assert str(raised.value) == f"expected version 1, not {version!r}"


def test_the_supported_version_is_accepted() -> None:
    check_version(1, 1, "a.json")


def test_a_database_check_tables_of_the_supported_version(tmp_path: Path) -> None:
    file = tmp_path / "a.db"
    with closing(sqlite3.connect(file)) as database:
        with pytest.raises(sqlite3.DatabaseError, match="it is empty"):
            check_tables(database, 1, file)
        database.execute("PRAGMA user_version = 2")
        with pytest.raises(NewerVersion, match="newer OneTool"):
            check_tables(database, 1, file)
        database.execute("PRAGMA user_version = 0")
        database.execute("CREATE TABLE a (b)")
        with pytest.raises(sqlite3.DatabaseError, match="expected version 1, not 0"):
            check_tables(database, 1, file)
        database.execute("PRAGMA user_version = 2")
        with pytest.raises(NewerVersion, match="newer OneTool"):
            check_tables(database, 1, file)
        database.execute("PRAGMA user_version = 1")
        check_tables(database, 1, file)
