"""Versions of stored files: a newer file is rejected and left unchanged, any other version is damage.

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
    """Raise NewerVersion if a newer OneTool wrote the file, and ValueError if it has no supported version."""
    reject_newer(version, supported, what)
    if type(version) is not int or version != supported:
        raise ValueError(f"expected version {supported}, not {version!r}")


def reject_newer(version: object, supported: int, what: object) -> None:
    """Raise an error if the version is newer than the supported one."""
    if isinstance(version, int) and version > supported:
        message = f"{what} was written by a newer OneTool (version {version}; this one supports {supported})"
        place = {"location": Location(str(what)), "code": STORAGE} if isinstance(what, Path) else {}
        raise NewerVersion(message, hint=UPGRADE, **place)


def has_tables(database: "Connection", supported: int, file: Path) -> bool:
    """Return whether a SQLite file has tables. Raise an error of SQLite if they have an unknown version."""
    import sqlite3

    (tables,) = database.execute("SELECT count(*) FROM sqlite_master").fetchone()
    if tables == 0:
        return False
    (version,) = database.execute("PRAGMA user_version").fetchone()
    try:
        check_version(version, supported, file)
    except ValueError as error:
        damage = sqlite3.DatabaseError(str(error))
        damage.sqlite_errorcode = sqlite3.SQLITE_NOTADB
        raise damage from None
    return True
