"""The directory of the store with its lock and its index.

Reads return what the files contain, whoever wrote them.

Readers do not take the lock. They only check whether a writer died, and repair the index in that
case. The first process that finds the index missing or damaged rebuilds it. All files are compared
with the index once, in the background. If the index cannot be written, because the disk is full or
read-only, readers use an index in memory.

Files are replaced atomically, and a mark shows that a write was interrupted. Slow operations,
writing and syncing, happen before and after the lock is held. Methods that change files are called
in `writing`.
"""

import os
import sqlite3
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, suppress
from pathlib import Path
from sqlite3 import Connection
from threading import Event, Lock, Thread, local
from typing import TypeVar

from onetool.errors import BundleError
from onetool.sources.bundles import filesystem
from onetool.sources.bundles.bundle_index import BundleIndex, IndexMissing, increment_version
from onetool.sources.bundles.filesystem import Scratch, StoreLock, WriteMark, sync_directory
from onetool.sources.bundles.records import BundleFile, ToolFile, Unreadable
from onetool.sources.bundles.rules import (
    BUNDLE_FILE,
    directory_names,
    parse_id,
    tool_file_names,
    unavailable,
)
from onetool.sources.bundles.sync import BATCH_FILES, IndexSync, is_directory, sort_paths
from onetool.state.storage import BundleFiles
from onetool.util.clock_watch import Clock
from onetool.util.problem import STORAGE, Location, Problem, storage_error

T = TypeVar("T")
ATTEMPTS = 3
CHECK_SECONDS = 1.0  # time between two checks of the files for the index in memory
REAP_SECONDS = 3600.0  # time between two removals of expired bundles
RETRY_SECONDS = 5.0  # time until writing the index is tried again
_LOCKED = {sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED}
_DAMAGED = {sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB}
_DAMAGED |= {sqlite3.SQLITE_ERROR, sqlite3.SQLITE_CONSTRAINT}


class BundleDirectory:
    def __init__(
        self,
        root: Path,
        *,
        files: BundleFiles | None = None,
        on_scanned: Callable[[], None] = lambda: None,
        interval: float = REAP_SECONDS,
        batch_files: int = BATCH_FILES,
        monotonic: Clock = time.monotonic,
    ) -> None:
        """Create the object without disk access.

        `on_scanned` is called in the background after the files have been compared, and then every
        `interval` seconds.
        """
        self.root = root
        self._files = files or BundleFiles(root)
        self.index = BundleIndex(root / ".index")
        self._memory = BundleIndex()  # if there is no store, or its index cannot be written
        self.scratch = Scratch(root)
        self._closing = Event()
        self._store_lock = StoreLock(root / ".lock", self._closing)
        self._index_sync = IndexSync(root, batch_files)
        self._monotonic = monotonic
        self._memory_until = float("-inf")  # reads use the index in memory until then
        self._memory_checked = float("-inf")  # when it was compared with the files
        self.problem: Problem | None = None  # why the index cannot be written
        self._on_scanned = on_scanned
        self._interval = interval
        self._background: Thread | None = None
        self._starting = Lock()
        self._thread = local()

    @property
    def problems(self) -> list[Problem]:
        return [*([self.problem] if self.problem else []), *self._files.problems]

    @property
    def is_ready(self) -> bool:
        """Whether there is an index to read, on disk or, if that cannot be written, in memory."""
        return not self.root.is_dir() or self.index.is_ready or self._memory.is_ready

    def read(self, work: Callable[[Connection], T]) -> T:
        """Return what `work` finds in the index.

        `work` may be called twice if the index is damaged.
        """
        self._files.follow(self)
        if self.root.is_dir() and self._monotonic() >= self._memory_until:
            try:
                result = self._read_index(work)
            except BundleError as error:
                if error.fields.get("code") != STORAGE:
                    raise
                self._use_memory(error)
            else:
                self.problem = None
                return result
        with self._memory.connection() as database:
            self._update_memory(database)
            return work(database)

    def _update_memory(self, database: Connection) -> None:
        """Compare the index in memory with the files.

        This neither takes the lock of the store nor writes anything.
        """
        if self._monotonic() < self._memory_checked + CHECK_SECONDS:
            return
        try:
            if self.root.is_dir():
                os.scandir(
                    self.root
                ).close()  # raises what would otherwise look like an empty store
        except OSError as error:
            raise unavailable(
                f"cannot read {self.root}: {error.strerror}", Location(str(self.root))
            ) from None
        IndexSync(self.root).update_all(database, Event())
        self._memory_checked = self._monotonic()

    def _read_index(self, work: Callable[[Connection], T]) -> T:
        for _ in range(ATTEMPTS):
            self._recover()
            with self._repairing_index(), self.index.reading() as database:
                result = work(database)
                self._start_rescan()
                return result
        raise unavailable("its index was deleted while it was being built")

    def _use_memory(self, error: Exception) -> None:
        """Compare the index in memory with the files, and read from it for some seconds."""
        if not isinstance(error, BundleError):
            error = storage_error(self.root, error)
        self.problem = Problem.of(error)
        self._memory_until = self._monotonic() + RETRY_SECONDS
        self._memory_checked = float("-inf")

    def read_slugs(self) -> set[str]:
        """Return the slugs of all bundles, deleted ones too, without the index."""
        slugs = set()
        for file in self.root.glob(f"*/{BUNDLE_FILE}"):
            with suppress(OSError, Unreadable):
                slugs.add(BundleFile.read(filesystem.read(file)[0]).slug)
        return slugs

    def writing(self) -> AbstractContextManager[None]:
        """Return a context for changing files."""
        return self._files.writing(self)

    @contextmanager
    def holding(self) -> Iterator[None]:
        """Hold the lock, with an index that agrees with the files, if need be one in memory."""
        with self.converting_errors(), self._hold_lock():
            try:
                self._repair()
                self._memory_until = float("-inf")
            except (OSError, sqlite3.Error) as error:
                if _is_locked(error):
                    raise
                self._use_memory(error)
            yield
        self._start_rescan()

    def new_file(self, content: bytes) -> Path:
        """Write a new file to the scratch directory. The caller holds the lock."""
        self.open_scratch()
        return self.scratch.write(content)

    def open_scratch(self) -> None:
        if not self.scratch.is_open:
            self.scratch.open()

    @contextmanager
    def _hold_lock(self) -> Iterator[None]:
        """Hold the lock of the store; the thread that already holds it continues."""
        if getattr(self._thread, "mark", None) is not None:
            yield
            return
        self.root.mkdir(parents=True, exist_ok=True, mode=0o700)
        with self._store_lock.hold() as mark, self._using(mark):
            yield
        self.index.checkpoint()

    @contextmanager
    def _using(self, mark: WriteMark) -> Iterator[None]:
        self._thread.mark = mark
        try:
            yield
        finally:
            self._thread.mark = None

    def refresh(self, paths: list[str]) -> None:
        """Read these files again, because they were changed outside the store."""
        try:
            with self.writing():
                self.sync(paths)
        except BundleError as error:
            if error.fields.get("code") != STORAGE:
                raise
            self._use_memory(error)

    def begin_change(self) -> None:
        """Mark that files are about to change. The caller holds the lock."""
        self._thread.mark.begin()

    def sync(self, paths: list[str]) -> None:
        """Bring the index up to date with these files and finish the write.

        The caller holds the lock.
        """
        self._files.record(self, paths)
        self.index_files(paths)

    def index_files(self, paths: list[str]) -> None:
        """Bring the index up to date with these files. The caller holds the lock."""
        try:
            self._update_index({*paths, *self._list_stale()})
        except (
            OSError,
            sqlite3.Error,
            IndexMissing,
        ) as error:  # the mark stays for the next process
            self._thread.mark.is_stale = True
            self._use_memory(error)

    def increment_version(self) -> None:
        """Give the index a new version number, for a change that it does not hold."""
        for index in (self._memory, self.index):
            with suppress(sqlite3.Error, IndexMissing), index.writing() as database:
                increment_version(database)

    def rescan(self) -> None:
        """Compare all files with the index."""
        if not self.root.is_dir():
            return
        for _ in range(ATTEMPTS):
            with self._repairing_index():
                with self.index.reading() as database:
                    paths = self._index_sync.find_differences(database, self._closing)
                if paths:
                    self.refresh(paths)
                return

    def close(self) -> None:
        self._closing.set()
        if self._background is not None:
            self._background.join()
        self.index.close()
        self._memory.close()
        self.scratch.close()

    # --- repairs ----------------------------------------------------------------------------------

    def _recover(self) -> None:
        if self._store_lock.has_mark:
            with self.converting_errors(), self._store_lock.try_hold() as mark:
                if mark is not None:
                    with self._using(mark):
                        self._repair()

    def _repair(self) -> None:
        try:
            with self.index.connection():
                pass
            if self._thread.mark.is_stale:
                paths = self._list_stale()
                for path in paths:
                    if path.endswith(f"/{BUNDLE_FILE}"):
                        # A directory with files was neither being created nor deleted.
                        with suppress(OSError):
                            (self.root / path).parent.rmdir()
                self._update_index(paths)
        except (IndexMissing, sqlite3.DatabaseError) as error:
            if not _is_index_damaged(error):
                raise
            self._rebuild()

    def _update_index(self, paths: Iterable[str]) -> None:
        with self.index.writing() as database:
            self._index_sync.update(database, sort_paths(paths))
        self._thread.mark.finish()

    def _list_stale(self) -> list[str]:
        """Return the files with which the index may disagree."""
        if not self._thread.mark.is_stale:
            return []
        with self.index.reading() as database:
            return self._index_sync.find_differences(database, Event())

    def _rebuild(self) -> None:
        with self.index.rebuilding() as database:
            self._index_sync.update_all(database, self._closing)

    @contextmanager
    def _repairing_index(self) -> Iterator[None]:
        """Rebuild the index if it is missing or damaged, and suppress that error."""
        before = self.index.name
        try:
            yield
        except IndexMissing:
            with self.writing():
                pass
        except sqlite3.DatabaseError as error:
            with self.converting_errors():
                if not _is_index_damaged(error):
                    raise
                with self._hold_lock():
                    if self.index.name == before:  # otherwise another process has rebuilt it
                        self._rebuild()

    @contextmanager
    def converting_errors(self) -> Iterator[None]:
        """Convert disk errors to errors of the store."""
        try:
            yield
        except (OSError, sqlite3.Error) as error:
            raise (
                unavailable(str(error)) if _is_locked(error) else storage_error(self.root, error)
            ) from error

    # --- writes without the lock ------------------------------------------------------------------

    def write(self, contents: Sequence[bytes]) -> list[Path]:
        """Write new files to the scratch directory, all or none."""
        if not self.scratch.is_open:
            with self.writing():
                self.open_scratch()
        written: list[Path] = []
        try:
            with self.converting_errors():
                for content in contents:
                    written.append(self.scratch.write(content))  # noqa: PERF401 - for cleanup after an error
        except BaseException:
            self.scratch.drop(written)
            raise
        return written

    def sync_directories(self, *directories: str) -> None:
        """Sync these directories; `.` is the root of the store."""
        for directory in directories:
            sync_directory(self.root / directory)

    # --- writes of tools --------------------------------------------------------------------------

    def add_tools(self, directory: str, files: Sequence[ToolFile], written: Sequence[Path]) -> None:
        self._reject_link(directory)
        names = [tool_file_names(file.slug, file.version) for file in files]
        paths = [f"{directory}/{name}" for several in names for name in several]
        for path in paths:
            if os.path.lexists(self.root / path):
                raise _unreadable_file_error(path)
        moved: list[str] = []
        with self._changing(paths):
            try:
                for new, several in zip(written, names, strict=True):
                    moved.append(filesystem.move(new, self.root / directory, several))
            except OSError:
                for name in moved:
                    with suppress(OSError):
                        (self.root / directory / name).unlink()
                raise

    def replace(self, path: str, content: bytes) -> None:
        self._reject_link(path.partition("/")[0])
        new = self.new_file(content)
        with self._changing([path], new):
            filesystem.move(new, self.root, [path])

    def delete(self, path: str) -> None:
        self._reject_link(path.partition("/")[0])
        with self._changing([path]):
            (self.root / path).unlink(missing_ok=True)

    # --- writes of bundles ------------------------------------------------------------------------

    def find_directory(self, bundle_id: str) -> str | None:
        """Return the directory of a bundle, even of one that was just added by hand."""
        directory = self._read_directory(bundle_id)
        if directory is not None:
            return directory
        for place in self.root.iterdir():
            if parse_id(place.name) == bundle_id:
                if not is_directory(place):
                    raise _unreadable_file_error(place.name)
                self.sync([f"{place.name}/{BUNDLE_FILE}"])
                if self._read_directory(bundle_id) is None and any(place.iterdir()):
                    raise _unreadable_file_error(f"{place.name}/{BUNDLE_FILE}")
                return place.name
        return None

    def put_bundle(self, directory: str | None, file: BundleFile) -> str:
        """Write a bundle and return its directory, which is created if necessary."""
        if directory:
            self._reject_link(directory)
        new = self.new_file(file.text())
        names = (directory,) if directory else directory_names(file.slug, file.id)
        paths = [f"{name}/{BUNDLE_FILE}" for name in names]
        with self._changing(paths, new):
            made = self._make_directory(names)
            filesystem.move(new, self.root / made, [BUNDLE_FILE])
        return made

    def _make_directory(self, names: Sequence[str]) -> str:
        """Create a directory with the first of the names that the file system accepts."""
        *better, last = names
        for name in better:
            with suppress(OSError):
                (self.root / name).mkdir(mode=0o700, exist_ok=True)
                return name
        (self.root / last).mkdir(mode=0o700, exist_ok=True)
        return last

    def remove_bundle(self, directory: str) -> None:
        """Remove a bundle, unless its directory contains other files."""
        place = self.root / directory
        if [entry.name for entry in place.iterdir()] != [BUNDLE_FILE]:
            return
        with self._changing([f"{directory}/{BUNDLE_FILE}"]):
            (place / BUNDLE_FILE).unlink()
            with suppress(OSError):  # another file was just added
                place.rmdir()

    @contextmanager
    def _changing(self, paths: list[str], *written: Path) -> Iterator[None]:
        """Change these files in this block. The index is updated after it."""
        self._thread.mark.begin()
        try:
            yield
        finally:
            self.sync(paths)
            self.scratch.drop(written)

    def _reject_link(self, directory: str) -> None:
        """Reject a symbolic link, which may just have replaced the directory."""
        if (self.root / directory).is_symlink():
            raise _unreadable_file_error(directory)

    def _read_directory(self, bundle_id: str) -> str | None:
        query = "select folder from bundles where id = ?"
        row = self.read(lambda database: database.execute(query, (bundle_id,)).fetchone())
        return None if row is None else str(row[0])

    # --- in the background ------------------------------------------------------------------------

    def _start_rescan(self) -> None:
        if self._background is not None or self._closing.is_set():
            return
        # If no thread can be started, the next call tries again.
        with self._starting, suppress(RuntimeError):
            if self._background is None:
                self._background = Thread(
                    target=self._rescan_in_background, name="onetool-bundles", daemon=True
                )
                self._background.start()

    def _rescan_in_background(self) -> None:
        with suppress(BundleError, OSError, sqlite3.Error):  # the next call of the store raises it
            self.rescan()
        is_first = True
        while is_first or not self._closing.wait(self._interval):
            is_first = False
            with suppress(BundleError, OSError, sqlite3.Error):
                self._on_scanned()


def _is_index_damaged(error: Exception) -> bool:
    """Return whether the index is damaged, rather than the disk failing or the index being locked."""
    return (
        isinstance(error, IndexMissing)
        or (getattr(error, "sqlite_errorcode", sqlite3.SQLITE_ERROR) & 0xFF) in _DAMAGED
    )


def _unreadable_file_error(path: str) -> BundleError:
    message = f"cannot read {path}: fix or move it (ot.health() reports the reason)"
    return BundleError(message, code="duplicate", details={"file": path})


def _is_locked(error: Exception) -> bool:
    return (getattr(error, "sqlite_errorcode", 0) & 0xFF) in _LOCKED
