"""Deleting so that it can be undone: into the folder `.onetool-trash` of the allowed folder, under the time of day.

Nothing is taken out of it again but by a person, or by moving it back. A file `.gitignore` in it keeps it out of
repositories. Where the allowed folder is on another disk than the file, the trash is beside the file.
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
    """Move it to the trash; where it is now."""

    def operate(place: Place) -> str:
        mode = place.facts().st_mode
        if stat.S_ISDIR(mode):
            _require_free(files, path, place, recursive)
        elif TRASH in place.real.split("/"):
            raise _already_there(path)
        elif stat.S_ISLNK(mode):
            require_movable(files, path, place)
        for folder in _folders(files, place.real):
            with suppress(PermissionError):  # the next place may be writable
                moved = _moved(files, folder, place)
                if moved is not None:
                    return moved
        raise ToolError(f"{path} cannot be deleted: there is no place beside it where it could be kept.", path=path)

    return files.at(path, operate, writing=True, follow=False)


def _require_free(files: Files, path: str, place: Place, recursive: bool) -> None:
    require_movable(files, path, place)
    if TRASH in place.real.split("/"):
        raise _already_there(path)
    if not recursive:
        raise ToolError(f"{path} is a folder; recursive=True deletes it with all that is in it.", path=path)


def require_movable(files: Files, path: str, place: Place) -> None:
    """Raise where a folder or link is an allowed one itself, or where rules speak of what is in it by its name."""
    if place.name == "." or any(is_below(root.real, place.real) for root in files.rules.roots):
        raise ToolError(f"{path} is an allowed folder itself, or holds one, and stays where it is.", path=path)
    if files.rules.holds_guarded(place.real) or _holds_settings(files, place):
        raise ToolError(f"{path} stays where it is: rules of the sandbox speak of what is in it.", path=path)


def _holds_settings(files: Files, place: Place) -> bool:
    """Whether a project's settings are in this directory: trust belongs to where they are."""
    for name in files.rules.hidden_names:
        with suppress(OSError):
            os.stat(posixpath.join(place.name, name), dir_fd=place.folder, follow_symlinks=False)
            return True
    return False


def _already_there(path: str) -> ToolError:
    return ToolError(f"{path} is in the trash already; a person empties it, and fs.move takes things out.", path=path)


def _folders(files: Files, real: str) -> list[str]:
    """Where the trash may be, the best place first."""
    root, working_dir = files.rules.root_of(real), real_path(str(files.context.working_dir))
    beside = posixpath.dirname(real)
    if not files.rules.everything:
        return [root.base, beside]
    return [working_dir, beside] if is_below(real, working_dir) else [beside]


def _moved(files: Files, folder: str, place: Place) -> str | None:
    """Where it is now; None where that is another disk."""
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
