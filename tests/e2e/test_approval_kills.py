"""Random programs whose server is killed at a random moment: nothing is unapproved, doubled or
lost.
"""

import os
import random
import signal
import time
from collections import Counter
from collections.abc import Callable
from contextlib import AbstractContextManager, closing
from pathlib import Path

import pytest
from tests.approvals_support import Notes, Owner, make_notes
from tests.cells_support import NIGHTLY
from tests.daemon_support import open_daemon_home
from tests.support import (
    ISOLATION,
    TIMEOUT_SECONDS,
    Connection,
    ProcessWatch,
    connect,
    eventually,
    list_descendants,
)

from onetool.state.run_records import ENDED, RunRecord, RunState
from onetool.state.run_store import RunStore

PROGRAMS = (
    100 if NIGHTLY else 8 if ISOLATION == "auto" else 5
)  # a server with WebAssembly sandboxes takes longer
DAEMON_PROGRAMS = 100 if NIGHTLY else 5
MAX_DELAY_SECONDS = 0.1  # between the last answer and the kill


def make_code(chance: random.Random, name: str) -> tuple[str, list[str]]:
    """Return code that makes parallel and sequential calls, and the texts that it writes if nothing
    is rejected.
    """
    lines, texts = ["notes.count()"], list[str]()
    for group in range(chance.randint(1, 3)):
        calls = []
        for number in range(chance.choice((1, 1, 2, 3))):
            ending = "no" if chance.random() < 0.1 else "yes"
            text = f"{name} {group} {number} {ending}"
            calls.append(f"lambda: notes.{chance.choice(('add', 'add', 'put'))}(text={text!r})")
            texts.append(text)
        lines += [
            "try:",
            f"    ot.parallel([{', '.join(calls)}])",
            "except CallRejected:",
            "    pass",
        ]
    return "\n".join([*lines, "'done'"]), texts


@pytest.mark.slow
def test_killed_servers_lose_and_double_nothing(tmp_path: Path) -> None:
    check_killed_servers(make_notes(tmp_path), PROGRAMS, connect, lambda client: client.server)


@pytest.mark.nightly
@pytest.mark.slow
def test_killed_daemons_lose_and_double_nothing() -> None:
    """Its client, which survives, has started the next daemon before the next client connects."""
    with open_daemon_home() as lab:
        notes = make_notes(lab.home)
        check_killed_servers(
            notes, DAEMON_PROGRAMS, lambda _home: lab.connect(), lambda _client: lab.daemon
        )


def check_killed_servers(
    notes: Notes,
    programs: int,
    connect: Callable[[Path], AbstractContextManager[Connection]],
    find_server: Callable[[Connection], int],
) -> None:
    """Each server continues the run of the one before it, then starts its own and is killed."""
    seed = random.randrange(10**9)
    chance = random.Random(seed)
    owner, expected, runs = Owner(notes), list[str](), list[RunRecord]()
    with closing(notes.store) as store:
        for number in range(programs + 1):
            with connect(notes.home) as client:
                if runs:
                    assert eventually(lambda: is_over(store, owner, runs[-1].id)), store.list_calls(
                        runs[-1].id
                    )
                if number < programs:
                    code, texts = make_code(chance, str(number))
                    expected += [text for text in texts if text.endswith("yes")]
                    runs.append(
                        start_and_kill(client, store, owner, code, chance, find_server=find_server)
                    )
        states = Counter(
            found.state for run in runs if (found := store.get_run(run.id)) is not None
        )
    assert states == {RunState.DONE: programs}, seed
    assert sum(run.state not in ENDED for run in runs) > programs // 2  # when it was killed
    assert set(notes.written) <= owner.approved, seed
    assert Counter(notes.written) == Counter(expected), seed


def is_over(store: RunStore, owner: Owner, run: str) -> bool:
    owner.answer(store, run)
    found = store.get_run(run)
    return found is not None and found.state in ENDED


def start_and_kill(
    client: Connection,
    store: RunStore,
    owner: Owner,
    code: str,
    chance: random.Random,
    *,
    find_server: Callable[[Connection], int],
) -> RunRecord:
    """Start a run, answer some of its questions, and kill its server.

    Return the run as it was then.
    """
    known = {run.id for run in store.list_runs(limit=1000)}
    client.start(code)
    assert eventually(lambda: {run.id for run in store.list_runs(limit=1000)} - known)
    (run,) = {run.id for run in store.list_runs(limit=1000)} - known
    last = owner.answers + chance.randint(0, 2)
    deadline = time.monotonic() + TIMEOUT_SECONDS
    while owner.answers < last and not is_over(store, owner, run):
        assert time.monotonic() < deadline, store.list_calls(run)
    time.sleep(chance.uniform(0, MAX_DELAY_SECONDS))
    server = find_server(client)
    with ProcessWatch(list_descendants(server)) as processes:
        os.kill(server, signal.SIGKILL)
        assert processes.all_ended()
    found = store.get_run(run)
    assert found is not None
    return found
