"""The delay of a neighbor is measured up to three times: see `conftest.py`."""

import os
from concurrent.futures import Future

import pytest
from tests.support import MAX_DELAY_SECONDS, NeighborDelayed, watch_neighbor

BUSY_SECONDS = 4 * MAX_DELAY_SECONDS


def block(seconds: float) -> bool:
    """Use processor time, as a server does that nobody else can use."""
    before = sum(os.times()[:2])
    while sum(os.times()[:2]) - before < seconds:
        pass
    return True


def test_a_blocked_neighbor_is_noticed() -> None:
    done: Future[str] = Future()
    done.set_result("answer")
    assert watch_neighbor(os.getpid(), done, lambda: True) == "answer"
    with pytest.raises(NeighborDelayed):
        watch_neighbor(os.getpid(), done, lambda: block(BUSY_SECONDS))


attempts: list[int] = []


def test_a_delay_is_measured_again() -> None:
    attempts.append(len(attempts))
    if len(attempts) < 3:
        raise NeighborDelayed([1.0])
    assert attempts == [0, 1, 2]
