"""Runs in WebAssembly sandboxes: what differs from a process, and what must not differ.

`--isolation wasm` runs the scenarios of other files in sandboxes. `test_wasm_sample.py` starts this
file and a sample of those with an interpreter that can run sandboxes.
"""

import asyncio
import json
import os
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.e2e.test_replayable_cells import (
    CLOCK,
    OTHER_SEED,
    SEED,
    Host,
    answer_with_clock,
    make_params,
    replay,
)
from tests.support import (
    TIMEOUT_SECONDS,
    App,
    configure,
    eventually,
    list_descendants,
    open_app,
    run_cli,
    scratch_directory,
)

from onetool import tool
from onetool.runs.cells import CellLimits, Cells
from onetool.runs.wasm_launcher import find_wasm_problem
from onetool.util.logging import Log

pytestmark = pytest.mark.skipif(
    bool(find_wasm_problem()), reason=find_wasm_problem() or "sandboxes can run"
)

ESCAPES = json.loads((Path(__file__).parent / "escapes.json").read_text(encoding="utf-8"))
# Attempts to read, write, connect or start something outside; those that consume resources are in
# the nightly set.
SAMPLE = [each for each in ESCAPES if each["must"] == "block"][::12]
meeting, started = threading.Barrier(5, timeout=20), threading.Event()


@tool("sample.echo")
def echo(value: object) -> object:
    """Return the value."""
    return value


@tool("sample.meet")
def meet(number: int) -> int:
    """Wait until four other calls wait too."""
    meeting.wait()
    return number


@tool("sample.start")
def start() -> None:
    """Say that the run has started."""
    started.set()


@pytest.fixture(scope="module")
def log_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("log") / "onetool.log"


@pytest.fixture(scope="module")
def app(log_file: Path) -> Iterator[App]:
    execution = {"isolation": "wasm", "timeout": 20, "memory_mb": 256, "max_output_bytes": 1 << 20}
    with open_app({"execution": execution}, (echo, meet, start), Log(log_file)) as app:
        yield app


def test_health_names_the_sandbox(app: App) -> None:
    assert app.data("ot.health()")["isolation"] == {"cells": "wasm", "sandbox": "wasm"}


@pytest.mark.parametrize(
    "code",
    [
        "ot.parallel([lambda n=n: sample.meet(n) for n in range(5)])",
        (
            "import time\not.parallel([lambda n=n: (time.sleep(0.01), sample.meet(n))[1] for n in"
            " range(5)])"
        ),
        (
            "from concurrent.futures import"
            " ThreadPoolExecutor\nlist(ThreadPoolExecutor().map(sample.meet, range(5)))"
        ),
        (
            "import asyncio\nawait asyncio.gather(*(asyncio.to_thread(sample.meet, n) for n in"
            " range(5)))"
        ),
    ],
    ids=["ot.parallel", "after sleeping", "thread pool", "asyncio"],
)
def test_calls_run_side_by_side_without_threads(app: App, code: str) -> None:
    """The barrier lets no call return before five of them run."""
    assert app.data(code) == [0, 1, 2, 3, 4]


def test_the_calls_of_one_function_stay_in_order(app: App) -> None:
    code = """
order = []
def work(name):
    for number in range(2):
        order.append(sample.echo(f"{name}{number}"))
    return name
[ot.parallel([lambda: work("a"), lambda: work("b")]), sorted(order), [each for each in order if each[0] == "a"]]"""
    assert app.data(code) == [["a", "b"], ["a0", "a1", "b0", "b1"], ["a0", "a1"]]


def test_an_error_of_a_function_is_raised_after_all_have_ended(app: App) -> None:
    code = (
        "done = []\ntry: ot.parallel([lambda: 1 / 0, lambda: done.append(1)])\nexcept"
        " ZeroDivisionError: pass\ndone"
    )
    assert app.data(code) == [1]


@pytest.mark.parametrize(
    ("code", "expected"),
    [
        (
            "import threading\nthreading.Thread(target=print).start()",
            "the WebAssembly sandbox has only one",
        ),
        ("import subprocess\nsubprocess.run(['ls'])", "does not support processes"),
        ("import os\nos.fork()", "the WebAssembly sandbox has no processes"),
        ("import ctypes", "the WebAssembly sandbox does not have the module '_ctypes'"),
    ],
    ids=["thread", "process", "fork", "C extension"],
)
def test_an_error_says_what_a_sandbox_cannot_do(app: App, code: str, expected: str) -> None:
    assert expected in app.failure(code)


def test_printed_output_and_large_values_cross(app: App) -> None:
    answer = app.run("for n in range(3): print(n)\nsample.echo('x' * 3_000_000) == 'x' * 3_000_000")
    assert answer.blocks == ("0\n1\n2\n", "True")


def test_results_of_tools_do_not_count_as_files_of_the_run(app: App) -> None:
    """They cross in files, which are larger than all files of a run may be.

    The server checks twice per second.
    """
    code = (
        "import time\nfor _ in range(4):\n    sample.echo('x' * 3_000_000)\n   "
        " time.sleep(0.4)\n'read'"
    )
    assert app.value(code) == "read"


def test_results_that_the_code_does_not_read_do_not_fill_the_disk(app: App) -> None:
    code = """
import json, os, time
call = {'method': 'call', 'params': {'name': 'sample.echo', 'args': ['x' * 900_000], 'kwargs': {}}}
with open(2, 'wb', closefd=False) as messages:
    for number in range(100, 120): messages.write(json.dumps({'id': number, **call}).encode() + b'\\n')
while '1' not in os.listdir('/answers') or os.stat('/answers/1').st_size < 4 << 20: time.sleep(0.01)
[sorted(os.listdir('/answers')), os.stat('/answers/0').st_size >> 20, len(sample.echo('read later'))]"""
    assert app.data(code) == [["0", "1"], 4, 10]


def test_an_answer_after_much_output_arrives(app: App) -> None:
    """The server reads such a run slowly, so the sandbox ends long before everything is read."""
    for _ in range(5):
        assert app.value("for n in range(3000): print(n, flush=True)\n'done'") == "done"


def test_a_flood_on_descriptor_1_does_not_fill_the_log(app: App, log_file: Path) -> None:
    assert (
        app.value("import os\nfor _ in range(200): os.write(1, b'flood\\n' * 20_000)\n'done'")
        == "done"
    )
    assert eventually(lambda: "flood" in log_file.read_text("utf-8"))
    app.run("1")  # its events are written after those of the flood
    assert eventually(lambda: log_file.read_text("utf-8").splitlines()[-1].find("flood") < 0)
    assert log_file.stat().st_size < 200_000


@pytest.mark.parametrize("descriptor", [1, 2])
def test_writes_to_descriptors_do_not_corrupt_messages(app: App, descriptor: int) -> None:
    code = (
        f"import os\nos.write({descriptor}, b'{{}}\\n=x 9')\nsample.echo(os.write({descriptor},"
        " b'x'))"
    )
    assert app.value(code) == "1"


def test_a_crash_of_the_process_is_an_error_of_that_run_alone(app: App) -> None:
    other = app.start("import time\ntime.sleep(1)\nsample.echo('fine')")
    crashed = app.run("import sys\nsys.setrecursionlimit(10**8)\ndef f(n): return f(n + 1)\nf(0)")
    assert crashed.error == "execution_error"
    how = "was killed by SIGABRT (a crash)" if sys.platform == "linux" else ""
    assert f"the run ended without a response: its process {how}" in crashed.text
    assert other.result().text == "fine"
    assert app.value("sample.echo('next')") == "next"


@pytest.mark.skipif(sys.platform != "linux", reason="finds processes in /proc")
def test_a_cancelled_run_ends_with_its_process(app: App) -> None:
    started.clear()
    run = app.start("sample.start()\nwhile True: pass")
    assert started.wait(TIMEOUT_SECONDS)
    processes = list_descendants(os.getpid())
    run.cancel()
    assert eventually(lambda: processes - list_descendants(os.getpid()))
    assert app.value("sample.echo('next')") == "next"


def test_a_sandbox_is_fresh_although_its_process_is_not(app: App) -> None:
    leave = "import builtins, sys\nopen('left', 'w').write('x')\nbuiltins.left = sys.left = 1"
    look = (
        "import builtins, os, sys\n[hasattr(builtins, 'left'), hasattr(sys, 'left'), os.listdir()]"
    )
    for _ in range(4):
        app.run(leave)
        assert app.data(look) == [False, False, []]


def test_memory_is_limited(app: App) -> None:
    assert "MemoryError" in app.failure("x = bytearray(300 << 20)")
    assert app.value("len(bytearray(100 << 20))") == str(100 << 20)


@pytest.mark.parametrize(
    ("code", "line"),
    [("import time\ntime.sleep(60)", "line 2: "), ("while True: pass", "")],
    ids=["sleep", "loop"],
)
def test_the_timeout_ends_a_run(code: str, line: str) -> None:
    limits = {"timeout": 3, "max_output_bytes": 1_000_000}  # less than the files of the runtime
    with open_app({"execution": {"isolation": "wasm", **limits}}) as app:
        app.portal.call(app.onetool.cells.probe, 60)  # wait until a sandbox is ready
        started = time.monotonic()
        answer = app.run(code)
        assert answer.error == "timeout"
        assert line in answer.text
        assert time.monotonic() - started < 10


@pytest.mark.parametrize("attempt", SAMPLE, ids=lambda attempt: str(attempt["id"]))
def test_attempts_to_escape_fail(app: App, attempt: dict[str, str], tmp_path: Path) -> None:
    secret = tmp_path / "sentinel.txt"
    secret.write_text("SENTINEL-ESCAPED", encoding="utf-8")
    answer = app.run(attempt["code"].replace("/tmp/", f"{tmp_path}/"))
    assert "SENTINEL-ESCAPED" not in answer.text
    assert [path.name for path in tmp_path.iterdir()] == ["sentinel.txt"]


def test_garbage_instead_of_messages_ends_only_that_run(app: App) -> None:
    code = (
        "raw = open(2, 'wb', buffering=0, closefd=False)\nfor _ in range(100): raw.write(b'x' *"
        " 1000 + b'\\n')"
    )
    for _ in range(3):
        assert "invalid message" in app.failure(code)
        assert app.value("sample.echo('next')") == "next"


def test_the_runtime_is_not_loaded_from_a_shared_directory(tmp_path: Path) -> None:
    """By default, the package loads machine code from a fixed name in the temporary directory."""
    configure(tmp_path, "execution: {isolation: wasm}")
    poison = scratch_directory(tmp_path) / "eryx-embedded"
    poison.parent.mkdir()
    poison.write_text("not a directory", encoding="utf-8")
    result = run_cli(tmp_path, "run", "1+1")
    assert result.stdout == "2\n", result.stderr
    assert poison.read_text(encoding="utf-8") == "not a directory"


# --- replay and pauses ----------------------------------------------------------------------------

DRAW = """
import asyncio, os, random, secrets, time, uuid
from datetime import datetime

def draw():
    return [random.random(), secrets.token_hex(8), os.urandom(4).hex(), str(uuid.uuid4()), str(uuid.uuid1())]

def read():
    return [time.time(), time.monotonic(), str(datetime.now())]

[draw(), ot.parallel([draw] * 5)], [read(), time.sleep(0.01), demo.call(4), read(), list({'a', 'b', 'c', 'delta'})]
"""


async def run_in_sandbox(params: dict[str, Any], host: Host, seconds: float = 20) -> Any:
    async with Cells(CellLimits(isolation="wasm", timeout=seconds, cells=1)) as cells:
        await cells.probe(60)
        return (await cells.run(params, host))["value"]


def test_a_replayed_run_has_the_same_random_numbers_and_times() -> None:
    def run(seed: str) -> Any:
        return asyncio.run(
            run_in_sandbox(make_params(DRAW, replay=replay(seed)), Host(answer_with_clock))
        )

    first, other = run(SEED), run(OTHER_SEED)
    assert run(SEED) == first
    assert first[0] != other[0]
    assert first[1] == other[1]
    assert CLOCK + 40 < first[1][3][0] < CLOCK + 40.001


def test_a_pause_for_a_person_does_not_count_as_run_time() -> None:
    params = make_params("demo.call(1)", pausable=True)
    assert asyncio.run(run_in_sandbox(params, Host(answer_with_clock, pauses=4), seconds=3)) == 1


def test_the_interpreter_is_that_of_the_sandbox(app: App) -> None:
    assert app.value("import sys\nsys.platform") == "wasi" != sys.platform
