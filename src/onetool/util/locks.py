"""File locks between processes.

The kernel releases a lock when its process ends, so nothing needs cleanup. Lock files are never
deleted: deleting one while another process waits for it would create a second lock.
"""

import errno
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from onetool.util.atomic import owner_only

if sys.platform == "win32":
    import msvcrt

    LOCK_OFFSET = 1 << 30  # beyond the content, because locked bytes cannot be read on Windows

    def _lock(descriptor: int, *, wait: bool, shared: bool = False) -> None:  # noqa: ARG001 - all are exclusive
        os.lseek(descriptor, LOCK_OFFSET, os.SEEK_SET)
        try:
            msvcrt.locking(descriptor, msvcrt.LK_LOCK if wait else msvcrt.LK_NBLCK, 1)
        except OSError as error:
            if error.errno != errno.EDEADLK:
                raise
            _lock(descriptor, wait=wait)  # LK_LOCK gives up after ten seconds

else:
    import fcntl

    def _lock(descriptor: int, *, wait: bool, shared: bool = False) -> None:
        kind = fcntl.LOCK_SH if shared else fcntl.LOCK_EX
        fcntl.flock(descriptor, kind if wait else kind | fcntl.LOCK_NB)


@contextmanager
def locked(path: Path) -> Iterator[None]:
    """Hold the lock of this file, which is created if missing; its directory must exist."""
    with open(path, "a", opener=owner_only) as file:
        _lock(file.fileno(), wait=True)
        yield


def try_lock(descriptor: int, *, shared: bool = False) -> bool:
    """Lock an open file for as long as it is open; return False if another process holds the lock.

    Shared locks exclude exclusive locks only: processes that test whether a file is locked do not
    see each other.
    """
    try:
        _lock(descriptor, wait=False, shared=shared)
    except (BlockingIOError, PermissionError):  # PermissionError on Windows
        return False
    return True
