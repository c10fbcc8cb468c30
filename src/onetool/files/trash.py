"""Reversible deletion: files are moved to `.onetool-trash` in the allowed directory, into a subdirectory per deletion.

The trash is never emptied automatically. A `.gitignore` keeps it out of repositories. If the allowed directory is on
another disk than the file, the trash is next to the file.
"""

import errno
import os
import posixpath
import stat
import time
from contextlib import suppress

from onetool.errors import ToolError
from onetool.files.asked import real_path
from onetool.files.files import Files, Place, closing
from onetool.files.rules import is_below
from onetool.files.writing import put

TRASH = ".onetool-trash"


def delete(files: Files, path: str, *, recursive: bool) -> str:
    """Move a file or directory to the trash and return its new path."""

    def operate(place: Place) -> str:
        mode = place.facts().st_mode
        if stat.S_ISDIR(mode):
            _require_free(files, path, place, recursive)
        elif TRASH in place.real.split("/"):
            raise _already_there(path)
        elif stat.S_ISLNK(mode):
            require_movable(files, path, place)
        for folder in _folders(files, place.real):
            with suppress(PermissionError):  # the next directory may be writable
                moved = _moved(files, folder, place)
                if moved is not None:
                    return moved
        raise ToolError(f"cannot delete {path}: no writable directory for the trash", path=path)

    return files.at(path, operate, writing=True, follow=False)


def _require_free(files: Files, path: str, place: Place, recursive: bool) -> None:
    require_movable(files, path, place)
    if TRASH in place.real.split("/"):
        raise _already_there(path)
    if not recursive:
        raise ToolError(f"{path} is a directory", path=path, hint="pass recursive=True to delete it with its contents")


def require_movable(files: Files, path: str, place: Place) -> None:
    """Raise if a directory or link contains an allowed directory, or if rules apply to files in it."""
    if place.name == "." or any(is_below(root.real, place.real) for root in files.rules.roots):
        raise ToolError(f"cannot move or delete {path}: it is or contains an allowed directory", path=path)
    if files.rules.holds_guarded(place.real) or _holds_settings(files, place):
        raise ToolError(f"cannot move or delete {path}: sandbox rules apply to files in it", path=path)


def _holds_settings(files: Files, place: Place) -> bool:
    """Return whether the directory contains the settings of a project: trust is bound to their path."""
    for name in files.rules.hidden_names:
        with suppress(OSError):
            os.stat(posixpath.join(place.name, name), dir_fd=place.folder, follow_symlinks=False)
            return True
    return False


def _already_there(path: str) -> ToolError:
    return ToolError(
        f"{path} is already in the trash", path=path, hint="only a person can empty it; fs.move restores files"
    )


def _folders(files: Files, real: str) -> list[str]:
    """Return the directories where the trash may be, the preferred one first."""
    root, working_dir = files.rules.root_of(real), real_path(str(files.context.working_dir))
    beside = posixpath.dirname(real)
    if not files.rules.everything:
        return [root.base, beside]
    return [working_dir, beside] if is_below(real, working_dir) else [beside]


def _moved(files: Files, folder: str, place: Place) -> str | None:
    """Move to the trash in this directory and return the new path; None if it is on another disk."""
    stamp = time.strftime("%Y-%m-%dT%H%M%SZ", time.gmtime())
    target = posixpath.join(folder, TRASH, f"{stamp}-{os.urandom(4).hex()}", place.name)

    def operate(trash: Place) -> str | None:
        try:
            put(place, trash)
        except OSError as error:
            if error.errno != errno.EXDEV:
                raise
            return None
        return trash.real

    _keep_out_of_repositories(files, posixpath.join(folder, TRASH, ".gitignore"))
    return files.at(target, operate, writing=True, follow=False, create_folders=True)


def _keep_out_of_repositories(files: Files, path: str) -> None:
    def operate(place: Place) -> None:
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL
        with suppress(FileExistsError), closing(place.open(flags, 0o644)) as descriptor:
            os.write(descriptor, b"*\n")

    files.at(path, operate, writing=True, create_folders=True)
