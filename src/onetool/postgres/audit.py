"""The audit log in PostgreSQL. The row that a call starts is committed before the call is made."""

import json
import time
from collections import deque
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any, Final

from onetool.errors import StorageError
from onetool.logging import MAX_LINES_WAITING, encode_line
from onetool.postgres.database import Database
from onetool.util.background import Background

INSERT: Final = "INSERT INTO audit (at, record) VALUES (?, ?)"


class AuditRows:
    """Records of the audit log, redacted. The outcomes of calls are written in the background."""

    is_remote = True  # each write takes a round trip, so callers on an event loop use a thread

    def __init__(self, database: Database, redact: Callable[[str], str] = lambda text: text) -> None:
        self._database, self.redact = database, redact
        self._waiting: deque[dict[str, Any]] = deque(maxlen=MAX_LINES_WAITING)
        self._background = Background("onetool-audit", self._write_waiting, gather=0.2, retry=2.0)
        self.problem: str | None = None

    def write(self, name: str, **fields: Any) -> None:
        """Store a record before returning. Raise OSError if the database did not accept it."""
        try:
            self._insert([self._encode(_make_line(name, fields))])
        except StorageError as error:
            self.problem = f"cannot write the audit log: {error.message}"
            raise OSError(error.message) from None
        self.problem = None

    def event(self, name: str, **fields: Any) -> None:
        self._waiting.append(_make_line(name, fields))
        self._background.wake()

    def close(self) -> None:
        self._background.close()

    def delete_old(self, seconds: float) -> int:
        """Delete records that are older than this time, and return their number."""
        return self._database.execute("DELETE FROM audit WHERE at < now() - make_interval(secs => ?)", (seconds,))

    def insert_lines(self, lines: list[str]) -> None:
        """Store lines of another audit log, in their order."""
        self._insert([(_read_time(line), line.replace("\0", "")) for line in lines])

    def _encode(self, line: dict[str, Any]) -> tuple[float, str]:
        return line["time"], encode_line(line, self.redact).replace("\0", "")

    def _insert(self, records: list[tuple[float, str]]) -> None:
        with self._database.transaction() as transaction:
            rows = [(datetime.fromtimestamp(at, UTC), record) for at, record in records]
            transaction.executemany(INSERT, rows)

    def _write_waiting(self) -> bool:
        """Store the queued records. They are kept until the database accepts them."""
        lines = [self._waiting.popleft() for _ in range(len(self._waiting))]
        if not lines:
            return True
        try:
            self._insert(list(map(self._encode, lines)))
        except StorageError as error:
            self.problem = f"cannot write the audit log: {error.message}"
            self._waiting.extendleft(reversed(lines))
            return False
        self.problem = None
        return True


def _make_line(name: str, fields: dict[str, Any]) -> dict[str, Any]:
    return {"time": time.time(), "level": "INFO", "name": name, **fields}


def _read_time(line: str) -> float:
    try:
        return datetime.fromisoformat(json.loads(line)["time"]).timestamp()
    except (ValueError, TypeError, KeyError):
        return time.time()
