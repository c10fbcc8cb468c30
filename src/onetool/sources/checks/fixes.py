"""Fixes that are safe to make without asking: they delete nothing, and change no settings,
permissions or trust.

A problem names its fix. Callers pass only fixes of problems that were just found.
"""

import time
from collections.abc import Callable, Mapping
from pathlib import Path

from onetool.errors import ToolError
from onetool.util.background import exclusive, put_aside

CREATE_DIRECTORY = "create_directory"
PUT_ASIDE = "put_aside"


def name_fix(kind: str, path: Path) -> str:
    """Return the identifier of a fix, for `Problem.fix`."""
    return f"{kind} {path}"


def apply_fix(fix: str) -> str:
    """Make a fix and return what was done. Raise a ToolError if it fails. Blocks on disk access."""
    kind, _, path = fix.partition(" ")
    if kind not in FIXES:
        raise ToolError(f"unknown fix {fix!r}")
    try:
        return FIXES[kind](Path(path))
    except OSError as error:
        raise ToolError(f"cannot fix {path}: {error.strerror or error}") from None


def _create_directory(path: Path) -> str:
    path.mkdir(mode=0o755, parents=True, exist_ok=True)
    return f"created {path}"


def _put_aside(path: Path) -> str:
    """Rename a damaged file that OneTool creates again. It is kept."""
    with exclusive(path):
        renamed = put_aside(path, time.time())
    return f"renamed {path} to {renamed}; OneTool creates a new one"


FIXES: Mapping[str, Callable[[Path], str]] = {
    CREATE_DIRECTORY: _create_directory,
    PUT_ASIDE: _put_aside,
}
