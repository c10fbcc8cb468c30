"""Test the life cycle of cells: each run has its own process, which ends with the run, the zygote
or the server.

If the server itself has to die or to lack a feature, it is a separate process (`arena`). Otherwise
it is in this process, so that tools can block a run at a point that the test chooses.
"""

import asyncio
import contextlib
import ctypes
import itertools
import json
import os
import signal
import subprocess
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import Future
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from tests.cells_support import (
    IS_ROOT,
    NIGHTLY,
    Arena,
    Outcome,
    Setup,
    open_arena,
    skip_or_fail,
)
from tests.support import (
    ISOLATION,
    PROGRAM,
    TIMEOUT_SECONDS,
    App,
    ProcessWatch,
    eventually,
    is_within,
    list_children,
    list_descendants,
    open_app,
)

from onetool.runs import launch
from onetool.runs.answer import Answer
from onetool.runs.wasm_launcher import find_wasm_problem

pytestmark = pytest.mark.skipif(not hasattr(os, "pidfd_open"), reason="requires pidfd_open (Linux)")

MANY = 1000 if NIGHTLY else 100
MORE_THAN_ANY_PID = 1 << 23
SHORT_SECONDS = 1.5 if ISOLATION == "auto" else 15.0  # a WebAssembly sandbox takes longer to start
QUICK = {"execution": {"timeout": SHORT_SECONDS}}
READY = "demo.echo('there')\n"
WAITING = "import time\ntime.sleep(60)"
LOOPING = "import signal\nsignal.setitimer(signal.ITIMER_REAL, 0)\nwhile True: pass"


class Gate:
    """A tool that blocks a run until the test opens the gate."""

    def __init__(self) -> None:
        self.reached, self._open = threading.Semaphore(0), threading.Event()

    def wait(self) -> str:
        """Wait until the test opens the gate."""
        self.reached.release()
        return "let go" if self._open.wait(TIMEOUT_SECONDS) else "forgotten"

    def open(self) -> None:
        self._open.set()


@pytest.fixture(scope="module")
def app() -> Iterator[App]:
    with open_app(tools=[make_tool("demo.echo", lambda text: text)]) as app:
        yield app


@pytest.fixture(scope="module")
def brief() -> Iterator[App]:
    with open_app({"execution": {"timeout": SHORT_SECONDS, "max_output_bytes": 1 << 20}}) as app:
        yield app


def make_tool(name: str, function: Callable[..., object]) -> object:
    from onetool.core.python_backend import function_tool

    return function_tool(function, name)


def start_at_gate(gate: Gate, app: App, before: str = "") -> Future[Answer]:
    """Start a run and wait until it is blocked at the gate."""
    run = app.start(f"{before}\n[gate.wait(), 'untouched']")
    assert gate.reached.acquire(timeout=TIMEOUT_SECONDS)
    return run


@contextlib.contextmanager
def open_gated_app(settings: Mapping[str, Any] | None = None) -> Iterator[tuple[App, Gate]]:
    gate = Gate()
    with open_app(
        settings, [make_tool("gate.wait", gate.wait), make_tool("demo.echo", lambda text: text)]
    ) as app:
        yield app, gate
        gate.open()


# --- separate runs --------------------------------------------------------------------------------


@pytest.mark.kernel
def test_every_run_has_its_own_process(app: App) -> None:
    assert len({app.value("import os; os.getpid()") for _ in range(10)}) == 10


def test_changes_to_the_interpreter_do_not_outlive_a_run(app: App) -> None:
    app.run(
        "import builtins, sys\nbuiltins.len = None\nsys.modules['json'] = None\nkept ="
        " 1\nsys.path.clear()"
    )
    assert (
        app.value("import json\n[len('abc'), 'kept' in globals(), json.dumps(1)]")
        == '[3,false,"1"]'
    )


def test_files_of_a_run_are_deleted_with_it(app: App) -> None:
    assert app.value("open('file', 'w').write('x')\nimport os\nos.listdir('.')") == '["file"]'
    assert app.value("import os\nos.listdir('.')") == "[]"


def test_unicode_line_breaks_in_strings_do_not_shift_line_numbers(app: App) -> None:
    assert "line 3: 1 / 0" in app.failure("x = '\x0c\x1c\x85\u2028'\n\n1 / 0")


def test_every_run_has_its_own_random_seed(app: App) -> None:
    code = "import random, tempfile, uuid\n[random.random(), str(uuid.uuid4()), tempfile.mktemp()]"
    values = [app.data(code) for _ in range(5)]
    assert all(len({each[index] for each in values}) == 5 for index in range(3))


def test_modules_imported_by_the_run_are_seeded_separately(app: App) -> None:
    assert len({app.value("import secrets\nsecrets.token_hex(8)") for _ in range(5)}) == 5


def test_many_concurrent_runs_get_their_own_results(app: App) -> None:
    codes = [f"print({n})\n[demo.echo('{n}') for _ in range(3)]" for n in range(MANY)]
    answers = [future.result(TIMEOUT_SECONDS * 6) for future in [app.start(code) for code in codes]]
    expected = [(f"{n}\n", f'["{n}","{n}","{n}"]') for n in range(MANY)]
    assert [answer.blocks for answer in answers] == expected


def test_runs_over_the_concurrency_limit_are_queued() -> None:
    gate = threading.Semaphore(0)

    def meet() -> str:
        gate.acquire(timeout=TIMEOUT_SECONDS * 3)
        return "met"

    with open_app(tools=[make_tool("gate.meet", meet)]) as app:
        runs = [app.start(f"import os\n[{n}, len(os.listdir('.'))]") for n in range(140)]
        held = [app.start("gate.meet()") for _ in range(40)]
        gate.release(40)
        texts = [run.result(TIMEOUT_SECONDS * 6).text for run in (*runs, *held)]
    assert texts == [*(f"[{n},0]" for n in range(140)), *(["met"] * 40)]


@pytest.mark.kernel
def test_the_maximum_number_of_runs_can_be_active_concurrently() -> None:
    """The descriptor limit of the zygote does not limit the number of runs."""
    processes = threading.Barrier(128)

    async def meet() -> str:
        await asyncio.to_thread(processes.wait, TIMEOUT_SECONDS * 3)
        return "met"

    from concurrent.futures import ThreadPoolExecutor

    with (
        ThreadPoolExecutor(200) as pool,
        open_app(tools=[make_tool("everybody.meet", meet)]) as app,
    ):
        app.portal.call(_use_pool, pool)
        runs = [app.start("everybody.meet()") for _ in range(128)]
        texts = [run.result(TIMEOUT_SECONDS * 5).text for run in runs]
    assert texts == ["met"] * 128


async def _use_pool(pool: object) -> None:
    asyncio.get_running_loop().set_default_executor(pool)  # type: ignore[arg-type]


def test_a_result_is_not_lost_when_its_cell_exits(app: App) -> None:
    """A cell ends right after its response; the order in which the server sees the two must not
    matter.
    """
    runs = 3000 if NIGHTLY else 300
    texts: list[str] = []
    for batch in range(runs // 20):
        started = [app.start(f"demo.echo('{batch}')") for _ in range(20)]
        texts += [run.result(TIMEOUT_SECONDS).text for run in started]
    assert [text for index, text in enumerate(texts) if text != str(index // 20)] == []


def test_threads_of_a_run_call_tools_concurrently() -> None:
    processes = threading.Barrier(8)

    def meet(number: int) -> int:
        processes.wait(TIMEOUT_SECONDS)
        return number

    code = (
        "from concurrent.futures import ThreadPoolExecutor as Pool\nlist(Pool(8).map(demo.meet,"
        " range(8)))"
    )
    with open_app(tools=[make_tool("demo.meet", meet)]) as app:
        assert app.value(code) == "[0,1,2,3,4,5,6,7]"


def test_threads_of_concurrent_runs_get_their_own_results(app: App) -> None:
    code = """
from concurrent.futures import ThreadPoolExecutor as Pool
words = [f'{run}-{n}' for n in range(100)]
list(Pool(8).map(demo.echo, words)) == words
"""
    runs = [app.start(f"run = {n}\n{code}") for n in range(10)]
    assert [run.result(TIMEOUT_SECONDS * 3).text for run in runs] == ["True"] * 10


# --- failing runs and concurrent runs -------------------------------------------------------------

FAILING_RUNS = {
    "an exit": ("raise SystemExit(3)", "SystemExit: 3"),
    "an exit in a function": (
        "import sys\ndef f(): sys.exit('over')\nf()",
        "SystemExit: over\n  line 2",
    ),
    "os._exit": ("import os; os._exit(9)", "its process exited with status 9"),
    "a crash": (
        "import ctypes; ctypes.string_at(0)",
        "its process was killed by SIGSEGV (a crash)",
    ),
    "closed descriptors": ("import os; os.closerange(0, 9999)", "the run ended without a response"),
    "an endless loop": (
        "x = 1\nwhile True:\n    x += 1",
        f"longer than {SHORT_SECONDS:g} s\n  line ",
    ),
    "an endless loop in C": ("sum(range(10**12))", f"the run took longer than {SHORT_SECONDS:g} s"),
    "endless printing": ("while True: print('x' * 100)", "printed more than 1048576 bytes"),
    "no memory": (
        "x = 'x' * (1 << 40)",
        "line 1: x = 'x' * (1 << 40)\nThe run exceeded its memory limit",
    ),
    "a fork": (
        "import os\nos.fork()",
        "PermissionError: [Errno 1] Operation not permitted\n  line 2",
    ),
    "a program": ("import os\nos.system('true') and 1/0", "Error"),
    "a network": ("import socket\nsocket.socket()", "PermissionError"),
    "killing the parent": ("import os\nos.kill(os.getppid(), 9)", "PermissionError"),
    "a thread left behind": (
        "import threading, time\nthreading.Thread(target=time.sleep, args=[99]).start()",
        "None",
    ),
    "an unknown name": (
        "nonsense",
        "NameError: name 'nonsense' is not defined\n  line 1: nonsense",
    ),
    "wrong syntax": ("x = 1\nfor", "SyntaxError: invalid syntax\n  line 2: for"),
    "NUL bytes": ("x = 1\0", "null bytes"),
    "a lone surrogate": ("x = '\ud800'\nx", "\\ud800"),
    "deep brackets": ("(" * 100000, "too many nested parentheses"),
    "deep operators": ("-" * 100000 + "1", "Error"),
}

# What the same code reports in a WebAssembly sandbox, which has one thread, no processes and 32
# bits, and which ends its process when its stack overflows.
IN_SANDBOXES = {
    "os._exit": "the run ended without a response",
    "a crash": "the WebAssembly sandbox does not have the module '_ctypes'",
    "an endless loop": f"longer than {SHORT_SECONDS:g} s",
    "no memory": "OverflowError: cannot fit 'int' into an index-sized integer",
    "a fork": "the WebAssembly sandbox has no processes",
    "a network": "<socket.socket fd=-1",
    "killing the parent": "the WebAssembly sandbox has no processes",
    "a thread left behind": "the WebAssembly sandbox has only one",
    "deep brackets": "the run ended without a response",
}


@pytest.mark.sampled(2)
@pytest.mark.parametrize("failure", FAILING_RUNS)
def test_a_failing_run_reports_its_error_and_does_not_affect_others(failure: str) -> None:
    code, expected = FAILING_RUNS[failure]
    if ISOLATION == "wasm":
        expected = IN_SANDBOXES.get(failure, expected)
    is_endless = "longer" in expected
    limits = {"timeout": SHORT_SECONDS if is_endless else 60, "max_output_bytes": 1 << 20}
    with open_gated_app({"execution": limits}) as (app, gate):
        neighbor = None if is_endless else start_at_gate(gate, app)
        wrong = app.start(code)
        while not wrong.done():
            assert app.value("'untouched'") == "untouched"
        gate.open()
        assert expected in wrong.result().text
        assert neighbor is None or neighbor.result(TIMEOUT_SECONDS).text == '["let go","untouched"]'


@pytest.mark.kernel
def test_a_timeout_reports_the_line_of_an_endless_loop(brief: App) -> None:
    text = brief.failure("def spin():\n    while True:\n        pass\n\nspin()")
    assert "line 2: while True:" in text or "line 3: pass" in text


@pytest.mark.kernel
def test_a_run_that_disables_its_timer_ends_within_the_grace_period() -> None:
    def loop(app: App) -> None:
        assert "longer than 2 s and was ended" in app.failure(LOOPING)

    with open_app({"execution": {"timeout": 2}}) as app:
        app.value("1")
        assert is_within(
            2 + 0.2 + 2, partial(loop, app)
        )  # timeout + grace period + a margin for a busy machine


def test_output_before_a_timeout_is_returned(brief: App) -> None:
    answer = brief.run("print('before')\nwhile True: pass")
    assert answer.is_error
    assert answer.blocks[0] == "before\n"


def test_output_and_calls_before_a_crash_are_returned() -> None:
    with open_app(tools=[make_tool("demo.echo", lambda text: text)]) as app:
        answer = app.run("print('before', flush=True)\ndemo.echo('x')\nimport os\nos._exit(1)")
    assert answer.blocks[0] == "before\n"
    assert "Calls already made: demo.echo (ok)" in answer.text


@pytest.mark.parametrize(
    "code", ["import os\nos._exit(0)", "raise MemoryError", "import os\nos.abort()"]
)
def test_runs_work_after_many_cells_have_died(app: App, code: str) -> None:
    for _ in range(20):
        app.run(code)
    assert app.value("1 + 1") == "2"


# --- concurrent runs ------------------------------------------------------------------------------


def test_the_scratch_directory_of_another_run_is_inaccessible() -> None:
    with open_gated_app() as (app, gate):
        neighbor = start_at_gate(
            gate, app, "open('secret', 'w').write('mine')\nimport os\nprint(os.getcwd())"
        )
        tried = app.value("""
import glob, os
found = []
for n in range(200):
    for path in (f'../{n}/secret', f'{os.path.dirname(os.getcwd())}/{n}/secret'):
        try: found.append(open(path).read())
        except OSError: pass
    for way in (lambda: os.listdir(f'../{n}'), lambda: open(f'../{n}/planted', 'w')):
        try: found.append(str(way())) if f'../{n}' != f'../{os.path.basename(os.getcwd())}' else None
        except OSError: pass
[found, glob.glob('../*')]
""")
        gate.open()
        assert tried == "[[],[]]"
        assert neighbor.result(TIMEOUT_SECONDS).blocks[-1] == '["let go","untouched"]'


def test_raw_standard_output_of_another_run_cannot_be_read() -> None:
    with open_gated_app() as (app, gate):
        reader = """
import os
taken = []
for n in (1, 2):
    try: taken.append(os.open(f'/proc/self/fd/{n}', os.O_RDONLY | os.O_NONBLOCK))
    except OSError: pass
gate.wait()
def read(end):
    try: return os.read(end, 9999).decode()
    except BlockingIOError: return ''
''.join(map(read, taken))
"""
        spy = app.start(reader)
        assert gate.reached.acquire(timeout=TIMEOUT_SECONDS)
        app.run("import os\nfor n in (1, 2): os.write(n, b'private')")
        gate.open()
        assert "private" not in spy.result(TIMEOUT_SECONDS).text


def test_descriptor_flags_set_by_a_run_do_not_affect_the_next_run(app: App) -> None:
    app.run("import os\nfor n in (1, 2): os.set_blocking(n, False)")
    assert app.value("import os\n[os.get_blocking(1), os.get_blocking(2)]") == "[true,true]"


def test_a_run_that_floods_descriptor_1_does_not_block_others() -> None:
    with open_gated_app(QUICK) as (app, _gate):
        flood = app.start("import os\nwhile True: os.write(1, b'x' * 65536)")
        texts = [app.value("import os\nos.write(2, b'y'); 'done'") for _ in range(20)]
        assert texts == ["done"] * 20
        assert "longer than" in flood.result(TIMEOUT_SECONDS).text


# --- cancelling -----------------------------------------------------------------------------------


@pytest.mark.kernel
def test_a_cancelled_run_ends_immediately_and_the_next_run_works() -> None:
    with open_arena() as arena:
        run = arena.start("import time\ntime.sleep(60)", ident="sleeper")
        assert eventually(lambda: _has_cells(arena))
        before = list_descendants(arena.process.pid)
        arena.cancel("sleeper")
        assert run.result(TIMEOUT_SECONDS).raised == "cancelled"
        assert arena.run("1 + 1").text == "2"
        with ProcessWatch(before - {arena.process.pid}) as _:
            assert eventually(lambda: len(list_descendants(arena.process.pid)) <= 4)


def _has_cells(arena: Arena) -> bool:
    return len(list_descendants(arena.process.pid)) > 3


def test_a_cancelled_run_cancels_the_tool_it_waits_for() -> None:
    cancelled, entered = threading.Event(), threading.Event()

    async def slow() -> None:
        entered.set()
        try:
            await asyncio.sleep(60)
        except asyncio.CancelledError:
            cancelled.set()
            raise

    with open_app(tools=[make_tool("demo.slow", slow)]) as app:
        run = app.start("demo.slow()")
        assert entered.wait(TIMEOUT_SECONDS)
        run.cancel()
        assert cancelled.wait(TIMEOUT_SECONDS)
        assert app.value("1") == "1"


@pytest.mark.kernel
def test_runs_cancelled_before_they_start_leave_no_processes() -> None:
    """Cancel while the zygote starts, while the cell gets ready, and while the code is being sent."""
    with open_arena() as arena:
        for n in range(30):
            run = arena.start("import time\ntime.sleep(60)", ident=f"run{n}")
            arena.cancel(f"run{n}")
            assert run.result(TIMEOUT_SECONDS).raised == "cancelled"
        assert arena.run("'alive'").text == "alive"
        few = 1 + 1 + 2 + 1  # server, zygote, two idle cells, and one that is ending
        assert eventually(lambda: len(list_descendants(arena.process.pid)) <= few), (
            list_descendants(arena.process.pid)
        )


def test_a_cell_is_freed_when_its_client_stops_waiting() -> None:
    async def run_with_timeout(app: App) -> None:
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(0.2):
                await app.onetool.run("while True: pass")

    with open_app() as app:
        mine = os.getpid()
        app.value("1")
        resting = len(list_descendants(mine))
        app.portal.call(run_with_timeout, app)
        assert app.value("2") == "2"
        assert eventually(lambda: len(list_descendants(mine)) <= resting + 1)


# --- the death of the zygote and of the server ----------------------------------------------------


@pytest.mark.kernel
def test_active_runs_fail_when_the_zygote_dies_and_the_next_works() -> None:
    with open_arena() as arena:
        runs = [arena.start(READY + WAITING) for _ in range(3)]
        assert eventually(lambda: arena.facts()["echoed"] == 3)
        with ProcessWatch(list_descendants(arena.process.pid) - {arena.process.pid}) as cells:
            _kill_zygotes(arena)
            texts = [run.result(TIMEOUT_SECONDS).text for run in runs]
            assert cells.all_ended()
        expected = (
            "ToolError: the run ended without a response: its process is gone\nCalls already made:"
            " demo.echo (ok)"
        )
        assert texts == [expected] * 3
        assert arena.run("1 + 1").text == "2"
        assert eventually(lambda: not _list_zombies(arena)), "the dead zygote was not reaped"


@pytest.mark.kernel
def test_unstarted_runs_are_retried_when_the_zygote_dies() -> None:
    with open_arena() as arena:
        arena.run("1")
        assert eventually(lambda: len(list_descendants(arena.process.pid)) >= 1 + 1 + 1)
        for process in list_descendants(arena.process.pid) - {arena.process.pid}:
            os.kill(process, signal.SIGSTOP)  # so that no cell reads its request
        runs = [arena.start("'done'") for _ in range(3)]
        _kill_zygotes(arena)
        assert [run.result(TIMEOUT_SECONDS).text for run in runs] == ["done"] * 3


def _kill_zygotes(arena: Arena) -> None:
    for zygote in list_children(arena.process.pid):
        with contextlib.suppress(ProcessLookupError):  # an earlier zygote
            os.kill(zygote, signal.SIGKILL)


def _list_zombies(arena: Arena) -> list[int]:
    return [child for child in list_children(arena.process.pid) if _read_state(child) == "Z"]


def _read_state(process: int) -> str:
    try:
        return (
            Path(f"/proc/{process}/stat")
            .read_text(encoding="ascii", errors="replace")
            .rpartition(")")[2]
            .split()[0]
        )
    except OSError:
        return "gone"


@pytest.mark.kernel
def test_the_server_recovers_from_repeated_zygote_deaths() -> None:
    with open_arena() as arena:
        for n in range(5):
            assert arena.run(str(n)).text == str(n)
            _kill_zygotes(arena)
        assert arena.run("'alive'").text == "alive"
        assert "Traceback" not in arena.stderr()


# Unreadable directories come last: the server ends a run with such directories at the next check of
# its disk usage.
LITTER = """
import os
os.makedirs('a/b/c')
here = os.getcwd()
for _ in range(1500):
    os.mkdir('d')
    os.chdir('d')
os.chdir(here)
for n in range(3): os.makedirs(f'.up{n}/inner')
for folder in ('.', 'a', 'a/b'):
    os.mkdir(f'{folder}/blind', 0o300)
    open(f'{folder}/blind/file', 'w').close()
    os.mkdir(f'{folder}/closed', 0)
"""


KILLED, ENDED = signal.SIGKILL, signal.SIGTERM
STAYING = {"waiting": WAITING, "looping": LOOPING, "littering": LITTER + READY + WAITING}
TERMINATIONS = [
    ("forked", "waiting", KILLED, False),
    ("forked", "waiting", ENDED, False),
    ("forked", "looping", KILLED, False),
    ("forked", "littering", KILLED, False),
    ("spawned", "waiting", KILLED, False),
    ("spawned", "looping", KILLED, False),
]
# Excludes littering as an ordinary user: a server that cannot read a directory ends the run before
# the test does. tests/unit/test_scratch.py covers the removal of such files.
ALL_TERMINATIONS = [
    case
    for case in itertools.product(("forked", "spawned"), STAYING, (KILLED, ENDED), (False, True))
    if case[1] != "littering" or not case[3]
]


@pytest.mark.kernel
@pytest.mark.parametrize(
    ("launcher", "staying", "how", "as_user"), ALL_TERMINATIONS if NIGHTLY else TERMINATIONS
)
def test_a_killed_server_leaves_no_processes_or_files(
    launcher: str, staying: str, how: signal.Signals, as_user: bool
) -> None:
    code = STAYING[staying]
    with open_arena(Setup(launcher=launcher, as_user=as_user)) as arena:
        run = arena.start(code if READY in code else READY + code)
        assert eventually(lambda: arena.facts()["echoed"] == 1)
        with ProcessWatch(list_descendants(arena.process.pid)) as processes:
            arena.process.send_signal(how)
            assert processes.all_ended(), "a process outlived the server"
        arena.process.wait(TIMEOUT_SECONDS)
        assert isinstance(run.exception(TIMEOUT_SECONDS), ConnectionError)
        if launcher == "spawned":  # the next server cleans up
            with open_arena(Setup(scratch=arena.scratch, as_user=as_user)) as following:
                assert following.run("1").text == "1"
        assert eventually(lambda: not list(arena.scratch.iterdir())), sorted(
            arena.scratch.glob("*/*")
        )


def test_closing_a_server_ends_active_runs_and_deletes_their_files() -> None:
    with open_arena() as arena:
        runs = [arena.start(WAITING) for _ in range(5)]
        assert eventually(lambda: len(list_descendants(arena.process.pid)) >= 7)
        with ProcessWatch(list_descendants(arena.process.pid)) as processes:
            arena.close()
            assert processes.all_ended()
        assert list(arena.scratch.iterdir()) == []
        assert all(
            run.exception(TIMEOUT_SECONDS) or run.result().raised or run.result().is_error
            for run in runs
        )


def test_cleanup_tolerates_directories_that_disappear(tmp_path: Path) -> None:
    """A server removes the files of killed servers; they may disappear while it does."""
    stop = threading.Event()

    def come_and_go() -> None:
        while not stop.is_set():
            for number in range(20):
                (tmp_path / f"onetool-{MORE_THAN_ANY_PID}-{number}").mkdir()
            for number in range(20):
                with contextlib.suppress(OSError):
                    (tmp_path / f"onetool-{MORE_THAN_ANY_PID}-{number}").rmdir()

    flickering = threading.Thread(target=come_and_go)
    flickering.start()
    try:
        for _ in range(200):
            launch._sweep(str(tmp_path))
    finally:
        stop.set()
        flickering.join()


def test_cleanup_removes_only_directories_of_dead_servers(tmp_path: Path) -> None:
    dead, alive = (
        tmp_path / f"onetool-{MORE_THAN_ANY_PID}-x",
        tmp_path / f"onetool-{os.getppid()}-x",
    )
    others = [
        tmp_path / name for name in ("onetool-", "onetool-x-1", "onetool", "other-1-x", "onetool-1")
    ]
    for directory in (dead, alive, *others):
        (directory / "inner").mkdir(parents=True)
    launch._sweep(str(tmp_path))
    assert not dead.exists()
    assert alive.exists()
    assert all(directory.exists() for directory in others)


@pytest.mark.kernel
def test_finished_cells_do_not_accumulate() -> None:
    with open_arena() as arena:
        for n in range(50):
            assert arena.run(str(n)).text == str(n)
        assert eventually(lambda: len(list_descendants(arena.process.pid)) <= 1 + 1 + 2)


# --- missing features of the machine --------------------------------------------------------------

ISOLATION_BY_SETUP = {
    "everything": (Setup(), "landlock+seccomp"),
    "everything, required": (Setup(isolation="require"), "landlock+seccomp"),
    "everything, spawned": (Setup(launcher="spawned"), "landlock+seccomp"),
    "everything, an ordinary user": (Setup(as_user=True), "landlock+seccomp"),
    "isolation off": (Setup(isolation="off"), "process-only"),
    "isolation off, spawned": (Setup(isolation="off", launcher="spawned"), "process-only"),
    "no Landlock": (Setup(lacking=("landlock",)), "seccomp"),
    "no seccomp": (Setup(lacking=("seccomp",)), "landlock"),
    "neither": (Setup(lacking=("landlock", "seccomp")), "process-only"),
    "no way to drop capabilities": (Setup(lacking=("capabilities",)), "landlock+seccomp"),
}


def uses_sandboxes(setup: Setup) -> bool:
    """Return whether the server uses WebAssembly instead of the kernel: without Landlock, if the
    extra is installed.
    """
    return setup.launcher == "forked" and "landlock" in setup.lacking and not find_wasm_problem()


@pytest.mark.sampled(3)
@pytest.mark.kernel
@pytest.mark.parametrize("machine", ISOLATION_BY_SETUP)
def test_health_reports_the_isolation_in_effect(machine: str) -> None:
    setup, sandbox = ISOLATION_BY_SETUP[machine]
    with open_arena(setup) as arena:
        *notes, reported = arena.run("__format__ = 'json'\not.health()['isolation']").blocks
        if uses_sandboxes(setup):
            assert (json.loads(reported), notes) == ({"cells": "wasm", "sandbox": "wasm"}, [])
            return
        assert json.loads(reported) == {"cells": setup.launcher, "sandbox": sandbox}
        is_noted = sandbox != "landlock+seccomp" and setup.isolation != "off"
        assert len(notes) == is_noted
        assert all(
            note.startswith("Note: code runs with") or "partial isolation" in note for note in notes
        )
        assert ("PermissionError" in arena.run("import socket\nsocket.socket()").text) == (
            "seccomp" in sandbox
        )
        assert ("PermissionError" in arena.run("open('/etc/passwd')").text) == (
            "landlock" in sandbox
        )


@pytest.mark.kernel
@pytest.mark.parametrize(
    ("lacking", "expected"),
    [
        (("landlock",), "does not support landlock\n"),
        (("seccomp",), "does not support seccomp\n"),
        (("landlock", "seccomp"), "does not support landlock and seccomp\n"),
    ],
    ids=["landlock", "seccomp", "both"],
)
@pytest.mark.parametrize("launcher", ["forked", "spawned"])
def test_runs_fail_if_a_required_isolation_layer_is_missing(
    lacking: tuple[str, ...], expected: str, launcher: str
) -> None:
    setup = Setup(isolation="require", lacking=lacking, launcher=launcher)
    with open_arena(setup) as arena:
        for _ in range(2):
            answer = arena.run("open('/tmp/rsec_ran', 'w')\n'ran'")
            assert answer.is_error
            expected = "FileNotFoundError" if uses_sandboxes(setup) else expected
            assert expected in answer.text
            assert uses_sandboxes(setup) or "execution.isolation" in answer.text
        assert not (arena.folder / "rsec_ran").exists()


@pytest.mark.kernel
def test_a_run_cannot_forge_the_reported_isolation() -> None:
    lie = """
import os
own = next(n for n in range(3, 128) if os.path.lexists(f'/proc/self/fd/{n}'))
os.write(own, b'{"method":"ready","params":{"layers":[]}}' + bytes([10]))
"""
    with open_arena() as arena:
        arena.run(lie)
        assert "landlock+seccomp" in arena.run("ot.health()").text


@pytest.mark.kernel
def test_limits_apply_without_isolation() -> None:
    with open_arena(Setup(isolation="off", timeouts={"brief": 2.0, "patient": 20.0})) as arena:
        assert "MemoryError" in arena.run("'x' * (1 << 40)").text
        assert "longer than 2 s" in arena.run("while True: pass", "brief").text


@pytest.mark.kernel
def test_children_of_a_run_without_isolation_die_with_it() -> None:
    code = """
import os, sys, time
child = os.fork()
if child == 0:
    time.sleep(60)
    os._exit(0)
child
"""
    with open_arena(Setup(isolation="off")) as arena:
        child = int(arena.run(code).text)
        assert eventually(lambda: _read_state(child) in {"gone", "Z"})


# --- disks and homes ------------------------------------------------------------------------------


NO_SPACE = "No space left on device"


class TinyDisk:
    """A file system of a few kilobytes."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def fill(self) -> None:
        """Use up all space, then all inodes."""
        for content in (bytes(4096), b""):
            for number in range(10_000):
                try:
                    (self.path / f"filler{len(content)}-{number}").write_bytes(content)
                except OSError:
                    break

    def free(self) -> None:
        for file in self.path.glob("filler*"):
            file.unlink()


def read_problems(arena: Arena) -> str:
    return arena.run("ot.health()['problems']").text


@pytest.fixture
def tiny_disk(tmp_path: Path) -> Iterator[TinyDisk]:
    if not IS_ROOT:
        pytest.skip("only root can mount a small file system to fill")
    path = tmp_path / "tiny"
    path.mkdir()
    libc = ctypes.CDLL(None, use_errno=True)
    if (
        libc.mount(b"none", str(path).encode(), b"tmpfs", 0, b"size=256k,nr_inodes=64,mode=777")
        != 0
    ):
        skip_or_fail(
            f"a small file system cannot be mounted here: {os.strerror(ctypes.get_errno())}"
        )
    try:
        yield TinyDisk(path)
    finally:
        subprocess.run(["umount", "-l", str(path)], check=True)


@pytest.mark.kernel  # the runtime of a WebAssembly sandbox needs a larger disk
def test_a_run_that_fills_the_disk_gets_the_error(tiny_disk: TinyDisk) -> None:
    with open_arena(Setup(scratch=tiny_disk.path)) as arena:
        answer = arena.run("open('file', 'wb').write(bytes(1 << 20))")
        assert NO_SPACE in answer.text
        assert arena.run("1 + 1").text == "2"


@pytest.mark.kernel  # see above
def test_a_full_disk_fails_new_runs_but_not_active_ones(tiny_disk: TinyDisk) -> None:
    with open_arena(Setup(scratch=tiny_disk.path)) as arena:
        assert arena.run("1 + 1").text == "2"
        assert (
            arena.run("import time\ntime.sleep(0)\n3").text == "3"
        )  # the first run searches for a pack named time
        under_way = arena.start(
            "import time\nopen('begun', 'w').close()\ntime.sleep(2.5)\n'blocked_signals'"
        )
        assert eventually(lambda: list(tiny_disk.path.rglob("begun")))
        answers = []
        for _ in range(20):
            tiny_disk.fill()  # an ending cell frees space for a new one
            answers.append(arena.run("2 + 2"))
        assert not [
            answer.text for answer in answers if answer.text != "4" and NO_SPACE not in answer.text
        ]
        assert any(answer.is_error for answer in answers)
        assert not [answer for answer in answers if "Traceback" in answer.text]
        assert under_way.result(TIMEOUT_SECONDS).text == "blocked_signals"
        tiny_disk.free()
        assert arena.run("3 + 3").text == "6"


def test_a_disk_that_is_full_at_startup_is_reported_or_avoided(tiny_disk: TinyDisk) -> None:
    tiny_disk.fill()
    with open_arena(Setup(scratch=tiny_disk.path)) as arena:
        answer = arena.run("1 + 1")  # Python uses another temporary directory if one exists
        assert answer.raised is None, answer
        assert answer.text == "2" or NO_SPACE in answer.text
        tiny_disk.free()
        assert arena.run("2 + 2").text == "4"


def test_runs_succeed_and_health_warns_if_the_log_is_unwritable(tiny_disk: TinyDisk) -> None:
    with open_arena(Setup(home=tiny_disk.path / "home")) as arena:
        tiny_disk.fill()
        assert arena.run("1 + 1").text == "2"
        assert eventually(lambda: "cannot write the log" in read_problems(arena))
        tiny_disk.free()
        assert arena.run("1 + 1").text == "2"
        # Each run is logged, so runs without a pause would fill the disk again.
        assert eventually(lambda: "cannot write the log" not in read_problems(arena), pause=0.5)


def test_runs_succeed_if_the_home_directory_is_unwritable(tmp_path: Path) -> None:
    home = {"HOME": "/proc/nobody/home", "PATH": os.environ["PATH"], "TMPDIR": str(tmp_path)}
    code = "[1 + 1, ot.health()['problems']]"
    done = subprocess.run(
        [PROGRAM, "run", code],
        env=home,
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("[2,")
    assert "Traceback" not in done.stderr


# --- a server that stays small and quick ----------------------------------------------------------


def _flood_without_reading(size: int, times: int) -> str:
    return f"""
import json, os
own = next(n for n in range(3, 128) if os.path.lexists(f'/proc/self/fd/{{n}}'))
call = {{'id': 1, 'method': 'call', 'params': {{'name': 'demo.echo', 'args': ['x' * {size}], 'kwargs': {{}}}}}}
line = memoryview(json.dumps(call).encode() + b'\\n')
for _ in range({times}):
    left = line
    while left: left = left[os.write(own, left):]
"""


GREEDY = {
    "unread responses": _flood_without_reading(1_000_000, 1500),
    "names of a megabyte": (
        _flood_without_reading(10, 100).replace("'demo.echo'", "'x' * 1_000_000")
    ),
    "a value of many small items": (
        """
import os
own = next(n for n in range(3, 128) if os.path.lexists(f'/proc/self/fd/{n}'))
left = memoryview(b'{"id":1,"result":{"has_value":true,"format":null,"from_ot":false,"value":[[]'
                  + b',[]' * 30_000_000 + b']}}\\n')
while left: left = left[os.write(own, left):]
"""
    ),
}


def test_very_long_tool_names_are_truncated_in_errors() -> None:
    with open_arena() as arena:
        called = "try: ot.call('x' * 1_000_000)\n    except Exception: pass"
        assert arena.run(f"for _ in range(5):\n    {called}\n1/0").length < 50_000


@pytest.mark.sampled(2)
@pytest.mark.kernel
@pytest.mark.parametrize("greed", GREEDY)
def test_a_flooding_run_costs_little_memory_and_does_not_delay_others(greed: str) -> None:
    with open_arena(Setup(timeouts={"brief": 4.0, "patient": 20.0})) as arena:
        arena.run("1")
        before = arena.facts()["peak_kb"]
        for _ in range(3):  # a busy machine may delay a neighbor once
            greedy = arena.start(GREEDY[greed], "brief", shown=100)
            slowest, largest, began = 0.0, 0, time.monotonic()
            while not greedy.done():
                started = time.monotonic()
                assert arena.run("demo.echo('here')").text == "here"
                slowest = max(slowest, time.monotonic() - started)
                largest = max(largest, arena.facts()["peak_kb"])
            lasted = time.monotonic() - began
            cost = (
                f"{(largest - before) // 1024} MB, and a neighbor waited {slowest:.1f} s of"
                f" {lasted:.1f}"
            )
            assert largest - before < 600_000, cost
            if slowest < lasted / 2:  # a blocked run would wait for the whole duration
                return
        pytest.fail(cost)


def test_a_run_cannot_silence_the_log() -> None:
    with open_arena() as arena:
        arena.run("try: ot.call(chr(0xd800))\nexcept Exception: pass")
        arena.run("demo.echo('after')")
        log = arena.home / ".onetool" / "logs" / "onetool.log"
        assert eventually(
            lambda: (
                log.exists() and "demo.echo" in log.read_text(encoding="utf-8", errors="replace")
            )
        )
        assert "Traceback" not in arena.stderr()


def test_child_processes_do_not_inherit_the_servers_secrets() -> None:
    with open_arena() as arena:
        arena.run("1")
        texts = [
            _read_environment_and_arguments(child)
            for child in list_descendants(arena.process.pid) - {arena.process.pid}
        ]
        assert texts
        assert not [text for text in texts if "SENTINEL" in text]


def _read_environment_and_arguments(process: int) -> str:
    parts = []
    for name in ("environ", "cmdline"):
        with contextlib.suppress(OSError):
            parts.append(Path(f"/proc/{process}/{name}").read_bytes().decode(errors="replace"))
    return "\n".join(parts)


@pytest.mark.kernel
def test_each_kind_of_failure_has_its_own_error_code() -> None:
    with open_arena(Setup(timeouts={"brief": 1.0, "patient": 20.0})) as arena:
        outcomes: list[Outcome] = [
            arena.run("1"),
            arena.run("1 / 0"),
            arena.run("while True: pass", "brief"),
            arena.run("for _ in range(2000): demo.echo('x')"),
        ]
    assert [outcome.error for outcome in outcomes] == [
        None,
        "execution_error",
        "timeout",
        "budget_exceeded",
    ]


@pytest.mark.kernel
def test_a_cancelled_zygote_start_leaks_no_descriptors_or_processes() -> None:
    """Close the server while its first cell is starting."""
    options = {"memory_bytes": 1 << 29, "file_bytes": 1 << 20, "isolation": "auto"}

    async def start_and_cancel(turns: int) -> None:
        launcher = launch.ZygoteLauncher(options, lambda *_: None, lambda _: None)
        starting = asyncio.ensure_future(launcher._ensure_started())
        for _ in range(turns):
            await asyncio.sleep(0)
        starting.cancel()
        await asyncio.wait([starting])
        await launcher.close()

    async def cancel_at_several_moments() -> None:
        await start_and_cancel(9)  # start threads, which keep descriptors open
        before, children = count_descriptors(), list_children(os.getpid())
        for turns in range(9):
            await start_and_cancel(turns)
        assert count_descriptors() == before
        assert list_children(os.getpid()) == children

    asyncio.run(cancel_at_several_moments())


def count_descriptors() -> int:
    return len(list(Path("/proc/self/fd").iterdir()))
