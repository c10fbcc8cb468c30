"""Move and copy files. Both paths are checked, and the target is written completely or not at all."""

import errno
import os
import stat

from onetool.errors import ToolError
from onetool.files.files import Files, Place, closing
from onetool.files.reading import open_regular
from onetool.files.trash import require_movable
from onetool.files.writing import Written, old_file, pieces_of, put, replace, settle, temporary


def move(files: Files, source: str, target: str, *, overwrite: bool, create_folders: bool = False) -> str:
    """Move a file or directory and return the new path. A link itself is moved, not its target."""

    def operate(old: Place) -> str:
        if not stat.S_ISREG(old.facts().st_mode):
            require_movable(files, source, old)
        return files.at(target, lambda new: _renamed(old, new), **_target(create_folders))

    def _renamed(old: Place, new: Place) -> str:
        existing = _existing(new, target, overwrite)
        if not stat.S_ISREG(old.facts().st_mode):
            _require_room_for_folder(files, target, new, existing)
        try:
            (put if existing is None else replace)(old, new)
        except OSError as error:
            if error.errno != errno.EXDEV:
                raise _refused(error, source, target) from None
            _moved_to_another_disk(files, source, old, new, overwrite)
        settle(new)
        settle(old)
        return new.real

    return files.at(source, operate, writing=True, follow=False)


def copy(files: Files, source: str, target: str, *, overwrite: bool, create_folders: bool = False) -> Written:
    """Copy the bytes and the permissions of a regular file."""

    def operate(old: Place) -> Written:
        with closing(open_regular(files, source, old)) as descriptor:
            return files.at(target, lambda new: _copied(descriptor, new, target, overwrite), **_target(create_folders))

    return files.at(source, operate)


def _target(create_folders: bool) -> dict[str, bool]:
    return {"writing": True, "create_folders": create_folders}


def _existing(new: Place, target: str, overwrite: bool) -> os.stat_result | None:
    existing = old_file(new, target)
    if existing is not None and not overwrite:
        raise _taken(target)
    return existing


def _copied(descriptor: int, new: Place, target: str, overwrite: bool) -> Written:
    existing = _existing(new, target, overwrite)
    facts = os.fstat(descriptor)
    os.lseek(descriptor, 0, os.SEEK_SET)  # a retry starts from the beginning
    with temporary(new, pieces_of(descriptor), mode=facts.st_mode & 0o777) as made:
        size = made.facts().st_size
        try:
            (put if existing is None else replace)(made, new)
        except FileExistsError:
            raise _taken(target) from None
    settle(new)
    return Written(new.real, size, None)


def _require_room_for_folder(files: Files, target: str, new: Place, existing: os.stat_result | None) -> None:
    """Raise if a directory, or a link to one, would create files at the target that rules forbid to write."""
    if existing is not None:
        raise ToolError(f"cannot replace {target}: only a regular file can replace a file", path=target)
    if files.rules.holds_guarded(new.real):
        raise ToolError(f"cannot move to {target}: sandbox rules apply to files in it", path=target)


def _moved_to_another_disk(files: Files, source: str, old: Place, new: Place, overwrite: bool) -> None:
    if not stat.S_ISREG(old.facts().st_mode):
        raise ToolError(f"cannot move {source} to another disk: it is not a regular file", path=source)
    with closing(open_regular(files, source, old)) as descriptor:
        _copied(descriptor, new, new.real, overwrite)
    os.unlink(old.name, dir_fd=old.folder)


def _refused(error: OSError, source: str, target: str) -> Exception:
    if isinstance(error, FileExistsError):
        return _taken(target)
    if error.errno == errno.EINVAL:
        return ToolError(f"cannot move {source} into itself", path=source)
    if isinstance(error, FileNotFoundError):
        return FileNotFoundError(f"File not found: {source}")
    return error


def _taken(target: str) -> ToolError:
    return ToolError(f"{target} already exists", path=target, hint="pass overwrite=True to replace it")
