"""Counts that replicas share: rate limits and budgets, one statement per check."""

import time

from onetool.state.postgres_database import Database

# The times of the last uses. The clock is that of the database.
TAKE = """
INSERT INTO rates AS known VALUES (:name, ARRAY[extract(epoch FROM clock_timestamp())])
ON CONFLICT (name) DO UPDATE SET
times = ARRAY(SELECT at FROM unnest(known.times) AS at WHERE at > excluded.times[1] - :seconds) || excluded.times
WHERE (SELECT count(*) FROM unnest(known.times) AS at WHERE at > excluded.times[1] - :seconds) < :limit
RETURNING 1
"""
WAIT = """
SELECT min(at) + ? - extract(epoch FROM clock_timestamp()) FROM rates, unnest(times) AS at
WHERE name = ? AND at > extract(epoch FROM clock_timestamp()) - ?
"""
COUNT = """
SELECT count(*) FROM rates, unnest(times) AS at
WHERE name = ? AND at > extract(epoch FROM clock_timestamp()) - ?
"""
# Names are chosen by clients, such as addresses of failed sign-ins. Limits are for an hour at most.
DELETE_OLD = """
DELETE FROM rates WHERE times[cardinality(times)] < extract(epoch FROM clock_timestamp())
- CASE WHEN starts_with(name, 'accepted ') THEN 2592000 ELSE 3600 END
"""
DELETE_SECONDS = 600.0
RESERVE = """
INSERT INTO counters AS known VALUES (:name, :amount)
ON CONFLICT (name) DO UPDATE SET used = known.used + :amount WHERE known.used < :limit
RETURNING used
"""
SETTLE = "UPDATE counters SET used = greatest(0, used + ?) WHERE name = ?"


class CounterRows:
    """Counters in PostgreSQL. If the database is away, every check raises StoreUnavailable."""

    def __init__(self, database: Database) -> None:
        self._database = database
        self._deleted_at = float("-inf")

    def take(self, name: str, limit: int, seconds: float) -> float:
        """Count one use of at most `limit` in `seconds`. Return 0, or the seconds until it is allowed."""
        values = {"name": name, "limit": limit, "seconds": float(seconds)}
        if time.monotonic() - self._deleted_at > DELETE_SECONDS:
            self._deleted_at = time.monotonic()
            self._database.execute(DELETE_OLD)
        with self._database.transaction() as transaction:
            if limit > 0 and transaction.execute(TAKE, values).fetchone() is not None:
                return 0.0
            row = transaction.execute(WAIT, (float(seconds), name, float(seconds))).fetchone()
        return max(0.001, float(row[0])) if row is not None and row[0] is not None else seconds

    def count(self, name: str, seconds: float) -> int:
        """Return how often it was used in the last `seconds`."""
        return int(self._database.select(COUNT, name, float(seconds))[0][0])

    def reserve(self, name: str, amount: float, limit: float) -> tuple[bool, float]:
        """Add an amount to a sum that is below the limit. Return whether it was, and the sum."""
        values = {"name": name, "amount": float(amount), "limit": float(limit)}
        with self._database.transaction() as transaction:
            row = transaction.execute(RESERVE, values).fetchone() if limit > 0 else None
            if row is not None:
                return True, float(row[0])
            found = transaction.execute("SELECT used FROM counters WHERE name = ?", (name,)).fetchone()
        return False, float(found[0]) if found is not None else 0.0

    def settle(self, name: str, difference: float) -> None:
        """Correct a sum by the difference between what was used and what was reserved."""
        self._database.execute(SETTLE, (float(difference), name))

    def reset(self, prefix: str) -> int:
        """Forget the sums whose names begin so, and return their number."""
        return self._database.execute("DELETE FROM counters WHERE starts_with(name, ?)", (prefix,))
