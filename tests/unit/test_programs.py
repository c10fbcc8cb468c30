"""Programs that are run for tools: their output, and that no process is left however they end."""

import asyncio
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path

import pytest
from tests.support import TIMEOUT_SECONDS, ProcessWatch, eventually, list_descendants

from onetool.errors import ToolError
from onetool.processes.process import Printed
from onetool.processes.programs import Ended, Program, run
from onetool_child import confine

SHELL = "/bin/sh"
PATH = {"PATH": os.environ["PATH"]}
LONG = 300.0
WITH_LANDLOCK = pytest.mark.skipif(
    not confine.landlock_version(), reason="this kernel has no Landlock"
)
# A server that runs one program and prints the program's first output.
SERVER = """
import asyncio, sys
from pathlib import Path
from onetool.processes.programs import Program, run

program = Program(["/bin/sh", "-c", sys.argv[2]], Path("/"), {}, 300, starts_others=sys.argv[1] == "others")
asyncio.run(run(program, lambda data: sys.stdout.write(data.decode()) and sys.stdout.flush(), lambda _: None))
"""


def shell(script: str, cwd: Path, seconds: float = TIMEOUT_SECONDS, **more: bool) -> Program:
    return Program([SHELL, "-c", script], cwd, PATH, seconds, **more)  # type: ignore[arg-type]


def run_to_end(program: Program) -> tuple[Ended, str]:
    output = Printed()
    return asyncio.run(run(program, output.add, output.add)), output.tail


def test_output_and_exit_status_are_returned(tmp_path: Path) -> None:
    ended, output = run_to_end(shell("echo out; echo err >&2; pwd; exit 3", tmp_path))
    assert (ended.status, ended.timed_out) == (3, False)
    assert sorted(output.splitlines()) == sorted(["out", "err", str(tmp_path)])


def test_a_program_gets_only_the_given_variables(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SECRET_OF_THE_SERVER", "xyzzy")
    _, output = run_to_end(Program(["/usr/bin/env"], tmp_path, {"GIVEN": "1"}, TIMEOUT_SECONDS))
    assert output == "GIVEN=1"


@pytest.mark.parametrize("others", [False, True])
def test_a_program_never_receives_input(tmp_path: Path, others: bool) -> None:
    ended, output = run_to_end(
        shell("cat; echo over", tmp_path, 5.0 if others else 0.3, starts_others=others)
    )
    assert (output == "over") == others
    assert ended.timed_out != others


def test_the_signal_that_ended_the_program_is_returned(tmp_path: Path) -> None:
    assert run_to_end(shell("kill -9 $$", tmp_path))[0].status == -signal.SIGKILL


@pytest.mark.parametrize("command", [["/no/such/program"], ["/"], [SHELL, "-c", "x" * 3_000_000]])
def test_a_program_that_cannot_start_is_an_error_that_names_it(
    tmp_path: Path, command: list[str]
) -> None:
    with pytest.raises(ToolError, match=f"^cannot start {command[0]}: "):
        run_to_end(Program(command, tmp_path, {}, TIMEOUT_SECONDS))


def test_a_missing_directory_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(ToolError, match=r"cannot start .*: No such file or directory"):
        run_to_end(shell("true", tmp_path / "gone"))


def test_programs_run_concurrently(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")

    async def run_both() -> list[Ended]:
        output = Printed()
        scripts = ("cat pipe", "echo hello > pipe")
        ended = await asyncio.gather(
            *(run(shell(script, tmp_path), output.add, output.add) for script in scripts)
        )
        assert output.tail == "hello"
        return ended

    assert [one.status for one in asyncio.run(run_both())] == [0, 0]


def test_the_kept_output_is_bounded(tmp_path: Path) -> None:
    output = Printed(max_chars=1000)
    ended = asyncio.run(run(shell("yes", tmp_path, 0.3), output.add, output.add))
    assert ended.timed_out
    assert 990 < len(output.tail) <= 1000


# --- termination ----------------------------------------------------------------------------------


def run_watched(
    script: str, cwd: Path, seconds: float, stop: Callable[[str], bool] | None = None
) -> tuple[Ended, ProcessWatch]:
    """Run a script whose first line of output lists the processes to watch."""
    watches: list[ProcessWatch] = []
    printed = ""

    def read_output(data: bytes) -> bool:
        nonlocal printed
        printed += data.decode()
        if "\n" in printed and not watches:
            watches.append(ProcessWatch(map(int, printed.split("\n")[0].split())))
        return bool(stop and stop(printed))

    others = "setsid" in script
    ended = asyncio.run(
        run(shell(script, cwd, seconds, starts_others=others), read_output, lambda _: None)
    )
    return ended, watches[0]


def test_a_timeout_kills_the_whole_process_group(tmp_path: Path) -> None:
    ended, watch = run_watched("sleep 300 & echo $$ $!; wait", tmp_path, 0.3)
    assert (ended.status, ended.timed_out) == (None, True)
    with watch:
        assert watch.all_ended()


ESCAPES = (
    "setsid sh -c 'setsid sleep 300 & echo $! > escaped' & while ! [ -s escaped ]; do :; done; echo"
    " $$ $(cat escaped)"
)


@pytest.mark.slow
def test_a_timeout_kills_processes_that_left_the_group(tmp_path: Path) -> None:
    ended, watch = run_watched(f"{ESCAPES}; sleep 300", tmp_path, 1.0)
    assert (ended.status, ended.timed_out) == (None, True)
    with watch:
        assert watch.all_ended()


@pytest.mark.slow
def test_processes_are_killed_even_if_the_guard_is_stopped(tmp_path: Path) -> None:
    """Wait for the guard: it is ready once it catches SIGCHLD, SIGTERM, SIGINT and SIGHUP."""
    on_its_post = "while ! grep -q '^SigCgt:.*14003$' /proc/$PPID/status; do :; done"
    ended, watch = run_watched(
        f"{on_its_post}; kill -STOP $PPID; {ESCAPES}; sleep 300", tmp_path, 2.0
    )
    assert ended.timed_out
    with watch:
        assert watch.all_ended()


def test_processes_that_left_the_group_are_killed_when_the_program_exits(tmp_path: Path) -> None:
    ended, watch = run_watched(ESCAPES, tmp_path, TIMEOUT_SECONDS)
    assert (ended.status, ended.timed_out) == (0, False)
    with watch:
        assert watch.all_ended()


def test_a_child_that_holds_the_output_open_does_not_delay_the_end(tmp_path: Path) -> None:
    ended, watch = run_watched("sleep 300 & echo $! $$", tmp_path, LONG)
    assert ended.status == 0
    with watch:
        assert watch.all_ended()


def test_a_program_that_closes_its_output_is_killed_at_the_timeout(tmp_path: Path) -> None:
    ended, watch = run_watched("echo $$; exec >&- 2>&-; sleep 300", tmp_path, 0.3)
    assert ended.timed_out
    with watch:
        assert watch.all_ended()


def test_the_program_is_killed_when_the_listener_has_enough_output(tmp_path: Path) -> None:
    ended, watch = run_watched(
        "echo $$; while :; do echo more; done",
        tmp_path,
        LONG,
        stop=lambda printed: "more" in printed,
    )
    assert (ended.status, ended.timed_out) == (None, False)
    with watch:
        assert watch.all_ended()


def test_an_error_of_the_listener_is_raised_and_the_program_is_killed(tmp_path: Path) -> None:
    before = list_descendants(os.getpid())

    def fail(_data: bytes) -> bool:
        raise LookupError("not what I wanted")

    with pytest.raises(LookupError, match="not what I wanted"):
        asyncio.run(run(shell("echo; sleep 300", tmp_path, LONG), fail, fail))
    assert eventually(lambda: list_descendants(os.getpid()) <= before)


@pytest.mark.parametrize("others", [False, True])
def test_cancellation_leaves_no_processes(tmp_path: Path, others: bool) -> None:
    script = "sleep 300 & echo $$ $!; wait"

    async def run_and_cancel() -> ProcessWatch:
        first_line: asyncio.Future[str] = asyncio.get_running_loop().create_future()
        program = shell(script, tmp_path, LONG, starts_others=others)
        task = asyncio.ensure_future(
            run(program, lambda data: first_line.set_result(data.decode()), lambda _: None)
        )
        watch = ProcessWatch(map(int, (await first_line).split()))
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        return watch

    with asyncio.run(run_and_cancel()) as watch:
        assert watch.all_ended()


def test_cancellation_during_the_start_leaves_no_processes(tmp_path: Path) -> None:
    before = list_descendants(os.getpid())

    async def start_and_cancel() -> None:
        tasks = [
            asyncio.ensure_future(run(shell("sleep 300", tmp_path, LONG), print, print))
            for _ in range(5)
        ]
        await asyncio.sleep(0)  # each task has asked a thread to start its program
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        while not list_descendants(os.getpid()) <= before:  # noqa: ASYNC110 - no event announces it
            await asyncio.sleep(0.01)

    asyncio.run(asyncio.wait_for(start_and_cancel(), TIMEOUT_SECONDS))


@pytest.mark.slow
@pytest.mark.parametrize("others", ["others", "alone"])
def test_a_killed_server_leaves_no_processes(others: str) -> None:
    script = "sleep 300 & echo $$ $!; wait"
    with subprocess.Popen(
        [sys.executable, "-c", SERVER, others, script], stdout=subprocess.PIPE
    ) as server:
        assert server.stdout is not None
        processes = list_descendants(server.pid) | set(map(int, server.stdout.readline().split()))
        with ProcessWatch(processes - {server.pid}) as watch:
            server.kill()
            assert watch.all_ended()


# --- confinement ----------------------------------------------------------------------------------


@WITH_LANDLOCK
def test_a_program_reads_only_the_given_paths(tmp_path: Path) -> None:
    inside, outside = tmp_path / "inside", tmp_path / "outside"
    inside.mkdir()
    (inside / "link").symlink_to(outside)
    (inside / "file").write_text("mine")
    outside.write_text("secret")
    readable = [str(inside), "/bin", "/usr", "/lib", "/lib64", "/etc/ld.so.cache"]
    script = "cat file link ../outside; echo x > file; cat file"
    ended, output = run_to_end(
        Program([SHELL, "-c", script], inside, PATH, TIMEOUT_SECONDS, readable)
    )
    assert "secret" not in output
    assert output.count("Permission denied") == 3
    assert output.count("mine") == 2
    assert ended.status == 0


@WITH_LANDLOCK
def test_the_confinement_of_a_program_does_not_apply_to_the_server(tmp_path: Path) -> None:
    outside = tmp_path / "outside"
    outside.write_text("mine")
    here = tmp_path / "here"
    here.mkdir()

    async def confined_and_afterwards() -> str:
        program = Program(
            ["/bin/true"], here, {}, TIMEOUT_SECONDS, [str(here), "/bin", "/usr", "/lib", "/lib64"]
        )
        await run(program, lambda _: None, lambda _: None)
        return await asyncio.to_thread(outside.read_text)

    assert asyncio.run(confined_and_afterwards()) == outside.read_text() == "mine"
    assert threading.active_count() < 10


@pytest.mark.slow
def test_memory_is_limited(tmp_path: Path) -> None:
    hungry = [sys.executable, "-c", "import time; time.sleep(0.5); x = b'x' * (1 << 30)"]
    output = Printed()
    program = Program(hungry, tmp_path, PATH, LONG, memory_bytes=256 << 20)
    assert asyncio.run(run(program, output.add, output.add)).status == 1
    assert "MemoryError" in output.tail
