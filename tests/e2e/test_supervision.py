"""Test stopped and killed processes of the server: the next run works, and waiting times are
limited.
"""

import asyncio
import json
import os
import signal
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.rest_support import make_client, serve_process
from tests.support import RawClient, configure, eventually, list_children
from tests.workers_support import is_alive, open_workers, write_pack

from onetool.runs.cells import NOT_ANSWERING, CellLimits, Cells
from onetool.runs.launch import ZygoteLauncher

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="other systems have no zygote")

MAX_REPLACE_SECONDS = 15.0  # 2.5 s on an idle machine
HARM = pytest.mark.parametrize("harm", [signal.SIGSTOP, signal.SIGKILL], ids=["stopped", "killed"])


@pytest.fixture(scope="module")
def wire(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RawClient]:
    home = tmp_path_factory.mktemp("home")
    configure(home, "execution: {timeout: 20}")
    with RawClient(home) as wire:
        yield wire


def wait_for_zygote(server: int) -> int:
    """Wait until the server has one zygote with waiting cells, and return it."""

    def found() -> list[int]:
        return [
            child
            for child in list_children(server)
            if _is_zygote(child) and len(_list_idle_cells(child)) >= 2
        ]

    assert eventually(found)
    return found()[0]


def _is_zygote(pid: int) -> bool:
    try:
        return b"onetool_child.zygote" in Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:
        return False


def _list_idle_cells(zygote: int) -> list[int]:
    return sorted(list_children(zygote))


def run(wire: RawClient, code: str) -> tuple[str, float]:
    """Return the text of the answer and how many seconds it took."""
    started = time.monotonic()
    result = wire.run(code)["result"]
    return result["content"][0]["text"], time.monotonic() - started


@HARM
def test_runs_work_after_the_zygote_is_lost(wire: RawClient, harm: signal.Signals) -> None:
    assert run(wire, "1 + 1")[0] == "2"
    zygote = wait_for_zygote(wire.process.pid)
    os.kill(zygote, harm)
    # More runs than there are waiting cells: one of them needs a new zygote.
    answers = [run(wire, f"{number} + 1") for number in range(4)]
    assert [text for text, _ in answers] == ["1", "2", "3", "4"]
    assert sum(seconds for _, seconds in answers) < MAX_REPLACE_SECONDS
    assert eventually(lambda: not is_alive(zygote))


@HARM
def test_runs_work_after_idle_cells_are_lost(wire: RawClient, harm: signal.Signals) -> None:
    assert run(wire, "1 + 1")[0] == "2"
    for cell in _list_idle_cells(wait_for_zygote(wire.process.pid)):
        os.kill(cell, harm)
    answers = [run(wire, f"{number} + 1") for number in range(3)]
    assert [text for text, _ in answers] == ["1", "2", "3"]
    assert sum(seconds for _, seconds in answers) < MAX_REPLACE_SECONDS


def test_a_run_that_stops_after_output_fails_and_is_not_repeated(wire: RawClient) -> None:
    text, seconds = run(
        wire, "import os, signal\nprint('acted', flush=True)\nos.kill(os.getpid(), signal.SIGSTOP)"
    )
    assert text == "acted\n"
    assert seconds < MAX_REPLACE_SECONDS


def test_health_answers_while_the_zygote_is_stopped(wire: RawClient) -> None:
    run(wire, "1")
    os.kill(wait_for_zygote(wire.process.pid), signal.SIGSTOP)
    text, seconds = run(wire, "ot.health()['isolation']['sandbox']")
    assert text
    assert seconds < MAX_REPLACE_SECONDS


def test_waiting_for_a_cell_counts_as_run_time(tmp_path: Path) -> None:
    configure(tmp_path, "execution: {timeout: 1, cells: 1}")
    with RawClient(tmp_path) as wire:
        assert eventually(lambda: run(wire, "1")[0] == "1")
        assert eventually(
            lambda: [
                zygote for zygote in list_children(wire.process.pid) if _list_idle_cells(zygote)
            ]
        )
        (zygote,) = list_children(wire.process.pid)
        time.sleep(0.5)  # the cell exists before it is ready
        os.kill(zygote, signal.SIGSTOP)
        assert run(wire, "2")[0] == "2"  # in the idle cell
        text, seconds = run(wire, "3")
        assert text == "ToolTimeout: the run did not start: no cell was ready within 1 s"
        assert 0.9 < seconds < MAX_REPLACE_SECONDS
        assert eventually(lambda: run(wire, "4")[0] == "4")


def test_readyz_waits_for_a_working_zygote(tmp_path: Path) -> None:
    with serve_process(tmp_path) as (server, info), make_client(info["url"]) as client:
        assert client.get("/readyz").text == "ready\n"
        zygote = wait_for_zygote(server.pid)
        os.kill(zygote, signal.SIGSTOP)
        started = time.monotonic()
        answer = client.get("/readyz")
        assert time.monotonic() - started < MAX_REPLACE_SECONDS
        if answer.status_code == 200:  # the server replaced the zygote in time
            assert not is_alive(zygote)
            assert wait_for_zygote(server.pid) != zygote
        assert eventually(lambda: client.get("/readyz").text == "ready\n")
        assert client.post("/api/run", json={"command": "1 + 1"}).json()["blocks"] == ["2"]
        assert client.get("/api/health").json()["isolation"]["sandbox"] != NOT_ANSWERING


def test_stopped_processes_end_with_a_killed_server(tmp_path: Path) -> None:
    write_pack(
        tmp_path / ".onetool",
        "plain",
        "import os\ndef processes(): return [os.getppid(), os.getpid()]\n",
    )
    with RawClient(tmp_path) as wire:
        guard, worker = json.loads(run(wire, "plain.processes()")[0])
        zygote = wait_for_zygote(wire.process.pid)
        started = [zygote, guard, worker, *list_children(zygote)]
        for process in started:
            os.kill(process, signal.SIGSTOP)
        wire.process.kill()
        assert eventually(lambda: not any(map(is_alive, started)))


class _SilentLauncher(ZygoteLauncher):
    async def check(self) -> bool:
        await asyncio.Event().wait()
        return True


def test_an_unresponsive_zygote_is_reported() -> None:
    async def probe() -> str:
        async with Cells(CellLimits(), make_launcher=_SilentLauncher) as cells:
            return (await cells.probe(0.05))["sandbox"]

    assert asyncio.run(probe()) == NOT_ANSWERING


@HARM
def test_calls_work_after_the_guard_of_a_worker_is_lost(
    tmp_path: Path, harm: signal.Signals
) -> None:
    with open_workers(tmp_path) as opened:
        opened.write("plain", "import os\ndef parent(): return os.getppid()\n")
        guard = opened.value("plain.parent")
        os.kill(guard, harm)

        def works() -> bool:
            called = opened.app.call("plain.parent", {})
            return called.ok and (
                called.value != guard or harm == signal.SIGSTOP
            )  # a stopped guard has no effect

        assert eventually(works)


@HARM
def test_files_of_a_run_are_deleted_when_the_zygote_is_lost(
    tmp_path: Path, harm: signal.Signals
) -> None:
    configure(tmp_path, "execution: {timeout: 20, cells: 1}")
    with RawClient(tmp_path) as wire:
        run(wire, "1")
        (zygote,) = list_children(wire.process.pid)
        scratch = tmp_path / "tmp"
        code = "open('left', 'w').write('x')\nimport time\ntime.sleep(60)"
        wire.ask("tools/call", {"name": "run", "arguments": {"command": code}})
        assert eventually(lambda: list(scratch.glob("*/*/left")))
        os.kill(zygote, harm)
        assert eventually(lambda: not list(scratch.glob("*/*/left")))
