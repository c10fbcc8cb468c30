"""Handles Ctrl+C and SIGTERM: the first signal cancels the work, and cleanup is never interrupted.

`with SignalHandler() as signals:` catches the signals. Within `with signals.cancellable():`, a
signal cancels the task; outside of it, the next `cancellable` raises at once. Further signals are
ignored, so that cleanup always completes.
"""

import signal
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager, suppress
from types import FrameType
from typing import TYPE_CHECKING, Any, Self, TypeVar

if TYPE_CHECKING:
    import asyncio

T = TypeVar("T")
SIGNALS = tuple(
    getattr(signal, name) for name in ("SIGINT", "SIGTERM", "SIGHUP") if hasattr(signal, name)
)


class Terminated(BaseException):
    """Raised for SIGTERM. Not an `Exception`, so that error handlers do not catch it."""


class SignalHandler:
    def __init__(self) -> None:
        self.signal = 0  # the signal that was received
        self._task: asyncio.Task[Any] | None = None
        self._before: dict[int, Any] = {}

    def __enter__(self) -> Self:
        for number in SIGNALS:
            before = signal.getsignal(number)
            if (
                before is not signal.SIG_IGN and before is not None
            ):  # under nohup, SIGHUP stays ignored
                with suppress(ValueError):  # handlers can be set in the main thread only
                    signal.signal(number, self._receive)
                    self._before[number] = before
        return self

    def __exit__(self, *_: object) -> None:
        for number, before in self._before.items():
            signal.signal(number, before)

    @contextmanager
    def cancellable(self) -> Iterator[None]:
        import asyncio

        if self.signal:
            raise asyncio.CancelledError
        self._task = asyncio.current_task()
        try:
            yield
        finally:
            self._task = None

    def _receive(self, number: int, _frame: FrameType | None) -> None:
        if self.signal:
            return
        self.signal = number
        if self._task is not None:
            loop = self._task.get_loop()
            # Errors caused by the cancellation are noise, including those of uv, which receives the
            # same Ctrl+C.
            loop.set_exception_handler(lambda *_: None)
            loop.call_soon_threadsafe(self._cancel)

    def _cancel(self) -> None:
        """Cancel the task unless cleanup has begun since the signal arrived."""
        if self._task is not None:
            self._task.cancel()


def run_cancellable(work: Callable[[], Awaitable[T]]) -> T:
    """Run a coroutine function on an event loop; the first signal cancels it."""
    import asyncio

    async def run_in_scope() -> T:
        with signals.cancellable():
            return await work()

    with SignalHandler() as signals:
        try:
            result = asyncio.run(run_in_scope())
        except asyncio.CancelledError:
            if not signals.signal:
                raise
    if signals.signal:
        raise KeyboardInterrupt if signals.signal == signal.SIGINT else Terminated
    return result


@contextmanager
def blocked_signals() -> Iterator[None]:
    """Delay signals until the end of the block, so that related files are all written."""
    if not hasattr(signal, "pthread_sigmask"):  # on Windows
        yield
        return
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT, signal.SIGTERM})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
