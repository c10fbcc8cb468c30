"""The log: one JSON line a span, redacted, written by a thread of its own so that nobody waits for the disk.

A `span` is something that takes time and ends well or badly: name, milliseconds, status, error type, correlation
id, and fields of its own. A log that cannot be written says so in `problem` and is otherwise silent: it never fails
a call.
"""

import contextlib
import os
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from ot.errors import error_type

LEVELS = {"DEBUG": 10, "INFO": 20, "WARNING": 30, "ERROR": 40, "CRITICAL": 50}
ROTATE_BYTES = 10 << 20
GATHER_SECONDS = 0.2


def _json(line: dict[str, Any]) -> str:
    import json

    import orjson

    try:
        return orjson.dumps(line, default=str).decode()
    except TypeError:  # half a surrogate pair, or an integer over 64 bits
        return json.dumps(line, default=str)


class Log:
    """`rotates`: a long one starts anew. `gathers`: it waits a moment for more, and so is not woken at every line."""

    def __init__(
        self,
        file: Path | None = None,
        level: str = "INFO",
        redact: Callable[[str], str] = lambda text: text,
        *,
        rotates: bool = True,
        gathers: bool = True,
    ) -> None:
        self._rotates, self._gather_seconds = rotates, GATHER_SECONDS if gathers else 0.0
        self._file, self._level, self._redact = file, LEVELS.get(level.upper(), LEVELS["INFO"]), redact
        self._lines: deque[dict[str, Any]] = deque()
        self._waiting = threading.Event()
        self._closing = threading.Event()
        self._thread: threading.Thread | None = None
        self.problem: str | None = None

    def use(self, level: str, redact: Callable[[str], str]) -> None:
        """From now on, what is below the level is left out and what is secret is taken out."""
        self._level, self._redact = LEVELS[level.upper()], redact

    def event(self, name: str, *, level: str = "INFO", **fields: Any) -> None:
        if self._file is None or LEVELS[level] < self._level:
            return
        self._lines.append({"time": time.time(), "level": level, "name": name, **fields})
        if not self._waiting.is_set():
            self._waiting.set()
            if self._thread is None:
                self._thread = threading.Thread(target=self._write_all, name="onetool-log", daemon=True)
                self._thread.start()

    @contextlib.contextmanager
    def span(self, name: str, **fields: Any) -> Iterator[dict[str, Any]]:
        """Measure the block; what it puts into the dictionary is logged with it."""
        started = time.perf_counter()
        try:
            yield fields
        except BaseException as error:
            self.ended(name, started, error_type(error) if isinstance(error, Exception) else "cancelled", fields)
            raise
        self.ended(name, started, fields.pop("error", None), fields)

    def ended(self, name: str, started: float, error: str | None, fields: dict[str, Any]) -> None:
        duration = round((time.perf_counter() - started) * 1000, 3)
        outcome = {"status": "ok"} if error is None else {"status": "error", "error_type": error}
        self.event(name, level="INFO" if error is None else "WARNING", duration_ms=duration, **outcome, **fields)

    def close(self) -> None:
        """Write what is left, and stop."""
        self._closing.set()
        self._waiting.set()
        if self._thread is not None:
            self._thread.join(timeout=5)
            self._thread = None

    # --- in the thread ----------------------------------------------------------------------------------------

    def _write_all(self) -> None:
        """Sleep until there is something, then let more come."""
        while not self._closing.is_set():
            self._waiting.wait()
            self._closing.wait(self._gather_seconds)
            self._waiting.clear()
            self._write_lines()
        self._write_lines()

    def _write_lines(self) -> None:
        lines = [self._lines.popleft() for _ in range(len(self._lines))]
        if not lines:
            return
        try:
            self._write(lines)
            self.problem = None
        except OSError as error:
            self.problem = f"the log cannot be written: {error}"

    def _write(self, lines: list[dict[str, Any]]) -> None:
        assert self._file is not None
        self._file.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        if self._rotates:
            self._rotate(self._file)
        descriptor = os.open(self._file, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)
        with os.fdopen(descriptor, "wb", buffering=0) as file:
            for line in lines:  # each at once: another process may be writing too
                data = self._text(line)
                if file.write(data) != len(data):
                    raise OSError("there is no room for a whole line")

    def _text(self, line: dict[str, Any]) -> bytes:
        line["time"] = datetime.fromtimestamp(line["time"], UTC).isoformat()
        return (self._redact(_json(line)) + "\n").encode("utf-8", "backslashreplace")

    @staticmethod
    def _rotate(file: Path) -> None:
        with contextlib.suppress(FileNotFoundError):
            if file.stat().st_size > ROTATE_BYTES:
                file.replace(file.with_name(file.name + ".1"))
