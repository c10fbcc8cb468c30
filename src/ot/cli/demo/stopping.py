"""Ctrl-C, and being asked to end: what goes on is cancelled, and what takes it down again is left in peace.

`with Stopping() as stopping:` holds the signals. Within `with stopping.allowed():` a signal cancels the task; outside
of it the next `allowed` raises at once. A second Ctrl-C changes nothing, so that no process and no folder is left.
"""

import asyncio
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any, Self

SIGNALS = tuple(getattr(signal, name) for name in ("SIGINT", "SIGTERM", "SIGHUP") if hasattr(signal, name))


class Stopping:
    def __init__(self) -> None:
        self.signal = 0  # the one that came
        self._task: asyncio.Task[Any] | None = None
        self._before: dict[int, Any] = {}

    def __enter__(self) -> Self:
        for number in SIGNALS:
            before = signal.getsignal(number)
            if before is not signal.SIG_IGN and before is not None:  # nohup wants to go on without its terminal
                self._before[number] = before
                signal.signal(number, self._came)
        return self

    def __exit__(self, *_: object) -> None:
        for number, before in self._before.items():
            signal.signal(number, before)

    @contextmanager
    def allowed(self) -> Iterator[None]:
        task = asyncio.current_task()
        assert task is not None
        if self.signal:
            raise asyncio.CancelledError
        self._task = task
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
            loop.set_exception_handler(_unheard)
            loop.call_soon_threadsafe(self._cancel)

    def _cancel(self) -> None:
        """In the loop, a moment later: what takes it all down may have begun by now."""
        if self._task is not None:
            self._task.cancel()


def _unheard(_loop: asyncio.AbstractEventLoop, _context: dict[str, Any]) -> None:
    """What fails because it was stopped, like uv, which the terminal's Ctrl-C reaches too, is no news to anybody."""
