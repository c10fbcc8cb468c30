"""Ctrl+C, and being asked to end: the work is cancelled, and what takes it down again is left in peace.

`with Stopping() as stopping:` holds the signals. Within `with stopping.allowed():` a signal cancels the task; outside
of it the next `allowed` raises at once. A second Ctrl+C changes nothing, so that no process and no folder is left.
"""

import signal
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager, suppress
from types import FrameType
from typing import TYPE_CHECKING, Any, Self, TypeVar

if TYPE_CHECKING:
    import asyncio

T = TypeVar("T")
SIGNALS = tuple(getattr(signal, name) for name in ("SIGINT", "SIGTERM", "SIGHUP") if hasattr(signal, name))


class Terminated(BaseException):
    """Somebody sent SIGTERM. No `Exception`, so that nothing takes it for a failure of its own."""


class Stopping:
    def __init__(self) -> None:
        self.signal = 0  # the one that came
        self._task: asyncio.Task[Any] | None = None
        self._before: dict[int, Any] = {}

    def __enter__(self) -> Self:
        for number in SIGNALS:
            before = signal.getsignal(number)
            if before is not signal.SIG_IGN and before is not None:  # nohup wants to go on without its terminal
                with suppress(ValueError):  # in a thread, which hears no signals
                    signal.signal(number, self._came)
                    self._before[number] = before
        return self

    def __exit__(self, *_: object) -> None:
        for number, before in self._before.items():
            signal.signal(number, before)

    @contextmanager
    def allowed(self) -> Iterator[None]:
        import asyncio

        if self.signal:
            raise asyncio.CancelledError
        self._task = asyncio.current_task()
        try:
            yield
        finally:
            self._task = None

    def _came(self, number: int, _frame: FrameType | None) -> None:
        if self.signal:
            return
        self.signal = number
        if self._task is not None:
            loop = self._task.get_loop()
            # What fails because it was stopped is no news to anybody: uv, too, which the terminal's Ctrl+C reaches.
            loop.set_exception_handler(lambda *_: None)
            loop.call_soon_threadsafe(self._cancel)

    def _cancel(self) -> None:
        """In the loop, a moment later: what takes it all down may have begun by now."""
        if self._task is not None:
            self._task.cancel()


def heeding_signals(work: Callable[[], Awaitable[T]]) -> T:
    """Do the work on an event loop; the first signal that asks for its end cancels it."""
    import asyncio

    async def heeded() -> T:
        with stopping.allowed():
            return await work()

    with Stopping() as stopping:
        try:
            result = asyncio.run(heeded())
        except asyncio.CancelledError:
            if not stopping.signal:
                raise
    if stopping.signal:
        raise KeyboardInterrupt if stopping.signal == signal.SIGINT else Terminated
    return result


@contextmanager
def undisturbed() -> Iterator[None]:
    """For writing several files that belong together: who presses Ctrl+C meanwhile is heard when all are written."""
    if not hasattr(signal, "pthread_sigmask"):  # on Windows
        yield
        return
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT, signal.SIGTERM})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
