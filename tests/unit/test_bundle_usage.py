"""Call counts of stored tools: exact across processes, separate from tool files, and never blocking
a caller.
"""

import subprocess
import sys
from datetime import timedelta
from pathlib import Path

import pytest
from tests.bundles_support import START, bundle_directory, new_bundle, open_store, tool_body

from onetool.sources.bundles.reader import UsageCounts
from onetool.state.stats.database import StatisticsFile
from onetool.state.stats.record import Recorder, UseRecord

COUNT = """
import sys
from pathlib import Path
from onetool.state.stats.database import StatisticsFile
from onetool.state.stats.record import Recorder, UseRecord

recorder = Recorder(StatisticsFile(Path(sys.argv[1])))
recorder.enabled = False
for number in range(int(sys.argv[3])):
    recorder.add(UseRecord("a" if number % 2 else "b", float(sys.argv[2]) + number))
    if number % 50 == 0:
        recorder.flush()
recorder.close()
"""


def count_uses(file: Path, *uses: UseRecord) -> None:
    recorder = Recorder(StatisticsFile(file))
    recorder.enabled = False
    for use in uses:
        recorder.add(use)
    recorder.close()
    assert recorder.problem is None


@pytest.mark.slow
@pytest.mark.spec("bundles.usage.exact")
def test_counts_of_four_processes_add_up_exactly(tmp_path: Path) -> None:
    file = tmp_path / "stats" / "stats.db"
    command = [sys.executable, "-c", COUNT, str(file), str(START.timestamp()), "400"]
    processes = [subprocess.Popen(command) for _ in range(4)]
    assert [process.wait(60) for process in processes] == [0] * 4
    found = UsageCounts(StatisticsFile(file)).of(["a", "b", "c"])
    assert {tool: usage.calls for tool, usage in found.items()} == {"a": 800, "b": 800}
    assert found["a"].last == "2026-11-15T12:06:39.000000Z"


def test_the_latest_call_is_recorded_in_any_order(tmp_path: Path) -> None:
    file = tmp_path / "stats.db"
    for minutes in (3, 9, 1):
        count_uses(file, UseRecord("a", (START + timedelta(minutes=minutes)).timestamp()))
    assert UsageCounts(StatisticsFile(file)).of(["a"])["a"] == (3, "2026-11-15T12:09:00.000000Z")


def test_a_damaged_file_is_reported_and_has_no_counts(tmp_path: Path) -> None:
    file = tmp_path / "stats.db"
    file.write_bytes(b"no database at all" * 500)
    counts = UsageCounts(StatisticsFile(file))
    assert counts.of(["a"]) == {}
    assert "cannot read" in str(counts.problem)


@pytest.mark.spec("bundles.usage.exact", "bundles.usage.apart")
def test_counting_does_not_change_the_file_of_a_tool(tmp_path: Path) -> None:
    with open_store(tmp_path / "bundles") as store, open_store(tmp_path / "bundles") as other:
        bundle = new_bundle(store)
        tool = store.put_tool(bundle, "tool", "1", tool_body())
        assert (tool.call_count, tool.last_called_at) == (0, None)
        file = bundle_directory(tmp_path / "bundles", bundle) / "tool@1.json"
        before, number = (file.read_bytes(), file.stat().st_mtime_ns), store.version()
        count_uses(tmp_path / "stats" / "stats.db", *[UseRecord(tool.id, START.timestamp())] * 3)
        assert (file.read_bytes(), file.stat().st_mtime_ns) == before
        assert store.version() == number
        for found in (
            other.get_tool(bundle, "tool", "1"),
            store.list_tools().items[0],
            store.search("tool").items[0].tool,
        ):
            assert (found.call_count, found.last_called_at) == (3, START)
            assert found.modified_at == tool.modified_at


def test_a_recreated_tool_starts_at_zero(tmp_path: Path) -> None:
    with open_store(tmp_path / "bundles") as store:
        bundle = new_bundle(store)
        for _ in range(2):
            tool = store.put_tool(bundle, "tool", "1", tool_body())
            count_uses(tmp_path / "stats" / "stats.db", UseRecord(tool.id, START.timestamp()))
            assert store.get_tool(bundle, "tool", "1").call_count == 1
            store.delete_tool(bundle, "tool", "1")
