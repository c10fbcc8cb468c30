"""Audit log records: pages that match a filter, newest first, and each agent's share of the log.

A position is where a record is stored, so that the next page costs as much as the first, also after
a rotation of the file. One page looks at a limited number of records.

Many calls of one agent do not displace the records of others: calls beyond its share are counted
instead of recorded, and summaries have their numbers.
"""

import json
import os
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

from onetool.util.time_format import parse_time
from onetool_child.json_types import JsonMapping, JsonObject

BLOCK_BYTES = 1 << 16
MAX_LINE_BYTES = 4 << 20  # a longer line is skipped
MAX_SCANNED = 20_000  # records that one page looks at
LATE_SECONDS = 60.0  # by which records may be out of order, because several processes append them
FIRST_RECORDS = frozenset(
    {"call.started", "change.started"}
)  # of a call or change whose outcome follows
SHARES = 10  # of all files; an agent may fill one of them in a period
MIN_SHARE_BYTES = 1 << 20
PERIOD_SECONDS = 86_400.0
SUMMARY_SECONDS = 60.0  # between summaries of an agent
RECORD_BYTES = 250  # of a record apart from its facts
MAX_TOOLS = 100  # in a summary


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


@dataclass(slots=True)
class _Share:
    bytes_left: int
    until: float
    calls: Counter[str] = field(default_factory=Counter)  # counted since the last summary, by tool
    refused: int = 0  # of these calls
    next_summary: float = 0.0


class AuditShares:
    """The shares of all agents, in memory. Use it in one thread."""

    def __init__(self) -> None:
        self._shares: dict[str, _Share] = {}
        self._bytes = sys.maxsize
        self.now: Callable[[], float] = time.monotonic

    def configure(self, log_bytes: int) -> None:
        self._bytes = max(MIN_SHARE_BYTES, log_bytes // SHARES)

    def take(self, facts: JsonMapping) -> bool:
        """Return whether both records of a call fit into the share of its agent.

        If not, `count` the call.
        """
        now = self.now()
        share = self._shares.setdefault(facts["agent"], _Share(self._bytes, now + PERIOD_SECONDS))
        if now >= share.until:
            share.bytes_left = self._bytes
            share.until = now + PERIOD_SECONDS
        share.bytes_left -= 2 * (len(json.dumps(facts)) + RECORD_BYTES)
        return share.bytes_left >= 0

    def count(self, agent: str, tool: str, *, is_refused: bool) -> None:
        share = self._shares[agent]
        share.calls[tool] += 1
        share.refused += is_refused

    def take_summaries(self, *, is_last: bool = False) -> Iterator[JsonObject]:
        """Yield what was counted: the first call of an agent at once, then once a minute, and the
        rest at the end.
        """
        now = self.now()
        for agent, share in self._shares.items():
            if share.calls and (is_last or now >= share.next_summary):
                tools = dict(share.calls.most_common(MAX_TOOLS))
                yield {
                    "agent": agent,
                    "calls": share.calls.total(),
                    "refused": share.refused,
                    "tools": tools,
                }
                share.calls.clear()
                share.refused = 0
                share.next_summary = now + SUMMARY_SECONDS
