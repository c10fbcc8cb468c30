"""Test `onetool stats`: counts, periods, reports and damaged files."""

import json
import os
import signal
import sqlite3
import subprocess
import time
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from tests.support import (
    PROGRAM,
    RawClient,
    configure,
    connect,
    environment,
    eventually,
    get_texts,
    open_app,
    run_cli,
)

from onetool.state.run_records import RunRecord
from onetool.state.stats.database import StatisticsFile
from onetool.state.stats.record import CallRecord, Recorder
from onetool.state.stats.summary import summarize

DAY = 86_400.0


def stats_file(home: Path) -> Path:
    return home / ".onetool" / "stats" / "stats.db"


def read_stats(home: Path, *options: str) -> dict[str, Any]:
    done = run_cli(home, "stats", "--json", *options)
    assert (done.returncode, done.stderr) == (0, "")
    summary: dict[str, Any] = json.loads(done.stdout)
    return summary


def run(home: Path, code: str) -> None:
    done = run_cli(home, "run", code)
    assert done.returncode == 0, done.stdout


def count_calls(summary: dict[str, Any]) -> dict[str, int]:
    return {tool["name"]: tool["calls"] for tool in summary["tools"]}


def record_calls(home: Path, *calls: tuple[str, float], error: str | None = None) -> None:
    """Record past calls: a name and an age in seconds."""
    recorder = Recorder(StatisticsFile(stats_file(home)))
    now = time.time()
    for number, (name, ago) in enumerate(calls):
        run_id = f"{number} at {now}"
        recorder.add(CallRecord(name, "default", "s", run_id, 0.002, error, 10, now - ago))
        recorder.add(
            RunRecord(
                run_id,
                "default",
                at=now - ago,
                seconds=0.003,
                error_type=error,
                round_trips=1,
                answer_tokens=5,
                result_tokens=10,
            )
        )
    recorder.close()


# --- output ---------------------------------------------------------------------------------------


def test_calls_are_counted_across_processes(tmp_path: Path) -> None:
    run(tmp_path, "machine.now()\nmachine.now()\nmachine.disk()")
    assert run_cli(tmp_path, "call", "machine.now").returncode == 0
    assert run_cli(tmp_path, "run", "machine.now()\n1 / 0").returncode == 1
    summary = read_stats(tmp_path)
    assert count_calls(summary) == {"machine.now": 4, "machine.disk": 1}
    assert (summary["total_calls"], summary["success_rate"]) == (5, 100.0)
    assert (summary["runs"]["total"], summary["runs"]["failed"]) == (2, 1)
    assert read_stats(tmp_path)["tools"] == summary["tools"]  # `onetool stats` is not counted


def test_the_output_is_a_summary_and_a_table(tmp_path: Path) -> None:
    record_calls(tmp_path, *[("machine.now", 1.0)] * 3)
    record_calls(tmp_path, ("machine.now", 1.0), error="timeout")
    done = run_cli(tmp_path, "stats")
    assert done.stdout.splitlines() == [
        "calls          4 (75% success)",
        "runs           4 (75% success)",
        "context saved  20 tokens (estimated) in 0 sessions",
        "time saved     0 s (0 round trips avoided)",
        "",
        "tool         calls  success  p50 ms  p95 ms",
        "machine.now      4      75%     2.0     2.0",
    ]


@pytest.mark.parametrize(
    ("period", "names"),
    [
        ("day", {"now"}),
        ("week", {"now", "yesterday"}),
        ("month", {"now", "yesterday", "week"}),
        ("all", {"now", "yesterday", "week", "year"}),
    ],
)
def test_a_period_excludes_older_calls(tmp_path: Path, period: str, names: set[str]) -> None:
    record_calls(
        tmp_path, ("now", 60), ("yesterday", 1.5 * DAY), ("week", 8 * DAY), ("year", 360 * DAY)
    )
    summary = read_stats(tmp_path, "--period", period)
    assert set(count_calls(summary)) == names
    assert summary["total_calls"] == summary["runs"]["total"] == len(names)
    assert summary["period"] == period


def test_the_tool_option_excludes_other_tools(tmp_path: Path) -> None:
    record_calls(tmp_path, ("a.one", 1), ("a.two", 1), ("a.one", 2))
    summary = read_stats(tmp_path, "--tool", "a.one")
    assert count_calls(summary) == {"a.one": 2}
    assert (summary["tool"], summary["total_calls"], summary["runs"]["total"]) == ("a.one", 2, 2)


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ((), "No calls recorded. Try: onetool run 'machine.disk()'"),
        (("--tool", "a.b"), "No calls of a.b recorded. Run `onetool stats` to see all calls."),
        (
            ("--period", "day"),
            "No calls recorded in the last day. Run `onetool stats` to see all calls.",
        ),
    ],
)
def test_empty_statistics_print_a_message(
    tmp_path: Path, options: tuple[str, ...], expected: str
) -> None:
    done = run_cli(tmp_path, "stats", *options)
    assert (done.returncode, done.stdout) == (0, f"{expected}\n")
    assert not stats_file(tmp_path).exists()


def test_the_report_is_written_and_its_path_is_printed(tmp_path: Path) -> None:
    record_calls(tmp_path, ("machine.now", 1))
    done = run_cli(tmp_path, "stats", "--html", "report.html")
    assert done.stdout.endswith("\nReport: report.html\n")
    page = (tmp_path / "report.html").read_text("utf-8")
    assert page.startswith("<!doctype html>")
    assert "machine.now" in page
    assert read_stats(tmp_path, "--html", "again.html")["total_calls"] == 1
    assert (tmp_path / "again.html").exists()


def test_a_report_that_cannot_be_written_is_an_error(tmp_path: Path) -> None:
    done = run_cli(tmp_path, "stats", "--html", "missing/report.html")
    assert (done.returncode, done.stdout) == (1, "")
    assert (
        done.stderr == "onetool: cannot write to missing/report.html: No such file or directory\n"
    )


def test_disabled_statistics_are_neither_recorded_nor_shown(tmp_path: Path) -> None:
    configure(tmp_path, "stats: {enabled: false}")
    run(tmp_path, "machine.now()")
    done = run_cli(tmp_path, "stats")
    assert (done.returncode, done.stdout) == (1, "")
    assert "set `stats: {enabled: true}` in onetool.yaml" in done.stderr
    with closing(sqlite3.connect(stats_file(tmp_path))) as database:  # has the shapes of results
        tables = {
            name
            for (name,) in database.execute("SELECT name FROM sqlite_master WHERE type = 'table'")
        }
        assert [
            table
            for table in tables - {"shapes"}
            if database.execute(f"SELECT 1 FROM {table}").fetchone()
        ] == []


# --- damaged files, concurrent and killed processes -----------------------------------------------


def truncate(file: Path) -> bytes:
    content = file.read_bytes()
    file.write_bytes(content[: len(content) // 2])
    return content[: len(content) // 2]


def overwrite(file: Path) -> bytes:
    file.write_bytes(b"no database " * 1000)
    return file.read_bytes()


@pytest.mark.parametrize("damage", [truncate, overwrite])
def test_a_damaged_file_is_reported_renamed_and_replaced(
    tmp_path: Path, damage: Callable[[Path], bytes]
) -> None:
    record_calls(tmp_path, *[(f"pack.tool{number}", 60.0) for number in range(2000)])
    left = damage(stats_file(tmp_path))
    done = run_cli(tmp_path, "stats")
    assert done.returncode == 1
    assert "is damaged" in done.stderr
    assert "OneTool renames it" in done.stderr
    assert stats_file(tmp_path).read_bytes() == left
    with connect(tmp_path) as client:
        assert not client.run("machine.now()").is_error
        assert eventually(
            lambda: "old file: " in get_texts(client.run("ot.health()['problems']"))[0]
        )
    kept, *logs = sorted(stats_file(tmp_path).parent.glob("stats.db.damaged-*"))
    assert all(each.name.endswith(("-shm", "-wal")) for each in logs)
    assert kept.read_bytes() == left
    assert count_calls(read_stats(tmp_path))["machine.now"] == 1


def test_calls_of_concurrent_processes_are_counted_exactly(tmp_path: Path) -> None:
    processes = [
        subprocess.Popen(
            [PROGRAM, "run", f"for _ in range({20 + number}):\n    machine.now()"],
            cwd=tmp_path,
            env=environment(tmp_path),
            stdout=subprocess.DEVNULL,
        )
        for number in range(5)
    ]
    assert [process.wait(60) for process in processes] == [0] * 5
    summary = read_stats(tmp_path)
    assert count_calls(summary) == {"machine.now": sum(20 + number for number in range(5))}
    assert summary["runs"]["total"] == 5


def test_a_killed_server_loses_only_unwritten_counts(tmp_path: Path) -> None:
    """The server writes within a second: written counts are kept and the file stays valid."""
    record_calls(tmp_path, ("past.tool", 60))
    with RawClient(tmp_path) as wire:
        wire.run("for _ in range(7):\n    machine.now()")
        assert eventually(
            lambda: summarize(StatisticsFile(stats_file(tmp_path)))["total_calls"] == 8
        )
        wire.run("for _ in range(5):\n    machine.now()")
        os.kill(wire.process.pid, signal.SIGKILL)
    counts = count_calls(read_stats(tmp_path))
    assert counts["past.tool"] == 1
    assert 7 <= counts["machine.now"] <= 12
    with closing(sqlite3.connect(stats_file(tmp_path))) as database:
        assert database.execute("PRAGMA integrity_check").fetchone() == ("ok",)


# --- savings --------------------------------------------------------------------------------------

THREE_CALLS = (
    "texts = [ot.help('machine.disk'), ot.help('machine.cpu'), ot.tools(info='list')]\nlen(texts)"
)
ONE_CALL = "ot.help('machine.now')"
ROUND_TRIP_MS = 1500


def estimate_tokens(value: object) -> int:
    """Estimate the number of tokens: four bytes per token, rounded up."""
    text = (
        value
        if isinstance(value, str)
        else json.dumps(value, ensure_ascii=False, separators=(",", ":"))
    )
    return (len(text.encode()) + 3) // 4


def measure_definitions() -> dict[str, int]:
    """Return the tokens of each tool definition for a directly connected client."""
    with open_app() as app:
        infos = [app.onetool.bus.tool_info(name) for name in app.onetool.bus.list_tools()]
    return {
        info["name"]: estimate_tokens(
            {
                "name": info["name"],
                "description": info["description"],
                "inputSchema": info["schema"],
            }
        )
        for info in infos
        if not info["name"].startswith("ot.")
    }


def measure_results() -> list[int]:
    """Return the tokens of the results of the three calls."""
    with open_app() as app:
        return [
            estimate_tokens(app.value("ot.help('machine.disk')")),
            estimate_tokens(app.value("ot.help('machine.cpu')")),
            estimate_tokens(app.data("ot.tools(info='list')")),
        ]


def test_the_savings_of_a_session_follow_the_formula(tmp_path: Path) -> None:
    configure(tmp_path, f"stats: {{round_trip_ms: {ROUND_TRIP_MS}}}")
    with connect(tmp_path) as client:
        (tool,) = client.tools()
        own = estimate_tokens(tool.model_dump(by_alias=True, exclude_none=True)) + estimate_tokens(
            client.client.instructions or ""
        )
        assert get_texts(client.run(THREE_CALLS)) == ["3"]
        client.run(ONE_CALL)  # the run returns the result of the call, so it saves nothing
        assert eventually(
            lambda: summarize(StatisticsFile(stats_file(tmp_path)))["savings"]["sessions"] == 1
        )
    first, second, third = measure_results()
    result_tokens = first + second + third - estimate_tokens("3")
    whole = read_stats(tmp_path)
    assert whole["context_saved"] == sum(measure_definitions().values()) - own + result_tokens
    assert whole["time_saved_ms"] == 2 * ROUND_TRIP_MS
    assert whole["savings"] == {
        "definition_tokens": sum(measure_definitions().values()),
        "own_tokens": own,
        "result_tokens": result_tokens,
        "sessions": 1,
        "round_trips": 2,
        "round_trip_ms": ROUND_TRIP_MS,
    }
    share = read_stats(tmp_path, "--tool", "ot.help")
    assert share["context_saved"] == round(
        result_tokens * (first + second) / (first + second + third)
    )
    assert share["time_saved_ms"] == round(2 * 2 / 3 * ROUND_TRIP_MS)
