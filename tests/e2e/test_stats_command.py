"""`onetool stats` as a person types it: what it counts, since when, and what becomes of a file that is broken."""

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

from onetool.stats.record import CallRecord, Recorder, RunRecord
from onetool.stats.summary import summarize

DAY = 86_400.0


def stats_file(home: Path) -> Path:
    return home / ".onetool" / "stats" / "stats.db"


def shown(home: Path, *options: str) -> dict[str, Any]:
    done = run_cli(home, "stats", "--json", *options)
    assert (done.returncode, done.stderr) == (0, "")
    summary: dict[str, Any] = json.loads(done.stdout)
    return summary


def run(home: Path, code: str) -> None:
    done = run_cli(home, "run", code)
    assert done.returncode == 0, done.stdout


def called(summary: dict[str, Any]) -> dict[str, int]:
    return {tool["name"]: tool["calls"] for tool in summary["tools"]}


def remember(home: Path, *calls: tuple[str, float], error: str | None = None) -> None:
    """Calls of the past: a name, and how many seconds ago."""
    recorder, now = Recorder(stats_file(home), enabled=True), time.time()
    for number, (name, ago) in enumerate(calls):
        run_id = f"{number} at {now}"
        recorder.add(CallRecord(name, "default", "s", run_id, 0.002, error, 10, now - ago))
        recorder.add(RunRecord(run_id, "default", "s", 0.003, error, 1, 5, 10, now - ago))
    recorder.close()


# --- what it shows ---------------------------------------------------------------------------------------------------


def test_what_was_called_is_counted_across_processes(tmp_path: Path) -> None:
    run(tmp_path, "machine.now()\nmachine.now()\nmachine.disk()")
    assert run_cli(tmp_path, "call", "machine.now").returncode == 0
    assert run_cli(tmp_path, "run", "machine.now()\n1 / 0").returncode == 1
    summary = shown(tmp_path)
    assert called(summary) == {"machine.now": 4, "machine.disk": 1}
    assert (summary["total_calls"], summary["success_rate"]) == (5, 100.0)
    assert (summary["runs"]["total"], summary["runs"]["failed"]) == (2, 1)
    assert shown(tmp_path)["tools"] == summary["tools"]  # asking is no call


def test_the_text_is_a_head_and_a_table(tmp_path: Path) -> None:
    remember(tmp_path, *[("machine.now", 1.0)] * 3)
    remember(tmp_path, ("machine.now", 1.0), error="timeout")
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
def test_a_period_leaves_out_what_is_older(tmp_path: Path, period: str, names: set[str]) -> None:
    remember(tmp_path, ("now", 60), ("yesterday", 1.5 * DAY), ("week", 8 * DAY), ("year", 360 * DAY))
    summary = shown(tmp_path, "--period", period)
    assert set(called(summary)) == names
    assert summary["total_calls"] == summary["runs"]["total"] == len(names)
    assert summary["period"] == period


def test_a_tool_leaves_out_all_others(tmp_path: Path) -> None:
    remember(tmp_path, ("a.one", 1), ("a.two", 1), ("a.one", 2))
    summary = shown(tmp_path, "--tool", "a.one")
    assert called(summary) == {"a.one": 2}
    assert (summary["tool"], summary["total_calls"], summary["runs"]["total"]) == ("a.one", 2, 2)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ((), "No calls recorded. Try: onetool run 'machine.disk()'"),
        (("--tool", "a.b"), "No calls of a.b recorded. Run `onetool stats` to see all calls."),
        (("--period", "day"), "No calls recorded in the last day. Run `onetool stats` to see all calls."),
    ],
)
def test_nothing_is_said_in_words(tmp_path: Path, options: tuple[str, ...], words: str) -> None:
    done = run_cli(tmp_path, "stats", *options)
    assert (done.returncode, done.stdout) == (0, f"{words}\n")
    assert not stats_file(tmp_path).exists()


def test_the_report_is_a_file_and_the_text_says_where(tmp_path: Path) -> None:
    remember(tmp_path, ("machine.now", 1))
    done = run_cli(tmp_path, "stats", "--html", "report.html")
    assert done.stdout.endswith("\nReport: report.html\n")
    page = (tmp_path / "report.html").read_text("utf-8")
    assert page.startswith("<!doctype html>")
    assert "machine.now" in page
    assert shown(tmp_path, "--html", "again.html")["total_calls"] == 1
    assert (tmp_path / "again.html").exists()


def test_a_report_that_cannot_be_written_is_an_error(tmp_path: Path) -> None:
    done = run_cli(tmp_path, "stats", "--html", "missing/report.html")
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr == "onetool: cannot write to missing/report.html: No such file or directory\n"


def test_disabled_statistics_are_neither_recorded_nor_shown(tmp_path: Path) -> None:
    configure(tmp_path, "stats: {enabled: false}")
    run(tmp_path, "machine.now()")
    done = run_cli(tmp_path, "stats")
    assert (done.returncode, done.stdout) == (1, "")
    assert "set `stats: {enabled: true}` in onetool.yaml" in done.stderr
    assert not stats_file(tmp_path).exists()


# --- files that are broken, processes that are many or killed --------------------------------------------------------


def cut_in_half(file: Path) -> bytes:
    content = file.read_bytes()
    file.write_bytes(content[: len(content) // 2])
    return content[: len(content) // 2]


def garbage(file: Path) -> bytes:
    file.write_bytes(b"no database " * 1000)
    return file.read_bytes()


@pytest.mark.parametrize("damage", [cut_in_half, garbage])
def test_a_damaged_file_is_reported_renamed_and_replaced(tmp_path: Path, damage: Callable[[Path], bytes]) -> None:
    remember(tmp_path, *[(f"pack.tool{number}", 60.0) for number in range(2000)])
    left = damage(stats_file(tmp_path))
    done = run_cli(tmp_path, "stats")
    assert done.returncode == 1
    assert "is damaged" in done.stderr
    assert "OneTool renames it" in done.stderr
    assert stats_file(tmp_path).read_bytes() == left
    with connect(tmp_path) as client:
        assert not client.run("machine.now()").is_error
        assert eventually(lambda: "old file: " in get_texts(client.run("ot.health()['problems']"))[0])
    (kept,) = stats_file(tmp_path).parent.glob("stats.db.damaged-*")
    assert kept.read_bytes() == left
    assert called(shown(tmp_path))["machine.now"] == 1


def test_several_processes_at_once_are_counted_exactly(tmp_path: Path) -> None:
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
    summary = shown(tmp_path)
    assert called(summary) == {"machine.now": sum(20 + number for number in range(5))}
    assert summary["runs"]["total"] == 5


def test_a_server_that_is_killed_loses_what_it_had_not_written_and_nothing_else(tmp_path: Path) -> None:
    """It writes by itself, within a second: what has been written stays, the file stays whole."""
    remember(tmp_path, ("past.tool", 60))
    with RawClient(tmp_path) as wire:
        wire.run("for _ in range(7):\n    machine.now()")
        assert eventually(lambda: summarize(stats_file(tmp_path))["total_calls"] == 8)
        wire.run("for _ in range(5):\n    machine.now()")
        os.kill(wire.process.pid, signal.SIGKILL)
    counts = called(shown(tmp_path))
    assert counts["past.tool"] == 1
    assert 7 <= counts["machine.now"] <= 12
    with closing(sqlite3.connect(stats_file(tmp_path))) as database:
        assert database.execute("PRAGMA integrity_check").fetchone() == ("ok",)


# --- what was saved --------------------------------------------------------------------------------------------------

THREE_CALLS = "texts = [ot.help('machine.disk'), ot.help('machine.cpu'), ot.tools(info='list')]\nlen(texts)"
ONE_CALL = "ot.help('machine.now')"
ROUND_TRIP_MS = 1500


def tokens(value: object) -> int:
    """Four bytes a token, whole tokens."""
    text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False, separators=(",", ":"))
    return (len(text.encode()) + 3) // 4


def definitions() -> dict[str, int]:
    """What each tool would cost a client that was connected to it directly."""
    with open_app() as app:
        infos = [app.onetool.bus.tool_info(name) for name in app.onetool.bus.list_tools()]
    return {
        info["name"]: tokens({"name": info["name"], "description": info["description"], "inputSchema": info["schema"]})
        for info in infos
        if not info["name"].startswith("ot.")
    }


def results() -> list[int]:
    """What the three calls give, as another OneTool gives it."""
    with open_app() as app:
        return [
            tokens(app.value("ot.help('machine.disk')")),
            tokens(app.value("ot.help('machine.cpu')")),
            tokens(app.data("ot.tools(info='list')")),
        ]


def test_the_savings_of_a_session_follow_the_formula(tmp_path: Path) -> None:
    configure(tmp_path, f"stats: {{round_trip_ms: {ROUND_TRIP_MS}}}")
    with connect(tmp_path) as client:
        (tool,) = client.tools()
        own = tokens(tool.model_dump(by_alias=True, exclude_none=True)) + tokens(client.client.instructions or "")
        assert get_texts(client.run(THREE_CALLS)) == ["3"]
        client.run(ONE_CALL)  # its result is its answer: it saves nothing
        assert eventually(lambda: summarize(stats_file(tmp_path))["savings"]["sessions"] == 1)
    first, second, third = results()
    kept_out = first + second + third - tokens("3")
    whole = shown(tmp_path)
    assert whole["context_saved"] == sum(definitions().values()) - own + kept_out
    assert whole["time_saved_ms"] == 2 * ROUND_TRIP_MS
    assert whole["savings"] == {
        "definition_tokens": sum(definitions().values()),
        "own_tokens": own,
        "result_tokens": kept_out,
        "sessions": 1,
        "round_trips": 2,
        "round_trip_ms": ROUND_TRIP_MS,
    }
    share = shown(tmp_path, "--tool", "ot.help")
    assert share["context_saved"] == round(kept_out * (first + second) / (first + second + third))
    assert share["time_saved_ms"] == round(2 * 2 / 3 * ROUND_TRIP_MS)
