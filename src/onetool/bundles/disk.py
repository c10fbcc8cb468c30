"""The folder of the store as bytes: reading a file that is surely a plain one, and replacing one whole or not at all.

New files are written and synced in a scratch folder that belongs to one process, and then moved to their place. The
process holds a lock there as long as it lives: what a dead one left behind is surely ours, and is removed.
"""

import errno
import os
import re
import stat
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from onetool.bundles.records import MOST_BYTES, Unreadable
from onetool.util.atomic import owner_only
from onetool.util.locks import try_lock

SCRATCH: Final = ".tmp"
OWNER: Final = "owner"
_OURS = re.compile(r"[0-9a-f]{16}(\.new)?")
# A file system that does not know a letter, or finds the name too long, says one of these.
_BAD_NAME: Final = {errno.EILSEQ, errno.EINVAL, errno.ENAMETOOLONG}
_PLAIN_FILE: Final = os.O_RDONLY | getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_NONBLOCK", 0)


@dataclass(frozen=True, slots=True)
class Stamp:
    """By which a change of a file is noticed without reading it."""

    mtime: int
    size: int

    @classmethod
    def of(cls, status: os.stat_result) -> "Stamp":
        return cls(status.st_mtime_ns, status.st_size)


def stamp_of(path: Path) -> Stamp | None:
    """None where there is no such file."""
    try:
        return Stamp.of(os.lstat(path))
    except OSError:
        return None


def read(path: Path) -> tuple[bytes, Stamp]:
    try:
        descriptor = os.open(path, _PLAIN_FILE)
    except FileNotFoundError:
        raise
    except OSError as error:
        raise Unreadable(f"cannot be read: {error.strerror}") from None
    try:
        status = os.fstat(descriptor)
        if not stat.S_ISREG(status.st_mode):
            raise Unreadable("is no plain file")
        if status.st_size > MOST_BYTES:
            raise Unreadable(f"has {status.st_size} bytes, and {MOST_BYTES} are the most")
        return _all_of(descriptor), Stamp.of(status)
    finally:
        os.close(descriptor)


def _all_of(descriptor: int) -> bytes:
    """However much it grows meanwhile, no more than is allowed."""
    parts: list[bytes] = []
    while sum(map(len, parts)) <= MOST_BYTES and (part := os.read(descriptor, MOST_BYTES)):
        parts.append(part)
    return b"".join(parts)


@dataclass(frozen=True, slots=True)
class NewFile:
    """Written and synced, but not yet in its place."""

    path: Path
    stamp: Stamp

    def move(self, folder: Path, names: Iterable[str]) -> str:
        """Put it in its place, under the first of the names that the file system takes."""
        *better, last = names
        for name in better:
            try:
                self.path.replace(folder / name)
            except OSError as error:
                if error.errno not in _BAD_NAME:
                    raise
            else:
                return name
        self.path.replace(folder / last)
        return last


class Scratch:
    """Where one process writes new files. It is made, and those of the dead are removed, under the store's lock."""

    def __init__(self, root: Path) -> None:
        self._parent = root / SCRATCH
        self._folder: Path | None = None
        self._owner: int | None = None

    @property
    def is_open(self) -> bool:
        return self._folder is not None and self._folder.is_dir()

    def open(self) -> None:
        self.close()
        self._parent.mkdir(exist_ok=True, mode=0o700)
        self._sweep()
        folder = self._parent / os.urandom(8).hex()
        folder.mkdir(mode=0o700)
        self._owner = os.open(folder / OWNER, os.O_RDWR | os.O_CREAT, 0o600)
        try_lock(self._owner)
        self._folder = folder

    def write(self, content: bytes) -> NewFile:
        assert self._folder is not None
        path = self._folder / f"{os.urandom(8).hex()}.new"
        try:
            with open(path, "xb", opener=owner_only) as file:
                file.write(content)
                file.flush()
                os.fsync(file.fileno())
                return NewFile(path, Stamp.of(os.fstat(file.fileno())))
        except BaseException:
            path.unlink(missing_ok=True)
            raise

    def drop(self, files: Iterable[NewFile]) -> None:
        for file in files:
            with suppress(OSError):
                file.path.unlink()

    def close(self) -> None:
        if self._folder is not None:
            _remove(self._folder)
        if self._owner is not None:
            os.close(self._owner)
        self._folder = self._owner = None

    def _sweep(self) -> None:
        with suppress(OSError):
            for folder in list(self._parent.iterdir()):
                if _OURS.fullmatch(folder.name) and _is_abandoned(folder / OWNER):
                    _remove(folder)


def _is_abandoned(file: Path) -> bool:
    """Whether the process that held this file has ended."""
    try:
        descriptor = os.open(file, os.O_RDWR)
    except OSError:
        return True
    try:
        return try_lock(descriptor)
    finally:
        os.close(descriptor)


def _remove(folder: Path) -> None:
    """Only what we have written: a foreign file keeps the folder."""
    with suppress(OSError):
        for entry in list(folder.iterdir()):
            if _OURS.fullmatch(entry.name) or entry.name == OWNER:
                entry.unlink()
        folder.rmdir()


def sync_folder(folder: Path) -> None:
    """A name is on disk when its folder is."""
    with suppress(OSError):  # not everywhere can a folder be opened or synced
        descriptor = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
