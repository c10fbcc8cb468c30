"""Threads that sleep until they are woken, and files that their work sets aside.

The owner of a thread defines its work and handles the errors: work never raises.
"""

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import TypeVar

from onetool.util.atomic import locked

GATHER_SECONDS = 0.8  # a crash loses less than one second of work, including the write
RETRY_SECONDS = 30.0  # until failed work is retried
CLOSE_SECONDS = 10.0  # for the remaining work
SQLITE_SUFFIXES = ("-wal", "-shm", "-journal")  # of the files next to a database
T = TypeVar("T")


class Background:
    """A thread that works a moment after it is woken, so that calls do not disturb it.

    `work` returns whether it succeeded.
    """

    def __init__(
        self,
        name: str,
        work: Callable[[], bool],
        *,
        gather: float = GATHER_SECONDS,
        retry: float = RETRY_SECONDS,
    ) -> None:
        self._name = name
        self._work = work
        self._gather = gather
        self._retry = retry
        self._requested = threading.Event()
        self._closing = threading.Event()
        self._working = threading.Lock()
        self._starting = threading.Lock()
        self._thread: threading.Thread | None = None

    def wake(self) -> None:
        if self._requested.is_set() or self._closing.is_set():
            return
        with (
            self._starting,
            suppress(RuntimeError),
        ):  # no thread can be started: the next call tries again
            if self._thread is None:
                thread = threading.Thread(target=self._loop, name=self._name, daemon=True)
                thread.start()
                self._thread = thread
            self._requested.set()

    def flush(self) -> bool:
        """Do the work in the calling thread."""
        with self._working:
            return self._work()

    def close(self) -> None:
        """Do the remaining work and stop."""
        self._closing.set()
        self._requested.set()
        if self._thread is None:
            self.flush()
        else:
            self._thread.join(timeout=CLOSE_SECONDS)

    def _loop(self) -> None:
        done = True
        while not self._closing.is_set():
            self._requested.wait(None if done else self._retry)
            self._closing.wait(self._gather)
            self._requested.clear()
            done = self.flush()
        self.flush()  # work that arrived during the last flush


@contextmanager
def exclusive(file: Path) -> Iterator[None]:
    """Hold the lock of this file, so that one process at a time changes it.

    Create a missing directory.
    """
    file.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    with locked(Path(f"{file}.lock")):
        yield


def remember_state(file: Path) -> None:
    """Remember for `is_unchanged` that the file is intact as it is.

    The caller must hold the lock (`exclusive`).
    """
    with suppress(OSError):
        Path(f"{file}.lock").write_text(_describe_state(file), "utf-8")


def is_unchanged(file: Path) -> bool:
    """Return whether the file is as `remember_state` saw it last."""
    try:
        return Path(f"{file}.lock").read_text("utf-8") == _describe_state(file)
    except (OSError, ValueError):
        return False


def _describe_state(file: Path) -> str:
    status = file.stat()
    return f"{status.st_ino} {status.st_size} {status.st_mtime_ns}"


def put_aside(file: Path, now: float) -> Path:
    """Rename a damaged file, so that a new one can be created.

    The caller must hold the lock (`exclusive`).
    """
    timestamp = datetime.fromtimestamp(now, UTC).strftime("%Y%m%dT%H%M%SZ")
    target = file.with_name(f"{file.name}.damaged-{timestamp}")
    number = 1
    while target.exists():
        number += 1
        target = file.with_name(f"{file.name}.damaged-{timestamp}-{number}")
    # The database is renamed last: a new one next to an old write-ahead log would use that log.
    for suffix in (*SQLITE_SUFFIXES, ""):
        source = Path(f"{file}{suffix}")
        if source.exists():
            source.rename(f"{target}{suffix}")
    return target
