"""Move, copy and delete files. Both paths are checked, and targets are written completely.

Deleted files are moved to `.onetool-trash` in the allowed directory, into a subdirectory per
deletion. If that directory is on another disk than the file, the trash is next to the file. A
`.gitignore` keeps it out of repositories. The trash is never emptied automatically.
"""

import errno
import os
import posixpath
import stat
import time
from contextlib import suppress

from onetool.errors import ToolError
from onetool.sources.files.files import TRASH, AnchoredPath, Files, closing
from onetool.sources.files.reading import open_regular
from onetool.sources.files.requested_path import real_path
from onetool.sources.files.rules import is_below
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
    """Copy bytes and permissions."""

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
    """Raise if moving a directory, or a link to one, would create forbidden files."""
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


# --- Trash ----------------------------------------------------------------------------------------


def delete(files: Files, path: str, *, recursive: bool) -> str:
    """Move a file or directory to the trash and return its new path."""

    def operate(anchored: AnchoredPath) -> str:
        mode = anchored.stat().st_mode
        if stat.S_ISDIR(mode):
            _check_deletable(files, path, anchored, recursive)
        elif TRASH in anchored.real.split("/"):
            raise _already_deleted_error(path)
        elif stat.S_ISLNK(mode):
            check_movable(files, path, anchored)
        for directory in _list_trash_parents(files, anchored.real):
            with suppress(PermissionError):  # the next directory may be writable
                moved = _move_to_trash(files, directory, anchored)
                if moved is not None:
                    return moved
        raise ToolError(f"cannot delete {path}: no writable directory for the trash", path=path)

    return files.run_at(path, operate, writing=True, follow=False)


def _check_deletable(files: Files, path: str, anchored: AnchoredPath, recursive: bool) -> None:
    check_movable(files, path, anchored)
    if TRASH in anchored.real.split("/"):
        raise _already_deleted_error(path)
    if not recursive:
        raise ToolError(
            f"{path} is a directory",
            path=path,
            hint="pass recursive=True to delete it with its contents",
        )


def check_movable(files: Files, path: str, anchored: AnchoredPath) -> None:
    """Raise if a directory or link contains an allowed directory, or if rules apply to files in it."""
    if anchored.name == "." or any(
        is_below(root.real, anchored.real) for root in files.rules.roots
    ):
        raise ToolError(
            f"cannot move or delete {path}: it is or contains an allowed directory", path=path
        )
    if files.rules.has_rules_below(anchored.real) or _contains_settings(files, anchored):
        raise ToolError(
            f"cannot move or delete {path}: sandbox rules apply to files in it", path=path
        )


def _contains_settings(files: Files, anchored: AnchoredPath) -> bool:
    """Return whether it contains project settings: trust is bound to their path."""
    for name in files.rules.hidden_names:
        with suppress(OSError):
            os.stat(
                posixpath.join(anchored.name, name),
                dir_fd=anchored.directory_fd,
                follow_symlinks=False,
            )
            return True
    return False


def _already_deleted_error(path: str) -> ToolError:
    return ToolError(
        f"{path} is already in the trash",
        path=path,
        hint="only a person can empty it; fs.move restores files",
    )


def _list_trash_parents(files: Files, real: str) -> list[str]:
    """Return the directories where the trash may be, the preferred one first."""
    root = files.rules.find_root(real)
    working_dir = real_path(str(files.context.working_dir))
    parent = posixpath.dirname(real)
    if not files.rules.is_unrestricted:
        return [root.base, parent]
    return [working_dir, parent] if is_below(real, working_dir) else [parent]


def _move_to_trash(files: Files, directory: str, anchored: AnchoredPath) -> str | None:
    """Move to the trash in this directory and return the new path; None if it is on another disk."""
    stamp = time.strftime("%Y-%m-%dT%H%M%SZ", time.gmtime())
    target = posixpath.join(directory, TRASH, f"{stamp}-{os.urandom(4).hex()}", anchored.name)

    def operate(trash: AnchoredPath) -> str | None:
        try:
            rename_exclusively(anchored, trash)
        except OSError as error:
            if error.errno != errno.EXDEV:
                raise
            return None
        return trash.real

    _write_gitignore(files, posixpath.join(directory, TRASH, ".gitignore"))
    return files.run_at(target, operate, writing=True, follow=False, create_folders=True)


def _write_gitignore(files: Files, path: str) -> None:
    def operate(anchored: AnchoredPath) -> None:
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL
        with suppress(FileExistsError), closing(anchored.open(flags, 0o644)) as descriptor:
            os.write(descriptor, b"*\n")

    files.run_at(path, operate, writing=True, create_folders=True)
