"""Read files up to a size limit, and list directories and what a sandbox may open.

A listing shows only what the caller may read. Links are listed as their targets and not entered.
"""

import os
import posixpath
import stat
from collections import deque
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, field

from onetool.errors import SandboxDenied, ToolError
from onetool.sources.files.files import DIRECTORY, NON_BLOCKING, TRASH, AnchoredPath, Files, closing
from onetool.sources.files.rules import Glob, Rules, States, fold

_CHUNK_BYTES = 1 << 20
MAX_SCANNED_ENTRIES = 100_000


@dataclass(frozen=True, slots=True)
class FileContent:
    """A file's content and the status when it was read."""

    data: bytes
    path: str
    status: os.stat_result


def read(files: Files, path: str, limit: int) -> FileContent:
    """Read a regular file up to `limit` bytes."""

    def operate(anchored: AnchoredPath) -> FileContent:
        with closing(open_regular(files, path, anchored)) as descriptor:
            status = os.fstat(descriptor)
            return FileContent(
                _bytes(descriptor, status.st_size, limit, path), anchored.real, status
            )

    return files.run_at(path, operate)


def stat_path(files: Files, path: str) -> tuple[str, os.stat_result]:
    """Return resolved path and status."""
    return files.run_at(path, lambda anchored: (anchored.real, anchored.stat_no_link()))


def open_regular(files: Files, path: str, anchored: AnchoredPath) -> int:
    """Open a regular file for reading.

    Pipes and devices are not opened, because opening alone has side effects.
    """
    _require_regular(anchored.stat_no_link(), path)
    descriptor = anchored.open(os.O_RDONLY | NON_BLOCKING)
    try:
        _require_regular(os.fstat(descriptor), path)
        files.check_opened(path, descriptor)
    except BaseException:
        os.close(descriptor)
        raise
    return descriptor


def _require_regular(status: os.stat_result, path: str) -> None:
    if stat.S_ISDIR(status.st_mode):
        raise ToolError(
            f"{path} is a directory", path=path, hint=f"fs.list({path!r}) lists its entries"
        )
    if not stat.S_ISREG(status.st_mode):
        raise ToolError(
            f"cannot open {path}: it is a pipe, socket or device, not a regular file", path=path
        )


def get_file_type(status: os.stat_result) -> str:
    if stat.S_ISDIR(status.st_mode):
        return "dir"
    return "file" if stat.S_ISREG(status.st_mode) else "other"


def _bytes(descriptor: int, size: int, limit: int, path: str) -> bytes:
    """Read everything.

    The limit applies to what is read: a file may grow, and files in /proc report a size of 0.
    """
    data = bytearray()
    while size <= limit:
        try:
            chunk = os.read(descriptor, min(_CHUNK_BYTES, limit + 1 - len(data)))
        except BlockingIOError:
            raise ToolError(f"cannot read {path}: reading would block", path=path) from None
        if not chunk:
            return bytes(data)
        data += chunk
        size = max(size, len(data))
    raise ToolError(
        f"File too large: {size} bytes (max_size is {limit})",
        path=path,
        size=size,
        max_size=limit,
        hint="search it with grep, or pass a larger max_size",
    )


# --- Listing --------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class ListedEntry:
    name: str  # relative to the listed directory
    type: str
    size: int


def list_entries(files: Files, path: str, pattern: str, limit: int) -> list[ListedEntry]:
    """Return all matching entries in order; raise if there are more than `limit`."""

    def operate(anchored: AnchoredPath) -> list[ListedEntry]:
        if get_file_type(anchored.stat_no_link()) != "dir":
            raise ToolError(
                f"not a directory: {path}", path=path, hint=f"fs.stat({path!r}) shows its type"
            )
        with closing(anchored.open(os.O_RDONLY | DIRECTORY)) as directory:
            files.check_opened(path, directory)
            entries = _Walk(files, directory, anchored.real, Glob(pattern), path).collect(limit)
            return sorted(entries, key=lambda entry: entry.name.split("/"))

    return files.run_at(path, operate)


class _Walk:
    def __init__(self, files: Files, directory: int, real: str, glob: Glob, path: str) -> None:
        self._files = files
        self._directory = directory
        self._real = real
        self._glob = glob
        self._path = path
        self._waiting: deque[tuple[tuple[str, ...], States]] = deque([((), glob.start)])
        self._scanned = 0

    def collect(self, limit: int) -> list[ListedEntry]:
        matches: list[ListedEntry] = []
        while self._waiting:
            names, states = self._waiting.popleft()
            for entry in self._scan_directory(names, states):
                matches.append(entry)
                if len(matches) > limit:
                    raise ToolError(
                        f"more than {limit} entries match in {self._path}",
                        path=self._path,
                        max_results=limit,
                        hint="narrow the pattern or raise max_results",
                    )
        return matches

    def _scan_directory(self, names: tuple[str, ...], states: States) -> Iterator[ListedEntry]:
        try:
            directory = self._files.open_beneath(self._directory, names, os.O_RDONLY | DIRECTORY)
        except OSError:  # removed in the meantime, or not readable
            return
        with closing(directory), os.scandir(directory) as scan:
            for item in scan:
                yield from self._visit(item, names, states)

    def _visit(
        self, item: "os.DirEntry[str]", names: tuple[str, ...], states: States
    ) -> Iterator[ListedEntry]:
        self._scanned += 1
        if self._scanned > MAX_SCANNED_ENTRIES:
            raise ToolError(
                f"{self._path} has more than {MAX_SCANNED_ENTRIES:,} entries",
                path=self._path,
                hint="list a subdirectory instead",
            )
        reached = self._glob.advance(states, item.name)
        absolute = (*names, item.name)
        if not reached or not _is_text(item.name):
            return
        if (
            self._files.rules.find_denial(posixpath.join(self._real, *absolute), writing=False)
            is not None
        ):
            return
        if self._glob.is_complete(reached):
            yield from self._make_entry(item, absolute)
        if item.is_dir(follow_symlinks=False) and item.name != TRASH:
            self._waiting.append((absolute, reached))

    def _make_entry(
        self, item: "os.DirEntry[str]", names: tuple[str, ...]
    ) -> Iterator[ListedEntry]:
        with suppress(FileNotFoundError):  # removed in the meantime
            status = item.stat(follow_symlinks=False)
            if item.is_symlink():
                yield from self._resolve_link(names)
            else:
                yield ListedEntry(
                    "/".join(names),
                    get_file_type(status),
                    status.st_size if get_file_type(status) == "file" else 0,
                )

    def _resolve_link(self, names: tuple[str, ...]) -> Iterator[ListedEntry]:
        """Yield a link's target; nothing if it is denied, and type `other` if missing."""
        kind = "other"
        size = 0
        try:
            _, status = stat_path(self._files, posixpath.join(self._real, *names))
            kind = get_file_type(status)
            size = status.st_size
        except SandboxDenied:
            return
        except (OSError, ToolError):  # a broken link, or a circle of links
            pass
        yield ListedEntry("/".join(names), kind, size if kind == "file" else 0)


def _is_text(name: str) -> bool:
    """Return whether the name is valid text; some names are bytes in another encoding."""
    try:
        name.encode()
    except UnicodeEncodeError:
        return False
    return True


# --- Sandboxes ------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class OpenPaths:
    """Paths that a sandbox opens. In `listed`, only entry names may be read.

    In a directory that contains hidden or protected paths, every other entry is listed by itself,
    and no entry can be created.
    """

    read: list[str] = field(default_factory=list)
    write: list[str] = field(default_factory=list)
    listed: list[str] = field(default_factory=list)


def find_open_paths(rules: Rules) -> OpenPaths:
    """Return what a sandbox opens.

    Blocks: it looks for hidden and denied names in all directories.
    """
    paths = OpenPaths()
    for root in rules.roots:
        readable = _find_readable(rules, root.real, paths.listed)
        paths.read.extend(readable)
        if root.writable:
            paths.write.extend(path for entry in readable for path in _find_writable(rules, entry))
    return paths


def _find_readable(rules: Rules, path: str, listed: list[str]) -> list[str]:
    """Return the path if everything in it is readable, or else the readable paths in it.

    Links are not followed.
    """
    if not os.path.isdir(path):  # noqa: PTH112 - called for every entry
        return [path]
    has_rules = bool(rules.denied or rules.denied_absolute) or rules.has_rules_below(path)
    readable = []
    is_whole = True
    for entry in _scan(path):
        if fold(entry.name) in rules.hidden_names or (
            has_rules and rules.find_denial(entry.path, writing=False)
        ):
            is_whole = False
        elif entry.is_dir(follow_symlinks=False):
            paths = _find_readable(rules, entry.path, listed)
            is_whole = is_whole and paths == [entry.path]
            readable += paths
        elif not entry.is_symlink():
            readable.append(entry.path)
    if not is_whole:
        listed.append(path)
    return [path] if is_whole else readable


def _find_writable(rules: Rules, path: str) -> Iterator[str]:
    if rules.find_denial(path, writing=True):
        return
    if not (os.path.isdir(path) and rules.has_rules_below(path)):  # noqa: PTH112 - a string, as the kernel gets it
        yield path
        return
    for entry in _scan(path):
        if not entry.is_symlink():
            yield from _find_writable(rules, entry.path)


def _scan(path: str) -> list[os.DirEntry[str]]:
    try:
        with os.scandir(path) as entries:
            return list(entries)
    except OSError:  # it cannot be read, or was removed
        return []
