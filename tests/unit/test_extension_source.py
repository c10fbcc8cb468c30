"""Static analysis of extension files, valid and invalid."""

import os
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings, strategies as st
from tests.support import measure_seconds

from onetool.core.schema_work import resolve_reference
from onetool.sources.extensions.static_analysis import MAX_FILE_BYTES, Extension, read, stamp_file
from onetool.util.context import Permission


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "notes_tools.py"


def write_and_read(file: Path, text: str) -> Extension:
    file.write_text(text, encoding="utf-8")
    return read(file)


def list_names(extension: Extension) -> list[str]:
    return [function.name for function in extension.functions]


def test_a_file_is_described_by_its_source(file: Path) -> None:
    extension = write_and_read(
        file,
        '"""Doc."""\npermissions = ["read", ":exec"]\nasync def f(x: int) -> list[str]:\n '
        ' """Do."""',
    )
    assert extension.pack == "notes"
    assert extension.permissions == {Permission.READ, Permission.EXEC}
    assert extension.description == "Doc."
    assert (extension.problem, extension.problems, extension.header) == (None, (), None)
    (function,) = extension.functions
    assert (function.name, function.description, function.returns) == ("f", "Do.", "list[str]")
    assert function.input.json["properties"] == {"x": {"type": "integer"}}


def test_a_file_is_never_run(file: Path) -> None:
    text = (
        "import os\nos.abort()\n@os.abort()\ndef f(x: os.abort() = os.abort()): ...\nclass"
        " C(os.abort()): ..."
    )
    assert list_names(write_and_read(file, text)) == ["f"]


def test_the_last_function_of_a_name_is_used(file: Path) -> None:
    text = (
        "from typing import overload\n@overload\ndef f(a: int): ...\n@overload\ndef f(a: str):"
        " ...\ndef f(b): 'Last.'\n"
    )
    (function,) = write_and_read(file, text).functions
    assert list(function.input.properties) == ["b"]
    assert function.description == "Last."


def test_functions_are_found_after_any_line_endings(file: Path) -> None:
    file.write_bytes(
        b"x = 'a\\\r\n\x0c b'\r\n\x0c\r\n@print\r\ndef f(a, b=(1,\r\n 2)):\r\n    return a\r\ny = 1"
    )
    (function,) = read(file).functions
    assert list(function.input.properties) == ["a", "b"]
    assert write_and_read(file, "t = '\u2028\x0b\x1c'\ndef g(c): return c").functions[
        0
    ].input.required == {"c"}


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("def a(): ...\ndef _b(): ...\nclass C: ...\nd = lambda: 1\nfrom os import getcwd", ["a"]),
        ("__all__ = ['_b', 'a']\ndef a(): ...\ndef _b(): ...\ndef c(): ...", ["_b", "a"]),
        ("__all__ = ('a', 'a')\ndef a(): ...", ["a"]),
        ("__all__ = []\ndef a(): ...", []),
        ("__all__: list[str] = ['a']\ndef a(): ...\ndef b(): ...", ["a"]),
        ("def a(): ...\nclass K:\n  def b(self): ...\n  def a(self, x): ...", ["a"]),
    ],
)
def test_exported_or_public_functions_are_tools(file: Path, text: str, found: list[str]) -> None:
    extension = write_and_read(file, text)
    assert list_names(extension) == found
    assert extension.problem is None


def test_an_exported_name_that_is_not_a_function_is_reported(file: Path) -> None:
    extension = write_and_read(file, "__all__ = ['a', 'LIMIT', 'gone']\nLIMIT = 1\ndef a(): ...")
    assert list_names(extension) == ["a"]
    assert [problem.message.rpartition(": ")[2] for problem in extension.problems] == [
        (
            "__all__ contains 'LIMIT', which is not a function of this file or of a module in its"
            " directory"
        ),
        (
            "__all__ contains 'gone', which is not a function of this file or of a module in its"
            " directory"
        ),
    ]


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("if sys.platform == 'win32':\n def f(no): ...\nelse:\n def f(yes): ...", {"f": ["yes"]}),
        (
            (
                "if os.name == 'nt':\n def f(no): ...\nelif sys.platform.startswith('li'):\n def"
                " f(yes): ..."
            ),
            {"f": ["yes"]},
        ),
        (
            "try:\n import fast\n def f(first): ...\nexcept ImportError:\n def f(second): ...",
            {"f": ["first"]},
        ),
        (
            "if DEBUG:\n def f(first): ...\nelse:\n def f(second): ...\n def g(): ...",
            {"f": ["first"], "g": []},
        ),
        ("with suppress(ImportError):\n    def f(a, b='''\nx'''): ...", {"f": ["a", "b"]}),
        ("if __name__ == '__main__':\n def main(): ...", {}),
        ("for x in y:\n def f(): ...\nclass A:\n def g(self): ...", {}),
    ],
)
def test_functions_under_conditions_are_found(
    file: Path, text: str, found: dict[str, list[str]]
) -> None:
    extension = write_and_read(file, text)
    assert {
        function.name: list(function.input.properties) for function in extension.functions
    } == found


def test_each_kind_of_ignored_definition_is_reported(file: Path) -> None:
    text = (
        "def tool():\n  def inner(): ...\ndef _one(): ...\ndef _two(): ...\nshout = lambda:"
        " 1\n_quiet = lambda: 1\n"
    )
    text += (
        "class Client:\n  def send(self): ...\nclass Data:\n  x: int\n  def _hidden(self): ...\n"
    )
    problems = write_and_read(file, text).problems
    assert [each.message.removeprefix(str(file)) for each in problems] == [
        ": ignored _one, _two: names that start with _ are private",
        ": ignored inner: functions inside functions are not tools",
        ": ignored Client: methods are not tools; write functions",
        ", line 5: ignored shout: a lambda is not a tool",
    ]
    assert [each.level for each in problems] == ["ok", "ok", "ok", "warning"]
    (problem,) = write_and_read(file, "__all__ = ['a']\ndef a(): ...\ndef b(): ...").problems
    assert problem.message == f"{file}: ignored b: not listed in __all__"


def test_a_decorator_adds_permissions_to_one_function(file: Path) -> None:
    extension = write_and_read(
        file,
        "permissions = ['read']\n@tool(permissions=['exec'])\ndef a(): ...\n@tool\ndef b():"
        " ...\n@tool(permissions=['fly'])\ndef c(): ...\n@tool(argument_permissions={'x':"
        " ['exec']})\ndef d(x=1): ...\n",
    )
    assert [(each.name, each.permissions) for each in extension.functions] == [
        ("a", {"exec"}),
        ("b", frozenset()),
    ]
    assert extension.permissions == {"read"}
    problems = [problem.message.partition(": ")[2] for problem in extension.problems]
    assert problems == [
        "c: invalid permissions ['fly']: expected a list of read, write, exec, network",
        "d: argument_permissions is not supported; use permissions",
    ]


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("def f(:\n", ", line 1: invalid syntax"),
        ("x = 1\nreturn = 2", ", line 2: invalid syntax"),
        ("pack = name()", "line 1: pack must be a literal"),
        ("\npack = {[]: 1}", "line 2: pack must be a literal"),
        ("pack = 5", "invalid pack name 5"),
        ("pack = 'my-pack'", "invalid pack name 'my-pack'"),
        ("pack = 'class'", "invalid pack name 'class'"),
        ("__all__ = 5\ndef f(): ...", "invalid __all__: expected a list of names"),
        ("__all__ = [['f']]\ndef f(): ...", "invalid __all__: expected a list of names"),
        ("__all__ = 'f'\ndef f(): ...", "invalid __all__: expected a list of names"),
        ("__all__ = ['f'] + more", "line 1: __all__ must be a literal"),
        ("permissions = 'read'", "expected a list of read, write"),
        ("permissions = ['fly']", "expected a list of read, write"),
        ("permissions = None", "expected a list of read, write"),
        ("x = " + "(" * 5000, ""),
        ("x = " + "-" * 100_000 + "1", ""),
        ("x = '\0'", ""),
    ],
)
def test_an_invalid_file_is_an_error_with_line_and_reason(
    file: Path, text: str, problem: str
) -> None:
    extension = write_and_read(file, text)
    assert str(extension.problem).startswith(str(file))
    assert problem in str(extension.problem)
    assert extension.functions == ()


def test_a_file_that_cannot_be_parsed_keeps_its_pack_name(file: Path) -> None:
    assert write_and_read(file, 'pack: str = "other"\ndef f(:').pack == "other"
    assert write_and_read(file, "def f(:").pack == "notes"


def test_a_file_is_read_in_its_own_encoding(file: Path) -> None:
    file.write_bytes("# -*- coding: latin-1 -*-\ndef f(): 'é'".encode("latin-1"))
    assert read(file).functions[0].description == "é"
    file.write_bytes("\ufeffdef f(): 'é'".encode())
    assert read(file).functions[0].description == "é"


@pytest.mark.parametrize(
    "content", [b"'\xff'", b"# coding: no-such\n", b"# coding: rot13\n", b"\xff\xfe\x00"]
)
def test_a_file_that_cannot_be_decoded_is_reported(file: Path, content: bytes) -> None:
    file.write_bytes(content)
    assert str(file) in str(read(file).problem)


def test_a_path_that_is_not_a_regular_file_is_reported_without_blocking(file: Path) -> None:
    assert "cannot read" in str(read(file).problem)
    os.mkfifo(file)
    assert "not a regular file" in str(read(file).problem)
    file.unlink()
    file.mkdir()
    assert "not a regular file" in str(read(file).problem)


def test_a_file_that_is_too_large_is_reported(file: Path) -> None:
    with file.open("wb") as opened:
        opened.truncate(MAX_FILE_BYTES + 1)
    assert "more than" in str(read(file).problem)


def test_an_invalid_header_does_not_invalidate_the_file(file: Path) -> None:
    extension = write_and_read(file, "# /// script\n# x = [\n# ///\ndef f(): ...")
    assert list_names(extension) == ["f"]
    assert extension.header is None
    assert "invalid header: not valid TOML" in extension.problems[0].message


def test_the_stamp_changes_with_a_write_and_the_digest_with_the_content(file: Path) -> None:
    first = write_and_read(file, "def f(): ...")
    assert first.stamp == stamp_file(file)
    os.utime(file, ns=(1, 1))
    again = read(file)
    assert again.stamp != first.stamp
    assert again.digest == first.digest
    assert write_and_read(file, "def g(): ...").digest != first.digest


# --- types ----------------------------------------------------------------------------------------

TYPES = '''
from __future__ import annotations
import datetime as dt, enum
from dataclasses import dataclass, field
from datetime import timedelta as Span
from typing import Annotated, Literal, NamedTuple, NewType, NotRequired, Optional, TypedDict
from pydantic import BaseModel, ConfigDict, Field, HttpUrl, PositiveInt
from pydantic.alias_generators import to_camel
from annotated_types import Ge, Len
from .models import Order, Kind as Sort
from . import models
import inner.deep as deep

Ids = list[int]
UserId = NewType("UserId", int)
Json = dict[str, "Json"] | list["Json"] | str
Deep = TypedDict("Deep", {"from": str, "to": NotRequired[Sort]})

class Color(str, enum.Enum):
    """A color."""
    RED = "red"
    BLUE = "blue"

class Size(enum.IntEnum):
    S = enum.auto()
    M = enum.auto()

class Odd(enum.Enum):
    A = (1, 2)
    B = object()

class Options(TypedDict, total=False):
    limit: int
    _key: Annotated[str, "A key."]

class Point(NamedTuple):
    x: int
    y: int = 0

@dataclass
class Item:
    sku: str
    color: Color = Color.RED
    tags: list[str] = field(default_factory=list)
    hidden: int = field(init=False)
    schema: bytes = b""

class Node(BaseModel):
    model_config = ConfigDict(extra="forbid", alias_generator=to_camel)
    node_name: str = Field(..., min_length=1, description="Its name.")
    children: list[Node] = []
    blob: Optional[bytes] = None
    other: Unknown = None
    _private: int = 1

def f(x: ANNOTATION): ...
'''
MODELS = """
from enum import StrEnum, auto
from dataclasses import dataclass
from .notes_tools import Color, Order as Again
class Kind(StrEnum):
    NEW = auto()
@dataclass
class Base:
    id: int
@dataclass
class Order(Base):
    kind: Kind
    color: Color
"""
STRING, INTEGER = {"type": "string"}, {"type": "integer"}
DURATION = {"type": ["string", "number"], "format": "duration"}
COLOR = {"title": "Color", "description": "A color.", "type": "string", "enum": ["red", "blue"]}
KIND = {"title": "Kind", "type": "string", "enum": ["new"]}
DEEP = {
    "title": "Deep",
    "type": "object",
    "properties": {"from": STRING, "to": KIND},
    "required": ["from"],
}
POINT = {
    "type": "array",
    "prefixItems": [INTEGER, {**INTEGER, "default": 0}],
    "minItems": 1,
    "maxItems": 2,
}
LIMITED = {"limit": INTEGER, "_key": {**STRING, "description": "A key."}}
COUNT = {**INTEGER, "description": "Count."}
JSON = {
    "anyOf": [
        {"type": "object", "additionalProperties": True},
        {"type": "array", "items": {}},
        STRING,
    ]
}
ORDER = {
    "title": "Order",
    "type": "object",
    "properties": {"id": INTEGER, "kind": KIND, "color": COLOR},
    "required": ["id", "kind", "color"],
    "additionalProperties": False,
}
ITEM = {
    "title": "Item",
    "type": "object",
    "properties": {
        "sku": STRING,
        "color": {**COLOR, "default": "red"},
        "tags": {"type": "array", "items": STRING},
        "schema": {"type": "string", "contentEncoding": "base64"},
    },
    "required": ["sku"],
    "additionalProperties": False,
}


@pytest.fixture
def directory(file: Path) -> Path:
    (file.parent / "models.py").write_text(MODELS, encoding="utf-8")
    (file.parent / "inner").mkdir()
    (file.parent / "inner" / "__init__.py").touch()
    (file.parent / "inner" / "deep.py").write_text(
        "from ..models import Order as Inner", encoding="utf-8"
    )
    return file.parent


def inline(schema: Any, root: Any, depth: int = 8) -> Any:
    """Return a schema with its references replaced."""
    if isinstance(schema, list):
        return [inline(each, root, depth) for each in schema]
    if not isinstance(schema, dict) or not depth:
        return schema
    target = resolve_reference(schema, root)
    merged = {**target, **{key: value for key, value in schema.items() if key != "$ref"}}
    return {key: inline(value, root, depth - 1) for key, value in merged.items()}


@pytest.mark.parametrize(
    ("annotation", "schema"),
    [
        ("Color", COLOR),
        ("Color | None", {"anyOf": [COLOR, {"type": "null"}]}),
        ("Size", {"title": "Size", "type": "integer", "enum": [1, 2]}),
        ("Odd", {"title": "Odd", "type": "string", "enum": ["A", "B"]}),
        ("Literal[Color.RED, 'x']", {"type": "string", "enum": ["red", "x"]}),
        ("Ids", {"type": "array", "items": INTEGER}),
        (
            "'dict[str, Ids]'",
            {"type": "object", "additionalProperties": {"type": "array", "items": INTEGER}},
        ),
        ("UserId", INTEGER),
        ("Point", POINT),
        ("Item", ITEM),
        ("list[Item]", {"type": "array", "items": ITEM}),
        ("Order", ORDER),
        ("models.Order", ORDER),
        ("deep.Inner", ORDER),
        ("Sort", KIND),
        ("Deep", DEEP),
        ("Options", {"title": "Options", "type": "object", "properties": LIMITED}),
        ("Span", DURATION),
        ("dt.timedelta", DURATION),
        ("dt.time", {"type": "string", "format": "time"}),
        (
            "set[dt.date]",
            {"type": "array", "uniqueItems": True, "items": {"type": "string", "format": "date"}},
        ),
        ("HttpUrl", {"type": "string", "format": "uri", "minLength": 1, "maxLength": 2083}),
        ("PositiveInt", {**INTEGER, "exclusiveMinimum": 0}),
        ("Annotated[int, Field(ge=1, le=LIMIT, description='Count.')]", {**COUNT, "minimum": 1}),
        ("Annotated[int, Ge(2)]", {**INTEGER, "minimum": 2}),
        (
            "Annotated[list[int], Len(1, 2)]",
            {"type": "array", "items": INTEGER, "minItems": 1, "maxItems": 2},
        ),
        ("Annotated[str, 'The text.']", {**STRING, "description": "The text."}),
        ("int = Field(5, le=9, description='Count.')", {**COUNT, "maximum": 9, "default": 5}),
        ("Color = Color.BLUE", {**COLOR, "default": "blue"}),
        ("Json", JSON),
        ("Unknown", {}),
        ("list[Unknown]", {}),
        ("deep.Missing", {}),
    ],
)
def test_types_of_the_source_have_real_schemas(
    directory: Path, annotation: str, schema: dict[str, Any]
) -> None:
    (function,) = write_and_read(
        directory / "notes_tools.py", TYPES.replace("ANNOTATION", annotation)
    ).functions
    found = function.input.json
    assert inline(found["properties"]["x"], found) == schema
    function.input.problem({})  # raises if the schema is invalid


def test_a_model_may_refer_to_itself(directory: Path) -> None:
    (function,) = write_and_read(
        directory / "notes_tools.py", TYPES.replace("ANNOTATION", "Node")
    ).functions
    assert function.input.json["properties"] == {"x": {"$ref": "#/$defs/Node"}}
    node = function.input.json["$defs"]["Node"]
    assert node["properties"]["children"] == {
        "type": "array",
        "items": {"$ref": "#/$defs/Node"},
        "default": [],
    }
    assert node["properties"]["nodeName"] == {
        "type": "string",
        "minLength": 1,
        "description": "Its name.",
    }
    assert node["properties"]["other"] == {"default": None}
    assert (node["required"], node["additionalProperties"]) == (["nodeName"], False)
    args = {"x": {"nodeName": "a", "children": [{"nodeName": "b", "children": [{"nodeName": ""}]}]}}
    assert "x.children[0].children[0].nodeName" in str(function.input.problem(args))


HOSTILE = {
    "huge literal": "def f(x: Literal[" + ", ".join(map(str, range(10_000))) + "]): ...",
    "huge union": "def f(x: " + " | ".join("list[int]" for _ in range(900)) + "): ...",
    "deep": "def f(x: " + "list[" * 150 + "int" + "]" * 150 + "): ...",
    "alias of itself": "A = B\nB = A\ndef f(x: A): ...",
    "alias bomb": (
        "A0 = int\n"
        + "".join(f"A{n + 1} = tuple[A{n}, A{n}]\n" for n in range(60))
        + "def f(x: A60): ..."
    ),
    "class bomb": (
        "".join(f"@dataclass\nclass C{n}:\n a: C{n + 1}\n b: C{n + 1}\n" for n in range(150))
        + "def f(x: C0): ..."
    ),
    "base of itself": "class A(B): ...\nclass B(A): ...\ndef f(x: A): ...",
    "many bases": (
        "class A0(TypedDict): ...\n"
        + "".join(f"class A{n + 1}(A{n}, A{n}): ...\n" for n in range(60))
        + "def f(x: A60): ..."
    ),
    "import of itself": "from .notes_tools import A\ndef f(x: A): ...",
    "outside": "from ....etc import A\ndef f(x: A): ...",
    "many fields": (
        "class T(TypedDict):\n"
        + "".join(f" a{n}: int\n" for n in range(5_000))
        + "def f(x: T): ..."
    ),
    "bad names": "class E(Enum):\n mro = 1\n name = 2\ndef f(x: E): ...",
    "bad pattern": "def f(x: Annotated[str, Field(pattern='(')]): ...",
}


@pytest.mark.parametrize("text", HOSTILE.values(), ids=HOSTILE)
def test_hostile_annotations_cost_little(file: Path, text: str) -> None:
    def read() -> None:
        (function,) = write_and_read(file, text).functions
        assert len(str(function.input.json)) < 1_000_000
        function.input.problem({})  # raises if the schema is invalid

    assert measure_seconds(read, enough=5) < 5


PIECES = (
    "pack",
    "__all__",
    "permissions",
    " = ",
    "'x'",
    "[",
    "]",
    "{",
    "}",
    "(",
    ")",
    ":",
    "\n",
    "def ",
    "f",
    "a",
    ",",
)
MORE = (
    "*",
    "/",
    "=",
    "1",
    "...",
    "lambda: ",
    "# /// script\n",
    "# ///\n",
    "# ",
    "@",
    "async ",
    "Literal",
    "|",
    '"',
    "\\",
)


@pytest.mark.slow
@given(st.lists(st.sampled_from((*PIECES, *MORE)), max_size=40).map("".join))
@settings(max_examples=200, deadline=None)
def test_no_text_makes_reading_fail(tmp_path_factory: pytest.TempPathFactory, text: str) -> None:
    file = tmp_path_factory.getbasetemp() / "any_tools.py"
    extension = write_and_read(file, text)
    assert extension.problem is None or str(file) in extension.problem.message
    assert len(set(list_names(extension))) == len(extension.functions)
