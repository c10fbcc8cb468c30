"""Replicas that are alive: the owners of runs in a database."""

import os
import socket
from contextlib import suppress
from typing import TYPE_CHECKING, Any, ClassVar

from onetool.state.documents import StoreUnavailable
from onetool.state.owners import Owners
from onetool.state.postgres_database import Database, translate
from onetool.state.schema import VERSION

if TYPE_CHECKING:
    from psycopg import Connection


class Leases(Owners):
    """Replicas that are alive: each renews its row every few seconds.

    The clock is that of the database.
    """

    SECONDS: ClassVar[float] = 15.0
    may_be_lost = True

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
        query = (
            "SELECT seen > clock_timestamp() - make_interval(secs => ?) FROM servers WHERE id = ?"
        )
        found = self._database.select(query, self.SECONDS, owner)
        return bool(found and found[0][0])

    def delete_stale(self) -> None:
        self._database.execute(
            "DELETE FROM servers WHERE seen < clock_timestamp() - interval '1 day'"
        )

    def close(self) -> None:
        """Give up the runs of this process. If the database is away, its lease expires."""
        if self._is_held:
            self._is_held = False
            with suppress(StoreUnavailable):
                self._database.execute("DELETE FROM servers WHERE id = ?", (self.own_id,))
