"""Sessions: JSON values that code keeps between runs, by handle, in SQLite or PostgreSQL.

Each change is one transaction, so that concurrent runs lose nothing. Values are sealed together
with their labels.
"""

import json
import re
import secrets
import time
from collections.abc import Collection, Iterable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

from onetool.errors import ArgumentError, BudgetExceeded, PermissionDenied, StorageError, ToolError
from onetool.state.sqlite_database import SealedDatabase, StateDatabase, Transaction
from onetool.util.clock_watch import Clock, ClockWatch, read_steady_clock

KIND = "sessions"
VERSION = 1
TTL_SECONDS = 86_400.0  # since the last use
TOUCH_SHARE = 24  # reads update the time of the last use if this share of the TTL has passed
MAX_SESSIONS = 200  # of an agent and a token
MAX_KEYS = 1_000
MAX_KEY_CHARS = 200
MAX_BYTES = 1 << 20  # of the keys and values of one session
MAX_QUOTED_CHARS = 100
HANDLE = re.compile("s_[0-9a-f]{32}")
SCHEMA = """
CREATE TABLE sessions (handle TEXT PRIMARY KEY, agent TEXT, token TEXT, used REAL) WITHOUT ROWID;
CREATE INDEX sessions_used ON sessions (used);
CREATE TABLE session_values (
    id INTEGER PRIMARY KEY, handle TEXT, key TEXT, sealed BLOB, size INTEGER, UNIQUE (handle, key)
)
"""
OWNER = "SELECT agent, token, used FROM sessions WHERE handle = ?"
VALUE = "SELECT sealed FROM session_values WHERE handle = ? AND key = ?"
SIZE = "SELECT count(*), coalesce(sum(size), 0) FROM session_values WHERE handle = ?"
COUNT = "SELECT count(*) FROM sessions WHERE agent = ? AND token = ?"
TOUCH = "UPDATE sessions SET used = ? WHERE handle = ?"
PUT_VALUE = """
INSERT INTO session_values (handle, key, sealed, size) VALUES (?, ?, ?, ?)
ON CONFLICT (handle, key) DO UPDATE SET sealed = excluded.sealed, size = excluded.size
"""
DELETE_VALUE = "DELETE FROM session_values WHERE handle = ? AND key = ?"
DELETE_EXPIRED = (
    "DELETE FROM session_values WHERE handle IN (SELECT handle FROM sessions WHERE used < :before)",
    "DELETE FROM sessions WHERE used < :before",
)
DELETE_EMPTY = """
DELETE FROM sessions WHERE agent = ? AND token = ? AND handle NOT IN (SELECT handle FROM session_values)
"""


class SessionValue(NamedTuple):
    """A value as JSON, with the labels of the client session that stored it."""

    text: str
    labels: tuple[str, ...] = ()


class SessionTables:
    """The sessions in a database. Nothing is opened before it is needed."""

    def __init__(self, database: StateDatabase, clock_watch: ClockWatch) -> None:
        self._database = database
        self._clock = clock_watch.clock
        self._clock_watch = clock_watch

    def create(self, agent: str = "default", token_id: str = "") -> str:
        """Create an empty session and return its handle.

        Expired sessions are deleted, unless the clock has jumped.
        """
        handle = f"s_{secrets.token_hex(16)}"
        owner = (agent, token_id)
        with self._database.transaction(kind=KIND) as database:
            now = self._clock()
            for statement in DELETE_EXPIRED if self._clock_watch.is_reliable() else ():
                database.execute(statement, {"before": now - TTL_SECONDS})
            if database.execute(COUNT, owner).fetchone()[0] >= MAX_SESSIONS:
                database.execute(DELETE_EMPTY, owner)
                if database.execute(COUNT, owner).fetchone()[0] >= MAX_SESSIONS:
                    hint = (
                        "use an existing one, or clear() one: empty sessions make room for new ones"
                    )
                    raise BudgetExceeded(
                        f"agent {agent} has {MAX_SESSIONS} sessions, which is the limit", hint=hint
                    )
            database.execute(
                "INSERT INTO sessions VALUES (?, ?, ?, ?)", (handle, agent, token_id, now)
            )
        return handle

    def list_keys(self, handle: str, agent: str = "default", token_id: str = "") -> list[str]:
        """Return the keys in the order in which they were added."""
        self._use(handle, agent, token_id)
        rows = self._database.select(
            "SELECT key FROM session_values WHERE handle = ? ORDER BY id", handle
        )
        return [key for (key,) in rows]

    def get(
        self, handle: str, keys: Iterable[str], agent: str = "default", token_id: str = ""
    ) -> dict[str, SessionValue]:
        """Return the values of those keys that exist."""
        self._use(handle, agent, token_id)
        rows = ((key, self._database.select(VALUE, handle, key)) for key in _filter_keys(keys))
        return {key: self._open(handle, key, found[0][0]) for key, found in rows if found}

    def update(
        self,
        handle: str,
        values: Mapping[str, SessionValue],
        agent: str = "default",
        token_id: str = "",
        *,
        removed: Collection[str] = (),
        replaces: bool = True,
    ) -> dict[str, SessionValue]:
        """Store values and remove keys, in one transaction. Return the values that were removed.

        Without `replaces`, existing values are kept and returned too.
        """
        for key in values:
            _check_key(key)
        with self._database.transaction(kind=KIND) as database:
            query = f"{OWNER} {self._database.row_lock}"
            self._check_owner(
                handle, database.execute(query, (handle,)).fetchall(), agent, token_id
            )
            wanted = _filter_keys(removed if replaces else [*removed, *values])
            rows = ((key, database.execute(VALUE, (handle, key)).fetchone()) for key in wanted)
            found = {key: self._open(handle, key, row[0]) for key, row in rows if row is not None}
            kept = set() if replaces else found.keys() - set(removed)
            database.executemany(DELETE_VALUE, [(handle, key) for key in found.keys() - kept])
            new = ((key, value) for key, value in values.items() if key not in kept)
            database.executemany(
                PUT_VALUE, [(handle, key, *self._seal(handle, key, value)) for key, value in new]
            )
            _check_quota(database, handle)
            database.execute(TOUCH, (self._clock(), handle))
        return found

    def _use(self, handle: str, agent: str, token_id: str) -> None:
        """Check that the session exists and belongs to the caller, and postpone its expiry."""
        used = self._check_owner(handle, self._database.select(OWNER, handle), agent, token_id)
        if self._clock() - used > TTL_SECONDS / TOUCH_SHARE:
            # On a full or read-only disk, values can be read until they expire.
            with suppress(StorageError), self._database.transaction(kind=KIND) as database:
                database.execute(TOUCH, (self._clock(), handle))

    def _check_owner(
        self, handle: str, rows: list[tuple[str, str, float]], agent: str, token_id: str
    ) -> float:
        """Return the time of the last use.

        Without a token, an agent uses the sessions of all its tokens.
        """
        if HANDLE.fullmatch(handle) is None or not rows or self._clock() - rows[0][2] > TTL_SECONDS:
            hint = 'create one with ot.session() and open it with ot.session("s_...")'
            quoted = repr(handle[:MAX_QUOTED_CHARS])
            raise ToolError(
                f"the session {quoted} does not exist or has expired", hint=hint, type="not_found"
            )
        if rows[0][0] != agent or token_id not in {"", rows[0][1]}:
            raise PermissionDenied(f"the session {handle} belongs to another agent or token")
        return rows[0][2]

    def _seal(self, handle: str, key: str, value: SessionValue) -> tuple[bytes, int]:
        content = json.dumps([value.labels, value.text]).encode("ascii")
        return self._database.load_sealer(KIND).seal(content, _name(handle, key)), len(key) + len(
            value.text
        )

    def _open(self, handle: str, key: str, sealed: bytes) -> SessionValue:
        labels, text = json.loads(self._database.load_sealer(KIND).open(sealed, _name(handle, key)))
        return SessionValue(text, tuple(labels))


class SessionStore(SessionTables):
    """The sessions of a data directory, in SQLite."""

    def __init__(
        self, directory: Path, clock: Clock = time.time, steady: Clock = read_steady_clock
    ) -> None:
        self.database = SealedDatabase(directory / "runs" / "sessions.db", SCHEMA, VERSION)
        super().__init__(self.database, ClockWatch(clock, steady))

    def close(self) -> None:
        self.database.close()


def _name(handle: str, key: str) -> bytes:
    return f"session {handle}: {key}".encode()


def _filter_keys(keys: Iterable[str]) -> list[str]:
    """Return each key that can exist once."""
    return [key for key in dict.fromkeys(keys) if key.isprintable()]


def _check_key(key: str) -> None:
    if not 0 < len(key) <= MAX_KEY_CHARS or not key.isprintable():
        raise ArgumentError(
            f"invalid key {key[:MAX_QUOTED_CHARS]!r}: expected 1 to {MAX_KEY_CHARS} printable"
            " characters"
        )


def _check_quota(database: Transaction, handle: str) -> None:
    count, size = database.execute(SIZE, (handle,)).fetchone()
    if count > MAX_KEYS:
        raise BudgetExceeded(f"the session would have {count} keys, the limit is {MAX_KEYS}")
    if size > MAX_BYTES:
        raise BudgetExceeded(
            f"the session would have {size} bytes, the limit is {MAX_BYTES}",
            hint="keep large data as a result handle: ot.load(handle) reads it",
        )
