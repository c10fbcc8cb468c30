"""Specifications 1 and 2: details of `run` without a named scenario."""

import json
import os
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import date
from pathlib import Path
from typing import Any

import anyio
import pytest
from pydantic import BaseModel
from tests.support import App, eventually, give, open_app, search

from onetool import ToolError, errors, tool
from onetool.util.logging import Log
from onetool_child.errors import TREE

VERSION = "ot.version()"


@tool("sample.greet")
def greet(name: str, self: str = "I", kwargs: str = "") -> str:
    return f"{self} greet {name}{kwargs}"


@tool("sample.fail")
def fail(kind: str = "tool") -> None:
    if kind == "name":
        missing  # type: ignore[name-defined]  # noqa: B018, F821 - the failure under test
    if kind == "stop":
        raise StopIteration("the end")
    if kind == "context":
        try:
            int("x")
        except ValueError:
            raise KeyError("key")  # noqa: B904 - the implicit context under test
    if kind == "value":
        raise ValueError("offset must be >= 1 (1-indexed), got 0")
    raise ToolError("Rate limited", service="slack", status=429)


@tool("sample.secret", permissions=["write"])
def secret() -> str:
    return "never seen"


@tool("sample.busy")
async def busy() -> None:
    """Block the event loop of the server."""
    time.sleep(0.001)  # noqa: ASYNC251 - blocking is intended


class Model(BaseModel):
    name: str
    born: date


@dataclass
class Point:
    x: int
    y: tuple[int, ...]


@tool("sample.objects")
def objects() -> dict[str, Any]:
    model = Model(name="Ada", born=date(1815, 12, 10))
    return {
        "model": model,
        "point": Point(1, (2, 3)),
        "path": Path("/a"),
        "bytes": b"ab",
        "set": {2, 1},
    }


class Meeting:
    """A tool that returns only when two calls are in it at once."""

    def __init__(self) -> None:
        self.name, self.permissions = "sample.meet", ["read"]
        self._present = 0
        self._complete: anyio.Event | None = None

    async def call(self, _params: dict[str, Any], _context: object) -> str:
        self._complete = self._complete or anyio.Event()
        self._present += 1
        if self._present == 2:
            self._complete.set()
        await self._complete.wait()
        return "met"


@pytest.fixture(scope="module")
def app() -> Iterator[App]:
    tools = (give, search, greet, fail, secret, busy, objects, Meeting())
    with open_app({"aliases": {"ws": "sample.search"}}, tools) as app:
        yield app


# --- prefixes and fences --------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.parametrize(
    "prefix", ["__ot", "__ot__run", "__onetool", "__onetool__run", "mcp__onetool__run"]
)
@pytest.mark.parametrize(
    "form", ["{} 6 * 7", "{}\n6 * 7", "{}\n```python\n6 * 7\n```", "```\n{} 6 * 7\n```"]
)
def test_call_prefixes_are_removed(app: App, prefix: str, form: str) -> None:
    assert app.value(form.format(prefix)) == "42"


@pytest.mark.parametrize(
    "command",
    [
        "~~~\n6 * 7\n~~~",
        "~~~python\n6 * 7\n~~~",
        "``6 * 7``",
        "```6 * 7```",
        "\n\n```py\n6 * 7\n```\n",
    ],
)
def test_other_fences_are_removed(app: App, command: str) -> None:
    assert app.value(command) == "42"


@pytest.mark.parametrize("prefix", ["!onetool", "mcp__ot__run"])
def test_unknown_prefixes_are_rejected_with_a_hint(app: App, prefix: str) -> None:
    text = app.failure(f"{prefix} {VERSION}")
    assert prefix in text
    assert "__ot ot.tools()" in text


@pytest.mark.parametrize("command", ["", "  \n", "```python\n```", "__ot"])
def test_an_empty_command_is_a_clear_error(app: App, command: str) -> None:
    assert "the command is empty" in app.failure(command)


@pytest.mark.parametrize("command", [None, 5, ["1"], {"command": "1"}, b"1"])
def test_a_command_that_is_not_a_string_is_rejected(app: App, command: object) -> None:
    answer = app.run(command)
    assert answer.is_error
    assert "command must be a string" in answer.text


@pytest.mark.parametrize(
    "command",
    ["[" * 5000, "x" + ".x" * 50_000, "1" * 5000, "1\0", "'\ud800'", "#" * 1_000_001, "é\x00"],
)
def test_hostile_text_is_a_clear_error(app: App, command: str) -> None:
    answer = app.run(command)
    assert answer.is_error
    assert ": " in answer.text
    assert app.value("1 + 1") == "2"


def test_a_megabyte_of_code_runs(app: App) -> None:
    code = "x = 1  # " + "é" * 490_000 + "\nx"
    assert app.value(code) == "1"


# --- code is a module -----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("code", "output"),
    [
        ("return 5", "5"),
        ("return", "None"),
        ("if True:\n    return 1\n2", "1"),
        ("for n in range(9):\n    if n == 3:\n        return n", "3"),
        ("try:\n    return 1\nfinally:\n    x = 2", "1"),
        ("x: int = 4\nreturn x", "4"),
        ("global x\nx = 4\nreturn x", "4"),
        ("if False:\n    return 1\n7", "7"),
        ("from math import *\nreturn floor(pi)", "3"),
        ("from __future__ import annotations\nreturn 3", "3"),
        ("x = [y := n for n in range(3)]\nreturn y", "2"),
        ("def f():\n    return x\nx = 8\nreturn f()", "8"),
    ],
)
def test_a_return_at_the_top_level_returns_the_value(app: App, code: str, output: str) -> None:
    assert app.run(code).blocks == (output,)


def test_code_that_does_not_reach_a_return_has_no_value(app: App) -> None:
    assert "no value" in app.value("if False:\n    return 1\nx = 2")


AGENERATOR = "async def numbers():\n    yield 1\n    yield 2\n"


@pytest.mark.parametrize(
    ("code", "output"),
    [
        ("import asyncio\nawait asyncio.sleep(0, 6)", "6"),
        ("import asyncio\nx = await asyncio.sleep(0, 6)\nx + 1", "7"),
        ("import asyncio\nreturn await asyncio.sleep(0, 6)", "6"),
        ("async def f():\n    return 4\nf()", "4"),
        ("async def f():\n    return 4\nreturn f()", "4"),
        (f"{AGENERATOR}[n async for n in numbers()]", "[1,2]"),
        (f"{AGENERATOR}return [n async for n in numbers()]", "[1,2]"),
        (f"{AGENERATOR}async for n in numbers():\n    last = n\nlast", "2"),
        (f"{AGENERATOR}async for n in numbers():\n    return n", "1"),
        ("import asyncio\nasync with asyncio.Lock():\n    x = 3\nx", "3"),
    ],
)
def test_code_may_await_at_the_top_level(app: App, code: str, output: str) -> None:
    assert app.run(code).blocks == (output,)


@pytest.mark.parametrize(
    "code",
    [
        "import pickle\nclass Thing:\n    pass\ntype(pickle.loads(pickle.dumps(Thing()))) is Thing",
        (
            "import typing\nclass Thing:\n    other: 'Thing'\ntyping.get_type_hints(Thing)['other']"
            " is Thing"
        ),
        (
            "import enum\nclass Colour(enum.Enum):\n    RED = 1\nColour['RED'] is Colour.RED and"
            " __name__ == '__main__'"
        ),
        (
            "def f():\n    n = 0\n    def up():\n        nonlocal n\n        n += 1\n    up()\n   "
            " return n\nf() == 1"
        ),
        (
            "match {'a': [1, 2]}:\n    case {'a': [first, *rest]}:\n        found = (first,"
            " rest)\nfound == (1, [2])"
        ),
        "def numbers():\n    yield from range(3)\nsum(numbers()) == 3",
        "import inspect\ndef f():\n    pass\ninspect.getsource(f).startswith('def f')",
        "import sys\nsys.modules['__main__'].__dict__ is globals()",
    ],
)
def test_code_behaves_like_a_module(app: App, code: str) -> None:
    assert app.value(code) == "True"


# --- printed output -------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("code", "blocks"),
    [
        ("print('x')", ("x\n",)),
        ("x = 3\nprint(x)", ("3\n",)),
        ("print('a')\nprint('b', end='')\n{'n': 5}", ("a\nb", '{"n":5}')),
        ("x = 5\nx\nprint('late')", ("late\n",)),
        ("x = print('a')\nx", ("a\n", "None")),
        ("print('a')\nreturn 5", ("a\n", "5")),
        ("import sys\nsys.stdout.buffer.write('é'.encode())\n5", ("é", "5")),
        ("import sys\nprint('to stderr', file=sys.stderr)", ("to stderr\n",)),
    ],
)
def test_printed_text_precedes_the_value(app: App, code: str, blocks: tuple[str, ...]) -> None:
    assert app.run(code).blocks == blocks


def test_a_redefined_print_returns_its_value(app: App) -> None:
    assert app.value("def print(x):\n    return x * 2\nprint(4)") == "8"


def test_printed_text_is_kept_on_error(app: App) -> None:
    answer = app.run("print('before')\n1 / 0")
    assert answer.is_error
    assert answer.blocks[0] == "before\n"
    assert answer.blocks[1].startswith("ZeroDivisionError: ")


def test_writes_to_file_descriptor_1_go_to_the_log(tmp_path: Path) -> None:
    file = tmp_path / "onetool.log"
    with open_app(log=Log(file)) as app:
        assert app.run("import os\nos.write(1, b'a stray line')\n5").blocks == ("5",)
        assert eventually(
            lambda: file.exists() and "a stray line" in file.read_text("utf-8"), seconds=2
        )


@pytest.mark.parametrize("code", ["print(1)\nexit()\nprint(2)", "print(1)\nquit(0)\nprint(2)"])
def test_code_may_exit_early_with_success(app: App, code: str) -> None:
    assert app.run(code).blocks == ("1\n",)


def test_an_exit_with_a_message_is_a_failure(app: App) -> None:
    assert app.failure("exit('no more')").startswith("SystemExit: no more")


def test_the_help_function_of_python_works(app: App) -> None:
    (output,) = app.run("help(len)").blocks
    assert "Return the number of items" in output


@pytest.mark.slow
def test_a_hundred_concurrent_runs_do_not_mix(app: App) -> None:
    started = [app.start(f"print({n})\nsample.give({n})") for n in range(100)]
    assert [future.result().blocks for future in started] == [
        (f"{n}\n", str(n)) for n in range(100)
    ]


@pytest.mark.slow
def test_a_busy_server_loses_no_result(app: App) -> None:
    """The end of a cell and its result arrive on different sockets; a late event loop sees both at
    once.
    """
    for _ in range(5):
        started = [app.start(f"sample.busy()\nsample.busy()\n{n}") for n in range(20)]
        assert [future.result().text for future in started] == [str(n) for n in range(20)]


# --- strings and indentation ----------------------------------------------------------------------

STRING = "first\n  two\n\tone tab\n        eight \n\n\t    both\nlast\n"
LINES = ("if True:", "    text = '''" + STRING + "'''", "    other = 1", "text")
INDENTED = {
    "as it is": "\n".join(LINES),
    "by spaces": "\n".join("    " + line for line in LINES),
    "by a tab": "\n".join("\t" + line for line in LINES),
    "all but the first line": "\n".join([LINES[0], *("    " + line for line in LINES[1:])]),
    "by tabs and spaces": "\n".join(
        [LINES[0], LINES[1].replace("    ", "\t", 1), "        other = 1", LINES[3]]
    ),
    "in a fence": "\n".join(["```python", *LINES, "```"]),
    "with a return": "\n".join([*LINES[:3], "return text"]),
}


@pytest.mark.parametrize("code", INDENTED.values(), ids=INDENTED.keys())
def test_strings_are_preserved_byte_for_byte(app: App, code: str) -> None:
    assert app.value(code) == STRING


@pytest.mark.parametrize(
    "code", ["    x = 1\nx + 1", "  x = 1\n\n  x\nx + 1", "    x = 1\nelse:\n    x = 2\nx + 1"]
)
def test_partly_indented_code_never_runs_in_part(app: App, code: str) -> None:
    """Code that is partly indented either runs completely or is an error."""
    answer = app.run(code)
    assert answer.is_error or answer.blocks == ("2",), answer.text


@pytest.mark.parametrize(
    "code",
    ["x = 1\n    y = 2\n  z = 3", "if True:\nx = 1", "if True:\n    x = 1\n   y = 2\n  z = 3"],
)
def test_indentation_that_cannot_be_fixed_is_an_error(app: App, code: str) -> None:
    assert app.failure(code).startswith("IndentationError: ")


# --- errors ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("command", "location"),
    [
        ("x = 0\n1 / x", "line 2: 1 / x"),
        ("\n\n1 / 0", "line 3: 1 / 0"),
        ("```python\nx = 0\n1 / x\n```", "line 3: 1 / x"),
        ("__ot\n\n```python\n\n1 / 0\n```", "line 5: 1 / 0"),
        ("`1 / 0`", "line 1: 1 / 0"),
        ("    x = 0\n    1 / x", "line 2: 1 / x"),
        ("if True:\n\tx = 0\n        1 / x", "line 3: 1 / x"),
        ("def half(x):\n    return 1 / x\n\nhalf(0)", "line 2: return 1 / x"),
        ("x = 0\nreturn 1 / x", "line 2: return 1 / x"),
        ("import asyncio\nawait asyncio.sleep(0)\n1 / 0", "line 3: 1 / 0"),
        ("text = '''a\nb\n'''\n1 / 0", "line 4: 1 / 0"),
        ("x = [\n    1,\n    1 / 0,\n]", "line 3: 1 / 0"),
    ],
)
def test_an_error_names_the_line_of_the_sent_code(app: App, command: str, location: str) -> None:
    assert app.failure(command).startswith(f"ZeroDivisionError: division by zero\n  {location}")


@pytest.mark.parametrize(
    ("code", "message"),
    [
        (
            "x = 1\nmap(len, ['a', 5])",
            "TypeError: object of type 'int' has no len()\n  line 2: map",
        ),
        (
            "return map(len, ['a', 5])",
            "TypeError: object of type 'int' has no len()\n  line 1: return map",
        ),
        (
            "(int(text)\n for text in ['a'])",
            "ValueError: invalid literal for int() with base 10: 'a'\n  line 1: (int",
        ),
        (
            "(sample.greet(nme=n) for n in ['a'])",
            "ArgumentError: sample.greet() has no argument 'nme'",
        ),
        ("[object()]", "cannot return an object of type builtins.object"),
        (
            "async def items():\n    yield 1\n[items()]",
            "NotData: cannot return an async generator inside another value; use",
        ),
        (
            "async def one():\n    return 1\n[one()]",
            "NotData: cannot return a coroutine inside another value; await it",
        ),
    ],
)
def test_a_lazy_value_that_fails_is_an_error(app: App, code: str, message: str) -> None:
    answer = app.run(code)
    assert answer.is_error
    assert message in answer.text


def test_an_error_shows_its_causes_and_members(app: App) -> None:
    group = app.run("raise ExceptionGroup('many', [ValueError('first'), KeyError('second')])").text
    assert "contains ValueError: first" in group
    assert "contains KeyError: 'second'" in group
    caused = app.run(
        "try:\n    int('x')\nexcept ValueError as error:\n    raise RuntimeError('outer') from"
        " error"
    ).text
    assert (
        "caused by ValueError: invalid literal for int() with base 10: 'x'\n  line 2: int('x')"
        in caused
    )


@pytest.mark.parametrize(
    "code",
    [
        "async def fail():\n    raise ValueError('deep')\nawait fail()",
        "try:\n    int('x')\nexcept ValueError:\n    {}['key']",
        "try:\n    int('x')\nexcept ValueError:\n    raise KeyError('key') from None",
        "map(len, ['a', 5])",
        "items = []\nitems.append(items)\nitems",
        "sample.fail(kind='context')",
    ],
)
def test_an_error_does_not_show_what_was_handled_before(app: App, code: str) -> None:
    text = app.failure(code)
    assert "while handling" not in text
    assert "caused by" not in text


def test_an_async_generator_is_a_list(app: App) -> None:
    code = "async def numbers():\n    yield 1\n    yield 2\n"
    assert app.run(f"{code}numbers()").text == app.run(f"{code}return numbers()").text == "[1,2]"


def test_the_error_of_a_tool_is_not_explained_as_an_error_of_the_code(app: App) -> None:
    failed = app.run("sample.fail(kind='name')").text
    assert "NameError: name 'missing' is not defined" in failed
    assert "Packs:" not in failed
    assert (
        "RuntimeError: coroutine raised StopIteration: the end"
        in app.run("sample.fail(kind='stop')").text
    )
    error = app.call("sample.fail", {"kind": "stop"}).error
    assert error is not None
    assert errors.describe(error)["message"] == "coroutine raised StopIteration: the end"


def test_variables_of_the_run_can_be_returned(app: App) -> None:
    assert app.run("x = 1\nvars()['x']").text == "1"
    assert '"x":1' in app.run("x = 1\nvars()").text


def test_an_error_lists_the_calls_already_made(app: App) -> None:
    code = "sample.give(1)\ntry:\n    sample.fail()\nexcept ToolError:\n    pass\nws('x')\n1 / 0"
    text = app.failure(code)
    assert (
        "Calls already made: sample.give (ok), sample.fail (execution_error), sample.search (ok)"
        in text
    )


def test_the_call_that_failed_is_not_listed_as_made_before(app: App) -> None:
    assert "Calls already made" not in app.failure("sample.fail()")
    assert app.failure("sample.give(1)\nsample.fail()").endswith(
        "Calls already made: sample.give (ok)"
    )
    caught = "try:\n    sample.fail()\nexcept ToolError:\n    raise ToolError('another')"
    assert app.failure(caught).endswith("Calls already made: sample.fail (execution_error)")
    # as if beside it in ot.parallel
    later = "try:\n    sample.fail()\nexcept ToolError:\n    sample.give(1)\n    raise"
    assert app.failure(later).endswith("Calls already made: sample.give (ok)")


@pytest.mark.parametrize(
    ("code", "shape"),
    [
        ("d = {'name': 1, 'size': 2}\nd['nmae']", "a dict with keys: name, size"),
        ("d = {'name': 1, 'size': 2}\nreturn d['nmae']", "a dict with keys: name, size"),
        ("def f(item):\n    return item['x']\nf({'a': 1})", "a dict with keys: a"),
        (
            "d = {'items': [{'id': 1, 'url': 'x'}]}\nd['items']['id']",
            "a list of 1 item; the first is a dict with keys: id, url",
        ),
        ("d = {'items': [{'id': 1}]}\nd['items'][0]['url']", "a dict with keys: id"),
        ("sample.search(query='x')['qury']", "a dict with keys: query, count"),
        ("found = sample.search(query='x')\nfound['query']['text']", "a string"),
        ("sample.give([1, 2])['first']", "a list of 2 items"),
    ],
)
def test_a_failed_subscript_shows_the_keys_or_the_type_of_the_value(
    app: App, code: str, shape: str
) -> None:
    assert app.failure(code).splitlines()[-1] == f"The value is {shape}"


@pytest.mark.parametrize(
    ("code", "shape"),
    [
        ("found = sample.search(query='x')\nfound + 1", "a dict with keys: query, count"),
        ("1 + sample.search(query='x')", "a dict with keys: query, count"),
        (
            "rows = sample.give([{'id': 1}, {'id': 2}])\nsorted(rows)",
            "a list of 2 items; the first is a dict with keys: id",
        ),
        (
            "rows = [{'id': 1}]\n', '.join(rows)",
            "a list of 1 item; the first is a dict with keys: id",
        ),
        ("found = {'id': 1}\nfound['id'] < 2 < found", "a dict with keys: id"),
        ("found = {'id': 1}\nfound.pop('ID')", "a dict with keys: id"),
    ],
)
def test_a_failed_operation_shows_the_keys_of_the_value(app: App, code: str, shape: str) -> None:
    assert app.failure(code).splitlines()[-1] == f"The value is {shape}"


@pytest.mark.parametrize(
    "code",
    [
        *(
            "{}['a']",
            "{1: 2}['a']",
            "len(5)",
            "import json\njson.loads('{}')['a']",
            "(lambda: {})()[0]",
        ),
        *("'a' + 1", "def f(x, y): ...\nf([1])"),
    ],
)
def test_other_failures_have_no_keys(app: App, code: str) -> None:
    assert "The value is" not in app.failure(code)


@pytest.mark.skipif(sys.version_info >= (3, 12), reason="newer versions accept these f-strings")
@pytest.mark.parametrize(
    "code", ['d = {\'a\': 1}\nf"{d["a"]}"', "f'{', '.join(['a'])}'", 'f"{str("a")}"']
)
def test_nested_quotes_in_an_f_string_get_a_hint(app: App, code: str) -> None:
    assert app.failure(code).endswith("""use the other kind: f"{value['key']}\"""")


@pytest.mark.parametrize(
    ("command", "hint"),
    [
        ("Here is the code:\n```python\n1 + 1\n```", "send one block of code"),
        ("```python\n1\n```\nand then\n```python\n2\n```", "send one block of code"),
        ("```python\n1 + 1\n```\nThis prints 2.", "send one block of code"),
        ("x = 1\n$greet name=Ada", 'call ot.snippet("name", key="value")'),
    ],
)
def test_text_that_is_not_code_gets_a_hint(app: App, command: str, hint: str) -> None:
    text = app.failure(command)
    assert text.startswith("SyntaxError: ")
    assert text.splitlines()[-1].startswith("Hint: ")
    assert hint in text.splitlines()[-1]


def test_an_error_without_calls_lists_none(app: App) -> None:
    assert "Calls already made" not in app.failure("1 / 0")


@pytest.mark.parametrize(
    ("code", "near"),
    [
        ("sample.serch(query='x')", "Did you mean sample.search"),
        ("machine.memroy()", "Did you mean machine.memory?"),
        ("ot.tool()", "ot.tools"),
        ("ot.paralel([])", "Did you mean ot.parallel?"),
        ("ot.nope()", "account, aliases, background, call, config"),
        ("mashine.cpu()", "Did you mean machine"),
    ],
)
def test_an_error_suggests_the_nearest_names(app: App, code: str, near: str) -> None:
    assert near in app.failure(code)


def test_nearest_names_precede_the_tools_of_the_pack(app: App) -> None:
    text = app.failure("sample.serch(query='x')")
    assert text.index("Did you mean sample.search") < text.index("sample has: ")


def test_the_errors_module_exports_every_error_class_of_code() -> None:
    assert set(TREE) <= set(errors.__all__)


@pytest.mark.slow
@pytest.mark.parametrize("name", list(TREE))
def test_error_classes_are_predefined_in_code(app: App, name: str) -> None:
    assert app.data(f"[{name}.__name__, issubclass({name}, ToolError)]") == [name, True]


@pytest.mark.parametrize(
    ("call", "caught", "kind"),
    [
        ("sample.fail()", "ToolError", "execution_error"),
        ("sample.nowhere()", "ToolNotFound", "not_found"),
        ("sample.nowhere()", "AttributeError", "not_found"),
        ("sample.search()", "ArgumentError", "validation_error"),
        ("sample.search()", "TypeError", "validation_error"),
        ("sample.secret()", "PermissionDenied", "permission_denied"),
        ("ot.call('nowhere')", "ToolError", "not_found"),
    ],
)
def test_code_catches_errors_by_their_class(app: App, call: str, caught: str, kind: str) -> None:
    assert (
        app.value(f"try:\n    {call}\nexcept {caught} as error:\n    kind = error.type\nkind")
        == kind
    )


def test_code_can_read_the_fields_of_an_error(app: App) -> None:
    code = (
        "try:\n    sample.fail()\nexcept ToolError as e:\n    seen = [e.message, e.service,"
        " e.status]\nseen"
    )
    assert app.data(code) == ["Rate limited", "slack", 429]
    code = (
        "try:\n    sample.secret()\nexcept PermissionDenied as e:\n    seen = [e.required,"
        " e.granted]\nseen"
    )
    assert app.data(code) == [["write"], ["read", "network"]]


def test_an_ordinary_exception_keeps_its_class(app: App) -> None:
    message = "offset must be >= 1 (1-indexed), got 0"
    code = (
        "try:\n    sample.fail(kind='value')\nexcept ValueError as error:\n    text ="
        " str(error)\ntext"
    )
    assert app.value(code) == message
    assert app.failure("sample.fail(kind='value')").startswith(f"ValueError: {message}\n")


def test_code_may_raise_tool_errors(app: App) -> None:
    answer = app.run("raise ToolTimeout('too slow', seconds=3)")
    assert answer.error == "timeout"
    assert answer.text.startswith("ToolTimeout: too slow\n")


# --- names ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "code",
    [
        "sample = 42\nsample",
        "def sample():\n    return 42\nsample()",
        "class sample:\n    n = 42\nsample.n",
        "import math as sample\nround(sample.pi * 10) + 11",
        "for sample in [41, 42]:\n    pass\nsample",
        "(lambda sample: sample)(42)",
        "[sample for sample in [42]][0]",
        "import contextlib\nwith contextlib.nullcontext(42) as sample:\n    pass\nsample",
        "sample = 42\nreturn sample",
        "ws = 42\nws",
    ],
)
def test_a_name_bound_by_code_hides_a_pack(app: App, code: str) -> None:
    assert app.value(code) == "42"


def test_a_local_name_does_not_hide_the_pack_elsewhere(app: App) -> None:
    assert app.data("def f():\n    sample = 1\n    return sample\n[f(), sample.give(2)]") == [1, 2]


@pytest.mark.parametrize(
    ("code", "value"),
    [
        ("json.parse('[1]')", [1]),
        ("json.loads(json.dumps({'a': json.parse('2')}))", {"a": 2}),
        ("import json\njson.loads('[3]')", [3]),
        ("from json import loads\n[loads('4'), json.parse('4')]", [4, 4]),
        ("[hasattr(json, 'dumps'), hasattr(json, 'nothing')]", [True, False]),
        ("import csv, http\n[http.HTTPStatus.OK, csv.QUOTE_ALL]", [200, 1]),
    ],
)
def test_a_pack_includes_the_module_with_its_name(app: App, code: str, value: object) -> None:
    assert app.data(code) == value


def test_a_name_in_neither_pack_nor_module_lists_the_pack(app: App) -> None:
    assert "json has: parse" in app.failure("json.dunps({})")


def test_strings_and_comments_are_never_rewritten(app: App) -> None:
    assert (
        app.value("# ws(query='x')\n'ws(query=1) sample.give(2)'") == "ws(query=1) sample.give(2)"
    )


def test_an_alias_is_an_ordinary_object(app: App) -> None:
    assert app.data("f = ws\nf(query='x')") == {"query": "x", "count": 5}
    assert app.data("[call('x')['query'] for call in (ws, sample.search)]") == ["x", "x"]


def test_a_tool_is_callable_by_a_computed_name(app: App) -> None:
    assert app.data("getattr(sample, 'gi' + 've')(3)") == 3
    assert app.data("ot.call('sam' + 'ple.give', 3)") == 3
    assert "give" in app.data("dir(sample)")


# --- arguments ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("call", "value"),
    [
        ("sample.search('x', 3)", {"query": "x", "count": 3}),
        ("sample.search('x', c=3)", {"query": "x", "count": 3}),
        ("ws('x')", {"query": "x", "count": 5}),
        ("ot.call('sample.search', 'x', count=1)", {"query": "x", "count": 1}),
        ("ot.tools('machine.d', 'list')", ["machine.disk"]),
        ("machine.memory('GiB')['unit']", "GiB"),
    ],
)
def test_positional_arguments_follow_the_signature(app: App, call: str, value: object) -> None:
    assert app.data(call) == value


@pytest.mark.parametrize(
    "call", ["search(query='x', q='y')", "search('x', query='y')", "search(q='x', qu='y')"]
)
def test_multiple_values_for_one_parameter_are_an_error(app: App, call: str) -> None:
    assert "got multiple values for 'query'" in app.failure(f"sample.{call}")


@pytest.mark.parametrize("call", ["sample.greet({})", "ot.call('sample.greet', {})"])
@pytest.mark.parametrize(
    ("arguments", "greeting"),
    [
        ("name='Ada'", "I greet Ada"),
        ("name='Ada', self='We'", "We greet Ada"),
        ("name='Ada', kwargs='!'", "I greet Ada!"),
    ],
)
def test_a_parameter_may_have_any_name(app: App, call: str, arguments: str, greeting: str) -> None:
    assert app.value(call.format(arguments)) == greeting


@pytest.mark.parametrize(
    ("argument", "value"),
    [
        ("(1, 2)", [1, 2]),
        ("{2, 1}", [1, 2]),
        ("b'ab'", "YWI="),
        ("__import__('datetime').date(2026, 1, 2)", "2026-01-02"),
        ("{'deep': [{'x': None}]}", {"deep": [{"x": None}]}),
        ("'é\\n😀'", "é\n😀"),
        ("2 ** 70", 2**70),
    ],
)
def test_arguments_are_sent_as_data(app: App, argument: str, value: object) -> None:
    assert app.data(f"sample.give({argument})") == value


def test_objects_returned_by_tools_are_sent_as_data(app: App) -> None:
    assert app.data("sample.objects()") == {
        "model": {"name": "Ada", "born": "1815-12-10"},
        "point": {"x": 1, "y": [2, 3]},
        "path": "/a",
        "bytes": "YWI=",
        "set": [1, 2],
    }


def test_threads_call_tools_concurrently(app: App) -> None:
    code = """
        from concurrent.futures import ThreadPoolExecutor
        with ThreadPoolExecutor() as pool:
            met = list(pool.map(lambda _: sample.meet(), range(2)))
            given = list(pool.map(sample.give, range(50)))
        met == ["met", "met"], given == list(range(50))"""
    assert app.value(code) == "[true,true]"


# --- representation of values ---------------------------------------------------------------------

PREPARED = """
import datetime, decimal, enum, pathlib, collections
from dataclasses import dataclass
class Colour(enum.Enum):
    RED = "red"
class Level(enum.IntEnum):
    HIGH = 3
@dataclass
class Point:
    x: int
    where: pathlib.Path
Row = collections.namedtuple("Row", "a b")
"""


@pytest.mark.slow
@pytest.mark.parametrize(
    ("code", "plain", "as_json", "as_yaml"),
    [
        ("None", "None", "null", "null"),
        ("True", "True", "true", "true"),
        ("3", "3", "3", "3"),
        ("3.5", "3.5", "3.5", "3.5"),
        ("-0.0", "-0.0", "-0.0", "-0.0"),
        ("10 ** 30", str(10**30), str(10**30), str(10**30)),
        ("float('nan')", "nan", "null", ".nan"),
        ("float('inf')", "inf", "null", ".inf"),
        ("'true'", "true", "true", "true"),
        ("{2, 1}", "[1,2]", "[1,2]", "[1, 2]"),
        ("frozenset('b')", '["b"]', '["b"]', "[b]"),
        ("(1, (2,))", "[1,[2]]", "[1,[2]]", "[1, [2]]"),
        ("Row(1, 'x')", '[1,"x"]', '[1,"x"]', "[1, x]"),
        ("[float('nan'), float('-inf')]", "[null,null]", "[null,null]", "[.nan, -.inf]"),
        ("{'é': '😀\u2028'}", '{"é":"😀\u2028"}', '{"é":"😀\u2028"}', '{é: "😀\\u2028"}'),
        ("[datetime.date(2026, 1, 2)]", '["2026-01-02"]', '["2026-01-02"]', '["2026-01-02"]'),
        ("datetime.datetime(2026, 1, 2, 3, 4)", *["2026-01-02T03:04:00"] * 3),
        ("[datetime.time(3, 4)]", '["03:04:00"]', '["03:04:00"]', '["03:04:00"]'),
        ("[pathlib.Path('/a/b')]", '["/a/b"]', '["/a/b"]', "[/a/b]"),
        ("Point(1, pathlib.Path('/a'))", *['{"x":1,"where":"/a"}'] * 2, "{x: 1, where: /a}"),
        ("[b'ab', bytearray(b'ab')]", '["YWI=","YWI="]', '["YWI=","YWI="]', "[YWI=, YWI=]"),
        ("[Colour.RED, Level.HIGH]", '["red",3]', '["red",3]', "[red, 3]"),
        (
            "{Colour.RED: 1, Level.HIGH: 2}",
            '{"red":1,"3":2}',
            '{"red":1,"3":2}',
            '{red: 1, "3": 2}',
        ),
        ("[decimal.Decimal('1.10')]", '["1.10"]', '["1.10"]', '["1.10"]'),
        ("collections.deque([1])", "[1]", "[1]", "[1]"),
        ("collections.Counter('aab')", '{"a":2,"b":1}', '{"a":2,"b":1}', "{a: 2, b: 1}"),
        ("range(3)", "[0,1,2]", "[0,1,2]", "[0, 1, 2]"),
        ("(n for n in (1, 2))", "[1,2]", "[1,2]", "[1, 2]"),
    ],
)
def test_values_are_formatted_in_every_format(
    app: App, code: str, plain: str, as_json: str, as_yaml: str
) -> None:
    def render(chosen: str) -> str:
        return app.value(f"{PREPARED}\n{chosen}\n{code}")

    assert (render(""), render("__format__ = 'json'"), render("__format__ = 'yml'")) == (
        plain,
        as_json,
        as_yaml,
    )


def test_a_key_that_json_does_not_support_becomes_a_string(app: App) -> None:
    assert json.loads(app.value("{1: 'a', None: 'b', (2, 3): 'c'}")) == {
        "1": "a",
        "null": "b",
        "(2, 3)": "c",
    }


@pytest.mark.parametrize(
    "code",
    [
        "x = []\nx.append(x)\nx",
        pytest.param("x = []\nfor _ in range(9999):\n    x = [x]\nx", marks=pytest.mark.kernel),
    ],
)
def test_a_value_that_cannot_be_serialized_is_an_error(app: App, code: str) -> None:
    assert "return a part of it" in app.failure(code)


# --- results of the ot pack -----------------------------------------------------------------------

FLOW = "[machine.disk]"
DATA = '["machine.disk"]'
CALL = "ot.tools(pattern='machine.d', info='list')"


@pytest.mark.parametrize(
    ("code", "output"),
    [
        (CALL, FLOW),
        (f"x = {CALL}\nx", FLOW),
        (f"return {CALL}", FLOW),
        (f"def f():\n    return {CALL}\nf()", FLOW),
        ("ot.call('ot.tools', 'machine.d', 'list')", FLOW),
        (f"__format__ = 'nonsense'\n{CALL}", FLOW),
        (f"__format__ = 'json'\n{CALL}", DATA),
        (f"list({CALL})", DATA),
        (f"{CALL}[:]", DATA),
        (f"[{CALL}]", f"[{DATA}]"),
        (f"{CALL}\n['machine.disk']", DATA),
        (f"sample.give({CALL})", DATA),
        (f"{CALL}[0]", "machine.disk"),
        (f"len({CALL})", "1"),
    ],
)
def test_only_the_unchanged_result_of_ot_is_yaml(app: App, code: str, output: str) -> None:
    assert app.value(code) == output


def test_yaml_of_ot_is_never_folded(app: App) -> None:
    lines = app.value("ot.tools(info='full')").splitlines()
    assert max(map(len, lines)) > 200
    assert len(app.value("ot.tools(info='list')").splitlines()) == 1


@pytest.mark.parametrize(
    "code", ["ot.help()", "ot.packs(info='full')", "ot.help(query='machine')", VERSION]
)
def test_strings_of_ot_are_shown_unchanged(app: App, code: str) -> None:
    assert app.value(code) == app.value(f"x = {code}\n__format__ = 'yml'\nx")
    assert app.data(f"type({code}).__name__ == 'str'") is True


def test_health_shows_the_active_isolation(app: App) -> None:
    isolation = app.data("ot.health()")["isolation"]
    assert isolation.keys() == {"cells", "sandbox"}
    confined = app.run("open('/etc/hostname').read()").is_error
    assert bool({"landlock", "wasm"} & {*isolation["sandbox"].split("+")}) is confined


def test_runs_share_nothing(app: App) -> None:
    app.value("import builtins, sys\nbuiltins.left = sys.left = globals()['left'] = 1")
    left = (
        "import builtins, sys\n[hasattr(builtins, 'left'), hasattr(sys, 'left'), 'left' in"
        " globals()]"
    )
    assert app.data(left) == [False, False, False]


def test_code_does_not_run_in_the_server(app: App) -> None:
    assert app.value("import os\nos.getpid()") != str(os.getpid())


def test_an_unknown_agent_is_rejected(app: App) -> None:
    answer = app.run("1", agent="nobody")
    assert answer.is_error
    assert "unknown agent 'nobody': expected default" in answer.text
