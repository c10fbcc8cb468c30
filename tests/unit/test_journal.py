"""A run whose process is killed at any step of its journal makes each call once, and only with
approval.
"""

import json
import os
import random
from collections import Counter
from collections.abc import Iterator
from contextlib import closing
from itertools import chain, product
from pathlib import Path

import pytest
from tests.cells_support import NIGHTLY
from tests.journal_support import (
    OPEN,
    REJECTED,
    FakeCall,
    MortalStore,
    Process,
    Program,
    World,
    make_program,
)

from onetool.runs import runs
from onetool.state.run_records import CallState, RunState
from onetool.state.run_rows import RunQuota
from onetool.state.run_store import RunStore

PROGRAMS = 1000 if NIGHTLY else 5


@pytest.fixture
def store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[RunStore]:
    monkeypatch.setattr(runs, "RESULT_POLL_SECONDS", 0.002)
    with closing(RunStore(tmp_path, quota=RunQuota(total=10**6))) as opened:
        yield opened


@pytest.mark.sampled(3)
@pytest.mark.slow
@pytest.mark.parametrize("seed", range(PROGRAMS))
def test_a_killed_run_loses_and_doubles_nothing(store: RunStore, seed: int) -> None:
    program = make_program(random.Random(seed))
    for dies_at in range(1000):
        killed = [
            kill_and_resume(store, program, seed, dies_at, is_written=each)
            for each in (False, True)
        ]
        if not any(killed):
            return
    pytest.fail("the program never ended")


def kill_and_resume(
    store: RunStore, program: Program, seed: int, dies_at: int, *, is_written: bool
) -> bool:
    """Kill the process at a write, resume the run, and check what happened.

    Return whether it was killed.
    """
    chance, run_id, world = random.Random(seed), f"r_{os.urandom(16).hex()}", World()
    state = Process(world, MortalStore(store, dies_at, is_written=is_written), chance).start(
        run_id, program
    )
    is_killed = state is None
    while state is None and store.get_run(run_id) is not None:
        again = chance.choice((None, chance.randrange(12)))
        state = Process(
            world, MortalStore(store, again, is_written=chance.random() < 0.5), chance
        ).resume(run_id)
    check_effects(
        store,
        run_id,
        program,
        world,
        f"seed {seed}, killed at write {dies_at}, written: {is_written}",
    )
    assert state is RunState.DONE or (is_killed and state is None)
    return is_killed


@pytest.mark.slow
def test_a_killed_run_that_asks_nobody_leaves_a_record_of_what_happened(store: RunStore) -> None:
    chance, states = random.Random(1), Counter[RunState | None]()
    program = [
        [FakeCall("write", 1), FakeCall("read", 1)],
        [FakeCall("write", 2), FakeCall("write", 3)],
    ]
    for dies_at, is_written in product(range(9), (False, True)):
        run_id, world = f"r_{os.urandom(16).hex()}", World()
        state = Process(
            world, MortalStore(store, dies_at, is_written=is_written), chance, OPEN
        ).start(run_id, program)
        if state is None and store.get_run(run_id) is not None:
            state = Process(world, MortalStore(store), chance, OPEN).resume(run_id)
        states[state] += 1
        recorded = {(call.tool, call.arguments): call.state for call in store.list_calls(run_id)}
        assert set(world.happened) <= set(recorded)
        assert set(world.happened.values()) <= {1}
        assert {each for each, known in recorded.items() if known is CallState.DONE} <= set(
            world.happened
        )
        assert state is not RunState.DONE or len(world.happened) == 3
    assert set(states) == {None, RunState.INTERRUPTED, RunState.DONE}


def check_effects(store: RunStore, run_id: str, program: Program, world: World, where: str) -> None:
    calls = store.list_calls(run_id)
    by_grants = [(call.tool, call.arguments) for call in calls if call.by.startswith("grant ")]
    assert len(by_grants) <= world.granted, where
    assert set(world.happened) <= {*world.approved, *by_grants}, f"unapproved: {where}"
    values = Counter[tuple[str, int]]()
    for (tool, arguments), count in world.happened.items():
        values[tool.removeprefix("fake."), json.loads(arguments)["value"]] += count
    if store.get_run(run_id) is None:
        assert not values, f"not recorded: {where}"
        return
    for call in chain.from_iterable(program):
        count = values[call.tool, call.value]
        if call.tool == "write":
            assert count == (call.value != REJECTED), f"{count} times: {where}"
        elif call.tool == "put":
            assert count >= (call.value != REJECTED), f"lost: {where}"
