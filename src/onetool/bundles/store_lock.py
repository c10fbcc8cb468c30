"""The lock of the store: one writer at a time across all processes, with a journal to recover from crashes.

It is a kernel lock on a file. Before a writer changes files, it writes their paths to the lock file; when the index
agrees with the disk again, it empties the lock file. A process that gets the lock and finds paths knows that a writer
died, and which files to check. On a full disk the journal is one byte that needs no space, and means that all files
have to be compared. Readers take no lock: they check the size of the file.
"""

import errno
import json
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from threading import Event

from onetool.bundles.rules import unavailable
from onetool.errors import BundleError
from onetool.util.locks import try_lock

LOCK_TIMEOUT_SECONDS = 30.0
NO_SPACE = {errno.ENOSPC, errno.EDQUOT}
SHORT_PAUSE_SECONDS = 0.0005
LONG_PAUSE_SECONDS = 0.01
LONG_WAIT_SECONDS = 1.0


class WriteJournal:
    """The files with which the index may disagree: those of a writer that died and of the holder of the lock.

    If `is_unknown` is set, there may be others than `paths`, and all files have to be compared.
    """

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor
        self.paths: list[str] = []
        self.is_unknown = False
        self._read()

    @property
    def is_empty(self) -> bool:
        return not self.paths and not self.is_unknown

    def begin(self, paths: list[str]) -> None:
        """Record these files before they are changed. Files of unfinished writes stay recorded."""
        self.paths = [*self.paths, *paths]
        if not self.is_unknown:
            self._write(json.dumps(self.paths).encode())

    def finish(self) -> None:
        self.paths = []
        self.is_unknown = False
        if os.fstat(self._descriptor).st_size:
            os.ftruncate(self._descriptor, 0)

    def _write(self, content: bytes) -> None:
        os.lseek(self._descriptor, 0, os.SEEK_SET)
        try:
            written = os.write(self._descriptor, content)
        except OSError as error:
            if error.errno not in NO_SPACE:
                raise
            written = 0
        if written < len(content):
            os.ftruncate(self._descriptor, 1)  # needs no disk block, unlike writing a byte
            self.is_unknown = True

    def _read(self) -> None:
        size = os.fstat(self._descriptor).st_size
        if size == 0:
            return
        os.lseek(self._descriptor, 0, os.SEEK_SET)
        try:
            paths = json.loads(os.read(self._descriptor, size))
        except ValueError:
            paths = None
        if isinstance(paths, list) and all(isinstance(path, str) for path in paths):
            self.paths = paths
        else:
            self.is_unknown = True


class StoreLock:
    def __init__(self, file: Path, closing: Event | None = None) -> None:
        """Create the object without disk access. Setting `closing` ends all waiting for the lock."""
        self._file = file
        self._closing = closing or Event()

    @contextmanager
    def hold(self) -> Iterator[WriteJournal]:
        """Wait for the lock. The directory must exist."""
        started = time.monotonic()
        while True:
            with self._open() as descriptor:
                self._wait(descriptor, started)
                if self._is_current(descriptor):
                    yield WriteJournal(descriptor)
                    return

    @contextmanager
    def try_hold(self) -> Iterator[WriteJournal | None]:
        with self._open() as descriptor:
            is_held = try_lock(descriptor) and self._is_current(descriptor)
            yield WriteJournal(descriptor) if is_held else None

    @property
    def has_journal(self) -> bool:
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
        """Poll for the lock: the kernel would wait forever, and a writer needs a millisecond or two."""
        while not try_lock(descriptor):
            waited = time.monotonic() - started
            if waited > LOCK_TIMEOUT_SECONDS:
                raise self._busy_error()
            if self._closing.wait(SHORT_PAUSE_SECONDS if waited < LONG_WAIT_SECONDS else LONG_PAUSE_SECONDS):
                raise unavailable("it was closed while another process had locked it")

    def _is_current(self, descriptor: int) -> bool:
        """Return whether the locked file still exists: a lock on a deleted file is useless."""
        try:
            return os.path.samestat(os.fstat(descriptor), self._file.stat())
        except OSError:
            return False

    def _busy_error(self) -> BundleError:
        duration = f"{LOCK_TIMEOUT_SECONDS:g} s"
        message = f"another process has locked the bundle store for {duration} ({self._file}); try again, or stop it"
        return BundleError(message, code="busy", details={})
