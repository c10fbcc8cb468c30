"""One process at a time: a lock of the kernel's on a file.

The kernel releases it when a process dies, so that there is nothing to clean up and nothing to guess. The file
stays: whoever deletes it while another waits for it makes two locks of one.
"""

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from onetool.util.atomic import owner_only

if sys.platform == "win32":
    import msvcrt

    FAR_AWAY = 1 << 30  # a locked byte cannot be read there, so it is one beyond all that is written

    def _lock(descriptor: int, *, wait: bool) -> None:
        os.lseek(descriptor, FAR_AWAY, os.SEEK_SET)
        msvcrt.locking(descriptor, msvcrt.LK_LOCK if wait else msvcrt.LK_NBLCK, 1)

else:
    import fcntl

    def _lock(descriptor: int, *, wait: bool) -> None:
        fcntl.flock(descriptor, fcntl.LOCK_EX if wait else fcntl.LOCK_EX | fcntl.LOCK_NB)


@contextmanager
def locked(path: Path) -> Iterator[None]:
    """Hold the lock of this file, which is made where it is missing; its folder must be there."""
    with open(path, "a", opener=owner_only) as file:
        _lock(file.fileno(), wait=True)
        yield


def try_lock(descriptor: int) -> bool:
    """Lock an open file for as long as it is open; return False if another process holds the lock."""
    try:
        _lock(descriptor, wait=False)
    except (BlockingIOError, PermissionError):  # the second is what Windows says
        return False
    return True
