"""Test versions of stored files: files of a newer version are rejected, and those of an unknown one
are damaged.

A rejected file is not changed, and everything else works without it. Caches are rebuilt.
"""

import json
import re
import sqlite3
import subprocess
from collections.abc import Callable
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import yaml
from tests.bundles_support import bundle_body, expect_error, new_bundle, open_store
from tests.proxy_support import hostile_server
from tests.state_support import open_media
from tests.support import PROGRAM, configure, environment, run_cli

from onetool.errors import ToolError
from onetool.state.document_kinds import DisabledTools
from onetool.state.documents import DocumentFile, Documents

pytestmark = pytest.mark.slow
NEWER = re.compile(
    r"was written by a newer OneTool \((?:version|schemaVersion) \d+; this one supports 1\)"
)
UNKNOWN = re.compile(r"(?:expected version 1, not (?:0|None)|is damaged|Result not found).*")
Change = Callable[[Path], object]


@dataclass(frozen=True)
class StoredFile:
    """A stored file. `show` is a command whose output contains `content` if the file is intact.

    `use` is a command that reports a file of a newer version; so does `onetool doctor`.
    """

    name: str
    make: Callable[[Path], Path]
    newer: Change
    unknown: Change
    show: Callable[[Path], str]
    content: str
    use: Callable[[Path], str]


def run_command(home: Path, *arguments: str) -> str:
    done = run_cli(home, *arguments)
    assert "Traceback" not in done.stderr
    return done.stdout + done.stderr


def make_command(*arguments: str) -> Callable[[Path], str]:
    return lambda home: run_command(home, *arguments)


def rewrite(file: Path, change: Callable[[Any], Any]) -> None:
    file.write_text(
        json.dumps(change(json.loads(file.read_text(encoding="utf-8")))), encoding="utf-8"
    )


def set_version(number: int, key: str = "version") -> Change:
    return lambda file: rewrite(file, lambda data: {**data, key: number})


def remove_version(file: Path) -> None:
    rewrite(file, lambda data: {name: value for name, value in data.items() if name != "version"})


def set_user_version(number: int) -> Change:
    def change(file: Path) -> None:
        with closing(sqlite3.connect(file)) as database:
            database.execute(f"pragma user_version = {number}")

    return change


def replace_line(old: str, new: str) -> Change:
    def change(file: Path) -> None:
        text = file.read_text(encoding="utf-8")
        assert old in text
        file.write_text(text.replace(old, new), encoding="utf-8")

    return change


# --- the files ------------------------------------------------------------------------------------


def write_settings(home: Path) -> Path:
    configure(home, "version: 1\naliases: {moment: machine.now}\n")
    return home / ".onetool" / "onetool.yaml"


def write_tokens(home: Path) -> Path:
    file = write_settings(home)
    assert run_cli(home, "token", "create", "laptop").returncode == 0
    return file


def write_agent(home: Path) -> Path:
    file = home / ".onetool" / "agents" / "pilot.yaml"
    file.parent.mkdir(parents=True)
    file.write_text("version: 1\npermissions: [read]\n", encoding="utf-8")
    return file


def write_prompts(home: Path) -> Path:
    file = home / ".onetool" / "prompts.yaml"
    file.parent.mkdir(parents=True)
    file.write_text("version: 1\ninstructions: Be brief.\n", encoding="utf-8")
    return file


def trust_project(home: Path) -> Path:
    configure(home / "project", "aliases: {moment: machine.now}\n")
    assert run_in_project(home, "trust") != ""
    return home / ".onetool" / "trust.json"


def run_in_project(home: Path, *arguments: str) -> str:
    """Run a command in the project directory, because `--config` would trust the file."""
    done = subprocess.run(
        [PROGRAM, *arguments],
        cwd=home / "project",
        env=environment(home),
        input="yes\n",
        capture_output=True,
        encoding="utf-8",
        check=False,
    )
    return done.stdout + done.stderr


def record_statistics(home: Path) -> Path:
    assert run_cli(home, "run", "machine.now()").returncode == 0
    return home / ".onetool" / "stats" / "stats.db"


def store_result(home: Path) -> Path:
    assert run_cli(home, "run", "'needle' + 'x' * 200_000").returncode == 0
    (file,) = (home / ".onetool" / "tmp").glob("*.meta.json")
    return file


def read_result(home: Path) -> str:
    (file,) = (home / ".onetool" / "tmp").glob("*.meta.json")
    return run_command(home, "run", f"ot.result(handle={file.name[7:39]!r}, limit=10)")


def write_switches(home: Path) -> Path:
    with closing(DocumentFile(home / ".onetool")) as file:
        DisabledTools(file).set("machine.now", on=False)
    return file.file


def write_pins(home: Path) -> Path:
    """Create pins of a server whose tools have changed since."""
    notes = home / "notes"
    notes.mkdir()
    configure(
        home, yaml.safe_dump({"servers": {"odd": hostile_server("changes", notes, pin="strict")}})
    )
    assert run_cli(home, "servers", "accept", "odd").returncode == 0
    (notes / "changed").touch()
    return home / ".onetool" / "state" / "documents.db"


def create_bundle(home: Path) -> Path:
    with open_store(home / ".onetool" / "bundles") as store:
        new_bundle(store, "animals")
    (file,) = (home / ".onetool" / "bundles").glob("*/bundle.json")
    return file


TABLE = [
    StoredFile(
        "onetool.yaml",
        write_settings,
        replace_line("version: 1\n", "version: 2\nthings: {}\n"),
        replace_line("version: 1\n", "version: 0\n"),
        make_command("call", "moment"),
        "20",
        make_command("tools"),
    ),
    StoredFile(
        "tokens",
        write_tokens,
        replace_line("version: 1\n", "version: 2\n"),
        replace_line("version: 1\n", "version: 0\n"),
        make_command("token", "list"),
        "laptop",
        make_command("token", "create", "another"),
    ),
    StoredFile(
        "agents/*.yaml",
        write_agent,
        replace_line("version: 1", "version: 2"),
        replace_line("version: 1", "version: 0"),
        make_command("run", "--agent", "pilot", "6 * 7"),
        "42",
        make_command("run", "--agent", "pilot", "6 * 7"),
    ),
    StoredFile(
        "prompts.yaml",
        write_prompts,
        replace_line("version: 1", "version: 2"),
        replace_line("version: 1", "version: 0"),
        make_command("run", "6 * 7"),
        "42",
        make_command("run", "6 * 7"),
    ),
    StoredFile(
        "trust.json",
        trust_project,
        set_version(2),
        remove_version,
        lambda home: run_in_project(home, "call", "moment"),
        "20",
        lambda home: run_in_project(home, "trust"),
    ),
    StoredFile(
        "stats.db",
        record_statistics,
        set_user_version(2),
        set_user_version(0),
        make_command("stats"),
        "machine.now",
        make_command("stats"),
    ),
    StoredFile(
        "results", store_result, set_version(2), remove_version, read_result, "needle", read_result
    ),
    StoredFile(
        "disabled tools",
        write_switches,
        set_user_version(2),
        set_user_version(0),
        make_command("call", "machine.now"),
        "machine.now is disabled",
        make_command("doctor"),
    ),
    StoredFile(
        "pins",
        write_pins,
        set_user_version(2),
        set_user_version(0),
        make_command("doctor"),
        "changed definition of odd.echo",
        make_command("call", "odd.echo", "text=x"),
    ),
]


@pytest.mark.sampled(3)
@pytest.mark.parametrize("stored_file", TABLE, ids=lambda stored_file: stored_file.name)
def test_files_of_this_version_are_read(tmp_path: Path, stored_file: StoredFile) -> None:
    stored_file.make(tmp_path)
    assert stored_file.content in stored_file.show(tmp_path)


def test_settings_without_a_version_are_read(tmp_path: Path) -> None:
    replace_line("version: 1\n", "")(write_settings(tmp_path))
    assert "20" in run_command(tmp_path, "call", "moment")


@pytest.mark.sampled(3)
@pytest.mark.parametrize("stored_file", TABLE, ids=lambda stored_file: stored_file.name)
def test_a_file_of_a_newer_version_is_rejected_and_not_changed(
    tmp_path: Path, stored_file: StoredFile
) -> None:
    file = stored_file.make(tmp_path)
    stored_file.newer(file)
    before = file.read_bytes()
    assert NEWER.search(stored_file.use(tmp_path))
    assert "upgrade OneTool" in stored_file.use(tmp_path)
    run_cli(tmp_path, "run", "machine.now()")  # must not change the file
    assert file.read_bytes() == before


@pytest.mark.sampled(3)
@pytest.mark.parametrize("stored_file", TABLE, ids=lambda stored_file: stored_file.name)
def test_a_file_of_an_unknown_version_is_rejected_and_kept(
    tmp_path: Path, stored_file: StoredFile
) -> None:
    file = stored_file.make(tmp_path)
    stored_file.unknown(file)
    before = file.read_bytes()
    output = stored_file.show(tmp_path)
    assert UNKNOWN.search(output), output
    run_cli(tmp_path, "run", "machine.now()")
    assert before in [
        kept.read_bytes() for kept in file.parent.iterdir() if kept.is_file()
    ]  # maybe renamed


@pytest.mark.sampled(4)
@pytest.mark.parametrize("message", [NEWER, UNKNOWN], ids=["newer", "unknown"])
@pytest.mark.parametrize(
    "stored_file",
    [each for each in TABLE if each.name != "results"],
    ids=lambda stored_file: stored_file.name,
)
def test_the_doctor_reports_a_file_of_another_version(
    tmp_path: Path, stored_file: StoredFile, message: re.Pattern[str]
) -> None:
    file = stored_file.make(tmp_path)
    change = stored_file.newer if message is NEWER else stored_file.unknown
    change(file)
    before = file.read_bytes()
    output = (
        run_in_project(tmp_path, "doctor")
        if stored_file.name == "trust.json"
        else run_command(tmp_path, "doctor")
    )
    assert len(message.findall(output)) == 1, output
    assert str(file) in output
    assert file.read_bytes() == before


@pytest.mark.parametrize("name", ["stats.db", "disabled tools", "pins"])
def test_runs_work_despite_a_file_of_a_newer_version(tmp_path: Path, name: str) -> None:
    (stored_file,) = (each for each in TABLE if each.name == name)
    stored_file.newer(stored_file.make(tmp_path))
    assert run_cli(tmp_path, "run", "6 * 7").stdout == "42\n"


# --- files that no command shows ------------------------------------------------------------------


def test_media_without_a_version_are_rejected(tmp_path: Path) -> None:
    media = open_media(tmp_path, 60)
    handle = media.put(b"picture", "image/png", "default")
    remove_version(tmp_path / f"media-{handle}.json")
    with pytest.raises(ToolError, match="not found or expired"):
        media.get(handle, "default")


# --- bundles --------------------------------------------------------------------------------------


def test_a_bundle_of_a_newer_version_is_reported_and_not_replaced(tmp_path: Path) -> None:
    file = create_bundle(tmp_path)
    assert "animals" in run_command(tmp_path, "bundles")
    set_version(2, "schemaVersion")(file)
    before = file.read_bytes()
    output = run_command(tmp_path, "doctor")
    assert NEWER.search(output)
    assert "upgrade OneTool" in output
    assert "animals" not in run_command(tmp_path, "bundles")
    with open_store(tmp_path / ".onetool" / "bundles") as store:
        expect_error(
            "duplicate", store.put_bundle, json.loads(before)["id"], bundle_body("animals")
        )
    assert file.read_bytes() == before


@pytest.mark.parametrize("version", [0, 99])
def test_an_index_of_another_version_is_rebuilt(tmp_path: Path, version: int) -> None:
    create_bundle(tmp_path)
    index = tmp_path / ".onetool" / "bundles" / ".index"
    set_user_version(version)(index / (index / "current").read_text(encoding="utf-8"))
    assert "animals" in run_command(tmp_path, "bundles")


# --- caches and append-only files -----------------------------------------------------------------


@pytest.mark.parametrize("version", [0, 99])
def test_a_list_of_tools_of_another_version_is_requested_again(
    tmp_path: Path, version: int
) -> None:
    configure(tmp_path, yaml.safe_dump({"servers": {"odd": hostile_server("echo")}}))
    assert "no changes" in run_command(tmp_path, "servers", "accept", "odd")
    lists = Documents(DocumentFile(tmp_path / ".onetool" / "cache"), "tool list")
    ((key, before),) = lists.get_all().items()
    lists.update(key, lambda document: {**document, "version": version})
    assert "no changes" in run_command(tmp_path, "servers", "accept", "odd")
    assert lists.get(key) == before
    assert "odd.echo" in run_command(tmp_path, "tools", "odd")


def test_the_audit_log_is_append_only(tmp_path: Path) -> None:
    configure(tmp_path, "agents: {default: {permissions: [read, write]}}\n")
    file = tmp_path / ".onetool" / "logs" / "audit.jsonl"
    file.parent.mkdir()
    before = b'{"version": 99, "what": "a line of a newer OneTool"}\n'
    file.write_bytes(before)
    assert run_cli(tmp_path, "run", "fs.write(path='a.txt', content='x')").returncode == 0
    assert file.read_bytes().startswith(before)
    assert b'"tool":"fs.write"' in file.read_bytes()
