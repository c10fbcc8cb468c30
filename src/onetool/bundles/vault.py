"""The folder of the store with its lock and its index: who reads here reads what the files say, whoever wrote them.

A reader waits for nobody. It only looks whether a writer died at work, and then puts that right first. An index that is
missing or damaged is built anew by whoever comes first. Once, in the background, all files are compared with it. If the
index cannot be written, because the disk is full or read-only, readers use one in memory until it can.
"""

import os
import sqlite3
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from threading import Event, Lock, RLock, Thread, local
from typing import Final, TypeVar

from onetool.bundles import disk
from onetool.bundles.disk import NewFile, Scratch
from onetool.bundles.filenames import BUNDLE_FILE
from onetool.bundles.index import Gone, Index, create, opened, touch
from onetool.bundles.locking import Journal, StoreLock
from onetool.bundles.mirror import Mirror
from onetool.bundles.records import BundleFile, Unreadable
from onetool.bundles.rules import unusable
from onetool.errors import BundleError
from onetool.problem import STORAGE, Location, Problem
from onetool.util.storage_errors import storage_error

T = TypeVar("T")
ATTEMPTS: Final = 3
CHECK_SECONDS: Final = 1.0  # how long the files are not looked at again for the index in memory
RETRY_SECONDS: Final = 5.0  # after which an index that could not be written is tried again
_LOCKED: Final = {sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED}
_DAMAGED: Final = {sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB, sqlite3.SQLITE_ERROR, sqlite3.SQLITE_CONSTRAINT}


class MemoryIndex:
    """The index in memory, for a store whose index cannot be written: on a full or a read-only disk.

    It is built from the files, which are the truth. Reading it needs no lock of the store and writes nothing.
    """

    def __init__(self, root: Path, clock: Callable[[], float]) -> None:
        self._root, self._clock = root, clock
        self._mirror = Mirror(root, self)
        self.database: sqlite3.Connection | None = None
        self._lock = RLock()
        self.checked_at = float("-inf")

    def read(self, work: Callable[[sqlite3.Connection], T]) -> T:
        """Return what `work` finds. Raise OSError if the directory cannot be read."""
        with self._lock:
            self._update()
            with self.reading() as database:
                return work(database)

    def close(self) -> None:
        with self._lock:
            if self.database is not None:
                self.database.close()
            self.database = None

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
        if self._clock() < self.checked_at + CHECK_SECONDS:
            return
        os.scandir(self._root).close()  # raises what would otherwise look like an empty store
        if self.database is None:
            with self.reading() as database:
                self._mirror.fill(database)
        elif paths := self._mirror.differences(Event()):
            self._mirror.sync(paths)
        self.checked_at = self._clock()

    def _connection(self) -> sqlite3.Connection:
        if self.database is None:
            self.database = opened(":memory:")
            create(self.database)
        return self.database


class Vault:
    def __init__(
        self,
        root: Path,
        *,
        afterwards: Callable[[], None] = lambda: None,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        """`afterwards` is done in the background when the files have been compared."""
        self.root = root
        self.index = Index(root / ".index")
        self.scratch = Scratch(root)
        self._store_lock = StoreLock(root / ".lock")
        self._mirror = Mirror(root, self.index)
        self._memory, self._monotonic = MemoryIndex(root, monotonic), monotonic
        self._nothing: sqlite3.Connection | None = None  # the index of a store that does not exist
        self._memory_until = float("-inf")  # reads use the index in memory until then
        self.problem: Problem | None = None  # why the index cannot be written
        self._afterwards = afterwards
        self._background: Thread | None = None
        self._starting, self._reading_nothing, self._mine = Lock(), RLock(), local()
        self._closing = Event()

    @property
    def is_ready(self) -> bool:
        """Whether there is an index to read, on disk or, if that cannot be written, in memory."""
        return not self.root.is_dir() or self.index.is_ready or self._memory.database is not None

    def read(self, work: Callable[[sqlite3.Connection], T]) -> T:
        """What the work finds in the index. It may be done twice, when the index turns out to be damaged."""
        if not self.root.is_dir():
            with self._reading_nothing:
                if self._nothing is None:
                    self._nothing = opened(":memory:")
                    create(self._nothing)
                return work(self._nothing)
        if self._monotonic() >= self._memory_until:
            try:
                found = self._read_index(work)
            except BundleError as error:
                if error.fields.get("code") != STORAGE:
                    raise
                self._use_memory(error)
            else:
                self.problem = None
                return found
        try:
            return self._memory.read(work)
        except OSError as error:
            raise unusable(f"cannot read {self.root}: {error.strerror}", Location(str(self.root))) from None

    def _read_index(self, work: Callable[[sqlite3.Connection], T]) -> T:
        for _ in range(ATTEMPTS):
            self._finish_what_the_dead_began()
            with self._index_trouble(), self.index.reading() as database:
                found = work(database)
                self._look_around()
                return found
        raise unusable("its index is gone again as soon as it is made")

    def _use_memory(self, error: Exception) -> None:
        """Read from memory for a while, and compare it with the files first."""
        self.problem = Problem.of(error if isinstance(error, BundleError) else storage_error(self.root, error))
        self._memory_until = self._monotonic() + RETRY_SECONDS
        self._memory.checked_at = float("-inf")

    def slugs_on_disk(self) -> set[str]:
        """Return the slugs of all bundles, deleted ones too, without the index."""
        slugs = set()
        for file in self.root.glob(f"*/{BUNDLE_FILE}"):
            with suppress(OSError, Unreadable):
                slugs.add(BundleFile.read(disk.read(file)[0]).slug)
        return slugs

    @contextmanager
    def writing(self) -> Iterator[Journal]:
        """Alone with the files, and with an index that agrees with them, or else one in memory that does."""
        with self.disk_trouble(), self._alone() as journal:
            try:
                self._mend(journal)
                self._memory_until = float("-inf")
            except (OSError, sqlite3.Error) as error:
                if _is_locked(error):
                    raise
                self._use_memory(error)
            yield journal
        self._look_around()

    def new_file(self, content: bytes) -> NewFile:
        """Write a new file without a place, for whoever holds the lock."""
        self.open_scratch()
        return self.scratch.write(content)

    def open_scratch(self) -> None:
        if not self.scratch.is_open:
            self.scratch.open()

    @contextmanager
    def _alone(self) -> Iterator[Journal]:
        """A thread that is alone already goes on so."""
        if (mine := getattr(self._mine, "journal", None)) is not None:
            yield mine
            return
        self.root.mkdir(parents=True, exist_ok=True, mode=0o700)
        with self._store_lock.held() as journal:
            self._mine.journal = journal
            try:
                yield journal
            finally:
                self._mine.journal = None
        self.index.tidy()

    def refresh(self, paths: list[str]) -> None:
        """Look at these files again: somebody has changed them by hand."""
        try:
            with self.writing() as journal:
                self.sync(journal, paths)
        except BundleError as error:
            if error.fields.get("code") != STORAGE:
                raise
            self._use_memory(error)

    def sync(self, journal: Journal, paths: list[str]) -> None:
        """For the writer: the index is to say what these files say, and the writer has nothing more to do."""
        try:
            self._mirror.sync({*paths, *self._noted(journal)})
            journal.done()
        except (OSError, sqlite3.Error, Gone) as error:  # the note stays, and whoever comes next puts it right
            self._use_memory(error)

    def touch(self) -> None:
        """Give the index a new version number, for a change that it does not hold."""
        with self._memory.writing() as database:
            touch(database)
        with suppress(sqlite3.Error, Gone), self.index.writing() as database:
            touch(database)

    def rescan(self) -> None:
        """Compare all files with the index."""
        if not self.root.is_dir():
            return
        for _ in range(ATTEMPTS):
            with self._index_trouble():
                paths = self._mirror.differences(self._closing)
                if paths:
                    self.refresh(paths)
                return

    def close(self) -> None:
        self._closing.set()
        if self._background is not None:
            self._background.join()
        self.index.close()
        self._memory.close()
        with self._reading_nothing:  # SQLite crashes if a connection is closed that another thread uses
            if self._nothing is not None:
                self._nothing.close()
            self._nothing = None
        self.scratch.close()

    # --- repairs -----------------------------------------------------------------------------------------------

    def _finish_what_the_dead_began(self) -> None:
        if self._store_lock.is_marked:
            with self.disk_trouble(), self._store_lock.held_if_free() as journal:
                if journal is not None:
                    self._mend(journal)

    def _mend(self, journal: Journal) -> None:
        try:
            with self.index.connection():
                pass
            if not journal.is_empty:
                paths = self._noted(journal)
                for path in paths:
                    if path.endswith(f"/{BUNDLE_FILE}"):
                        with suppress(OSError):  # not empty: no interrupted write or delete left it
                            (self.root / path).parent.rmdir()
                self._mirror.sync(paths)
                journal.done()
        except (Gone, sqlite3.DatabaseError) as error:
            if not _is_damage(error):
                raise
            self._rebuild()

    def _noted(self, journal: Journal) -> list[str]:
        """The files that the index may not agree with."""
        return [*journal.paths, *(self._mirror.differences(Event()) if journal.is_unknown else ())]

    def _rebuild(self) -> None:
        with self.index.rebuilding() as database:
            self._mirror.fill(database)

    @contextmanager
    def _index_trouble(self) -> Iterator[None]:
        """Swallows that the index is gone or damaged, after it has been built anew."""
        before = self.index.name
        try:
            yield
        except Gone:
            with self.writing():
                pass
        except sqlite3.DatabaseError as error:
            with self.disk_trouble():
                if not _is_damage(error):
                    raise
                with self._alone():
                    if self.index.name == before:  # else somebody was faster
                        self._rebuild()

    @contextmanager
    def disk_trouble(self) -> Iterator[None]:
        """Raise errors of the disk as errors of the store."""
        try:
            yield
        except (OSError, sqlite3.Error) as error:
            raise (unusable(str(error)) if _is_locked(error) else storage_error(self.root, error)) from error

    # --- in the background -------------------------------------------------------------------------------------

    def _look_around(self) -> None:
        if self._background is not None or self._closing.is_set():
            return
        with self._starting, suppress(RuntimeError):  # there is no thread to be had: the next call tries again
            if self._background is None:
                self._background = Thread(target=self._rescan_quietly, name="onetool-bundles", daemon=True)
                self._background.start()

    def _rescan_quietly(self) -> None:
        with suppress(BundleError, OSError, sqlite3.Error):  # whoever uses the store is told by their own call
            self.rescan()
            self._afterwards()


def _is_damage(error: Exception) -> bool:
    """Whether the index is at fault, and not the disk or somebody who is in the way."""
    return isinstance(error, Gone) or (getattr(error, "sqlite_errorcode", sqlite3.SQLITE_ERROR) & 0xFF) in _DAMAGED


def _is_locked(error: Exception) -> bool:
    return (getattr(error, "sqlite_errorcode", 0) & 0xFF) in _LOCKED
