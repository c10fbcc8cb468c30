"""Adapts procrastinate to workers: its connections survive a restart of the database, and jobs can be returned.

Import this module only in a worker: it imports procrastinate.
"""

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Mapping
from typing import Any, Final, TypeVar

from procrastinate import BaseRetryStrategy, PsycopgConnector, RetryDecision
from procrastinate.exceptions import ConnectorException
from procrastinate.jobs import Job
from psycopg import AsyncConnection, OperationalError

RETRY_SECONDS: Final = 0.5
T = TypeVar("T")


class ReturnedJob(Exception):
    """The job was returned to its queue."""


class PatientConnector(PsycopgConnector):
    """A connector that waits for a database that is away. Otherwise procrastinate stops, after its current jobs."""

    def __init__(self, is_stopping: Callable[[], bool], **options: Any) -> None:
        super().__init__(**options)
        self._is_stopping = is_stopping

    async def execute_query_async(self, query: Any, **arguments: Any) -> None:
        await self._repeat(lambda: super(PatientConnector, self).execute_query_async(query, **arguments))

    async def execute_query_one_async(self, query: Any, **arguments: Any) -> dict[str, Any]:
        return await self._repeat(lambda: super(PatientConnector, self).execute_query_one_async(query, **arguments))

    async def execute_query_all_async(self, query: Any, **arguments: Any) -> list[dict[str, Any]]:
        return await self._repeat(lambda: super(PatientConnector, self).execute_query_all_async(query, **arguments))

    async def listen_notify(self, on_notification: Any, channels: Iterable[str]) -> None:
        channels = list(channels)
        await self._repeat(lambda: super(PatientConnector, self).listen_notify(on_notification, channels))

    async def _repeat(self, execute: Callable[[], Awaitable[T]]) -> T:
        while True:
            try:
                return await execute()
            except ConnectorException as error:
                if not isinstance(error.__cause__, OperationalError) or self._is_stopping():
                    raise
                await asyncio.sleep(RETRY_SECONDS)


class ReturnStrategy(BaseRetryStrategy):
    """Executes again only jobs that were returned."""

    def get_retry_decision(self, *, exception: BaseException, job: Job) -> RetryDecision | None:
        del job
        return RetryDecision(retry_in={"seconds": 0}) if isinstance(exception, ReturnedJob) else None


def make_connector(
    url: str, session: str, options: Mapping[str, Any], is_stopping: Callable[[], bool]
) -> PatientConnector:
    async def configure(connection: AsyncConnection[Any]) -> None:
        await connection.execute(session.encode())
        await connection.commit()

    return PatientConnector(is_stopping, conninfo=url, configure=configure, **options)


def make_retry_strategy() -> ReturnStrategy:
    return ReturnStrategy()
