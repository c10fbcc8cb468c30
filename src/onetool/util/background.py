"""Work that nobody waits for: a thread that sleeps until it is woken, and a file that one process at a time may change.

What the work is, and what becomes of its errors, is the business of its owner: work never raises.
"""

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from datetime import UTC, datetime
from pathlib import Path

from onetool.util.locks import locked

GATHER_SECONDS = 0.8  # what a crash can lose stays under a second, the writing included
RETRY_SECONDS = 30.0  # after work that could not be done, when nothing new wakes us
LAST_SECONDS = 10.0  # for what is left at the end
BESIDE = ("-wal", "-shm", "-journal")  # what SQLite keeps next to a database


class Background:
    """Does its work a moment after it was woken, so that a busy server is not disturbed at every call.

    `work` says whether it could be done.
    """

    def __init__(
        self, name: str, work: Callable[[], bool], *, gather: float = GATHER_SECONDS, retry: float = RETRY_SECONDS
    ) -> None:
        self._name, self._work = name, work
        self._gather, self._retry = gather, retry
        self._asked, self._closing = threading.Event(), threading.Event()
        self._working, self._starting = threading.Lock(), threading.Lock()
        self._thread: threading.Thread | None = None

    def wake(self) -> None:
        if self._asked.is_set() or self._closing.is_set():
            return
        with self._starting, suppress(RuntimeError):  # there is no thread to be had: the next call tries again
            if self._thread is None:
                thread = threading.Thread(target=self._loop, name=self._name, daemon=True)
                thread.start()
                self._thread = thread
            self._asked.set()

    def flush(self) -> bool:
        """Do the work here and now."""
        with self._working:
            return self._work()

    def close(self) -> None:
        """Do what is left, and stop."""
        self._closing.set()
        self._asked.set()
        if self._thread is None:
            self.flush()
        else:
            self._thread.join(timeout=LAST_SECONDS)

    def _loop(self) -> None:
        done = True
        while not self._closing.is_set():
            self._asked.wait(None if done else self._retry)
            self._closing.wait(self._gather)
            self._asked.clear()
            done = self.flush()
        self.flush()  # what came while the last was being written


@contextmanager
def alone(file: Path) -> Iterator[None]:
    """One process at a time; the folder is made where it is missing."""
    file.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    with locked(Path(f"{file}.lock")):
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
    for ending in (*BESIDE, ""):
        source = Path(f"{file}{ending}")
        if source.exists():
            source.rename(f"{kept}{ending}")
    return kept
