"""Move and copy files. Both paths are checked, and the target is written completely or not at all."""

import errno
import os
import stat

from onetool.errors import ToolError
from onetool.sources.files.files import AnchoredPath, Files, closing
from onetool.sources.files.reading import open_regular
from onetool.sources.files.trash import check_movable
from onetool.sources.files.writing import (
    WriteResult,
    read_chunks,
    rename_exclusively,
    replace,
    stat_replaceable,
    sync_directory,
    temporary_file,
)


def move(
    files: Files, source: str, target: str, *, overwrite: bool, create_folders: bool = False
) -> str:
    """Move a file or directory and return the new path. A link itself is moved, not its target."""

    def operate(old: AnchoredPath) -> str:
        if not stat.S_ISREG(old.stat().st_mode):
            check_movable(files, source, old)
        return files.run_at(target, lambda new: rename(old, new), **_target_options(create_folders))

    def rename(old: AnchoredPath, new: AnchoredPath) -> str:
        existing = _existing(new, target, overwrite)
        if not stat.S_ISREG(old.stat().st_mode):
            _check_directory_target(files, target, new, existing)
        try:
            (rename_exclusively if existing is None else replace)(old, new)
        except OSError as error:
            if error.errno != errno.EXDEV:
                raise _move_error(error, source, target) from None
            _move_across_disks(files, source, old, new, overwrite)
        sync_directory(new)
        sync_directory(old)
        return new.real

    return files.run_at(source, operate, writing=True, follow=False)


def copy(
    files: Files, source: str, target: str, *, overwrite: bool, create_folders: bool = False
) -> WriteResult:
    """Copy the bytes and the permissions of a regular file."""

    def operate(old: AnchoredPath) -> WriteResult:
        with closing(open_regular(files, source, old)) as descriptor:
            return files.run_at(
                target,
                lambda new: _copy_to(descriptor, new, target, overwrite),
                **_target_options(create_folders),
            )

    return files.run_at(source, operate)


def _target_options(create_folders: bool) -> dict[str, bool]:
    return {"writing": True, "create_folders": create_folders}


def _existing(new: AnchoredPath, target: str, overwrite: bool) -> os.stat_result | None:
    existing = stat_replaceable(new, target)
    if existing is not None and not overwrite:
        raise _exists_error(target)
    return existing


def _copy_to(descriptor: int, new: AnchoredPath, target: str, overwrite: bool) -> WriteResult:
    existing = _existing(new, target, overwrite)
    status = os.fstat(descriptor)
    os.lseek(descriptor, 0, os.SEEK_SET)  # a retry starts from the beginning
    with temporary_file(new, read_chunks(descriptor), mode=status.st_mode & 0o777) as made:
        size = made.stat().st_size
        try:
            (rename_exclusively if existing is None else replace)(made, new)
        except FileExistsError:
            raise _exists_error(target) from None
    sync_directory(new)
    return WriteResult(new.real, size, None)


def _check_directory_target(
    files: Files, target: str, new: AnchoredPath, existing: os.stat_result | None
) -> None:
    """Raise if a directory, or a link to one, would create files at the target that rules forbid to
    write.
    """
    if existing is not None:
        raise ToolError(
            f"cannot replace {target}: only a regular file can replace a file", path=target
        )
    if files.rules.has_rules_below(new.real):
        raise ToolError(f"cannot move to {target}: sandbox rules apply to files in it", path=target)


def _move_across_disks(
    files: Files, source: str, old: AnchoredPath, new: AnchoredPath, overwrite: bool
) -> None:
    if not stat.S_ISREG(old.stat().st_mode):
        raise ToolError(
            f"cannot move {source} to another disk: it is not a regular file", path=source
        )
    with closing(open_regular(files, source, old)) as descriptor:
        _copy_to(descriptor, new, new.real, overwrite)
    os.unlink(old.name, dir_fd=old.directory_fd)


def _move_error(error: OSError, source: str, target: str) -> Exception:
    if isinstance(error, FileExistsError):
        return _exists_error(target)
    if error.errno == errno.EINVAL:
        return ToolError(f"cannot move {source} into itself", path=source)
    if isinstance(error, FileNotFoundError):
        return FileNotFoundError(f"File not found: {source}")
    return error


def _exists_error(target: str) -> ToolError:
    return ToolError(
        f"{target} already exists", path=target, hint="pass overwrite=True to replace it"
    )
