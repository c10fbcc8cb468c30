"""Moving and copying. Both ends are decided by themselves, and the new name has all of the file or is not there."""

import errno
import os
import stat

from onetool.errors import ToolError
from onetool.files.files import Files, Place, closing
from onetool.files.reading import open_regular
from onetool.files.trash import require_movable
from onetool.files.writing import Written, old_file, pieces_of, put, replace, settle, temporary


def move(files: Files, source: str, target: str, *, overwrite: bool, create_folders: bool = False) -> str:
    """Give a file or a folder another name. A link is moved itself. The new path."""

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
    os.lseek(descriptor, 0, os.SEEK_SET)  # a second attempt starts again
    with temporary(new, pieces_of(descriptor), mode=facts.st_mode & 0o777) as made:
        size = made.facts().st_size
        try:
            (put if existing is None else replace)(made, new)
        except FileExistsError:
            raise _taken(target) from None
    settle(new)
    return Written(new.real, size, None)


def _require_room_for_folder(files: Files, target: str, new: Place, existing: os.stat_result | None) -> None:
    """A folder, or a link to one, would bring along what may not be written below its new name."""
    if existing is not None:
        raise ToolError(f"{target} is a file, and only a regular file replaces one.", path=target)
    if files.rules.holds_guarded(new.real):
        raise ToolError(f"Nothing is moved to {target}: rules of the sandbox speak of what is in it.", path=target)


def _moved_to_another_disk(files: Files, source: str, old: Place, new: Place, overwrite: bool) -> None:
    if not stat.S_ISREG(old.facts().st_mode):
        raise ToolError(f"{source} cannot be moved to another disk: only regular files can.", path=source)
    with closing(open_regular(files, source, old)) as descriptor:
        _copied(descriptor, new, new.real, overwrite)
    os.unlink(old.name, dir_fd=old.folder)


def _refused(error: OSError, source: str, target: str) -> Exception:
    if isinstance(error, FileExistsError):
        return _taken(target)
    if error.errno == errno.EINVAL:
        return ToolError(f"{source} cannot be moved into itself.", path=source)
    if isinstance(error, FileNotFoundError):
        return FileNotFoundError(f"File not found: {source}")
    return error


def _taken(target: str) -> ToolError:
    return ToolError(f"{target} is there already; overwrite=True replaces it.", path=target)
