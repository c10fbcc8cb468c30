"""Removing and measuring folders that hostile code has filled: no recursion, never through a link."""

import contextlib
import os
import stat
from collections.abc import Iterable, Iterator
from itertools import count

ATTEMPTS = 50


def remove(top: str) -> None:
    """Take the folder away with all that is in it. What cannot be removed is left; nothing is raised."""
    for _ in range(ATTEMPTS):  # somebody else may be removing it too, or still writing into it
        try:
            _remove(top)
        except FileNotFoundError:
            if not os.path.lexists(top):
                return
        except OSError:
            continue
        else:
            return


def _remove(top: str) -> None:
    descriptor = os.open(top, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
    try:
        _empty(descriptor)
    finally:
        os.close(descriptor)
    os.rmdir(top)  # noqa: PTH106 - this module must not load pathlib


def _empty(top: int) -> None:
    """Folders inside folders are moved up before their parent goes, so that no path ever grows long."""
    mark = os.urandom(8).hex()  # what is there may be called anything
    fresh = (f".{mark}-{number}" for number in count())
    while names := os.listdir(top):
        for name in names:
            with contextlib.suppress(FileNotFoundError):  # somebody else is cleaning up too
                if not _unlinked(name, top):
                    _flatten(name, top, fresh)


def _unlinked(name: str, folder: int) -> bool:
    try:
        os.unlink(name, dir_fd=folder)
    except (IsADirectoryError, PermissionError):
        return False
    return True


def _flatten(name: str, top: int, fresh: Iterator[str]) -> None:
    os.chmod(name, 0o700, dir_fd=top)
    folder = os.open(name, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW, dir_fd=top)
    try:
        for inner in os.listdir(folder):  # noqa: PTH208 - see above
            with contextlib.suppress(FileNotFoundError):
                _move_up(inner, folder, next(fresh), top)
    finally:
        os.close(folder)
    os.rmdir(name, dir_fd=top)


def _move_up(name: str, folder: int, new_name: str, top: int) -> None:
    if not _unlinked(name, folder):
        os.chmod(name, 0o700, dir_fd=folder)  # what may not be written may not be moved
        os.rename(name, new_name, src_dir_fd=folder, dst_dir_fd=top)


def larger_than(top: str, limit: int, holders: Iterable[int] = ()) -> bool:
    """Whether the files in the folder take more than this; many small ones count as a page each.

    So do files that have no name any more and are held open by one of the processes named. A folder that cannot be
    looked into (too deep, not readable) counts as too much: nobody makes such a one but to hide something in it.
    """
    total, folders = sum(map(_held_bytes, holders)), [top]
    while folders and total <= limit:
        try:
            total += _bytes_in(folders.pop(), folders)
        except FileNotFoundError:
            continue
        except OSError:
            return True
    return total > limit


def _bytes_in(folder: str, deeper: list[str]) -> int:
    total = 0
    with os.scandir(folder) as entries:
        for entry in entries:
            if entry.is_dir(follow_symlinks=False):
                deeper.append(entry.path)
            with contextlib.suppress(FileNotFoundError):  # gone since it was listed
                total += _taken(entry.stat(follow_symlinks=False))
    return total


def _taken(file: os.stat_result) -> int:
    return max(file.st_blocks * 512, 4096)


def _held_bytes(process: int) -> int:
    total = 0
    with contextlib.suppress(OSError):
        for number in os.listdir(f"/proc/{process}/fd"):  # noqa: PTH208 - see above
            with contextlib.suppress(OSError):
                file = os.stat(f"/proc/{process}/fd/{number}")  # noqa: PTH116 - see above
                total += _taken(file) if stat.S_ISREG(file.st_mode) and file.st_nlink == 0 else 0
    return total
