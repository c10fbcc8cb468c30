"""Children that are started on demand: callers never get one that is being stopped."""

import asyncio

import pytest

from onetool.processes.supervised import Supervised

pytestmark = pytest.mark.anyio


class Child:
    is_over = False


async def test_a_child_that_is_stopped_right_after_its_start_is_given_to_nobody() -> None:
    """A server that was only listed is stopped at once; a call that comes at that moment starts it
    again.
    """
    idle_seconds = 0.0
    stopped: list[Child] = []
    calls: list[asyncio.Task[Child]] = []

    async def start() -> Child:
        return Child()

    def stop(child: Child) -> None:
        nonlocal idle_seconds
        idle_seconds = 60.0  # of the next one, which is called
        stopped.append(child)
        calls.append(asyncio.ensure_future(supervised.get()))

    supervised = Supervised("s", start, stop, lambda _: idle_seconds)
    listed = await supervised.begin()
    assert stopped == [listed]
    assert await calls[0] is supervised.live
    assert supervised.live is not listed
