"""Directory listings, limited to what the caller may read. Links are listed as their targets and not entered."""

import os
import posixpath
from collections import deque
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass

from onetool.errors import SandboxDenied, ToolError
from onetool.files.beneath import FOLDER
from onetool.files.files import Files, Place, closing
from onetool.files.globs import Glob, States
from onetool.files.reading import facts_of, kind_of
from onetool.files.trash import TRASH

MAX_SCANNED = 100_000


@dataclass(frozen=True, slots=True)
class Entry:
    name: str  # relative to the listed directory
    type: str
    size: int


def entries(files: Files, path: str, pattern: str, most: int) -> list[Entry]:
    """Return all matching entries in order. Raise if there are more than `most`: a list is never silently cut."""

    def operate(place: Place) -> list[Entry]:
        if kind_of(place.followed()) != "dir":
            raise ToolError(f"not a directory: {path}", path=path, hint=f"fs.stat({path!r}) shows its type")
        with closing(place.open(os.O_RDONLY | FOLDER)) as folder:
            files.check_opened(path, folder)
            found = _Walk(files, folder, place.real, Glob(pattern), path).found(most)
            return sorted(found, key=lambda entry: entry.name.split("/"))

    return files.at(path, operate)


class _Walk:
    def __init__(self, files: Files, folder: int, real: str, glob: Glob, path: str) -> None:
        self._files, self._folder, self._real, self._glob, self._path = files, folder, real, glob, path
        self._waiting: deque[tuple[tuple[str, ...], States]] = deque([((), glob.start)])
        self._seen = 0

    def found(self, most: int) -> list[Entry]:
        fitting: list[Entry] = []
        while self._waiting:
            names, states = self._waiting.popleft()
            for entry in self._in_folder(names, states):
                fitting.append(entry)
                if len(fitting) > most:
                    raise ToolError(
                        f"more than {most} entries match in {self._path}",
                        path=self._path,
                        max_results=most,
                        hint="narrow the pattern or raise max_results",
                    )
        return fitting

    def _in_folder(self, names: tuple[str, ...], states: States) -> Iterator[Entry]:
        try:
            folder = self._files.open_beneath(self._folder, names, os.O_RDONLY | FOLDER)
        except OSError:  # removed in the meantime, or not readable
            return
        with closing(folder), os.scandir(folder) as scan:
            for item in scan:
                yield from self._looked_at(item, names, states)

    def _looked_at(self, item: "os.DirEntry[str]", names: tuple[str, ...], states: States) -> Iterator[Entry]:
        self._seen += 1
        if self._seen > MAX_SCANNED:
            raise ToolError(
                f"{self._path} has more than {MAX_SCANNED:,} entries",
                path=self._path,
                hint="list a subdirectory instead",
            )
        reached = self._glob.after(states, item.name)
        whole = (*names, item.name)
        if not reached or not _is_text(item.name):
            return
        if self._files.rules.refusal(posixpath.join(self._real, *whole), writing=False) is not None:
            return
        if self._glob.complete(reached):
            yield from self._entry(item, whole)
        if item.is_dir(follow_symlinks=False) and item.name != TRASH:
            self._waiting.append((whole, reached))

    def _entry(self, item: "os.DirEntry[str]", names: tuple[str, ...]) -> Iterator[Entry]:
        with suppress(FileNotFoundError):  # removed in the meantime
            facts = item.stat(follow_symlinks=False)
            if item.is_symlink():
                yield from self._linked(names)
            else:
                yield Entry("/".join(names), kind_of(facts), facts.st_size if kind_of(facts) == "file" else 0)

    def _linked(self, names: tuple[str, ...]) -> Iterator[Entry]:
        """Yield the target of a link; nothing if the target is denied, and type `other` if there is none."""
        kind, size = "other", 0
        try:
            _, facts = facts_of(self._files, posixpath.join(self._real, *names))
            kind, size = kind_of(facts), facts.st_size
        except SandboxDenied:
            return
        except (OSError, ToolError):  # a broken link, or a circle of links
            pass
        yield Entry("/".join(names), kind, size if kind == "file" else 0)


def _is_text(name: str) -> bool:
    """Return whether the name is valid text; some names are bytes in another encoding."""
    try:
        name.encode()
    except UnicodeEncodeError:
        return False
    return True
