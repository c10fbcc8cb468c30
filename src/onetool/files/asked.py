"""A path as somebody asked for it: checked for what no file system takes, and placed; and where it really leads."""

import os
import posixpath
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from onetool.errors import ArgumentError, ToolError
from onetool.paths import placed

LONGEST_NAME = 255
LONGEST_PATH = 4095
MOST_LEFT = 16  # each of them is decided too
ATTEMPTS = 100


@dataclass(frozen=True, slots=True)
class Asked:
    """`given` is what messages show. `whole` is absolute, and may still hold `..`, which links can bend."""

    given: str
    whole: str
    left: frozenset[str] = frozenset()  # paths that are named on the way and left again by `..`

    @property
    def plain(self) -> str:
        return plain(self.whole)

    def passed(self) -> Iterator[str]:
        """All that is named: what is left again, and at last the asked path."""
        yield from self.left
        yield self.plain


def asked(path: str, working_dir: Path) -> Asked:
    _check(path)
    whole = absolute(path, working_dir.absolute())
    left = _left(whole)
    if len(left) > MOST_LEFT:
        raise ArgumentError(f"The path {path[:60]!r}… goes into too many folders and out again by `..`.", field="path")
    return Asked(path, whole, left)


def _left(whole: str) -> frozenset[str]:
    names = whole.split("/")
    left = (place for place, name in enumerate(names[1:], 1) if name == ".." != names[place - 1])
    return frozenset(plain("/".join(names[:place]) or "/") for place in left)


def absolute(path: str, base: Path) -> str:
    """The path that was meant; for somebody without a home folder `~` is a name like any other."""
    if path.startswith("/"):
        return str(Path(path))
    try:
        home = Path.home()
    except RuntimeError:
        home = base / "~"
    return str(placed(path, base, home))


def real_path(path: str) -> str:
    """Return where a path really leads. It need not exist; links in a circle stay in it, and opening it fails.

    `realpath` raises when a link that it has seen is none any more the moment after; then it looks again.
    """
    for _ in range(ATTEMPTS):
        with suppress(OSError):
            return os.path.realpath(path)
    raise ToolError("The links of the path keep changing. Name the file itself.")


def plain(path: str) -> str:
    """The path without `.`, `..` and needless slashes."""
    return "/" + posixpath.normpath(path).lstrip("/")


def _check(path: str) -> None:
    if not path:
        raise ArgumentError('The path is empty; "." is the working folder.', field="path")
    if "\0" in path:
        raise ArgumentError(f"The path {path[:200]!r} has a NUL character, which no path can have.", field="path")
    try:
        data = path.encode()
    except UnicodeEncodeError:
        raise ArgumentError(f"The path {path[:200]!r} holds half a character.", field="path") from None
    if len(data) > LONGEST_PATH or any(len(name) > LONGEST_NAME for name in data.split(b"/")):
        raise ArgumentError(
            f"The path {path[:60]!r}… is too long: a name has {LONGEST_NAME} bytes at most, a path {LONGEST_PATH}.",
            field="path",
        )
