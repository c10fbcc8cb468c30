"""Problems as data, and errors for files that cannot be written or have an unsupported version.

Every transport renders the same parts of a problem; no code reads the text of a message.
"""

import errno
import os
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from os import PathLike
from pathlib import Path
from typing import TYPE_CHECKING, Literal, NamedTuple, Self

from onetool.errors import BundleError, ConfigError, StorageError, ToolError
from onetool_child.json_types import JsonObject

if TYPE_CHECKING:
    from sqlite3 import Connection

OK = "ok"
WARNING = "warning"
PROBLEM = "problem"
STORAGE = (  # the code of problems with files and directories that OneTool stores
    "storage_unavailable"
)
UNTRUSTED = "untrusted"
MAX_LISTED_PROBLEMS = 20
DISABLED = "disabled"  # the code of packs that a person has disabled
Reason = Literal["full", "read_only", "denied", "failed"]
_REASONS: dict[int, Reason] = {
    errno.ENOSPC: "full",
    errno.EDQUOT: "full",
    errno.EROFS: "read_only",
    errno.EACCES: "denied",
    errno.EPERM: "denied",
}
_SQLITE_REASONS: dict[int, Reason] = {  # by primary result code; importing sqlite3 is slow
    13: "full",
    8: "read_only",
    3: "denied",
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
UPGRADE = "upgrade OneTool, the way it was installed"


class Location(NamedTuple):
    """A location in a file or in the environment; line 0 is the whole file."""

    file: str
    line: int = 0

    def __str__(self) -> str:
        return f"{self.file}:{self.line}" if self.line else self.file


@dataclass(frozen=True, slots=True)
class Problem:
    """A problem: a message, a hint, the location, and a code for programs.

    The message includes the location.
    """

    message: str
    hint: str = ""
    location: Location | None = None
    code: str = ""
    level: str = PROBLEM
    fix: str = ""  # a fix that is safe to make: see `onetool.sources.checks.disk`

    @classmethod
    def of(cls, error: ToolError, level: str = PROBLEM) -> Self:
        fields = error.fields
        return cls(
            error.message, error.hint, fields.get("location"), str(fields.get("code", "")), level
        )

    def to_error(self) -> ConfigError:
        return ConfigError(self.message, hint=self.hint, location=self.location, code=self.code)

    def __str__(self) -> str:
        return f"{self.message}\nHint: {self.hint}" if self.hint else self.message

    def to_line(self) -> str:
        """Return the message and the hint in one line, for lists."""
        text = f"{self.message}. Hint: {self.hint}" if self.hint else self.message
        return "; ".join(text.replace(":\n", ": ").splitlines())

    def to_json(self) -> JsonObject:
        location = self.location
        fields = {name: value for name, value in asdict(self).items() if name != "fix" or value}
        return {
            **fields,
            "location": (
                {"file": location.file, "line": location.line or None} if location else None
            ),
        }


def limit_problems(problems: Sequence[Problem], subject: str) -> list[Problem]:
    """Return the first problems of a subject, and one that counts the others."""
    more = len(problems) - MAX_LISTED_PROBLEMS
    if more <= 0:
        return list(problems)
    last = Problem(
        f"{subject} has {more:,} more problems", problems[-1].hint, level=problems[-1].level
    )
    return [*problems[:MAX_LISTED_PROBLEMS], last]


def storage_problem(
    message: str, file: PathLike[str], hint: str = "", level: str = PROBLEM
) -> Problem:
    """Return a problem with a file or directory that OneTool stores."""
    return Problem(message, hint, Location(str(file)), STORAGE, level)


# --- storage errors -------------------------------------------------------------------------------


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
        from shlex import quote

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
        next((path for path in (place, *place.parents) if os.path.ismount(path)), place.anchor)
    )


def _find_reason(directory: Path, error: Exception) -> Reason:
    if isinstance(error, OSError):
        return _REASONS.get(error.errno or 0, "failed")
    sqlite_reason = _SQLITE_REASONS.get(getattr(error, "sqlite_errorcode", 0) & 0xFF)
    return sqlite_reason or _inspect_disk(directory)


def _inspect_disk(directory: Path) -> Reason:
    """Find the reason from the disk, because SQLite reports most as "disk I/O error"."""
    try:
        status = os.statvfs(directory)
    except (OSError, AttributeError):
        return "failed"
    if status.f_flag & os.ST_RDONLY:
        return "read_only"
    if is_full_disk(directory):
        return "full"
    return "failed" if os.access(directory, os.W_OK) else "denied"


# --- versions -------------------------------------------------------------------------------------


class NewerVersion(StorageError):
    """The file was written by a newer OneTool."""


def check_version(version: object, supported: int, what: object) -> None:
    """Raise NewerVersion for a file of a newer OneTool, ValueError for other versions."""
    reject_newer(version, supported, what)
    if type(version) is not int or version != supported:
        raise ValueError(f"expected version {supported}, not {version!r}")


def reject_newer(version: object, supported: int, what: object) -> None:
    """Raise an error if the version is newer than the supported one."""
    if isinstance(version, int) and version > supported:
        message = (
            f"{what} was written by a newer OneTool (version {version}; this one supports"
            f" {supported})"
        )
        place = {"location": Location(str(what)), "code": STORAGE} if isinstance(what, Path) else {}
        raise NewerVersion(message, hint=UPGRADE, **place)


def check_tables(database: "Connection", supported: int, file: Path) -> None:
    """Raise an error of SQLite if the file has no tables, or an unknown version."""
    (version,) = database.execute("PRAGMA user_version").fetchone()
    (tables,) = database.execute("SELECT count(*) FROM sqlite_master").fetchone()
    if tables == version == 0:
        raise _make_damage("it is empty")
    try:
        check_version(version, supported, file)
    except ValueError as error:
        raise _make_damage(str(error)) from None


def _make_damage(message: str) -> Exception:
    import sqlite3

    damage = sqlite3.DatabaseError(message)
    damage.sqlite_errorcode = sqlite3.SQLITE_NOTADB
    return damage
