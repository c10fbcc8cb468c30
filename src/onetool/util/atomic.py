"""Atomic file writes, and locks that processes share. Writers that need a lock take it themselves."""

import errno
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path


@contextmanager
def replacing(file: Path, *, keep: bool = False) -> Iterator[Path]:
    """Yield a temporary path whose file replaces this one if the block succeeds.

    Concurrent writers do not mix; the last one wins. With `keep` the first one wins, and the others
    get FileExistsError.
    """
    temporary = file.with_name(f"{file.name}.{os.urandom(4).hex()}.tmp")
    try:
        yield temporary
        if keep and _link(temporary, file):
            return
        temporary.replace(file)
    finally:
        with suppress(OSError):
            temporary.unlink()


def write(file: Path, content: str, *, durable: bool = False) -> None:
    """Write a small file for its owner only; `durable` survives a power failure."""
    file.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    with (
        replacing(file) as temporary,
        open(temporary, "x", encoding="utf-8", opener=owner_only) as new,
    ):
        new.write(content)
        if durable:
            new.flush()
            os.fsync(new.fileno())


def owner_only(path: str, flags: int) -> int:
    return os.open(path, flags, 0o600)


def _link(temporary: Path, file: Path) -> bool:
    """Create a hard link; return False if the file system does not support it."""
    try:
        os.link(temporary, file)
    except FileExistsError:
        raise
    except OSError:
        return False
    return True


# --- locks ----------------------------------------------------------------------------------------


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
