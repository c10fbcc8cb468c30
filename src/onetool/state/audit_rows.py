"""The audit log in PostgreSQL. The row that a call starts is committed before the call is made."""

import json
import re
import time
from collections.abc import Callable, Iterator
from datetime import UTC, datetime

from onetool.errors import AuditUnavailable, StorageError, ToolError
from onetool.state.audit_records import StoredRecord
from onetool.state.file_kinds import AuditFile
from onetool.state.postgres_database import Database
from onetool.util.logging import encode_line
from onetool_child.json_types import JsonObject

READ_AFTER = "SELECT id, record FROM audit WHERE id < ? ORDER BY id DESC LIMIT 500"
READ = "SELECT id, record FROM audit ORDER BY id DESC LIMIT 500"
POSITION = re.compile(r"[0-9]{1,18}", re.ASCII)
INSERT = "INSERT INTO audit (at, record) VALUES (?, ?)"
TRIM = "SELECT trim_audit(?)"
TRIM_SECONDS = 3600.0
STORE_AWAY = "store_unavailable"
RETRY_SECONDS = 2  # until a database may answer again


class AuditRows(AuditFile):
    """Records of the audit log in rows.

    Those that cannot be written are kept until the database accepts them.
    """

    device = "database"
    place = "in the database"
    is_slow = True
    write_seconds = 3.0  # a call fails before it would wait for a free connection
    keeps_unwritten = True

    def __init__(self, database: Database, redact: Callable[[str], str] = str) -> None:
        super().__init__(None, redact)
        self._is_open = True
        self._database = database
        self._trim_at = 0.0

    def make_refusal(self, message: str) -> ToolError:
        return AuditUnavailable(message, hint="repeat the call later", retry_after=RETRY_SECONDS)

    def make_error(self, error: OSError) -> ToolError:
        return StorageError(
            f"cannot write the audit log: {error}", hint="repeat the call later", code=STORE_AWAY
        )

    def read(self, position: str | None = None) -> Iterator[StoredRecord]:
        """Yield the records after a position, newest first."""
        last = int(position) if position is not None and POSITION.fullmatch(position) else None
        while rows := self._database.select(
            READ if last is None else READ_AFTER, *([] if last is None else [last])
        ):
            yield from (StoredRecord(str(number), record) for number, record in rows)
            last = rows[-1][0]

    def trim(self) -> int:
        """Delete the oldest records, if all are larger than the files could be, and return their
        number.

        One replica at a time does it. The function runs with the rights of the owner of the table,
        because a replica can only append.
        """
        with self._database.transaction() as transaction:
            if not transaction.try_lock("sweep audit"):
                return 0
            row = transaction.execute(TRIM, (self.max_bytes * (self.keep + 1),)).fetchone()
        return int(row[0]) if row else 0

    def insert_lines(self, lines: list[str]) -> None:
        """Store lines of another audit log, in their order."""
        self._insert([(_read_time(line), line.replace("\0", "")) for line in lines])

    def _write(self, lines: list[JsonObject]) -> None:
        try:
            self._insert(
                [
                    (line["time"], encode_line(line, self._redact).replace("\0", ""))
                    for line in lines
                ]
            )
        except StorageError as error:
            raise OSError(error.message) from None

    def _insert(self, records: list[tuple[float, str]]) -> None:
        with self._database.transaction() as transaction:
            rows = [(datetime.fromtimestamp(at, UTC), record) for at, record in records]
            transaction.executemany(INSERT, rows)

    def _write_lines(self) -> bool:
        has_lines = bool(self._lines)
        is_done = super()._write_lines()
        if has_lines and is_done:
            self._trim_sometimes()
        return is_done

    def _trim_sometimes(self) -> None:
        if time.monotonic() >= self._trim_at:
            self._trim_at = time.monotonic() + TRIM_SECONDS
            try:
                self.trim()
            except StorageError as error:
                self.problem = f"cannot delete old records of the audit log: {error.message}"


def _read_time(line: str) -> float:
    try:
        return datetime.fromisoformat(json.loads(line)["time"]).timestamp()
    except (ValueError, TypeError, KeyError):
        return time.time()
