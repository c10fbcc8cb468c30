"""Versions of stored files: files of a newer OneTool are rejected and left unchanged.

Each store keeps its own version and knows what to do with an older one. What is only a cache is made anew instead.
"""

from pathlib import Path

from onetool.errors import ToolError
from onetool.problem import STORAGE, Location

UPGRADE = "upgrade OneTool, the way it was installed"


class Newer(ToolError):
    """The file was written by a newer OneTool."""


def refuse_newer(version: object, known: int, what: object) -> None:
    """Raise an error if the version of a file is newer than the known one. Other values are ignored."""
    if isinstance(version, int) and version > known:
        message = f"{what} was written by a newer OneTool (version {version}, this one knows {known})"
        place = {"location": Location(str(what)), "code": STORAGE} if isinstance(what, Path) else {}
        raise Newer(message, hint=UPGRADE, **place)
