"""Writing files whole: into a temporary file beside, then renamed into place. The old bytes are kept where asked.

Nothing is ever changed in place, so whoever reads meanwhile, and whoever finds the file after a crash, sees the old
file or the new one. A name that has become a link is replaced, never followed.
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
    """Put these bytes at the path. `expected` is the file as it was read: one that is another by now is left alone."""

    def operate(place: Place) -> Written:
        old = old_file(place, path)
        if expected is not None and (old is None or _version(old) != _version(expected)):
            raise ToolError(f"{path} was changed by somebody else meanwhile. Read it again.", path=path)
        kept = place.beside(place.name + BACKUP) if backup and old is not None else None
        if kept is not None:
            advice = " backup=False writes without keeping the old file."
            files.check(path + BACKUP, kept.real, writing=True, advice=advice)
        with temporary(place, [data], old, mode) as new:
            if kept is not None:
                _keep(place, kept)
            os.replace(new.name, place.name, src_dir_fd=new.folder, dst_dir_fd=place.folder)
        settle(place)
        return Written(place.real, len(data), kept.real if kept else None)

    return files.at(path, operate, writing=True, create_folders=create_folders)


def old_file(place: Place, path: str) -> os.stat_result | None:
    """The facts of the file that would be replaced, None where there is none."""
    try:
        old = place.followed()
    except FileNotFoundError:
        return None
    if not stat.S_ISREG(old.st_mode):
        raise ToolError(f"{path} is not a regular file, and nothing else is ever replaced.", path=path)
    # Of a link that has come in its place meanwhile nothing is told, and nothing of what that leads to.
    if not os.access(place.name, os.W_OK, dir_fd=place.folder, effective_ids=True, follow_symlinks=False):
        raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), path)
    return old


def _version(facts: os.stat_result) -> tuple[int, ...]:
    return facts.st_dev, facts.st_ino, facts.st_size, facts.st_mtime_ns


@contextmanager
def temporary(
    place: Place, pieces: Iterable[bytes], old: os.stat_result | None = None, mode: int | None = None
) -> Iterator[Place]:
    """A file beside the place with these bytes, safe on the disk. Unless it was renamed, it is gone afterwards."""
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
    """Owner and permissions of the old file; what lets a program run as somebody else is not handed on."""
    if old is not None:
        with suppress(PermissionError):
            os.fchown(descriptor, old.st_uid, old.st_gid)
    kept = NEW_FILE if old is None else old.st_mode & PERMISSIONS
    os.fchmod(descriptor, kept if mode is None else mode)


def _keep(place: Place, kept: Place) -> None:
    """The old file under another name: the file itself, or its bytes where it cannot have two names."""
    second = place.beside(f".{os.urandom(8).hex()}.onetool-tmp")
    try:
        os.link(place.name, second.name, src_dir_fd=place.folder, dst_dir_fd=place.folder, follow_symlinks=False)
    except FileNotFoundError:  # it was replaced that very moment
        raise Moved from None
    except OSError as error:
        if error.errno not in _CANNOT_LINK:
            raise
        _keep_copy(place, kept)
        return
    try:
        if not stat.S_ISREG(second.facts().st_mode):  # it was swapped for a link after it was looked at
            raise Moved
        replace(second, kept)
    finally:
        with suppress(FileNotFoundError):  # two names of one file are not renamed onto each other
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
    """Rename to a name that is free: FileExistsError where it is not."""
    try:
        rename_without_replacing(source.name, source.folder, target.name, target.folder)
    except OSError as error:
        if error.errno not in {errno.ENOSYS, errno.EINVAL, errno.EOPNOTSUPP}:
            raise
        _put_in_steps(source, target)


def _put_in_steps(source: Place, target: Place) -> None:
    """For file systems without that renaming. A file has both names for a moment, and never none."""
    if stat.S_ISREG(source.facts().st_mode):
        os.link(source.name, target.name, src_dir_fd=source.folder, dst_dir_fd=target.folder, follow_symlinks=False)
        os.unlink(source.name, dir_fd=source.folder)
        return
    with suppress(FileNotFoundError):
        target.facts()
        raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST), target.name)
    os.rename(source.name, target.name, src_dir_fd=source.folder, dst_dir_fd=target.folder)


def settle(place: Place) -> None:
    """Make the new name safe on the disk. A folder that may not be read, and some file systems, cannot be asked to."""
    with suppress(OSError), closing(os.open(".", os.O_RDONLY | FOLDER, dir_fd=place.folder)) as folder:
        os.fsync(folder)
