"""The change feed of an application: which kinds of state have changed, in this process or by
others.

State in files is polled by one task for all who watch, and only while somebody does. The thread
that listens to a database reports its kinds. Whoever changes state in this process reports it too,
so that nobody waits for a poll.
"""

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field

POLL_SECONDS = 0.5


@dataclass(slots=True)
class _Poll:
    """A function whose value changes with a kind of state."""

    read: Callable[[], Awaitable[object]]
    settles: bool
    last: object = None
    reported: object = None
    reading: asyncio.Task[None] | None = None

    async def is_changed(self) -> bool:
        try:
            value = await self.read()
        except Exception as error:  # noqa: BLE001 - who watches gets the same error
            value = repr(error)
        is_complete = not self.settles or value == self.last
        self.last = value
        if value == self.reported or not is_complete:
            return False
        self.reported = value
        return True


@dataclass(eq=False, slots=True)
class _Watcher:
    kinds: tuple[str, ...]
    changed: asyncio.Event = field(default_factory=asyncio.Event)
    loop: asyncio.AbstractEventLoop = field(default_factory=asyncio.get_running_loop)


class Changes:
    """The changes of each kind of state. Kinds that nobody polls change when they are reported."""

    def __init__(self) -> None:
        self.seconds = POLL_SECONDS
        self._numbers: Counter[str] = Counter()
        self._listeners: list[tuple[str, Callable[[], object]]] = []
        self._polls: dict[str, _Poll] = {}
        self._watchers: list[_Watcher] = []
        self._polling: asyncio.Task[None] | None = None

    def poll(
        self, kind: str, read: Callable[[], Awaitable[object]], *, settles: bool = False
    ) -> None:
        """Read a value that changes with this kind of state while somebody watches it.

        With `settles`, a new value counts when it was read twice: a file may still be being
        written.
        """
        self._polls[kind] = _Poll(read, settles)

    def number(self, kind: str) -> int:
        """Return a number that increases with each change that is known here."""
        return self._numbers[kind]

    def subscribe(self, kind: str, listener: Callable[[], object]) -> None:
        """Call the listener with each report of this kind, in the thread that reports it."""
        self._listeners.append((kind, listener))

    def report(self, kind: str) -> None:
        """Report that this kind of state has changed. Thread-safe."""
        self._numbers[kind] += 1
        for subscribed, listener in self._listeners:
            if subscribed == kind:
                listener()
        self.wake(kind)

    def wake(self, kind: str) -> None:
        """Wake those who watch this kind, without counting the change. Thread-safe."""
        for watcher in [watcher for watcher in self._watchers if kind in watcher.kinds]:
            with suppress(RuntimeError):  # the loop is closed
                watcher.loop.call_soon_threadsafe(watcher.changed.set)

    async def watch(self, *kinds: str) -> AsyncIterator[None]:
        """Yield at once, and after each change of one of these kinds.

        Several changes may count as one.
        """
        with self.watching(*kinds) as changed:
            while True:
                await changed.wait()
                changed.clear()
                yield

    @contextmanager
    def watching(self, *kinds: str) -> Iterator[asyncio.Event]:
        """Yield an event that is set, and set again after each change of one of these kinds."""
        watcher = _Watcher(kinds)
        watcher.changed.set()
        self._watchers.append(watcher)
        try:
            if self._polling is None or self._polling.done():
                self._polling = asyncio.ensure_future(self._poll_all())
            yield watcher.changed
        finally:
            self._watchers.remove(watcher)

    def close(self) -> None:
        """End polling."""
        if self._polling is not None:
            self._polling.cancel()
        for poll in self._polls.values():
            if poll.reading is not None:
                poll.reading.cancel()

    async def _poll_all(self) -> None:
        """Poll what is watched. A slow kind does not delay the others."""
        while self._watchers:
            for kind in {kind for watcher in self._watchers for kind in watcher.kinds}:
                poll = self._polls.get(kind)
                if poll is not None and (poll.reading is None or poll.reading.done()):
                    poll.reading = asyncio.ensure_future(self._poll_once(kind, poll))
            await asyncio.sleep(self.seconds)

    async def _poll_once(self, kind: str, poll: _Poll) -> None:
        if await poll.is_changed():
            self.report(kind)
