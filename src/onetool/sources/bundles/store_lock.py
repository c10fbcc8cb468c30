"""The lock of the store: one writer at a time across all processes, with a mark to recover from
crashes.

It is a kernel lock on a file. A writer makes the file one byte long before it changes files of the
store, and empties it when the index agrees with them again. A process that gets the lock and finds
a byte knows that a writer died: the index may disagree with any file. Readers take no lock: they
check the size of the file.
"""

import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from threading import Event

from onetool.errors import BundleError
from onetool.sources.bundles.rules import unavailable
from onetool.util.atomic import try_lock

LOCK_TIMEOUT_SECONDS = 30.0
SHORT_PAUSE_SECONDS = 0.0005
LONG_PAUSE_SECONDS = 0.01
LONG_WAIT_SECONDS = 1.0


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
        """Poll for the lock: the kernel would wait forever, and a writer needs a millisecond or
        two.
        """
        while not try_lock(descriptor):
            waited = time.monotonic() - started
            if waited > LOCK_TIMEOUT_SECONDS:
                raise self._busy_error()
            if self._closing.wait(
                SHORT_PAUSE_SECONDS if waited < LONG_WAIT_SECONDS else LONG_PAUSE_SECONDS
            ):
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
