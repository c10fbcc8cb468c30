"""Reading and changing a person's file: nothing is lost, nothing is written that they did not see.

A link stays a link, the mode stays, and the old content stays beside the file as `.bak`. The new content takes the
place of the old in one step, and only where the file is still what was read.
"""

import difflib
import os
import re
import stat
from collections.abc import Callable
from dataclasses import dataclass
from itertools import chain, count
from pathlib import Path

from onetool.errors import ConfigError, StorageError, ToolError
from onetool.problem import Location

MAX_BYTES = 64 * 1024 * 1024
OWNER_ONLY = 0o600
_NEW_FILE = 0o666  # as every program makes files: the person's umask has the last word
_LINE = 2000
_CONTEXT = 3
_HUNK = re.compile(r"\A@@ -([0-9]+)(,[0-9]+)? \+([0-9]+)(,[0-9]+)? @@\Z")


@dataclass(frozen=True, slots=True)
class Read:
    """A file as it was: `raw` is None where there was none."""

    path: Path
    raw: bytes | None
    text: str


def read(path: Path) -> Read:
    raw = _bytes_of(path)
    if raw is None:
        return Read(path, None, "")
    try:
        return Read(path, raw, raw.decode("utf-8"))
    except UnicodeDecodeError as error:
        line = raw.count(b"\n", 0, error.start) + 1
        place = Location(str(path), line)
        hint = "save it as UTF-8, then try again"
        raise ConfigError(f"{place}: is not UTF-8 text", hint=hint, location=place) from None


def _bytes_of(path: Path) -> bytes | None:
    try:
        if stat.S_ISREG(path.stat().st_mode):  # a pipe would keep us waiting
            with path.open("rb") as file:
                raw = file.read(MAX_BYTES + 1)
        else:
            raise ConfigError(f"{path}: is no file")
    except (FileNotFoundError, NotADirectoryError):
        return None
    except OSError as error:
        raise ConfigError(f"{path}: cannot be read: {error.strerror or error}") from None
    if len(raw) > MAX_BYTES:
        raise ConfigError(f"{path}: has more than {MAX_BYTES:,} bytes; edit it by hand")
    return raw


def write(before: Read, text: str, *, mode: int | None = None, keep: bool = True) -> Path | None:
    """Put the new text in the place of what was read; the backup, where there was something to keep."""
    target = Path(os.path.realpath(before.path))
    try:
        # Taking the place of a file needs no right to write it: whoever made it read-only is to be asked.
        if target.exists() and not (target.stat().st_mode & 0o222 and os.access(target, os.W_OK)):
            raise ToolError(f"{target} is read-only; make it writable, then try again")
        target.parent.mkdir(parents=True, exist_ok=True)
        temporary = target.with_name(f".{target.name}.{os.getpid()}.tmp")
        _make(temporary, text.encode("utf-8"), _mode_for(target) if mode is None else mode)
        try:
            if _bytes_of(before.path) != before.raw:
                raise ToolError(
                    f"{before.path} was changed by another program just now; nothing was written, try again"
                )
            backup = _backed_up(before) if keep else None
            temporary.replace(target)
        finally:
            temporary.unlink(missing_ok=True)
    except OSError as error:
        raise StorageError(f"{before.path} cannot be written: {error.strerror or error}; nothing was changed") from None
    return backup


def _mode_for(target: Path) -> int | None:
    return stat.S_IMODE(target.stat().st_mode) if target.exists() else None


def _make(path: Path, content: bytes, mode: int | None) -> None:
    """A file that was not there. Nobody else can read it for a moment, where its mode says so."""
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | getattr(os, "O_BINARY", 0)
    descriptor = os.open(path, flags, _NEW_FILE if mode is None else mode & OWNER_ONLY)
    with os.fdopen(descriptor, "wb") as file:
        if mode is not None and os.name == "posix":
            os.fchmod(file.fileno(), mode)
        file.write(content)
        file.flush()
        os.fsync(file.fileno())


def _backed_up(before: Read) -> Path | None:
    if before.raw is None:
        return None
    for suffix in chain([".bak"], (f".bak.{number}" for number in count(1))):
        path = before.path.with_name(before.path.name + suffix)
        try:
            _make(path, before.raw, _mode_for(before.path))
        except FileExistsError:
            continue
        return path
    raise AssertionError  # the names have no end


def diff(before: Read, text: str, redact: Callable[[str], str] = str) -> str:
    """What would change, as `diff -u` shows it, without the secrets that stand nearby."""
    both = (side.removeprefix("\ufeff").splitlines() for side in (before.text, text))
    old, new = (
        [line if len(line) <= _LINE else f"... a line of {len(line):,} characters" for line in lines] for lines in both
    )
    same = _common(old, new)
    skipped = max(0, same - _CONTEXT)
    kept = max(0, _common(old[same:][::-1], new[same:][::-1]) - _CONTEXT)
    name = str(before.path)
    lines = difflib.unified_diff(
        old[skipped : len(old) - kept],  # comparing all lines of a large file would take minutes
        new[skipped : len(new) - kept],
        name if before.raw is not None else os.devnull,
        name,
        lineterm="",
    )
    return redact("\n".join(_HUNK.sub(lambda found: _moved(found, skipped), line) for line in lines))


def _common(old: list[str], new: list[str]) -> int:
    """How many lines both begin with."""
    differing = (at for at, (one, other) in enumerate(zip(old, new, strict=False)) if one != other)
    return next(differing, min(len(old), len(new)))


def _moved(found: re.Match[str], skipped: int) -> str:
    old, old_size, new, new_size = found.groups("")
    return f"@@ -{int(old) + skipped}{old_size} +{int(new) + skipped}{new_size} @@"
