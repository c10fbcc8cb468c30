"""The index of many stored tools is built in batches: a process that is killed or that ends leaves
its progress.
"""

import json
import shutil
import signal
import sqlite3
import subprocess
import sys
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from threading import Event
from types import FrameType

import pytest
from tests.bundles_support import bundle_directory, new_bundle, open_store, search_slugs, tool_body
from tests.support import eventually, run_cli

from onetool.errors import BundleError
from onetool.sources.bundles.bundle_index import UNFINISHED, write_tool
from onetool.sources.bundles.bundle_storage import BundleDirectory
from onetool.sources.bundles.filesystem import StoreLock

pytestmark = pytest.mark.slow
TOOLS, BATCH = 600, 50
# Tables that depend on the order of builds: the version, and the internal tables of FTS5.
OWN_TABLES = (
    "select name from sqlite_master where type = 'table' and name != 'meta' and sql not like"
    " '%fts5%'"
)
FTS_TABLES = "select name from sqlite_master where sql like 'create virtual table%fts5%'"
BUILDER = f"""
import sys
from functools import partial
from pathlib import Path
from onetool.sources.bundles import BundleStore
from onetool.sources.bundles.bundle_storage import BundleDirectory

BundleStore(Path(sys.argv[1]), make_directory=partial(BundleDirectory, batch_files={BATCH})).list_bundles()
"""


def _fill(directory: Path) -> str:
    """Store the tools, without an index, and return the bundle."""
    with open_store(directory) as store:
        bundle = new_bundle(store)
        tools = [
            (f"tool-{number}", "1", tool_body(description=f"Word {number % 7}"))
            for number in range(TOOLS)
        ]
        store.put_many(bundle, tools)
    shutil.rmtree(directory / ".index")
    return bundle


def _count_rows(directory: Path) -> int:
    """Return the number of tools that an unfinished build has committed."""
    file = directory / ".index" / UNFINISHED
    try:
        with closing(sqlite3.connect(f"{file.absolute().as_uri()}?mode=ro", uri=True)) as database:
            (count,) = database.execute("select count(*) from tools").fetchone()
            return int(count)
    except sqlite3.Error:
        return 0


@contextmanager
def _counted_writes() -> Iterator[list[int]]:
    """Yield a list with the number of tools that this thread writes to an index."""
    writes = [0]

    def count(frame: FrameType, event: str, _argument: object) -> None:
        writes[0] += event == "call" and frame.f_code is write_tool.__code__

    sys.setprofile(count)
    try:
        yield writes
    finally:
        sys.setprofile(None)


def _read_index(directory: Path) -> dict[str, list[object]]:
    """Return the rows of the index, whose full-text tables agree with them."""
    index = directory / ".index"
    with closing(sqlite3.connect(index / (index / "current").read_text())) as database:
        for (table,) in database.execute(FTS_TABLES).fetchall():
            database.execute(f"insert into {table} ({table}, rank) values ('integrity-check', 1)")
        tables = [
            name
            for (name,) in database.execute(OWN_TABLES)
            if not name.startswith(("words_", "parts_of_"))
        ]
        return {
            name: sorted(database.execute(f"select * from {name}").fetchall())
            for name in tables
            if not name.startswith("forms_")
        }


def test_the_successor_of_a_killed_builder_continues_its_work(tmp_path: Path) -> None:
    bundle = _fill(tmp_path)
    with subprocess.Popen([sys.executable, "-c", BUILDER, str(tmp_path)]) as builder:
        assert eventually(lambda: _count_rows(tmp_path) >= 2 * BATCH or builder.poll() is not None)
        builder.kill()
    assert builder.returncode == -signal.SIGKILL
    kept = _count_rows(tmp_path)
    assert 2 * BATCH <= kept < TOOLS
    with open_store(tmp_path) as store, _counted_writes() as writes:
        store.list_bundles()
        assert search_slugs(store, "tool-599") == ["tool-599"]
    assert writes[0] == TOOLS - kept
    assert [file.suffix for file in (tmp_path / ".index").iterdir()].count(".db") == 1
    continued = _read_index(tmp_path)
    shutil.rmtree(tmp_path / ".index")
    with open_store(tmp_path) as store:
        assert len(store.list_bundle_tools(bundle)) == TOOLS
    assert continued == _read_index(tmp_path)


def test_files_that_changed_after_a_build_was_interrupted_are_indexed(tmp_path: Path) -> None:
    directory = bundle_directory(tmp_path, _fill(tmp_path))
    _interrupt_build(tmp_path, TOOLS // 2)
    with closing(sqlite3.connect(tmp_path / ".index" / UNFINISHED)) as database:
        indexed = [
            name for (name,) in database.execute("select file from tools order by file limit 2")
        ]
    changed = json.loads((directory / indexed[0]).read_bytes())
    (directory / indexed[0]).write_text(
        json.dumps({**changed, "description": "Something quite different"})
    )
    (directory / indexed[1]).unlink()
    (directory / "bundle.json").write_text(
        (directory / "bundle.json").read_text().replace("tools", "gadgets")
    )
    with open_store(tmp_path) as store:
        assert search_slugs(store, "quite different") == [changed["slug"]]
        assert len(list(store.list_tools(size=1).items)) == 1
    continued = _read_index(tmp_path)
    shutil.rmtree(tmp_path / ".index")
    with open_store(tmp_path) as store:
        store.list_bundles()
    assert continued["tools"] == _read_index(tmp_path)["tools"]


class _SetLater(Event):
    """An event that is set when so many tools were written."""

    def __init__(self, writes: list[int], limit: int) -> None:
        super().__init__()
        self._writes = writes
        self._limit = limit

    def is_set(self) -> bool:
        return self._writes[0] >= self._limit


def _interrupt_build(directory: Path, tools: int) -> None:
    """Close the store when its index has this number of tools."""
    store = BundleDirectory(directory)
    with _counted_writes() as writes:
        store._closing = _SetLater(writes, tools)
        with (
            pytest.raises(BundleError, match="closed while its index was being built"),
            store.writing(),
        ):
            pass
    store.close()


def test_a_closed_store_keeps_the_batch_that_it_was_building(tmp_path: Path) -> None:
    _fill(tmp_path)
    _interrupt_build(tmp_path, TOOLS // 2)
    assert _count_rows(tmp_path) == TOOLS // 2
    assert not BundleDirectory(tmp_path).is_ready
    with open_store(tmp_path) as store, _counted_writes() as writes:
        store.list_bundles()
    assert writes[0] == TOOLS // 2


def test_a_damaged_unfinished_index_is_begun_again(tmp_path: Path) -> None:
    _fill(tmp_path)
    _interrupt_build(tmp_path, TOOLS // 2)
    (tmp_path / ".index" / UNFINISHED).write_bytes(b"not a database" * 1000)
    with open_store(tmp_path) as store:
        assert search_slugs(store, "tool-599") == ["tool-599"]


def test_commands_end_while_another_process_builds_the_index(tmp_path: Path) -> None:
    directory = tmp_path / ".onetool" / "bundles"
    with open_store(directory) as store:
        store.put_tool(new_bundle(store, "weather"), "today", "1", tool_body())
    shutil.rmtree(directory / ".index")
    with StoreLock(directory / ".lock").hold():
        listed = run_cli(tmp_path, "tools", "machine", ONETOOL_EXECUTION__TIMEOUT="4")
        assert "machine.disk" in listed.stdout
        assert "stored tools are not listed yet: their index is being built" in listed.stderr
        called = run_cli(tmp_path, "call", "weather.today", ONETOOL_EXECUTION__TIMEOUT="4")
        assert (
            "cannot use the pack 'weather': the index of stored tools is being built"
            in called.stderr
        )
        assert called.returncode == 1
    assert "weather.today" in run_cli(tmp_path, "tools", "weather").stdout
