"""Reversible deletion: files are moved to `.onetool-trash` in the allowed directory, into a
subdirectory per deletion.

The trash is never emptied automatically. A `.gitignore` keeps it out of repositories. If the
allowed directory is on another disk than the file, the trash is next to the file.
"""

import errno
import os
import posixpath
import stat
import time
from contextlib import suppress

from onetool.errors import ToolError
from onetool.sources.files.files import AnchoredPath, Files, closing
from onetool.sources.files.requested_path import real_path
from onetool.sources.files.rules import is_below
from onetool.sources.files.writing import rename_exclusively

TRASH = ".onetool-trash"


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
    """Return whether the directory contains the settings of a project: trust is bound to their
    path.
    """
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
