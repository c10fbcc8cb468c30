"""The statements of procrastinate that both sides of a queue use, on connections of `Database`."""

from collections.abc import Iterator
from contextlib import contextmanager, suppress
from datetime import UTC, datetime
from typing import Any, Final

from onetool.errors import ToolError
from onetool.state.postgres_database import INSTALL, Statements

TASK: Final = "onetool.run_job"


def defer(transaction: Statements, queue: str, job: str) -> int:
    """Add a job to a queue. It is visible to workers when the transaction is committed. Return its number."""
    procrastinate = import_procrastinate()
    from procrastinate.jobs import Job

    deferred = Job(queue=queue, lock=None, queueing_lock=None, task_name=TASK, task_kwargs={"job": job})
    with _errors(transaction):
        return int(_get_manager(procrastinate).defer_job(deferred, transaction.connection).id)


def abort(transaction: Statements, number: int) -> None:
    """Cancel a job that waits, or request that its worker aborts it."""
    procrastinate = import_procrastinate()
    with _errors(transaction):
        _get_manager(procrastinate).cancel_job_by_id(number, abort=True, connection=transaction.connection)


def retry(transaction: Statements, number: int) -> None:
    """Return a job to its queue. Does nothing if it is not being executed, or its caller has aborted it."""
    values = {"retry_at": datetime.now(UTC), "new_priority": None, "new_queue_name": None, "new_lock": None}
    _execute(transaction, "retry_job", job_id=number, **values)


def fail(transaction: Statements, number: int) -> None:
    """Record that a job will not be executed again. Does nothing if it has ended."""
    _execute(transaction, "finish_job", job_id=number, status="failed", delete_job=False)


def import_procrastinate() -> Any:
    try:
        import procrastinate
    except ImportError:
        message = "queues need the library procrastinate, which is not installed"
        raise ToolError(message, hint=f"run `{INSTALL}`") from None
    return procrastinate


def _get_manager(procrastinate: Any) -> Any:
    return procrastinate.manager.JobManager(procrastinate.SyncPsycopgConnector())


def _execute(transaction: Statements, query: str, **values: Any) -> None:
    import_procrastinate()
    from procrastinate.sql import queries
    from psycopg.errors import RaiseException

    connection = transaction.connection
    with transaction.watch(), suppress(RaiseException), connection.transaction():  # a savepoint
        connection.execute(queries[query].encode(), values)


@contextmanager
def _errors(transaction: Statements) -> Iterator[None]:
    """Raise errors of the database as they are, and let a statement be ended if the database does not answer."""
    from procrastinate.exceptions import ConnectorException

    try:
        with transaction.watch():
            yield
    except ConnectorException as error:
        raise (error.__cause__ or error) from None
