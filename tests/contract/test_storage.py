"""What every kind of state promises, whatever backend keeps it."""

import json
import re
import sqlite3
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path

import pytest
from tests.contract.storage_kinds import BACKENDS, CACHES, KINDS, open_kind, reads
from tests.disk_support import Disk, mount_disk

from onetool.errors import ToolError

NEWER = re.compile(r"was written by a newer OneTool \(version \d+; this one supports \d\)")
ROOT = Path(__file__).parents[2]
WRITES = 12
KILLED_AFTER = (1, 5)  # writes that were acknowledged


@pytest.fixture(params=BACKENDS)
def backend(request: pytest.FixtureRequest) -> str:
    chosen: str = request.param
    return chosen


@pytest.fixture(params=KINDS)
def kind(request: pytest.FixtureRequest) -> str:
    chosen: str = request.param
    return chosen


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    place = tmp_path / ".onetool"
    place.mkdir(mode=0o700)
    return place


def start_writer(*arguments: object) -> subprocess.Popen[str]:
    command = [sys.executable, "-m", "tests.contract.storage_kinds", *map(str, arguments)]
    writer = subprocess.Popen(command, cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    assert writer.stdout is not None
    assert writer.stdout.readline() == "ready\n"
    return writer


@pytest.mark.slow
def test_writers_at_the_same_time_lose_nothing_and_others_read_it(backend: str, kind: str, folder: Path) -> None:
    writers = [start_writer(backend, kind, folder, f"w{number}", WRITES) for number in range(2)]
    for writer in writers:
        assert writer.stdin is not None
        writer.stdin.write("go\n")
        writer.stdin.flush()
    written = [line.split() for writer in writers for line in writer.communicate(timeout=100)[0].splitlines()]
    assert [writer.returncode for writer in writers] == [0, 0]
    assert len(written) == 2 * WRITES
    with open_kind(backend, kind, folder) as stored:
        assert [key for key, name in written if not stored.read(name)] == []


@pytest.mark.slow
def test_a_writer_that_is_killed_leaves_the_old_or_the_new(backend: str, kind: str, folder: Path) -> None:
    written: list[list[str]] = []
    for count in KILLED_AFTER:
        with start_writer(backend, kind, folder, f"w{count}") as writer:
            assert writer.stdin is not None
            assert writer.stdout is not None
            writer.stdin.write("go\n")
            writer.stdin.flush()
            written += [writer.stdout.readline().split() for _ in range(count)]
            writer.kill()
            written += [line.split() for line in writer.stdout.read().splitlines(keepends=True) if line.endswith("\n")]
        doubtful = f"w{count}-{sum(key.startswith(f'w{count}-') for key, _ in written)}"
        with open_kind(backend, kind, folder) as stored:
            assert [key for key, name in written if not stored.read(name)] == []
            reads(stored, doubtful)  # it may be there or not, but not in part
            written.append(["after", stored.write("after")] if count == KILLED_AFTER[-1] else written[0])


# --- files ---------------------------------------------------------------------------------------------------------


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[Disk]:
    with mount_disk(tmp_path) as disk:
        yield disk


@pytest.mark.parametrize("how", ["full", "read-only"])
def test_an_unwritable_disk_is_a_typed_error_and_reading_goes_on(kind: str, disk: Disk, how: str) -> None:
    with open_kind("files", kind, disk.place) as stored:
        before = stored.write("before")
    (disk.fill if how == "full" else disk.make_read_only)()
    with open_kind("files", kind, disk.place) as stored:
        if kind in CACHES:
            stored.write("lost")
        else:
            with pytest.raises(ToolError) as caught:
                stored.write("lost")
            assert "storage_unavailable" in (caught.value.type, caught.value.fields.get("code"))
        with open_kind("files", kind, disk.place) as other:
            assert other.read(before)
        (disk.free if how == "full" else disk.make_writable)()
        after = stored.write("after")
    with open_kind("files", kind, disk.place) as other:
        assert other.read(before)
        assert other.read(after)


def json_version(pattern: str) -> Callable[[Path], Path]:
    def change(folder: Path) -> Path:
        (file,) = folder.glob(pattern)
        file.write_text(json.dumps({**json.loads(file.read_bytes()), "version": 99}), encoding="utf-8")
        return file

    return change


def user_version(folder: Path) -> Path:
    file = folder / "stats" / "stats.db"
    with closing(sqlite3.connect(file)) as database:
        database.execute("PRAGMA user_version = 99")
    return file


VERSIONED = {
    "results": json_version("tmp/*.meta.json"),
    "media": json_version("tmp/media-*.json"),
    "statistics": user_version,
    "shapes": json_version("stats/shapes.json"),
    "switches": json_version("switches.json"),
    "pins": json_version("pins.json"),
    "trust": json_version("trust.json"),
}


@pytest.mark.parametrize("kind", VERSIONED)
def test_what_a_newer_version_wrote_is_rejected_and_left_alone(kind: str, folder: Path) -> None:
    with open_kind("files", kind, folder) as stored:
        name = stored.write("old")
    file = VERSIONED[kind](folder)
    before, said = file.read_bytes(), []
    with open_kind("files", kind, folder) as stored:
        for attempt in (lambda: stored.read(name), lambda: stored.write("new")):
            try:
                attempt()
            except ToolError as error:
                said.append(str(error))
    assert any(NEWER.search(text) for text in said), said
    assert file.read_bytes() == before
