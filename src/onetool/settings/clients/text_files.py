"""Reads and atomically replaces a user's file.

Links and file modes are kept, and the old content is saved as `.bak`. The file is replaced only if
it has not changed since it was read.
"""

import difflib
import os
import re
import stat
from collections.abc import Callable
from itertools import chain, count
from pathlib import Path
from shlex import quote
from typing import NamedTuple

from onetool.errors import ConfigError, StorageError, ToolError
from onetool.util import atomic
from onetool.util.problem import Location
from onetool.util.text import count_common

MAX_BYTES = 64 * 1024 * 1024
OWNER_ONLY = 0o600
_NEW_FILE = 0o666  # before the user's umask
_MAX_LINE_LENGTH = 2000
_CONTEXT_LINES = 3
_HUNK = re.compile(r"\A@@ -([0-9]+)(,[0-9]+)? \+([0-9]+)(,[0-9]+)? @@\Z")


class TextFile(NamedTuple):
    """The content of a file when it was read; `raw` is None if it did not exist."""

    path: Path
    raw: bytes | None
    text: str


def read(path: Path) -> TextFile:
    return decode(path, _read_bytes(path))


def decode(path: Path, raw: bytes | None) -> TextFile:
    """Return the file with this content. Raise ConfigError if it is not UTF-8."""
    if raw is None:
        return TextFile(path, None, "")
    try:
        return TextFile(path, raw, raw.decode("utf-8"))
    except UnicodeDecodeError as error:
        line = raw.count(b"\n", 0, error.start) + 1
        place = Location(str(path), line)
        hint = "save it as UTF-8"
        raise ConfigError(f"{place}: not valid UTF-8", hint=hint, location=place) from None


def _read_bytes(path: Path) -> bytes | None:
    try:
        if stat.S_ISREG(path.stat().st_mode):  # reading a pipe would block
            with path.open("rb") as file:
                raw = file.read(MAX_BYTES + 1)
        else:
            raise ConfigError(f"{path}: not a file")
    except (FileNotFoundError, NotADirectoryError):
        return None
    except OSError as error:
        raise ConfigError(f"cannot read {path}: {error.strerror or error}") from None
    if len(raw) > MAX_BYTES:
        raise ConfigError(
            f"{path}: too large (more than {MAX_BYTES:,} bytes)", hint="edit it manually"
        )
    return raw


def write(
    before: TextFile, text: str, *, mode: int | None = None, keep: bool = True
) -> Path | None:
    """Replace the file by the new text and return the backup, if there is one."""
    target = Path(os.path.realpath(before.path))
    try:
        # Replacing a file needs no write permission on it, but a read-only file must not be
        # replaced.
        if target.exists() and not (target.stat().st_mode & 0o222 and os.access(target, os.W_OK)):
            raise ToolError(
                f"{target} is read-only", hint=f"make it writable: chmod u+w {quote(str(target))}"
            )
        target.parent.mkdir(parents=True, exist_ok=True)
        with atomic.replacing(target) as temporary:
            _create(temporary, text.encode("utf-8"), _mode_for(target) if mode is None else mode)
            if _read_bytes(before.path) != before.raw:
                raise ToolError(
                    f"{before.path} was changed by another program; nothing was written",
                    hint="run the command again",
                )
            backup = back_up(before) if keep else None
    except OSError as error:
        raise StorageError(
            f"cannot write {before.path}: {error.strerror or error}; nothing was changed"
        ) from None
    return backup


def _mode_for(target: Path) -> int | None:
    return stat.S_IMODE(target.stat().st_mode) if target.exists() else None


def _create(path: Path, content: bytes, mode: int | None) -> None:
    """Create a new file that other users cannot read at any time, unless its mode allows it."""
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | getattr(os, "O_BINARY", 0)
    descriptor = os.open(path, flags, _NEW_FILE if mode is None else mode & OWNER_ONLY)
    try:
        with os.fdopen(descriptor, "wb") as file:
            if mode is not None and os.name == "posix":
                os.fchmod(file.fileno(), mode)
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
    except BaseException:  # it may contain a part of a secret
        path.unlink(missing_ok=True)
        raise


def back_up(before: TextFile) -> Path | None:
    """Write the content that a file had when it was read to a new file beside it, and return that;
    None without one.
    """
    if before.raw is None:
        return None
    for suffix in chain([".bak"], (f".bak.{number}" for number in count(1))):
        path = before.path.with_name(before.path.name + suffix)
        try:
            _create(path, before.raw, _mode_for(before.path))
        except FileExistsError:
            continue
        return path
    raise AssertionError  # the sequence of names is infinite


def diff(before: TextFile, text: str, redact: Callable[[str], str] = str) -> str:
    """Return the changes as a unified diff, without secrets in context lines."""
    both = (side.removeprefix("\ufeff").splitlines() for side in (before.text, text))
    old, new = (
        [
            line if len(line) <= _MAX_LINE_LENGTH else f"... a line of {len(line):,} characters"
            for line in lines
        ]
        for lines in both
    )
    same = count_common(old, new)
    skipped = max(0, same - _CONTEXT_LINES)
    kept = max(0, count_common(old[same:][::-1], new[same:][::-1]) - _CONTEXT_LINES)
    name = str(before.path)
    lines = difflib.unified_diff(
        old[skipped : len(old) - kept],  # comparing all lines of a large file would take minutes
        new[skipped : len(new) - kept],
        name if before.raw is not None else os.devnull,
        name,
        lineterm="",
    )
    return redact(
        "\n".join(_HUNK.sub(lambda found: _shift_hunk(found, skipped), line) for line in lines)
    )


def _shift_hunk(found: re.Match[str], skipped: int) -> str:
    old, old_size, new, new_size = found.groups("")
    return f"@@ -{int(old) + skipped}{old_size} +{int(new) + skipped}{new_size} @@"
