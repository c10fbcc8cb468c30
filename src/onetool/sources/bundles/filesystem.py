"""File operations of the store, and its lock.

New files are written and synced in a scratch directory that belongs to one process, and then moved
to their place. The process holds a lock there while it runs, so that the files of a dead process
can be recognized and removed. Only regular files are read, and files are replaced atomically.

The store has one writer at a time across all processes, with a kernel lock on a file. A writer
makes that file one byte long before it changes files of the store, and empties it when the index
agrees with them again. A process that gets the lock and finds a byte knows that a writer died: the
index may disagree with any file. Readers take no lock: they check the size of the file.
"""

import errno
import os
import re
import stat
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from threading import Event

from onetool.errors import BundleError
from onetool.sources.bundles.records import MAX_FILE_BYTES, Unreadable
from onetool.sources.bundles.rules import unavailable
from onetool.util.atomic import owner_only, try_lock

SCRATCH = ".tmp"
OWNER = "owner"
_OUR_NAMES = re.compile(r"[0-9a-f]{16}(\.new)?")
# Raised by file systems that do not accept a character, or for a name that is too long.
_BAD_NAME = {errno.EILSEQ, errno.EINVAL, errno.ENAMETOOLONG}
# Not all systems have these flags.
_PLAIN_FILE = os.O_RDONLY + sum(
    getattr(os, name, 0) for name in ("O_NOFOLLOW", "O_NONBLOCK", "O_BINARY")
)
LOCK_TIMEOUT_SECONDS = 30.0
SHORT_PAUSE_SECONDS = 0.0005
LONG_PAUSE_SECONDS = 0.01
LONG_WAIT_SECONDS = 1.0


@dataclass(frozen=True, slots=True)
class Stamp:
    """Modification time and size of a file, to detect changes without reading it."""

    mtime: int
    size: int

    @classmethod
    def of(cls, status: os.stat_result) -> "Stamp":
        return cls(status.st_mtime_ns, status.st_size)


def read_stamp(path: Path) -> Stamp | None:
    """Return the stamp of a file; None if it does not exist."""
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
            raise Unreadable("is not a regular file")
        if status.st_size > MAX_FILE_BYTES:
            raise Unreadable(f"is too large: {status.st_size} bytes (at most {MAX_FILE_BYTES})")
        return _read_all(descriptor), Stamp.of(status)
    finally:
        os.close(descriptor)


def _read_all(descriptor: int) -> bytes:
    """Read the file, but not more than is allowed if it grows meanwhile."""
    parts: list[bytes] = []
    while sum(map(len, parts)) <= MAX_FILE_BYTES and (part := os.read(descriptor, MAX_FILE_BYTES)):
        parts.append(part)
    return b"".join(parts)


def move(file: Path, directory: Path, names: Iterable[str]) -> str:
    """Move a new file to its place, under the first of the names that the file system accepts."""
    *better, last = names
    for name in better:
        try:
            file.replace(directory / name)
        except OSError as error:
            if error.errno not in _BAD_NAME:
                raise
        else:
            return name
    file.replace(directory / last)
    return last


class Scratch:
    """A directory in which one process writes new files.

    It is created, and those of dead processes are removed, while the lock of the store is held.
    """

    def __init__(self, root: Path) -> None:
        self._parent = root / SCRATCH
        self._directory: Path | None = None
        self._owner: int | None = None

    @property
    def is_open(self) -> bool:
        return self._directory is not None and self._directory.is_dir()

    def open(self) -> None:
        self.close()
        self._parent.mkdir(exist_ok=True, mode=0o700)
        self._remove_abandoned()
        directory = self._parent / os.urandom(8).hex()
        directory.mkdir(mode=0o700)
        self._owner = os.open(directory / OWNER, os.O_RDWR | os.O_CREAT, 0o600)
        try_lock(self._owner)
        self._directory = directory

    def write(self, content: bytes) -> Path:
        """Write and sync a new file."""
        assert self._directory is not None
        path = self._directory / f"{os.urandom(8).hex()}.new"
        try:
            with open(path, "xb", opener=owner_only) as file:
                file.write(content)
                file.flush()
                os.fsync(file.fileno())
        except BaseException:
            path.unlink(missing_ok=True)
            raise
        return path

    def drop(self, files: Iterable[Path]) -> None:
        for file in files:
            with suppress(OSError):
                file.unlink()

    def close(self) -> None:
        if self._directory is not None:
            _remove(self._directory)
        if self._owner is not None:
            os.close(self._owner)
        self._directory = self._owner = None

    def _remove_abandoned(self) -> None:
        with suppress(OSError):
            for directory in list(self._parent.iterdir()):
                if _OUR_NAMES.fullmatch(directory.name) and _is_abandoned(directory / OWNER):
                    _remove(directory)


def _is_abandoned(file: Path) -> bool:
    """Return whether the process that held this file has ended."""
    try:
        descriptor = os.open(file, os.O_RDWR)
    except OSError:
        return True
    try:
        return try_lock(descriptor)
    finally:
        os.close(descriptor)


def _remove(directory: Path) -> None:
    """Remove the directory and our files in it. A directory with other files is kept."""
    with suppress(OSError):
        for entry in list(directory.iterdir()):
            if _OUR_NAMES.fullmatch(entry.name) or entry.name == OWNER:
                entry.unlink()
        directory.rmdir()


def sync_directory(directory: Path) -> None:
    """Sync a directory, so that the names in it are durable."""
    with suppress(OSError):  # some systems cannot open or sync a directory
        descriptor = os.open(directory, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)


# --- lock -----------------------------------------------------------------------------------------


class WriteMark:
    """The mark in the lock file.

    It `is_stale` if the index may disagree with other files than those being written.
    """

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor
        self.is_stale = self._is_set

    @property
    def _is_set(self) -> bool:
        return os.fstat(self._descriptor).st_size > 0

    def begin(self) -> None:
        os.ftruncate(self._descriptor, 1)  # needs no disk block, unlike writing a byte

    def finish(self) -> None:
        self.is_stale = False
        if self._is_set:
            os.ftruncate(self._descriptor, 0)


class StoreLock:
    def __init__(self, file: Path, closing: Event | None = None) -> None:
        """Create the object without disk access. Setting `closing` ends all waiting for the lock."""
        self._file = file
        self._closing = closing or Event()

    @contextmanager
    def hold(self) -> Iterator[WriteMark]:
        """Wait for the lock. The directory must exist."""
        started = time.monotonic()
        while True:
            with self._open() as descriptor:
                self._wait(descriptor, started)
                if self._is_current(descriptor):
                    yield WriteMark(descriptor)
                    return

    @contextmanager
    def try_hold(self) -> Iterator[WriteMark | None]:
        with self._open() as descriptor:
            is_held = try_lock(descriptor) and self._is_current(descriptor)
            yield WriteMark(descriptor) if is_held else None

    @property
    def has_mark(self) -> bool:
        """Whether a write is in progress or was interrupted."""
        try:
            return self._file.stat().st_size > 0
        except OSError:
            return False

    @contextmanager
    def _open(self) -> Iterator[int]:
        descriptor = os.open(self._file, os.O_RDWR | os.O_CREAT, 0o600)
        try:
            yield descriptor
        finally:
            os.close(descriptor)

    def _wait(self, descriptor: int, started: float) -> None:
        """Poll for the lock: the kernel would wait forever, and a writer needs only a moment."""
        while not try_lock(descriptor):
            waited = time.monotonic() - started
            if waited > LOCK_TIMEOUT_SECONDS:
                raise self._busy_error()
            pause = SHORT_PAUSE_SECONDS if waited < LONG_WAIT_SECONDS else LONG_PAUSE_SECONDS
            if self._closing.wait(pause):
                raise unavailable("it was closed while another process had locked it")

    def _is_current(self, descriptor: int) -> bool:
        """Return whether the locked file still exists: a lock on a deleted file is useless."""
        try:
            return os.path.samestat(os.fstat(descriptor), self._file.stat())
        except OSError:
            return False

    def _busy_error(self) -> BundleError:
        duration = f"{LOCK_TIMEOUT_SECONDS:g} s"
        message = (
            f"another process has locked the bundle store for {duration} ({self._file}); try again,"
            " or stop it"
        )
        return BundleError(message, code="busy", details={})
