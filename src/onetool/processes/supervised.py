"""Children that many calls use: started on demand, stopped when idle, and shared by applications.

A child is started once for all callers. After a failed start, the next attempt is delayed, longer
each time. Callers in the meantime get the error immediately.

Applications of one process with equal definitions get the same child from a `SharedPool`. Its
`Users` are the applications: what one of them does must not affect the calls of the others. The
last user ends the child.
"""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager
from typing import Any, Generic, Protocol, TypeVar

from onetool.errors import ToolError
from onetool.processes.process import Printed, Process
from onetool.util.tasks import retrieve_error

FIRST_WAIT_SECONDS = 1.0
MAX_WAIT_SECONDS = 60.0
BUSY_SECONDS = 1.0  # until the next check of a child that is in use
User = TypeVar("User")


class Stoppable(Protocol):
    @property
    def is_over(self) -> bool: ...


Child = TypeVar("Child", bound=Stoppable)


class Supervised(Generic[Child]):
    """A supervised child.

    `start` raises ToolError; `idle` returns its idle timeout in seconds, None while in use.
    """

    def __init__(
        self,
        name: str,
        start: Callable[[], Awaitable[Child]],
        stop: Callable[[Child], None],
        idle: Callable[[Child], float | None],
    ) -> None:
        self._name = name
        self._start = start
        self._stop = stop
        self._idle = idle
        self._child: Child | None = None
        self._starting: asyncio.Task[Child] | None = None
        self.last_use = 0.0
        self.failure: ToolError | None = None
        self._failures = 0
        self._next_try = 0.0

    @property
    def live(self) -> Child | None:
        return self._child if self._child is not None and not self._child.is_over else None

    @property
    def starting(self) -> "asyncio.Task[Child] | None":
        """The start in progress.

        One that has ended is not joined: its child may have been stopped at once.
        """
        return None if self._starting is None or self._starting.done() else self._starting

    @property
    def wait_seconds(self) -> float:
        """The seconds until the next start is allowed."""
        return max(0.0, self._next_try - asyncio.get_running_loop().time())

    async def get(self) -> Child:
        """Return the live child; start it if there is none.

        Cancelling a caller does not cancel the start.
        """
        if (live := self.live) is not None:
            return live
        starting = self.begin()
        try:
            return await asyncio.shield(starting)
        except asyncio.CancelledError:
            if starting.cancelled():
                raise ToolError(f"{self._name} was closed during startup") from None
            raise

    def begin(self) -> "asyncio.Task[Child]":
        """Start the child, unless it is already starting."""
        starting = self.starting
        if starting is None:
            starting = self._starting = asyncio.ensure_future(self._run_start())
            starting.add_done_callback(retrieve_error)
        return starting

    async def _run_start(self) -> Child:
        try:
            child = await self._start()
        except ToolError as error:
            self.failure = error
            pause = min(MAX_WAIT_SECONDS, FIRST_WAIT_SECONDS * 2**self._failures)
            self._failures = self._failures + 1
            self._next_try = asyncio.get_running_loop().time() + pause
            raise
        self._child = child
        self.failure = None
        self._failures = 0
        self._next_try = 0.0
        self.last_use = asyncio.get_running_loop().time()
        self._stop_when_idle(child)
        return child

    def retry_now(self) -> None:
        """Forget the last failure: its reason is gone."""
        self.failure = None
        self._failures = 0
        self._next_try = 0.0

    def lose(self, child: Child, failure: ToolError) -> bool:
        """Record that the child was lost; return whether it was the current one.

        A new start is allowed at once.
        """
        is_current = self._child is child
        if is_current:
            self._child = None
            self.failure = failure
            self._next_try = 0.0
        return is_current

    def release(self) -> Child | None:
        """Return the child without stopping it, and forget it."""
        child = self._child
        self._child = None
        return child

    def _stop_when_idle(self, child: Child) -> None:
        """Stop the child after its idle time, which restarts with every use."""
        if child.is_over or self._child is not child:
            return
        loop = asyncio.get_running_loop()
        idle = self._idle(child)
        left = BUSY_SECONDS if idle is None else self.last_use + idle - loop.time()
        if left > 0:
            loop.call_later(left, self._stop_when_idle, child)
        else:
            self._child = None
            self._stop(child)


# --- Sharing --------------------------------------------------------------------------------------


class CallInterrupted(Exception):
    """The call's user has stopped using the child."""


class Users(Generic[User]):
    """A child's users, and their calls in flight.

    `on_first_call` is called before a call if no other is in flight: earlier output does not belong
    to it.
    """

    def __init__(self, on_first_call: Callable[[], None] = lambda: None) -> None:
        self._on_first_call = on_first_call
        self._users: dict[User, None] = {}  # in the order in which they came
        self._calls: dict[User, set[asyncio.Timeout]] = {}  # of former users too
        self._callers: dict[User, None] = {}  # since the last time when no call was in flight
        self._call_ended = asyncio.Event()

    def __iter__(self) -> Iterator[User]:
        return iter(tuple(self._users))

    def __len__(self) -> int:
        return len(self._users)

    def add(self, user: User) -> None:
        self._users[user] = None

    def discard(self, user: User) -> None:
        self._users.pop(user, None)

    @asynccontextmanager
    async def track(self, user: User) -> AsyncIterator[None]:
        """Make a call. It raises CallInterrupted after `interrupt`."""
        if not self._calls:
            self._callers.clear()
            self._on_first_call()
        self._callers[user] = None
        calls = self._calls.setdefault(user, set())
        clock = asyncio.timeout(None)
        calls.add(clock)
        try:
            async with clock:
                yield
        except TimeoutError:
            if clock.expired():
                raise CallInterrupted from None
            raise
        finally:
            calls.discard(clock)
            if not calls:
                self._calls.pop(user, None)
            self._call_ended.set()
            self._call_ended = asyncio.Event()

    def interrupt(self, user: User) -> None:
        """Interrupt this user's calls."""
        now = asyncio.get_running_loop().time()
        for clock in self._calls.get(user, ()):
            if not clock.expired():
                clock.reschedule(now)

    def is_calling(self, user: User) -> bool:
        return user in self._calls

    async def wait_for_calls(self, user: User) -> None:
        """Wait until this user has no call in flight."""
        while user in self._calls:
            await self._call_ended.wait()

    def has_others(self, user: User) -> bool:
        """Return whether there is another user, or a former user's call."""
        return bool({*self._users, *self._calls} - {user})

    def may_read_output(self, user: User) -> bool:
        """Return whether the child's latest output cannot be about other users' calls."""
        return not self._callers.keys() - {user}

    def find_output_owner(self) -> User | None:
        """Return the user with a call in flight, or any user to which output may belong."""
        return next(
            (user for users in (self._calls, self._callers, self._users) for user in users), None
        )


class SharedProcess(Generic[User]):
    """A child with its users, and what its process printed.

    Without a process of its own, it prints nothing.
    """

    def __init__(self) -> None:
        self.users: Users[User] = Users(self._clear_output)
        self.is_offered = True  # whether other applications may still use it
        self._process: Process | None = None
        self._ready: asyncio.Future[Any] = asyncio.get_running_loop().create_future()

    @property
    def _printed(self) -> Printed:
        return Printed() if self._process is None else self._process.printed

    def get_output(self, user: User) -> Printed:
        """Return what the process printed; nothing if that could be about other users' calls."""
        return self._printed if self.users.may_read_output(user) else Printed()

    def _clear_output(self) -> None:
        """Discard the output so far, which is not related to the next call."""
        self._printed.clear()

    def _fail(self, error: BaseException) -> None:
        """Record why it did not become ready."""
        self._ready.set_exception(error)
        self._ready.exception()  # mark it as retrieved


class SharedChild(Protocol):
    is_offered: bool  # whether other applications may still use it

    @property
    def is_over(self) -> bool: ...
    async def close(self) -> None: ...


Member = TypeVar("Member", bound=SharedChild)


class SharedPool(Generic[Member]):
    """Shared children by definition: everything that decides what a child can do and see."""

    def __init__(self) -> None:
        self._children: list[tuple[object, Member]] = []

    def get(self, definition: object, make: Callable[[], Member]) -> Member:
        """Return the child with an equal definition, or a new one.

        The caller becomes its user at once.
        """
        for shared, child in self._list_live():
            if child.is_offered and shared == definition:
                return child
        child = make()
        self._children.append((definition, child))
        return child

    def __len__(self) -> int:
        return len(self._list_live())

    def _list_live(self) -> list[tuple[object, Member]]:
        self._children = [entry for entry in self._children if not entry[1].is_over]
        return self._children

    async def close(self) -> None:
        """End all children, and their users' calls."""
        children = self._children
        self._children = []
        await asyncio.gather(*(child.close() for _, child in children))
