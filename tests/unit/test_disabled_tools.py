"""Disabled tools: shared between processes; an unreadable file disables everything and is not overwritten."""

import os
from pathlib import Path

import pytest

from onetool.errors import BundleError
from onetool.state.disabled_tools import EVERYTHING, FILE, Switches


def test_a_disabled_tool_stays_disabled_until_it_is_enabled(tmp_path: Path) -> None:
    one, other = Switches(tmp_path), Switches(tmp_path)
    assert one.off() == frozenset()
    one.set("a.b", on=False)
    one.set("ünï", on=False)
    assert other.off() == one.off() == {"a.b", "ünï"}
    other.set("a.b", on=True)
    assert one.off() == {"ünï"}
    assert Switches(tmp_path).off() == {"ünï"}


def test_enabling_an_enabled_tool_writes_nothing(tmp_path: Path) -> None:
    Switches(tmp_path).set("a", on=True)
    assert not (tmp_path / FILE).exists()


TORN = ["", "{", "[]", '{"off": 3}', '{"on": []}', "null", "[" * 100_000, "\x00", '{"off": ["a", 1]}', '{"off": "a"}']


@pytest.mark.parametrize("text", TORN)
def test_a_damaged_file_disables_everything_and_is_not_overwritten(tmp_path: Path, text: str) -> None:
    file = tmp_path / FILE
    file.write_text(text, encoding="utf-8")
    switches = Switches(tmp_path)
    assert switches.off() == {EVERYTHING}
    assert f"rm {file}" in str(switches.problem)
    with pytest.raises(BundleError, match=FILE) as caught:
        switches.set("a", on=False)
    assert caught.value.code == "storage_unavailable"
    assert file.read_text(encoding="utf-8") == text
    file.unlink()
    assert switches.off() == frozenset()
    assert switches.problem is None


def test_a_file_that_cannot_be_opened_disables_everything_until_it_can(tmp_path: Path) -> None:
    (tmp_path / FILE).symlink_to(FILE)  # a link to itself, which even root cannot open
    switches = Switches(tmp_path)
    assert switches.off() == {EVERYTHING}
    (tmp_path / FILE).unlink()
    assert switches.off() == frozenset()


def test_a_pipe_in_place_of_the_file_disables_everything_without_blocking(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / FILE)
    switches = Switches(tmp_path)
    assert switches.off() == {EVERYTHING}
    assert "not a regular file" in str(switches.problem)


def test_a_lone_surrogate_in_a_name_is_supported(tmp_path: Path) -> None:
    switches = Switches(tmp_path)
    switches.set("pack.\ud800", on=False)
    assert switches.off() == {"pack.\ud800"}
