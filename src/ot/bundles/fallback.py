"""The index in memory, for a store whose index cannot be written: on a full or a read-only disk.

It is built from the files, which are the truth. Reading it needs no lock of the store and writes nothing.
"""

import os
import sqlite3
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from threading import Event, RLock
from typing import Final, TypeVar

from ot.bundles.index import create, opened, touch
from ot.bundles.mirror import Mirror

T = TypeVar("T")
CHECK_SECONDS: Final = 1.0  # how long the files are not looked at again


class MemoryIndex:
    def __init__(self, root: Path, clock: Callable[[], float] = time.monotonic) -> None:
        self._root, self._clock = root, clock
        self._mirror = Mirror(root, self)
        self._database: sqlite3.Connection | None = None
        self._lock = RLock()
        self._checked_at = float("-inf")

    @property
    def is_filled(self) -> bool:
        return self._database is not None

    def read(self, work: Callable[[sqlite3.Connection], T]) -> T:
        """Return what `work` finds. Raise OSError if the directory cannot be read."""
        with self._lock:
            self._update()
            with self.reading() as database:
                return work(database)

    def expire(self) -> None:
        """Compare with the files before the next read."""
        self._checked_at = float("-inf")

    def touch(self) -> None:
        """Give the index a new version number."""
        with self.writing() as database:
            touch(database)

    def close(self) -> None:
        with self._lock:
            if self._database is not None:
                self._database.close()
            self._database = None

    @contextmanager
    def reading(self) -> Iterator[sqlite3.Connection]:
        with self._lock:
            yield self._connection()

    @contextmanager
    def writing(self) -> Iterator[sqlite3.Connection]:
        with self._lock:
            database = self._connection()
            before = database.total_changes
            yield database
            if database.total_changes > before:
                touch(database)

    def _update(self) -> None:
        if self._clock() < self._checked_at + CHECK_SECONDS:
            return
        os.scandir(self._root).close()  # raises what would otherwise look like an empty store
        if self._database is None:
            with self.reading() as database:
                self._mirror.fill(database)
        elif paths := self._mirror.differences(Event()):
            self._mirror.sync(paths)
        self._checked_at = self._clock()

    def _connection(self) -> sqlite3.Connection:
        if self._database is None:
            self._database = opened(":memory:")
            create(self._database)
        return self._database
