"""Recover stalled jobs and delete old ones with procrastinate, in a transaction of a replica.

Import this module only if there are queues: it imports procrastinate.
"""

from typing import Any

from procrastinate.connector import BaseAsyncConnector
from procrastinate.jobs import Status
from procrastinate.manager import JobManager
from psycopg.rows import dict_row

from onetool.state.postgres_database import Statements
from onetool.state.storage import MAX_ATTEMPTS
from onetool_child.json_types import JsonObject


class TransactionConnector(BaseAsyncConnector):
    """Executes the statements of procrastinate in a transaction. Its methods block."""

    def __init__(self, transaction: Statements) -> None:
        self._transaction = transaction

    async def execute_query_async(self, query: Any, **arguments: Any) -> None:
        with self._transaction.watch():
            self._transaction.connection.execute(query, arguments)

    async def execute_query_all_async(self, query: Any, **arguments: Any) -> list[JsonObject]:
        with (
            self._transaction.watch(),
            self._transaction.connection.cursor(row_factory=dict_row) as cursor,
        ):
            return cursor.execute(query, arguments).fetchall()


async def recover_stalled_jobs(transaction: Statements, lost_seconds: float) -> None:
    """Return the jobs of workers that ended to their queues, or give them up if they must not be
    repeated.

    Somebody could change in the database whether a job may be repeated: a worker looks into its
    sealed input too.
    """
    manager = JobManager(TransactionConnector(transaction))
    for job in await manager.get_stalled_jobs(seconds_since_heartbeat=lost_seconds):
        if job.task_kwargs.get("is_repeatable") is True and job.attempts < MAX_ATTEMPTS - 1:
            await manager.retry_job(job)
        else:
            await manager.finish_job(job, Status.FAILED, delete_job=False)


async def delete_old_jobs(transaction: Statements, keep_seconds: float) -> None:
    await JobManager(TransactionConnector(transaction)).delete_old_jobs(
        nb_hours=keep_seconds / 3600,  # type: ignore[arg-type]  # its statement accepts parts of hours
        include_failed=True,
        include_cancelled=True,
        include_aborted=True,
    )
