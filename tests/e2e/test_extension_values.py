"""Extensions over MCP: arguments and their types, results, and changes of modules in the same
directory.
"""

import json
import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.extensions_support import write_pack
from tests.support import Connection, configure, connect, eventually, get_texts

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
    assert run_text(client, "mine.kind('3', '2.5')") == '["int",3,"float"]'
    for wrong in ("3.5", "'3.5'", "'three'", "float('inf')"):
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
        (directory / "helper.py").write_text(
            HELPER.replace("VALUE = 1", f"VALUE = {value}"), encoding="utf-8"
        )
        assert run_text(client, "mine.helped()") == str(value)
    (directory / "inner" / "deep.py").write_text(
        DEEP.replace("VALUE = 1", "VALUE = 22"), encoding="utf-8"
    )
    assert run_text(client, "mine.deep()") == "22"
    renamed = HELPER.replace("times: int = 2", "times: int = 3")
    (directory / "helper.py").write_text(renamed, encoding="utf-8")
    assert run_text(client, "mine.borrowed('a')") == "aaa"


TYPED = '''\
from __future__ import annotations
import datetime as dt, sys
from typing import Annotated, NamedTuple, TypedDict
from pydantic import BaseModel, Field
from . import models
from .models import Color, Item

class Span(TypedDict, total=False):
    start: dt.date
    length: dt.timedelta

class Point(NamedTuple):
    x: int
    y: float = 0.0

class Node(BaseModel):
    name: str
    children: list[Node] = []

shout = lambda text: text.upper()

def show(item: Item, color: Color = Color.BLUE) -> list[str]:
    """Show the values that the function gets,
    as Python writes them.

    Parameters
    ----------
    item : Item
        The item to show.
    color : Color
        Its color.

    Returns
    -------
    list of str
        One text for each value.

    Raises
    ------
    KeyError
        If the item is unknown.

    Examples
    --------
    typed.show(item={"sku": "a", "price": "1.50"})
    """
    return [repr(item), repr(color)]

def rest(first: int, /, *days: dt.date, span: Span | None = None, **counts: int) -> str:
    return repr((first, days, span, counts))

def walk(node: Node, at: Point, limit: Annotated[int, Field(ge=1)] = 1) -> str:
    return f"{type(node.children[0]).__name__} {at!r} {limit}"

def version() -> int:
    return models.VERSION

def _private(): ...

if sys.platform == "win32":
    def system(drive: str) -> str: ...
else:
    def system(mount: str) -> str:
        return mount
'''
MODELS = """\
from dataclasses import dataclass, field
from decimal import Decimal
from enum import Enum
from .inner import deep

VERSION = deep.VERSION

class Color(Enum):
    RED = "red"
    BLUE = "blue"

@dataclass
class Item:
    sku: str
    price: Decimal
    parts: list["Item"] = field(default_factory=list)
"""


@pytest.fixture(scope="module")
def typed(client: Connection) -> Connection:
    """Packs of several files, without a directory, and with a wrong name, beside the one of
    `client`.
    """
    tools = client.home / ".onetool" / "tools"
    folder = write_pack(tools, "typed", TYPED).parent
    (folder / "models.py").write_text(MODELS, encoding="utf-8")
    (folder / "inner").mkdir()
    (folder / "inner" / "__init__.py").touch()
    (folder / "inner" / "deep.py").write_text("VERSION = 1\n", encoding="utf-8")
    (tools / "flat_tools.py").write_text(
        "from .shared import name\ndef greet(): return name\n", encoding="utf-8"
    )
    (tools / "shared.py").write_text("name = 'flat'\n", encoding="utf-8")
    (tools / "lost").mkdir()
    (tools / "lost" / "lost.py").write_text("def f(): ...\n", encoding="utf-8")
    for place, name in (
        ("sub/deep", "deep_tools.py"),
        ("sub/package", "__init__.py"),
        ("sub/package", "part_tools.py"),
    ):
        (tools / place).mkdir(parents=True, exist_ok=True)
        (tools / place / name).write_text("def f(): ...\n", encoding="utf-8")
    return client


@pytest.mark.parametrize(
    ("call", "value"),
    [
        (
            (
                "typed.show({'sku': 'a', 'price': '1.50', 'parts': [{'sku': 'b', 'price': 2}]},"
                " color='red')[0]"
            ),
            (
                "Item(sku='a', price=Decimal('1.50'), parts=[Item(sku='b', price=Decimal('2'),"
                " parts=[])])"
            ),
        ),
        ("typed.show(item={'sku': 'a', 'price': 1})[1]", "<Color.BLUE: 'blue'>"),
        (
            "typed.rest(1, '2024-02-29', span={'length': 'PT1H'}, x='3', y=4.0)",
            (
                "(1, (datetime.date(2024, 2, 29),), {'length': datetime.timedelta(seconds=3600)},"
                " {'x': 3, 'y': 4})"
            ),
        ),
        ("typed.rest('1', days=['2024-02-29'])", "(1, (datetime.date(2024, 2, 29),), None, {})"),
        (
            "typed.walk({'name': 'a', 'children': [{'name': 'b'}]}, [1], limit='2')",
            "Node Point(x=1, y=0.0) 2",
        ),
        ("typed.system(mount='/')", "/"),
        ("flat.greet()", "flat"),
    ],
)
def test_a_function_gets_the_types_that_it_declares(
    typed: Connection, call: str, value: str
) -> None:
    assert run_text(typed, call) == value


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (
            "typed.show({'sku': 'a', 'price': 'x'})",
            "invalid value item.price='x': expected a decimal number",
        ),
        (
            "typed.show({'sku': 'a', 'price': 1, 'size': 2})",
            "item: Additional properties are not allowed",
        ),
        (
            "typed.show({'sku': 'a', 'price': 1}, 'green')",
            'color: "green" is not one of "red" or "blue"',
        ),
        ("typed.rest(1, '2024-02-29', 'soon')", "invalid value days[1]='soon'"),
        ("typed.rest(1, x='many')", 'x: "many" is not of type "integer"'),
        ("typed.rest(1, days=5)", 'days: 5 is not of type "array"'),
        (
            "typed.walk({'name': 'a', 'children': [{}]}, [1])",
            'node.children[0]: "name" is a required property',
        ),
        ("typed.walk({'name': 'a'}, [1], limit=0)", "limit: 0 is less than the minimum of 1"),
    ],
)
def test_invalid_parts_of_arguments_are_named(typed: Connection, call: str, message: str) -> None:
    assert message in run_text(typed, call)


ITEM = "{'sku': str, 'price': float | str, 'parts': NotRequired[list[dict]]}"
SHOW_SIGNATURE = f"typed.show(item: {ITEM}, color: Literal['red', 'blue'] = 'blue') -> list[str]"


def test_help_shows_each_part_of_a_docstring_at_its_level(typed: Connection) -> None:
    short, full = (
        run_text(typed, f"ot.help(query='typed.show', info='{info}')") for info in ("min", "full")
    )
    assert SHOW_SIGNATURE in short
    assert "\nShow the values that the function gets, as Python writes them.\n" in short
    assert (
        "- item (dict) - The item to show.\n  - sku (str, required)\n  - price (float | str,"
        " required)\n" in short
    )
    assert 'Example:\ntyped.show(item={"sku": "a", "price": "1.50"})' in short
    assert "Raises:" not in short
    assert "Returns: list[str] - One text for each value." in full
    assert "Raises:\n- KeyError: If the item is unknown." in full
    span = r"span: \{'start': NotRequired\[str\], 'length': .*\} \| None = None"
    pattern = rf"typed\.rest\(first: int, \*days: str, {span}, \*\*counts: int\)"
    assert re.search(pattern, run_text(typed, "ot.help(query='typed')"))


def test_health_says_what_is_ignored(typed: Connection) -> None:
    assert eventually(lambda: "ignored" in run_text(typed, "list(ot.health())")), (
        "answers are kept for a second"
    )
    problems, ignored = json.loads(
        run_text(typed, "h = ot.health()\n[h['problems'], h['ignored']]")
    )
    tools = typed.home / ".onetool" / "tools"
    assert (
        f"{tools}/typed/typed_tools.py: ignored _private: names that start with _ are private"
        in ignored
    )
    text = "\n".join(problems)
    assert "ignored shout: a lambda is not a tool. Hint: write `def shout(...)`" in text
    assert (
        f"{tools}/lost/lost.py: ignored, because its name does not end in _tools.py. Hint:"
        " rename it" in text
    )
    assert "shared.py" not in text
    too_deep = (
        f"{tools}/sub/deep/deep_tools.py: ignored, because packs are only looked for in {tools} and"
        " its subdir"
    )
    assert too_deep in text
    assert f"move it to {tools}/deep/deep_tools.py" in text
    assert "part_tools.py" not in text


def test_an_edited_module_of_a_relative_import_is_used_by_the_next_call(typed: Connection) -> None:
    assert run_text(typed, "typed.version()") == "1"
    for value in (2, 3):  # within one second, and of one size
        deep = typed.home / ".onetool" / "tools" / "typed" / "inner" / "deep.py"
        deep.write_text(f"VERSION = {value}\n", encoding="utf-8")
        assert run_text(typed, "typed.version()") == str(value)
    models = typed.home / ".onetool" / "tools" / "typed" / "models.py"
    models.write_text(MODELS.replace('"blue"', '"navy"'), encoding="utf-8")
    assert (
        run_text(typed, "typed.show(item={'sku': 'a', 'price': 1}, color='navy')[1]")
        == "<Color.BLUE: 'navy'>"
    )


def test_an_exported_name_that_does_not_exist_is_reported(tmp_path: Path) -> None:
    configure(tmp_path, "log_level: DEBUG\n")
    text = "from os import getcwd\n__all__ = ['getcwd', 'nothing', 'fine']\ndef fine(): return 1\n"
    write_pack(tmp_path / ".onetool" / "tools", "mine", text)
    with connect(tmp_path) as client:
        assert run_text(client, "mine.fine()") == "1"
        assert run_text(client, "'ignored' in ot.health()") == "False"
        problems = run_text(client, "ot.health()['problems']")
    assert "__all__ contains 'getcwd'" in problems
    assert "__all__ contains 'nothing'" in problems
