"""The registry of running servers: live and dead entries, and reload requests."""

from dataclasses import replace
from pathlib import Path

import pytest

from onetool.util.running_servers import (
    DIRECTORY,
    ENTRY_SUFFIX,
    REQUEST,
    Registration,
    ServerEntry,
    list_servers,
    read_generation,
    request_reload,
)

ENTRY = ServerEntry(pid=7, url="http://127.0.0.1:8765", port=8765, directory="/work")


def test_a_server_is_listed_until_it_closes(tmp_path: Path) -> None:
    first = Registration.create(tmp_path, ENTRY)
    second = Registration.create(tmp_path, replace(ENTRY, pid=8))
    assert sorted(entry.pid for entry in list_servers(tmp_path)) == [7, 8]
    second.update(replace(second.entry, generation=3, is_ok=False, answer="no"))
    second.close()
    assert list_servers(tmp_path) == [ENTRY]
    first.close()
    assert (list_servers(tmp_path), list((tmp_path / DIRECTORY).iterdir())) == ([], [])


def test_entries_without_a_lock_are_removed(tmp_path: Path) -> None:
    directory = tmp_path / DIRECTORY
    directory.mkdir()
    (directory / f"dead{ENTRY_SUFFIX}").write_text('{"pid": 1}', encoding="utf-8")
    assert list_servers(tmp_path) == []
    assert not list(directory.iterdir())


@pytest.mark.parametrize(
    "content",
    ["", "[]", "{", '{"pid": "x"}', '{"pid": true}', "[" * 100_000, '{"generation": "2"}'],
)
def test_damaged_entries_and_requests_are_ignored(tmp_path: Path, content: str) -> None:
    held = Registration.create(tmp_path, ENTRY)
    assert held.path is not None
    held.path.write_text(content, encoding="utf-8")
    assert list_servers(tmp_path) == []
    (tmp_path / DIRECTORY / REQUEST).write_text(content, encoding="utf-8")
    assert read_generation(tmp_path) == 0
    assert request_reload(tmp_path) == 1
    assert read_generation(tmp_path) == 1
    held.close()


def test_without_a_directory_nothing_is_registered(tmp_path: Path) -> None:
    (tmp_path / DIRECTORY).touch()
    registration = Registration.create(tmp_path, ENTRY)
    registration.update(replace(ENTRY, pid=9))
    assert (registration.path, list_servers(tmp_path)) == (None, [])
    registration.close()
