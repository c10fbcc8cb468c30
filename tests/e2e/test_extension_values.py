"""Extensions over MCP: arguments, results, and changes of modules in the same directory."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.extensions_support import write_pack
from tests.support import Connection, configure, connect, get_texts

SOURCE = """\
from helper import borrowed, original as renamed
from inner.deep import buried
import helper
import inner.deep

__all__ = ["only", "kind", "kinds", "maybe", "many", "lazy", "later", "borrowed", "renamed", "buried", "helped", "deep"]

def only(first: int, *, second: int = 2) -> list:
    return [first, second]

def kind(x: int, y: float = 1.5) -> list:
    return [type(x).__name__, x, type(y).__name__]

def kinds(xs: list[int], by_name: dict[str, int]) -> list:
    return [type(x).__name__ for x in [*xs, *by_name.values()]]

def maybe(x: int | None = None, z: int | float = 0) -> list:
    return [type(x).__name__, type(z).__name__]

async def many(n: int):
    for number in range(n):
        yield {"number": number}

def lazy(n: int):
    yield from range(n)

async def later(n: int):
    return many(n)

def helped() -> int:
    return helper.VALUE

def deep() -> int:
    return inner.deep.VALUE
"""
HELPER = """\
VALUE = 1

def borrowed(text: str, times: int = 2) -> str:
    \"\"\"Repeat a text.\"\"\"
    return text * times

def original(*, flag: bool = False) -> bool:
    return flag
"""
DEEP = "VALUE = 1\n\nasync def buried(n: int) -> int:\n    return n + 1\n"


@pytest.fixture(scope="module")
def client(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Connection]:
    home = tmp_path_factory.mktemp("home")
    configure(home, "log_level: DEBUG\n")
    directory = write_pack(home / ".onetool" / "tools", "mine", SOURCE).parent
    (directory / "helper.py").write_text(HELPER, encoding="utf-8")
    (directory / "inner").mkdir()
    (directory / "inner" / "__init__.py").touch()
    (directory / "inner" / "deep.py").write_text(DEEP, encoding="utf-8")
    with connect(home) as client:
        yield client


def run_text(client: Connection, code: str) -> str:
    return get_texts(client.run(code))[-1]


def test_keyword_only_arguments_cannot_be_passed_by_position(client: Connection) -> None:
    assert run_text(client, "mine.only(1, second=3)") == "[1,3]"
    assert run_text(client, "mine.only(first=1)") == "[1,2]"
    assert "takes 1 argument by position, got 2" in run_text(client, "mine.only(1, 3)")
    assert "takes 0 arguments by position" in run_text(client, "mine.renamed(True)")


def test_a_whole_float_is_converted_for_an_integer_parameter(client: Connection) -> None:
    assert run_text(client, "mine.kind(3.0, 2.0)") == '["int",3,"float"]'
    assert run_text(client, "mine.kind(x=2.0**70)") == f'["int",{2**70},"float"]'
    assert run_text(client, "mine.kinds([1.0, 2], {'a': 3.0})") == '["int","int","int"]'
    assert run_text(client, "mine.maybe(4.0, 4.0)") == '["int","float"]'
    for wrong in ("3.5", "'3'", "float('inf')"):
        assert "ArgumentError" in run_text(client, f"mine.kind({wrong})"), wrong


def test_generators_are_returned_as_lists(client: Connection) -> None:
    assert run_text(client, "mine.many(2)") == '[{"number":0},{"number":1}]'
    assert run_text(client, "mine.lazy(3)") == "[0,1,2]"
    assert run_text(client, "mine.later(1)") == '[{"number":0}]'
    assert run_text(client, "mine.many(0)") == "[]"


def test_dunder_all_can_export_functions_of_sibling_modules(client: Connection) -> None:
    assert run_text(client, "mine.borrowed('ab')") == "abab"
    assert run_text(client, "mine.renamed(flag=True)") == "True"
    assert run_text(client, "mine.buried(1)") == "2"
    assert "Repeat a text." in run_text(client, "ot.help(query='mine.borrowed')")
    assert "which is not a function" not in run_text(client, "ot.health()")


def test_an_edited_sibling_module_is_used_by_the_next_call(client: Connection) -> None:
    directory = client.home / ".onetool" / "tools" / "mine"
    assert (run_text(client, "mine.helped()"), run_text(client, "mine.deep()")) == ("1", "1")
    for value in (2, 3, 4):  # within one second, and of one size
        (directory / "helper.py").write_text(HELPER.replace("VALUE = 1", f"VALUE = {value}"), encoding="utf-8")
        assert run_text(client, "mine.helped()") == str(value)
    (directory / "inner" / "deep.py").write_text(DEEP.replace("VALUE = 1", "VALUE = 22"), encoding="utf-8")
    assert run_text(client, "mine.deep()") == "22"
    renamed = HELPER.replace("times: int = 2", "times: int = 3")
    (directory / "helper.py").write_text(renamed, encoding="utf-8")
    assert run_text(client, "mine.borrowed('a')") == "aaa"


def test_an_exported_name_that_does_not_exist_is_reported(tmp_path: Path) -> None:
    configure(tmp_path, "log_level: DEBUG\n")
    text = "from os import getcwd\n__all__ = ['getcwd', 'nothing', 'fine']\ndef fine(): return 1\n"
    write_pack(tmp_path / ".onetool" / "tools", "mine", text)
    with connect(tmp_path) as client:
        assert run_text(client, "mine.fine()") == "1"
        problems = run_text(client, "ot.health()['problems']")
    assert "__all__ contains 'getcwd'" in problems
    assert "__all__ contains 'nothing'" in problems
