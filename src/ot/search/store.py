"""Where indexes are kept: files written once, under the name of what they hold, and never changed afterwards.

So any number of processes share the folder without a lock, each finds its own catalogue there, and a crash leaves
nothing half-written. A new file starts as a copy of the newest one and is written where it differs. All of it is only
a cache: what cannot be read is made again, and where nothing can be written the index lives in memory.
"""

import os
import shutil
import sqlite3
import tempfile
from collections.abc import Iterator
from contextlib import closing, contextmanager, suppress
from pathlib import Path
from typing import Final

from ot.search.index import Content, Index, write

FILES_KEPT: Final = 4


class Store:
    def __init__(self, folder: Path | None) -> None:
        self._folder = folder
        self._memory: sqlite3.Connection | None = None
        self._index: Index | None = None

    def index(self, content: Content) -> Index:
        """The index of this content. The one that was given before is of no use afterwards."""
        kept = self._kept(content)
        if kept is not None or self._memory is None:
            self.close()
        self._index = kept or self._in_memory(content)
        return self._index

    def forget(self, content: Content) -> None:
        """Give up what there is of this content: it turned out to be damaged."""
        self.close()
        if self._folder is not None:
            with suppress(OSError):
                _path(self._folder, content).unlink()

    def close(self) -> None:
        if self._index is not None:
            self._index.close()
        self._index = self._memory = None

    def __del__(self) -> None:
        self.close()  # Python warns of databases that are left open

    def _kept(self, content: Content) -> Index | None:
        if self._folder is None:
            return None
        with suppress(sqlite3.Error):  # there is none yet, or it is damaged
            return _opened(_path(self._folder, content), content)
        with suppress(OSError, sqlite3.Error):  # a full disk, somebody else's folder: no reason to fail
            return _made(self._folder, content)
        return None

    def _in_memory(self, content: Content) -> Index:
        if self._memory is None:
            self._memory = sqlite3.connect(":memory:", check_same_thread=False)
        write(self._memory, content)
        return Index(self._memory, content.digests)


def _made(folder: Path, content: Content) -> Index:
    folder.mkdir(parents=True, exist_ok=True)
    path = _path(folder, content)
    with _temporary(folder) as file:
        _fill(file, _newest(folder, content), content)
        file.replace(path)
    _sweep(folder)
    return _opened(path, content)


def _path(folder: Path, content: Content) -> Path:
    return folder / f"search-{content.stamp}-{content.digest}.db"


def _opened(path: Path, content: Content) -> Index:
    connection = sqlite3.connect(f"{path.absolute().as_uri()}?mode=ro&immutable=1", uri=True, check_same_thread=False)
    try:
        index = Index(connection, content.digests)
    except sqlite3.Error:
        connection.close()
        raise
    with suppress(OSError):
        os.utime(path)  # what is used is not swept
    return index


def _fill(file: Path, base: Path | None, content: Content) -> None:
    """Write the file, starting from the base where that is any good."""
    if base is not None:
        with suppress(OSError, sqlite3.Error):
            shutil.copyfile(base, file)
            _write(file, content)
            return
    file.write_bytes(b"")
    _write(file, content)


def _write(file: Path, content: Content) -> None:
    with closing(sqlite3.connect(file)) as connection:
        connection.execute("pragma journal_mode = off")  # nobody sees the file before it is whole
        connection.execute("pragma synchronous = off")
        write(connection, content)


@contextmanager
def _temporary(folder: Path) -> Iterator[Path]:
    handle, name = tempfile.mkstemp(prefix="search-", suffix=".tmp", dir=folder)
    os.close(handle)
    try:
        yield Path(name)
    finally:
        Path(name).unlink(missing_ok=True)


def _newest(folder: Path, content: Content) -> Path | None:
    return max(folder.glob(f"search-{content.stamp}-*.db"), key=_changed, default=None)


def _sweep(folder: Path) -> None:
    for path in sorted(folder.glob("search-*"), key=_changed)[:-FILES_KEPT]:
        with suppress(OSError):
            path.unlink()


def _changed(path: Path) -> float:
    try:
        return path.stat().st_mtime
    except OSError:  # another process swept it
        return 0.0
