"""Test cells of runs that can be paused and replayed: equal seeds give equal values, and pauses
take no time.
"""

import asyncio
import json
import os
import time
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from tests.support import ISOLATION, TIMEOUT_SECONDS, eventually, list_descendants
from tests.workers_support import open_workers

from onetool.core.bus.bus import ToolBus
from onetool.core.python_backend import function_tool
from onetool.errors import ToolError, ToolTimeout
from onetool.processes.channel import Reply
from onetool.runs.cell_process import MEASURES_WORK, ProcessState, RunTimer
from onetool.runs.cells import NOT_ANSWERING, CellLimits, Cells
from onetool.runs.launch import SpawnLauncher
from onetool.util.context import CallClient, Result, ToolContext

CLOCK = 1_700_000_000.0
SEED, OTHER_SEED = "5eed" * 16, "0bad" * 16
NAMES = {"packs": {"ot": ["parallel"], "demo": ["call"]}, "tools": {}}
PROGRAM = """
import asyncio, os, pickle, queue, random, secrets, tempfile, threading, time, uuid
from datetime import date, datetime, timezone
from concurrent.futures import ThreadPoolExecutor

def draw():
    return [random.random(), random.randint(0, 10**9), random.Random().random(), secrets.token_hex(8),
            os.urandom(4).hex(), str(uuid.uuid4()), str(uuid.uuid1()), os.path.basename(tempfile.mktemp())]

def read():
    return [time.time(), time.time_ns(), time.monotonic(), time.perf_counter_ns(), time.process_time(), time.ctime(),
            time.strftime('%c'), time.localtime()[:6], repr(datetime.now()), str(datetime.now(timezone.utc)),
            str(datetime.today()), str(date.today())]

async def sleep():
    await asyncio.gather(asyncio.sleep(0.03), asyncio.sleep(0.02), asyncio.to_thread(draw))
    return await asyncio.wait_for(asyncio.to_thread(draw), 20)

def work(number):
    time.sleep(0.002 * number)
    found[number] = [draw(), read(), demo.call(number)]

found, moment = {}, datetime.now()
threads = [threading.Thread(target=work, args=[number]) for number in (3, 1, 2)]
for thread in threads: thread.start()
for thread in threads: thread.join()
with ThreadPoolExecutor(2) as pool:
    pooled = list(pool.map(lambda _: [draw(), read()], range(5)))
end = time.monotonic() + 0.2
while time.monotonic() < end: threading.Event().wait(0.01)
try: queue.Queue().get(timeout=0.02)
except queue.Empty: pass
assert type(pickle.loads(pickle.dumps(moment))) is datetime and isinstance(datetime.min, datetime)
{'drawn': [draw(), sorted(found.items()), pooled, ot.parallel([draw] * 40), asyncio.run(sleep())],
 'read': [read(), demo.call(4), read(), str(moment)], 'order': list({'a', 'b', 'c', 'delta', 'echo'})}
"""


class Host:
    """A host whose `demo.call` is a function of the test.

    `pauses` is how long each call waits for a person.
    """

    def __init__(self, answer: Callable[[Any], Awaitable[Result]], pauses: float = 0) -> None:
        self._answer, self._pauses = answer, pauses
        self.has_acted = False
        self.timer: RunTimer | None = None
        self.paused = asyncio.Event()

    async def request(self, method: str, params: dict[str, Any]) -> Result:
        if method != "call":
            return Result(ok=True, value={"packs": {}, "tools": {}})
        self.has_acted = True
        if self._pauses:
            assert self.timer is not None
            with self.timer.paused():
                self.paused.set()
                await asyncio.sleep(self._pauses)
        return await self._answer(*params["args"])

    def output(self, data: bytes) -> None: ...
    def value(self, data: bytes) -> None: ...
    def media(self, data: bytes) -> None: ...


async def answer_with_clock(number: int) -> Result:
    """Answer as the server does in a run that can be replayed."""
    return Reply(ok=True, value=number, members={"clock": CLOCK + 10 * number})


async def echo(value: Any) -> Result:
    return Result(ok=True, value=value)


def make_params(code: str, **more: Any) -> dict[str, Any]:
    return {"code": code, "names": NAMES, "format": None, **more}


def replay(seed: str = SEED, until: int = 0) -> dict[str, Any]:
    return {"seed": seed, "clock": CLOCK, "until": until}


async def run_once(
    params: dict[str, Any],
    answer: Callable[[Any], Awaitable[Result]] = answer_with_clock,
    launcher: Any = None,
) -> Any:
    async with Cells(
        CellLimits(isolation=ISOLATION, timeout=30, cells=1), make_launcher=launcher
    ) as cells:
        return (await cells.run(params, Host(answer)))["value"]


def run(
    params: dict[str, Any], answer: Callable[[Any], Awaitable[Result]] = answer_with_clock
) -> Any:
    return asyncio.run(run_once(params, answer))


# --- replayable runs ------------------------------------------------------------------------------


# In a WebAssembly sandbox, which has no threads, `test_wasm_cells.py` tests replay.
IN_THREADS = pytest.mark.kernel


@pytest.fixture(scope="module")
def first() -> Mapping[str, Any]:
    values: Mapping[str, Any] = run(make_params(PROGRAM, replay=replay()))
    return values


@IN_THREADS
def test_the_same_seed_and_clock_give_the_same_values_in_another_process(
    first: Mapping[str, Any],
) -> None:
    spawned = asyncio.run(run_once(make_params(PROGRAM, replay=replay()), launcher=SpawnLauncher))
    assert spawned == first


@IN_THREADS
def test_another_seed_gives_other_random_numbers_but_the_same_times_and_orders(
    first: Mapping[str, Any],
) -> None:
    other = run(make_params(PROGRAM, replay=replay(OTHER_SEED)))
    assert (other["read"], other["order"]) == (first["read"], first["order"])
    numbers = [
        [text for text in json.dumps(each["drawn"]).split('"') if len(text) == 36]
        for each in (first, other)
    ]
    assert len(numbers[0]) == 100
    assert len({*numbers[0], *numbers[1]}) == len(numbers[0]) + len(numbers[1]), (
        "a UUID occurs twice"
    )


@IN_THREADS
def test_the_clock_is_that_of_the_last_answer(first: Mapping[str, Any]) -> None:
    before, _, after, moment = first["read"]
    assert CLOCK + 30 < before[0] < CLOCK + 31  # the last answer in a thread that was joined
    assert CLOCK + 40 < after[0] < CLOCK + 40.001
    assert after[2] == pytest.approx(40, abs=0.001)
    assert moment.startswith("2023-11-14 22:13:20")


def test_sleep_takes_no_time_until_all_recorded_answers_are_replayed() -> None:
    async def answer(number: int) -> Result:
        return Reply(ok=True, value=number, members={"clock": CLOCK, "replayed": True})

    code = (
        "import"
        " time\ntime.sleep(60)\ndemo.call(1)\ntime.sleep(60)\ndemo.call(2)\ntime.sleep(0.25)\ntime.time()"
    )
    started = time.monotonic()
    assert run(make_params(code, replay=replay(until=2)), answer) == pytest.approx(
        CLOCK + 120.25, abs=0.001
    )
    assert 0.25 < time.monotonic() - started < 30


def test_large_results_and_errors_carry_the_clock() -> None:
    values: dict[int, Any] = {1: ["x"] * 30_000, 2: "y" * 30_000}

    async def answer(number: int) -> Result:
        error = None if number in values else ToolTimeout("late")
        return Reply(error is None, values.get(number), error, members={"clock": CLOCK + number})

    code = """import time
def call(number):
    try: return [len(demo.call(number)), int(time.time())]
    except ToolTimeout as error: return [str(error), int(time.time())]
[call(1), call(2), call(3)]"""
    found = run(make_params(code, replay=replay()), answer)
    assert found == [[30_000, CLOCK + 1], [30_000, CLOCK + 2], ["late", CLOCK + 3]]


def test_ordinary_runs_have_real_time_and_their_own_random_numbers() -> None:
    async def run_all() -> list[Any]:
        async with Cells(CellLimits(isolation=ISOLATION, timeout=30)) as cells:
            code = "import random, time, uuid\n[random.random(), str(uuid.uuid4()), time.time()]"
            return [(await cells.run(make_params(code), Host(echo)))["value"] for _ in range(3)]

    values = asyncio.run(run_all())
    assert len({number for number, _, _ in values}) == len({ident for _, ident, _ in values}) == 3
    assert all(abs(at - time.time()) < 30 for _, _, at in values)


# --- pauses ---------------------------------------------------------------------------------------

TIMEOUT = 1.0 if ISOLATION == "auto" else 4.0  # a WebAssembly sandbox takes longer to start
FRAME = "frame = sys._getframe()\nwhile 'self' not in frame.f_locals: frame = frame.f_back"
ON_MEASURING_SYSTEMS = pytest.mark.skipif(
    not MEASURES_WORK, reason="where work is not measured, waiting counts"
)


@ON_MEASURING_SYSTEMS
def test_a_paused_run_outlives_its_timeout_and_frees_its_slot() -> None:
    async def run_paused() -> tuple[Any, Any]:
        async with Cells(CellLimits(isolation=ISOLATION, timeout=TIMEOUT, at_once=1)) as cells:
            await cells.probe(TIMEOUT_SECONDS)
            host = Host(echo, pauses=2 * TIMEOUT)
            code = "ot.parallel([lambda: demo.call(1), lambda: demo.call(2)]) + [demo.call(3)]"
            waiting = asyncio.ensure_future(cells.run(make_params(code, pausable=True), host))
            await host.paused.wait()
            other = await cells.run(make_params("1 + 1"), Host(echo))
            assert not waiting.done()
            return (await waiting)["value"], other["value"]

    assert asyncio.run(run_paused()) == ([1, 2, 3], 2)


@ON_MEASURING_SYSTEMS
def test_the_time_before_and_after_a_pause_is_limited() -> None:
    async def run_late() -> float:
        async with Cells(CellLimits(isolation=ISOLATION, timeout=TIMEOUT, at_once=1)) as cells:
            await cells.probe(TIMEOUT_SECONDS)
            host, started = Host(echo, pauses=TIMEOUT), time.monotonic()
            with pytest.raises(Exception, match=f"longer than {TIMEOUT:g} s"):
                await cells.run(make_params("demo.call(1)\nwhile True: pass", pausable=True), host)
            seconds = time.monotonic() - started
            assert (await cells.run(make_params("1 + 1"), Host(echo)))["value"] == 2, (
                "the slot was not released"
            )
            return seconds

    assert 2 * TIMEOUT <= asyncio.run(run_late()) < 10 * TIMEOUT


@ON_MEASURING_SYSTEMS
@IN_THREADS
def test_a_run_that_computes_while_it_waits_is_ended() -> None:
    code = (
        "import threading\nthreading.Thread(target=demo.call, args=[1]).start()\nwhile True: pass"
    )

    async def run_busy() -> float:
        async with Cells(CellLimits(isolation=ISOLATION, timeout=TIMEOUT)) as cells:
            await cells.probe(TIMEOUT_SECONDS)
            started = time.monotonic()
            with pytest.raises(ToolTimeout, match="it computed while it waited"):
                await cells.run(make_params(code, pausable=True), Host(echo, pauses=60 * TIMEOUT))
            return time.monotonic() - started

    assert asyncio.run(run_busy()) < 30 * TIMEOUT


@pytest.mark.kernel
def test_a_closed_pool_starts_no_processes() -> None:
    """Neither a run that begins late nor a check that waits for the zygote while it is stopped
    starts another one.
    """

    async def use_closed_pool() -> None:
        async with Cells(CellLimits(isolation=ISOLATION)) as cells:
            await cells.run(make_params("1"), Host(echo))
            probe = asyncio.create_task(cells.probe())
            await asyncio.sleep(0)
        assert (await probe)["sandbox"] == NOT_ANSWERING
        with pytest.raises(ToolError, match="OneTool is shutting down"):
            await cells.run(make_params("1"), Host(echo))

    processes = list_descendants(os.getpid())
    asyncio.run(use_closed_pool())
    assert eventually(lambda: not list_descendants(os.getpid()) - processes)


def test_waiting_counts_where_the_system_does_not_tell_how_much_a_run_computes() -> None:
    async def run_waiting() -> None:
        read_nothing = lambda _process: ProcessState(processor_seconds=None)  # noqa: E731 - as the system reports it
        limits = CellLimits(isolation=ISOLATION, timeout=TIMEOUT)
        async with Cells(limits, read_process=read_nothing) as cells:
            await cells.probe(TIMEOUT_SECONDS)
            with pytest.raises(ToolTimeout, match="waiting for a person counts"):
                await cells.run(
                    make_params("demo.call(1)", pausable=True), Host(echo, pauses=20 * TIMEOUT)
                )

    asyncio.run(run_waiting())


@pytest.mark.parametrize(
    "code",
    [  # without a timer, with a call that is never answered, and with a later deadline
        pytest.param(
            "import signal\nsignal.setitimer(signal.ITIMER_REAL, 0)\nwhile True: pass",
            marks=pytest.mark.kernel,
        ),
        pytest.param(
            "import threading\nthreading.Thread(target=demo.call, args=[1]).start()\nwhile True:"
            " pass",
            marks=IN_THREADS,
        ),
        f"import sys\n{FRAME}\nframe.f_locals['self']._paused_for = 1e9\nwhile True: pass",
    ],
)
def test_a_run_that_claims_to_be_paused_ends_at_the_deadline_of_the_server(code: str) -> None:
    async def never(_value: Any) -> Result:
        await asyncio.Event().wait()
        raise AssertionError

    async def run_hostile() -> float:
        async with Cells(CellLimits(isolation=ISOLATION, timeout=TIMEOUT)) as cells:
            await cells.probe(TIMEOUT_SECONDS)
            started = time.monotonic()
            with pytest.raises(ToolTimeout, match=f"took longer than {TIMEOUT:g} s"):
                await cells.run(make_params(code, pausable=True), Host(never))
            return time.monotonic() - started

    assert asyncio.run(run_hostile()) < 10 * TIMEOUT


def test_closing_waits_for_paused_runs() -> None:
    async def retire() -> Any:
        async with Cells(CellLimits(isolation=ISOLATION, timeout=TIMEOUT, at_once=2)) as cells:
            await cells.probe(TIMEOUT_SECONDS)
            host = Host(echo, pauses=TIMEOUT / 2)
            waiting = asyncio.ensure_future(
                cells.run(make_params("demo.call(1)", pausable=True), host)
            )
            await host.paused.wait()
            await cells.retire()
            return (await waiting)["value"]

    assert asyncio.run(retire()) == 1


async def answer_slowly(_message: str, _schema: Mapping[str, Any]) -> str:
    await asyncio.sleep(1.2)
    return "Ada"


def test_a_question_stops_the_timeouts_of_all_enclosing_calls() -> None:
    bus = ToolBus()

    def ask(c: ToolContext) -> str:
        return str(c.ask("Who?"))

    def ask_through(c: ToolContext) -> str:
        return str(c.call("demo.ask"))

    async def wait() -> None:
        await asyncio.sleep(10)

    for function in (ask, ask_through, wait):
        bus.register_tool(function_tool(function, f"demo.{function.__name__}", timeout=1))
    context = ToolContext(client=CallClient(ask=answer_slowly))
    assert bus.call_tool_sync("demo.ask_through", {}, context).unwrap() == "Ada"
    with pytest.raises(ToolTimeout, match="timed out after 1 s"):
        bus.call_tool_sync("demo.wait", {}, context).unwrap()


def test_a_question_stops_the_timers_of_enclosing_workers(tmp_path: Path) -> None:
    with open_workers(tmp_path, "workers: {call_timeout: 1}") as opened:
        opened.write(
            "inner", "from onetool import Context\ndef ask(c: Context): return c.ask('Who?')\n"
        )
        opened.write(
            "outer",
            "import time\ndef ask(): return ot.call('inner.ask')\ndef wait(): time.sleep(1.5)\n",
        )

        def call(name: str) -> Result:
            context = replace(opened.app.onetool.context(), client=CallClient(ask=answer_slowly))
            result: Result = opened.app.portal.call(
                opened.app.onetool.bus.call_tool, name, {}, context
            )
            return result

        assert call("inner.ask").unwrap() == call("outer.ask").unwrap() == "Ada"
        assert "took longer than 1 s" in str(call("outer.wait").error)
