"""Files that a newer OneTool has written: they are refused with words and left as they are.

Each store keeps its own version and knows what to do with an older one. What is only a cache is made anew instead.
"""

from pathlib import Path

from onetool.errors import ToolError
from onetool.problem import STORAGE, Location

UPGRADE = "upgrade OneTool, the way it was installed"


class Newer(ToolError):
    """What stands there may mean something that this OneTool does not know."""


def refuse_newer(version: object, known: int, what: object) -> None:
    """`version` is what the file says, which may be anything; who reads the rest of it judges that."""
    if isinstance(version, int) and version > known:
        message = f"{what} was written by a newer OneTool (version {version}, this one knows {known})"
        place = {"location": Location(str(what)), "code": STORAGE} if isinstance(what, Path) else {}
        raise Newer(message, hint=UPGRADE, **place)
