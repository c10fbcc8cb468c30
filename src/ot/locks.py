"""One process at a time: a lock of the kernel's on a file that holds nothing else.

The kernel lets go of it when a process dies, so that there is nothing to clean up and nothing to guess. The file
stays: whoever deletes it while another waits for it makes two locks of one.
"""

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

if sys.platform == "win32":
    import msvcrt

    def _wait_for(descriptor: int) -> None:
        msvcrt.locking(descriptor, msvcrt.LK_LOCK, 1)

    def _take_now(descriptor: int) -> None:
        msvcrt.locking(descriptor, msvcrt.LK_NBLCK, 1)

else:
    import fcntl

    def _wait_for(descriptor: int) -> None:
        fcntl.flock(descriptor, fcntl.LOCK_EX)

    def _take_now(descriptor: int) -> None:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)


def _open_for_owner(path: str, flags: int) -> int:
    return os.open(path, flags, 0o600)


@contextmanager
def locked(path: Path) -> Iterator[None]:
    """Hold the lock of this file, which is made where it is missing; its folder must be there."""
    with open(path, "a", opener=_open_for_owner) as file:
        _wait_for(file.fileno())
        yield


def try_lock(descriptor: int) -> bool:
    """Lock an open file for as long as it is open; return False if another process holds the lock."""
    try:
        _take_now(descriptor)
    except (BlockingIOError, PermissionError):  # the second is what Windows says
        return False
    return True
