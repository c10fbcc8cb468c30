"""Where a path really leads. It need not exist; links that lead in a circle stay in it, and opening it fails."""

from contextlib import suppress
from os.path import realpath

from ot.errors import ToolError

_ATTEMPTS = 100


def real_path(path: str) -> str:
    """`realpath` raises when a link that it has seen is none any more the moment after; then it looks again."""
    for _ in range(_ATTEMPTS):
        with suppress(OSError):
            return realpath(path)
    raise ToolError("The links of the path keep changing. Name the file itself.")
