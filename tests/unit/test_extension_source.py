"""Static analysis of extension files, valid and invalid."""

import os
from pathlib import Path

import pytest
from hypothesis import given, settings, strategies as st

from onetool.context import Permission
from onetool.extensions.static_analysis import MAX_FILE_BYTES, Extension, read, stamp_file


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
        file, '"""Doc."""\npermissions = ["read", ":exec"]\nasync def f(x: int) -> list[str]:\n  """Do."""'
    )
    assert extension.pack == "notes"
    assert extension.permissions == {Permission.READ, Permission.EXEC}
    assert extension.description == "Doc."
    assert (extension.problem, extension.problems, extension.header) == (None, (), None)
    (function,) = extension.functions
    assert (function.name, function.description, function.returns) == ("f", "Do.", "list[str]")
    assert function.input.json["properties"] == {"x": {"type": "integer"}}


def test_a_file_is_never_run(file: Path) -> None:
    text = "import os\nos.abort()\n@os.abort()\ndef f(x: os.abort() = os.abort()): ...\nclass C(os.abort()): ..."
    assert list_names(write_and_read(file, text)) == ["f"]


def test_the_last_function_of_a_name_is_used(file: Path) -> None:
    text = (
        "from typing import overload\n@overload\ndef f(a: int): ...\n@overload\ndef f(a: str): ...\ndef f(b): 'Last.'\n"
    )
    (function,) = write_and_read(file, text).functions
    assert list(function.input.properties) == ["b"]
    assert function.description == "Last."


def test_functions_are_found_after_any_line_endings(file: Path) -> None:
    file.write_bytes(b"x = 'a\\\r\n\x0c b'\r\n\x0c\r\n@print\r\ndef f(a, b=(1,\r\n 2)):\r\n    return a\r\ny = 1")
    (function,) = read(file).functions
    assert list(function.input.properties) == ["a", "b"]
    assert write_and_read(file, "t = '\u2028\x0b\x1c'\ndef g(c): return c").functions[0].input.required == {"c"}


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
        "__all__ contains 'LIMIT', which is not a function of this file or of a module in its directory",
        "__all__ contains 'gone', which is not a function of this file or of a module in its directory",
    ]


def test_an_invalid_function_is_reported_and_the_others_are_tools(file: Path) -> None:
    extension = write_and_read(file, "def a(*args): ...\ndef b(): ...")
    assert list_names(extension) == ["b"]
    assert tuple(map(str, extension.problems)) == (
        f"{file}: a: a tool cannot take *args: name its arguments, or take a list",
    )


def test_a_function_with_permissions_in_its_decorator_is_rejected(file: Path) -> None:
    extension = write_and_read(
        file, "@tool(permissions=['exec'])\ndef a(): ...\n@tool\ndef b(): ...\n@tool()\ndef c(): ..."
    )
    assert list_names(extension) == ["b", "c"]
    assert "at the top of the file" in extension.problems[0].message


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
def test_an_invalid_file_is_an_error_with_line_and_reason(file: Path, text: str, problem: str) -> None:
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


@pytest.mark.parametrize("content", [b"'\xff'", b"# coding: no-such\n", b"# coding: rot13\n", b"\xff\xfe\x00"])
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
