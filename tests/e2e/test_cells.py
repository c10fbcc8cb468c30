"""The life of cells: a fresh process for every run, gone when it is over, whatever run, zygote or server did.

Where the server itself has to die or to lack something, it is a process of its own (`arena`); elsewhere it is in this
one, so that tools can hold a run at a place of the test's choosing.
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
    PROGRAM,
    TIMEOUT_SECONDS,
    App,
    ProcessWatch,
    eventually,
    list_children,
    list_descendants,
    open_app,
)

from onetool.runner import launch
from onetool.runner.answer import Answer

pytestmark = pytest.mark.skipif(not hasattr(os, "pidfd_open"), reason="processes are watched the way of Linux")

MANY = 1000 if NIGHTLY else 100
MORE_THAN_ANY_PID = 1 << 23
QUICK = {"execution": {"timeout": 1.5}}
READY = "demo.echo('there')\n"
WAITING = "import time\ntime.sleep(60)"
LOOPING = "import signal\nsignal.setitimer(signal.ITIMER_REAL, 0)\nwhile True: pass"


class Gate:
    """A tool that holds a run until the test lets it go."""

    def __init__(self) -> None:
        self.reached, self._open = threading.Semaphore(0), threading.Event()

    def wait(self) -> str:
        """Wait until the test says so."""
        self.reached.release()
        return "let go" if self._open.wait(TIMEOUT_SECONDS) else "forgotten"

    def open(self) -> None:
        self._open.set()


@pytest.fixture(scope="module")
def app() -> Iterator[App]:
    with open_app(tools=[_named("demo.echo", lambda text: text)]) as app:
        yield app


@pytest.fixture(scope="module")
def brief() -> Iterator[App]:
    with open_app({"execution": {"timeout": 1.5, "max_output_bytes": 1 << 20}}) as app:
        yield app


def _named(name: str, function: Callable[..., object]) -> object:
    from onetool.bus.adapt import function_tool

    return function_tool(function, name)


def _waiting_for(gate: Gate, app: App, before: str = "") -> Future[Answer]:
    """A run that stands at the gate."""
    run = app.start(f"{before}\n[gate.wait(), 'untouched']")
    assert gate.reached.acquire(timeout=TIMEOUT_SECONDS)
    return run


@contextlib.contextmanager
def _gated(settings: Mapping[str, Any] | None = None) -> Iterator[tuple[App, Gate]]:
    gate = Gate()
    with open_app(settings, [_named("gate.wait", gate.wait), _named("demo.echo", lambda text: text)]) as app:
        yield app, gate
        gate.open()


# --- each run alone --------------------------------------------------------------------------------------------------


def test_every_run_is_a_process_of_its_own(app: App) -> None:
    assert len({app.value("import os; os.getpid()") for _ in range(10)}) == 10


def test_what_a_run_does_to_its_python_is_gone_with_it(app: App) -> None:
    app.run("import builtins, sys\nbuiltins.len = None\nsys.modules['json'] = None\nkept = 1\nsys.path.clear()")
    assert app.value("import json\n[len('abc'), 'kept' in globals(), json.dumps(1)]") == '[3,false,"1"]'


def test_what_a_run_writes_is_gone_with_it(app: App) -> None:
    assert app.value("open('file', 'w').write('x')\nimport os\nos.listdir('.')") == '["file"]'
    assert app.value("import os\nos.listdir('.')") == "[]"


def test_the_line_shown_is_the_line_of_the_error_whatever_breaks_are_in_texts(app: App) -> None:
    assert "line 3: 1 / 0" in app.failure("x = '\x0c\x1c\x85\u2028'\n\n1 / 0")


def test_every_run_throws_its_own_dice(app: App) -> None:
    code = "import random, tempfile, uuid\n[random.random(), str(uuid.uuid4()), tempfile.mktemp()]"
    thrown = [app.data(code) for _ in range(5)]
    assert all(len({each[place] for each in thrown}) == 5 for place in range(3))


def test_what_was_never_imported_is_random_too(app: App) -> None:
    assert len({app.value("import secrets\nsecrets.token_hex(8)") for _ in range(5)}) == 5


def test_many_runs_at_once_all_finish_and_none_has_the_answer_of_another(app: App) -> None:
    codes = [f"print({n})\n[demo.echo('{n}') for _ in range(3)]" for n in range(MANY)]
    answers = [future.result(TIMEOUT_SECONDS * 6) for future in [app.start(code) for code in codes]]
    expected = [(f"{n}\n", f'["{n}","{n}","{n}"]') for n in range(MANY)]
    assert [answer.blocks for answer in answers] == expected


def test_more_runs_than_may_be_under_way_wait_for_their_turn() -> None:
    gate = threading.Semaphore(0)

    def meet() -> str:
        gate.acquire(timeout=TIMEOUT_SECONDS * 3)
        return "met"

    with open_app(tools=[_named("gate.meet", meet)]) as app:
        runs = [app.start(f"import os\n[{n}, len(os.listdir('.'))]") for n in range(140)]
        held = [app.start("gate.meet()") for _ in range(40)]
        gate.release(40)
        texts = [run.result(TIMEOUT_SECONDS * 6).text for run in (*runs, *held)]
    assert texts == [*(f"[{n},0]" for n in range(140)), *(["met"] * 40)]


def test_every_run_that_may_be_under_way_can_be_at_the_same_time() -> None:
    """The limit of the zygote's own descriptors is none of the limit of runs."""
    everybody = threading.Barrier(128)

    async def meet() -> str:
        await asyncio.to_thread(everybody.wait, TIMEOUT_SECONDS * 3)
        return "met"

    from concurrent.futures import ThreadPoolExecutor

    with open_app(tools=[_named("everybody.meet", meet)]) as app:
        pool = ThreadPoolExecutor(200)
        app.portal.call(_use_pool, pool)
        runs = [app.start("everybody.meet()") for _ in range(128)]
        texts = [run.result(TIMEOUT_SECONDS * 5).text for run in runs]
        pool.shutdown()
    assert texts == ["met"] * 128


async def _use_pool(pool: object) -> None:
    asyncio.get_running_loop().set_default_executor(pool)  # type: ignore[arg-type]


def test_an_answer_is_never_lost_to_the_end_of_its_process(app: App) -> None:
    """A cell ends right after it answered; which of the two is noticed first must not matter."""
    runs = 3000 if NIGHTLY else 600
    texts: list[str] = []
    for batch in range(runs // 20):
        started = [app.start(f"demo.echo('{batch}')") for _ in range(20)]
        texts += [run.result(TIMEOUT_SECONDS).text for run in started]
    assert [text for place, text in enumerate(texts) if text != str(place // 20)] == []


def test_threads_of_a_run_call_tools_side_by_side() -> None:
    everybody = threading.Barrier(8)

    def meet(number: int) -> int:
        everybody.wait(TIMEOUT_SECONDS)
        return number

    code = "from concurrent.futures import ThreadPoolExecutor as Pool\nlist(Pool(8).map(demo.meet, range(8)))"
    with open_app(tools=[_named("demo.meet", meet)]) as app:
        assert app.value(code) == "[0,1,2,3,4,5,6,7]"


def test_calls_of_many_threads_in_many_runs_are_never_crossed(app: App) -> None:
    code = """
from concurrent.futures import ThreadPoolExecutor as Pool
words = [f'{run}-{n}' for n in range(100)]
list(Pool(8).map(demo.echo, words)) == words
"""
    runs = [app.start(f"run = {n}\n{code}") for n in range(10)]
    assert [run.result(TIMEOUT_SECONDS * 3).text for run in runs] == ["True"] * 10


# --- runs that go wrong, and the run beside them ---------------------------------------------------------------------

DISASTERS = {
    "an exit": ("raise SystemExit(3)", "SystemExit: 3"),
    "an exit in a function": ("import sys\ndef f(): sys.exit('over')\nf()", "SystemExit: over\n  line 2"),
    "an exit past Python": ("import os; os._exit(9)", "its process exited with status 9"),
    "a crash": ("import ctypes; ctypes.string_at(0)", "its process was killed by SIGSEGV (a crash)"),
    "closed descriptors": ("import os; os.closerange(0, 9999)", "the run ended without a response"),
    "an endless loop": ("x = 1\nwhile True:\n    x += 1", "longer than 1.5 s\n  line "),
    "an endless loop in C": ("sum(range(10**12))", "the run took longer than 1.5 s"),
    "endless printing": ("while True: print('x' * 100)", "printed more than 1048576 bytes"),
    "no memory": ("x = 'x' * (1 << 40)", "line 1: x = 'x' * (1 << 40)\nThe run exceeded its memory limit"),
    "a fork": ("import os\nos.fork()", "PermissionError: [Errno 1] Operation not permitted\n  line 2"),
    "a program": ("import os\nos.system('true') and 1/0", "Error"),
    "a network": ("import socket\nsocket.socket()", "PermissionError"),
    "the parent's death": ("import os\nos.kill(os.getppid(), 9)", "PermissionError"),
    "a thread left behind": ("import threading, time\nthreading.Thread(target=time.sleep, args=[99]).start()", "None"),
    "an unknown name": ("nonsense", "NameError: name 'nonsense' is not defined\n  line 1: nonsense"),
    "wrong syntax": ("x = 1\nfor", "SyntaxError: invalid syntax\n  line 2: for"),
    "NUL bytes": ("x = 1\0", "null bytes"),
    "a lone surrogate": ("x = '\ud800'\nx", "\\ud800"),
    "deep brackets": ("(" * 100000, "too many nested parentheses"),
    "deep operators": ("-" * 100000 + "1", "Error"),
}


@pytest.mark.parametrize("disaster", DISASTERS)
def test_a_run_that_goes_wrong_says_so_and_its_neighbour_does_not_notice(disaster: str) -> None:
    code, words = DISASTERS[disaster]
    is_endless = "longer" in words
    with _gated({"execution": {"timeout": 1.5 if is_endless else 60, "max_output_bytes": 1 << 20}}) as (app, gate):
        neighbour = None if is_endless else _waiting_for(gate, app)
        wrong = app.start(code)
        while not wrong.done():
            assert app.value("'untouched'") == "untouched"
        gate.open()
        assert words in wrong.result().text
        assert neighbour is None or neighbour.result(TIMEOUT_SECONDS).text == '["let go","untouched"]'


def test_the_line_of_an_endless_loop_is_the_line_it_was_in(brief: App) -> None:
    text = brief.failure("def spin():\n    while True:\n        pass\n\nspin()")
    assert "line 2: while True:" in text or "line 3: pass" in text


def test_a_run_that_turns_its_alarm_off_ends_within_the_grace_all_the_same() -> None:
    def seconds(app: App) -> float:
        started = time.monotonic()
        assert "longer than 2 s and was ended" in app.failure(LOOPING)
        return time.monotonic() - started

    with open_app({"execution": {"timeout": 2}}) as app:
        app.value("1")
        assert min(seconds(app) for _ in range(2)) < 2 + 0.2 + 2  # the timeout, the grace, a busy machine


def test_a_run_that_was_cut_off_still_shows_what_it_printed(brief: App) -> None:
    answer = brief.run("print('before')\nwhile True: pass")
    assert answer.is_error
    assert answer.blocks[0] == "before\n"


def test_a_crash_still_shows_what_was_printed_and_called() -> None:
    with open_app(tools=[_named("demo.echo", lambda text: text)]) as app:
        answer = app.run("print('before', flush=True)\ndemo.echo('x')\nimport os\nos._exit(1)")
    assert answer.blocks[0] == "before\n"
    assert "Calls already made: demo.echo (ok)" in answer.text


@pytest.mark.parametrize("code", ["import os\nos._exit(0)", "raise MemoryError", "import os\nos.abort()"])
def test_a_cell_that_dies_is_not_missed(app: App, code: str) -> None:
    for _ in range(20):
        app.run(code)
    assert app.value("1 + 1") == "2"


# --- neighbours ------------------------------------------------------------------------------------------------------


def test_the_scratch_folder_of_a_neighbour_is_closed() -> None:
    with _gated() as (app, gate):
        neighbour = _waiting_for(gate, app, "open('secret', 'w').write('mine')\nimport os\nprint(os.getcwd())")
        tried = app.value(
            """
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
"""
        )
        gate.open()
        assert tried == "[[],[]]"
        assert neighbour.result(TIMEOUT_SECONDS).blocks[-1] == '["let go","untouched"]'


def test_what_a_neighbour_writes_to_descriptor_1_cannot_be_read() -> None:
    with _gated() as (app, gate):
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


def test_what_a_run_does_to_descriptor_1_is_its_own_affair(app: App) -> None:
    app.run("import os\nfor n in (1, 2): os.set_blocking(n, False)")
    assert app.value("import os\n[os.get_blocking(1), os.get_blocking(2)]") == "[true,true]"


def test_a_run_that_fills_descriptor_1_keeps_no_neighbour_waiting() -> None:
    with _gated(QUICK) as (app, _gate):
        flood = app.start("import os\nwhile True: os.write(1, b'x' * 65536)")
        texts = [app.value("import os\nos.write(2, b'y'); 'done'") for _ in range(20)]
        assert texts == ["done"] * 20
        assert "longer than" in flood.result(TIMEOUT_SECONDS).text


# --- cancelling ------------------------------------------------------------------------------------------------------


def test_a_cancelled_run_is_ended_at_once_and_the_next_one_works() -> None:
    with open_arena() as place:
        run = place.start("import time\ntime.sleep(60)", ident="sleeper")
        assert eventually(lambda: _busy(place))
        before = list_descendants(place.process.pid)
        place.cancel("sleeper")
        assert run.result(TIMEOUT_SECONDS).raised == "cancelled"
        assert place.run("1 + 1").text == "2"
        with ProcessWatch(before - {place.process.pid}) as _:
            assert eventually(lambda: len(list_descendants(place.process.pid)) <= 4)


def _busy(place: Arena) -> bool:
    return len(list_descendants(place.process.pid)) > 3


def test_a_cancelled_run_cancels_the_tool_it_waits_for() -> None:
    cancelled, entered = threading.Event(), threading.Event()

    async def slow() -> None:
        entered.set()
        try:
            await asyncio.sleep(60)
        except asyncio.CancelledError:
            cancelled.set()
            raise

    with open_app(tools=[_named("demo.slow", slow)]) as app:
        run = app.start("demo.slow()")
        assert entered.wait(TIMEOUT_SECONDS)
        run.cancel()
        assert cancelled.wait(TIMEOUT_SECONDS)
        assert app.value("1") == "1"


def test_runs_cancelled_before_they_began_leave_no_process_behind() -> None:
    """Whatever the moment: while the zygote starts, while the cell gets ready, while the code is on its way."""
    with open_arena() as place:
        for n in range(30):
            run = place.start("import time\ntime.sleep(60)", ident=f"run{n}")
            place.cancel(f"run{n}")
            assert run.result(TIMEOUT_SECONDS).raised == "cancelled"
        assert place.run("'alive'").text == "alive"
        few = 1 + 1 + 2 + 1  # server, zygote, waiting cells, and one that is about to go
        assert eventually(lambda: len(list_descendants(place.process.pid)) <= few), list_descendants(place.process.pid)


def test_a_client_that_waits_no_longer_frees_its_cell() -> None:
    async def impatient(app: App) -> None:
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(0.2):
                await app.onetool.run("while True: pass")

    with open_app() as app:
        mine = os.getpid()
        app.value("1")
        resting = len(list_descendants(mine))
        app.portal.call(impatient, app)
        assert app.value("2") == "2"
        assert eventually(lambda: len(list_descendants(mine)) <= resting + 1)


# --- the death of the zygote and of the server -----------------------------------------------------------------------


def test_runs_in_flight_fail_clearly_when_the_zygote_dies_and_the_next_run_works() -> None:
    with open_arena() as place:
        runs = [place.start(READY + WAITING) for _ in range(3)]
        assert eventually(lambda: place.facts()["echoed"] == 3)
        with ProcessWatch(list_descendants(place.process.pid) - {place.process.pid}) as cells:
            _kill_zygotes(place)
            texts = [run.result(TIMEOUT_SECONDS).text for run in runs]
            assert cells.all_ended()
        said = "ToolError: the run ended without a response: its process is gone\nCalls already made: demo.echo (ok)"
        assert texts == [said] * 3
        assert place.run("1 + 1").text == "2"
        assert eventually(lambda: not _zombies(place)), "the dead zygote was never waited for"


def test_a_run_of_which_nothing_was_seen_yet_is_done_over_when_the_zygote_dies() -> None:
    with open_arena() as place:
        place.run("1")
        assert eventually(lambda: len(list_descendants(place.process.pid)) >= 1 + 1 + 1)
        for process in list_descendants(place.process.pid) - {place.process.pid}:
            os.kill(process, signal.SIGSTOP)  # so that no cell reads what is sent to it
        runs = [place.start("'done'") for _ in range(3)]
        _kill_zygotes(place)
        assert [run.result(TIMEOUT_SECONDS).text for run in runs] == ["done"] * 3


def _kill_zygotes(place: Arena) -> None:
    for zygote in list_children(place.process.pid):
        with contextlib.suppress(ProcessLookupError):  # the one from the time before
            os.kill(zygote, signal.SIGKILL)


def _zombies(place: Arena) -> list[int]:
    return [child for child in list_children(place.process.pid) if _state(child) == "Z"]


def _state(process: int) -> str:
    try:
        return Path(f"/proc/{process}/stat").read_text(encoding="ascii", errors="replace").rpartition(")")[2].split()[0]
    except OSError:
        return "gone"


def test_the_zygote_may_die_again_and_again() -> None:
    with open_arena() as place:
        for n in range(5):
            assert place.run(str(n)).text == str(n)
            _kill_zygotes(place)
        assert place.run("'alive'").text == "alive"
        assert "Traceback" not in place.stderr()


# The directories that cannot be looked into come last: a run that has such is ended at the next look at its disk.
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
FATES = [
    ("forked", "waiting", KILLED, False),
    ("forked", "waiting", ENDED, False),
    ("forked", "looping", KILLED, False),
    ("forked", "littering", KILLED, False),
    ("spawned", "waiting", KILLED, False),
    ("spawned", "looping", KILLED, False),
]
# Not as an ordinary user who litters: a server that cannot look into a folder ends the run before anybody kills it.
# That such a user's litter can be removed is shown in tests/unit/test_scratch.py.
ALL_FATES = [
    fate
    for fate in itertools.product(("forked", "spawned"), STAYING, (KILLED, ENDED), (False, True))
    if fate[1] != "littering" or not fate[3]
]


@pytest.mark.parametrize(("launcher", "staying", "how", "as_user"), ALL_FATES if NIGHTLY else FATES)
def test_nothing_is_left_of_a_server_that_was(launcher: str, staying: str, how: signal.Signals, as_user: bool) -> None:
    code = STAYING[staying]
    with open_arena(Setup(launcher=launcher, as_user=as_user)) as place:
        run = place.start(code if READY in code else READY + code)
        assert eventually(lambda: place.facts()["echoed"] == 1)
        with ProcessWatch(list_descendants(place.process.pid)) as everybody:
            place.process.send_signal(how)
            assert everybody.all_ended(), "a process outlived the server"
        place.process.wait(TIMEOUT_SECONDS)
        assert isinstance(run.exception(TIMEOUT_SECONDS), ConnectionError)
        if launcher == "spawned":  # nobody is left to clean up: the next server does
            with open_arena(Setup(scratch=place.scratch, as_user=as_user)) as following:
                assert following.run("1").text == "1"
        assert eventually(lambda: not list(place.scratch.iterdir())), sorted(place.scratch.glob("*/*"))


def test_closing_while_runs_are_under_way_ends_them_and_leaves_nothing() -> None:
    with open_arena() as place:
        runs = [place.start(WAITING) for _ in range(5)]
        assert eventually(lambda: len(list_descendants(place.process.pid)) >= 7)
        with ProcessWatch(list_descendants(place.process.pid)) as everybody:
            place.close()
            assert everybody.all_ended()
        assert list(place.scratch.iterdir()) == []
        assert all(run.exception(TIMEOUT_SECONDS) or run.result().raised or run.result().is_error for run in runs)


def test_servers_that_start_while_others_end_do_not_trip_over_each_other(tmp_path: Path) -> None:
    """A server sweeps up after those that were killed; what it sees may be gone when it looks again."""
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


def test_a_server_sweeps_up_after_the_dead_and_leaves_the_living_alone(tmp_path: Path) -> None:
    dead, alive = tmp_path / f"onetool-{MORE_THAN_ANY_PID}-x", tmp_path / f"onetool-{os.getppid()}-x"
    others = [tmp_path / name for name in ("onetool-", "onetool-x-1", "onetool", "other-1-x", "onetool-1")]
    for folder in (dead, alive, *others):
        (folder / "inner").mkdir(parents=True)
    launch._sweep(str(tmp_path))
    assert not dead.exists()
    assert alive.exists()
    assert all(folder.exists() for folder in others)


def test_cells_that_answered_do_not_pile_up() -> None:
    with open_arena() as place:
        for n in range(50):
            assert place.run(str(n)).text == str(n)
        assert eventually(lambda: len(list_descendants(place.process.pid)) <= 1 + 1 + 2)


# --- what a machine may lack -----------------------------------------------------------------------------------------

TRUTHS = {
    "everything": (Setup(), "landlock+seccomp"),
    "everything, required": (Setup(isolation="require"), "landlock+seccomp"),
    "everything, spawned": (Setup(launcher="spawned"), "landlock+seccomp"),
    "everything, an ordinary user": (Setup(as_user=True), "landlock+seccomp"),
    "nothing wanted": (Setup(isolation="off"), "process-only"),
    "nothing wanted, spawned": (Setup(isolation="off", launcher="spawned"), "process-only"),
    "no Landlock": (Setup(lacking=("landlock",)), "seccomp"),
    "no seccomp": (Setup(lacking=("seccomp",)), "landlock"),
    "neither": (Setup(lacking=("landlock", "seccomp")), "process-only"),
    "no way to drop capabilities": (Setup(lacking=("capabilities",)), "landlock+seccomp"),
}


@pytest.mark.parametrize("machine", TRUTHS)
def test_health_tells_the_isolation_that_is_in_force(machine: str) -> None:
    setup, sandbox = TRUTHS[machine]
    with open_arena(setup) as place:
        told = json.loads(place.run("__format__ = 'json'\not.health()['isolation']").text)
        assert told == {"cells": setup.launcher, "sandbox": sandbox}
        assert ("PermissionError" in place.run("import socket\nsocket.socket()").text) == ("seccomp" in sandbox)
        assert ("PermissionError" in place.run("open('/etc/passwd')").text) == ("landlock" in sandbox)


@pytest.mark.parametrize(
    ("lacking", "words"),
    [
        (("landlock",), "does not support landlock\n"),
        (("seccomp",), "does not support seccomp\n"),
        (("landlock", "seccomp"), "does not support landlock and seccomp\n"),
    ],
    ids=["landlock", "seccomp", "both"],
)
@pytest.mark.parametrize("launcher", ["forked", "spawned"])
def test_nothing_runs_where_isolation_is_required_and_a_layer_is_missing(
    lacking: tuple[str, ...], words: str, launcher: str
) -> None:
    with open_arena(Setup(isolation="require", lacking=lacking, launcher=launcher)) as place:
        for _ in range(2):
            answer = place.run("open('/tmp/rsec_ran', 'w')\n'ran'")
            assert answer.is_error
            assert words in answer.text
            assert "execution.isolation" in answer.text
        assert not (place.folder / "rsec_ran").exists()


def test_a_run_cannot_change_what_health_tells() -> None:
    lie = """
import os
own = next(n for n in range(3, 128) if os.path.lexists(f'/proc/self/fd/{n}'))
os.write(own, b'{"method":"ready","params":{"layers":[]}}' + bytes([10]))
"""
    with open_arena() as place:
        place.run(lie)
        assert "landlock+seccomp" in place.run("ot.health()").text


def test_limits_hold_without_isolation_too() -> None:
    with open_arena(Setup(isolation="off", timeouts={"brief": 2.0, "patient": 20.0})) as place:
        assert "MemoryError" in place.run("'x' * (1 << 40)").text
        assert "longer than 2 s" in place.run("while True: pass", "brief").text


def test_children_of_a_run_without_isolation_die_with_it() -> None:
    code = """
import os, sys, time
child = os.fork()
if child == 0:
    time.sleep(60)
    os._exit(0)
child
"""
    with open_arena(Setup(isolation="off")) as place:
        child = int(place.run(code).text)
        assert eventually(lambda: _state(child) in {"gone", "Z"})


# --- disks and homes -------------------------------------------------------------------------------------------------


NO_SPACE = "No space left on device"


class TinyDisk:
    """A file system of a few kilobytes."""

    def __init__(self, place: Path) -> None:
        self.place = place

    def fill(self) -> None:
        """First all of its space, then all of its names."""
        for content in (bytes(4096), b""):
            for number in range(10_000):
                try:
                    (self.place / f"filler{len(content)}-{number}").write_bytes(content)
                except OSError:
                    break

    def free(self) -> None:
        for file in self.place.glob("filler*"):
            file.unlink()


@pytest.fixture
def tiny_disk(tmp_path: Path) -> Iterator[TinyDisk]:
    if not IS_ROOT:
        pytest.skip("only root can mount a small file system to fill")
    place = tmp_path / "tiny"
    place.mkdir()
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.mount(b"none", str(place).encode(), b"tmpfs", 0, b"size=256k,nr_inodes=64,mode=777") != 0:
        skip_or_fail(f"a small file system cannot be mounted here: {os.strerror(ctypes.get_errno())}")
    try:
        yield TinyDisk(place)
    finally:
        subprocess.run(["umount", "-l", str(place)], check=True)


def test_a_run_that_finds_the_disk_full_is_told_so_itself(tiny_disk: TinyDisk) -> None:
    with open_arena(Setup(scratch=tiny_disk.place)) as place:
        answer = place.run("open('file', 'wb').write(bytes(1 << 20))")
        assert NO_SPACE in answer.text
        assert place.run("1 + 1").text == "2"


def test_a_full_disk_fails_new_runs_clearly_and_leaves_those_under_way_alone(tiny_disk: TinyDisk) -> None:
    with open_arena(Setup(scratch=tiny_disk.place)) as place:
        assert place.run("1 + 1").text == "2"
        assert place.run("import time\ntime.sleep(0)\n3").text == "3"  # looks once for a pack of that name
        under_way = place.start("import time\nopen('begun', 'w').close()\ntime.sleep(2.5)\n'blocked_signals'")
        assert eventually(lambda: list(tiny_disk.place.rglob("begun")))
        tiny_disk.fill()
        answers = [place.run("2 + 2") for _ in range(20)]  # a cell that ends makes room for one that begins
        assert not [answer.text for answer in answers if answer.text != "4" and NO_SPACE not in answer.text]
        assert any(answer.is_error for answer in answers)
        assert not [answer for answer in answers if "Traceback" in answer.text]
        assert under_way.result(TIMEOUT_SECONDS).text == "blocked_signals"
        tiny_disk.free()
        assert place.run("3 + 3").text == "6"


def test_a_disk_that_is_full_from_the_start_is_named_or_done_without(tiny_disk: TinyDisk) -> None:
    tiny_disk.fill()
    with open_arena(Setup(scratch=tiny_disk.place)) as place:
        answer = place.run("1 + 1")  # Python finds another folder for temporary things where there is one
        assert answer.raised is None, answer
        assert answer.text == "2" or NO_SPACE in answer.text
        tiny_disk.free()
        assert place.run("2 + 2").text == "4"


def test_a_log_that_cannot_be_written_fails_no_run_and_is_reported(tiny_disk: TinyDisk) -> None:
    with open_arena(Setup(home=tiny_disk.place / "home")) as place:
        tiny_disk.fill()
        assert place.run("1 + 1").text == "2"
        assert eventually(lambda: "cannot write the log" in place.run("ot.health()['problems']").text)
        tiny_disk.free()
        assert place.run("1 + 1").text == "2"
        assert eventually(lambda: "cannot write the log" not in place.run("ot.health()['problems']").text)


def test_a_home_that_cannot_be_written_fails_no_run_and_is_reported(tmp_path: Path) -> None:
    home = {"HOME": "/proc/nobody/home", "PATH": os.environ["PATH"], "TMPDIR": str(tmp_path)}
    code = "[1 + 1, ot.health()['problems']]"
    done = subprocess.run(
        [PROGRAM, "run", code], env=home, cwd=tmp_path, capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("[2,")
    assert "Traceback" not in done.stderr


# --- a server that stays small and quick -----------------------------------------------------------------------------


def _asked_and_never_read(size: int, times: int) -> str:
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
    "answers that nobody reads": _asked_and_never_read(1_000_000, 1500),
    "names of a megabyte": _asked_and_never_read(10, 100).replace("'demo.echo'", "'x' * 1_000_000"),
    "a value of many small things": """
import os
own = next(n for n in range(3, 128) if os.path.lexists(f'/proc/self/fd/{n}'))
left = memoryview(b'{"id":1,"result":{"has_value":true,"format":null,"from_ot":false,"value":[[]'
                  + b',[]' * 30_000_000 + b']}}\\n')
while left: left = left[os.write(own, left):]
""",
}


def test_names_of_a_megabyte_are_not_repeated_to_the_client() -> None:
    with open_arena() as place:
        called = "try: ot.call('x' * 1_000_000)\n    except Exception: pass"
        assert place.run(f"for _ in range(5):\n    {called}\n1/0").length < 50_000


@pytest.mark.parametrize("greed", GREEDY)
def test_a_greedy_run_costs_the_server_little_memory_and_its_neighbours_little_time(greed: str) -> None:
    with open_arena(Setup(timeouts={"brief": 4.0, "patient": 20.0})) as place:
        place.run("1")
        before = place.facts()["peak_kb"]
        greedy = place.start(GREEDY[greed], "brief", shown=100)
        slowest, largest, began = 0.0, 0, time.monotonic()
        while not greedy.done():
            started = time.monotonic()
            assert place.run("demo.echo('here')").text == "here"
            slowest = max(slowest, time.monotonic() - started)
            largest = max(largest, place.facts()["peak_kb"])
        lasted = time.monotonic() - began
        cost = f"{(largest - before) // 1024} MB, and a neighbour waited {slowest:.1f} s of {lasted:.1f}"
        assert largest - before < 600_000, cost
        assert slowest < lasted / 2, cost  # who was held up until the end would have waited for all of it


def test_a_run_cannot_silence_the_log() -> None:
    with open_arena() as place:
        place.run("try: ot.call(chr(0xd800))\nexcept Exception: pass")
        place.run("demo.echo('after')")
        log = place.home / ".onetool" / "logs" / "onetool.log"
        assert eventually(lambda: log.exists() and "demo.echo" in log.read_text(encoding="utf-8", errors="replace"))
        assert "Traceback" not in place.stderr()


def test_the_secrets_of_the_server_are_in_none_of_its_children() -> None:
    with open_arena() as place:
        place.run("1")
        texts = [
            _environment_and_arguments(child) for child in list_descendants(place.process.pid) - {place.process.pid}
        ]
        assert texts
        assert not [text for text in texts if "SENTINEL" in text]


def _environment_and_arguments(process: int) -> str:
    parts = []
    for name in ("environ", "cmdline"):
        with contextlib.suppress(OSError):
            parts.append(Path(f"/proc/{process}/{name}").read_bytes().decode(errors="replace"))
    return "\n".join(parts)


def test_outcomes_are_told_apart_by_what_happened() -> None:
    with open_arena(Setup(timeouts={"brief": 1.0, "patient": 20.0})) as place:
        outcomes: list[Outcome] = [
            place.run("1"),
            place.run("1 / 0"),
            place.run("while True: pass", "brief"),
            place.run("for _ in range(2000): demo.echo('x')"),
        ]
    assert [outcome.error for outcome in outcomes] == [None, "execution_error", "timeout", "budget_exceeded"]


def test_a_start_of_the_zygote_that_is_given_up_leaves_nothing_open() -> None:
    """The server is closed while its first cell is being made."""
    options = {"memory_bytes": 1 << 29, "file_bytes": 1 << 20, "isolation": "auto"}

    async def given_up(turns: int) -> None:
        launcher = launch.ZygoteLauncher(options, lambda *_: None, lambda _: None)
        starting = asyncio.ensure_future(launcher._ensure_started())
        for _ in range(turns):
            await asyncio.sleep(0)
        starting.cancel()
        await asyncio.wait([starting])
        await launcher.close()

    async def given_up_at_several_moments() -> None:
        await given_up(9)  # threads, and what they keep
        before, children = open_descriptors(), list_children(os.getpid())
        for turns in range(9):
            await given_up(turns)
        assert open_descriptors() == before
        assert list_children(os.getpid()) == children

    asyncio.run(given_up_at_several_moments())


def open_descriptors() -> int:
    return len(list(Path("/proc/self/fd").iterdir()))
