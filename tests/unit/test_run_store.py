"""Durable runs: answers and grants of several processes, changed rows, processes that were killed,
and quotas.
"""

import asyncio
import sqlite3
import stat
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from dataclasses import replace
from itertools import count
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings, strategies as st
from tests.runs_support import open_runs

from onetool import tool
from onetool.core.bus.bus import ToolBus
from onetool.core.policy.rules import Policy
from onetool.errors import ApprovalRequired, CallRejected, StorageError, ToolError
from onetool.runs.answer import Answer
from onetool.runs.gate import Gate
from onetool.runs.replay import digest_call, encode_arguments
from onetool.runs.results.store import StoredResults
from onetool.runs.runs import Runs
from onetool.settings.access import Agent
from onetool.settings.model import Output
from onetool.settings.paths import Directories
from onetool.state.listener import Leases
from onetool.state.opening import open_files
from onetool.state.postgres_database import Database
from onetool.state.run_records import CallState, Decision, DurableCall, Grant, RunRecord, RunState
from onetool.state.run_rows import PRUNE_RUNS, RunQuota
from onetool.state.run_store import RETENTION_SECONDS, SENT_SECONDS, RunStore, RunTables
from onetool.state.sealing import Sealer
from onetool.util.clock_watch import SETTLE_SECONDS, ClockWatch
from onetool.util.context import Caller, RunScope, ToolContext

ROOT = Path(__file__).parents[2]
NOW = 1_800_000_000.0
PRIVATE = "a value that must not be readable"
APPROVE = Decision(is_approved=True, by="ann")
ASK_WRITES = Agent(policy="ask-writes")
NAMES = count()


@pytest.fixture
def store(tmp_path: Path) -> Iterator[RunStore]:
    with closing(RunStore(tmp_path, clock=lambda: NOW)) as opened:
        yield opened


def make_call(number: int = 1, state: CallState = CallState.PENDING, **facts: Any) -> DurableCall:
    return DurableCall(
        number, "gh.create_issue", f'{{"title":"{PRIVATE}"}}', f"key-{number}", 0, state, **facts
    )


def put_run(store: RunTables, *calls: DurableCall, **facts: Any) -> str:
    run_id = str(facts.pop("id", f"r_{next(NAMES):032x}"))
    known = {"owner": store.owner, "expires": NOW + 60, "state": RunState.WAITING}
    store.put_run(RunRecord(run_id, "default", f"code({PRIVATE!r})", **{**known, **facts}), calls)
    return run_id


def list_states(store: RunStore, run_id: str) -> list[str]:
    return [call.state for call in store.list_calls(run_id)]


def start_program(program: str, *arguments: object) -> subprocess.Popen[str]:
    command = [sys.executable, "-c", program, *map(str, arguments)]
    return subprocess.Popen(
        command, cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )


def change_database(directory: Path, *statements: str) -> None:
    with closing(sqlite3.connect(directory / "runs" / "runs.db")) as database:
        for statement in statements:
            assert database.execute(statement).rowcount > 0
        database.commit()


# --- files ----------------------------------------------------------------------------------------


def test_nothing_is_created_before_the_first_run(store: RunStore, tmp_path: Path) -> None:
    assert store.get_run("r_1") is None
    assert (store.list_runs(), store.list_calls("r_1"), store.list_grants("default", "r_1")) == (
        [],
        [],
        [],
    )
    assert (store.version(), store.delete_expired(NOW), store.is_alive(store.owner)) == (
        0,
        0,
        False,
    )
    assert list(tmp_path.iterdir()) == []


def test_files_are_private_and_values_are_encrypted(store: RunStore, tmp_path: Path) -> None:
    run_id = put_run(store, make_call(1), make_call(2, reason=PRIVATE))
    store.write_calls(run_id, [make_call(3, CallState.DONE, result=PRIVATE)])
    store.decide(
        run_id,
        Decision(is_approved=True, by="ann", grants=(Grant("g_1", "gh.*", {"title": PRIVATE}),)),
    )
    store.set_state(run_id, RunState.DONE, outcome=PRIVATE)
    paths = [tmp_path / "runs", *(tmp_path / "runs").rglob("*")]
    assert {"runs.db", "runs.db-wal", "runs.key", "owners"} <= {path.name for path in paths}
    assert {path.name: oct(stat.S_IMODE(path.stat().st_mode)) for path in paths} == {
        path.name: "0o700" if path.is_dir() else "0o600" for path in paths
    }
    assert [
        path for path in paths if path.is_file() and PRIVATE.encode() in path.read_bytes()
    ] == []
    found = store.get_run(run_id)
    assert found is not None
    assert (found.code, found.outcome) == (f"code({PRIVATE!r})", PRIVATE)
    assert store.list_grants("default", run_id)[0].arguments == {"title": PRIVATE}


def test_concurrent_processes_create_one_key(tmp_path: Path) -> None:
    file = tmp_path / "runs" / "runs.key"
    start = threading.Barrier(8)

    def seal(number: int) -> bytes:
        start.wait()
        return Sealer.from_file(file).seal(str(number).encode(), b"a number")

    with ThreadPoolExecutor(8) as pool:
        sealed = list(pool.map(seal, range(8)))
    assert [Sealer.from_file(file).open(each, b"a number") for each in sealed] == [
        b"%d" % each for each in range(8)
    ]


CHANGES = {
    "an approval": ["UPDATE calls SET state = 'approved' WHERE number = 1"],
    "a copied call": [
        "UPDATE calls SET sealed = (SELECT sealed FROM calls WHERE number = 2) WHERE number = 1"
    ],
    "a call of another run": ["UPDATE calls SET run = (SELECT max(id) FROM runs) WHERE number = 2"],
    "a sealed byte": ["UPDATE calls SET sealed = CAST(sealed || x'00' AS BLOB) WHERE number = 1"],
    "text instead of a sealed value": ["UPDATE runs SET sealed = 'sealed'"],
    "another agent": ["UPDATE runs SET agent = 'admin'"],
    "another expiry": ["UPDATE runs SET expires = expires + 1"],
    "more calls of a grant": ["UPDATE grants SET left = 1000"],
    "a grant for all runs": ["UPDATE grants SET run = NULL"],
}


@pytest.mark.parametrize("change", CHANGES)
def test_changed_rows_are_rejected(store: RunStore, tmp_path: Path, change: str) -> None:
    run_id, _ = put_run(store, make_call(1), make_call(2), make_call(3)), put_run(store)
    grant = Grant("g_1", "gh.*", run=run_id, expires=NOW + 60)
    store.decide(run_id, Decision(is_approved=True, by="ann", calls=(3,), grants=(grant,)))
    read_all(store, run_id)
    change_database(tmp_path, *CHANGES[change])
    with pytest.raises(StorageError, match="was changed") as caught:
        read_all(store, run_id)
    assert "restore" in caught.value.hint


def read_all(store: RunStore, run_id: str) -> None:
    for run in store.list_runs():
        store.list_calls(run.id)
    store.list_grants("default", run_id)


def test_a_lost_key_is_an_error_that_says_what_to_do(tmp_path: Path) -> None:
    key = tmp_path / "runs" / "runs.key"
    with closing(RunStore(tmp_path)) as store:
        put_run(store)
    original = key.read_text()
    for content, problem in (
        ("", "is damaged"),
        ("ab" * 32, "was not sealed with the key"),
        (None, "is missing"),
    ):
        key.unlink()
        if content is not None:
            key.write_text(content)
        with closing(RunStore(tmp_path)) as store:
            for attempt in (store.list_runs, lambda store=store: put_run(store)):
                with pytest.raises(StorageError, match=problem) as caught:
                    attempt()
                assert f"rm -r {tmp_path / 'runs'}" in caught.value.hint
    assert not key.exists()  # no new key beside values that it cannot open
    key.write_text(original)
    with closing(RunStore(tmp_path)) as store:
        assert len(store.list_runs()) == 1


@pytest.mark.parametrize("size", [0, 100, 5000])
def test_a_truncated_file_is_not_begun_again(tmp_path: Path, size: int) -> None:
    file = tmp_path / "runs" / "runs.db"
    with closing(RunStore(tmp_path)) as store:
        put_run(store)
    assert not Path(f"{file}-wal").exists()
    original = file.read_bytes()
    cut = original[:size]
    file.write_bytes(cut)
    with closing(RunStore(tmp_path)) as store:
        for attempt in (store.list_runs, lambda: put_run(store)):
            with pytest.raises(StorageError, match=r"runs\.db is damaged") as caught:
                attempt()
            assert f"rm -r {tmp_path / 'runs'}" in caught.value.hint
    assert file.read_bytes() == cut
    file.write_bytes(original)
    with closing(RunStore(tmp_path)) as store:
        assert len(store.list_runs()) == 1


def test_a_deleted_directory_is_created_again(store: RunStore, tmp_path: Path) -> None:
    lost, directory = put_run(store), tmp_path / "runs"
    assert len(store.list_runs()) == 1
    directory.rename(tmp_path / "elsewhere")
    assert store.list_runs() == []
    with pytest.raises(ToolError, match=f"no run '{lost}'"):
        store.write_calls(lost, [make_call(1, CallState.SENT)])
    kept = put_run(store)
    with closing(RunStore(tmp_path)) as other:
        assert [run.id for run in other.list_runs()] == [kept]
        assert other.is_alive(store.owner)


# --- answers --------------------------------------------------------------------------------------

DECIDE = """
import sys
from pathlib import Path
from onetool.state.run_records import Decision
from onetool.state.run_store import RunStore
directory, by, *runs = sys.argv[1:]
store = RunStore(Path(directory), clock=lambda: 0)
store.list_runs()
print("ready", flush=True)
sys.stdin.readline()
for run in runs:
    print(run, *store.decide(run, Decision(is_approved=by == "ann", by=by)))
store.close()
"""


def test_the_first_answer_wins_between_processes(store: RunStore, tmp_path: Path) -> None:
    runs = [put_run(store, make_call(1), make_call(2)) for _ in range(25)]
    people = [(by, start_program(DECIDE, tmp_path, by, *runs)) for by in ("ann", "bob")]
    for _, process in people:
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
    for _, process in people:
        assert process.stdin is not None
        process.stdin.write("go\n")
        process.stdin.flush()
    won: dict[str, list[str]] = {}
    for by, process in people:
        for run_id, *numbers in map(str.split, process.communicate(timeout=60)[0].splitlines()):
            assert numbers in ([], ["1", "2"])
            won.setdefault(run_id, []).extend([by] if numbers else [])
    assert {len(winners) for winners in won.values()} == {1}
    for run_id, (winner,) in won.items():
        state = CallState.APPROVED if winner == "ann" else CallState.REJECTED
        assert [(call.state, call.by) for call in store.list_calls(run_id)] == [(state, winner)] * 2


def test_some_calls_are_approved_and_the_others_still_wait(store: RunStore) -> None:
    run_id = put_run(store, make_call(1, reason="it writes"), make_call(2), make_call(3))
    assert store.decide(run_id, replace(APPROVE, calls=(1, 3, 7))) == [1, 3]
    assert list_states(store, run_id) == ["approved", "pending", "approved"]
    assert store.list_calls(run_id)[0].reason == "it writes"
    late = Decision(is_approved=False, by="bob", reason="no", grants=(Grant("g_late", "*"),))
    assert store.decide(run_id, late) == [2]
    assert store.list_calls(run_id, {CallState.REJECTED}) == [
        make_call(2, CallState.REJECTED, by="bob", reason="no")
    ]
    assert store.decide(run_id, replace(APPROVE, grants=(Grant("g_late", "*"),))) == []
    assert store.list_grants("default", run_id) == []
    with pytest.raises(ToolError, match="no run 'r_unknown'") as caught:
        store.decide("r_unknown", APPROVE)
    assert caught.value.type == "not_found"


def test_a_stopped_run_sends_nothing_more(store: RunStore) -> None:
    approved = put_run(store, make_call(1), make_call(2))
    store.decide(approved, replace(APPROVE, calls=(1,)))
    assert store.decide(
        approved, Decision(is_approved=True, by="ann", calls=(), reason="enough", stops_run=True)
    ) == [2]
    run = store.get_run(approved)
    assert run is not None
    assert (run.state, run.reason) == (RunState.CANCELLED, "enough")
    for call in (make_call(1, CallState.SENT), make_call(3, CallState.PENDING)):
        with pytest.raises(CallRejected, match="is cancelled"):
            store.write_calls(approved, [call])
    store.set_state(approved, RunState.DONE, outcome="{}")
    run = store.get_run(approved)
    assert run is not None
    assert run.state is RunState.CANCELLED
    assert list_states(store, approved) == ["approved", "rejected"]


@pytest.mark.parametrize(
    ("known", "is_sent"),
    [
        (make_call(1, CallState.APPROVED, by="ann"), True),
        (make_call(1, CallState.PENDING), False),
        (make_call(1, CallState.REJECTED), False),
        (make_call(1, CallState.SENT), False),
        (make_call(1, CallState.UNKNOWN), False),
        (make_call(1, CallState.DONE), False),
        (make_call(1, CallState.FAILED), False),
        (make_call(1, CallState.SENT, is_idempotent=True), True),
        (make_call(1, CallState.UNKNOWN, is_idempotent=True), True),
        (make_call(1, CallState.DONE, is_idempotent=True), False),
    ],
    ids=lambda value: (
        f"{value.state}-{value.is_idempotent}" if isinstance(value, DurableCall) else ""
    ),
)
def test_a_call_is_sent_once_and_only_if_its_approval_is_stored(
    store: RunStore, known: DurableCall, is_sent: bool
) -> None:
    run_id = put_run(store, known)
    sent = replace(known, state=CallState.SENT, by="ann")
    if is_sent:
        store.write_calls(run_id, [sent])
        assert store.list_calls(run_id) == [sent]
    else:
        with pytest.raises(CallRejected, match=f"is {known.state}: it cannot be sent"):
            store.write_calls(run_id, [make_call(2, CallState.DONE), sent])
        assert store.list_calls(run_id) == [known]


def test_a_run_that_is_put_again_keeps_what_others_decided(store: RunStore) -> None:
    run_id = put_run(store, make_call(1), is_replayable=True)
    run = store.get_run(run_id)
    assert run is not None
    store.decide(run_id, Decision(is_approved=False, by="ann", reason="enough", stops_run=True))
    store.put_run(replace(run, is_replayable=False, owner="another", state=RunState.RUNNING))
    kept = replace(run, is_replayable=False, state=RunState.CANCELLED, reason="enough")
    assert store.get_run(run_id) == kept
    assert list_states(store, run_id) == ["rejected"]


def test_a_person_resolves_an_unknown_call_once(store: RunStore) -> None:
    run_id = put_run(store, make_call(1, CallState.UNKNOWN), state=RunState.HALTED)
    assert store.resolve(run_id, 1, CallState.DONE, by="ann", result='{"value": null}')
    assert not store.resolve(run_id, 1, CallState.APPROVED, by="bob")
    assert store.list_calls(run_id) == [
        make_call(1, CallState.DONE, by="ann", result='{"value": null}')
    ]


# --- grants ---------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Iterator[list[RunStore]]:
    directory = tmp_path_factory.mktemp("shared")
    stores = [RunStore(directory, clock=lambda: NOW) for _ in range(3)]
    yield stores
    for store in stores:
        store.close()


@settings(max_examples=30)
@given(
    left=st.integers(0, 6),
    expires=st.sampled_from([0.0, NOW - 1, NOW, NOW + 1]),
    is_for_all_runs=st.booleans(),
    batches=st.lists(st.integers(1, 3), min_size=3, max_size=6),
)
def test_a_grant_never_covers_more_calls_than_it_has_left(
    shared: list[RunStore], left: int, expires: float, is_for_all_runs: bool, batches: list[int]
) -> None:
    run_id = put_run(shared[0], make_call(1), state=RunState.RUNNING)
    other = put_run(shared[0], state=RunState.RUNNING)
    grant = Grant(
        f"g_{run_id}", "gh.*", left=left, run=None if is_for_all_runs else run_id, expires=expires
    )
    assert shared[0].decide(run_id, replace(APPROVE, grants=(grant,))) == [1]
    numbers = iter(range(2, 100))
    plan = [(shared[i % 3], [next(numbers) for _ in range(size)]) for i, size in enumerate(batches)]

    def use(store: RunStore, chosen: list[int]) -> bool:
        calls = [make_call(number, CallState.SENT, by="grant") for number in chosen]
        try:
            store.write_calls(
                run_id, [make_call(min(chosen) + 100, CallState.DONE), *calls], grant=grant.id
            )
        except ApprovalRequired:
            return False
        return True

    with ThreadPoolExecutor(3) as pool:
        accepted = list(pool.map(lambda each: use(*each), plan))
    used = sum(size for size, is_accepted in zip(batches, accepted, strict=True) if is_accepted)
    is_valid = expires in (0.0, NOW + 1)
    assert len(shared[1].list_calls(run_id, {CallState.SENT})) == used <= (left if is_valid else 0)
    if is_valid:  # a batch that fits is never rejected
        rejected = [
            size for size, is_accepted in zip(batches, accepted, strict=True) if not is_accepted
        ]
        assert all(size > left - used for size in rejected)
    remaining = [
        each.left for each in shared[2].list_grants("default", run_id) if each.id == grant.id
    ]
    assert remaining == ([left - used] if is_valid and left > used else [])
    is_usable_elsewhere = is_valid and is_for_all_runs and left > used
    if is_usable_elsewhere:
        shared[0].write_calls(other, [make_call(1, CallState.SENT)], grant=grant.id)
    else:
        with pytest.raises(ApprovalRequired):
            shared[0].write_calls(other, [make_call(1, CallState.SENT)], grant=grant.id)
    for each in (run_id, other):
        shared[0].set_state(each, RunState.DONE)


def test_a_grant_belongs_to_its_agent(store: RunStore) -> None:
    run_id = put_run(store, make_call(1))
    store.decide(run_id, replace(APPROVE, grants=(Grant("g_1", "*", agent="other", left=9),)))
    assert store.list_grants("default", run_id) == []
    with pytest.raises(ApprovalRequired):
        store.write_calls(run_id, [make_call(2, CallState.SENT)], grant="g_1")
    assert [grant.left for grant in store.list_grants("other", run_id)] == [9]


# --- processes ------------------------------------------------------------------------------------

OWN = """
import sys
from pathlib import Path
from onetool.state.run_records import CallState, DurableCall, RunRecord
from onetool.state.run_store import RunStore
store = RunStore(Path(sys.argv[1]))
store.put_run(RunRecord("r_own", "default", "1", owner=store.owner))
print(store.owner, flush=True)
sys.stdin.readline()
"""


def test_a_run_is_claimed_when_its_process_is_killed(store: RunStore, tmp_path: Path) -> None:
    with start_program(OWN, tmp_path) as process:
        assert process.stdout is not None
        owner = process.stdout.readline().strip()
        assert store.is_alive(owner)
        assert not store.claim("r_own", store.owner)
        process.kill()
        process.wait()
    assert not store.is_alive(owner)
    assert [file.stem for file in (tmp_path / "runs" / "owners").iterdir()] == [store.owner]
    with closing(RunStore(tmp_path)) as other, ThreadPoolExecutor(2) as pool:
        claimed = list(pool.map(lambda each: each.claim("r_own", each.owner), (store, other)))
        assert sorted(claimed) == [False, True]
        winner = store if claimed[0] else other
        found = store.get_run("r_own")
        assert found is not None
        assert found.owner == winner.owner
        store.set_state("r_own", RunState.DONE)
        assert not winner.claim("r_own", winner.owner)


def test_changes_of_other_processes_change_the_version(store: RunStore, tmp_path: Path) -> None:
    run_id = put_run(store, make_call(1))
    with closing(RunStore(tmp_path, clock=lambda: NOW)) as other:
        seen = store.version(), other.version()
        assert (store.version(), other.version()) == seen
        other.decide(run_id, APPROVE)
        assert store.version() != seen[0]
        assert other.version() != seen[1]


# --- expiry and quotas ----------------------------------------------------------------------------


def test_unanswered_runs_expire_and_ended_runs_are_deleted(store: RunStore, tmp_path: Path) -> None:
    late, waiting = (
        put_run(store, make_call(1), expires=NOW),
        put_run(store, make_call(1), expires=0.0),
    )
    running = put_run(store, make_call(1, CallState.SENT), state=RunState.RUNNING, expires=NOW)
    assert store.decide(late, APPROVE) == []
    assert store.delete_expired(NOW) == 1
    expired = store.get_run(late)
    assert expired is not None
    assert expired.state is RunState.EXPIRED
    assert store.list_calls(late) == [make_call(1, CallState.REJECTED, reason="expired")]
    assert (list_states(store, waiting), list_states(store, running)) == (["pending"], ["sent"])
    assert store.delete_expired(NOW + RETENTION_SECONDS) == 1
    assert [run.id for run in store.list_runs()] == [running, waiting]
    assert store.list_calls(late) == []
    stale = tmp_path / "runs" / "owners" / "stale.lock"
    stale.touch()
    store.delete_expired(NOW)
    assert not stale.exists()
    assert store.is_alive(store.owner)


def test_quotas_are_typed_errors_and_ended_runs_make_room(tmp_path: Path) -> None:
    with closing(RunStore(tmp_path, quota=RunQuota(3, 2, 5), clock=lambda: NOW)) as store:
        first, _ = put_run(store), put_run(store)
        with pytest.raises(
            StorageError, match="2 runs of agent default wait for approval"
        ) as caught:
            put_run(store)
        assert "onetool approvals" in caught.value.hint
        running = put_run(store, state=RunState.RUNNING)
        with pytest.raises(StorageError, match="2 runs of agent default wait"):
            store.set_state(running, RunState.WAITING)
        store.put_run(RunRecord("r_other", "other", "1", state=RunState.WAITING))
        with pytest.raises(StorageError, match="3 runs wait for approval"):
            store.put_run(RunRecord("r_third", "third", "1", state=RunState.WAITING))
        put_run(store, state=RunState.RUNNING)
        with pytest.raises(StorageError, match="5 runs are stored, and none of them has ended"):
            put_run(store, state=RunState.RUNNING)
        store.set_state(first, RunState.FAILED)
        put_run(store, state=RunState.RUNNING)
        assert store.get_run(first) is None


@pytest.fixture(params=["files", "postgres"])
def small(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[RunTables]:
    """Yield runs that may have a million bytes in all."""
    quota = RunQuota(total_bytes=1_000_000)
    if request.param == "files":
        with closing(RunStore(tmp_path, quota=quota, clock=lambda: NOW)) as store:
            yield store
        return
    with Database(request.getfixturevalue("postgres_url"), "11" * 32) as database:
        leases = Leases(database, "this")
        yield RunTables(database, leases, ClockWatch(lambda: NOW), quota)


def test_the_bytes_of_all_runs_are_limited_before_a_call_is_sent(small: RunTables) -> None:
    large = "x" * 350_000
    old = put_run(small, make_call(1, CallState.DONE, result=large), state=RunState.RUNNING)
    small.set_state(old, RunState.DONE)
    run = put_run(small, state=RunState.RUNNING)
    small.write_calls(run, [make_call(number, CallState.DONE, result=large) for number in (1, 2)])
    small.write_calls(run, [make_call(3, CallState.SENT)])
    assert small.get_run(old) is None, "it made room"
    small.write_calls(run, [make_call(number, CallState.DONE, result=large) for number in (4, 5)])
    with pytest.raises(StorageError, match="the journal of runs is full"):
        small.write_calls(run, [make_call(6, CallState.SENT)])
    with pytest.raises(StorageError, match="1,000,000 bytes"):
        put_run(small)
    assert [call.number for call in small.list_calls(run)] == [1, 2, 3, 4, 5]


def test_sent_calls_are_known_for_a_month_and_deleted_then(
    small: RunTables, monkeypatch: pytest.MonkeyPatch
) -> None:
    begun = time.time() - SENT_SECONDS  # PostgreSQL compares with its own clock
    monkeypatch.setattr(small, "_clock", lambda: begun)
    call = make_call(1, CallState.SENT, by="ann")
    run = put_run(small, make_call(1, CallState.APPROVED, by="ann"), state=RunState.RUNNING)
    small.write_calls(run, [call])
    small.set_state(run, RunState.DONE)
    assert small.delete_expired(begun + RETENTION_SECONDS) == 1
    put_run(
        small, make_call(1, CallState.APPROVED, by="ann"), id=run, state=RunState.RUNNING
    )  # from a backup
    with pytest.raises(CallRejected, match="was sent before"):
        small.write_calls(run, [call])
    small.delete_expired(begun + SENT_SECONDS)
    small.write_calls(run, [call])


def test_as_many_ended_runs_as_needed_make_room(small: RunTables) -> None:
    for _ in range(2 * PRUNE_RUNS + 1):
        small.set_state(put_run(small, state=RunState.RUNNING), RunState.DONE)
    large = put_run(
        small, make_call(1, CallState.DONE, result="x" * 1_000_000), state=RunState.RUNNING
    )
    small.set_state(large, RunState.DONE)
    run = put_run(small, state=RunState.RUNNING)
    assert [known.id for known in small.list_runs()] == [run]


def test_a_run_whose_journal_is_full_sends_no_more_calls(tmp_path: Path) -> None:
    made: list[int] = []

    @tool("fake.put", effects=["write"])
    def put(value: str) -> None:
        """Put a value."""
        made.append(len(value))

    async def call() -> list[Any]:
        bus = ToolBus()
        bus.register_tool(put)
        runs = open_runs(RunStore(tmp_path), bus, Agent())
        gate = runs.open_gate(Caller(), "run", run_id=f"r_{'0' * 32}")
        context = ToolContext(run=RunScope(gate=gate))
        results = [
            await bus.call_tool("fake.put", {"value": "x" * (30 << 20)}, context) for _ in range(3)
        ]
        await runs.close()
        return results

    results = asyncio.run(call())
    assert [result.ok for result in results] == [True, True, False]
    assert results[2].error.type == "storage_unavailable"
    assert "the journal of run r_000" in str(results[2].error)
    assert len(made) == 2


# --- kill -9 at every statement -------------------------------------------------------------------

KILLED = """
import os, signal, sqlite3, sys
from dataclasses import replace
from pathlib import Path
from onetool.state import sqlite_database
from onetool.state.run_records import CallState, DurableCall, RunRecord, Grant, Decision, RunState
from onetool.state.run_store import RunStore
import cryptography.exceptions
from cryptography.hazmat.primitives.ciphers.aead import AESGCM

class Killing(sqlite3.Connection):
    left = 0

    def execute(self, *args):
        if Killing.left == 0:
            os.kill(os.getpid(), signal.SIGKILL)
        Killing.left -= 1
        return super().execute(*args)

sqlite3.connect, connect = (lambda *args, **options: connect(*args, factory=Killing, **options)), sqlite3.connect

def act(directory):
    store, effects = RunStore(directory, clock=lambda: 0), directory / "effects"
    pending = DurableCall(1, "t", "{}", "k", 0, CallState.PENDING)
    store.put_run(RunRecord("r_1", "default", "1", owner=store.owner), [pending])
    store.decide("r_1", Decision(is_approved=True, by="ann", grants=(Grant("g_1", "*"),)))
    for number, grant in ((1, None), (2, "g_1"), (3, None)):
        call = replace(pending, number=number, state=CallState.SENT)
        store.write_calls("r_1", [call], grant=grant, survives_power_loss=number == 1)
        with effects.open("a") as file:
            file.write(f"{number}\\n")
        store.write_calls("r_1", [replace(call, state=CallState.DONE, result="1")])
    store.set_state("r_1", RunState.DONE)
    store.close()

for step in range(10_000):
    directory = Path(sys.argv[1]) / str(step)
    directory.mkdir()
    child = os.fork()
    if child == 0:
        Killing.left = step
        act(directory)
        os._exit(0)
    if os.waitpid(child, 0)[1] == 0:
        break
print(step)
"""


def test_a_killed_process_has_recorded_every_call_that_it_sent(tmp_path: Path) -> None:
    with start_program(KILLED, tmp_path) as process:
        steps = int(process.communicate(timeout=100)[0])
    assert steps > 40
    for step in range(steps + 1):
        directory = tmp_path / str(step)
        file = directory / "effects"
        effects = [int(line) for line in file.read_text().split()] if file.exists() else []
        with closing(RunStore(directory)) as store:
            states = {call.number: call.state for call in store.list_calls("r_1")}
            sent = [
                number
                for number, state in states.items()
                if state in {CallState.SENT, CallState.DONE}
            ]
            done = [number for number, state in states.items() if state is CallState.DONE]
            assert set(done) <= set(effects) <= set(sent), step
            grants = store.list_grants("default", "r_1")
            assert bool(grants) == (
                states.get(1) in {"approved", "sent", "done"} and 2 not in states
            ), step
            run = store.get_run("r_1")
            if run is None:
                put_run(store)  # files that were not created completely are usable
            else:
                assert not store.is_alive(run.owner)
    assert effects == [1, 2, 3]


# --- clocks ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("days", [8, -8])
def test_nothing_expires_after_the_clock_has_jumped(tmp_path: Path, days: int) -> None:
    moment = [NOW]
    with closing(RunStore(tmp_path, clock=lambda: moment[0])) as store:
        waiting = put_run(store, make_call(1), expires=NOW + 3600)
        ended = put_run(store)
        store.set_state(ended, RunState.DONE)
        moment[0] += days * 86_400
        for _ in range(2):
            assert store.delete_expired(NOW + 8 * 86_400) == 0
        moment[0] = NOW
        assert store.delete_expired(NOW + 8 * 86_400) == 0
        assert {run.id for run in store.list_runs()} == {waiting, ended}


def test_a_clock_that_stays_is_believed_again() -> None:
    wall, steady = [NOW], [0.0]
    watch = ClockWatch(lambda: wall[0], lambda: steady[0])
    assert watch.is_reliable()
    for _ in range(10):
        wall[0] += 61
        steady[0] += 60
        assert watch.is_reliable(), "small differences add up"
    wall[0] += 3600
    assert not watch.is_reliable()
    steady[0] += SETTLE_SECONDS / 2
    wall[0] += SETTLE_SECONDS / 2
    assert not watch.is_reliable()
    steady[0] += SETTLE_SECONDS
    wall[0] += SETTLE_SECONDS
    assert watch.is_reliable()


@pytest.mark.parametrize("days", [8, -8])
def test_a_jump_of_the_clock_is_reported_and_holds_after_a_reload(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, days: int
) -> None:
    jump = [0.0]
    read_clock = time.time
    monkeypatch.setattr(time, "time", lambda: read_clock() + jump[0])
    with open_files(Directories(tmp_path, tmp_path)) as state:
        kept = StoredResults.open(state, Output())
        handle = kept.put("text", tool="t")["handle"]
        assert state.problems == []
        jump[0] = days * 86_400
        (problem,) = state.problems
        assert f"the clock jumped by {days * 86_400:+,} s" in problem.message
        assert problem.hint
        reloaded = StoredResults.open(
            state, Output()
        )  # opened by a reload of the settings, while the clock is wrong
        reloaded.put("of a wrong time", tool="t")
        jump[0] = 0.0
        assert kept.load(handle) == "text"
        assert len(state.problems) == 1  # it has jumped back


def test_the_wait_for_people_does_not_depend_on_the_clock(tmp_path: Path) -> None:
    """A call that was recorded an hour ahead, before somebody has set the clock back."""

    @tool("fake.put", effects=["write"])
    def put(value: int) -> None:
        """Put a value."""

    async def pause() -> None:
        bus = ToolBus()
        bus.register_tool(put)
        runs = open_runs(RunStore(tmp_path), bus, ASK_WRITES)
        text = encode_arguments({"value": 1})
        ahead = DurableCall(
            1,
            "fake.put",
            text,
            digest_call("fake.put", text),
            0,
            CallState.PENDING,
            ("write",),
            at=time.time() + 3600,
        )
        record = RunRecord(f"r_{'0' * 32}", "default", "code", is_replayable=True)
        policy = Policy.from_settings(ASK_WRITES)
        gate = Gate(runs, record, policy, via={"cli"}, hold=0.05, recorded=[ahead])
        calling = asyncio.ensure_future(
            bus.call_tool("fake.put", {"value": 1}, ToolContext(run=RunScope(gate=gate)))
        )
        await asyncio.wait_for(gate.paused.wait(), 20)
        calling.cancel()
        await runs.close()

    asyncio.run(pause())


def test_a_run_that_waits_is_replayed_if_cells_are_not_kept(tmp_path: Path) -> None:
    @tool("fake.put", effects=["write"])
    def put(value: int) -> int:
        """Put a value."""
        return value

    async def pause() -> tuple[int, Any]:
        ended = [asyncio.Event(), asyncio.Event()]
        executions = iter(ended)
        bus = ToolBus()
        bus.register_tool(put)

        class PutRuns(Runs):
            async def execute(self, gate: Gate) -> Answer:
                event = next(executions)
                try:
                    result = await bus.call_tool(
                        "fake.put", {"value": 1}, ToolContext(run=RunScope(gate=gate))
                    )
                finally:
                    event.set()
                value = result.unwrap()
                return Answer((), load_value=lambda: value)

        runs = open_runs(RunStore(tmp_path), bus, ASK_WRITES, kind=PutRuns, keeps_cells=False)
        gate = runs.open_gate(Caller(), "run", run_id=f"r_{'0' * 32}", hold=0.01)
        assert await runs.run_in_task(gate, runs.execute(gate)) is None
        await asyncio.wait_for(ended[0].wait(), 20)
        await runs.decide(
            gate.id, Decision(by="ann", is_approved=True, calls=(1,)), via="cli", transport="cli"
        )
        outcome = await runs.wait_for_end(gate.id, "default", "", 20)
        await runs.close()
        return sum(event.is_set() for event in ended), outcome

    executions, outcome = asyncio.run(pause())
    assert (executions, outcome.value) == (2, 1)
