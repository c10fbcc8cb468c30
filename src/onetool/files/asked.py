"""Requested paths: validated, made absolute and resolved."""

import os
import posixpath
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from onetool.errors import ArgumentError, ToolError
from onetool.paths import placed

MAX_NAME_BYTES = 255
MAX_PATH_BYTES = 4095
MAX_DETOURS = 16  # each of them is checked against the rules too
ATTEMPTS = 100


@dataclass(frozen=True, slots=True)
class Asked:
    """A requested path. Messages show `given`; `whole` is absolute, and may contain `..`, which links can redirect."""

    given: str
    whole: str
    left: frozenset[str] = frozenset()  # directories that the path enters and leaves again by `..`

    @property
    def plain(self) -> str:
        return plain(self.whole)

    def passed(self) -> Iterator[str]:
        """Yield every path that the request names: the directories it leaves again, then the path itself."""
        yield from self.left
        yield self.plain


def asked(path: str, working_dir: Path) -> Asked:
    _check(path)
    whole = absolute(path, working_dir.absolute())
    left = _left(whole)
    if len(left) > MAX_DETOURS:
        raise ArgumentError(f"invalid path {path[:60]!r}…: too many `..` segments after directories", field="path")
    return Asked(path, whole, left)


def _left(whole: str) -> frozenset[str]:
    names = whole.split("/")
    left = (place for place, name in enumerate(names[1:], 1) if name == ".." != names[place - 1])
    return frozenset(plain("/".join(names[:place]) or "/") for place in left)


def absolute(path: str, base: Path) -> str:
    """Return the absolute path. If the user has no home directory, `~` is an ordinary name."""
    if path.startswith("/"):
        return str(Path(path))
    try:
        home = Path.home()
    except RuntimeError:
        home = base / "~"
    return str(placed(path, base, home))


def real_path(path: str) -> str:
    """Return the path with its links resolved. It need not exist; a circle of links stays, and opening it fails.

    `realpath` raises if a link is replaced while it resolves it; then it is called again.
    """
    for _ in range(ATTEMPTS):
        with suppress(OSError):
            return os.path.realpath(path)
    raise ToolError("cannot resolve the path: its links keep changing", hint="use the path of the file itself")


def plain(path: str) -> str:
    """Return the path without `.`, `..` and redundant slashes."""
    return "/" + posixpath.normpath(path).lstrip("/")


def _check(path: str) -> None:
    if not path:
        raise ArgumentError("the path is empty", field="path", hint='use "." for the working directory')
    if "\0" in path:
        raise ArgumentError(f"invalid path {path[:200]!r}: it contains a NUL character", field="path")
    try:
        data = path.encode()
    except UnicodeEncodeError:
        raise ArgumentError(f"invalid path {path[:200]!r}: it contains an unpaired surrogate", field="path") from None
    if len(data) > MAX_PATH_BYTES or any(len(name) > MAX_NAME_BYTES for name in data.split(b"/")):
        raise ArgumentError(
            f"path too long: {path[:60]!r}… (at most {MAX_NAME_BYTES} bytes per name, {MAX_PATH_BYTES} in all)",
            field="path",
        )
