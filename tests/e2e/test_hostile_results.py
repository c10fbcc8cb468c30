"""Test forged messages of hostile code and failing disks: responses stay clear, small and complete."""

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from anyio.from_thread import start_blocking_portal
from tests.e2e.test_cells import TinyDisk, tiny_disk  # noqa: F401 - a fixture
from tests.support import ISOLATION, App, give, open_app

from onetool import ToolError, tool
from onetool.app import OneTool
from onetool.settings.model import Settings
from onetool.util.logging import Log

# The code finds its end of the socket and writes arbitrary data. In a WebAssembly sandbox, it is
# always descriptor 2.
OWN = (
    "os.fdopen(next(n for n in range(3, 128) if os.path.lexists(f'/proc/self/fd/{n}')), 'wb', 0,"
    " closefd=False)"
)
FORGE = """
import os, json, time
own = OWN
def send(message, end=b'\\n'):
    line = message if isinstance(message, bytes) else json.dumps(message).encode()
    left = memoryview(line + end)
    while left: left = left[own.write(left):]
def piece(kind, text):
    send(b'=%s %d\\n%s' % (kind.encode(), len(text), text.encode()), end=b'')
def answer(**result):
    send({'id': 1, 'result': {'has_value': True, 'format': None, 'from_ot': False, **result}})
    time.sleep(5)
""".replace("OWN", OWN if ISOLATION == "auto" else "open(2, 'wb', 0, closefd=False)")


class Odd:
    def __str__(self) -> str:
        raise RuntimeError("it has no text")


@tool("sample.odd")
def odd() -> Any:
    """Something that cannot cross a pipe."""
    return [Odd()]


@tool("sample.fail")
def fail() -> None:
    circle: list[Any] = []
    circle.append(circle)
    raise ToolError("it failed", circle=circle)


@pytest.fixture(scope="module")
def app() -> Iterator[App]:
    with open_app({"execution": {"timeout": 10}}, (give, odd, fail)) as app:
        yield app


# --- forged answers -------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "field", ["has_value", "format", "from_ot", "sanitize", "is_json", "about", "bytes"]
)
@pytest.mark.parametrize("value", [None, True, 5, "x", [], {}, [1], {"a": 1}, "x" * 100_000])
@pytest.mark.parametrize("pieces", [0, 1])
def test_forged_fields_of_a_result_are_harmless(
    app: App, field: str, value: Any, pieces: int
) -> None:
    forged = "piece('value', 'piece')\n" * pieces
    answer = app.run(f"{FORGE}{forged}answer(value=[1], {field}={value!r})")
    assert not answer.is_error
    assert len(answer.text) < 1000


@pytest.mark.parametrize(
    "line",
    [
        b"",
        b"{",
        b"[]",
        b"5",
        b"null",
        b"\xff",
        b'{"id":1}',
        b'{"id":1,"result":5}',
        b'{"id":1,"error":5}',
        b'{"id":1,"error":{"data":5}}',
        b'{"id":[1],"result":{}}',
        b'{"id":99,"result":{}}',
        b'{"id":2,"method":"call"}',
        b'{"id":2,"method":"call","params":null}',
        b'{"id":2,"method":"call","params":{"name":"sample.give","args":5,"kwargs":{}}}',
        b'{"method":"value","params":{}}',
        b'{"method":"output"}',
        b'{"method":"output","params":{"text":"x"}}',
        b'{"method":"unknown","params":{}}',
        b'{"method":"ready","params":{"pid":1,"layers":[]}}',
        b'{"id":"x","method":"find","params":{"name":"x"}}',
        b'{"id":{"a":[1]},"method":[1],"params":{}}',
        b'{"id":2,"method":"call","params":{},"strings":[[["x"],5]]}',
        b"=",
        b"=output",
        b"=output x",
        b"=output -1",
        b"=output 999999999",
        b"=output " + b"9" * 100_000,
        b"=output 1\n\xff",
        b"=other 1\nx",
        b"[" * 100_000,
    ],
)
def test_an_invalid_message_ends_the_run_with_an_error(app: App, line: bytes) -> None:
    answer = app.run(f"{FORGE}send({line!r})\ntime.sleep(5)")
    assert answer.is_error
    assert answer.text.startswith(
        (
            "ToolError: the cell returned an invalid response",
            "ToolError: the run ended without a response: ",
        )
    )


@pytest.mark.kernel
@pytest.mark.parametrize(
    "line",
    [
        b'{"id":2,"method":"call","params":{"name":"sample.give","args":[],"kwargs":[[1,2]]}}',
        b'{"id":2,"method":"call","params":{"name":{"a":1},"args":[],"kwargs":{}}}',
        b'{"id":2,"method":"snippet","params":{"name":[],"values":{}}}',
        b'{"id":2,"method":"find","params":{"name":"\\ud800"}}',
        b'{"id":2,"method":"list","params":{"pack":null}}',
    ],
)
def test_malformed_requests_get_a_response(app: App, line: bytes) -> None:
    code = f"{FORGE}send({line!r})\nsorted(json.loads(os.read(own.fileno(), 100_000)))"
    assert {"error", "result"} & {*app.data(code)}


@pytest.mark.parametrize(
    "field", ["type", "class", "message", "line", "source", "name", "sanitize"]
)
@pytest.mark.parametrize("value", [None, 5, [1], {"a": 1}, "x" * 3_000_000, "\ud800"])
def test_forged_fields_of_an_error_are_harmless(app: App, field: str, value: Any) -> None:
    forged = {"type": "x", "class": "NameError", "message": "m", "line": 1, field: value}
    code = (
        f"forged = json.loads({json.dumps(forged)!r})"
        if len(str(value)) < 10
        else f"forged = {forged!r}"
    )
    answer = app.run(
        f"{FORGE}{code}\nsend({{'id': 1, 'error': {{'data': forged}}}})\ntime.sleep(5)"[:900_000]
    )
    assert answer.is_error
    assert len(answer.text.encode()) < 50_000


def test_lone_surrogates_are_shown_as_escapes(app: App) -> None:
    forged = """send(b'=output 3\\n\\xed\\xa0\\x80', end=b'')\nanswer(value='\\ud800')"""
    for code in (f"{FORGE}{forged}", "print('\\ud800')\n'\\ud800'"):
        blocks = app.run(code).blocks
        assert [block.strip() for block in blocks] == ["\\ud800"] * 2
    assert "\\ud800 (not_found)" in app.failure(
        "try: ot.call('\\ud800')\nexcept ToolError: pass\n1 / 0"
    )


def test_a_forged_summary_is_truncated(app: App) -> None:
    code = f"{FORGE}for _ in range(2): piece('value', 'v' * 40_000)\n"
    assert len(app.value(f"{code}answer(about='a' * 900_000)")) < 5000


@pytest.mark.parametrize("chosen", ["json", "json_h", "yml", "yml_h"])
def test_deeply_nested_values_do_not_crash_the_server(app: App, chosen: str) -> None:
    """Use depths at which a faster encoder corrupted the memory of the server."""
    for depth in (80, 200, 400):
        code = (
            f"__format__ = {chosen!r}\nx = None\nfor _ in range({depth}):\n    x = [x, None]\n[x]"
            " * 300"
        )
        answer = app.run(code)
        assert len(answer.text) < 60_000
    assert app.value("1 + 1") == "2"


# --- unusual code ---------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("code", "expected"),
    [
        ("exit([1])", "SystemExit: [1]"),
        ("class E(ToolError):\n    def __init__(self): pass\nraise E()", "E\n  line 3: raise E()"),
        ("class E(ToolError):\n    fields = 5\nraise E('x')", "E: x"),
        ("raise ToolError('x', big='y' * 5_000_000)", "ToolError: x\n  line 1: raise ToolError("),
        ("__sanitize__ = []\n__sanitize__.append(__sanitize__)\n1 / 0", "ZeroDivisionError: "),
        ("__sanitize__ = globals()\n5", "ToolError: invalid __sanitize__ of type dict"),
        ("import sys\nsys.modules.clear()\n1 / 0", "ZeroDivisionError: "),
        ("sample.odd()", "RuntimeError: it has no text"),
        ("sample.fail()", "ToolError: it failed"),
        ("y = = '" + "a" * 900_000 + "'", "SyntaxError: invalid syntax\n  line 1: y = = 'aaa"),
    ],
)
def test_every_error_is_reported(app: App, code: str, expected: str) -> None:
    assert app.failure(code).startswith(expected)


@pytest.mark.parametrize(
    ("code", "expected"),
    [
        ("import sys\ndel sys.modules['__main__']\n5", "5"),
        ("import sys\nsys.modules['__main__'] = 5\n__format__ = 'json_h'\n[1]", "[\n  1\n]"),
        ("__format__ = ['json_h']\nlen(str(list(range(400_000))))", "3088890"),
        ("__format__ = globals()\n5", "5"),
        ("__format__ = 'x' * 30_000_000\n5", "5"),
    ],
)
def test_invalid_format_settings_do_not_change_the_value(
    app: App, code: str, expected: str
) -> None:
    assert app.value(code) == expected


# --- disks ----------------------------------------------------------------------------------------


def block_with_file(path: Path) -> None:
    path.write_text("in the way", encoding="utf-8")


def block_with_link(path: Path) -> None:
    (path.parent / "elsewhere").mkdir()
    path.symlink_to(path.parent / "elsewhere")


def block_with_broken_link(path: Path) -> None:
    path.symlink_to(path.parent / "nowhere")


@pytest.mark.parametrize("block", [block_with_file, block_with_link, block_with_broken_link])
def test_a_result_that_cannot_be_stored_is_an_error_beside_the_rest(
    block: Callable[[Path], None],
) -> None:
    with open_app({}, [give]) as app:
        block(app.onetool.directories.data / "tmp")
        value = app.run("print('printed')\nsample.give('x' * 60_000)")
        printed = app.run("print('x' * 60_000)\n__sanitize__ = False\n'the value'")
        error = app.run("print('x' * 60_000)\n1 / 0")
        assert not list((app.onetool.directories.data).glob("elsewhere/*"))
    assert [answer.is_error for answer in (value, printed, error)] == [True] * 3
    assert value.blocks[0] == "printed\n"
    assert (
        "the result of sample.give is too large to show and cannot be stored in " in value.blocks[1]
    )
    assert "Calls already made: sample.give (ok)" in value.blocks[1]
    assert ("cannot be stored" in printed.blocks[0], printed.blocks[1]) == (True, "the value")
    assert "cannot be stored" in error.blocks[0]
    assert error.blocks[1].startswith("ZeroDivisionError: ")


def test_a_result_that_cannot_be_stored_is_wrapped_if_sanitized() -> None:
    with open_app() as app:
        block_with_file(app.onetool.directories.data / "tmp")
        blocks = app.run("__sanitize__ = True\nprint('x')\n'x' * 60_000").blocks
    assert [block.startswith("<external-content-") for block in blocks] == [True, True]


def test_a_full_disk_loses_only_the_result_that_does_not_fit(
    tiny_disk: TinyDisk,  # noqa: F811 - the fixture
) -> None:
    with start_blocking_portal("asyncio") as portal:
        onetool = OneTool(Settings(), folder=tiny_disk.path, log=Log())
        with portal.wrap_async_context_manager(onetool):
            app = App(portal, onetool)
            assert "No space left on device" in app.failure("'x' * 3_000_000")
            assert not list((tiny_disk.path / "tmp").iterdir())
            assert json.loads(app.value("'x' * 60_000"))["size_bytes"] == 60_000
