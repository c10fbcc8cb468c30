"""Runs a program as an ordinary user: `python as_user.py UID NEEDED... -- PROGRAM ARGUMENT...`, as root.

The Python of a root user often lives in a home folder that nobody else may enter. In a mount namespace of its own,
such a folder is covered by an empty one, open to all, in which the needed directories stand where they always stood. So
every path is what it was, and the user has no right that a user would not have.
"""

import ctypes
import os
import sys
import tempfile
from pathlib import Path

CLONE_NEWNS = 0x20000
MS_BIND, MS_REC, MS_PRIVATE = 0x1000, 0x4000, 0x40000


def main(arguments: list[str]) -> None:
    end = arguments.index("--")
    uid, needed, command = int(arguments[0]), arguments[1:end], arguments[end + 1 :]
    _new_namespace()
    _make_reachable([Path(path) for path in needed])
    os.setgroups([])
    os.setresgid(uid, uid, uid)
    os.setresuid(uid, uid, uid)
    os.execv(command[0], command)


def _new_namespace() -> None:
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.unshare(CLONE_NEWNS) != 0:
        raise OSError(ctypes.get_errno(), "no mount namespace can be had")
    _mount("none", "/", None, MS_REC | MS_PRIVATE)


def _make_reachable(needed: list[Path]) -> None:
    closed: dict[Path, list[Path]] = {}
    for path in needed:
        barrier = next((folder for folder in reversed(path.parents) if not _may_enter(folder)), None)
        if barrier is not None:
            closed.setdefault(barrier, []).append(path)
    for barrier, paths in closed.items():
        _cover(barrier, [path for path in paths if not any(other in path.parents for other in paths)])


def _may_enter(folder: Path) -> bool:
    return bool(folder.stat().st_mode & 0o001)


def _cover(barrier: Path, kept: list[Path]) -> None:
    held = [Path(tempfile.mkdtemp(prefix="held-")) for _ in kept]
    for path, place in zip(kept, held, strict=True):
        _mount(str(path), str(place), None, MS_BIND | MS_REC)
    _mount("none", str(barrier), "tmpfs", 0, "mode=755")
    for path, place in zip(kept, held, strict=True):
        path.mkdir(parents=True)
        _mount(str(place), str(path), None, MS_BIND | MS_REC)
        _unmount(place)


def _mount(source: str, target: str, kind: str | None, flags: int, data: str | None = None) -> None:
    libc = ctypes.CDLL(None, use_errno=True)
    encoded = [None if text is None else text.encode() for text in (source, target, kind, data)]
    if libc.mount(encoded[0], encoded[1], encoded[2], ctypes.c_ulong(flags), encoded[3]) != 0:
        raise OSError(ctypes.get_errno(), f"{source} cannot be mounted on {target}")


def _unmount(place: Path) -> None:
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.umount2(str(place).encode(), 2) == 0:  # lazily: the mount is in use where it belongs
        place.rmdir()


if __name__ == "__main__":
    main(sys.argv[1:])
