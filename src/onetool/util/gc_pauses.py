"""Create many long-lived objects without pauses of the garbage collector.

A full collection holds the interpreter lock for about a second per five million objects, and a
growing heap is collected repeatedly. Objects created inside `no_gc_pauses` are exempt from later
collections; reference counting still frees them.
"""

import gc
import threading
from collections.abc import Iterator
from contextlib import contextmanager

MIN_FROZEN_OBJECTS = 20_000  # about 10 ms of a collection

_lock = threading.Lock()
_users: list[bool] = []  # whether the collector was enabled when each user entered


@contextmanager
def no_gc_pauses() -> Iterator[None]:
    """Suspend collections.

    If many objects were created, exempt all existing objects from later collections.
    """
    with _lock:
        _users.append(gc.isenabled())
        gc.disable()
    try:
        yield
    finally:
        with _lock:
            was_enabled = any(_users)
            _users.pop()
            if not _users:
                if gc.get_count()[0] > MIN_FROZEN_OBJECTS:
                    gc.freeze()
                if was_enabled:
                    gc.enable()
