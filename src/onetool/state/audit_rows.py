"""The audit log in PostgreSQL. The row that a call starts is committed before the call is made."""

import json
import re
import time
from collections import deque
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from typing import Any

from onetool.errors import AuditUnavailable, StorageError, ToolError
from onetool.logging import MAX_LINES_WAITING, MAX_LOG_BYTES, encode_line
from onetool.state.audit_records import StoredRecord
from onetool.state.postgres_database import Database
from onetool.util.background import Background
from onetool_child.json_types import JsonObject

READ_AFTER = "SELECT id, record FROM audit WHERE id < ? ORDER BY id DESC LIMIT 500"
READ = "SELECT id, record FROM audit ORDER BY id DESC LIMIT 500"
POSITION = re.compile(r"[0-9]{1,18}", re.ASCII)
INSERT = "INSERT INTO audit (at, record) VALUES (?, ?)"
TRIM = "SELECT trim_audit(?)"
TRIM_SECONDS = 3600.0
STORE_AWAY = "store_unavailable"
RETRY_SECONDS = 2  # until a database may answer again


class AuditRows:
    """Records of the audit log, redacted. The outcomes of calls are written in the background."""

    place = "in the database"
    device = "database"
    is_slow = True
    write_seconds = 3.0  # a call fails before it would wait for a free connection

    def __init__(self, database: Database, redact: Callable[[str], str] = lambda text: text) -> None:
        self._database = database
        self.redact = redact
        self.max_bytes = MAX_LOG_BYTES
        self.keep = 1
        self._trim_at = 0.0
        self._waiting: deque[JsonObject] = deque(maxlen=MAX_LINES_WAITING)
        self._background = Background("onetool-audit", self._write_waiting, gather=0.2, retry=2.0)
        self.problem: str | None = None

    def make_refusal(self, message: str) -> ToolError:
        return AuditUnavailable(message, hint="repeat the call later", retry_after=RETRY_SECONDS)

    def make_error(self, error: OSError) -> ToolError:
        return StorageError(f"cannot write the audit log: {error}", hint="repeat the call later", code=STORE_AWAY)

    def configure(self, _level: str, redact: Callable[[str], str]) -> None:
        """Set the redaction of secrets. All records are stored, whatever the level."""
        self.redact = redact

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

    def read(self, position: str | None = None) -> Iterator[StoredRecord]:
        """Yield the records after a position, newest first."""
        last = int(position) if position is not None and POSITION.fullmatch(position) else None
        while rows := self._database.select(READ if last is None else READ_AFTER, *([] if last is None else [last])):
            yield from (StoredRecord(str(number), record) for number, record in rows)
            last = rows[-1][0]

    def trim(self) -> int:
        """Delete the oldest records, if all are larger than the files could be, and return their number.

        One replica at a time does it. The function runs with the rights of the owner of the table, because a replica
        can only append.
        """
        with self._database.transaction() as transaction:
            if not transaction.try_lock("sweep audit"):
                return 0
            row = transaction.execute(TRIM, (self.max_bytes * (self.keep + 1),)).fetchone()
        return int(row[0]) if row else 0

    def insert_lines(self, lines: list[str]) -> None:
        """Store lines of another audit log, in their order."""
        self._insert([(_read_time(line), line.replace("\0", "")) for line in lines])

    def _encode(self, line: JsonObject) -> tuple[float, str]:
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
        self._trim_sometimes()
        return True

    def _trim_sometimes(self) -> None:
        if time.monotonic() >= self._trim_at:
            self._trim_at = time.monotonic() + TRIM_SECONDS
            try:
                self.trim()
            except StorageError as error:
                self.problem = f"cannot delete old records of the audit log: {error.message}"


def _make_line(name: str, fields: JsonObject) -> JsonObject:
    return {"time": time.time(), "level": "INFO", "name": name, **fields}


def _read_time(line: str) -> float:
    try:
        return datetime.fromisoformat(json.loads(line)["time"]).timestamp()
    except (ValueError, TypeError, KeyError):
        return time.time()
