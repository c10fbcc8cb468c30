"""SIGINT and SIGTERM on an event loop. asyncio's `add_signal_handler` does not exist on Windows."""

import asyncio
import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager


@contextmanager
def on_stop_signal(stop: Callable[[], object]) -> Iterator[None]:
    """Call a function on the running event loop whenever SIGINT or SIGTERM arrives.

    Only in the main thread.
    """
    loop = asyncio.get_running_loop()

    def handle(*_: object) -> None:
        loop.call_soon_threadsafe(stop)

    before = {number: signal.signal(number, handle) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
