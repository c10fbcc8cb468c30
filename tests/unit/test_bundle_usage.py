"""Counts of calls: exact over processes, apart from the tools' files, and never in a caller's way."""

import subprocess
import sys
from datetime import timedelta
from pathlib import Path

import pytest
from tests.bundles_support import START, folder_of, new_bundle, store_in, tool_body

from ot.bundles.usage import Counters

COUNT = """
import sys
from datetime import datetime, timedelta
from pathlib import Path
from ot.bundles.usage import Counters

counters = Counters(Path(sys.argv[1]))
start = datetime.fromisoformat(sys.argv[2])
for number in range(int(sys.argv[3])):
    counters.count("a" if number % 2 else "b", start + timedelta(seconds=number))
    if number % 50 == 0:
        counters.flush()
counters.close()
"""


@pytest.mark.slow
def test_counts_of_four_processes_add_up_exactly(tmp_path: Path) -> None:
    file = tmp_path / "usage" / "usage.db"
    command = [sys.executable, "-c", COUNT, str(file), START.isoformat(), "400"]
    processes = [subprocess.Popen(command) for _ in range(4)]
    assert [process.wait(60) for process in processes] == [0] * 4
    counters = Counters(file)
    found = counters.of(["a", "b", "c"])
    assert {tool: usage.calls for tool, usage in found.items()} == {"a": 800, "b": 800}
    assert found["a"].last == "2026-11-15T12:06:39.000000Z"
    counters.close()


UNTIL_KILLED = """
import sys
from datetime import UTC, datetime
from pathlib import Path
from ot.bundles.usage import Counters

counters = Counters(Path(sys.argv[1]))
while True:
    counters.count("a", datetime.now(UTC))
    counters.flush()
    print("counted", flush=True)
"""


@pytest.mark.slow
def test_killed_processes_lose_only_what_they_had_not_written_and_double_nothing(tmp_path: Path) -> None:
    file = tmp_path / "usage.db"
    command = [sys.executable, "-c", UNTIL_KILLED, str(file)]
    processes = [subprocess.Popen(command, stdout=subprocess.PIPE, text=True) for _ in range(6)]
    written = 0
    for number, process in enumerate(processes):
        assert process.stdout is not None
        for _ in range(5 + number):
            assert process.stdout.readline() == "counted\n"
        process.kill()
        written += 5 + number + len(process.stdout.read().splitlines())
        process.wait(30)
        process.stdout.close()
    counters = Counters(file)
    assert written <= counters.of(["a"])["a"].calls <= written + len(processes)
    counters.close()


def test_the_latest_call_counts_whatever_the_order(tmp_path: Path) -> None:
    counters = Counters(tmp_path / "usage.db")
    for minutes in (3, 9, 1):
        counters.count("a", START + timedelta(minutes=minutes))
        counters.flush()
    assert counters.of(["a"])["a"] == (3, "2026-11-15T12:09:00.000000Z")
    counters.close()


def test_what_cannot_be_written_is_kept_and_said(tmp_path: Path) -> None:
    (tmp_path / "usage").write_text("a file where the folder should be")
    counters = Counters(tmp_path / "usage" / "usage.db")
    for _ in range(3):
        counters.count("a", START)
        counters.flush()
    assert "cannot be written" in counters.problems[0]
    (tmp_path / "usage").unlink()
    counters.flush()
    assert counters.of(["a"])["a"].calls == 3
    assert counters.problems == []
    counters.close()


def test_a_damaged_file_is_kept_aside_and_begun_anew(tmp_path: Path) -> None:
    file = tmp_path / "usage.db"
    file.write_bytes(b"no database at all" * 500)
    counters = Counters(file)
    counters.count("a", START)
    counters.flush()
    assert counters.of(["a"])["a"].calls == 1
    assert "damaged" in counters.problems[0]
    (kept,) = tmp_path.glob("usage.db.damaged-*")
    assert kept.read_bytes().startswith(b"no database")
    counters.close()


@pytest.mark.spec("bundles.usage.exact", "bundles.usage.apart")
def test_counting_never_touches_the_file_of_a_tool(tmp_path: Path) -> None:
    with store_in(tmp_path / "bundles") as store, store_in(tmp_path / "bundles") as other:
        bundle = new_bundle(store)
        tool = store.put_tool(bundle, "tool", "1", tool_body())
        assert (tool.call_count, tool.last_called_at) == (0, None)
        file = folder_of(tmp_path / "bundles", bundle) / "tool@1.json"
        before, number = (file.read_bytes(), file.stat().st_mtime_ns), store.version()
        for one in (store, other, store):
            one.count_call(tool.id, START)
            one.flush()
        assert (file.read_bytes(), file.stat().st_mtime_ns) == before
        assert store.version() == number
        for found in (
            other.get_tool(bundle, "tool", "1"),
            store.list_tools().items[0],
            store.search("tool").items[0].tool,
        ):
            assert (found.call_count, found.last_called_at) == (3, START)
            assert found.modified_at == tool.modified_at


def test_a_tool_that_is_put_again_starts_at_nought(tmp_path: Path) -> None:
    with store_in(tmp_path / "bundles") as store:
        bundle = new_bundle(store)
        for _ in range(2):
            tool = store.put_tool(bundle, "tool", "1", tool_body())
            store.count_call(tool.id, START)
            store.flush()
            assert store.get_tool(bundle, "tool", "1").call_count == 1
            store.delete_tool(bundle, "tool", "1")
