"""Directory listings, limited to what the caller may read.

Links are listed as their targets and not entered.
"""

import os
import posixpath
from collections import deque
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass

from onetool.errors import SandboxDenied, ToolError
from onetool.sources.files.beneath import DIRECTORY
from onetool.sources.files.files import AnchoredPath, Files, closing
from onetool.sources.files.globs import Glob, States
from onetool.sources.files.reading import get_file_type, stat_path
from onetool.sources.files.trash import TRASH

MAX_SCANNED_ENTRIES = 100_000


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
            found = _Walk(files, directory, anchored.real, Glob(pattern), path).collect(limit)
            return sorted(found, key=lambda entry: entry.name.split("/"))

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
        """Yield the target of a link; nothing if the target is denied, and type `other` if there is
        none.
        """
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
