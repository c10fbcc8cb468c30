"""A switch is kept, is seen by others, and a damaged file is reported and switches nothing off."""

import json
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from ot.switches import FILE, Switches


def test_what_is_switched_off_stays_off_until_it_is_switched_on(tmp_path: Path) -> None:
    one, other = Switches(tmp_path), Switches(tmp_path)
    assert one.off() == frozenset()
    one.set("a.b", on=False)
    one.set("ünï", on=False)
    assert other.off() == one.off() == {"a.b", "ünï"}
    other.set("a.b", on=True)
    assert one.off() == {"ünï"}
    assert Switches(tmp_path).off() == {"ünï"}


def test_switching_on_what_is_on_writes_nothing(tmp_path: Path) -> None:
    Switches(tmp_path).set("a", on=True)
    assert not (tmp_path / FILE).exists()


@pytest.mark.parametrize("text", ["", "{", "[]", '{"off": 3}', '{"on": []}', "null", "[" * 100_000, "\x00"])
def test_a_damaged_file_is_reported_and_switches_nothing_off(tmp_path: Path, text: str) -> None:
    (tmp_path / FILE).write_text(text, encoding="utf-8")
    switches = Switches(tmp_path)
    assert switches.off() == frozenset()
    assert FILE in (switches.problem or "")
    switches.set("a", on=False)
    assert switches.off() == {"a"}
    assert switches.problem is None


def test_names_that_are_none_are_passed_over(tmp_path: Path) -> None:
    (tmp_path / FILE).write_text(json.dumps({"off": ["a", 1, None, ["b"]]}), encoding="utf-8")
    assert Switches(tmp_path).off() == {"a"}


def test_half_a_character_in_a_name_breaks_nothing(tmp_path: Path) -> None:
    switches = Switches(tmp_path)
    switches.set("pack.\ud800", on=False)
    assert switches.off() == {"pack.\ud800"}


def test_switches_of_many_at_once_are_all_kept(tmp_path: Path) -> None:
    code = "import sys; from pathlib import Path; from ot.switches import Switches\n"
    code += "for n in range(20): Switches(Path(sys.argv[1])).set(f'{sys.argv[2]}.{n}', on=False)"
    others = [subprocess.Popen([sys.executable, "-c", code, str(tmp_path), f"process{n}"]) for n in range(2)]

    def switch(name: str) -> None:
        for number in range(20):
            Switches(tmp_path).set(f"{name}.{number}", on=False)

    with ThreadPoolExecutor() as threads:
        list(threads.map(switch, ["one", "two"]))
    assert [other.wait(30) for other in others] == [0, 0]
    assert len(Switches(tmp_path).off()) == 80
