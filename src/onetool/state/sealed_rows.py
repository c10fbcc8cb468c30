"""Sealed values in PostgreSQL, with the interface of `SealedDatabase`, and the stores of runs and sessions on it."""

import os
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, suppress
from typing import TYPE_CHECKING, Any, ClassVar

from onetool.errors import StorageError
from onetool.state.documents import StoreUnavailable
from onetool.state.keys import load_sealer, make_error
from onetool.state.postgres_database import Database, Statements, translate
from onetool.state.run_store import DEFAULT_QUOTA, RunOwners, RunQuota, RunTables
from onetool.state.schema import VERSION
from onetool.state.sealing import Sealer
from onetool.state.session_store import DEFAULT_TTL, SessionTables
from onetool.util.clock_watch import Clock

if TYPE_CHECKING:
    from psycopg import Connection


class SealedRows:
    """Tables with sealed values. `get_version` returns a number that changes when a replica may have written."""

    row_lock: ClassVar[str] = "FOR UPDATE"
    claim_lock: ClassVar[str] = "FOR UPDATE SKIP LOCKED"
    size_query: ClassVar[str] = (
        "SELECT (SELECT coalesce(sum(octet_length(sealed)), 0) FROM runs) "
        "+ (SELECT coalesce(sum(octet_length(sealed)), 0) FROM calls)"
    )

    def __init__(
        self, database: Database, key: str, get_version: Callable[[], int], *, is_always_durable: bool = True
    ) -> None:
        self._database = database
        self._key = key
        self._get_version = get_version
        self._is_always_durable = is_always_durable
        self.place = database.place
        self._sealer: Sealer | None = None
        self._loading = threading.Lock()

    @property
    def sealer(self) -> Sealer:
        with self._loading:
            if self._sealer is None:
                self._sealer = load_sealer(self._database, self._key)
            return self._sealer

    @contextmanager
    def transaction(self, *, is_durable: bool = False) -> Iterator[Statements]:
        """Write in one transaction. Decisions of people, which are durable, are announced to all replicas."""
        assert self.sealer is not None  # loaded before the transaction, which would wait for it
        with self._database.transaction(is_durable=is_durable or self._is_always_durable) as transaction:
            yield transaction
            if is_durable:
                transaction.notify(self._key)

    def select(self, query: str, *values: object) -> list[tuple[Any, ...]]:
        assert self.sealer is not None
        return self._database.select(query, *values)

    def version(self) -> int:
        return self._get_version()

    def exists(self) -> bool:
        return True

    def vacuum(self) -> None:
        """Do nothing: PostgreSQL vacuums by itself."""

    def close(self) -> None:
        """Do nothing: the database is closed by its owner."""

    def storage_errors(self) -> AbstractContextManager[None]:
        return self._database.errors()

    def sealing_error(self, message: str) -> StorageError:
        return make_error(message)


class RunRows(RunTables):
    """The runs of all replicas. An owner is alive as long as its lease is renewed."""

    has_leases = True

    def __init__(
        self,
        database: Database,
        owners: RunOwners,
        get_version: Callable[[], int],
        *,
        quota: RunQuota = DEFAULT_QUOTA,
        clock: Clock = time.time,
    ) -> None:
        # As in files: what a person approved survives a power failure, the rest survives the end of the process.
        rows = SealedRows(database, "runs", get_version, is_always_durable=False)
        super().__init__(rows, owners, quota=quota, clock=clock)


class SessionRows(SessionTables):
    """The sessions of all replicas."""

    def __init__(self, database: Database, ttl: float = DEFAULT_TTL, clock: Clock = time.time) -> None:
        super().__init__(SealedRows(database, "sessions", lambda: 0), ttl, clock)


class Leases:
    """Replicas that are alive: each renews its row every few seconds. The clock is that of the database."""

    SECONDS: ClassVar[float] = 15.0

    def __init__(self, database: Database, own_id: str) -> None:
        self._database = database
        self.own_id = own_id
        self._is_held = False

    def hold(self) -> None:
        if not self._is_held:
            self.renew()

    def renew(self, connection: "Connection[Any] | None" = None) -> None:
        """Prove that this process is alive."""
        statement = """
        INSERT INTO servers VALUES (?, clock_timestamp(), ?, ?)
        ON CONFLICT (id) DO UPDATE SET seen = excluded.seen
        """
        row = (self.own_id, f"{socket.gethostname()}, process {os.getpid()}", VERSION)
        if connection is None:
            self._database.execute(statement, row)
        else:
            connection.execute(translate(statement), row)
        self._is_held = True

    def is_alive(self, owner: str) -> bool:
        query = "SELECT seen > clock_timestamp() - make_interval(secs => ?) FROM servers WHERE id = ?"
        found = self._database.select(query, self.SECONDS, owner)
        return bool(found and found[0][0])

    def delete_stale(self) -> None:
        self._database.execute("DELETE FROM servers WHERE seen < clock_timestamp() - interval '1 day'")

    def close(self) -> None:
        """Give up the runs of this process. If the database is away, its lease expires."""
        if self._is_held:
            self._is_held = False
            with suppress(StoreUnavailable):
                self._database.execute("DELETE FROM servers WHERE id = ?", (self.own_id,))
