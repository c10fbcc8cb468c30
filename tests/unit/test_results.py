"""Large results: private to their agent, stored completely or not at all, and read in windows."""

import json
import os
import re
import stat
import subprocess
import sys
from collections import deque
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from random import Random
from tempfile import TemporaryDirectory
from threading import Barrier
from typing import Any, NamedTuple

import pytest
from hypothesis import example, given, settings, strategies as st
from tests.state_support import ResultStore
from tests.support import measure_seconds

from onetool.errors import ArgumentError, StorageError, ToolError, ToolTimeout
from onetool.runs.results.blobs import Quota
from onetool.runs.results.matches import (
    compile_pattern,
    find_lines,
    find_parts,
    find_similar,
    split_lines,
)
from onetool.runs.results.window import Deadline
from onetool.state.result_parts import LOCK, USAGE, ResultFiles
from onetool.util.clock_watch import ClockWatch

HOUR = 3600.0
NEVER_STORED = "0" * 32
PAGE = 65_536  # errors are likely at multiples of this length in characters


class Clock:
    def __init__(self) -> None:
        self.now = 1_800_000_000.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    return tmp_path / ".onetool" / "tmp"


@pytest.fixture
def results(directory: Path, clock: Clock) -> ResultStore:
    return ResultStore(directory, HOUR, 10, clock, steady=clock)


def store_text(results: ResultStore, text: str, **more: Any) -> str:
    handle = results.put(text, tool="demo.tool", **more)["handle"]
    assert isinstance(handle, str)
    return handle


def make_lines(count: int) -> str:
    return "".join(f"line {number}\n" for number in range(1, count + 1))


def list_files(directory: Path, handle: str = "") -> set[str]:
    return {
        path.name
        for path in directory.iterdir()
        if handle in path.name and path.name not in {LOCK, USAGE}
    }


def run_program(code: str, *args: object) -> subprocess.Popen[str]:
    command = [sys.executable, "-c", code, *map(str, args)]
    return subprocess.Popen(command, stdout=subprocess.PIPE, text=True)


# --- the quota ------------------------------------------------------------------------------------


def store_with_quota(directory: Path, clock: Clock, total: int, of_agent: int) -> ResultStore:
    return ResultStore(directory, HOUR, 3, clock, quota=Quota(total, of_agent), steady=clock)


def result_exists(results: ResultStore, handle: str, agent: str = "default") -> bool:
    try:
        results.window(handle, agent=agent)
    except ToolError as error:
        if error.reason != "evicted" or "was removed to make room" not in str(error):
            raise
        return False
    return True


def test_the_oldest_results_of_an_agent_are_removed_first(directory: Path, clock: Clock) -> None:
    results = store_with_quota(directory, clock, 1_000_000, 100_000)
    other = store_text(results, "x" * 40_000, agent="other")
    clock.now += 1
    handles = []
    for _ in range(5):
        handles.append(store_text(results, "x" * 40_000))
        clock.now += 1
    assert [result_exists(results, handle) for handle in handles] == [
        False,
        False,
        False,
        True,
        True,
    ]
    assert result_exists(results, other, "other")
    assert results.put("x" * 40_000, tool="t")["note"] == "1 older result removed to make room"


def test_the_oldest_results_of_all_agents_are_removed_first(directory: Path, clock: Clock) -> None:
    results = store_with_quota(directory, clock, 120_000, 100_000)
    handles = {}
    for agent in "abc":
        handles[agent] = store_text(results, "x" * 40_000, agent=agent)
        clock.now += 1
    assert {agent: result_exists(results, handle, agent) for agent, handle in handles.items()} == {
        "a": False,
        "b": True,
        "c": True,
    }


def test_the_quota_counts_results_of_other_and_earlier_processes(
    directory: Path, clock: Clock
) -> None:
    first = store_text(store_with_quota(directory, clock, 100_000, 100_000), "x" * 60_000)
    clock.now += 1
    results = store_with_quota(directory, clock, 100_000, 100_000)
    store_text(results, "x" * 60_000)
    assert not result_exists(results, first)


def test_the_quota_applies_to_concurrently_stored_results(directory: Path) -> None:
    barrier = Barrier(8)

    def pieces() -> Iterator[str]:
        barrier.wait(30)  # all are being written before the first one is complete
        yield "x" * 900_000

    def store() -> None:
        ResultStore(directory, HOUR, 3, quota=Quota(1_000_000, 1_000_000)).put(pieces(), tool="t")

    with ThreadPoolExecutor(8) as pool:
        for stored in [pool.submit(store) for _ in range(8)]:
            stored.result()
    assert sum(file.stat().st_size for file in directory.glob("*.txt")) == 900_000


def test_the_quota_counts_separate_values_and_unfinished_files(
    directory: Path, clock: Clock
) -> None:
    results = store_with_quota(directory, clock, 100_000, 100_000)
    first = store_text(results, "x" * 10_000, beside="1" * 50_000)
    clock.now += 1
    second = store_text(results, "x" * 10_000, beside="1" * 50_000)
    assert not result_exists(results, first)
    unfinished = directory / f"result-{NEVER_STORED}.txt.tmp"
    unfinished.write_bytes(b"x" * 60_000)
    clock.now += 601  # from then on, the files are listed again
    os.utime(unfinished, (clock.now, clock.now))
    third = store_text(results, "x" * 10_000)
    assert (result_exists(results, second), result_exists(results, third), unfinished.exists()) == (
        False,
        True,
        True,
    )
    with pytest.raises(StorageError, match="max_stored_bytes"):
        results.put("x" * 60_000, tool="t", beside="1" * 60_000)


def test_storing_a_result_does_not_look_at_all_others(directory: Path, clock: Clock) -> None:
    results = store_with_quota(directory, clock, 1 << 30, 1 << 30)

    def store_many() -> None:
        for _ in range(100):
            store_text(results, "x" * 5_000)

    store_many()
    few = measure_seconds(store_many, times=2)
    for _ in range(15):
        store_many()
    assert measure_seconds(store_many) < 3 * few


def test_the_recorded_sizes_are_not_written_through_a_link(directory: Path, clock: Clock) -> None:
    directory.mkdir(parents=True, exist_ok=True)
    (other := directory.parent / "other").write_text("mine")
    (directory / USAGE).symlink_to(other)
    results = store_with_quota(directory, clock, 1 << 30, 1 << 30)
    for _ in range(2):
        store_text(results, "x" * 5_000)
    assert other.read_text() == "mine"
    assert not (directory / USAGE).is_symlink()


def test_a_full_store_makes_room_for_several_results_at_once(directory: Path, clock: Clock) -> None:
    results = store_with_quota(directory, clock, 1_000_000, 1_000_000)
    removed = []
    for _ in range(200):
        answer = results.put("x" * 5_000, tool="t")
        removed.append(int(answer.get("note", "0").partition(" ")[0]))
        clock.now += 1
    assert sum(map(bool, removed)) < sum(removed) / 2
    assert sum(path.stat().st_size for path in directory.glob("*.txt")) > 250_000


def test_small_results_count_with_their_size_on_disk(directory: Path, clock: Clock) -> None:
    results = store_with_quota(directory, clock, 100_000, 100_000)
    for _ in range(50):
        store_text(results, "small")
        clock.now += 1
    assert len([name for name in list_files(directory) if name.endswith(".txt")]) < 12


def test_a_result_larger_than_the_quota_is_an_error(directory: Path, clock: Clock) -> None:
    results = store_with_quota(directory, clock, 1_000_000, 100_000)
    kept = store_text(results, "kept")
    with pytest.raises(
        StorageError, match=r"max_stored_bytes_per_agent is 100000 bytes\nHint: return a smaller"
    ):
        results.put(("x" * 10_000 for _ in range(1_000_000)), tool="t")
    assert result_exists(results, kept)
    assert len(list_files(directory)) == 3


def test_markers_of_removed_results_are_bounded(directory: Path, clock: Clock) -> None:
    results = store_with_quota(directory, clock, 20_000, 20_000)
    for _ in range(30):
        store_text(results, "x" * 10_000)
        clock.now += 1
    existing = ResultFiles(directory, ClockWatch(clock), max_remembered=5).clean(HOUR)
    assert len(list_files(directory)) == 5 + 3 * len(existing)


# --- storing --------------------------------------------------------------------------------------


def test_a_stored_result_has_a_summary(results: ResultStore) -> None:
    text = make_lines(1200)
    answer = results.put(text, tool="demo.tool")
    handle = answer.pop("handle")
    assert re.fullmatch("[0-9a-f]{32}", handle)
    assert answer == {
        "total_lines": 1200,
        "size_bytes": len(text),
        "summary": f"text, 1,200 lines, {len(text):,} bytes",
        "preview": [f"line {number}" for number in range(1, 11)],
        "query": f"ot.result(handle='{handle}', offset=1, limit=50)",
    }


def test_content_and_meta_files_are_written(results: ResultStore, directory: Path) -> None:
    handle = store_text(results, "ünï\ntwo", agent="careful")
    assert list_files(directory) == {
        f"result-{handle}.{part}" for part in ("txt", "idx", "meta.json")
    }
    assert (directory / f"result-{handle}.txt").read_text(encoding="utf-8") == "ünï\ntwo"
    meta = json.loads((directory / f"result-{handle}.meta.json").read_text(encoding="utf-8"))
    assert meta["handle"] == handle
    assert (meta["total_lines"], meta["size_bytes"], meta["tool"]) == (2, 9, "demo.tool")
    assert (meta["agent"], meta["kind"]) == ("careful", "text")
    assert meta["created_at"] == "2027-01-15T08:00:00+00:00"


def test_files_are_readable_by_their_owner_only(results: ResultStore, directory: Path) -> None:
    directory.mkdir(parents=True, mode=0o755)
    before = os.umask(0)
    try:
        store_text(results, "secret", beside='{"a": 1}')
    finally:
        os.umask(before)
    assert stat.S_IMODE(directory.stat().st_mode) == 0o700
    assert {stat.S_IMODE(path.stat().st_mode) for path in directory.iterdir()} == {0o600}


def test_handles_are_unique(results: ResultStore) -> None:
    assert len({store_text(results, "same text") for _ in range(50)}) == 50


@pytest.mark.parametrize(
    ("text", "lines"),
    [
        ("", []),
        ("\n", [""]),
        ("a", ["a"]),
        ("a\n", ["a"]),
        ("a\n\n", ["a", ""]),
        ("a\nb", ["a", "b"]),
        ("a\r\nb\r\n", ["a", "b"]),
        ("a\rb\x0bc\u2028d\x85e", ["a\rb\x0bc\u2028d\x85e"]),
        ("half \ud800 a character", [r"half \ud800 a character"]),
    ],
)
def test_lines_end_at_line_feeds_only(results: ResultStore, text: str, lines: list[str]) -> None:
    answer = results.put(text, tool="demo.tool")
    assert answer["total_lines"] == len(lines)
    assert answer["preview"] == lines
    assert results.window(answer["handle"], unit="lines")["lines"] == lines


def test_the_preview_is_truncated_for_any_lines(directory: Path) -> None:
    long = "x" * 10_000
    assert ResultStore(directory, HOUR, 0).put(make_lines(5), tool="t")["preview"] == []
    first, second = ResultStore(directory, HOUR, 2).put(f"{long}\n{long}\nend", tool="t")["preview"]
    assert first == second == "x" * 500 + "… [9,500 more characters]"


@pytest.mark.parametrize(
    ("line", "output"),
    [
        ("x" * 500 + "\r", "x" * 500),
        ("x" * 499 + "\ry", "x" * 499 + "\r… [1 more character]"),
        ("x" * 501 + "\r", "x" * 500 + "… [1 more character]"),
    ],
)
def test_the_preview_counts_omitted_characters(
    results: ResultStore, line: str, output: str
) -> None:
    assert results.put(f"{line}\nend", tool="t")["preview"] == [output, "end"]


def test_the_summary_may_describe_a_separate_value(results: ResultStore, directory: Path) -> None:
    answer = results.put("a: 1\n", tool="t", about="JSON object with key a", beside='{"a": 1}')
    assert answer["summary"] == "JSON object with key a, 1 line, 5 bytes"
    assert results.load(answer["handle"]) == {"a": 1}
    assert (directory / f"result-{answer['handle']}.json").exists()


@pytest.mark.slow
@settings(deadline=None, max_examples=40)
@given(
    st.lists(
        st.sampled_from(["", "a", "\n", "é\r", "x" * 65_536, "yz\n" * 30_000, "😀" * 501]),
        max_size=9,
    )
)
def test_chunks_are_stored_like_the_whole_text(shared: ResultStore, pieces: list[str]) -> None:
    text = "".join(pieces)
    whole, cut = shared.put(text, tool="t"), shared.put(iter(pieces), tool="t")
    assert shared.load(whole["handle"]) == shared.load(cut["handle"]) == text
    assert whole["query"].replace(whole.pop("handle"), cut["handle"]) == cut["query"]
    assert {**whole, "query": cut["query"], "handle": cut["handle"]} == cut


def test_an_error_while_chunks_are_produced_leaves_no_files(
    results: ResultStore, directory: Path
) -> None:
    def pieces() -> Iterator[str]:
        yield "x" * 100_000
        raise RuntimeError("the source broke")

    with pytest.raises(RuntimeError, match="the source broke"):
        results.put(pieces(), tool="t")
    assert list_files(directory) == set()


def test_json_text_without_a_value_has_a_summary(results: ResultStore) -> None:
    assert results.put("[1,2]", tool="t", is_json=True)["summary"] == "JSON, 1 line, 5 bytes"


def test_a_result_that_cannot_be_stored_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("in the way", encoding="utf-8")
    with pytest.raises(
        ToolError, match=r"demo\.tool .* cannot be stored in .*: File exists\nHint: free"
    ):
        store_text(ResultStore(tmp_path / "file", HOUR, 10), "text")
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "elsewhere")
    with pytest.raises(ToolError, match="the directory is a symbolic link"):
        store_text(ResultStore(tmp_path / "link", HOUR, 10), "text")
    assert not list((tmp_path / "elsewhere").iterdir())


def test_a_full_disk_leaves_no_files(directory: Path) -> None:
    """Simulate a full disk with a limit on the size of files."""
    code = """
import resource, signal, sys
from pathlib import Path
from tests.state_support import ResultStore
from onetool.errors import ToolError
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
resource.setrlimit(resource.RLIMIT_FSIZE, (300_000, 300_000))
try:
    ResultStore(Path(sys.argv[1]), 60, 3).put("x" * 1_000_000, tool="t")
except ToolError as error:
    print(error)
"""
    with run_program(code, directory) as program:
        assert "cannot be stored" in program.communicate()[0]
    assert list_files(directory) == set()


# --- handles --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "handle",
    [
        "nonexistent",
        NEVER_STORED,
        "",
        ".",
        "../secret",
        "/etc/passwd",
        "..\\secret",
        f"{NEVER_STORED}/../../secret",
        f"{NEVER_STORED}\n",
        f"{NEVER_STORED}\0",
        "A" * 32,
        "\N{FULLWIDTH DIGIT ONE}" * 32,
        "\ud800",
        "*",
        "x" * 100_000,
        None,
        7,
        int("1" * 32),
        ["a"],
    ],
)
def test_an_invalid_handle_is_not_found(results: ResultStore, directory: Path, handle: Any) -> None:
    store_text(results, "text")
    (directory.parent / "secret").write_text("secret", encoding="utf-8")
    for ask in (results.window, results.load):
        with pytest.raises(ToolError, match=r"Result not found: .* run the call again") as caught:
            ask(handle)
        assert caught.value.reason == "not_found"
        assert len(str(caught.value)) < 700


def test_a_handle_that_is_a_huge_integer_is_not_found(results: ResultStore) -> None:
    with pytest.raises(ToolError, match="not found: expected a string, not int"):
        results.window(10**5000)  # type: ignore[arg-type]  # the code of a run passes what it likes


def test_the_handle_of_another_agent_is_not_found(results: ResultStore, clock: Clock) -> None:
    handle = store_text(results, "text", agent="one")
    assert results.window(handle, agent="one")["lines"] == ["text"]
    assert results.load(handle, "one") == "text"
    clock.now += 2 * HOUR
    for agent in ("two", "default"):
        with pytest.raises(ToolError, match="not found"):
            results.window(handle, agent=agent)


@pytest.mark.parametrize("part", ["txt", "idx", "meta.json", "json"])
def test_links_are_not_followed(
    results: ResultStore, directory: Path, tmp_path: Path, part: str
) -> None:
    handle = store_text(results, "text", beside='["text"]')
    file = directory / f"result-{handle}.{part}"
    file.rename(tmp_path / "moved")
    file.symlink_to(tmp_path / "moved")
    with pytest.raises(ToolError, match=r"not found|expired|removed"):
        results.load(handle)


@pytest.mark.parametrize("part", ["txt", "idx", "meta.json"])
def test_a_pipe_in_place_of_a_file_does_not_block(
    results: ResultStore, directory: Path, part: str
) -> None:
    handle = store_text(results, "text")
    file = directory / f"result-{handle}.{part}"
    file.unlink()
    os.mkfifo(file)
    with pytest.raises(ToolError, match=r"not found|expired|removed"):
        results.window(handle)


@pytest.mark.parametrize(
    ("part", "content"),
    [
        ("meta.json", b'{"handle": '),
        ("meta.json", b"[]"),
        ("meta.json", b"[" * 100_000),
        ("meta.json", b'{"other": 1}'),
        ("txt", b"te"),
        ("idx", b""),
    ],
)
def test_an_incomplete_file_is_not_a_result(
    results: ResultStore, directory: Path, part: str, content: bytes
) -> None:
    handle = store_text(results, "text")
    (directory / f"result-{handle}.{part}").write_bytes(content)
    with pytest.raises(ToolError, match="not found"):
        results.window(handle)


# --- expiry ---------------------------------------------------------------------------------------


def test_a_result_expires(results: ResultStore, clock: Clock) -> None:
    handle = store_text(results, "text")
    clock.now += HOUR
    assert results.window(handle)["lines"] == ["text"]
    clock.now += 1
    for ask in (results.window, results.load):
        with pytest.raises(
            ToolError, match=f"{handle} has expired\nHint: run the call again"
        ) as caught:
            ask(handle)
        assert caught.value.reason == "expired"


def test_storing_a_result_removes_expired_results(
    results: ResultStore, directory: Path, clock: Clock
) -> None:
    old = store_text(results, "old", beside='["old"]')
    clock.now += HOUR / 2
    young = store_text(results, "young")
    clock.now += HOUR / 2 + 1
    new = store_text(results, "new")
    assert list_files(directory, old) == {f"result-{old}.meta.json"}
    assert len(list_files(directory, young)) == len(list_files(directory, new)) == 3
    with pytest.raises(ToolError, match="expired"):
        results.window(old)
    clock.now += 86_400
    store_text(results, "newest")
    assert list_files(directory, old) == set()
    with pytest.raises(ToolError, match="not found"):
        results.window(old)


@pytest.mark.parametrize("days", [8, -8])
def test_results_are_kept_after_the_clock_has_jumped(
    directory: Path, clock: Clock, days: int
) -> None:
    results = ResultStore(directory, HOUR, 10, clock)
    handle = store_text(results, "kept")
    clock.now += days * 86_400
    for _ in range(2):  # the second one looks at all of them, because the recorded sizes are old
        store_text(results, "of a wrong time")
        clock.now += 1
    clock.now -= days * 86_400 + 2
    assert results.load(handle) == "kept"


def test_foreign_files_are_not_removed(results: ResultStore, directory: Path, clock: Clock) -> None:
    store_text(results, "text")
    foreign = [
        directory / name for name in ("notes.txt", "result-1.txt", f"result-{NEVER_STORED}.txt.bak")
    ]
    for file in foreign:
        file.write_text("mine", encoding="utf-8")
        os.utime(file, (0, 0))
    clock.now += 10 * 86_400
    store_text(results, "text")
    assert all(file.exists() for file in foreign)


# --- processes ------------------------------------------------------------------------------------


def test_files_of_a_killed_process_are_not_a_result_and_expire(
    results: ResultStore, directory: Path, clock: Clock
) -> None:
    store_text(results, "text")
    left = [directory / f"result-{NEVER_STORED}.{part}" for part in ("txt", "idx", "meta.json.tmp")]
    for file in left:
        file.write_text("half", encoding="utf-8")
        os.utime(file, (clock.now, clock.now))
    with pytest.raises(ToolError, match="not found"):
        results.window(NEVER_STORED)
    clock.now += 60
    store_text(results, "text")
    assert all(file.exists() for file in left)  # the process may still be running
    clock.now += 600
    store_text(results, "text")
    assert [file.exists() for file in left] == [True, True, False]
    clock.now += HOUR
    store_text(results, "text")
    assert not any(file.exists() for file in left)


# --- windows by lines -----------------------------------------------------------------------------


def test_a_window_has_the_first_hundred_lines_by_default(results: ResultStore) -> None:
    handle = store_text(results, make_lines(500))
    assert results.window(handle) == {
        "lines": [f"line {number}" for number in range(1, 101)],
        "total_lines": 500,
        "returned": 100,
        "offset": 1,
        "has_more": True,
    }
    assert results.window(handle, offset=1) == results.window(handle)


@pytest.mark.parametrize(
    ("offset", "limit", "numbers", "has_more"),
    [
        (101, 50, range(101, 151), True),
        (451, 50, range(451, 501), False),
        (450, 10**30, range(450, 501), False),
        (500, 1, [500], False),
    ],
)
def test_offset_and_limit_select_the_lines(
    results: ResultStore, offset: int, limit: int, numbers: list[int], has_more: bool
) -> None:
    window = results.window(store_text(results, make_lines(500)), offset=offset, limit=limit)
    assert window["lines"] == [f"line {number}" for number in numbers]
    assert (window["returned"], window["offset"], window["has_more"]) == (
        len(numbers),
        offset,
        has_more,
    )


@pytest.mark.parametrize("offset", [501, 10**30])
@pytest.mark.parametrize("unit", ["lines", "chars"])
def test_a_window_after_the_end_is_empty(results: ResultStore, offset: int, unit: Any) -> None:
    window = results.window(store_text(results, "x\n" * 250), offset=offset, unit=unit)
    assert (window["lines"], window["returned"], window["has_more"]) == ([], 0, False)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"offset": 0}, "offset must be >= 1 (1-indexed), got 0"),
        ({"offset": -5}, "offset must be >= 1 (1-indexed), got -5"),
        ({"limit": 0}, "limit must be >= 1, got 0"),
        ({"unit": "words"}, "unit must be auto, lines or chars, got 'words'"),
    ],
)
def test_an_invalid_window_is_an_error(results: ResultStore, arguments: Any, message: str) -> None:
    with pytest.raises(ValueError, match=f"^{re.escape(message)}$"):
        results.window(store_text(results, "text"), **arguments)


# --- windows by characters ------------------------------------------------------------------------


@pytest.mark.slow
def test_one_line_of_json_is_read_by_characters(results: ResultStore) -> None:
    value = [{"name": f"nämé {number}", "id": number} for number in range(150_000)]
    text = json.dumps(value, ensure_ascii=False)
    answer = results.put(text, tool="demo.tool", is_json=True)
    handle = answer["handle"]
    assert answer["total_lines"] == 1
    assert answer["query"] == f"ot.result(handle='{handle}', offset=1, limit=5000, unit='chars')"
    assert len(answer["preview"][0]) < 600
    assert results.window(handle, offset=4_000_001, limit=1000) == {
        "lines": [text[4_000_000:4_001_000]],
        "total_lines": 1,
        "returned": 1000,
        "offset": 4_000_001,
        "has_more": True,
        "unit": "chars",
        "total_chars": len(text),
    }
    assert results.window(handle, len(text) - 9)["lines"] == [text[-10:]]
    assert results.window(handle, unit="lines")["lines"] == [text]
    assert results.load(handle) == value


@pytest.mark.parametrize(
    ("text", "by_chars"),
    [
        ("x" * 1000, False),
        ("x" * 1001, True),
        ("x" * 5000 + "\n" * 100, False),
        ("x" * 5000 + "\ny\n", True),
    ],
)
def test_long_lines_are_read_by_characters_by_default(
    results: ResultStore, text: str, by_chars: bool
) -> None:
    handle = store_text(results, text)
    assert ("unit" in results.window(handle)) == by_chars
    assert "unit" not in results.window(handle, unit="lines")
    assert results.window(handle, unit="chars")["unit"] == "chars"


def test_a_window_by_characters_is_split_into_lines(results: ResultStore) -> None:
    window = results.window(store_text(results, "a\r\nb\nc\n"), offset=2, limit=4, unit="chars")
    assert window["lines"] == ["\r", "b", ""]
    assert window["returned"] == len("\n".join(window["lines"])) == 4


# --- windows and searches compared to a model -----------------------------------------------------

some_text = st.text(alphabet="ab\n\n\r \té€😀\ud800", max_size=60)


class Text(NamedTuple):
    """Text at the start, at the end and, with a filler of about a page, at the boundary of two
    pages.
    """

    before: str
    filler: str
    length: int
    between: str
    more: int
    after: str

    def __str__(self) -> str:
        filling = self.filler * (max(0, self.length) // len(self.filler))
        return f"{self.before}{filling}{self.between}{self.filler * self.more}{self.after}"


texts = st.builds(
    Text,
    before=some_text,
    filler=st.sampled_from(["x", "xyz\n", "é", "😀\r\n", "a b\n\n"]),
    length=st.just(0) | st.integers(PAGE - 60, PAGE + 60),
    between=some_text,
    more=st.sampled_from([0, 1, 5000, 20_000]),
    after=some_text,
)


def encode_like_store(text: str) -> str:
    return text.encode("utf-8", "backslashreplace").decode()


def split_lines_like_store(text: str) -> list[str]:
    lines = encode_like_store(text).split("\n")
    return [line.removesuffix("\r") for line in (lines if lines[-1] else lines[:-1])]


@pytest.fixture(scope="module")
def shared() -> Iterator[ResultStore]:
    with TemporaryDirectory() as directory:
        yield ResultStore(Path(directory), HOUR, 10)


@pytest.mark.slow
@settings(deadline=None, max_examples=40)
@given(texts, st.integers(1, 9), st.sampled_from(["lines", "chars"]))
def test_windows_tile_the_content(shared: ResultStore, recipe: Text, parts: int, unit: Any) -> None:
    text = str(recipe)
    handle = store_text(shared, text)
    expected: Any = split_lines_like_store(text) if unit == "lines" else encode_like_store(text)
    limit = len(expected) // parts + 1
    offsets = range(1, len(expected) + 1, limit)
    windows = [shared.window(handle, offset, limit, unit=unit) for offset in offsets]
    seen = [
        line if unit == "lines" else "\n".join(line)
        for window in windows
        for line in _get_content(window, unit)
    ]
    assert (seen if unit == "lines" else "".join(seen)) == expected
    assert [window["has_more"] for window in windows] == [
        offset != offsets[-1] for offset in offsets
    ]
    assert sum(window["returned"] for window in windows) == len(expected)
    assert shared.load(handle) == encode_like_store(text)


def _get_content(window: dict[str, Any], unit: str) -> list[Any]:
    return window["lines"] if unit == "lines" else [window["lines"]]


PATTERNS = [
    "a",
    "ab|b a",
    "^a",
    "b$",
    "^$",
    "$",
    "a*",
    "[^a]",
    r"\s",
    r"\bb",
    r"\Aa",
    r"a\Z",
    "(?s)a.b",
    "(a|b)+é",
    "y",
]


@pytest.mark.slow
@settings(deadline=None, max_examples=40)
@given(texts, st.sampled_from(PATTERNS), st.integers(1, 5), st.integers(1, 100))
def test_a_search_finds_the_same_lines_as_re(
    shared: ResultStore, recipe: Text, pattern: str, offset: int, limit: int
) -> None:
    text = str(recipe)
    lines = split_lines_like_store(text)
    numbers = [number for number, line in enumerate(lines, 1) if re.search(pattern, line, re.ASCII)]
    chosen = numbers[offset - 1 : offset - 1 + limit]
    assert shared.window(store_text(shared, text), offset, limit, pattern, unit="lines") == {
        "lines": [lines[number - 1] for number in chosen],
        "total_lines": len(lines),
        "returned": len(chosen),
        "offset": offset,
        "has_more": offset - 1 + len(chosen) < len(numbers),
        "matched_lines": len(numbers),
        "positions": chosen,
    }


@pytest.mark.slow
@settings(deadline=None, max_examples=40)
@given(texts, st.sampled_from(["a", r"\bb", "^a", "a b", "é", "y"]))
@example(Text("", "x", PAGE - 1, "ab", 100, ""), "ab")
def test_a_search_by_characters_returns_every_match_once(
    shared: ResultStore, recipe: Text, pattern: str
) -> None:
    whole = encode_like_store(str(recipe))
    window = shared.window(
        store_text(shared, str(recipe)), limit=10**9, search=pattern, unit="chars"
    )
    assert window["matched_lines"] == window["returned"] == len(window["lines"])
    begins = deque(match.start() for match in re.finditer(pattern, whole, re.ASCII | re.MULTILINE))
    end = 0
    for position, part in zip(window["positions"], window["lines"], strict=True):
        start = position - 1
        assert start >= end
        end = start + len(part)
        assert whole[start:end] == part
        assert begins
        assert start <= begins[0] < end
        while begins and begins[0] < end:
            begins.popleft()
    assert not begins


@pytest.mark.parametrize("position", [0, 2000, 4090, PAGE - 2000, PAGE - 1, PAGE + 3000])
def test_a_long_match_is_found_at_any_position(results: ResultStore, position: int) -> None:
    text = "é" * position + "<" + "é" * 2000 + ">" + "é" * 100_000
    window = results.window(store_text(results, text), search="<[^<>]*>")
    assert window["matched_lines"] == 1
    assert "<é" in window["lines"][0]
    assert results.window(store_text(results, text), search="<[^<>]*$")["matched_lines"] == 0


@pytest.mark.parametrize("position", [0, 32_760, 65_530, PAGE * 2 - 9000, 180_000])
def test_a_long_match_in_a_long_line_is_found_at_any_position(
    results: ResultStore, position: int
) -> None:
    long = "é" * (position // 2) + "<" + "x" * 20_000 + ">" + "é" * (100_000 - position // 2)
    handle = store_text(results, f"<short\n{long}\nlast <x>\n")
    assert results.window(handle, search="<x*>", unit="lines")["positions"] == [2, 3]
    assert results.window(handle, search="<x*$", unit="lines")["matched_lines"] == 0
    assert results.window(handle, search="^.?<", unit="lines")["positions"] == [1] + [2] * (
        position == 0
    )


def test_lines_are_matched_from_start_to_end(results: ResultStore) -> None:
    handle = store_text(results, "".join(f"<{number}{'x' * 30_000}>\n" for number in range(20)))
    assert results.window(handle, search="^<.*>$", unit="lines")["matched_lines"] == 20
    assert results.window(handle, search="^<1.*>$", unit="lines")["matched_lines"] == 11


# --- search ---------------------------------------------------------------------------------------


def test_a_search_filters_lines_before_the_window(results: ResultStore) -> None:
    text = "".join(
        f"{'error' if number % 3 == 0 else 'fine'} {number}\n" for number in range(1, 901)
    )
    handle = store_text(results, text)
    window = results.window(handle, offset=2, limit=2, search=r"^err.r \d+$")
    assert window == {
        "lines": ["error 6", "error 9"],
        "total_lines": 900,
        "returned": 2,
        "offset": 2,
        "has_more": True,
        "matched_lines": 300,
        "positions": [6, 9],
    }
    assert results.window(handle, offset=300, search="error")["has_more"] is False
    assert results.window(handle, search="nothing like it")["matched_lines"] == 0


def test_search_is_case_sensitive_by_default(results: ResultStore) -> None:
    handle = store_text(results, "Error\nerror\nÉRROR\nérror\n")
    assert results.window(handle, search="error")["positions"] == [2]
    assert results.window(handle, search="error", ignore_case=True)["positions"] == [1, 2]
    assert results.window(handle, search="érror", ignore_case=True)["positions"] == [3, 4]
    assert results.window(handle, search="ERROR", fuzzy=True, ignore_case=True)["positions"][
        :2
    ] == [1, 2]


@pytest.mark.parametrize("pattern", ["(", "a**", "[z-a]", "a{2000}", r"\p{Nonsense}", "a\ud800"])
def test_an_invalid_pattern_is_an_error_that_quotes_it(results: ResultStore, pattern: str) -> None:
    with pytest.raises(
        ArgumentError, match=re.escape(f"{pattern!r} is not a valid regular expression: ")
    ):
        results.window(store_text(results, "text"), search=pattern)


@pytest.mark.parametrize(
    "pattern", ["a(?=b)", "a(?!b)", "(?<=a)b", "(?<!a)b", "(?>a)b", r"(a)\1", "(?P<n>a)(?P=n)"]
)
def test_an_unsupported_pattern_is_an_error_with_the_reason(
    results: ResultStore, pattern: str
) -> None:
    with pytest.raises(
        ArgumentError, match=r"linear time .* lookaround, atomic groups and backreferences"
    ) as caught:
        results.window(store_text(results, "text"), search=pattern)
    assert repr(pattern) in str(caught.value)


def test_the_error_for_a_long_pattern_is_short(results: ResultStore) -> None:
    for pattern in ("(" + "x" * 100_000, "x" * 1_000_000):
        with pytest.raises(ArgumentError, match="is not a valid regular expression: ") as caught:
            results.window(store_text(results, "text"), search=pattern)
        assert len(str(caught.value)) < 1200
        assert len(caught.value.pattern) <= 500


def test_a_pattern_that_is_too_expensive_is_rejected(results: ResultStore) -> None:
    hostile = "|".join(f"1[01]{{{number}}}2" for number in range(900, 1000))
    with pytest.raises(ArgumentError, match="pattern too large"):
        results.window(store_text(results, "01" * 100), search=hostile)
    many_names = "|".join(f"name{number}" for number in range(1000))
    assert results.window(store_text(results, "name\nname999\n"), search=many_names)[
        "positions"
    ] == [2]


@pytest.mark.parametrize("pattern", ["(?-m)^b", "(?-m:^b)", "(?i-sm:^b)", r"a\Cb"])
def test_a_pattern_that_spans_lines_is_rejected(results: ResultStore, pattern: str) -> None:
    with pytest.raises(ArgumentError, match="because each line is searched separately"):
        results.window(store_text(results, "a\nb\n"), search=pattern)


@pytest.mark.parametrize(
    ("pattern", "position"),
    [(r"^a\\C", 1), (r"\(?-mb", 2), ("(?m)^b", 3), ("(?m-s:^b$)", 3), ("(?s)a.*", 1)],
)
def test_a_pattern_that_only_looks_like_it_spans_lines_is_accepted(
    results: ResultStore, pattern: str, position: int
) -> None:
    assert results.window(store_text(results, "a\\C\n(-mb\nb\n"), search=pattern)["positions"] == [
        position
    ]


@pytest.mark.slow
@pytest.mark.parametrize("pattern", ["(a+)+$", "(a|a)*$", "(a*)*b", "(.*a){20}$", "a.*c|a"])
@pytest.mark.parametrize(
    "text", ["a" * 1_000_000 + "!", ("a" * 900 + "!\n") * 1000], ids=["one line", "lines"]
)
def test_no_pattern_takes_much_longer_than_a_simple_one(
    results: ResultStore, text: str, pattern: str
) -> None:
    handle = store_text(results, text)
    plain = measure_seconds(lambda: results.window(handle, search="[a-z]b"), times=5)
    limit = 200 * plain
    assert measure_seconds(lambda: results.window(handle, search=pattern), enough=limit) < limit


def test_a_search_stops_at_its_timeout(directory: Path) -> None:
    results = ResultStore(directory, HOUR, 10, search_seconds=-1)
    handle = store_text(results, make_lines(10))
    assert results.window(handle)["returned"] == 10
    for fuzzy in (False, True):
        with pytest.raises(ToolTimeout, match="took too long"):
            results.window(handle, search="line", fuzzy=fuzzy)


def test_a_slow_linear_search_is_stopped(directory: Path) -> None:
    results = ResultStore(directory, HOUR, 10, search_seconds=0.05)
    bits = "".join(Random(1).choices("01", k=900_000))
    handle = store_text(results, re.sub("(.{900})", r"\1\n", bits))
    for unit in ("lines", "chars"):
        with pytest.raises(ToolTimeout):
            results.window(handle, search="1[01]{300}2", unit=unit)


def test_a_search_in_one_long_line_is_stopped(directory: Path) -> None:
    results = ResultStore(directory, HOUR, 10, search_seconds=0.05)
    handle = store_text(results, "".join(Random(1).choices("01", k=900_000)))
    with pytest.raises(ToolTimeout):
        results.window(handle, search="1[01]{300}2", unit="lines")


class CountingDeadline(Deadline):
    def __init__(self) -> None:
        super().__init__(HOUR)
        self.checks = 0

    def check(self) -> None:
        self.checks += 1


def count_checks(length: int) -> tuple[int, int, int]:
    line, pattern = "x" * length, compile_pattern("y", ignore_case=False)
    by_lines, by_parts, fuzzy = CountingDeadline(), CountingDeadline(), CountingDeadline()
    pages = [line[start : start + PAGE].encode() for start in range(0, length, PAGE)]
    assert not list(find_lines(pages, pattern, by_lines))
    assert not list(find_parts(pages, pattern, by_parts))
    assert not list(find_similar(split_lines([line], "word"), "word", False, fuzzy))
    return by_lines.checks, by_parts.checks, fuzzy.checks


def test_the_deadline_is_checked_regularly_within_a_line() -> None:
    """A single step over a whole line would block a server for the length of the line."""
    for few, many in zip(count_checks(10 * PAGE), count_checks(40 * PAGE), strict=True):
        assert few >= 5
        assert many > 3 * few


# --- fuzzy search ---------------------------------------------------------------------------------


def test_fuzzy_search_returns_similar_lines_best_first(results: ResultStore) -> None:
    handle = store_text(
        results, "nothing here\nthe cnfig file\n}\nc\n\nthe configuration\nconfig\nfig\n"
    )
    window = results.window(handle, search="config", fuzzy=True)
    assert window["lines"] == ["the configuration", "config", "the cnfig file"]
    assert window["positions"] == [6, 7, 2]
    assert (window["matched_lines"], window["total_lines"], window["has_more"]) == (3, 8, False)
    second = results.window(handle, offset=2, limit=1, search="config", fuzzy=True)
    assert (second["lines"], second["has_more"]) == (["config"], True)


def test_fuzzy_search_finds_a_word_in_a_long_line(results: ResultStore) -> None:
    long = "lorem ipsum " * 2000
    handle = store_text(results, f"short\n{long}configuraton{long}\n" + "dolor\n" * 100)
    assert results.window(handle, search="configuration", fuzzy=True)["positions"] == [2]


@pytest.mark.parametrize("position", [0, 195, 200, 400, PAGE - 5, 99_988])
def test_a_long_line_matches_once_with_its_best_part(results: ResultStore, position: int) -> None:
    long = (
        "x" * position
        + "configuraton"
        + "x" * 50_000
        + "confguraton"
        + "x" * (49_988 - position // 2)
    )
    handle = store_text(results, f"konfiguration\n{long}\nconfiguration\n")
    window = results.window(handle, search="configuration", fuzzy=True, unit="lines")
    assert sorted(window["positions"]) == [1, 2, 3]
    assert window["positions"][0] == 3
    assert window["lines"][window["positions"].index(2)] == long


@pytest.mark.parametrize("position", [0, 195, 200, PAGE - 5, PAGE + 395, 99_988])
def test_fuzzy_search_finds_a_word_anywhere_in_one_long_line(
    results: ResultStore, position: int
) -> None:
    text = "é" * position + "configuraton" + "é" * (100_000 - position - 12)
    window = results.window(store_text(results, text), search="configuration", fuzzy=True)
    assert "configuraton" in window["lines"][0]
    assert text[window["positions"][0] - 1 :].startswith(window["lines"][0])
    assert len(window["lines"][0]) < 500
    assert window["matched_lines"] <= 2


def test_the_length_of_a_fuzzy_query_is_limited(results: ResultStore) -> None:
    with pytest.raises(ArgumentError, match="up to 200 characters, got 201"):
        results.window(store_text(results, "text"), search="x" * 201, fuzzy=True)


# --- loading --------------------------------------------------------------------------------------


def test_data_is_loaded_as_data_and_text_as_text(results: ResultStore, directory: Path) -> None:
    value = {"n": 2**100, "list": [1.5, None, True], "é": "\ud800"}
    as_json = json.dumps(value)
    handle = store_text(results, as_json, is_json=True)
    assert results.load(handle) == value
    assert not (directory / f"result-{handle}.json").exists()
    assert results.load(store_text(results, as_json)) == as_json


def test_data_shown_in_another_format_is_loaded_as_data(results: ResultStore) -> None:
    handle = store_text(results, "n: 1\nt: [1, 2]\n", beside='{"n": 1, "t": [1, 2]}')
    assert results.load(handle) == {"n": 1, "t": [1, 2]}
    assert results.window(handle)["lines"] == ["n: 1", "t: [1, 2]"]


def test_stored_json_text_is_loaded_as_data(results: ResultStore) -> None:
    assert results.load(store_text(results, '{"a": [1]}', is_json=True)) == {"a": [1]}
    assert results.load(store_text(results, '"text"', is_json=True)) == "text"


def test_the_parts_of_a_result_add_up_to_the_whole(results: ResultStore) -> None:
    for text, is_json in (
        ("é😀\n" * 1_000_000, False),
        (json.dumps(["x" * 3_000_000]), True),
        ("y", False),
    ):
        handle, texts = store_text(results, text, is_json=is_json), []
        part: dict[str, Any] = {"next": 0}
        while part["next"] is not None:
            part = results.part(handle, part["next"])
            texts.append(part["text"])
            assert part["is_json"] is is_json
        assert "".join(texts) == text


def test_parts_of_data_shown_in_another_format_are_json(results: ResultStore) -> None:
    handle = store_text(results, "a: 1", beside='{"a": 1}')
    assert results.part(handle, 0) == {"text": '{"a": 1}', "next": None, "is_json": True}


def test_a_part_after_the_end_is_empty_and_a_negative_one_an_error(results: ResultStore) -> None:
    handle = store_text(results, "text")
    assert results.part(handle, 7) == {"text": "", "next": None, "is_json": False}
    with pytest.raises(ValueError, match=r"part must be >= 0, got -1"):
        results.part(handle, -1)


def test_a_result_that_cannot_be_parsed_is_an_error(results: ResultStore) -> None:
    for text in ("[not json", "[" * 100_000):
        with pytest.raises(ToolError, match="cannot load the result"):
            results.load(store_text(results, text, is_json=True))


# --- size -----------------------------------------------------------------------------------------

A_HUNDRED_MEGABYTES = """
import json, resource, sys, time
from pathlib import Path
from tests.state_support import ResultStore

def peak():
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // (1024 if sys.platform == "linux" else 1024**2)

def least_time(*window, **more):
    def once():
        start = time.thread_time()
        results.window(*window, **more)
        return time.thread_time() - start
    return min(once() for _ in range(20))

line = "a line of sixty-three bytes, as long as many lines are, %07d\\n"
results = ResultStore(Path(sys.argv[1]), 3600, 10)
small = results.put("".join(line % number for number in range(1_600)), tool="t")["handle"]
results.window(small, search="import all that is needed"), results.window(small, search="fuzzy", fuzzy=True)
text = "".join(line % number for number in range(1_600_000))
assert len(text) > 100_000_000
before = peak()
large = results.put(text, tool="t")["handle"]
last = results.window(large, 1_599_901)
found = results.window(large, search="1599999$")
similar = results.window(large, search="line 1599999", fuzzy=True, limit=1)
del text
size = len(results.load(large))
print(json.dumps({
    "grown": peak() - before,
    "size": size,
    "last": last["lines"][-1],
    "found": found["lines"],
    "positions": found["positions"] + similar["positions"],
    "small": least_time(small),
    "large": least_time(large, 1_599_901),
    "chars": least_time(large, 90_000_000, 5_000, unit="chars"),
}))
"""


@pytest.mark.nightly
@pytest.mark.slow
def test_a_hundred_megabytes_are_stored_and_read_with_bounded_memory(directory: Path) -> None:
    with run_program(A_HUNDRED_MEGABYTES, directory) as program:
        measured = json.loads(program.communicate()[0])
    assert measured["grown"] < 40
    assert measured["size"] > 100_000_000
    assert measured["found"] == [measured["last"]]
    assert measured["positions"] == [1_600_000, 1_600_000]
    assert measured["large"] < 20 * measured["small"]
    assert measured["chars"] < 20 * measured["small"]


ONE_LINE = """
import resource, sys
from pathlib import Path
from tests.state_support import ResultStore

def peak():
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // (1024 if sys.platform == "linux" else 1024**2)

results = ResultStore(Path(sys.argv[1]), 3600, 10)
results.window(results.put("x", tool="t")["handle"], search="import all that is needed", fuzzy=True)
start = peak()
results.put(("x" * 1_000_000 for _ in range(100)), tool="t")
assert peak() - start < 40
text = "x" * 100_000_000
before = peak()
handle = results.put(text, tool="t")["handle"]
del text
assert len(results.window(handle, unit="lines")["lines"][0]) == 100_000_000
assert results.window(handle, 99_999_999)["lines"] == ["xx"]
assert len(results.load(handle)) == 100_000_000
print(peak() - before)
"""


@pytest.mark.slow
def test_a_line_of_a_hundred_megabytes_is_stored_with_bounded_memory(directory: Path) -> None:
    with run_program(ONE_LINE, directory) as program:
        assert int(program.communicate()[0]) < 40
