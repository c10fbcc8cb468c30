"""The change feed: one poll for all who watch, reports from other threads, and values that must
settle.
"""

import asyncio
import threading
from collections.abc import AsyncIterator

import anyio
import pytest

from onetool.state.changes import Changes

pytestmark = pytest.mark.anyio


@pytest.fixture
async def changes() -> AsyncIterator[Changes]:
    feed = Changes()
    feed.seconds = 0.001
    yield feed
    feed.close()


class Source:
    """A kind of state that is polled."""

    def __init__(self) -> None:
        self.values = [0]
        self.reads = 0
        self.read_again = asyncio.Event()

    async def read(self) -> int:
        self.reads += 1
        self.read_again.set()
        return self.values.pop(0) if len(self.values) > 1 else self.values[0]

    async def wait_for_reads(self, reads: int) -> None:
        last = self.reads + reads
        while self.reads < last:
            self.read_again.clear()
            await self.read_again.wait()


async def test_all_who_watch_share_one_poll_that_ends_with_the_last_of_them(
    changes: Changes,
) -> None:
    source = Source()
    changes.poll("files", source.read)
    woken = [0, 0]

    async def watch(number: int) -> None:
        async for _ in changes.watch("files"):
            woken[number] += 1

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(watch, 0)
        tasks.start_soon(watch, 1)
        await source.wait_for_reads(5)
        before = list(woken)
        await source.wait_for_reads(5)
        assert woken == before  # nothing has changed
        number = changes.number("files")
        source.values = [1]
        await source.wait_for_reads(3)
        assert changes.number("files") == number + 1
        assert woken == [count + 1 for count in before]
        tasks.cancel_scope.cancel()
    polling = changes._polling
    assert polling is not None
    await polling
    reads = source.reads
    await asyncio.sleep(0)
    assert source.reads == reads


async def test_a_report_from_another_thread_wakes_those_who_watch_its_kind(
    changes: Changes,
) -> None:
    changes.seconds = 3600
    watching = changes.watch("runs", "tokens")
    await anext(watching)
    changes.report("settings")
    waiting = asyncio.ensure_future(anext(watching))
    await asyncio.sleep(0)
    thread = threading.Thread(target=changes.report, args=("tokens",))
    thread.start()
    await waiting
    thread.join()
    assert [changes.number(kind) for kind in ("runs", "tokens", "settings")] == [0, 1, 1]
    await watching.aclose()  # type: ignore[attr-defined]


async def test_a_value_that_changes_at_each_read_has_not_settled(changes: Changes) -> None:
    source = Source()
    changes.poll("files", source.read, settles=True)
    watching = changes.watch("files")
    await anext(watching)
    await source.wait_for_reads(3)
    number = changes.number("files")
    source.values = [1, 2, 3, 4]
    await source.wait_for_reads(4)
    assert changes.number("files") == number
    await source.wait_for_reads(2)
    assert changes.number("files") == number + 1
    await watching.aclose()  # type: ignore[attr-defined]


async def test_an_error_is_left_to_those_who_watch(changes: Changes) -> None:
    async def fail() -> object:
        raise OSError("away")

    changes.poll("files", fail)
    watching = changes.watch("files")
    await anext(watching)
    await anext(watching)  # reported once
    assert changes.number("files") == 1
    await watching.aclose()  # type: ignore[attr-defined]
