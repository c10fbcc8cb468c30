"""Opening folders without ever following a link: by the kernel in one step, or name by name where it cannot.

Both take a descriptor to start at and real names below it, and open exactly that or raise. What a name leads to is
the business of `files.py`: whoever swaps a folder for a link meanwhile makes them fail, and nothing else.
"""

import errno
import functools
import os
import struct
from collections.abc import Callable, Sequence
from typing import Any

Opener = Callable[[int, Sequence[str], int], int]

# Some systems lack some of them; where none is there, tools for files cannot work, but others can.
PATH_ONLY = getattr(os, "O_PATH", os.O_RDONLY)
FOLDER = getattr(os, "O_DIRECTORY", 0)
NO_LINK = getattr(os, "O_NOFOLLOW", 0)
PRIVATE = getattr(os, "O_CLOEXEC", 0)
NEVER_WAIT = getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_NOCTTY", 0)

_SYS_OPENAT2 = 437  # the same number on every architecture
_NO_MAGIC_LINKS, _NO_LINKS, _BENEATH = 0x02, 0x04, 0x08
_RESOLVE = _NO_MAGIC_LINKS | _NO_LINKS | _BENEATH


def best_opener() -> Opener:
    """The kernel's own way where this kernel, and whatever guards this process, has it."""
    try:
        top = os.open("/", PATH_ONLY | FOLDER | PRIVATE)
    except OSError:
        return open_by_walking
    try:
        os.close(open_by_kernel(top, (), PATH_ONLY | FOLDER))
    except (OSError, AttributeError):
        return open_by_walking
    finally:
        os.close(top)
    return open_by_kernel


@functools.cache
def _libc() -> Any:
    import ctypes

    libc = ctypes.CDLL(None, use_errno=True)
    libc.syscall.restype = ctypes.c_long
    return libc


def open_by_kernel(start: int, names: Sequence[str], flags: int) -> int:
    import ctypes

    how = struct.pack("=QQQ", flags | NO_LINK | PRIVATE, 0, _RESOLVE)
    path = os.fsencode("/".join(names) or ".")
    number, size = ctypes.c_long(_SYS_OPENAT2), ctypes.c_size_t(len(how))
    descriptor = _libc().syscall(number, ctypes.c_long(start), ctypes.c_char_p(path), ctypes.c_char_p(how), size)
    if descriptor < 0:
        raise _error(ctypes.get_errno(), path)
    return int(descriptor)


def open_by_walking(start: int, names: Sequence[str], flags: int) -> int:
    current = os.open(".", PATH_ONLY | FOLDER | PRIVATE, dir_fd=start)
    for name in names[:-1]:
        current = _replaced(current, name, PATH_ONLY | FOLDER)
    return _replaced(current, names[-1] if names else ".", flags)


def _replaced(folder: int, name: str, flags: int) -> int:
    """What is opened in the folder, which is closed."""
    if name == "..":  # real names have none; that it would lead out is worth a line
        os.close(folder)
        raise _error(errno.EXDEV, os.fsencode(name))
    try:
        return os.open(name, flags | NO_LINK | PRIVATE, dir_fd=folder)
    finally:
        os.close(folder)


def rename_without_replacing(old: str, old_folder: int, new: str, new_folder: int) -> None:
    """FileExistsError where the new name is taken, another OSError where the file system cannot do both in one step."""
    import ctypes

    libc = _libc()
    if not hasattr(libc, "renameat2"):
        raise _error(errno.ENOSYS, os.fsencode(new))
    if libc.renameat2(old_folder, os.fsencode(old), new_folder, os.fsencode(new), ctypes.c_uint(1)) != 0:
        raise _error(ctypes.get_errno(), os.fsencode(new))


def _error(number: int, path: bytes) -> OSError:
    return OSError(number, os.strerror(number), os.fsdecode(path))


def location(descriptor: int) -> str | None:
    """Where the kernel says that the opened thing is; None where it does not say."""
    try:
        return os.readlink(f"/proc/self/fd/{descriptor}")  # noqa: PTH115 - a Path would change what it says
    except OSError:
        return _location_by_fcntl(descriptor)


def _location_by_fcntl(descriptor: int) -> str | None:
    try:
        import fcntl

        answer = fcntl.fcntl(descriptor, getattr(fcntl, "F_GETPATH"), bytes(1024))  # noqa: B009 - only macOS has it
    except (ImportError, AttributeError, OSError):
        return None
    return os.fsdecode(answer.split(b"\0")[0])
