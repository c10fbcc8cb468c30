"""Atomic file writes: into a temporary file in the same directory, then renamed. Optionally keep a backup.

Readers see the old file or the new one, also after a crash. A name that has become a link is replaced, never followed.
"""

import errno
import os
import stat
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass

from onetool.errors import ToolError
from onetool.files.beneath import FOLDER, NEVER_WAIT, rename_without_replacing
from onetool.files.files import Files, Moved, Place, closing

BACKUP = ".bak"
NEW_FILE = 0o644
PERMISSIONS = 0o777
_PIECE = 1 << 20
_CANNOT_LINK = {errno.EPERM, errno.EACCES, errno.EOPNOTSUPP, errno.ENOSYS, errno.EMLINK, errno.EXDEV}


@dataclass(frozen=True, slots=True)
class Written:
    path: str
    size: int
    backup_path: str | None


def write(
    files: Files,
    path: str,
    data: bytes,
    *,
    mode: int | None = None,
    backup: bool = True,
    create_folders: bool = False,
    expected: os.stat_result | None = None,
) -> Written:
    """Write bytes to the path. Raise if the file is not the one that `expected` describes any more."""

    def operate(place: Place) -> Written:
        old = old_file(place, path)
        if expected is not None and (old is None or _version(old) != _version(expected)):
            raise ToolError(f"{path} changed since it was read", path=path, hint="read it again")
        kept = place.beside(place.name + BACKUP) if backup and old is not None else None
        if kept is not None:
            advice = " Pass backup=False to write without a backup."
            files.check(path + BACKUP, kept.real, writing=True, advice=advice)
        with temporary(place, [data], old, mode) as new:
            if kept is not None:
                _keep(place, kept)
            os.replace(new.name, place.name, src_dir_fd=new.folder, dst_dir_fd=place.folder)
        settle(place)
        return Written(place.real, len(data), kept.real if kept else None)

    return files.at(path, operate, writing=True, create_folders=create_folders)


def old_file(place: Place, path: str) -> os.stat_result | None:
    """Return the status of the file that would be replaced, or None."""
    try:
        old = place.followed()
    except FileNotFoundError:
        return None
    if not stat.S_ISREG(old.st_mode):
        raise ToolError(f"cannot replace {path}: it is not a regular file", path=path)
    # Do not follow a link that has replaced it: the error must not reveal anything about its target.
    if not os.access(place.name, os.W_OK, dir_fd=place.folder, effective_ids=True, follow_symlinks=False):
        raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), path)
    return old


def _version(facts: os.stat_result) -> tuple[int, ...]:
    return facts.st_dev, facts.st_ino, facts.st_size, facts.st_mtime_ns


@contextmanager
def temporary(
    place: Place, pieces: Iterable[bytes], old: os.stat_result | None = None, mode: int | None = None
) -> Iterator[Place]:
    """Create a temporary file with these bytes in the same directory. Remove it unless it was renamed."""
    new = place.beside(f".{os.urandom(8).hex()}.onetool-tmp")
    descriptor = new.open(os.O_WRONLY | os.O_CREAT | os.O_EXCL)
    try:
        with os.fdopen(descriptor, "wb") as file:
            file.writelines(pieces)
            file.flush()
            _dress(descriptor, old, mode)
            os.fsync(descriptor)
        yield new
    finally:
        with suppress(FileNotFoundError):
            os.unlink(new.name, dir_fd=new.folder)


def _dress(descriptor: int, old: os.stat_result | None, mode: int | None) -> None:
    """Set owner and permissions of the old file, without the setuid and setgid bits."""
    if old is not None:
        with suppress(PermissionError):
            os.fchown(descriptor, old.st_uid, old.st_gid)
    kept = NEW_FILE if old is None else old.st_mode & PERMISSIONS
    os.fchmod(descriptor, kept if mode is None else mode)


def _keep(place: Place, kept: Place) -> None:
    """Keep the old file as a backup: a hard link, or a copy if links are not supported."""
    second = place.beside(f".{os.urandom(8).hex()}.onetool-tmp")
    try:
        os.link(place.name, second.name, src_dir_fd=place.folder, dst_dir_fd=place.folder, follow_symlinks=False)
    except FileNotFoundError:  # replaced in the meantime
        raise Moved from None
    except OSError as error:
        if error.errno not in _CANNOT_LINK:
            raise
        _keep_copy(place, kept)
        return
    try:
        if not stat.S_ISREG(second.facts().st_mode):  # replaced by a link after the check
            raise Moved
        replace(second, kept)
    finally:
        with suppress(FileNotFoundError):  # renaming a hard link onto the same file does nothing
            os.unlink(second.name, dir_fd=second.folder)


def _keep_copy(place: Place, kept: Place) -> None:
    with closing(place.open(os.O_RDONLY | NEVER_WAIT)) as descriptor:
        facts = os.fstat(descriptor)
        if not stat.S_ISREG(facts.st_mode):
            raise Moved
        with temporary(place, pieces_of(descriptor), facts) as copy:
            replace(copy, kept)


def pieces_of(descriptor: int) -> Iterator[bytes]:
    while piece := os.read(descriptor, _PIECE):
        yield piece


def replace(source: Place, target: Place) -> None:
    os.replace(source.name, target.name, src_dir_fd=source.folder, dst_dir_fd=target.folder)


def put(source: Place, target: Place) -> None:
    """Rename without replacing. Raise FileExistsError if the target exists."""
    try:
        rename_without_replacing(source.name, source.folder, target.name, target.folder)
    except OSError as error:
        if error.errno not in {errno.ENOSYS, errno.EINVAL, errno.EOPNOTSUPP}:
            raise
        _put_in_steps(source, target)


def _put_in_steps(source: Place, target: Place) -> None:
    """Rename on file systems without `renameat2`. A file has both names for a moment, never none."""
    if stat.S_ISREG(source.facts().st_mode):
        os.link(source.name, target.name, src_dir_fd=source.folder, dst_dir_fd=target.folder, follow_symlinks=False)
        os.unlink(source.name, dir_fd=source.folder)
        return
    with suppress(FileNotFoundError):
        target.facts()
        raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST), target.name)
    os.rename(source.name, target.name, src_dir_fd=source.folder, dst_dir_fd=target.folder)


def settle(place: Place) -> None:
    """Sync the directory to disk. Errors are ignored: not every directory and file system supports it."""
    with suppress(OSError), closing(os.open(".", os.O_RDONLY | FOLDER, dir_fd=place.folder)) as folder:
        os.fsync(folder)
