"""Reads the audit log, newest first: pages of records that match a filter.

A position is where a record is stored, so that the next page costs as much as the first, also after
a rotation of the file. One page looks at a limited number of records.
"""

import os
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

from onetool.util.time_format import parse_time
from onetool_child.json_types import JsonObject

BLOCK_BYTES = 1 << 16
MAX_LINE_BYTES = 4 << 20  # a longer line is skipped
MAX_SCANNED = 20_000  # records that one page looks at
LATE_SECONDS = 60.0  # by which records may be out of order, because several processes append them
FIRST_RECORDS = frozenset(
    {"call.started", "change.started"}
)  # of a call or change whose outcome follows


class StoredRecord(NamedTuple):
    """A record as text, and the position after which older ones follow."""

    position: str
    text: str


class AuditFilter(NamedTuple):
    """A filter for records.

    Empty values match everything; records that something starts are left out by default.
    """

    kind: str = ""  # `call`, `change`, `decision` or `started`
    actor: str = ""
    agent: str = ""
    name: str = ""  # of a tool or an action
    outcome: str = ""
    text: str = ""
    since: float | None = None
    until: float | None = None

    def matches(self, record: JsonObject, at: float, text: str) -> bool:
        kind = record.get("name")
        if (kind in FIRST_RECORDS) != (self.kind == "started"):
            return False
        names = {str(record.get("tool", "")), str(record.get("action", ""))}
        return (
            self.kind in {"", "started", kind}
            and self.actor in {"", record.get("actor")}
            and self.agent in {"", record.get("agent")}
            and (not self.name or self.name in names)
            and self.outcome in {"", record.get("outcome")}
            and (self.until is None or at < self.until)
            and (self.since is None or at >= self.since)
            and (not self.text or self.text.lower() in text.lower())
        )


class AuditPage(NamedTuple):
    records: list[JsonObject]
    next: str | None  # the position to continue from; None at the end


def read_page(stored: Iterable[StoredRecord], criteria: AuditFilter, size: int) -> AuditPage:
    """Return the records that match. `stored` yields all, newest first, from some position on."""
    import orjson

    found: list[JsonObject] = []
    for scanned, (position, text) in enumerate(stored, 1):
        try:
            record = orjson.loads(text)
            at = parse_time(str(record["time"]))
        except (ValueError, TypeError, KeyError, OverflowError):  # a line that was cut off
            continue
        if criteria.since is not None and at < criteria.since - LATE_SECONDS:
            return AuditPage(found, None)
        if criteria.matches(record, at, text):
            found.append(record)
        if len(found) == size or scanned >= MAX_SCANNED:
            return AuditPage(found, position)
    return AuditPage(found, None)


def read_files(files: Iterable[Path], position: str | None = None) -> Iterator[StoredRecord]:
    """Yield the lines of log files, the newest first. `files` begins with the newest."""
    wanted, _, offset = (position or "").partition(":")
    is_reached = position is None
    for path in files:
        try:
            with path.open("rb") as file:
                status = os.fstat(file.fileno())
                end = status.st_size
                if not is_reached:
                    if str(status.st_ino) != wanted or not offset.isdecimal():
                        continue
                    is_reached = True
                    end = min(int(offset), end)
                for start, line in _read_backwards(file, end):
                    yield StoredRecord(f"{status.st_ino}:{start}", line.decode("utf-8", "replace"))
        except FileNotFoundError:
            continue


def _read_backwards(file: Any, end: int) -> Iterator[tuple[int, bytes]]:
    """Yield the lines before a byte with the positions of their first bytes, the last line first."""
    rest = b""
    while end > 0:
        begin = max(0, end - BLOCK_BYTES)
        file.seek(begin)
        first, *lines = (file.read(end - begin) + rest).split(b"\n")
        place = begin + len(first) + 1 + sum(len(line) + 1 for line in lines)
        for line in reversed(lines):
            place -= len(line) + 1
            if line:
                yield place, line
        rest = first if len(first) <= MAX_LINE_BYTES else b""
        end = begin
    if rest:
        yield 0, rest
