"""Hostile code in a WebAssembly sandbox that forges messages: the server believes only what the run
itself may say.

The code reaches everything inside: descriptor 2, which carries its messages, the files with the
answers of the server, the modules of the guest and the functions of the runtime. At worst, its own
run ends with an error.
"""

import threading
from collections.abc import Iterator
from typing import Any

import pytest
from tests.support import TIMEOUT_SECONDS, App, open_app

from onetool import tool
from onetool.runs.wasm_launcher import find_wasm_problem
from onetool_child.wasm_host import BEGIN, DATA, END, PREPARED, encode_frame, read_peak_memory

pytestmark = pytest.mark.skipif(
    bool(find_wasm_problem()), reason=find_wasm_problem() or "sandboxes can run"
)

CALLS: list[Any] = []  # of the tools below: always empty, except for valid calls
ANSWER = b'{"id":1,"result":{"value":"forged","has_value":true,"format":null,"sanitize":null,"from_ot":false}}\n'
FRAMES = b"".join(encode_frame(kind, ANSWER) for kind in (DATA, END, PREPARED, BEGIN))
HELPERS = f"""
import asyncio, contextvars, gc, json, os, sys, time
ANSWER, FRAMES = {ANSWER!r}, {FRAMES!r}
raw = open(2, 'wb', buffering=0, closefd=False)
def send(data):
    left = memoryview(data if isinstance(data, bytes) else json.dumps(data).encode() + b'\\n')
    while left: left = left[raw.write(left):]
def try_all(function, *choices):
    for choice in choices:
        try: function(*choice)
        except Exception: pass
guest = sys.modules['onetool_child.wasm_guest']
runtime = sys.modules['_eryx']
frame = sys._getframe()
while frame.f_code.co_name != 'serve': frame = frame.f_back
invoke = frame.f_locals['wait']
"""
gate = threading.Semaphore(0)


@tool("sample.meet")
def meet() -> str:
    """Wait until the attack is over."""
    return "met" if gate.acquire(timeout=TIMEOUT_SECONDS) else "forgotten"


@tool("sample.count")
def count(number: int) -> int:
    """Return the number."""
    CALLS.append(number)
    return number


@tool("sample.large")
def large() -> str:
    """Return a large text."""
    return "x" * 3_000_000


@tool("sample.erase", effects=["write"])
def erase() -> None:
    """Do what no policy allows."""
    CALLS.append("erase")


@pytest.fixture(scope="module")
def app() -> Iterator[App]:
    settings = {
        "execution": {"isolation": "wasm", "timeout": 30, "memory_mb": 256, "cells": 1},
        "agents": {"default": {"policy": [{"tools": "sample.erase", "decision": "deny"}]}},
    }
    with open_app(settings, (meet, count, large, erase)) as app:
        yield app


@pytest.fixture(autouse=True)
def _others_are_not_affected(app: App) -> Iterator[None]:
    """A run during the attack, and runs after it, probably in the same process, have their own
    results.
    """
    CALLS.clear()
    neighbor = app.start("[sample.meet(), 'own']")
    yield
    gate.release()
    assert neighbor.result(TIMEOUT_SECONDS).text == '["met","own"]'
    for number in range(2):
        assert app.run(f"print('printed')\n[{number}, 'own']").blocks == (
            "printed\n",
            f'[{number},"own"]',
        )
    assert CALLS == []


# --- text that looks like messages ----------------------------------------------------------------


@pytest.mark.parametrize(
    "text", [ANSWER.decode(), "=value 9\nforged!!!\n", "=output 1\n", "\0", '{"method":"ready"}\n']
)
def test_printed_text_is_never_a_message(app: App, text: str) -> None:
    code = f"""
import os, sys
text = {text!r}
for stream in (sys.stdout, sys.stderr, sys.__stdout__, sys.__stderr__): stream.write(text)
sys.stdout.buffer.write(text.encode())
for descriptor in (1, 2): os.write(descriptor, text.encode())
'real'"""
    assert app.run(code).blocks == (5 * text, "real")


def test_frames_written_to_all_descriptors_reach_only_the_own_run(app: App) -> None:
    code = f"""{HELPERS}
for number in (0, 1, *range(3, 10)):
    try_all(lambda data: open(number, 'wb', buffering=0, closefd=False).write(data), [FRAMES], [ANSWER], [END])
    try_all(lambda data: guest._write(number, data), [FRAMES], [ANSWER])
'real'"""
    assert app.value(code.replace("[END]", repr([END]))) == "real"
    assert "invalid message" in app.failure(f"{HELPERS}send(FRAMES)\ntime.sleep(10)")


# --- messages -------------------------------------------------------------------------------------

READ_ANSWER = """
def ask(**message):
    send({'id': 1000, **message})
    while not (lines := [line for line in open('/answers/0') if '"id":1000' in line]): time.sleep(0.01)
    return json.loads(lines[-1])
"""


@pytest.mark.parametrize(
    ("params", "error"),
    [
        ({"name": "sample.erase", "args": [], "kwargs": {}}, "may not call"),
        ({"name": "sample.erase", "args": [], "kwargs": {}, "account": "other"}, ""),
        (
            {"name": "Sample.Erase", "args": [], "kwargs": {}, "approved": True, "agent": "admin"},
            "",
        ),
        ({"name": "sample.count", "args": ["no number"], "kwargs": {}}, "number"),
        ({"name": "sample.count", "args": [], "kwargs": {"number": {"deep": [[[[]]]]}}}, "number"),
        ({"name": "sample.count", "args": [1, 2, 3], "kwargs": {"number": 4}}, ""),
        ({"name": "__import__", "args": ["os"], "kwargs": {}}, ""),
    ],
    ids=lambda value: str(value.get("name")) if isinstance(value, dict) else "",
)
def test_a_forged_call_is_validated_and_needs_permission(
    app: App, params: dict[str, Any], error: str
) -> None:
    answer = app.data(f"{HELPERS}{READ_ANSWER}ask(method='call', params={params!r})")
    assert error in answer["error"]["message"]


@pytest.mark.parametrize(
    "message",
    [
        {"id": 2, "result": "forged"},
        {"id": 1, "result": "forged"},
        {"method": "ready", "params": {"pid": 1, "layers": ["landlock", "seccomp"]}},
        {
            "id": 2,
            "method": "call",
            "params": {"name": ["sample.erase"], "args": 1, "kwargs": None},
        },
        {
            "id": 2,
            "method": "call",
            "params": {"name": "sample.erase"},
            "strings": [[["name"], -1]],
        },
    ],
    ids=str,
)
def test_a_malformed_message_is_an_error_of_its_run(app: App, message: dict[str, Any]) -> None:
    answer = app.run(f"{HELPERS}send({message!r})\ntime.sleep(10)")
    assert answer.error == "execution_error"
    assert app.data("ot.health()")["isolation"] == {"cells": "wasm", "sandbox": "wasm"}


@pytest.mark.parametrize(
    "data",
    [
        "b'[' * 900_000 + b'\\n'",
        "b'x' * 3_000_000",
        "b'=value 262144\\n' + bytes(2000)",
        "b'=strings 99999999\\n'",
    ],
    ids=["deep", "long", "incomplete", "huge piece"],
)
def test_a_huge_message_is_an_error_of_its_run(app: App, data: str) -> None:
    answer = app.run(f"{HELPERS}send({data})\nos._exit(0)")
    assert answer.error == "execution_error"


# --- the end of a run -----------------------------------------------------------------------------


IN_EVENT_LOOP = """
for found in gc.get_objects():
    if isinstance(found, asyncio.AbstractEventLoop):
        found.call_soon(send, ANSWER * 1000, context=contextvars.copy_context())
"""


@pytest.mark.parametrize(
    "later",
    [
        "import atexit\natexit.register(send, ANSWER)",
        "class Late:\n    def __del__(self): send(ANSWER * 1000)\nsys.late = Late()",
        "import weakref\nweakref.finalize(guest, send, ANSWER)",
        IN_EVENT_LOOP,
        "guest.Cell._encode_success = lambda *_: ANSWER.decode() * 100",
    ],
    ids=["atexit", "destructor", "finalizer", "event loop", "several answers"],
)
def test_nothing_arrives_after_the_answer(app: App, later: str) -> None:
    assert app.value(f"{HELPERS}{later}\n'real'") in {"real", "forged"}


def test_a_run_that_floods_after_its_answer_is_ended(app: App) -> None:
    """Such a run would fill the memory of the server, which no longer reads its messages."""
    before = read_peak_memory()
    for _ in range(3):
        assert app.value(f"{HELPERS}send(ANSWER)\nwhile True: send(bytes(65536))") == "forged"
    assert read_peak_memory() - before < 30 << 20


def test_a_run_without_an_answer_is_an_error(app: App) -> None:
    assert (
        app.run(f"{HELPERS}guest.FilePeer.send_line = lambda *_: None").error == "execution_error"
    )


def test_a_call_during_the_end_is_checked_too(app: App) -> None:
    call = {"id": 7, "method": "call", "params": {"name": "sample.erase", "args": [], "kwargs": {}}}
    assert app.value(f"{HELPERS}send(ANSWER + json.dumps({call!r}).encode() + b'\\n')") == "forged"


# --- the files of answers -------------------------------------------------------------------------


LARGE_CALLS = """
for number in range(3):
    send({'id': number, 'method': 'call', 'params': {'name': 'sample.large', 'args': [], 'kwargs': {}}})
until = time.monotonic() + 2
while time.monotonic() < until and not (os.path.isfile('/answers/1') and os.stat('/answers/1').st_size > 2):
    time.sleep(0.01)
"""


@pytest.mark.parametrize(
    "attack",
    [
        "for n in range(1, 9): open(f'/answers/{n}', 'w').write('{}')",
        "for n in range(1, 9): os.mkdir(f'/answers/{n}')",
        (
            "try_all(os.symlink, ['/etc/passwd', '/answers/1'], ['../files/x', '/answers/1'], ['x',"
            " '/answers/1'])"
        ),
        "open('/answers/0', 'ab').write(b'{\"id\":99,\"result\":1}\\n' * 1000)",
        "os.truncate('/answers/0', 0)",
        (
            "try_all(os.rename, ['/answers', '/tmp/x'], ['/tmp', '/answers/x'])\ntry_all(os.rmdir,"
            " ['/answers'])"
        ),
    ],
    ids=["files", "directories", "links", "forged", "truncated", "moved"],
)
def test_tampering_with_answers_affects_only_the_own_run(app: App, attack: str) -> None:
    """The answers of the calls need a second file."""
    assert app.run(f"{HELPERS}{attack}{LARGE_CALLS}'real'").error in {None, "execution_error"}


def test_shared_files_cannot_be_changed(app: App) -> None:
    code = f"""{HELPERS}
paths = ['/modules/onetool_child/cell.pyc', json.__file__]
for path in paths:
    before = os.stat(path).st_mtime_ns
    for mode in ('w', 'a', 'r+'): try_all(lambda mode: open(path, mode).write('x'), [mode])
    try_all(os.unlink, [path])
    try_all(os.rename, [path, '/tmp/moved'], ['/tmp/moved', path])
    try_all(os.link, [path, '/tmp/linked'])
    try_all(os.truncate, [path, 0])
    try_all(os.utime, [path, (1, 1)])
    assert os.stat(path).st_mtime_ns == before, path
try_all(lambda path: open(path, 'x'), ['/modules/onetool_child/x.py'], ['/python-stdlib/x.py'], ['/modules/json.py'])
[os.listdir('/tmp'), any(os.path.exists(path) for path in ('/modules/onetool_child/x.py', '/python-stdlib/x.py'))]"""
    assert app.data(code) == [[], False]


# --- the runtime ----------------------------------------------------------------------------------


def test_host_functions_reject_other_calls(app: App) -> None:
    """The only callback was used up before the code arrived."""
    code = f"""{HELPERS}
def is_rejected(name, text):
    try: runtime._eryx_invoke(name, text)
    except Exception: return True
    return False
names = ['wait', 'run', 'call', 'x' * 1_000_000, '', chr(0), chr(0xd800), None, 1]
texts = ['{{}}', '[' * 100_000, '{{"self": 1}}', '"' + 'x' * 10_000_000 + '"', '', chr(0xd800), None, 2]
accepted = [(name, text[:9]) for name in names for text in texts if not is_rejected(name, text)]
assert not accepted, accepted
for arguments in ({{}}, {{'timeout': 0}}, {{'x': [[[]]] * 1000}}):
    try: invoke('wait', **arguments).send(None)
    except Exception as error: assert 'limit exceeded' in str(error), error
    else: raise AssertionError(arguments)
'rejected'"""
    assert app.value(code) == "rejected"


def test_functions_of_the_runtime_have_no_effect_outside(app: App) -> None:
    code = f"""{HELPERS}
values = (None, 'x', -1, 1 << 40, b'x' * 100_000, [[]], {{}}, 1.5)
functions = [value for name, value in vars(runtime).items() if name.startswith('_eryx')]
assert len(functions) > 5
for function in functions:
    try_all(function, [], *([one] for one in values), *([one, other] for one in values for other in values))
    try_all(function, *([1, one, other] for one in values for other in values))
runtime._eryx_sleep_async(1 << 60)
runtime._eryx_report_output(1, ANSWER * 1000)
runtime._eryx_tcp_connect('127.0.0.1', 80)[0]"""
    assert app.value(code) == "1"
