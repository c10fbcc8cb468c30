"""Make many long-lived objects without pauses of the garbage collector.

A full collection holds the interpreter lock for about a second per five million objects, and a heap that grows is
collected again and again. Many objects made inside of `no_gc_pauses` are never looked at again; reference counts still
free them.
"""

import gc
import threading
from collections.abc import Iterator
from contextlib import contextmanager

MANY_OBJECTS = 20_000  # about 10 ms of a collection

_lock = threading.Lock()
_users: list[bool] = []  # whether the collector was enabled when each came


@contextmanager
def no_gc_pauses() -> Iterator[None]:
    """Suspend collections. If many objects were made, exempt all that are there afterwards from later ones."""
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
                if gc.get_count()[0] > MANY_OBJECTS:
                    gc.freeze()
                if was_enabled:
                    gc.enable()
