"""Counts of uses and sums, in SQLite or PostgreSQL: rate limits and budgets."""

import time
from pathlib import Path

from onetool.state.memory import Counters
from onetool.state.sqlite_database import SqliteDatabase, StateDatabase
from onetool.util.clock_watch import Clock

VERSION = 1
SCHEMA = """
CREATE TABLE rates (name TEXT NOT NULL, at REAL NOT NULL);
CREATE INDEX rates_name ON rates (name, at);
CREATE TABLE counters (name TEXT PRIMARY KEY, used REAL NOT NULL)
"""
FORGET = "DELETE FROM rates WHERE name = ? AND (at <= ? OR at > ?)"
USES = "SELECT count(*), min(at) FROM rates WHERE name = ?"
ADD = "INSERT INTO rates VALUES (?, ?)"
COUNT = "SELECT count(*) FROM rates WHERE name = ? AND at > ?"
# Names are chosen by clients, such as addresses of failed sign-ins. Limits are for an hour at most.
DELETE_OLD = "DELETE FROM rates WHERE at < CASE WHEN name LIKE 'accepted %' THEN ? ELSE ? END"
DELETE_SECONDS = 600.0
KEEP_SECONDS = 3600.0
KEEP_ACCEPTED_SECONDS = 30 * 86_400.0
RESERVE = """
INSERT INTO counters VALUES (?, ?)
ON CONFLICT (name) DO UPDATE SET used = counters.used + excluded.used WHERE counters.used < ?
RETURNING used
"""
SETTLE = """
UPDATE counters SET used = CASE WHEN used + :difference < 0 THEN 0 ELSE used + :difference END WHERE name = :name
"""
RESET = "DELETE FROM counters WHERE substr(name, 1, ?) = ?"


class CounterFile(SqliteDatabase):
    """Counters of processes that share a file. A power failure may lose the last ones."""

    def __init__(self, file: Path) -> None:
        super().__init__(file, SCHEMA, VERSION)


class CounterTables(Counters):
    """The counters in a database. If it cannot be used, every check raises StorageError."""

    def __init__(self, database: StateDatabase, clock: Clock | None = None) -> None:
        self._database = database
        self._clock = clock or database.now
        self._deleted_at = float("-inf")

    def take(self, name: str, limit: int, seconds: float) -> float:
        now = self._clock()
        self._delete_old(now)
        with self._database.changing("counter", name, is_announced=False) as transaction:
            transaction.execute(FORGET, (name, now - seconds, now + seconds))
            count, first = transaction.execute(USES, (name,)).fetchone()
            if count < limit:
                transaction.execute(ADD, (name, now))
                return 0.0
        return max(0.001, first + seconds - now) if count else seconds

    def count(self, name: str, seconds: float) -> int:
        return int(self._database.select(COUNT, name, self._clock() - seconds)[0][0])

    def reserve(self, name: str, amount: float, limit: float) -> tuple[bool, float]:
        """Add an amount to a sum that is below the limit. Return whether it was, and the sum."""
        with self._database.transaction() as transaction:
            rows = (
                transaction.execute(RESERVE, (name, float(amount), float(limit))).fetchall()
                if limit > 0
                else []
            )
            if rows:
                return True, float(rows[0][0])
            found = transaction.execute(
                "SELECT used FROM counters WHERE name = ?", (name,)
            ).fetchone()
        return False, float(found[0]) if found is not None else 0.0

    def settle(self, name: str, difference: float) -> None:
        """Correct a sum by the difference between what was used and what was reserved."""
        with self._database.transaction() as transaction:
            transaction.execute(SETTLE, {"difference": float(difference), "name": name})

    def reset(self, prefix: str, /) -> int:
        with self._database.transaction() as transaction:
            return transaction.execute(RESET, (len(prefix), prefix)).rowcount

    def _delete_old(self, now: float) -> None:
        if time.monotonic() - self._deleted_at > DELETE_SECONDS:
            self._deleted_at = time.monotonic()
            with self._database.transaction() as transaction:
                transaction.execute(DELETE_OLD, (now - KEEP_ACCEPTED_SECONDS, now - KEEP_SECONDS))
