"""Background tasks. asyncio keeps only weak references to tasks, so they are held here."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any, TypeVar

T = TypeVar("T")


class BackgroundTasks:
    """A set of running tasks. Without `on_error`, asyncio logs what a task raises."""

    def __init__(self, on_error: Callable[[BaseException], None] | None = None) -> None:
        self._tasks: set[asyncio.Future[object]] = set()
        self._on_error = on_error

    def start(self, work: Awaitable[T]) -> asyncio.Future[T]:
        task = asyncio.ensure_future(work)
        self._tasks.add(task)  # type: ignore[arg-type]  # futures are invariant, and results are not set here
        task.add_done_callback(self._end)
        return task

    def cancel(self) -> None:
        for task in self._tasks:
            task.cancel()

    def __len__(self) -> int:
        return len(self._tasks)

    async def wait(self) -> None:
        """Wait until all tasks have ended, with or without errors."""
        if self._tasks:
            await asyncio.wait(self._tasks)

    def _end(self, task: asyncio.Future[T]) -> None:
        self._tasks.discard(task)
        if (
            self._on_error is not None
            and not task.cancelled()
            and (error := task.exception()) is not None
        ):
            self._on_error(error)


def retrieve_error(task: asyncio.Future[Any]) -> None:
    """Retrieve the error of a task, which asyncio logs otherwise: those who wait for it, if any,
    get it.
    """
    if not task.cancelled():
        task.exception()
