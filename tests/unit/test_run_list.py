"""One list of runs that execute, that wait for people, and that have ended."""

from collections.abc import Iterator, Sequence
from contextlib import closing
from pathlib import Path

import pytest
from tests.runs_support import make_call

from onetool.errors import StorageError, ToolError
from onetool.runs.live_runs import AllRuns
from onetool.state.run_records import CallState, RunRecord, RunState, get_end_state
from onetool.state.run_store import RunStore
from onetool.state.stats.database import StatisticsFile
from onetool.state.stats.history import Order, Position, RunFilter
from onetool.state.stats.record import Recorder
from onetool.util.redact import Redactor

NOW = 1_800_000_000.0
SECRET = "k-1d99aa"


def make_record(
    name: str, at: float, seconds: float | None = 0.5, error: str | None = None
) -> RunRecord:
    agent = "web" if name.endswith("w") else "default"
    run = RunRecord(
        name, agent, f"code of {name}", at=NOW + at, seconds=seconds, error_type=error, calls=1
    )
    run.state = RunState.RUNNING if seconds is None else get_end_state(error)
    return run


@pytest.fixture
def journal(tmp_path: Path) -> Iterator[RunStore]:
    with closing(RunStore(tmp_path)) as store:
        yield store


@pytest.fixture
def runs(tmp_path: Path, journal: RunStore) -> AllRuns:
    """Ten runs: `e0` to `e4` have ended, `a1` executes, `p1` and `p2w` wait, `j1` has ended only in
    the journal.
    """
    database = StatisticsFile(tmp_path / "stats.db")
    recorder = Recorder(database)
    for number in range(5):
        recorder.add(
            make_record(
                f"e{number}",
                number * 10,
                seconds=number + 1,
                error="timeout" if number == 3 else None,
            )
        )
    recorder.add(
        make_record("p1", 15, error="approval_required")
    )  # what its first process has recorded
    recorder.flush()
    recorder.close()
    for name, at, state in (
        ("p1", 15, RunState.WAITING),
        ("p2w", 25, RunState.HALTED),
        ("j1", 35, RunState.EXPIRED),
    ):
        agent = "web" if name.endswith("w") else "default"
        run = RunRecord(name, agent, f"code of {name} {SECRET}", at=NOW + at, state=state)
        waits = CallState.UNKNOWN if state is RunState.HALTED else CallState.PENDING
        journal.put_run(run, [make_call(1, "fake.put", waits), make_call(2, "fake.put", waits)])
    journal.put_run(
        RunRecord("e2", "default", "code", state=RunState.DONE)
    )  # is in the statistics too
    return AllRuns(
        [database],
        journal,
        Redactor([SECRET]),
        [make_record("a1", 5, None), make_record("p1", 15, None)],
    )


def list_all(runs: AllRuns, criteria: RunFilter, size: int) -> list[RunRecord]:
    listed: list[RunRecord] = []
    position: Position | None = None
    for _ in range(100):
        page = runs.list_page(criteria, position, size)
        assert len(page.runs) <= size
        listed += page.runs
        position = page.next
        if position is None:
            return listed
    raise AssertionError("the list never ends")


def get_names(runs: Sequence[RunRecord]) -> list[str]:
    return [run.id for run in runs]


@pytest.mark.parametrize("size", [1, 2, 3, 200])
@pytest.mark.parametrize(
    ("order", "expected"),
    [
        ("newest", "e4 j1 e3 p2w e2 p1 e1 a1 e0"),
        ("oldest", "e0 a1 e1 p1 e2 p2w e3 j1 e4"),
        ("slowest", "p2w p1 j1 a1 e4 e3 e2 e1 e0"),
    ],
)
def test_each_run_is_listed_once_in_order(
    runs: AllRuns, order: Order, expected: str, size: int
) -> None:
    assert get_names(list_all(runs, RunFilter(order=order), size)) == expected.split()


@pytest.mark.parametrize(
    ("criteria", "expected"),
    [
        (RunFilter(state="running"), "a1"),
        (RunFilter(state="waiting"), "p2w p1"),
        (RunFilter(state="done"), "e4 e2 e1 e0"),
        (RunFilter(state="failed"), "j1 e3"),
        (RunFilter(agent="web"), "p2w"),
        (RunFilter(text="CODE OF P"), "p2w p1"),
        (RunFilter(error="expired"), "j1"),
        (RunFilter(error="timeout"), "e3"),
        (RunFilter(since=NOW + 15, until=NOW + 30), "p2w e2 p1"),
        (RunFilter(min_seconds=3), "e4 e3 e2"),
    ],
)
def test_filters_apply_to_runs_in_all_states(
    runs: AllRuns, criteria: RunFilter, expected: str
) -> None:
    for size in (1, 200):
        assert get_names(list_all(runs, criteria, size)) == expected.split()


def test_a_waiting_run_has_its_calls_and_no_secrets(runs: AllRuns) -> None:
    (run,) = list_all(runs, RunFilter(agent="web"), 10)
    assert (run.state, run.calls) == ("halted", 2)
    assert SECRET not in run.code
    assert "code of p2w" in run.code


def test_unreadable_statistics_are_reported_or_left_out(tmp_path: Path, journal: RunStore) -> None:
    file = tmp_path / "damaged.db"
    file.write_bytes(b"no database" * 1000)
    sources = [StatisticsFile(file)]
    with pytest.raises((ToolError, StorageError)):
        AllRuns(sources, journal, Redactor()).list_page(RunFilter())
    active = [make_record("a1", 0, None)]
    page = AllRuns(sources, journal, Redactor(), active, skips_unreadable=True).list_page(
        RunFilter()
    )
    assert get_names(page.runs) == ["a1"]
