"""Statistics: records are exact despite failing processes and damaged files, and their sums are
correct.
"""

import contextlib
import json
import os
import random
import sqlite3
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import anyio
import pytest
from benchmarks import recorded

from onetool.app import OneTool
from onetool.errors import ToolError
from onetool.settings.load import Loaded
from onetool.settings.model import Settings
from onetool.settings.paths import Directories
from onetool.sources.checks.disk import check_stored_files
from onetool.state.run_records import RunRecord
from onetool.state.stats import rollup
from onetool.state.stats.database import StatisticsDatabase, StatisticsFile
from onetool.state.stats.history import RunFilter, find_run, list_page
from onetool.state.stats.record import (
    CALL_COLUMNS,
    MAX_PENDING,
    MAX_ROWS,
    CallRecord,
    Recorder,
    SessionRecord,
    UseRecord,
)
from onetool.state.stats.report import render_html
from onetool.state.stats.rollup import DAY, HOUR
from onetool.state.stats.summary import MAX_BARS, StatsSummary, summarize
from onetool.util.background import Background
from onetool.util.context import Caller

NOW = 1_800_000_000.0
RUN_COLUMNS = (
    "id", "agent", "session", "seconds", "error_type", "round_trips", "answer_tokens", "result_tokens", "at",
)  # fmt: skip


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "stats" / "stats.db"


@pytest.fixture
def recorder(file: Path) -> Iterator[Recorder]:
    made = Recorder(StatisticsFile(file), clock=lambda: NOW)
    yield made
    made.close()


def make_call(name: str = "web.search", **facts: Any) -> CallRecord:
    known = {
        "agent": "default",
        "session": "s1",
        "run_id": "r1",
        "seconds": 0.1,
        "error_type": None,
        "result_tokens": 0,
    }
    return CallRecord(name, **{**known, **facts})


def make_run(run_id: str = "r1", **facts: Any) -> RunRecord:
    known = {"agent": "default", "session": "s1", "seconds": 1.0, "error_type": None}
    return RunRecord(
        run_id, **{**known, "round_trips": 0, "answer_tokens": 0, "result_tokens": 0, **facts}
    )


def count_rows(file: Path, table: str = "calls") -> int:
    database = sqlite3.connect(file)
    try:
        return int(database.execute(f"SELECT count(*) FROM {table}").fetchone()[0])
    finally:
        database.close()


def check_integrity(file: Path) -> str:
    database = sqlite3.connect(file)
    try:
        return str(database.execute("PRAGMA integrity_check").fetchone()[0])
    finally:
        database.close()


# --- recording ------------------------------------------------------------------------------------


def test_records_are_in_the_file_after_a_flush(recorder: Recorder, file: Path) -> None:
    recorder.add(make_call())
    recorder.add(make_run())
    recorder.add(SessionRecord("s1", "default", {"web.search": 100}, 40))
    assert not file.exists()
    recorder.flush()
    assert [count_rows(file, table) for table in ("calls", "runs", "sessions")] == [1, 1, 1]
    assert recorder.problem is None
    assert file.stat().st_mode & 0o077 == 0


@pytest.mark.slow
def test_records_are_written_without_a_flush(file: Path) -> None:
    recorder = Recorder(StatisticsFile(file))
    recorder.add(make_call())
    while not summarize(StatisticsFile(file))["total_calls"]:
        time.sleep(0.05)
    assert count_rows(file) == 1
    recorder.close()


@pytest.mark.slow
def test_records_added_during_the_last_write_are_not_lost_on_close() -> None:
    waiting, written, writing, may_end = [1], list[int](), threading.Event(), threading.Event()

    def write() -> bool:
        records, waiting[:] = waiting[:], []
        writing.set()
        may_end.wait()
        written.extend(records)
        return True

    thread = Background("test", write)
    thread.wake()
    writing.wait()
    waiting.append(2)
    thread.wake()
    closing = threading.Thread(target=thread.close)
    closing.start()
    thread._closing.wait()
    may_end.set()
    closing.join()
    assert written == [1, 2]


def test_a_failed_write_is_retried_without_new_records() -> None:
    tries, enough = list[int](), threading.Event()

    def write() -> bool:
        tries.append(1)
        if len(tries) >= 3:
            enough.set()
        return len(tries) >= 3

    thread = Background("test", write, gather=0, retry=0)
    thread.wake()
    enough.wait()
    thread.close()
    assert len(tries) >= 3


def test_nothing_is_recorded_when_statistics_are_disabled(file: Path) -> None:
    recorder = Recorder(StatisticsFile(file))
    recorder.enabled = False
    recorder.add(make_call())
    recorder.flush()
    recorder.close()
    assert not file.parent.exists()


def test_an_idle_recorder_has_no_thread_and_a_busy_one_sleeps(file: Path) -> None:
    before = threading.active_count()
    recorder = Recorder(StatisticsFile(file))
    assert threading.active_count() == before
    recorder.add(make_call())
    assert threading.active_count() == before + 1
    recorder.close()
    assert threading.active_count() == before


def test_hostile_names_are_truncated(recorder: Recorder, file: Path) -> None:
    for name in ("\ud800", "x" * 1_000_000, "'; DROP TABLE calls; --", "nul\0nul", ""):
        recorder.add(make_call(name))
    recorder.flush()
    assert recorder.problem is None
    names = {entry["name"] for entry in summarize(StatisticsFile(file))["tools"]}
    assert names == {"\\ud800", "x" * 200, "'; DROP TABLE calls; --", "nulnul", ""}
    assert summarize(StatisticsFile(file), tool="\ud800")["total_calls"] == 1


def test_threads_record_concurrently(recorder: Recorder, file: Path) -> None:
    def record() -> None:
        for _ in range(500):
            recorder.add(make_call())

    threads = [threading.Thread(target=record) for _ in range(8)]
    for thread in threads:
        thread.start()
    recorder.flush()
    for thread in threads:
        thread.join()
    recorder.close()
    assert count_rows(file) == 4000


WRITER = """if True:
    import sys, time
    from pathlib import Path
    from onetool.state.stats.database import StatisticsFile
    from onetool.state.stats.record import CallRecord, Recorder
    recorder = Recorder(StatisticsFile(Path(sys.argv[1])))
    for number in range(int(sys.argv[2])):
        recorder.add(CallRecord("a.b", "default", sys.argv[3], "", 0.1, None, number))
        if number % 100 == 0:
            recorder.flush()
    recorder.close()
    assert recorder.problem is None, recorder.problem
"""


@pytest.mark.slow
def test_records_of_concurrent_processes_are_all_counted(file: Path) -> None:
    command = [sys.executable, "-c", WRITER, str(file), "2000"]
    processes = [subprocess.Popen([*command, str(number)]) for number in range(3)]
    while any(process.poll() is None for process in processes):
        summarize(StatisticsFile(file))  # a reader never blocks writers
        time.sleep(0.02)
    assert [process.returncode for process in processes] == [0, 0, 0]
    assert count_rows(file) == 6000
    assert check_integrity(file) == "ok"


# --- damaged files --------------------------------------------------------------------------------


def fill_file(file: Path, calls: int = 2000) -> bytes:
    recorder = Recorder(StatisticsFile(file), clock=lambda: NOW)
    for number in range(calls):
        recorder.add(make_call(f"pack.tool{number % 50}"))
    recorder.close()
    return file.read_bytes()


@pytest.mark.slow
@pytest.mark.parametrize("part", [0.0, 0.001, 0.1, 0.5, 0.9, 0.999])
def test_a_truncated_file_is_kept_and_a_new_one_is_created(file: Path, part: float) -> None:
    whole = fill_file(file)
    cut = whole[: int(len(whole) * part)]
    file.write_bytes(cut)
    # A summary reads only the pages that it needs.
    with (
        pytest.raises(ToolError, match="damaged") if part <= 0.5 else contextlib.suppress(ToolError)
    ):
        summarize(StatisticsFile(file))
    recorder = Recorder(StatisticsFile(file))
    recorder.add(make_call())
    recorder.close()
    (kept,) = file.parent.glob("stats.db.damaged-*")
    assert kept.read_bytes() == cut
    assert str(kept) in str(recorder.problem)
    assert summarize(StatisticsFile(file))["total_calls"] == 1


def test_truncation_of_an_open_file_loses_no_new_records(file: Path, recorder: Recorder) -> None:
    for number in range(3):
        for _ in range(500):
            recorder.add(make_call())
        recorder.flush()
        whole = file.read_bytes()
        file.write_bytes(whole[: len(whole) // 2])
        recorder.add(make_call())
        recorder.flush()
        assert count_rows(file) == 1
        assert len(list(file.parent.glob("stats.db.damaged-*"))) == number + 1
        file.unlink()


def test_damage_in_the_middle_is_detected_at_the_next_start(file: Path) -> None:
    whole = fill_file(file)
    middle = len(whole) // 2 // 4096 * 4096
    file.write_bytes(whole[:middle] + b"\xff" * 8192 + whole[middle + 8192 :])
    os.utime(
        file, (time.time() + 1, time.time() + 1)
    )  # later, even if the clock of the disk is coarse
    recorder = Recorder(StatisticsFile(file))
    recorder.add(make_call())
    recorder.close()
    assert "damaged" in str(recorder.problem)
    assert count_rows(file) == 1


@pytest.mark.parametrize("is_changed", [False, True])
def test_only_a_file_that_changed_since_the_last_write_is_checked(
    file: Path, *, is_changed: bool
) -> None:
    """A check reads all rows. Damage that keeps the time of the file shows whether it was done."""
    whole = fill_file(file)
    changed = file.stat().st_mtime_ns + is_changed * 1_000_000_000
    middle = len(whole) // 2 // 4096 * 4096
    file.write_bytes(whole[:middle] + b"\xff" * 8192 + whole[middle + 8192 :])
    os.utime(file, ns=(changed, changed))
    home = file.parent.parent
    loaded = Loaded(Settings(), {}, (), (), Directories(working_dir=home, user=home))
    assert len(check_stored_files(loaded, seconds=60.0)) == is_changed
    assert len(check_stored_files(loaded)) == 1  # `onetool doctor` always checks
    recorder = Recorder(StatisticsFile(file))
    recorder.add(make_call())
    recorder.close()
    assert (recorder.problem is not None) == is_changed


def test_a_file_that_is_not_a_database_is_kept(file: Path) -> None:
    file.parent.mkdir()
    file.write_bytes(b"dear diary\n" * 1000)
    recorder = Recorder(StatisticsFile(file))
    recorder.add(make_call())
    recorder.close()
    (kept,) = file.parent.glob("stats.db.damaged-*")
    assert kept.read_bytes().startswith(b"dear diary")
    assert count_rows(file) == 1


@pytest.mark.slow
def test_processes_that_detect_damage_concurrently_create_one_new_file(file: Path) -> None:
    whole = fill_file(file)
    file.write_bytes(whole[: len(whole) // 2])
    command = [sys.executable, "-c", WRITER.partition("    assert")[0], str(file), "500"]
    processes = [subprocess.Popen([*command, str(number)]) for number in range(3)]
    assert [process.wait(timeout=60) for process in processes] == [0, 0, 0]
    assert len(list(file.parent.glob("stats.db.damaged-*"))) == 1
    assert count_rows(file) == 1500


def test_an_unwritable_directory_is_a_problem_and_not_an_error(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("no folder", encoding="utf-8")
    recorder = Recorder(StatisticsFile(tmp_path / "file" / "stats.db"))
    recorder.add(make_call())
    recorder.flush()
    assert "cannot write" in str(recorder.problem)
    (tmp_path / "file").unlink()
    recorder.add(make_call())
    recorder.close()
    assert recorder.problem is None
    assert count_rows(tmp_path / "file" / "stats.db") == 2  # the pending record is written too


@pytest.mark.slow
def test_pending_records_are_bounded_while_the_file_is_unwritable(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("no folder", encoding="utf-8")
    recorder = Recorder(StatisticsFile(tmp_path / "file" / "stats.db"))
    for _ in range(MAX_PENDING + 500):
        recorder.add(make_call())
    recorder.flush()
    assert len(recorder._pending) <= MAX_PENDING
    recorder.close()


FULL_DISK = """if True:
    import resource, sys
    from pathlib import Path
    from onetool.state.stats.database import StatisticsFile
    from onetool.state.stats.record import CallRecord, Recorder
    file = Path(sys.argv[1])
    recorder = Recorder(StatisticsFile(file))
    recorder.add(CallRecord("a.b", "default", "s", "", 0.1, None, 0))
    recorder.flush()
    resource.setrlimit(resource.RLIMIT_FSIZE, (file.stat().st_size + 8192, resource.RLIM_INFINITY))
    for number in range(2000):
        recorder.add(CallRecord("a.b", "default", "s", "", 0.1, None, 0))
    recorder.flush()
    print(recorder.problem)
    resource.setrlimit(resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
    recorder.close()
    print(recorder.problem)
"""


def test_a_full_disk_is_a_problem_until_space_is_available(file: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-c", FULL_DISK, str(file)],
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    )
    full, later = done.stdout.splitlines()
    assert "cannot write" in full
    assert later == "None"
    assert count_rows(file) == 2001
    assert check_integrity(file) == "ok"


# --- retention ------------------------------------------------------------------------------------


def insert_rows(file: Path, count: int, names: int = 20) -> None:
    """Insert this many calls and runs, one per second, the last one at NOW."""
    with contextlib.closing(sqlite3.connect(file)) as database:
        rollup.add_functions(database)
        numbers = (
            f"WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < {count})"
        )
        call = (
            f"'p.tool' || (i % {names}), 'default', 's', 'r' || i, (i % 99) / 100.0, NULL, 10,"
            f" {NOW} - {count} + i"
        )
        run = f"'r' || i, 'default', 's', 0.1, NULL, 1, 5, 10, {NOW} - {count} + i"
        last_call, last_run = database.execute(
            "SELECT (SELECT max(rowid) FROM calls), (SELECT count(*) FROM runs)"
        ).fetchone()
        database.execute(
            f"INSERT INTO calls ({', '.join(CALL_COLUMNS[:8])}) {numbers} SELECT {call} FROM n"
        )
        database.execute(
            f"INSERT INTO runs ({', '.join(RUN_COLUMNS)}) {numbers} SELECT {run} FROM n"
        )
        rollup.add(database, last_call, last_run, NOW)
        database.commit()


def test_old_calls_runs_and_sessions_are_deleted(file: Path, recorder: Recorder) -> None:
    for age in (1, 364, 366, 5000):
        recorder.add(make_call(at=NOW - age * DAY))
        recorder.add(make_run(str(age), at=NOW - age * DAY))
        recorder.add(SessionRecord(str(age), "default", {f"tool{age}": 1}, 1, at=NOW - age * DAY))
    recorder.flush()
    assert [count_rows(file, table) for table in ("calls", "runs", "sessions", "definitions")] == [
        2,
        2,
        2,
        2,
    ]


@pytest.mark.slow
def test_the_oldest_calls_above_the_limit_are_deleted(file: Path) -> None:
    fill_file(file, 1)
    insert_rows(file, 30_000)
    recorder = Recorder(
        StatisticsFile(file), max_rows=dict.fromkeys(MAX_ROWS, 10_000), clock=lambda: NOW
    )
    for _ in range(20):
        recorder.add(make_call("last"))
    for _ in range(20):  # each write continues where the previous one stopped
        recorder.add(UseRecord("tool"))
        recorder.flush()
    recorder.close()
    assert [count_rows(file), count_rows(file, "runs")] == [10_000, 10_000]
    assert summarize(StatisticsFile(file), tool="last", now=NOW)["total_calls"] == 20


def test_nothing_is_deleted_after_the_clock_has_jumped(file: Path) -> None:
    moment = [NOW]
    recorder = Recorder(StatisticsFile(file), clock=lambda: moment[0])
    recorder.add(make_call("first"))
    recorder.flush()
    moment[0] += 400 * DAY
    recorder._sweep.repeat()  # due at once, if the clock had not jumped
    recorder.add(make_call("later"))
    recorder.close()
    assert count_rows(file) == 2


# --- run history ----------------------------------------------------------------------------------


def test_recent_runs_have_their_code_and_calls(file: Path, recorder: Recorder) -> None:
    recorder.add(make_call("b.late", run_id="new", at=NOW - 2, seconds=0.5))
    recorder.add(make_call("a.early", run_id="new", at=NOW - 3, seconds=2.0, error_type="timeout"))
    recorder.add(make_run("new", at=NOW - 4, client="editor", code="x" * 6000, calls=2, failed=1))
    recorder.add(make_run("old", at=NOW - 50, agent="ada"))
    recorder.flush()
    assert [run.id for run in list_page(StatisticsFile(file), RunFilter()).runs] == ["new", "old"]
    assert [run.id for run in list_page(StatisticsFile(file), RunFilter(agent="ada")).runs] == [
        "old"
    ]
    found = find_run(StatisticsFile(file), "new")
    assert found is not None
    run, calls = found
    assert (run.client, len(run.code), run.calls, run.failed) == ("editor", 5000, 2, 1)
    assert [call.name for call in calls] == ["a.early", "b.late"]
    assert not run.is_visible("ada", None)
    assert find_run(StatisticsFile(file), "none") is None


def test_calls_outside_of_runs_with_one_context_are_one_entry(file: Path) -> None:
    inner = make_run(
        "c", kind="call", name="a.inner", calls=1, failed=1, error_type="timeout", at=NOW - 1
    )
    outer = make_run("c", kind="call", name="a.outer", calls=1, at=NOW - 2)
    summary = record_and_summarize(
        file, make_call("a.inner", run_id="c"), inner, make_call("a.outer", run_id="c"), outer
    )
    (run,) = list_page(StatisticsFile(file), RunFilter()).runs
    assert (run.name, run.calls, run.failed, run.error_type, run.at) == (
        "a.outer",
        2,
        1,
        None,
        NOW - 2,
    )
    assert (summary["total_calls"], summary["runs"]["total"], summary["time_saved_ms"]) == (2, 0, 0)


def test_calls_and_code_of_runs_are_recorded(tmp_path: Path) -> None:
    async def recorded() -> tuple[StatisticsDatabase, str]:
        async with OneTool(folder=tmp_path) as app:
            await app.runs.run("ot.version()\nmachine.nix()", Caller(client="editor"))
            context = app.context()
            await app.bus.call_tool("machine.now", {}, context)
            return app.state.recorder.database, context.correlation_id

    statistics, direct = anyio.run(recorded)
    call, run = list_page(statistics, RunFilter()).runs  # of a process that has ended
    assert (call.id, call.kind, call.name, call.calls) == (direct, "call", "machine.now", 1)
    assert (run.kind, run.client, run.code) == ("run", "editor", "ot.version()\nmachine.nix()")
    assert (run.error_type is not None, run.calls, run.failed) == (True, 1, 0)
    assert 0 <= call.at - run.at < time.time() - run.at


def test_pending_code_is_dropped_while_the_file_is_unwritable(tmp_path: Path) -> None:
    blocker = tmp_path / "stats"
    blocker.write_text("", encoding="utf-8")
    recorder = Recorder(StatisticsFile(blocker / "stats.db"))
    recorder.add(make_run("r", code="x" * 5000))
    recorder.flush()
    blocker.unlink()
    recorder.close()
    assert [
        run.code for run in list_page(StatisticsFile(blocker / "stats.db"), RunFilter()).runs
    ] == [""]


@pytest.mark.slow
def test_a_summary_of_many_names_lists_the_most_called(file: Path) -> None:
    recorder = Recorder(StatisticsFile(file), clock=lambda: NOW)
    for _ in range(9):
        recorder.add(make_call("often", error_type="timeout"))
    recorder.close()
    insert_rows(file, 20_000, names=20_000)
    summary = summarize(StatisticsFile(file), now=NOW)
    assert (summary["total_calls"], len(summary["tools"]), len(summary["series"]["tools"])) == (
        20_009,
        500,
        500,
    )
    assert (summary["tools"][1]["name"], summary["tools"][1]["errors"]) == ("often", {"timeout": 9})
    others = rollup.MAX_DISTINCT["name"] - 1
    assert (summary["tools"][0]["name"], summary["tools"][0]["calls"]) == (
        rollup.OTHER,
        20_000 - others,
    )
    assert sum(summary["series"]["calls"]) == 20_009


# --- summaries ------------------------------------------------------------------------------------


def record_and_summarize(
    file: Path, *records: CallRecord | RunRecord | SessionRecord, **filters: Any
) -> StatsSummary:
    recorder = Recorder(StatisticsFile(file), clock=lambda: NOW)
    recorder.keep_days = 100_000
    for record in records:
        recorder.add(record)
    recorder.close()
    return summarize(StatisticsFile(file), **{"now": NOW, **filters})


def test_an_empty_summary_has_zeros(file: Path) -> None:
    empty = summarize(StatisticsFile(file), now=NOW)
    assert (empty["total_calls"], empty["success_rate"], empty["tools"]) == (0, None, [])
    assert (empty["context_saved"], empty["time_saved_ms"], empty["runs"]["total"]) == (0, 0, 0)
    assert not file.parent.exists()


def test_a_tool_has_calls_success_times_tokens_and_errors(file: Path) -> None:
    calls = [make_call(seconds=number / 1000, result_tokens=2) for number in range(1, 101)]
    failed = [make_call("db.query", error_type=kind) for kind in ("timeout", "timeout", "network")]
    summary = record_and_summarize(file, *calls, *failed, make_call("db.query"))
    assert summary["tools"] == [
        {
            "name": "web.search",
            "calls": 100,
            "success_rate": 100.0,
            "p50_ms": pytest.approx(50, rel=0.122),
            "p95_ms": pytest.approx(95, rel=0.122),
            "result_tokens": 200,
            "errors": {},
        },
        {
            "name": "db.query",
            "calls": 4,
            "success_rate": 25.0,
            "p50_ms": 100.0,
            "p95_ms": 100.0,
            "result_tokens": 0,
            "errors": {"timeout": 2, "network": 1},
        },
    ]
    assert (summary["total_calls"], summary["success_rate"]) == (104, 97.12)
    assert summary["errors"] == {"timeout": 2, "network": 1}


def test_runs_are_counted_separately_from_calls(file: Path) -> None:
    runs = [make_run(str(number), seconds=number) for number in range(1, 4)]
    summary = record_and_summarize(
        file, *runs, make_run("4", seconds=9, error_type="execution_error")
    )
    times = {"p50_ms": pytest.approx(2000, rel=0.122), "p95_ms": pytest.approx(9000, rel=0.122)}
    assert summary["runs"] == {"total": 4, "failed": 1, "success_rate": 75.0, **times}


@pytest.mark.parametrize(
    ("period", "calls"),
    [("day", 2), ("week", 3), ("month", 4), ("all", 5)],
)
def test_every_number_is_filtered_by_period(file: Path, period: str, calls: int) -> None:
    ages = (0.0, 0.9 * DAY, 6.9 * DAY, 29.9 * DAY, 400.0 * DAY)
    records: list[CallRecord | RunRecord | SessionRecord] = []
    for age in ages:
        records += [
            make_call(run_id=str(age), result_tokens=30, error_type="timeout", at=NOW - age),
            make_run(str(age), round_trips=3, result_tokens=30, answer_tokens=10, at=NOW - age),
            SessionRecord(
                str(age), "default", {"web.search": 100, "db.query": 50}, 40, at=NOW - age
            ),
        ]
    summary = record_and_summarize(file, *records, period=period, round_trip_ms=1000)
    assert (summary["total_calls"], summary["runs"]["total"], summary["errors"]) == (
        calls,
        calls,
        {"timeout": calls},
    )
    assert (
        summary["tools"][0]["calls"]
        == sum(summary["series"]["calls"])
        == sum(summary["series"]["errors"])
        == calls
    )
    assert summary["savings"]["sessions"] == calls
    assert summary["context_saved"] == calls * (150 - 40 + 20)
    assert summary["time_saved_ms"] == calls * 2 * 1000


def test_an_agent_sees_its_own_numbers(file: Path) -> None:
    summary = record_and_summarize(
        file,
        *(make_call(agent=agent) for agent in ("ada", "ada", "bob")),
        *(make_run(agent, agent=agent, round_trips=3, result_tokens=9) for agent in ("ada", "bob")),
        *(SessionRecord(agent, agent, {"web.search": 10}, 4) for agent in ("ada", "bob")),
        agent="ada",
        round_trip_ms=1,
    )
    assert (summary["total_calls"], summary["runs"]["total"]) == (2, 1)
    assert (summary["context_saved"], summary["time_saved_ms"]) == (10 - 4 + 9, 2)
    assert "agent <code>ada</code>" in render_html(summary)


@pytest.mark.slow
def test_one_failure_among_very_many_is_not_rounded_to_100_percent(file: Path) -> None:
    calls = [make_call() for _ in range(30_000)]
    assert (
        record_and_summarize(file, *calls, make_call(error_type="timeout"))["success_rate"] == 99.99
    )


def test_an_unknown_period_lists_the_valid_periods(file: Path) -> None:
    with pytest.raises(ToolError) as caught:
        summarize(StatisticsFile(file), period="invalid")
    assert (
        str(caught.value)
        == "Error: Invalid period 'invalid'. Valid: day, week, month, all. Example:"
        " ot.stats(period='day')"
    )


# --- savings --------------------------------------------------------------------------------------


def test_definitions_count_once_per_session_minus_our_own(file: Path) -> None:
    tools = {"web.search": 300, "db.query": 100}
    sessions = [SessionRecord(name, "default", tools, 50) for name in ("s1", "s1", "s2")]
    assert record_and_summarize(file, *sessions)["context_saved"] == 2 * (400 - 50)
    assert count_rows(file, "definitions") == 2  # the same catalog is stored once


def test_a_session_counts_with_its_largest_number_of_tools(file: Path) -> None:
    few, more = {"web.search": 300}, {"web.search": 300, "db.query": 100}
    sessions = [SessionRecord("s1", "default", tools, 50) for tools in (few, more, few)]
    assert record_and_summarize(file, *sessions)["context_saved"] == 400 - 50


def test_a_session_with_few_tools_may_cost_more_than_it_saves(file: Path) -> None:
    assert (
        record_and_summarize(file, SessionRecord("s1", "default", {"a.b": 30}, 400))[
            "context_saved"
        ]
        == -370
    )


def test_savings_of_runs_are_never_negative(file: Path) -> None:
    kept_out = make_run("r1", round_trips=2, result_tokens=1000, answer_tokens=100)
    talkative = make_run("r2", round_trips=1, result_tokens=10, answer_tokens=500)
    assert record_and_summarize(file, kept_out, talkative)["context_saved"] == 900


def test_round_trips_are_saved_from_the_second_call_on(file: Path) -> None:
    runs = [make_run(str(calls), round_trips=calls) for calls in (0, 1, 5)]
    assert record_and_summarize(file, *runs, round_trip_ms=4000)["time_saved_ms"] == 4 * 4000


def test_the_shares_of_tools_add_up_to_the_total(file: Path) -> None:
    records: list[CallRecord | RunRecord | SessionRecord] = [
        SessionRecord("s1", "default", {"web.search": 300, "db.query": 100}, 40),
        *(make_call("web.search", run_id="r1", result_tokens=600) for _ in range(3)),
        make_call("db.query", run_id="r1", result_tokens=200),
        make_run("r1", round_trips=4, result_tokens=2000, answer_tokens=400),
        make_call("db.query", run_id="r2"),
        make_run("r2", round_trips=2),
        make_call("db.query", run_id=""),  # outside of a run, so it saves nothing
    ]
    whole = record_and_summarize(file, *records, round_trip_ms=1000)
    web, db, other = (
        summarize(StatisticsFile(file), tool=tool, now=NOW, round_trip_ms=1000)
        for tool in ("web.search", "db.query", "no.such")
    )
    assert (web["total_calls"], web["runs"]["total"], web["savings"]["sessions"]) == (3, 1, 1)
    assert (db["total_calls"], db["runs"]["total"]) == (3, 2)
    assert web["context_saved"] == 300 - 30 + 1600 * 1800 / 2000
    assert db["context_saved"] == 100 - 10 + 1600 * 200 / 2000
    assert web["context_saved"] + db["context_saved"] == whole["context_saved"] == 400 - 40 + 1600
    assert web["time_saved_ms"] == 3 * 1000 * 3 / 4
    assert web["time_saved_ms"] + db["time_saved_ms"] == whole["time_saved_ms"] == 4000
    assert (other["total_calls"], other["context_saved"], other["time_saved_ms"]) == (0, 0, 0)
    assert [list(part["series"]["tools"]) for part in (web, db, other)] == [
        ["web.search"],
        ["db.query"],
        [],
    ]


# --- time series ----------------------------------------------------------------------------------


@pytest.mark.parametrize("age", [0, 59, HOUR, 3 * DAY, 60 * DAY, 900 * DAY, 20_000 * DAY, -5 * DAY])
def test_all_time_has_a_readable_number_of_bars(file: Path, age: float) -> None:
    series = record_and_summarize(file, make_call(at=NOW - age), make_call(error_type="timeout"))[
        "series"
    ]
    assert 20 < len(series["calls"]) <= MAX_BARS + 2
    assert (sum(series["calls"]), sum(series["errors"])) == (2, 1)
    assert series["tools"]["web.search"] == series["calls"]
    assert series["calls"][-1] >= 1


def test_a_call_is_counted_in_the_bar_of_its_hour(file: Path) -> None:
    series = record_and_summarize(file, make_call(at=NOW - 5 * HOUR), period="day")["series"]
    assert (len(series["calls"]), series["width_seconds"]) == (25, HOUR)
    assert series["calls"][-6] == 1


def test_a_summary_is_plain_data(file: Path) -> None:
    summary = record_and_summarize(file, make_call(), make_run())
    assert json.loads(json.dumps(summary)) == summary


# --- the report -----------------------------------------------------------------------------------

HOSTILE = '</td><script>alert("x")</script><img src=x onerror=alert(1)>&amp;\u202e\0'


def test_names_are_escaped_in_the_report(file: Path) -> None:
    text = render_html(
        record_and_summarize(file, make_call(HOSTILE, error_type=HOSTILE), tool=HOSTILE)
    )
    assert "<script" not in text
    assert "<img" not in text
    assert "\u202e" not in text
    assert "&lt;script&gt;alert(&#34;x&#34;)" in text


def test_the_report_has_no_external_resources(file: Path) -> None:
    text = render_html(record_and_summarize(file, make_call(), make_run()))
    assert "default-src 'none'" in text
    assert not any(
        word in text
        for word in ("http:", "https:", "//", "url(", "@import", "src=", "<script", "<link")
    )


def test_large_and_small_numbers_are_formatted(file: Path) -> None:
    calls = [make_call(seconds=seconds) for seconds in (0.9996, 0.00012, 60.0, 8_010_000.0)]
    run = make_run(round_trips=2_000_001, result_tokens=10**12)
    text = render_html(record_and_summarize(file, *calls, run, round_trip_ms=4000))
    assert "2,000,000 \N{MULTIPLICATION SIGN} 4 s" in text
    assert "92 d 17 h" in text
    assert "1.00T" in text
    assert "e+" not in text


@pytest.mark.parametrize(
    ("trips", "text"), [(1, "4 s"), (45, "3 min"), (46, "3 min 4 s"), (900, "1 h"), (901, "1 h")]
)
def test_a_duration_omits_zero_parts(file: Path, trips: int, text: str) -> None:
    assert f'<p class="figure">{text}</p>' in render_html(
        record_and_summarize(file, make_run(round_trips=trips + 1), round_trip_ms=4000)
    )


@pytest.mark.parametrize(
    ("tokens", "text"),
    [(999, "999"), (999_499, "999k"), (999_500, "1.00M"), (12_345, "12.3k"), (10**9 - 1, "1.00G")],
)
def test_a_number_of_tokens_with_a_unit_has_at_most_three_digits(
    file: Path, tokens: int, text: str
) -> None:
    assert f">{text}</td>" in render_html(
        record_and_summarize(file, make_call(result_tokens=tokens))
    )


@pytest.mark.parametrize(
    "records", [(), (make_call(),), (make_run(),), (SessionRecord("s", "d", {"a.b": 1}, 90),)]
)
def test_a_report_of_few_records_is_a_complete_page(file: Path, records: tuple[Any, ...]) -> None:
    text = render_html(record_and_summarize(file, *records))
    assert text.startswith("<!doctype html>")
    assert text.endswith("</html>\n")
    assert "None" not in text
    assert "nan" not in text


# --- sums -----------------------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(4))
def test_sums_of_any_period_match_its_calls_and_runs(file: Path, seed: int) -> None:
    chance = random.Random(seed)
    spans = (90.0, HOUR, DAY, 8 * DAY, 31 * DAY, 300 * DAY)
    records: list[CallRecord | RunRecord | SessionRecord] = []
    for number in range(300):
        at, error = (
            NOW - chance.random() * chance.choice(spans),
            chance.choice([None, None, "timeout", "network"]),
        )
        name, owner = f"pack.tool{chance.randrange(4)}", chance.choice(["ada", "bob"])
        run_id = f"r{number}"
        records.append(
            make_call(name, at=at, error_type=error, agent=owner, run_id=run_id, result_tokens=8)
        )
        records.append(
            make_run(
                run_id,
                at=at,
                error_type=error,
                agent=owner,
                round_trips=3,
                result_tokens=8,
                answer_tokens=2,
            )
        )
    chance.shuffle(records)
    recorder = Recorder(StatisticsFile(file), clock=lambda: NOW)
    for position, record in enumerate(
        sorted(records, key=lambda record: isinstance(record, RunRecord))
    ):
        recorder.add(record)
        if position % 97 == 0:
            recorder.flush()
    recorder.close()
    for period, reach in (("day", DAY), ("week", 7 * DAY), ("month", 30 * DAY), ("all", 400 * DAY)):
        for tool, agent in (
            (None, None),
            ("pack.tool1", None),
            (None, "ada"),
            ("pack.tool1", "bob"),
        ):
            found = summarize(StatisticsFile(file), period, tool, agent=agent, now=NOW)
            calls = [
                call
                for call in records
                if isinstance(call, CallRecord)
                and call.at >= NOW - reach
                and tool in {None, call.name}
                and agent in {None, call.agent}
            ]
            assert (
                found["total_calls"]
                == found["runs"]["total"]
                == sum(found["series"]["calls"])
                == len(calls)
            )
            assert found["errors"] == Counter(call.error_type for call in calls if call.error_type)
            assert {each["name"]: each["calls"] for each in found["tools"]} == Counter(
                call.name for call in calls
            )
            assert found["savings"]["result_tokens"] == 6 * len(calls)
            assert found["savings"]["round_trips"] == 2 * len(calls)
            for name, bars in found["series"]["tools"].items():
                assert sum(bars) == sum(call.name == name for call in calls)


@pytest.mark.parametrize("seconds", [0.00011, 0.003, 0.25, 7.0, 60.0, 999.0])
def test_a_percentile_is_at_most_an_eighth_off(file: Path, seconds: float) -> None:
    spread = [make_call(seconds=seconds * factor) for factor in (0.1, 0.5, 1.0, 1.0, 1.0, 2.0, 9.0)]
    (tool,) = record_and_summarize(file, *spread)["tools"]
    assert tool["p50_ms"] == pytest.approx(seconds * 1000, rel=0.125)


def test_a_secret_used_as_a_tool_name_is_not_in_the_statistics(tmp_path: Path) -> None:
    secret = "correct-horse-battery"

    async def names() -> list[str]:
        directories = Directories(working_dir=tmp_path, user=tmp_path)
        async with OneTool(
            read=lambda: Loaded(Settings(), {"KEY": secret}, (), (), directories)
        ) as app:
            await app.bus.call_tool(f"pack.{secret}")
            app.state.recorder.flush()
            return [tool["name"] for tool in summarize(app.state.recorder.database)["tools"]]

    assert anyio.run(names) == ["pack.[REDACTED]"]


def test_a_failure_of_statistics_never_fails_a_call(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def called() -> bool:
        async with OneTool(folder=tmp_path) as app:
            monkeypatch.setattr(app.state.recorder, "add", lambda _record: 1 / 0)
            return (await app.bus.call_tool("ot.version")).ok

    assert anyio.run(called)
    assert '"tool":"ot.version"' in (tmp_path / "logs" / "onetool.log").read_text(encoding="utf-8")


def test_the_benchmark_of_recorded_calls_measures_something() -> None:
    rows = recorded.measure(1, calls=200, days=2.0)
    assert any("statistics of 200 calls in 2 days" in row.what for row in rows)
