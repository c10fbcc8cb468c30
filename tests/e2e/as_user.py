"""Run a program as an ordinary user: `python as_user.py UID NEEDED... -- PROGRAM ARGUMENT...`, as
root.

The Python of root is often in a home directory that other users cannot enter. In a new mount
namespace, such a directory is covered by an empty one that is open to all, with the needed
directories mounted at their old paths. So all paths stay the same, and the program has only the
permissions of the user.
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
        raise OSError(ctypes.get_errno(), "cannot create a mount namespace")
    _mount("none", "/", None, MS_REC | MS_PRIVATE)


def _make_reachable(needed: list[Path]) -> None:
    closed: dict[Path, list[Path]] = {}
    for path in needed:
        barrier = next(
            (directory for directory in reversed(path.parents) if not _is_accessible(directory)),
            None,
        )
        if barrier is not None:
            closed.setdefault(barrier, []).append(path)
    for barrier, paths in closed.items():
        _cover(
            barrier, [path for path in paths if not any(other in path.parents for other in paths)]
        )


def _is_accessible(directory: Path) -> bool:
    return bool(directory.stat().st_mode & 0o001)


def _cover(barrier: Path, kept: list[Path]) -> None:
    held = [Path(tempfile.mkdtemp(prefix="held-")) for _ in kept]
    for path, mount_point in zip(kept, held, strict=True):
        _mount(str(path), str(mount_point), None, MS_BIND | MS_REC)
    _mount("none", str(barrier), "tmpfs", 0, "mode=755")
    for path, mount_point in zip(kept, held, strict=True):
        path.mkdir(parents=True)
        _mount(str(mount_point), str(path), None, MS_BIND | MS_REC)
        _unmount(mount_point)


def _mount(source: str, target: str, kind: str | None, flags: int, data: str | None = None) -> None:
    libc = ctypes.CDLL(None, use_errno=True)
    encoded = [None if text is None else text.encode() for text in (source, target, kind, data)]
    if libc.mount(encoded[0], encoded[1], encoded[2], ctypes.c_ulong(flags), encoded[3]) != 0:
        raise OSError(ctypes.get_errno(), f"cannot mount {source} on {target}")


def _unmount(mount_point: Path) -> None:
    libc = ctypes.CDLL(None, use_errno=True)
    if (
        libc.umount2(str(mount_point).encode(), 2) == 0
    ):  # detach lazily: the mount is still in use at its target
        mount_point.rmdir()


if __name__ == "__main__":
    main(sys.argv[1:])
