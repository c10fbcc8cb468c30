"""Remove and measure directories that hostile code has filled: without recursion, and never through
a link.
"""

import os
import stat
import sys
import time
from collections.abc import Iterable, Iterator
from contextlib import suppress
from itertools import count

MAX_ATTEMPTS = 50
CONFIRM_SECONDS = 0.05


def remove(top: str) -> None:
    """Remove a directory with its content. What cannot be removed is left; no error is raised."""
    if (
        sys.platform == "win32"
    ):  # cannot open directories; only a WebAssembly sandbox, which makes no links, wrote here
        import shutil

        shutil.rmtree(top, ignore_errors=True)
        return
    for _ in range(MAX_ATTEMPTS):  # another process may be removing it too, or still writing to it
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
    """Empty a directory.

    Nested directories are moved up before their parent is removed, so that paths stay short.
    """
    mark = os.urandom(8).hex()  # existing entries may have any name
    new_names = (f".{mark}-{number}" for number in count())
    while names := os.listdir(top):
        for name in names:
            with suppress(FileNotFoundError):  # another process is cleaning up too
                if not _try_unlink(name, top):
                    _flatten(name, top, new_names)


def _try_unlink(name: str, directory: int) -> bool:
    try:
        os.unlink(name, dir_fd=directory)
    except (IsADirectoryError, PermissionError):
        return False
    return True


def _flatten(name: str, top: int, new_names: Iterator[str]) -> None:
    os.chmod(name, 0o700, dir_fd=top)
    directory = os.open(name, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW, dir_fd=top)
    try:
        for inner in os.listdir(directory):  # noqa: PTH208 - see above
            with suppress(FileNotFoundError):
                if not _try_unlink(inner, directory):
                    os.chmod(
                        inner, 0o700, dir_fd=directory
                    )  # a directory can be moved only if it is writable
                    os.rename(inner, next(new_names), src_dir_fd=directory, dst_dir_fd=top)
    finally:
        os.close(directory)
    os.rmdir(name, dir_fd=top)


def larger_than(top: str, limit: int, holders: Iterable[int] = ()) -> bool:
    """Return whether the directory uses more than `limit` bytes, in whole pages.

    Deleted files count too, if one of the processes holds them open. A file that a process only
    maps, and a directory that cannot be listed, count as too much: their size is unknown. A file
    can go from named to open to mapped but never back, so checking in this order misses none.
    """
    total = 0
    directories = [top]
    while directories and total <= limit:
        try:
            total += _count_bytes(directories.pop(), directories)
        except FileNotFoundError:
            continue
        except OSError:
            return True
    holders = list(holders)
    total += sum(sum(_find_open_deleted(process).values()) for process in holders)
    return total > limit or any(_hides_files(process, top) for process in holders)


def _count_bytes(directory: str, deeper: list[str]) -> int:
    total = 0
    with os.scandir(directory) as entries:
        for entry in entries:
            if entry.is_dir(follow_symlinks=False):
                deeper.append(entry.path)
            with suppress(FileNotFoundError):  # gone since it was listed
                total += _disk_usage(entry.stat(follow_symlinks=False))
    return total


def _disk_usage(file: os.stat_result) -> int:
    blocks = getattr(file, "st_blocks", None)  # not on Windows
    return max(file.st_size if blocks is None else blocks * 512, 4096)


def _find_open_deleted(process: int) -> dict[int, int]:
    """Return the sizes of deleted files that the process holds open, by inode."""
    sizes = {}
    with suppress(OSError):
        for number in os.listdir(f"/proc/{process}/fd"):  # noqa: PTH208 - see above
            with suppress(OSError):
                file = os.stat(f"/proc/{process}/fd/{number}")  # noqa: PTH116 - see above
                if stat.S_ISREG(file.st_mode) and file.st_nlink == 0:
                    sizes[file.st_ino] = _disk_usage(file)
    return sizes


def _hides_files(process: int, top: str) -> bool:
    """Return whether the process maps deleted files of the directory that it does not hold open.

    Python's `mmap` holds its file open, and closes it just before it unmaps it: only files that are
    found twice count.
    """
    hidden = _find_only_mapped(process, top)
    if hidden:
        time.sleep(CONFIRM_SECONDS)
        hidden &= _find_only_mapped(process, top)
    return bool(hidden)


def _find_only_mapped(process: int, top: str) -> set[int]:
    mapped = _find_mapped_deleted(process, top)
    return mapped - _find_open_deleted(process).keys() if mapped else mapped


def _find_mapped_deleted(process: int, top: str) -> set[int]:
    """Return the inodes of deleted files of the directory that the process maps."""
    inside = b" " + os.fsencode(os.path.realpath(top)) + b"/"
    try:
        with open(f"/proc/{process}/maps", "rb") as maps:  # noqa: PTH123 - see above
            lines = maps.read().split(b"\n")
    except OSError:
        return set()
    return {
        int(line.split()[4]) for line in lines if line.endswith(b" (deleted)") and inside in line
    }
