"""Removing and measuring folders that hostile code has filled: no recursion, never through a link."""

import contextlib
import os
import stat
import time
from collections.abc import Iterable, Iterator
from itertools import count

ATTEMPTS = 50
CONFIRM_SECONDS = 0.05


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
                if not _unlinked(inner, folder):
                    os.chmod(inner, 0o700, dir_fd=folder)  # what may not be written may not be moved
                    os.rename(inner, next(fresh), src_dir_fd=folder, dst_dir_fd=top)
    finally:
        os.close(folder)
    os.rmdir(name, dir_fd=top)


def larger_than(top: str, limit: int, holders: Iterable[int] = ()) -> bool:
    """Return whether the files in the directory take more than this; a small one counts as a page.

    Files without a name count too, if one of the processes holds them open. A file that a process only maps, and a
    directory that cannot be listed, count as too much: their size is unknown. A file can go from named to open to
    mapped and never back, so they are looked at in this order and none is missed.
    """
    total, folders = 0, [top]
    while folders and total <= limit:
        try:
            total += _bytes_in(folders.pop(), folders)
        except FileNotFoundError:
            continue
        except OSError:
            return True
    holders = list(holders)
    total += sum(sum(_held(process).values()) for process in holders)
    return total > limit or any(_hides_files(process, top) for process in holders)


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


def _held(process: int) -> dict[int, int]:
    """Return the bytes of the files without a name that the process holds open, by inode."""
    held = {}
    with contextlib.suppress(OSError):
        for number in os.listdir(f"/proc/{process}/fd"):  # noqa: PTH208 - see above
            with contextlib.suppress(OSError):
                file = os.stat(f"/proc/{process}/fd/{number}")  # noqa: PTH116 - see above
                if stat.S_ISREG(file.st_mode) and file.st_nlink == 0:
                    held[file.st_ino] = _taken(file)
    return held


def _hides_files(process: int, top: str) -> bool:
    """Return whether the process maps deleted files of the directory that it does not hold open.

    Python's `mmap` holds its file open, and closes it just before it unmaps it: only what is found twice counts.
    """
    hidden = _only_mapped(process, top)
    if hidden:
        time.sleep(CONFIRM_SECONDS)
        hidden &= _only_mapped(process, top)
    return bool(hidden)


def _only_mapped(process: int, top: str) -> set[int]:
    mapped = _mapped_without_name(process, top)
    return mapped - _held(process).keys() if mapped else mapped


def _mapped_without_name(process: int, top: str) -> set[int]:
    """Return the inodes of deleted files of the directory that the process maps."""
    inside = b" " + os.fsencode(os.path.realpath(top)) + b"/"
    try:
        with open(f"/proc/{process}/maps", "rb") as maps:  # noqa: PTH123 - see above
            lines = maps.read().split(b"\n")
    except OSError:
        return set()
    return {int(line.split()[4]) for line in lines if line.endswith(b" (deleted)") and inside in line}
