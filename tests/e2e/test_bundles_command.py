"""`onetool bundles` as a person types it, on the store of a home folder, and beside a server that is running."""

import io
import json
import subprocess
import zipfile
from pathlib import Path
from typing import Any

import pytest
from tests.bundles_support import new_bundle, store_in, tool_body
from tests.support import PROGRAM, blocks, command_line, configure, connected, environment

from onetool.bundles import archive

PARSES = {"pythonImpl": {"function": "json.parse"}}


@pytest.fixture
def home(tmp_path: Path) -> Path:
    with store_in(tmp_path / ".onetool" / "bundles") as store:
        data = new_bundle(store, "data-tools", description="Texts as data.\nMore.")
        store.put_tool(data, "parse-it", "1.0", tool_body(**PARSES))
        store.put_tool(data, "parse-it", "2.0", tool_body(**PARSES))
        store.put_tool(data, "lost", "1", tool_body())
        new_bundle(store, "spare", isEnabled=False)
    return tmp_path


def typed(home: Path, *arguments: str) -> str:
    done = command_line(home, "bundles", *arguments)
    assert (done.returncode, done.stderr) == (0, ""), done.stderr
    return done.stdout


def refused(home: Path, *arguments: str) -> str:
    done = command_line(home, "bundles", *arguments)
    assert (done.returncode, done.stdout) == (1, "")
    assert "Traceback" not in done.stderr
    return done.stderr


def listed(home: Path, *arguments: str) -> dict[str, Any]:
    rows = json.loads(typed(home, *arguments, "--json"))["bundles"]
    return {row["slug"]: row for row in rows}


@pytest.mark.slow
def test_bundles_in_use_are_listed_and_the_others_are_counted(home: Path) -> None:
    text = typed(home)
    assert text == typed(home, "list")
    assert "data-tools  on   2 tools, 1 in use  Texts as data. More." in text
    assert "lost@1: there is no function some.function any more" in text
    assert "2 more switched off; `onetool bundles list --all`" in text
    assert "essentials  off  4 tools" in typed(home, "list", "--all")
    assert listed(home).keys() == {"data-tools"}
    assert listed(home, "--all").keys() == listed(home, "list", "--all").keys() == {"data-tools", "spare", "essentials"}
    assert (listed(home)["data-tools"]["toolCount"], listed(home)["data-tools"]["toolsInUse"]) == (2, 1)


def test_without_a_bundle_it_says_how_to_get_one(tmp_path: Path) -> None:
    assert "onetool import petstore.yaml" in typed(tmp_path)


@pytest.mark.slow
def test_a_bundle_goes_out_and_comes_in_under_another_name(home: Path) -> None:
    assert "wrote data-tools.zip" in typed(home, "export", "data-tools")
    packed = (home / "data-tools.zip").read_bytes()
    assert packed == (home / typed_to(home, "copy.zip")).read_bytes()
    assert "imported 3 tools of version 1, 1.0, 2.0" in typed(home, "import", "data-tools.zip", "--name", "copy")
    assert listed(home)["copy"]["toolCount"] == 2
    assert command_line(home, "call", "copy.parse-it", 'json="[1]"').stdout == "[1]\n"
    assert "nothing was changed" in typed(home, "import", "data-tools.zip")


def typed_to(home: Path, name: str) -> str:
    """Exported to the output, which is caught in a file."""
    with (home / name).open("wb") as file:
        command = [PROGRAM, "bundles", "export", "data-tools", "-"]
        subprocess.run(command, cwd=home, env=environment(home), stdout=file, timeout=60, check=True)
    return name


def test_an_archive_is_never_written_over_another_file(home: Path) -> None:
    (home / "data-tools.zip").write_bytes(b"mine")
    assert "is there already" in refused(home, "export", "data-tools")
    assert (home / "data-tools.zip").read_bytes() == b"mine"
    assert "cannot be written" in refused(home, "export", "data-tools", "missing/x.zip")


@pytest.mark.slow
def test_bundles_tools_and_versions_are_switched(home: Path) -> None:
    assert typed(home, "disable", "data-tools.parse-it@2.0") == "data-tools.parse-it@2.0 is switched off.\n"
    assert command_line(home, "call", "data-tools.parse-it@2.0", "json=1").returncode == 1
    assert command_line(home, "call", "data-tools.parse-it", 'json="1"').stdout == "1\n"
    both = json.loads(typed(home, "disable", "data_tools.parse_it", "--json"))
    assert both == {"changed": ["data-tools.parse-it@1.0", "data-tools.parse-it@2.0"], "isEnabled": False}
    off = command_line(home, "call", "data-tools.parse-it", "json=1").stderr
    assert "`onetool bundles enable data-tools.parse-it@" in off
    typed(home, "enable", "data-tools.parse-it")
    typed(home, "disable", "data-tools")
    off = command_line(home, "call", "data-tools.parse-it", 'json="1"').stderr
    assert "`onetool bundles enable data-tools`" in off
    typed(home, "enable", "data-tools")
    assert command_line(home, "call", "data-tools.parse-it", 'json="1"').stdout == "1\n"


@pytest.mark.slow
def test_what_comes_with_the_program_is_switched_and_not_changed(home: Path) -> None:
    assert "essentials is switched on." in typed(home, "enable", "essentials")
    assert command_line(home, "run", "essentials.parsejson('[1]')").stdout == "[1]\n"
    (home / "notes.txt").write_text("a line\nanother\n", encoding="utf-8")
    code = "[essentials.readfile('notes.txt')['size'], essentials.findtext('other', path='.')['total_matches']]"
    assert command_line(home, "run", code).stdout == "[15,1]\n"
    refusal = command_line(home, "run", "essentials.httpget('http://example.org')").stdout
    assert "http: {allowedHosts: [example.org]}" in refusal
    typed(home, "disable", "essentials.parsejson")
    assert "is disabled" in command_line(home, "run", "essentials.parsejson('[1]')").stdout
    (home / "essentials.zip").write_bytes(
        archive.pack({"slug": "essentials", "displayName": "x", "isEnabled": True}, [])
    )
    assert "--name essentials-2" in refused(home, "import", "essentials.zip")


@pytest.mark.slow
def test_a_running_server_sees_every_change_at_once(home: Path) -> None:
    code = "[data_tools.parse_it(json='1')]"
    with connected(home) as client:
        assert blocks(client.run(code)) == ["[1]"]
        typed(home, "disable", "data-tools")
        assert "is disabled" in blocks(client.run(code))[-1]
        typed(home, "enable", "data-tools")
        assert blocks(client.run(code)) == ["[1]"]
        typed(home, "export", "data-tools")
        typed(home, "import", "data-tools.zip", "--name", "late")
        assert blocks(client.run("[late.parse_it(json='2')]")) == ["[2]"]
        typed(home, "enable", "essentials")
        assert blocks(client.run("[essentials.parsejson('3')]")) == ["[3]"]


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (
            ["enable", "data-tool"],
            "there is no bundle 'data-tool'. Did you mean data-tools? Bundles: data-tools, essentials",
        ),
        (["export", "nothing"], "Bundles: data-tools, essentials, spare."),
        (
            ["enable", "data-tools.parse"],
            "there is no tool 'parse'. Did you mean parse-it? data-tools has: lost, parse-it.",
        ),
        (["disable", "data-tools.parse-it@3"], "unknown version '3' of data-tools.parse-it: expected 1.0, 2.0"),
        (["enable", "data-tools@1.0"], "write SLUG[.TOOL[@VERSION]], for example"),
        (["enable", "data-tools."], "invalid name"),
        (["enable", ""], "invalid name"),
        (["import", "missing.zip"], "file not found: missing.zip"),
        (["import", "."], "is no file"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else "",
)
def test_what_is_unknown_lists_what_is_near(home: Path, arguments: list[str], words: str) -> None:
    assert words in refused(home, *arguments)


def test_a_tool_of_a_bundle_that_is_off_says_what_to_type_first(home: Path) -> None:
    typed(home, "disable", "data-tools")
    assert "onetool bundles enable data-tools" in refused(home, "enable", "data-tools.lost")


@pytest.mark.parametrize("content", [b"PK\x03\x04 and no more", b"", b"text", b"PK\x03\x04" + b"\0" * 1000])
def test_a_file_that_is_no_archive_is_refused_in_words(home: Path, content: bytes) -> None:
    (home / "x.zip").write_bytes(content)
    assert "x.zip: " in refused(home, "import", "x.zip")
    assert listed(home, "--all").keys() == {"data-tools", "spare", "essentials"}


def test_an_archive_with_a_wrong_tool_leaves_nothing_behind(home: Path) -> None:
    good = {"slug": "a", "version": "1", **tool_body()}
    packed = archive.pack({"slug": "torn", "displayName": "x", "isEnabled": True}, [good, {**good, "slug": "b"}])
    with zipfile.ZipFile(io.BytesIO(packed)) as archived:
        files = {name: archived.read(name) for name in archived.namelist()}
    with zipfile.ZipFile(home / "torn.zip", "w") as torn:
        for name, content in files.items():
            torn.writestr(name, content.replace(b'"python"', b'"perl"') if "b-1" in name else content)
    assert "tools/00002-b-1.json" in refused(home, "import", "torn.zip")
    assert "torn" not in listed(home, "--all")


def test_a_wrong_configuration_is_told(home: Path) -> None:
    configure(home, "bundels: {}\n")
    assert "write bundles" in refused(home, "list")
