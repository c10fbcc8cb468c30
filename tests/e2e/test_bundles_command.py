"""Tests of `onetool bundles` with the store of a home directory, also while a server is running."""

import io
import json
import subprocess
import zipfile
from pathlib import Path
from typing import Any

import pytest
from tests.bundles_support import new_bundle, open_store, tool_body
from tests.support import PROGRAM, configure, connect, environment, get_texts, run_cli

from onetool.sources.bundles import archive

PARSES = {"pythonImpl": {"function": "json.parse"}}


@pytest.fixture
def home(tmp_path: Path) -> Path:
    with open_store(tmp_path / ".onetool" / "bundles") as store:
        data = new_bundle(store, "data-tools", description="Texts as data.\nMore.")
        store.put_tool(data, "parse-it", "1.0", tool_body(**PARSES))
        store.put_tool(data, "parse-it", "2.0", tool_body(**PARSES))
        store.put_tool(data, "lost", "1", tool_body())
        new_bundle(store, "spare", isEnabled=False)
    return tmp_path


def run_bundles(home: Path, *arguments: str) -> str:
    done = run_cli(home, "bundles", *arguments)
    assert (done.returncode, done.stderr) == (0, ""), done.stderr
    return done.stdout


def run_rejected(home: Path, *arguments: str) -> str:
    done = run_cli(home, "bundles", *arguments)
    assert (done.returncode, done.stdout) == (1, "")
    assert "Traceback" not in done.stderr
    return done.stderr


def list_bundles(home: Path, *arguments: str) -> dict[str, Any]:
    rows = json.loads(run_bundles(home, *arguments, "--json"))["bundles"]
    return {row["slug"]: row for row in rows}


@pytest.mark.slow
def test_bundles_in_use_are_listed_and_the_others_are_counted(home: Path) -> None:
    text = run_bundles(home)
    assert text == run_bundles(home, "list")
    assert "data-tools  on   2 tools, 1 in use  Texts as data. More." in text
    assert "lost@1: its function some.function does not exist" in text
    assert "2 disabled bundles not shown. Run `onetool bundles list --all` to see all." in text
    assert "essentials  off  4 tools" in run_bundles(home, "list", "--all")
    assert list_bundles(home).keys() == {"data-tools"}
    assert (
        list_bundles(home, "--all").keys()
        == list_bundles(home, "list", "--all").keys()
        == {"data-tools", "spare", "essentials"}
    )
    assert (
        list_bundles(home)["data-tools"]["toolCount"],
        list_bundles(home)["data-tools"]["toolsInUse"],
    ) == (2, 1)


def test_without_bundles_the_list_explains_how_to_create_one(tmp_path: Path) -> None:
    assert "onetool import petstore.yaml" in run_bundles(tmp_path)


@pytest.mark.slow
def test_a_bundle_is_exported_and_imported_under_another_name(home: Path) -> None:
    assert "Wrote data-tools.zip" in run_bundles(home, "export", "data-tools")
    packed = (home / "data-tools.zip").read_bytes()
    assert packed == (home / export_to(home, "copy.zip")).read_bytes()
    assert "imported 3 tools of version 1, 1.0, 2.0" in run_bundles(
        home, "import", "data-tools.zip", "--name", "copy"
    )
    assert list_bundles(home)["copy"]["toolCount"] == 2
    assert run_cli(home, "call", "copy.parse-it", 'json="[1]"').stdout == "[1]\n"
    assert "nothing was changed" in run_bundles(home, "import", "data-tools.zip")


def export_to(home: Path, name: str) -> str:
    """Export to standard output, which is written to a file."""
    with (home / name).open("wb") as file:
        command = [PROGRAM, "bundles", "export", "data-tools", "-"]
        subprocess.run(
            command, cwd=home, env=environment(home), stdout=file, timeout=60, check=True
        )
    return name


def test_export_does_not_overwrite_a_file(home: Path) -> None:
    (home / "data-tools.zip").write_bytes(b"mine")
    assert "already exists" in run_rejected(home, "export", "data-tools")
    assert (home / "data-tools.zip").read_bytes() == b"mine"
    assert "cannot write" in run_rejected(home, "export", "data-tools", "missing/x.zip")


@pytest.mark.slow
def test_bundles_tools_and_versions_are_enabled_and_disabled(home: Path) -> None:
    assert (
        run_bundles(home, "disable", "data-tools.parse-it@2.0")
        == "Disabled data-tools.parse-it@2.0\n"
    )
    assert run_cli(home, "call", "data-tools.parse-it@2.0", "json=1").returncode == 1
    assert run_cli(home, "call", "data-tools.parse-it", 'json="1"').stdout == "1\n"
    both = json.loads(run_bundles(home, "disable", "data_tools.parse_it", "--json"))
    assert both == {
        "changed": ["data-tools.parse-it@1.0", "data-tools.parse-it@2.0"],
        "isEnabled": False,
    }
    off = run_cli(home, "call", "data-tools.parse-it", "json=1").stderr
    assert "`onetool bundles enable data-tools.parse-it@" in off
    run_bundles(home, "enable", "data-tools.parse-it")
    run_bundles(home, "disable", "data-tools")
    off = run_cli(home, "call", "data-tools.parse-it", 'json="1"').stderr
    assert "`onetool bundles enable data-tools`" in off
    run_bundles(home, "enable", "data-tools")
    assert run_cli(home, "call", "data-tools.parse-it", 'json="1"').stdout == "1\n"


@pytest.mark.slow
def test_a_built_in_bundle_can_be_enabled_but_not_changed(home: Path) -> None:
    assert "Enabled essentials" in run_bundles(home, "enable", "essentials")
    assert run_cli(home, "run", "essentials.parsejson('[1]')").stdout == "[1]\n"
    (home / "notes.txt").write_text("a line\nanother\n", encoding="utf-8")
    code = (
        "[essentials.readfile('notes.txt')['size'], essentials.findtext('other',"
        " path='.')['total_matches']]"
    )
    assert run_cli(home, "run", code).stdout == "[15,1]\n"
    rejected = run_cli(home, "run", "essentials.httpget('http://example.org')").stdout
    assert "http: {allowedHosts: [example.org]}" in rejected
    run_bundles(home, "disable", "essentials.parsejson")
    assert "is disabled" in run_cli(home, "run", "essentials.parsejson('[1]')").stdout
    (home / "essentials.zip").write_bytes(
        archive.pack({"slug": "essentials", "displayName": "x", "isEnabled": True}, [])
    )
    assert "--name essentials-2" in run_rejected(home, "import", "essentials.zip")


@pytest.mark.slow
def test_a_running_server_sees_every_change_immediately(home: Path) -> None:
    code = "[data_tools.parse_it(json='1')]"
    with connect(home) as client:
        assert get_texts(client.run(code)) == ["[1]"]
        run_bundles(home, "disable", "data-tools")
        assert "is disabled" in get_texts(client.run(code))[-1]
        run_bundles(home, "enable", "data-tools")
        assert get_texts(client.run(code)) == ["[1]"]
        run_bundles(home, "export", "data-tools")
        run_bundles(home, "import", "data-tools.zip", "--name", "late")
        assert get_texts(client.run("[late.parse_it(json='2')]")) == ["[2]"]
        run_bundles(home, "enable", "essentials")
        assert get_texts(client.run("[essentials.parsejson('3')]")) == ["[3]"]


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (
            ["enable", "data-tool"],
            (
                "unknown bundle 'data-tool': expected one of data-tools, essentials, spare\nHint:"
                " did you mean data-tools?"
            ),
        ),
        (["export", "nothing"], "expected one of data-tools, essentials, spare"),
        (
            ["enable", "data-tools.parse"],
            (
                "unknown tool 'parse' in bundle data-tools: expected one of lost, parse-it\nHint:"
                " did you mean parse-it?"
            ),
        ),
        (
            ["disable", "data-tools.parse-it@3"],
            "unknown version '3' of data-tools.parse-it: expected 1.0, 2.0",
        ),
        (["enable", "data-tools@1.0"], "expected SLUG[.TOOL[@VERSION]], such as"),
        (["enable", "data-tools."], "invalid name"),
        (["enable", ""], "invalid name"),
        (["import", "missing.zip"], "file not found: missing.zip"),
        (["import", "."], "is not a file"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else "",
)
def test_errors_for_unknown_names_list_similar_names(
    home: Path, arguments: list[str], expected: str
) -> None:
    assert expected in run_rejected(home, *arguments)


def test_enabling_a_tool_of_a_disabled_bundle_names_the_command_to_run(home: Path) -> None:
    run_bundles(home, "disable", "data-tools")
    assert "onetool bundles enable data-tools" in run_rejected(home, "enable", "data-tools.lost")


@pytest.mark.parametrize(
    "content", [b"PK\x03\x04 and no more", b"", b"text", b"PK\x03\x04" + b"\0" * 1000]
)
def test_a_file_that_is_not_an_archive_is_rejected(home: Path, content: bytes) -> None:
    (home / "x.zip").write_bytes(content)
    assert "x.zip: " in run_rejected(home, "import", "x.zip")
    assert list_bundles(home, "--all").keys() == {"data-tools", "spare", "essentials"}


def test_an_archive_with_an_invalid_tool_imports_nothing(home: Path) -> None:
    good = {"slug": "a", "version": "1", **tool_body()}
    packed = archive.pack(
        {"slug": "torn", "displayName": "x", "isEnabled": True}, [good, {**good, "slug": "b"}]
    )
    with zipfile.ZipFile(io.BytesIO(packed)) as archived:
        files = {name: archived.read(name) for name in archived.namelist()}
    with zipfile.ZipFile(home / "torn.zip", "w") as torn:
        for name, content in files.items():
            torn.writestr(
                name, content.replace(b'"python"', b'"perl"') if "b-1" in name else content
            )
    assert "tools/00002-b-1.json" in run_rejected(home, "import", "torn.zip")
    assert "torn" not in list_bundles(home, "--all")


def test_an_invalid_configuration_is_reported(home: Path) -> None:
    configure(home, "bundels: {}\n")
    assert "did you mean bundles?" in run_rejected(home, "list")
