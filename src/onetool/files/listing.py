"""What is in a folder, as far as the caller may see it. Links are shown as what they lead to, and not walked into."""

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

MOST_SEEN = 100_000


@dataclass(frozen=True, slots=True)
class Entry:
    name: str  # seen from the listed folder
    type: str
    size: int


def entries(files: Files, path: str, pattern: str, most: int) -> list[Entry]:
    """All that fit, in order. More than `most` are an error, never a part that looks like all."""

    def operate(place: Place) -> list[Entry]:
        if kind_of(place.followed()) != "dir":
            raise ToolError(f"{path} is not a folder; fs.stat({path!r}) says what it is.", path=path)
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
                        f"More than {most} entries of {self._path} fit. Narrow the pattern, or raise max_results.",
                        path=self._path,
                        max_results=most,
                    )
        return fitting

    def _in_folder(self, names: tuple[str, ...], states: States) -> Iterator[Entry]:
        try:
            folder = self._files.open_beneath(self._folder, names, os.O_RDONLY | FOLDER)
        except OSError:  # it is gone, or may not be looked into
            return
        with closing(folder), os.scandir(folder) as scan:
            for item in scan:
                yield from self._looked_at(item, names, states)

    def _looked_at(self, item: "os.DirEntry[str]", names: tuple[str, ...], states: States) -> Iterator[Entry]:
        self._seen += 1
        if self._seen > MOST_SEEN:
            raise ToolError(
                f"There are more than {MOST_SEEN} entries in {self._path} to look at. List a folder in it.",
                path=self._path,
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
        with suppress(FileNotFoundError):  # it went while we looked
            facts = item.stat(follow_symlinks=False)
            if item.is_symlink():
                yield from self._linked(names)
            else:
                yield Entry("/".join(names), kind_of(facts), facts.st_size if kind_of(facts) == "file" else 0)

    def _linked(self, names: tuple[str, ...]) -> Iterator[Entry]:
        """A link is what it leads to, nothing where that is denied, and `other` where there is nothing."""
        kind, size = "other", 0
        try:
            _, facts = facts_of(self._files, posixpath.join(self._real, *names))
            kind, size = kind_of(facts), facts.st_size
        except SandboxDenied:
            return
        except (OSError, ToolError):  # it leads nowhere, or in a circle
            pass
        yield Entry("/".join(names), kind, size if kind == "file" else 0)


def _is_text(name: str) -> bool:
    """Whether the name can be asked for: some are bytes of another encoding."""
    try:
        name.encode()
    except UnicodeEncodeError:
        return False
    return True
