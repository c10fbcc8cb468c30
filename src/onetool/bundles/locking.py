"""One writer at a time over all processes, and what it was about to touch, so that its death half way is noticed.

The lock is the kernel's, on a file. Before a writer touches anything it writes into that file what; when the index
agrees with the disk again, it empties it. So whoever gets the lock and finds something in the file knows that its
writer died, and where to look. On a full disk the note is one byte that needs no space, and means that all files have
to be compared. Readers need no lock: they look at the size of the file.
"""

import errno
import json
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from onetool.errors import BundleError
from onetool.util.locks import try_lock

PATIENCE_SECONDS: Final = 30.0
NO_SPACE: Final = {errno.ENOSPC, errno.EDQUOT}
SHORT_PAUSE, LONG_PAUSE, LONG_WAIT = 0.0005, 0.01, 1.0  # seconds


class Journal:
    """The files that the index may not agree with: those of a writer that died, and those of the holder of the lock.

    `paths` are their names. `is_unknown` says that there may be others, so that all files have to be compared.
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
        """Note these files before they are touched. What could not be finished before stays noted."""
        self.paths = [*self.paths, *paths]
        if not self.is_unknown:
            self._write(json.dumps(self.paths).encode())

    def done(self) -> None:
        self.paths, self.is_unknown = [], False
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
            os.ftruncate(self._descriptor, 1)  # takes no block of the disk, unlike a byte that is written
            self.is_unknown = True

    def _read(self) -> None:
        size = os.fstat(self._descriptor).st_size
        if size == 0:
            return
        os.lseek(self._descriptor, 0, os.SEEK_SET)
        try:
            found = json.loads(os.read(self._descriptor, size))
        except ValueError:
            found = None
        if isinstance(found, list) and all(isinstance(path, str) for path in found):
            self.paths = found
        else:
            self.is_unknown = True


class StoreLock:
    def __init__(self, file: Path) -> None:
        self._file = file

    @contextmanager
    def held(self) -> Iterator[Journal]:
        """Wait for the lock. The folder must be there."""
        started = time.monotonic()
        while True:
            with self._opened() as descriptor:
                self._wait(descriptor, started)
                if self._is_still_the_file(descriptor):
                    yield Journal(descriptor)
                    return

    @contextmanager
    def held_if_free(self) -> Iterator[Journal | None]:
        with self._opened() as descriptor:
            got = try_lock(descriptor) and self._is_still_the_file(descriptor)
            yield Journal(descriptor) if got else None

    @property
    def is_marked(self) -> bool:
        """Whether a writer is at work, or died at work."""
        try:
            return self._file.stat().st_size > 0
        except OSError:
            return False

    @contextmanager
    def _opened(self) -> Iterator[int]:
        descriptor = os.open(self._file, os.O_RDWR | os.O_CREAT, 0o600)
        try:
            yield descriptor
        finally:
            os.close(descriptor)

    def _wait(self, descriptor: int, started: float) -> None:
        """By asking again and again: the kernel would wait for ever, and a writer needs a millisecond or two."""
        while not try_lock(descriptor):
            waited = time.monotonic() - started
            if waited > PATIENCE_SECONDS:
                raise self._busy()
            time.sleep(SHORT_PAUSE if waited < LONG_WAIT else LONG_PAUSE)

    def _is_still_the_file(self, descriptor: int) -> bool:
        """A lock on a file that somebody has deleted keeps nobody out."""
        try:
            return os.path.samestat(os.fstat(descriptor), self._file.stat())
        except OSError:
            return False

    def _busy(self) -> BundleError:
        message = f"another process has held the store for {PATIENCE_SECONDS:g} s ({self._file}); try again, or end it"
        return BundleError(message, code="busy", details={})
