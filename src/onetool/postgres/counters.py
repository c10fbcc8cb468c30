"""Counts that replicas share: rate limits and budgets, one statement per check."""

from typing import Final

from onetool.postgres.database import Database

# A bucket that drains: `used` falls by `limit` in `seconds`. The clock is that of the database.
TAKE: Final = """
INSERT INTO counters AS known VALUES (:name, :amount, extract(epoch FROM clock_timestamp()))
ON CONFLICT (name) DO UPDATE SET at = excluded.at,
used = greatest(0, known.used - (excluded.at - known.at) * :limit / :seconds) + :amount
WHERE greatest(0, known.used - (excluded.at - known.at) * :limit / :seconds) + :amount <= :limit
RETURNING used
"""
WAIT: Final = """
SELECT greatest(0.001, (used + ? - ?) * ? / ? - (extract(epoch FROM clock_timestamp()) - at)) FROM counters
WHERE name = ?
"""
RESERVE: Final = """
INSERT INTO counters AS known VALUES (:name, :amount, extract(epoch FROM clock_timestamp()))
ON CONFLICT (name) DO UPDATE SET used = known.used + :amount, at = excluded.at WHERE known.used + :amount <= :limit
RETURNING used
"""
SETTLE: Final = "UPDATE counters SET used = greatest(0, used + ?) WHERE name = ?"
FORGET: Final = "DELETE FROM counters WHERE at < extract(epoch FROM clock_timestamp()) - ?"


class CounterRows:
    """Counters in PostgreSQL. If the database is away, every check raises StoreUnavailable."""

    def __init__(self, database: Database) -> None:
        self._database = database

    def take(self, name: str, amount: float, limit: float, seconds: float) -> float:
        """Count an amount that is at most `limit` in `seconds`. Return 0, or the seconds until it is allowed."""
        values = {"name": name, "amount": float(amount), "limit": float(limit), "seconds": float(seconds)}
        if amount <= limit:
            with self._database.transaction() as transaction:
                if transaction.execute(TAKE, values).fetchone() is not None:
                    return 0.0
        found = self._database.select(WAIT, float(amount), float(limit), float(seconds), float(limit), name)
        return float(found[0][0]) if found else seconds

    def reserve(self, name: str, amount: float, limit: float) -> float | None:
        """Add an amount if the sum stays within the limit. Return the sum, or None if it would exceed the limit."""
        if amount > limit:
            return None
        values = {"name": name, "amount": float(amount), "limit": float(limit)}
        with self._database.transaction() as transaction:
            row = transaction.execute(RESERVE, values).fetchone()
        return None if row is None else float(row[0])

    def settle(self, name: str, difference: float) -> None:
        self._database.execute(SETTLE, (float(difference), name))

    def forget(self, seconds: float) -> int:
        """Delete counters that were not used for this time."""
        return self._database.execute(FORGET, (seconds,))
