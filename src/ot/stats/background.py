"""Work that nobody waits for: a thread that sleeps until it is woken, and a file that one process at a time may change.

What the work is, and what becomes of its errors, is the business of `record` and `shapes`.
"""

import threading
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from datetime import UTC, datetime
from pathlib import Path

GATHER_SECONDS = 0.8  # what a crash can lose stays under a second, the writing included
BUSY_SECONDS = 5.0
BESIDE = ("-wal", "-shm", "-journal")  # what SQLite keeps next to a database


class Background:
    """Does its work a moment after it was woken, so that a busy server is not disturbed at every call."""

    def __init__(self, name: str, work: Callable[[], None]) -> None:
        self._name, self._work = name, work
        self._asked, self._closing = threading.Event(), threading.Event()
        self._working, self._starting = threading.Lock(), threading.Lock()
        self._thread: threading.Thread | None = None

    def wake(self) -> None:
        if self._asked.is_set() or self._closing.is_set():
            return
        with self._starting:
            self._asked.set()
            if self._thread is None:
                self._thread = threading.Thread(target=self._loop, name=self._name, daemon=True)
                self._thread.start()

    def flush(self) -> None:
        """Do the work here and now."""
        with self._working:
            self._work()

    def close(self) -> None:
        """Do what is left, and stop."""
        self._closing.set()
        self._asked.set()
        if self._thread is not None:
            self._thread.join(timeout=2 * BUSY_SECONDS)

    def _loop(self) -> None:
        while not self._closing.is_set():
            self._asked.wait()
            self._closing.wait(GATHER_SECONDS)
            self._asked.clear()
            self.flush()


@contextmanager
def alone(file: Path) -> Iterator[None]:
    """One process at a time. The lock is SQLite's, which every system has and which dies with its process."""
    import sqlite3

    file.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    with closing(sqlite3.connect(f"{file}.lock", timeout=BUSY_SECONDS, isolation_level=None)) as lock:
        lock.execute("PRAGMA journal_mode = MEMORY")  # nothing is ever written to it
        lock.execute("BEGIN EXCLUSIVE")
        yield


def put_aside(file: Path, now: float) -> Path:
    """Keep a damaged file under another name, so that a new one can be begun. Only for who is `alone` with it."""
    moment = datetime.fromtimestamp(now, UTC).strftime("%Y%m%dT%H%M%SZ")
    kept = file.with_name(f"{file.name}.damaged-{moment}")
    number = 1
    while kept.exists():
        number += 1
        kept = file.with_name(f"{file.name}.damaged-{moment}-{number}")
    # The database goes last: one that is begun beside the log of another would take that log for its own.
    for ending in BESIDE:
        _move(Path(f"{file}{ending}"), Path(f"{kept}{ending}"))
    _move(file, kept)
    return kept


def _move(source: Path, target: Path) -> None:
    if source.exists():
        source.rename(target)
