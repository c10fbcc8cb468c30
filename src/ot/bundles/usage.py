"""How often each tool was called and when last, kept apart from the tools' files and exact over all processes.

A call is counted in memory and written down by another thread, about once a second: what is added up in one
transaction is there whole or not at all. A file that cannot be written says so in `problem` and never fails a call.
"""

import sqlite3
import time
from collections import deque
from collections.abc import Iterable
from contextlib import closing
from datetime import datetime, timedelta
from pathlib import Path
from threading import Lock
from typing import Final, NamedTuple

from ot.bundles.index import EPOCH, microseconds, opened
from ot.bundles.model import timestamp
from ot.newer import Newer, refuse_newer
from ot.stats.background import Background, alone, put_aside

VERSION: Final = 1
SCHEMA: Final = f"""
pragma journal_mode = wal;
begin;
create table usage (tool text primary key, calls integer not null, last integer not null) without rowid;
pragma user_version = {VERSION};
commit;
"""
COUNT: Final = """
insert into usage values (?, ?, ?) on conflict (tool)
do update set calls = calls + excluded.calls, last = max(last, excluded.last)
"""
_DAMAGED: Final = {sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB}


Calls = tuple[str, int, int]  # of which tool, how many, and when the last one was


class Usage(NamedTuple):
    calls: int = 0
    last: str | None = None


class Counters:
    def __init__(self, file: Path) -> None:
        self._file = file
        self._waiting: deque[tuple[str, int, int]] = deque()
        self._forgotten: deque[str] = deque()
        self._background = Background("onetool-usage", self._write_waiting)
        self._reader: tuple[sqlite3.Connection, int] | None = None
        self._reading = Lock()
        self._problems: dict[str, str] = {}

    @property
    def problems(self) -> list[str]:
        return list(self._problems.values())

    def count(self, tool_id: str, when: datetime) -> None:
        self._waiting.append((tool_id, 1, microseconds(when)))
        self._background.wake()

    def forget(self, tool_id: str) -> None:
        self._forgotten.append(tool_id)
        self._background.wake()

    def flush(self) -> None:
        self._background.flush()

    def close(self) -> None:
        self._background.close()
        with self._reading:
            self._let_go()

    def of(self, tool_ids: Iterable[str]) -> dict[str, Usage]:
        """What has been written down so far; a tool that was never called is missing."""
        with self._reading:
            try:
                database = self._opened_for_reading()
                return {} if database is None else _usage(database, tool_ids)
            except (OSError, sqlite3.Error, Newer) as error:
                self._let_go()
                self._problems["reading"] = f"calls of stored tools cannot be read from {self._file}: {error}"
                return {}

    def _opened_for_reading(self) -> sqlite3.Connection | None:
        """The same as before, unless another process has put a damaged file aside and begun a new one."""
        try:
            number = self._file.stat().st_ino
        except FileNotFoundError:
            return None
        if self._reader is None or self._reader[1] != number:
            self._let_go()
            self._reader = _opened(self._file), number
        return self._reader[0]

    def _let_go(self) -> None:
        if self._reader is not None:
            self._reader[0].close()
        self._reader = None

    # --- in the thread -----------------------------------------------------------------------------------------

    def _write_waiting(self) -> bool:
        calls = _added_up(self._waiting.popleft() for _ in range(len(self._waiting)))
        gone = [(self._forgotten.popleft(),) for _ in range(len(self._forgotten))]
        if not calls and not gone:
            return True
        try:
            self._write(calls, gone)
        except (OSError, sqlite3.Error, Newer) as error:
            self._problems["writing"] = f"calls of stored tools cannot be written to {self._file}: {error}"
            self._waiting.extendleft(calls)
            self._forgotten.extend(tool_id for (tool_id,) in gone)
            return False
        self._problems.pop("writing", None)
        return True

    def _write(self, calls: list[Calls], gone: list[tuple[str]]) -> None:
        with alone(self._file):
            try:
                self._add(calls, gone)
            except sqlite3.DatabaseError as error:
                if getattr(error, "sqlite_errorcode", 0) & 0xFF not in _DAMAGED:
                    raise
                kept = put_aside(self._file, time.time())
                self._problems["damage"] = f"the counts in {self._file} were damaged and begun anew; kept as {kept}"
                self._add(calls, gone)

    def _add(self, calls: list[Calls], gone: list[tuple[str]]) -> None:
        self._file.touch(mode=0o600)
        with closing(_opened(self._file)) as database:
            if _version(database) == 0:
                database.executescript(SCHEMA)
            database.execute("begin immediate")
            database.executemany(COUNT, calls)
            database.executemany("delete from usage where tool = ?", gone)
            database.execute("commit")


def _opened(file: Path) -> sqlite3.Connection:
    return opened(f"{file.absolute().as_uri()}?mode=rw")


def _version(database: sqlite3.Connection) -> int:
    """0 where there is no table yet; one that says nothing is the first."""
    version = int(database.execute("pragma user_version").fetchone()[0])
    refuse_newer(version, VERSION, "it")
    return version or int(database.execute("select count(*) from sqlite_master where name = 'usage'").fetchone()[0])


def _usage(database: sqlite3.Connection, tool_ids: Iterable[str]) -> dict[str, Usage]:
    if _version(database) == 0:  # it is just being made
        return {}
    query = "select calls, last from usage where tool = ?"
    rows = ((tool_id, database.execute(query, (tool_id,)).fetchone()) for tool_id in tool_ids)
    return {tool_id: Usage(row[0], timestamp(EPOCH + timedelta(microseconds=row[1]))) for tool_id, row in rows if row}


def _added_up(calls: Iterable[Calls]) -> list[Calls]:
    found: dict[str, Calls] = {}
    for tool_id, number, last in calls:
        _, before, latest = found.get(tool_id, (tool_id, 0, 0))
        found[tool_id] = tool_id, before + number, max(latest, last)
    return list(found.values())
