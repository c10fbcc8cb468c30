"""Atomic file writes: into a temporary file in the same directory, then renamed.

Optionally keep a backup.

Readers see the old file or the new one, also after a crash. A name that has become a link is
replaced, never followed.
"""

import errno
import os
import stat
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass

from onetool.errors import ToolError
from onetool.sources.files.files import (
    DIRECTORY,
    NON_BLOCKING,
    AnchoredPath,
    Files,
    Moved,
    closing,
    rename_without_replacing,
)

BACKUP_SUFFIX = ".bak"
NEW_FILE_MODE = 0o644
PERMISSION_BITS = 0o777
_CHUNK_BYTES = 1 << 20
_CANNOT_LINK = {
    errno.EPERM,
    errno.EACCES,
    errno.EOPNOTSUPP,
    errno.ENOSYS,
    errno.EMLINK,
    errno.EXDEV,
}


@dataclass(frozen=True, slots=True)
class WriteResult:
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
) -> WriteResult:
    """Write bytes to the path. Raise if the file is not the one that `expected` describes any more."""

    def operate(anchored: AnchoredPath) -> WriteResult:
        old = stat_replaceable(anchored, path)
        if expected is not None and (old is None or _fingerprint(old) != _fingerprint(expected)):
            raise ToolError(f"{path} changed since it was read", path=path, hint="read it again")
        backup_file = (
            anchored.sibling(anchored.name + BACKUP_SUFFIX) if backup and old is not None else None
        )
        if backup_file is not None:
            advice = " Pass backup=False to write without a backup."
            files.check(path + BACKUP_SUFFIX, backup_file.real, writing=True, advice=advice)
        with temporary_file(anchored, [data], old, mode) as new:
            if backup_file is not None:
                _make_backup(anchored, backup_file)
            os.replace(
                new.name,
                anchored.name,
                src_dir_fd=new.directory_fd,
                dst_dir_fd=anchored.directory_fd,
            )
        sync_directory(anchored)
        return WriteResult(anchored.real, len(data), backup_file.real if backup_file else None)

    return files.run_at(path, operate, writing=True, create_folders=create_folders)


def stat_replaceable(anchored: AnchoredPath, path: str) -> os.stat_result | None:
    """Return the status if a file would be replaced, or None."""
    try:
        old = anchored.stat_no_link()
    except FileNotFoundError:
        return None
    if not stat.S_ISREG(old.st_mode):
        raise ToolError(f"not a regular file: {path}", path=path)
    # Do not follow a link that has replaced it: the error must not reveal anything about its
    # target.
    if not os.access(
        anchored.name,
        os.W_OK,
        dir_fd=anchored.directory_fd,
        effective_ids=True,
        follow_symlinks=False,
    ):
        raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), path)
    return old


def _fingerprint(status: os.stat_result) -> tuple[int, ...]:
    return status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns


@contextmanager
def temporary_file(
    anchored: AnchoredPath,
    chunks: Iterable[bytes],
    old: os.stat_result | None = None,
    mode: int | None = None,
) -> Iterator[AnchoredPath]:
    """Create a temporary file with these bytes in the same directory.

    Remove it unless it was renamed.
    """
    new = anchored.sibling(f".{os.urandom(8).hex()}.onetool-tmp")
    descriptor = new.open(os.O_WRONLY | os.O_CREAT | os.O_EXCL)
    try:
        with os.fdopen(descriptor, "wb") as file:
            file.writelines(chunks)
            file.flush()
            _set_permissions(descriptor, old, mode)
            os.fsync(descriptor)
        yield new
    finally:
        with suppress(FileNotFoundError):
            os.unlink(new.name, dir_fd=new.directory_fd)


def _set_permissions(descriptor: int, old: os.stat_result | None, mode: int | None) -> None:
    """Keep owner and permissions, without the setuid and setgid bits."""
    if old is not None:
        with suppress(PermissionError):
            os.fchown(descriptor, old.st_uid, old.st_gid)
    default = NEW_FILE_MODE if old is None else old.st_mode & PERMISSION_BITS
    os.fchmod(descriptor, default if mode is None else mode)


def _make_backup(anchored: AnchoredPath, backup_file: AnchoredPath) -> None:
    """Keep the old file as a backup: a hard link, or a copy if links are not supported."""
    second = anchored.sibling(f".{os.urandom(8).hex()}.onetool-tmp")
    try:
        os.link(
            anchored.name,
            second.name,
            src_dir_fd=anchored.directory_fd,
            dst_dir_fd=anchored.directory_fd,
            follow_symlinks=False,
        )
    except FileNotFoundError:  # replaced in the meantime
        raise Moved from None
    except OSError as error:
        if error.errno not in _CANNOT_LINK:
            raise
        _copy_backup(anchored, backup_file)
        return
    try:
        if not stat.S_ISREG(second.stat().st_mode):  # replaced by a link after the check
            raise Moved
        replace(second, backup_file)
    finally:
        with suppress(FileNotFoundError):  # renaming a hard link onto the same file does nothing
            os.unlink(second.name, dir_fd=second.directory_fd)


def _copy_backup(anchored: AnchoredPath, backup_file: AnchoredPath) -> None:
    with closing(anchored.open(os.O_RDONLY | NON_BLOCKING)) as descriptor:
        status = os.fstat(descriptor)
        if not stat.S_ISREG(status.st_mode):
            raise Moved
        with temporary_file(anchored, read_chunks(descriptor), status) as copy:
            replace(copy, backup_file)


def read_chunks(descriptor: int) -> Iterator[bytes]:
    while chunk := os.read(descriptor, _CHUNK_BYTES):
        yield chunk


def replace(source: AnchoredPath, target: AnchoredPath) -> None:
    os.replace(
        source.name, target.name, src_dir_fd=source.directory_fd, dst_dir_fd=target.directory_fd
    )


def rename_exclusively(source: AnchoredPath, target: AnchoredPath) -> None:
    """Rename without replacing. Raise FileExistsError if the target exists."""
    try:
        rename_without_replacing(source.name, source.directory_fd, target.name, target.directory_fd)
    except OSError as error:
        if error.errno not in {errno.ENOSYS, errno.EINVAL, errno.EOPNOTSUPP}:
            raise
        _rename_in_steps(source, target)


def _rename_in_steps(source: AnchoredPath, target: AnchoredPath) -> None:
    """Rename on file systems without `renameat2`. A file has both names for a moment, never none."""
    if stat.S_ISREG(source.stat().st_mode):
        os.link(
            source.name,
            target.name,
            src_dir_fd=source.directory_fd,
            dst_dir_fd=target.directory_fd,
            follow_symlinks=False,
        )
        os.unlink(source.name, dir_fd=source.directory_fd)
        return
    with suppress(FileNotFoundError):
        target.stat()
        raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST), target.name)
    os.rename(
        source.name, target.name, src_dir_fd=source.directory_fd, dst_dir_fd=target.directory_fd
    )


def sync_directory(anchored: AnchoredPath) -> None:
    """Sync the directory to disk.

    Errors are ignored: not every directory and file system supports it.
    """
    with (
        suppress(OSError),
        closing(os.open(".", os.O_RDONLY | DIRECTORY, dir_fd=anchored.directory_fd)) as directory,
    ):
        os.fsync(directory)
