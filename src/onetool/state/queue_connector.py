"""The connections of a worker to the database of its queues. They wait for a database that is away.

Without this, procrastinate stops at the first lost connection. Import this module only in a worker:
it imports procrastinate.
"""

import asyncio
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any, Concatenate, ParamSpec, TypeVar

from procrastinate import PsycopgConnector
from procrastinate.exceptions import ConnectorException
from psycopg import AsyncConnection, OperationalError
from psycopg_pool import AsyncConnectionPool

from onetool.state.postgres_database import OPTIONS, SESSION
from onetool_child.json_types import JsonObject

RETRY_SECONDS = 0.5
POOL: JsonObject = {"min_size": 1, "max_size": 4, "timeout": 4.0, "reconnect_timeout": 1.0}
P = ParamSpec("P")
T = TypeVar("T")


def patient(
    execute: Callable[Concatenate[Any, P], Awaitable[T]],
) -> Callable[Concatenate[Any, P], Coroutine[Any, Any, T]]:
    """Repeat a statement until the database answers."""

    async def repeat(connector: "PatientConnector", /, *args: P.args, **arguments: P.kwargs) -> T:
        while True:
            try:
                return await execute(connector, *args, **arguments)
            except ConnectorException as error:
                if not isinstance(error.__cause__, OperationalError) or connector.may_give_up():
                    raise
                await asyncio.sleep(RETRY_SECONDS)

    return repeat


class PatientConnector(PsycopgConnector):
    """`may_give_up` says whether nobody needs the database any more."""

    def __init__(self, url: str, may_give_up: Callable[[], bool]) -> None:
        super().__init__(
            pool_factory=_make_pool, conninfo=url, kwargs=OPTIONS, configure=_configure, **POOL
        )
        self.may_give_up = may_give_up

    execute_query_async = patient(PsycopgConnector.execute_query_async)
    execute_query_one_async = patient(PsycopgConnector.execute_query_one_async)
    execute_query_all_async = patient(PsycopgConnector.execute_query_all_async)
    listen_notify = patient(PsycopgConnector.listen_notify)


def _make_pool(check: object, **options: Any) -> AsyncConnectionPool[Any]:  # noqa: ARG001
    """Return a pool that does not test each connection before its use: failed statements are
    repeated.
    """
    return AsyncConnectionPool(**options)


async def _configure(connection: AsyncConnection[Any]) -> None:
    await connection.set_autocommit(True)  # each statement is one round trip
    await connection.execute(SESSION)
