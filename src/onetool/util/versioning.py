"""Versions of stored files: a newer file is rejected and left unchanged, any other version is
damage.

A cache of another version is recreated instead.
"""

from pathlib import Path
from typing import TYPE_CHECKING

from onetool.errors import StorageError
from onetool.util.problem import STORAGE, Location

if TYPE_CHECKING:
    from sqlite3 import Connection

UPGRADE = "upgrade OneTool, the way it was installed"


class NewerVersion(StorageError):
    """The file was written by a newer OneTool."""


def check_version(version: object, supported: int, what: object) -> None:
    """Raise NewerVersion if a newer OneTool wrote the file, and ValueError if it has no supported
    version.
    """
    reject_newer(version, supported, what)
    if type(version) is not int or version != supported:
        raise ValueError(f"expected version {supported}, not {version!r}")


def reject_newer(version: object, supported: int, what: object) -> None:
    """Raise an error if the version is newer than the supported one."""
    if isinstance(version, int) and version > supported:
        message = (
            f"{what} was written by a newer OneTool (version {version}; this one supports"
            f" {supported})"
        )
        place = {"location": Location(str(what)), "code": STORAGE} if isinstance(what, Path) else {}
        raise NewerVersion(message, hint=UPGRADE, **place)


def check_tables(database: "Connection", supported: int, file: Path) -> None:
    """Raise an error of SQLite if the file has no tables, or an unknown version."""
    (version,) = database.execute("PRAGMA user_version").fetchone()
    (tables,) = database.execute("SELECT count(*) FROM sqlite_master").fetchone()
    if tables == version == 0:
        raise _make_damage("it is empty")
    try:
        check_version(version, supported, file)
    except ValueError as error:
        raise _make_damage(str(error)) from None


def _make_damage(message: str) -> Exception:
    import sqlite3

    damage = sqlite3.DatabaseError(message)
    damage.sqlite_errorcode = sqlite3.SQLITE_NOTADB
    return damage
