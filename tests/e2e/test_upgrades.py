"""Everything that is kept on disk says which version it has: an older one opens, a newer one is refused with words.

What is refused keeps every byte, and the rest goes on without it. What is only a cache is made anew.
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
from tests.support import PROGRAM, configure, environment, run_cli

from onetool.bundles.usage import UsageCounts
from onetool.disabled_tools import Switches
from onetool.results.blobs import Media
from onetool.stats import rollup
from onetool.stats.history import find_run, recent_runs
from onetool.stats.record import ROWS, USAGE, CallRecord, Recorder, UseRecord
from onetool.stats.shapes import Shapes
from onetool.stats.summary import summarize

pytestmark = pytest.mark.slow
NEWER = re.compile(r"was written by a newer OneTool \((?:version|schemaVersion) \d+; this one supports \d\)")
Change = Callable[[Path], object]


@dataclass(frozen=True)
class Kept:
    """One file that we keep. `shows` is a command whose output has `holds` in it as long as everything is there.

    `asks` is the command that is refused, or that goes on without it, once the file is of a newer version; `doctor`
    tells of it in any case.
    """

    name: str
    make: Callable[[Path], Path]
    older: Change
    newer: Change
    shows: Callable[[Path], str]
    holds: str
    asks: Callable[[Path], str]
    words: re.Pattern[str] = NEWER


def said(home: Path, *arguments: str) -> str:
    done = run_cli(home, *arguments)
    assert "Traceback" not in done.stderr
    return done.stdout + done.stderr


def saying(*arguments: str) -> Callable[[Path], str]:
    return lambda home: said(home, *arguments)


def rewritten(file: Path, change: Callable[[Any], Any]) -> None:
    file.write_text(json.dumps(change(json.loads(file.read_text(encoding="utf-8")))), encoding="utf-8")


def with_version(number: int, key: str = "version") -> Change:
    return lambda file: rewritten(file, lambda data: {**data, key: number})


def without_version(file: Path) -> None:
    rewritten(file, lambda data: {name: value for name, value in data.items() if name != "version"})


def only(key: str) -> Change:
    """As it was written before there were versions."""
    return lambda file: rewritten(file, lambda data: data[key])


def user_version(number: int) -> Change:
    def change(file: Path) -> None:
        with closing(sqlite3.connect(file)) as database:
            database.execute(f"pragma user_version = {number}")

    return change


def line(old: str, new: str) -> Change:
    def change(file: Path) -> None:
        text = file.read_text(encoding="utf-8")
        assert old in text
        file.write_text(text.replace(old, new), encoding="utf-8")

    return change


# --- the files -------------------------------------------------------------------------------------------------------


def settings(home: Path) -> Path:
    configure(home, "version: 1\naliases: {moment: machine.now}\n")
    return home / ".onetool" / "onetool.yaml"


def tokens(home: Path) -> Path:
    file = settings(home)
    assert run_cli(home, "token", "create", "laptop").returncode == 0
    return file


def agent(home: Path) -> Path:
    file = home / ".onetool" / "agents" / "pilot.yaml"
    file.parent.mkdir(parents=True)
    file.write_text("version: 1\npermissions: [read]\n", encoding="utf-8")
    return file


def prompts(home: Path) -> Path:
    file = home / ".onetool" / "prompts.yaml"
    file.parent.mkdir(parents=True)
    file.write_text("version: 1\ninstructions: Be brief.\n", encoding="utf-8")
    return file


def trust(home: Path) -> Path:
    configure(home / "project", "aliases: {moment: machine.now}\n")
    assert in_project(home, "trust") != ""
    return home / ".onetool" / "trust.json"


def in_project(home: Path, *arguments: str) -> str:
    """With `--config` a person would name the file, and so trust it: this goes by the folder."""
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


def statistics(home: Path) -> Path:
    assert run_cli(home, "run", "machine.now()").returncode == 0
    return home / ".onetool" / "stats" / "stats.db"


def result(home: Path) -> Path:
    assert run_cli(home, "run", "'needle' + 'x' * 200_000").returncode == 0
    (file,) = (home / ".onetool" / "tmp").glob("*.meta.json")
    return file


def of_result(home: Path) -> str:
    (file,) = (home / ".onetool" / "tmp").glob("*.meta.json")
    return said(home, "run", f"ot.result(handle={file.name[7:39]!r}, limit=10)")


def switches(home: Path) -> Path:
    Switches(home / ".onetool").set("machine.now", on=False)
    return home / ".onetool" / "switches.json"


def pins(home: Path) -> Path:
    """Of a server whose tools have changed since."""
    notes = home / "notes"
    notes.mkdir()
    configure(home, yaml.safe_dump({"servers": {"odd": hostile_server("changes", notes, pin="strict")}}))
    assert run_cli(home, "servers", "accept", "odd").returncode == 0
    (notes / "changed").touch()
    return home / ".onetool" / "pins.json"


def bundle(home: Path) -> Path:
    with open_store(home / ".onetool" / "bundles") as store:
        new_bundle(store, "animals")
    (file,) = (home / ".onetool" / "bundles").glob("*/bundle.json")
    return file


TABLE = [
    Kept(
        "onetool.yaml",
        settings,
        line("version: 1\n", ""),
        line("version: 1\n", "version: 2\nthings: {}\n"),
        saying("call", "moment"),
        "20",
        saying("tools"),
    ),
    Kept(
        "the tokens in it",
        tokens,
        line("version: 1\n", ""),
        line("version: 1\n", "version: 2\n"),
        saying("token", "list"),
        "laptop",
        saying("token", "create", "another"),
    ),
    Kept(
        "agents/*.yaml",
        agent,
        line("version: 1\n", ""),
        line("version: 1", "version: 2"),
        saying("run", "--agent", "pilot", "6 * 7"),
        "42",
        saying("run", "--agent", "pilot", "6 * 7"),
    ),
    Kept(
        "prompts.yaml",
        prompts,
        line("version: 1\n", ""),
        line("version: 1", "version: 2"),
        saying("run", "6 * 7"),
        "42",
        saying("run", "6 * 7"),
    ),
    Kept(
        "trust.json",
        trust,
        only("folders"),
        with_version(3),
        lambda home: in_project(home, "call", "moment"),
        "20",
        lambda home: in_project(home, "trust"),
    ),
    Kept(
        "stats.db",
        statistics,
        user_version(0),
        user_version(9),
        saying("stats"),
        "machine.now",
        saying("stats"),
    ),
    Kept("results", result, without_version, with_version(2), of_result, "needle", of_result),
    Kept(
        "switches.json",
        switches,
        without_version,
        with_version(2),
        saying("call", "machine.now"),
        "machine.now is disabled",
        saying("doctor"),
    ),
    Kept(
        "pins.json",
        pins,
        only("servers"),
        with_version(2),
        saying("doctor"),
        "changed definition of odd.echo",
        saying("call", "odd.echo", "text=x"),
    ),
]


@pytest.mark.parametrize("kept", TABLE, ids=lambda kept: kept.name)
def test_what_this_version_wrote_and_what_says_no_version_opens_with_everything_in_it(
    tmp_path: Path, kept: Kept
) -> None:
    file = kept.make(tmp_path)
    assert kept.holds in kept.shows(tmp_path)
    kept.older(file)
    assert kept.holds in kept.shows(tmp_path)


@pytest.mark.parametrize("kept", TABLE, ids=lambda kept: kept.name)
def test_what_a_newer_version_wrote_is_refused_with_words_and_keeps_every_byte(tmp_path: Path, kept: Kept) -> None:
    file = kept.make(tmp_path)
    kept.newer(file)
    before = file.read_bytes()
    assert kept.words.search(kept.asks(tmp_path))
    assert "upgrade OneTool" in kept.asks(tmp_path)
    run_cli(tmp_path, "run", "machine.now()")  # whatever it says: it changes nothing
    assert file.read_bytes() == before


@pytest.mark.parametrize("kept", [each for each in TABLE if each.name != "results"], ids=lambda kept: kept.name)
def test_the_doctor_tells_of_what_a_newer_version_wrote(tmp_path: Path, kept: Kept) -> None:
    file = kept.make(tmp_path)
    kept.newer(file)
    before = file.read_bytes()
    told = in_project(tmp_path, "doctor") if kept.name == "trust.json" else said(tmp_path, "doctor")
    assert len(NEWER.findall(told)) == 1, told
    assert str(file) in told
    assert file.read_bytes() == before


@pytest.mark.parametrize("name", ["stats.db", "switches.json", "pins.json"])
def test_the_rest_goes_on_beside_a_file_of_a_newer_version(tmp_path: Path, name: str) -> None:
    (kept,) = (each for each in TABLE if each.name == name)
    kept.newer(kept.make(tmp_path))
    assert run_cli(tmp_path, "run", "6 * 7").stdout == "42\n"


# --- what no command shows -----------------------------------------------------------------------------------------


def learned(file: Path, *values: object) -> Shapes:
    shapes = Shapes(file)
    for value in values:
        shapes.learn("a.b", value)
    shapes.flush()
    return shapes


def test_shapes_without_a_version(tmp_path: Path) -> None:
    file = tmp_path / "shapes.json"
    learned(file, {"old": 1}).close()
    without_version(file)
    assert learned(file, {"old": 1}).text("a.b") == "{old: int}"


def test_media_without_a_version(tmp_path: Path) -> None:
    media = Media(tmp_path, 60)
    handle = media.put(b"picture", "image/png", "default")
    file = tmp_path / f"media-{handle}.json"
    without_version(file)
    assert media.get(handle, "default").data == b"picture"


# --- bundles ---------------------------------------------------------------------------------------------------------


def test_a_bundle_of_a_newer_version_is_reported_and_not_replaced(tmp_path: Path) -> None:
    file = bundle(tmp_path)
    assert "animals" in said(tmp_path, "bundles")
    with_version(2, "schemaVersion")(file)
    before = file.read_bytes()
    told = said(tmp_path, "doctor")
    assert NEWER.search(told)
    assert "upgrade OneTool" in told
    assert "animals" not in said(tmp_path, "bundles")
    with open_store(tmp_path / ".onetool" / "bundles") as store:
        expect_error("duplicate", store.put_bundle, json.loads(before)["id"], bundle_body("animals"))
    assert file.read_bytes() == before


@pytest.mark.parametrize("version", [0, 99])
def test_an_index_of_another_version_is_only_a_cache(tmp_path: Path, version: int) -> None:
    bundle(tmp_path)
    index = tmp_path / ".onetool" / "bundles" / ".index"
    user_version(version)(index / (index / "current").read_text(encoding="utf-8"))
    assert "animals" in said(tmp_path, "bundles")


def test_counts_that_had_a_file_of_their_own_go_on(tmp_path: Path) -> None:
    old, file = tmp_path / "bundles" / ".usage" / "usage.db", tmp_path / "stats" / "stats.db"
    old.parent.mkdir(parents=True)
    with closing(sqlite3.connect(old)) as database:
        database.execute("create table usage (tool text primary key, calls integer not null, last integer not null)")
        database.execute("insert into usage values ('a', 5, 1800000000000000), ('b', 1, 1)")
        database.commit()
    for _ in range(2):
        recorder = Recorder(file, enabled=False, old_usage=old)
        recorder.add(UseRecord("a", 1_700_000_000.0))
        recorder.close()
    found = UsageCounts(file).of(["a", "b", "c"])
    assert found == {"a": (7, "2027-01-15T08:00:00.000000Z"), "b": (1, "1970-01-01T00:00:00.000001Z")}


@pytest.mark.parametrize("version", [1, 2])
def test_statistics_of_older_versions_keep_every_count_and_run(tmp_path: Path, version: int) -> None:
    file = tmp_path / "stats.db"
    with closing(sqlite3.connect(file)) as database:
        database.executescript(f"pragma journal_mode = wal;{ROWS}")
        calls = [("a.b", "default", "s", "r", 0.5, None, 7, 1e9 + n) for n in range(5)]
        database.executemany("INSERT INTO calls VALUES (?, ?, ?, ?, ?, ?, ?, ?)", calls)
        run = ("r", "default", "s", 1.0, None, 5, 5, 35, 1e9)
        database.execute("INSERT INTO runs VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?)", run)
        if version > 1:
            database.executescript(f"{USAGE};{rollup.SCHEMA}")
            sums = "INSERT INTO rollups VALUES (?, ?, ?, ?, 'default', '', ?, ?, ?, 0.5, 1.0, 1e9)"
            start = 999_820_800  # of the four weeks
            kinds = ((0, "", 5, 35, 0), (1, "a.b", 5, 35, 0), (2, "", 1, 30, 4), (3, "a.b", 1, 30, 4))
            database.executemany(sums, [(28 * 86_400, start, *kind) for kind in kinds])
            times = [(28 * 86_400, start, kind, "a.b", "default", 37, 1) for kind in (1, 3)]
            database.executemany("INSERT INTO times VALUES (?, ?, ?, ?, ?, ?, ?)", times)
        database.execute(f"pragma user_version = {version}")
        database.commit()
    kept = file.read_bytes()
    before = summarize(file, tool="a.b")
    assert (before["total_calls"], before["runs"]["total"], before["savings"]["result_tokens"]) == (5, 1, 30)
    assert [run.calls for run in recent_runs(file)] == [5]
    assert file.read_bytes() == kept  # who only reads changes nothing
    recorder = Recorder(file, enabled=True, keep_days=100_000)
    recorder.add(CallRecord("a.b", "default", "s", "", 0.5, None, 7))
    recorder.close()
    after = summarize(file, tool="a.b")
    assert (after["total_calls"], after["runs"], after["savings"]) == (6, before["runs"], before["savings"])
    found = find_run(file, "r")
    assert found is not None
    assert (found[0].kind, len(found[1])) == ("run", 5)


# --- caches, and what is only added to -------------------------------------------------------------------------------


@pytest.mark.parametrize("version", [1, 99])
def test_a_list_of_tools_of_another_version_is_requested_again(tmp_path: Path, version: int) -> None:
    configure(tmp_path, yaml.safe_dump({"servers": {"odd": hostile_server("echo")}}))
    assert "no changes" in said(tmp_path, "servers", "accept", "odd")
    (file,) = (tmp_path / ".onetool" / "cache").glob("tools-*.json")
    before = file.read_bytes()
    with_version(version)(file)
    assert "no changes" in said(tmp_path, "servers", "accept", "odd")
    assert file.read_bytes() == before
    assert "odd.echo" in said(tmp_path, "tools", "odd")


def test_the_audit_log_is_only_added_to(tmp_path: Path) -> None:
    configure(tmp_path, "agents: {default: {permissions: [read, write]}}\n")
    file = tmp_path / ".onetool" / "logs" / "audit.jsonl"
    file.parent.mkdir()
    before = b'{"version": 99, "what": "a line of a newer OneTool"}\n'
    file.write_bytes(before)
    assert run_cli(tmp_path, "run", "fs.write(path='a.txt', content='x')").returncode == 0
    assert file.read_bytes().startswith(before)
    assert b'"tool":"fs.write"' in file.read_bytes()
