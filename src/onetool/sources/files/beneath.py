"""Open directories without following links: in one system call (`openat2`), or name by name if it
is unavailable.

Both ways take a descriptor to start at and resolved names below it, and open exactly that or raise.
`files.py` resolves the names: if a directory is replaced by a link in the meantime, opening fails.
"""

import errno
import os
import struct
from collections.abc import Callable, Sequence
from functools import cache
from typing import Any

Opener = Callable[[int, Sequence[str], int], int]

# Some systems lack some of these flags. File tools may not work there, but the server must still
# start.
PATH_ONLY = getattr(os, "O_PATH", os.O_RDONLY)
DIRECTORY = getattr(os, "O_DIRECTORY", 0)
NO_FOLLOW = getattr(os, "O_NOFOLLOW", 0)
CLOSE_ON_EXEC = getattr(os, "O_CLOEXEC", 0)
NON_BLOCKING = getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_NOCTTY", 0)

_SYS_OPENAT2 = 437  # the same number on every architecture
_NO_MAGIC_LINKS = 0x02
_NO_LINKS = 0x04
_BENEATH = 0x08
_RESOLVE = _NO_MAGIC_LINKS | _NO_LINKS | _BENEATH


def choose_opener() -> Opener:
    """Return `open_by_kernel` if the kernel and the sandbox of this process allow it, else
    `open_by_walking`.
    """
    try:
        top = os.open("/", PATH_ONLY | DIRECTORY | CLOSE_ON_EXEC)
    except OSError:
        return open_by_walking
    try:
        os.close(open_by_kernel(top, (), PATH_ONLY | DIRECTORY))
    except (OSError, AttributeError):
        return open_by_walking
    finally:
        os.close(top)
    return open_by_kernel


@cache
def _libc() -> Any:
    import ctypes

    libc = ctypes.CDLL(None, use_errno=True)
    libc.syscall.restype = ctypes.c_long
    return libc


def open_by_kernel(start: int, names: Sequence[str], flags: int) -> int:
    import ctypes

    how = struct.pack("=QQQ", flags | NO_FOLLOW | CLOSE_ON_EXEC, 0, _RESOLVE)
    path = os.fsencode("/".join(names) or ".")
    number = ctypes.c_long(_SYS_OPENAT2)
    size = ctypes.c_size_t(len(how))
    descriptor = _libc().syscall(
        number, ctypes.c_long(start), ctypes.c_char_p(path), ctypes.c_char_p(how), size
    )
    if descriptor < 0:
        raise _error(ctypes.get_errno(), path)
    return int(descriptor)


def open_by_walking(start: int, names: Sequence[str], flags: int) -> int:
    current = os.open(".", PATH_ONLY | DIRECTORY | CLOSE_ON_EXEC, dir_fd=start)
    for name in names[:-1]:
        current = _open_and_close_parent(current, name, PATH_ONLY | DIRECTORY)
    return _open_and_close_parent(current, names[-1] if names else ".", flags)


def _open_and_close_parent(directory: int, name: str, flags: int) -> int:
    """Open a name in the directory, close the directory and return the new descriptor."""
    if name == "..":  # resolved names have none, and it would lead out of the directory
        os.close(directory)
        raise _error(errno.EXDEV, os.fsencode(name))
    try:
        return os.open(name, flags | NO_FOLLOW | CLOSE_ON_EXEC, dir_fd=directory)
    finally:
        os.close(directory)


def rename_without_replacing(old: str, old_directory: int, new: str, new_directory: int) -> None:
    """Rename atomically.

    Raise FileExistsError if the new name exists, another OSError if that is not supported.
    """
    import ctypes

    libc = _libc()
    if not hasattr(libc, "renameat2"):
        raise _error(errno.ENOSYS, os.fsencode(new))
    if (
        libc.renameat2(
            old_directory, os.fsencode(old), new_directory, os.fsencode(new), ctypes.c_uint(1)
        )
        != 0
    ):
        raise _error(ctypes.get_errno(), os.fsencode(new))


def _error(number: int, path: bytes) -> OSError:
    return OSError(number, os.strerror(number), os.fsdecode(path))


def get_descriptor_path(descriptor: int) -> str | None:
    """Return the path of an open descriptor as the kernel reports it, or None if it does not."""
    try:
        return os.readlink(f"/proc/self/fd/{descriptor}")  # noqa: PTH115 - a Path would change what it says
    except OSError:
        return _get_path_by_fcntl(descriptor)


def _get_path_by_fcntl(descriptor: int) -> str | None:
    try:
        import fcntl

        answer = fcntl.fcntl(descriptor, getattr(fcntl, "F_GETPATH"), bytes(1024))  # noqa: B009 - only macOS has it
    except (ImportError, AttributeError, OSError):
        return None
    return os.fsdecode(answer.split(b"\0")[0])
