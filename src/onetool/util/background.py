"""Background work: threads that sleep until they are woken, tasks, and shared computations.

The owner of a thread defines its work and handles the errors: work never raises. asyncio keeps only
weak references to tasks, so `BackgroundTasks` holds them.
"""

import asyncio
import threading
import time
from collections.abc import Awaitable, Callable, Hashable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from math import inf
from pathlib import Path
from typing import Any, Generic, TypeVar

from onetool.util.atomic import locked
from onetool.util.clock_watch import Clock

GATHER_SECONDS = 0.8  # a crash loses less than one second of work, including the write
RETRY_SECONDS = 30.0  # until failed work is retried
CLOSE_SECONDS = 10.0  # for the remaining work
SQLITE_SUFFIXES = ("-wal", "-shm", "-journal")  # of the files next to a database
T = TypeVar("T")
KEPT_SECONDS = 1.0


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


# --- tasks ----------------------------------------------------------------------------------------


class BackgroundTasks:
    """A set of running tasks. Without `on_error`, asyncio logs what a task raises."""

    def __init__(self, on_error: Callable[[BaseException], None] | None = None) -> None:
        self._tasks: set[asyncio.Future[object]] = set()
        self._on_error = on_error

    def start(self, work: Awaitable[T]) -> asyncio.Future[T]:
        task = asyncio.ensure_future(work)
        self._tasks.add(task)  # type: ignore[arg-type]  # futures are invariant, and results are not set here
        task.add_done_callback(self._end)
        return task

    def cancel(self) -> None:
        for task in self._tasks:
            task.cancel()

    def __len__(self) -> int:
        return len(self._tasks)

    async def wait(self) -> None:
        """Wait until all tasks have ended, with or without errors."""
        if self._tasks:
            await asyncio.wait(self._tasks)

    def _end(self, task: asyncio.Future[T]) -> None:
        self._tasks.discard(task)
        if (
            self._on_error is not None
            and not task.cancelled()
            and (error := task.exception()) is not None
        ):
            self._on_error(error)


def retrieve_error(task: asyncio.Future[Any]) -> None:
    """Retrieve the error of a task, which asyncio would log otherwise."""
    if not task.cancelled():
        task.exception()


# --- shared flights -------------------------------------------------------------------------------


@dataclass(slots=True)
class _Flight(Generic[T]):
    task: asyncio.Task[T]
    expires: float = inf  # while it is computed


class SharedFlight(Generic[T]):
    """A slow computation that runs at most once at a time, and whose result is kept for a second.

    If it took longer than a second, its result is kept for as long as it took. Computations for
    other keys start after a pause of that length. So callers in a loop leave others at least half
    of the time.
    """

    def __init__(self, clock: Clock = time.monotonic) -> None:
        self._clock = clock
        self._lock = asyncio.Lock()
        self._flights: dict[Hashable, _Flight[T]] = {}
        self._next_start = 0.0

    async def join(self, compute: Callable[[], Awaitable[T]], key: Hashable = None) -> T:
        """Return a recent result for this key, the current one, or a new one."""
        now = self._clock()
        self._flights = {
            key: flight for key, flight in self._flights.items() if now < flight.expires
        }
        flight = self._flights.get(key)
        if flight is None:
            flight = _Flight(asyncio.create_task(self._compute(compute, key)))
            flight.task.add_done_callback(retrieve_error)  # the callers may all be gone
            self._flights[key] = flight
        return await asyncio.shield(flight.task)

    def forget(self) -> None:
        """Compute the next results again: what they depend on has changed."""
        self._flights = {}

    async def _compute(self, compute: Callable[[], Awaitable[T]], key: Hashable) -> T:
        async with self._lock:
            await asyncio.sleep(self._next_start - self._clock())
            started = self._clock()
            try:
                return await compute()
            finally:
                ended = self._clock()
                self._next_start = ended + (ended - started)
                if key in self._flights:
                    self._flights[key].expires = ended + max(ended - started, KEPT_SECONDS)
