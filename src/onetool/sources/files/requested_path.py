"""Requested paths: validated, made absolute and resolved."""

import os
import posixpath
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from onetool.errors import ArgumentError, ToolError
from onetool.settings.paths import resolve_path

MAX_NAME_BYTES = 255
MAX_PATH_BYTES = 4095
MAX_DETOURS = 16  # each of them is checked against the rules too
MAX_ATTEMPTS = 100


@dataclass(frozen=True, slots=True)
class RequestedPath:
    """A requested path.

    Messages show `original`; `absolute` may contain `..`, which links can redirect.
    """

    original: str
    absolute: str
    detours: frozenset[str] = (
        frozenset()
    )  # directories that the path enters and leaves again by `..`

    @property
    def normalized(self) -> str:
        return normalize_path(self.absolute)

    def iter_paths(self) -> Iterator[str]:
        """Yield every path that the request names: its detours, then the path itself."""
        yield from self.detours
        yield self.normalized


def parse_path(path: str, working_dir: Path) -> RequestedPath:
    """Validate a path and make it absolute; raise ArgumentError if it is invalid."""
    _validate(path)
    absolute = make_absolute(path, working_dir.absolute())
    detours = _find_detours(absolute)
    if len(detours) > MAX_DETOURS:
        raise ArgumentError(
            f"invalid path {path[:60]!r}…: too many `..` segments after directories", field="path"
        )
    return RequestedPath(path, absolute, detours)


def _find_detours(absolute: str) -> frozenset[str]:
    names = absolute.split("/")
    detours = (index for index, name in enumerate(names[1:], 1) if name == ".." != names[index - 1])
    return frozenset(normalize_path("/".join(names[:index]) or "/") for index in detours)


def make_absolute(path: str, base: Path) -> str:
    """Return the absolute path. If the user has no home directory, `~` is an ordinary name."""
    if path.startswith("/"):
        return str(Path(path))
    try:
        home = Path.home()
    except RuntimeError:
        home = base / "~"
    return str(resolve_path(path, base, home))


def real_path(path: str) -> str:
    """Return the path with its links resolved.

    It need not exist; circular links are kept, and opening them fails.

    `realpath` raises if a link is replaced while it resolves it; then it is called again.
    """
    for _ in range(MAX_ATTEMPTS):
        with suppress(OSError):
            return os.path.realpath(path)
    raise ToolError(
        "cannot resolve the path: its links keep changing", hint="use the path of the file itself"
    )


def normalize_path(path: str) -> str:
    """Return the path without `.`, `..` and redundant slashes."""
    return "/" + posixpath.normpath(path).lstrip("/")


def _validate(path: str) -> None:
    if not path:
        raise ArgumentError(
            "the path is empty", field="path", hint='use "." for the working directory'
        )
    if "\0" in path:
        raise ArgumentError(
            f"invalid path {path[:200]!r}: it contains a NUL character", field="path"
        )
    try:
        data = path.encode()
    except UnicodeEncodeError:
        raise ArgumentError(
            f"invalid path {path[:200]!r}: it contains an unpaired surrogate", field="path"
        ) from None
    if len(data) > MAX_PATH_BYTES or any(len(name) > MAX_NAME_BYTES for name in data.split(b"/")):
        raise ArgumentError(
            f"path too long: {path[:60]!r}… (at most {MAX_NAME_BYTES} bytes per name,"
            f" {MAX_PATH_BYTES} in all)",
            field="path",
        )
