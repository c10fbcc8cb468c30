"""Reads and atomically replaces a user's file, and edits texts by position.

Links and file modes are kept, and the old content is saved as `.bak`. The file is replaced only if
it has not changed since it was read. Edits preserve everything else byte for byte.
"""

import difflib
import os
import re
import stat
from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import chain, count
from pathlib import Path
from shlex import quote
from typing import Any, NamedTuple

from onetool.errors import ConfigError, StorageError, ToolError
from onetool.util import atomic
from onetool.util.problem import Location
from onetool.util.text import count_common
from onetool_child.json_types import JsonMapping, JsonObject

MAX_BYTES = 64 * 1024 * 1024
OWNER_ONLY = 0o600
_NEW_FILE = 0o666  # before the user's umask
_MAX_LINE_LENGTH = 2000
_CONTEXT_LINES = 3
_HUNK = re.compile(r"\A@@ -([0-9]+)(,[0-9]+)? \+([0-9]+)(,[0-9]+)? @@\Z")


# --- Edits ----------------------------------------------------------------------------------------
class Edit(NamedTuple):
    """A replacement of the range from `start` to `end` by `text`; an insertion if they are equal."""

    start: int
    end: int
    text: str


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


def insertion(at: int, text: str) -> Edit:
    return Edit(at, at, text)


def apply_edits(text: str, edits: Iterable[Edit]) -> str:
    parts = []
    at = 0
    for edit in sorted(edits, key=lambda edit: (edit.start, edit.end)):
        parts += [text[at : edit.start], edit.text]
        at = edit.end
    return "".join([*parts, text[at:]])


def verify(edited: str, read: Callable[[str], Any], wanted: Any, message: str) -> str:
    """Return the edited text if it parses to the expected data; otherwise raise an error with this
    message.
    """
    try:
        if read(edited) == wanted:
            return edited
    except ConfigError:
        pass
    raise ConfigError(message)


def detect_line_break(text: str) -> str:
    """Return the line break that the text uses, or LF if it has none."""
    first = text.find("\n")
    if first < 0:
        return "\r" if "\r" in text else "\n"
    return "\r\n" if text[first - 1 : first] == "\r" else "\n"


def line_number(text: str, position: int) -> int:
    return text.count("\n", 0, position) + 1


def line_start(text: str, position: int) -> int:
    return max(text.rfind("\n", 0, position), text.rfind("\r", 0, position)) + 1


def value_at(data: Any, path: Sequence[str]) -> Any:
    """Return the value at the path, or None."""
    for key in path:
        data = data.get(key) if isinstance(data, Mapping) else None
    return data


def replace_value(data: Any, path: Sequence[str], value: Any) -> Any:
    """Return the data with this value at the path; parents that are not mappings are replaced."""
    if not path:
        return value
    around = data if isinstance(data, dict) else {}
    return {**around, path[0]: replace_value(around.get(path[0]), path[1:], value)}


def merge_entry(old: Any, new: JsonMapping, updated_keys: Sequence[str]) -> JsonObject:
    """Return the updated entry: `new`, or only the keys in `updated_keys` if the entry exists."""
    if not isinstance(old, dict):
        return dict(new)
    update = {key: new[key] for key in updated_keys if key in new}
    mappings = {
        key
        for key, value in update.items()
        if isinstance(value, dict) and isinstance(old.get(key), dict)
    }
    return {**update, **{key: {**old[key], **update[key]} for key in mappings}}
