"""Errors for files that cannot be written: which directory, on which disk, and what to do about it."""

import errno
import os
import sqlite3
from pathlib import Path
from shlex import quote
from typing import Literal

from onetool.errors import BundleError, ToolError
from onetool.util.problem import STORAGE, Location

Reason = Literal["full", "read_only", "denied", "failed"]
_REASONS: dict[int, Reason] = {
    errno.ENOSPC: "full",
    errno.EDQUOT: "full",
    errno.EROFS: "read_only",
    errno.EACCES: "denied",
    errno.EPERM: "denied",
}
_SQLITE_REASONS: dict[int, Reason] = {
    sqlite3.SQLITE_FULL: "full",
    sqlite3.SQLITE_READONLY: "read_only",
    sqlite3.SQLITE_PERM: "denied",
}
_HINTS: dict[Reason, str] = {
    "full": (
        "delete stored tools, results or other files on that disk; `df -h {place}` shows what is"
        " free"
    ),
    "read_only": "remount it writable, or move the directory to another disk",
    "denied": "chmod -R u+rwX {place}",
    "failed": "check that {place} is a directory that can be written",
}


def storage_error(
    directory: Path, error: Exception, kind: type[ToolError] = BundleError
) -> ToolError:
    """Return the error for a directory that cannot be written."""
    reason = _find_reason(directory, error)
    mount = mount_point(directory)
    why = {
        "full": f"the disk mounted at {mount} is full",
        "read_only": f"the disk mounted at {mount} is read-only",
    }
    text = why.get(reason, str(error))
    hint = _HINTS[reason].format(place=directory)
    if link := _find_dangling_link(directory, error):
        text = f"{link} is a link to {link.readlink()}, which does not exist"
        hint = f"remove the link with `rm {quote(str(link))}`, or create what it leads to"
    return kind(
        f"cannot write {directory}: {text}",
        hint=hint,
        location=Location(str(directory)),
        code=STORAGE,
        details={"directory": str(directory), "mount": mount, "reason": reason},
    )


def _find_dangling_link(directory: Path, error: Exception) -> Path | None:
    """Return the link that leads nowhere: the file of the error, or a directory."""
    file = getattr(error, "filename", None)
    paths = [Path(file)] if isinstance(file, str) else []
    paths += (directory, *directory.parents)
    return next((path for path in paths if path.is_symlink() and not path.exists()), None)


def is_full(error: ToolError) -> bool:
    """Return whether the error reports a full disk."""
    return error.fields.get("code") == STORAGE and error.fields["details"]["reason"] == "full"


def is_full_disk(directory: Path) -> bool:
    """Return whether the disk has no space for another file in the directory."""
    try:
        status = os.statvfs(directory)
    except (OSError, AttributeError):
        return False
    return status.f_bavail == 0 or (status.f_favail == 0 and status.f_files > 0)


def mount_point(directory: Path) -> str:
    place = Path(os.path.realpath(directory))
    return str(
        next((each for each in (place, *place.parents) if os.path.ismount(each)), place.anchor)
    )


def _find_reason(directory: Path, error: Exception) -> Reason:
    if isinstance(error, OSError):
        return _REASONS.get(error.errno or 0, "failed")
    known = _SQLITE_REASONS.get(getattr(error, "sqlite_errorcode", 0) & 0xFF)
    return known or _inspect_disk(directory)


def _inspect_disk(directory: Path) -> Reason:
    """Find the reason from the disk, because SQLite reports most as "unable to open" or "disk I/O
    error".
    """
    try:
        status = os.statvfs(directory)
    except (OSError, AttributeError):
        return "failed"
    if status.f_flag & os.ST_RDONLY:
        return "read_only"
    if is_full_disk(directory):
        return "full"
    return "failed" if os.access(directory, os.W_OK) else "denied"
