"""Test the history of runs and the audit log: the same pages, values and sums from files and from
PostgreSQL.
"""

import json
import math
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from tests.contract.storage_kinds import open_postgres

from onetool.core.audit import AuditLog
from onetool.settings.paths import Directories
from onetool.state.audit_records import AuditFilter
from onetool.state.opening import open_files
from onetool.state.run_records import RunRecord, StoredValues
from onetool.state.stats.database import StatisticsDatabase, StatisticsFile
from onetool.state.stats.details import FailureRecord, list_failures
from onetool.state.stats.history import (
    Position,
    RunFilter,
    find_run,
    iter_runs,
    list_page,
)
from onetool.state.stats.record import CallRecord, Recorder
from onetool.state.stats.rollup import ALL_RUNS, BOUNDS, DAY, list_spending
from onetool.util.redact import Redactor

if TYPE_CHECKING:
    from onetool.state.file_kinds import AuditFile

NOW = 1_800_000_000.0  # January 2027
SECRET = "s3cr3t-value-of-a-key"


class History:
    """A recorder with a clock, and the database that reports read."""

    def __init__(self, database: StatisticsDatabase) -> None:
        self.database = database
        self.recorder = Recorder(database, clock=lambda: NOW)
        self.recorder.redact = Redactor([SECRET]).redact_prefix

    def add_run(self, name: str, number: int, **fields: object) -> None:
        known = {
            "agent": "default",
            "seconds": 0.5,
            "error_type": None,
            "code": f"code of {name}",
            "actor": "",
        }
        values = {**known, "calls": 1, "answer_tokens": 10, "result_tokens": 30, **fields}
        self.recorder.add(RunRecord(name, session="s", round_trips=1, at=NOW - number, **values))  # type: ignore[arg-type]

    def names(self, size: int = 50, **filters: object) -> list[str]:
        """Return the names of all runs of a list, page by page."""
        found, position = list[str](), None
        while True:
            page = list_page(self.database, RunFilter(**filters), position, size)  # type: ignore[arg-type]
            found += [run.id for run in page.runs]
            if (position := page.next) is None:
                return found


@pytest.fixture(params=["files", "postgres"])
def history(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[History]:
    if request.param == "files":
        database: StatisticsDatabase = StatisticsFile(tmp_path / "stats.db")
    else:
        (tmp_path / "database").write_text(request.getfixturevalue("postgres_url"))
        database = open_postgres(tmp_path).recorder.database
    history = History(database)
    yield history
    history.recorder.close()


def test_runs_are_filtered_ordered_and_paged(history: History) -> None:
    for number in range(25):
        facts = {
            "agent": "ada" if number % 2 else "bob",
            "seconds": (number * 7) % 25 / 10,
            "actor": f"token t{number % 3}",
            "token_id": f"id{number % 6}",  # two tokens, one after the other, with each name
        }
        history.add_run(
            f"run{number:02}", number, **facts, error_type="timeout" if number % 5 == 0 else None
        )
        history.recorder.add(
            CallRecord(
                f"p.tool{number % 4}", "ada", "s", f"run{number:02}", 0.1, None, 1, NOW, number
            )
        )
    history.recorder.flush()
    everything = [f"run{number:02}" for number in range(25)]
    assert history.names(7) == everything
    assert history.names(7, order="oldest") == everything[::-1]
    assert history.names(4, agent="ada") == everything[1::2]
    assert history.names(4, actor="token t1", agent="bob") == [
        name for name in everything[::2] if int(name[3:]) % 3 == 1
    ]
    assert history.names(4, token_id="id1", agent="ada") == everything[1::6]
    assert history.names(4, token_id="id1", actor="token t1") == everything[1::6]
    slowest = sorted(range(25), key=lambda number: -((number * 7) % 25))
    assert history.names(3, order="slowest") == [f"run{number:02}" for number in slowest]
    assert history.names(3, order="slowest", min_seconds=2.0, max_seconds=2.3) == [
        f"run{number:02}" for number in slowest if 20 <= (number * 7) % 25 <= 23
    ]
    assert history.names(state="failed") == history.names(error="timeout") == everything[::5]
    assert history.names(2, tool="p.tool3") == everything[3::4]
    assert history.names(text="CODE of run1") == everything[10:20]
    assert history.names(text="100%_!") == []
    assert history.names(since=NOW - 4, until=NOW - 1) == everything[2:5]
    assert (
        list_page(history.database, RunFilter(), Position(NOW - 23, "run23")).runs[0].id == "run24"
    )
    exported = [
        run.id for batch in iter_runs(history.database, RunFilter(agent="bob")) for run, _ in batch
    ]
    assert exported == everything[::2]


def test_values_are_redacted_truncated_and_deleted(history: History) -> None:
    recorder = history.recorder
    for name, age in (("new", 1), ("old", 8 * 86_400)):
        values = StoredValues(printed=f"a\0b {SECRET}", result="\ud800")
        history.add_run(name, age, directory="/work", cost=0.5, values=values)
        values = StoredValues(arguments=json.dumps({"key": SECRET}), error="x" * 100_000)
        recorder.add(
            CallRecord("p.tool", "default", "s", name, 0.1, "timeout", 1, NOW - age, 7, values)
        )
    recorder.flush()
    found = find_run(history.database, "new")
    assert found is not None
    run, (call,) = found
    assert (run.directory, run.cost, call.call_id) == ("/work", 0.5, 7)
    assert call.values is not None
    assert json.loads(call.values.arguments or "") == {"key": "[REDACTED]"}
    assert len(call.values.error or "") < 66_000
    assert run.values == StoredValues(printed="ab [REDACTED]", result="\\ud800")
    assert run.is_visible("default", "")
    assert not run.is_visible("default", "other")
    old = find_run(history.database, "old")
    assert old is not None
    run, (call,) = old
    assert (run.code, run.values, call.values) == (
        "code of old",
        None,
        None,
    )  # the run itself is kept longer
    recorder.max_value_bytes = 60_000
    recorder._sweep.repeat()
    history.add_run("next", 0, values=StoredValues(printed="small"))
    recorder.flush()
    runs = [run for batch in iter_runs(history.database, RunFilter()) for run, _ in batch]
    assert [(run.id, run.values) for run in runs] == [
        ("next", StoredValues(printed="small")),
        ("new", None),
        ("old", None),
    ]
    recorder.keeps_values = False
    history.add_run("last", 0, values=StoredValues(printed="not kept"))
    recorder.flush()
    assert find_run(history.database, "last")[0].values is None  # type: ignore[index]


def test_spending_and_failures_are_summed(history: History) -> None:
    for number, month in enumerate((0, 0, 40)):
        at = month * 86_400 + number
        history.add_run(
            f"run{number}",
            at,
            actor="token laptop",
            token_id="id1",
            cost=0.25,
            error_type="timeout",
            calls=2,
        )
        message = f"no answer of {SECRET} in {number} ms"
        fields = "default", "token laptop", "id1", "p.tool", "timeout", message, f"run{number}"
        history.recorder.add(FailureRecord(*fields, NOW - at))
    history.add_run("local", 5)
    history.recorder.flush()
    first, second, third = list_spending(history.database)
    assert first[:9] == ("2027-01", "token laptop", "default", 2, 4, 2, 20, 60, 0.5)
    assert (second.actor, second.calls, third.month, third.runs) == ("", 1, "2026-12", 1)
    assert [row.calls for row in list_spending(history.database, "2027-01", "default", "id1")] == [
        4
    ]
    assert list_spending(history.database, "2027-01", "default", "id2") == []
    (group,) = list_failures(history.database)
    assert (group.name, group.type, group.count, group.last_at) == (
        "p.tool",
        "timeout",
        3,
        NOW - 40 * 86_400 - 2,
    )
    assert (group.message, group.run_id) == ("no answer of [REDACTED] in 2 ms", "run2")
    assert list_failures(history.database, "default", "id1") == [group]
    assert list_failures(history.database, "default", "id2") == []


@pytest.fixture(params=["files", "postgres"])
def audit(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[AuditLog]:
    redact = Redactor([SECRET])
    records: AuditFile = open_files(Directories(tmp_path, tmp_path)).audit(
        tmp_path / "audit.jsonl", redact
    )
    if request.param == "postgres":
        (tmp_path / "database").write_text(request.getfixturevalue("postgres_url"))
        records = open_postgres(tmp_path).audit(tmp_path, redact)
    log = AuditLog(records, redact)
    log.configure(redact, 4_000, 50)  # rotated often
    yield log
    log.close()


def test_the_audit_log_is_read_newest_first_across_rotated_files(audit: AuditLog) -> None:
    for number in range(60):
        audit.change(
            "token.create",
            [f"name{number}", SECRET],
            actor=f"token t{number % 3}",
            transport="http",
        )
        audit._records._background.flush()  # rotate between records
    names, position = list[str](), None
    while True:
        page = audit.list_page(AuditFilter(actor="token t1"), position, 7)
        names += [record["names"][0] for record in page.records]
        if (position := page.next) is None:
            break
    assert names == [f"name{number}" for number in range(58, 0, -3)]
    (record,) = audit.list_page(AuditFilter(text="NAME42"), None, 5).records
    assert (record["action"], record["names"][1], record["outcome"]) == (
        "token.create",
        "[REDACTED]",
        "ok",
    )
    assert audit.list_page(AuditFilter(kind="call"), None, 5).records == []
    assert audit.list_page(AuditFilter(until=1.0), None, 5).records == []


def test_durations_are_counted_in_the_same_buckets(history: History) -> None:
    for number, bound in enumerate(BOUNDS):
        for seconds in (math.nextafter(bound, 0), bound, math.nextafter(bound, math.inf)):
            history.add_run(f"r_{number}_{seconds!r}", 1, seconds=seconds)
    history.recorder.flush()
    with history.database.reading() as tables:
        query = (
            "SELECT bucket, count FROM times WHERE width = :width AND kind = :kind ORDER BY bucket"
        )
        counts = tables.execute(query, {"width": DAY, "kind": ALL_RUNS}).fetchall()
    last = len(BOUNDS)
    assert counts == [(0, 2), *((bucket, 3) for bucket in range(1, last)), (last, 1)]
