"""The storage contract: every kind of state on every backend."""

import json
import os
import re
import sqlite3
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path

import pytest
from tests.cells_support import NIGHTLY
from tests.contract.storage_kinds import (
    ALL,
    CACHES,
    FILES,
    POSTGRES,
    Kind,
    key_exists,
    open_kind,
    open_postgres,
)
from tests.disk_support import Disk, mount_disk
from tests.postgres_support import PostgresServer
from tests.support import eventually

from onetool.errors import ToolError

NEWER = re.compile(r"was written by a newer OneTool \(version \d+; this one supports \d\)")
ROOT = Path(__file__).parents[2]
WRITES = 12
WRITTEN_LATER = {
    "audit",
    "shapes",
    "statistics",
}  # these report a problem or an OSError, for which callers add a hint
KILLED_AFTER = (1, 5)  # acknowledged writes


@pytest.fixture(params=FILES)
def kind(request: pytest.FixtureRequest) -> str:
    chosen: str = request.param
    return chosen


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    path = tmp_path / ".onetool"
    path.mkdir(mode=0o700)
    return path


@pytest.fixture
def prepared(backend: str, directory: Path, request: pytest.FixtureRequest) -> Path:
    """Return the directory; with PostgreSQL, it names a fresh database."""
    if backend == "postgres":
        (directory / "database").write_text(request.getfixturevalue("postgres_url"))
    return directory


# Processes that write all kinds of PostgreSQL at once save most of the time; `ONETOOL_NIGHTLY=1`
# tests each.
POSTGRES_KINDS = tuple(POSTGRES) if NIGHTLY else (ALL,)
every_kind = pytest.mark.parametrize(
    ("backend", "kind"),
    [*(("files", kind) for kind in FILES), *(("postgres", kind) for kind in POSTGRES_KINDS)],
)


def start_writer(*arguments: object) -> subprocess.Popen[str]:
    command = [sys.executable, "-m", "tests.contract.storage_kinds", *map(str, arguments)]
    writer = subprocess.Popen(
        command,
        cwd=ROOT,
        env=dict(os.environ),
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert writer.stdout is not None
    assert writer.stdout.readline() == "ready\n"
    return writer


@pytest.mark.sampled(4)
@pytest.mark.slow
@every_kind
def test_concurrent_writers_lose_no_data_and_others_can_read_it(
    backend: str, kind: str, prepared: Path
) -> None:
    writers = [start_writer(backend, kind, prepared, f"w{number}", WRITES) for number in range(2)]
    for writer in writers:
        assert writer.stdin is not None
        writer.stdin.write("go\n")
        writer.stdin.flush()
    written = [
        line.split()
        for writer in writers
        for line in writer.communicate(timeout=100)[0].splitlines()
    ]
    assert [writer.returncode for writer in writers] == [0, 0]
    assert len(written) == 2 * WRITES
    with open_kind(backend, kind, prepared) as stored:
        assert [key for key, name in written if not stored.read(name)] == []


@pytest.mark.sampled(2)
@pytest.mark.slow
@every_kind
def test_a_killed_writer_leaves_the_old_or_the_new_state(
    backend: str, kind: str, prepared: Path
) -> None:
    written: list[list[str]] = []
    for count in KILLED_AFTER:
        with start_writer(backend, kind, prepared, f"w{count}") as writer:
            assert writer.stdin is not None
            assert writer.stdout is not None
            writer.stdin.write("go\n")
            writer.stdin.flush()
            written += [writer.stdout.readline().split() for _ in range(count)]
            writer.kill()
            written += [
                line.split()
                for line in writer.stdout.read().splitlines(keepends=True)
                if line.endswith("\n")
            ]
        doubtful = f"w{count}-{sum(key.startswith(f'w{count}-') for key, _ in written)}"
        with open_kind(backend, kind, prepared) as stored:
            assert [key for key, name in written if not stored.read(name)] == []
            key_exists(stored, doubtful)  # the key may exist or not, but never in part
            written.append(
                ["after", stored.write("after")] if count == KILLED_AFTER[-1] else written[0]
            )


# --- PostgreSQL -----------------------------------------------------------------------------------


def test_an_unreachable_database_is_a_typed_error_and_nothing_is_lost(
    postgres_server: PostgresServer, postgres_url: str, directory: Path
) -> None:
    (directory / "database").write_text(postgres_url)
    name = postgres_url.rpartition("/")[2]
    with open_postgres(directory) as state:
        state.start()
        assert state.wait(60)
        kinds: dict[str, Kind] = POSTGRES[ALL](state)
        before = {kind: stored.write("before") for kind, stored in kinds.items()}
        postgres_server.execute(f"ALTER DATABASE {name} ALLOW_CONNECTIONS false")
        postgres_server.execute(
            f"SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = '{name}'"
        )
        assert eventually(lambda: state.problem is not None)
        for kind in kinds.keys() - CACHES:
            with pytest.raises(ToolError) as caught:
                kinds[kind].write("lost")
            if kind not in WRITTEN_LATER:
                assert caught.value.fields["code"] in {
                    "storage_unavailable",
                    "store_unavailable",
                }, kind
                assert caught.value.hint, kind
        postgres_server.execute(f"ALTER DATABASE {name} ALLOW_CONNECTIONS true")
        assert eventually(lambda: state.problem is None)
        after = {kind: stored.write("after") for kind, stored in kinds.items()}
    with open_postgres(directory) as state:
        kinds = POSTGRES[ALL](state)
        assert [kind for kind, stored in kinds.items() if not stored.read(before[kind])] == []
        assert [kind for kind, stored in kinds.items() if not stored.read(after[kind])] == []


# --- files ----------------------------------------------------------------------------------------


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[Disk]:
    with mount_disk(tmp_path) as disk:
        yield disk


@pytest.mark.parametrize("how", ["full", "read-only"])
def test_an_unwritable_disk_is_a_typed_error_and_reads_still_work(
    kind: str, disk: Disk, how: str
) -> None:
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


def change_json_version(pattern: str) -> Callable[[Path], Path]:
    def change(directory: Path) -> Path:
        (file,) = directory.glob(pattern)
        file.write_text(
            json.dumps({**json.loads(file.read_bytes()), "version": 99}), encoding="utf-8"
        )
        return file

    return change


def change_user_version(path: str) -> Callable[[Path], Path]:
    def change(directory: Path) -> Path:
        file = directory / path
        with closing(sqlite3.connect(file)) as database:
            database.execute("PRAGMA user_version = 99")
        return file

    return change


VERSIONED = {
    "results": change_json_version("tmp/*.meta.json"),
    "media": change_json_version("tmp/media-*.json"),
    "statistics": change_user_version("stats/stats.db"),
    "runs": change_user_version("runs/runs.db"),
    "sessions": change_user_version("runs/sessions.db"),
    "shapes": change_user_version("stats/stats.db"),
    "switches": change_user_version("state/documents.db"),
    "pins": change_user_version("state/documents.db"),
    "saved snippets": change_user_version("state/documents.db"),
    "credentials": change_user_version("credentials/credentials.db"),
    "token usage": change_user_version("state/documents.db"),
    "trust": change_json_version("trust.json"),
}


@pytest.mark.parametrize("kind", VERSIONED)
def test_data_of_a_newer_version_is_rejected_and_not_changed(kind: str, directory: Path) -> None:
    with open_kind("files", kind, directory) as stored:
        name = stored.write("old")
    file = VERSIONED[kind](directory)
    before, messages = file.read_bytes(), []
    with open_kind("files", kind, directory) as stored:
        for attempt in (lambda: stored.read(name), lambda: stored.write("new")):
            try:
                attempt()
            except ToolError as error:
                messages.append(str(error))
    assert any(NEWER.search(text) for text in messages), messages
    assert file.read_bytes() == before


def overwrite_start(file: Path) -> None:
    file.write_bytes(b"\xaa" * 100 + file.read_bytes()[100:])


def truncate(file: Path) -> None:
    file.write_bytes(file.read_bytes()[: file.stat().st_size // 2])


def replace_by_directory(file: Path) -> None:
    file.unlink()
    file.mkdir()


# The files whose damage is an error. Statistics and shapes are put aside, and the index of bundles
# is rebuilt.
DAMAGED = {
    "results": ("tmp/result-*.txt", "tmp/result-*.idx", "tmp/result-*.meta.json"),
    "media": ("tmp/media-*.bin", "tmp/media-*.json"),
    "sessions": ("runs/sessions.db", "runs/sessions.key"),
    "runs": ("runs/runs.db", "runs/runs.key"),
    "switches": ("state/documents.db",),
    "pins": ("state/documents.db",),
    "saved snippets": ("state/documents.db",),
    "token usage": ("state/documents.db",),
    "credentials": ("credentials/credentials.db", "credentials/credentials.key"),
    "settings": ("onetool.yaml", "settings-history.json"),
}
DAMAGES = [
    pytest.param(kind, pattern, damage, id=f"{pattern}-{damage.__name__}-{kind}")
    for kind, patterns in DAMAGED.items()
    for pattern in patterns
    for damage in (overwrite_start, truncate, replace_by_directory)
    if (pattern, damage)
    != ("tmp/media-*.bin", overwrite_start)  # without a checksum, nobody sees it
]


@pytest.mark.parametrize(("kind", "pattern", "damage"), DAMAGES)
def test_a_damaged_file_is_a_typed_error_and_is_left_as_it_is(
    kind: str, pattern: str, damage: Callable[[Path], None], directory: Path
) -> None:
    with open_kind("files", kind, directory) as stored:
        name = stored.write("old")
    for log in directory.rglob("*-wal"):
        log.unlink()
    (file,) = directory.glob(pattern)
    damage(file)
    before = file.read_bytes() if file.is_file() else b""
    errors = []
    with open_kind("files", kind, directory) as stored:
        for attempt in (lambda: stored.read(name), lambda: stored.write("new")):
            try:
                attempt()
            except ToolError as error:
                errors.append(error)
    assert errors
    assert all(
        error.hint or "again" in error.message
        for error in errors
        if kind not in {"switches", "settings"}
    )
    assert (file.read_bytes() if file.is_file() else b"") == before
