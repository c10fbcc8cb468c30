"""The log: one JSON line per span, redacted, written by its own thread so that no call waits for
the disk.

A span records an operation: name, duration in milliseconds, status, error type, correlation ID and
further fields. If the log cannot be written, `problem` says so; calls never fail because of it.
`write` is for callers that must know that a line was accepted: it writes synchronously and raises.
"""

import errno
import os
import stat
import time
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from datetime import UTC, datetime
from io import FileIO
from pathlib import Path
from typing import Any, ClassVar

from onetool.errors import error_type
from onetool.util.atomic import locked
from onetool.util.background import Background
from onetool_child.json_types import JsonObject

LEVELS = {"DEBUG": 10, "INFO": 20, "WARNING": 30, "ERROR": 40, "CRITICAL": 50}
MAX_LOG_BYTES = 10 << 20
MAX_LINES_WAITING = 100_000  # in case the disk is slower than the calls
MAX_TEXT_WAITING = 32 << 20  # characters of output and messages, in case redacting them is slower
WRITE_SECONDS = 0.01  # in which another process finishes a line
GATHER_SECONDS = 0.2
RETRY_SECONDS = 2.0


def _json(line: JsonObject) -> str:
    import json

    import orjson

    try:
        return orjson.dumps(line, default=str).decode()
    except TypeError:  # a lone surrogate, or an integer over 64 bits
        return json.dumps(line, default=str)


class Log:
    """A log file that is rotated at `max_bytes`; `keep` older files are kept.

    With `gathers`, the thread collects lines for a moment instead of waking for each one.
    """

    keeps_unwritten: ClassVar[bool] = (
        False  # whether to write lines later that cannot be written now
    )

    def __init__(
        self,
        file: Path | None = None,
        level: str = "INFO",
        redact: Callable[[str], str] = lambda text: text,
        *,
        max_bytes: int = MAX_LOG_BYTES,
        keep: int = 1,
        gathers: bool = True,
        name: str = "the log",
    ) -> None:
        self.name = name
        self.max_bytes = max_bytes
        self.keep = keep
        self._file = file
        self._is_open = file is not None
        self._level = LEVELS.get(level.upper(), LEVELS["INFO"])
        self._redact = redact
        self._lines: deque[JsonObject] = deque(maxlen=MAX_LINES_WAITING)
        self._text_waiting = 0
        self._is_torn = True  # whether the last line in the file may be incomplete
        gather = GATHER_SECONDS if gathers else 0.0
        self._background = Background(
            "onetool-log", self._write_lines, gather=gather, retry=RETRY_SECONDS
        )
        self.problem: str | None = None

    def open(self, file: Path) -> None:
        """Write to this file, unless the log already has one."""
        self._file = self._file or file
        self._is_open = True

    def configure(self, level: str, redact: Callable[[str], str]) -> None:
        """Set the minimum level and the redaction of secrets."""
        self._level = LEVELS[level.upper()]
        self._redact = redact

    def event(self, name: str, *, level: str = "INFO", **fields: Any) -> None:
        if not self._is_open or LEVELS[level] < self._level:
            return
        if "text" in fields:
            self._text_waiting += len(fields["text"])
            if self._text_waiting > MAX_TEXT_WAITING:
                return
        self._lines.append({"time": time.time(), "level": level, "name": name, **fields})
        self._background.wake()

    def write(self, name: str, **fields: Any) -> None:
        """Write a line before returning. Raises OSError if the system does not accept it."""
        if self._is_open:
            try:
                self._write([{"time": time.time(), "level": "INFO", "name": name, **fields}])
            except OSError as error:
                self.problem = f"cannot write {self.name}: {error}"
                raise
            self.problem = None

    @contextmanager
    def span(self, name: str, **fields: Any) -> Iterator[JsonObject]:
        """Measure the block and log it with the fields of the yielded dictionary."""
        started = time.perf_counter()
        try:
            yield fields
        except BaseException as error:
            kind = error_type(error) if isinstance(error, Exception) else "cancelled"
            self.log_end(name, time.perf_counter() - started, kind, fields)
            raise
        self.log_end(name, time.perf_counter() - started, fields.pop("error", None), fields)

    def log_end(self, name: str, seconds: float, error: str | None, fields: JsonObject) -> None:
        duration_ms = round(seconds * 1000, 3)
        outcome = {"status": "ok"} if error is None else {"status": "error", "error_type": error}
        self.event(
            name,
            level="INFO" if error is None else "WARNING",
            duration_ms=duration_ms,
            **outcome,
            **fields,
        )

    def flush(self) -> None:
        """Write all queued lines before returning."""
        self._background.flush()

    def close(self) -> None:
        """Write the remaining lines and stop."""
        self._background.close()

    # --- writer thread ----------------------------------------------------------------------------

    def _write_lines(self) -> bool:
        """Write the queued lines. Return whether none are left to be written later."""
        lines = [self._lines.popleft() for _ in range(len(self._lines))]
        self._text_waiting = 0
        if not lines:
            return True
        try:
            self._make_room()
            self._write(lines)
        except OSError as error:
            self.problem = f"cannot write {self.name}: {error}"
            if self.keeps_unwritten:
                self._lines.extendleft(reversed(lines))
            return not self.keeps_unwritten
        self.problem = None
        return True

    def _make_room(self) -> None:
        if self._file is not None:
            rotate(self._file, self.max_bytes, self.keep)

    def _write(self, lines: list[JsonObject]) -> None:
        path = self._file
        if path is None:
            return
        with _open(path) as file:
            for line in lines:  # one write per line, because other processes may append too
                data = b"\n" * (self._is_torn and _has_torn_line(file, path)) + self._text(line)
                written = file.write(data)
                self._is_torn = bool(written) and written != len(data)
                if written != len(data):
                    raise OSError(errno.ENOSPC, "no space left for a whole line")

    def _text(self, line: JsonObject) -> bytes:
        return (encode_line(line, self._redact) + "\n").encode("utf-8", "backslashreplace")


def encode_line(line: JsonObject, redact: Callable[[str], str]) -> str:
    """Return the line as redacted JSON."""
    return redact(_json({**line, "time": datetime.fromtimestamp(line["time"], UTC).isoformat()}))


def rotate(file: Path, max_bytes: int, keep: int) -> None:
    """Rename a file that is larger than `max_bytes` to `.1`, older ones to `.2` and so on.

    The last one is deleted.

    If the directory does not allow renaming, the file keeps growing, because losing records would
    be worse.
    """
    with suppress(OSError):
        if file.stat().st_size <= max_bytes:
            return
        with locked(file.with_name(f"{file.name}.lock")):
            if file.stat().st_size > max_bytes:  # no other process has rotated it
                _shift(file, keep)


def list_rotated(file: Path, keep: int) -> list[Path]:
    """Return the paths of the older files, newest first."""
    return [file.with_name(f"{file.name}.{number}") for number in range(1, keep + 1)]


def _shift(file: Path, keep: int) -> None:
    names = [file, *list_rotated(file, keep)]
    if keep == 0:
        file.unlink()
    for older, newer in zip(reversed(names), reversed(names[:-1]), strict=False):
        with suppress(FileNotFoundError):
            newer.replace(older)


def _has_torn_line(file: FileIO, path: Path) -> bool:
    """Return whether the last line is incomplete. Another process may be writing it, so look twice."""
    if _ends_in_line_break(file, path):
        return False
    time.sleep(WRITE_SECONDS)
    return not _ends_in_line_break(file, path)


def _ends_in_line_break(file: FileIO, path: Path) -> bool:
    status = os.fstat(file.fileno())
    if not stat.S_ISREG(status.st_mode) or status.st_size == 0:
        return True
    with path.open("rb") as reader:
        reader.seek(-1, os.SEEK_END)
        return reader.read(1) == b"\n"


def _open(file: Path) -> FileIO:
    """Open the file for appending, without blocking on a pipe."""
    flags = (
        os.O_WRONLY
        | os.O_CREAT
        | os.O_APPEND
        | getattr(os, "O_CLOEXEC", 0)
        | getattr(os, "O_NONBLOCK", 0)
    )
    try:
        return FileIO(os.open(file, flags, 0o600), "ab")
    except FileNotFoundError:
        file.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        return FileIO(os.open(file, flags, 0o600), "ab")
