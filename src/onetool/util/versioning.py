"""Versions of stored files: files of a newer OneTool are rejected and left unchanged.

Each store has its own version and handles older ones. A cache is recreated instead.
"""

from pathlib import Path

from onetool.errors import StorageError
from onetool.problem import STORAGE, Location

UPGRADE = "upgrade OneTool, the way it was installed"


class NewerVersion(StorageError):
    """The file was written by a newer OneTool."""


def reject_newer(version: object, supported: int, what: object) -> None:
    """Raise an error if the version of a file is newer than the known one. Other values are ignored."""
    if isinstance(version, int) and version > supported:
        message = f"{what} was written by a newer OneTool (version {version}; this one supports {supported})"
        place = {"location": Location(str(what)), "code": STORAGE} if isinstance(what, Path) else {}
        raise NewerVersion(message, hint=UPGRADE, **place)
