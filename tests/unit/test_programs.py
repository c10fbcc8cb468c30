"""Programs that are run for tools: what is heard of them, and that nothing of them is left, however they end."""

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

from onetool.children.programs import Ended, OutputTail, Program, run
from onetool.errors import ToolError
from onetool_child import confine

SHELL = "/bin/sh"
PATH = {"PATH": os.environ["PATH"]}
LONG = 300.0
WITH_LANDLOCK = pytest.mark.skipif(not confine.landlock_version(), reason="this kernel has no Landlock")
# A server that runs one program and says so once that has started.
SERVER = """
import asyncio, sys
from pathlib import Path
from onetool.children.programs import Program, run

program = Program(["/bin/sh", "-c", sys.argv[2]], Path("/"), {}, 300, starts_others=sys.argv[1] == "others")
asyncio.run(run(program, lambda data: sys.stdout.write(data.decode()) and sys.stdout.flush(), lambda _: None))
"""


def shell(script: str, cwd: Path, seconds: float = TIMEOUT_SECONDS, **more: bool) -> Program:
    return Program([SHELL, "-c", script], cwd, PATH, seconds, **more)  # type: ignore[arg-type]


def heard(program: Program) -> tuple[Ended, str]:
    words = OutputTail()
    return asyncio.run(run(program, words, words)), str(words)


def test_it_tells_what_the_program_printed_and_its_status(tmp_path: Path) -> None:
    ended, words = heard(shell("echo out; echo err >&2; pwd; exit 3", tmp_path))
    assert (ended.status, ended.timed_out) == (3, False)
    assert sorted(words.splitlines()) == sorted(["out", "err", str(tmp_path)])


def test_the_program_knows_only_the_variables_it_is_given(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SECRET_OF_THE_SERVER", "xyzzy")
    _, words = heard(Program(["/usr/bin/env"], tmp_path, {"GIVEN": "1"}, TIMEOUT_SECONDS))
    assert words == "GIVEN=1"


@pytest.mark.parametrize("others", [False, True])
def test_a_program_that_reads_its_input_never_gets_any(tmp_path: Path, others: bool) -> None:
    ended, words = heard(shell("cat; echo over", tmp_path, 5.0 if others else 0.3, starts_others=others))
    assert (words == "over") == others
    assert ended.timed_out != others


def test_a_signal_that_ended_it_is_told(tmp_path: Path) -> None:
    assert heard(shell("kill -9 $$", tmp_path))[0].status == -signal.SIGKILL


@pytest.mark.parametrize("command", [["/no/such/program"], ["/"], [SHELL, "-c", "x" * 3_000_000]])
def test_what_cannot_be_started_is_an_error_that_names_it(tmp_path: Path, command: list[str]) -> None:
    with pytest.raises(ToolError, match=f"^cannot start {command[0]}: "):
        heard(Program(command, tmp_path, {}, TIMEOUT_SECONDS))


def test_a_folder_that_is_gone_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(ToolError, match=r"cannot start .*: No such file or directory"):
        heard(shell("true", tmp_path / "gone"))


def test_programs_run_side_by_side(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")

    async def both() -> list[Ended]:
        words = OutputTail()
        scripts = ("cat pipe", "echo hello > pipe")
        ended = await asyncio.gather(*(run(shell(script, tmp_path), words, words) for script in scripts))
        assert str(words) == "hello"
        return ended

    assert [one.status for one in asyncio.run(both())] == [0, 0]


def test_a_flood_is_kept_in_bounded_space(tmp_path: Path) -> None:
    words = OutputTail(1000)
    ended = asyncio.run(run(shell("yes", tmp_path, 0.3), words, words))
    assert ended.timed_out
    assert 990 < len(str(words)) <= 1000


# --- its end --------------------------------------------------------------------------------------------------------


def watched(
    script: str, cwd: Path, seconds: float, stop: Callable[[str], bool] | None = None
) -> tuple[Ended, ProcessWatch]:
    """Run a script whose first line of output says which processes to watch."""
    watches: list[ProcessWatch] = []
    said = ""

    def hear(data: bytes) -> bool:
        nonlocal said
        said += data.decode()
        if "\n" in said and not watches:
            watches.append(ProcessWatch(map(int, said.split("\n")[0].split())))
        return bool(stop and stop(said))

    others = "setsid" in script
    ended = asyncio.run(run(shell(script, cwd, seconds, starts_others=others), hear, lambda _: None))
    return ended, watches[0]


def test_at_its_time_limit_the_whole_group_is_killed(tmp_path: Path) -> None:
    ended, watch = watched("sleep 300 & echo $$ $!; wait", tmp_path, 0.3)
    assert (ended.status, ended.timed_out) == (None, True)
    with watch:
        assert watch.all_ended()


ESCAPES = (
    "setsid sh -c 'setsid sleep 300 & echo $! > escaped' & while ! [ -s escaped ]; do :; done; echo $$ $(cat escaped)"
)


@pytest.mark.slow
def test_at_its_time_limit_those_who_left_the_group_are_killed_too(tmp_path: Path) -> None:
    ended, watch = watched(f"{ESCAPES}; sleep 300", tmp_path, 1.0)
    assert (ended.status, ended.timed_out) == (None, True)
    with watch:
        assert watch.all_ended()


@pytest.mark.slow
def test_a_guard_that_was_stopped_does_not_help(tmp_path: Path) -> None:
    """The guard is on its post once it catches SIGCHLD, SIGTERM, SIGINT and SIGHUP."""
    on_its_post = "while ! grep -q '^SigCgt:.*14003$' /proc/$PPID/status; do :; done"
    ended, watch = watched(f"{on_its_post}; kill -STOP $PPID; {ESCAPES}; sleep 300", tmp_path, 2.0)
    assert ended.timed_out
    with watch:
        assert watch.all_ended()


def test_at_its_own_end_those_who_left_the_group_are_killed_too(tmp_path: Path) -> None:
    ended, watch = watched(ESCAPES, tmp_path, TIMEOUT_SECONDS)
    assert (ended.status, ended.timed_out) == (0, False)
    with watch:
        assert watch.all_ended()


def test_who_holds_its_output_open_does_not_hold_up_its_end(tmp_path: Path) -> None:
    ended, watch = watched("sleep 300 & echo $! $$", tmp_path, LONG)
    assert ended.status == 0
    with watch:
        assert watch.all_ended()


def test_a_program_that_closes_its_output_and_lives_on_is_ended_in_time(tmp_path: Path) -> None:
    ended, watch = watched("echo $$; exec >&- 2>&-; sleep 300", tmp_path, 0.3)
    assert ended.timed_out
    with watch:
        assert watch.all_ended()


def test_it_is_ended_when_it_has_said_enough(tmp_path: Path) -> None:
    ended, watch = watched("echo $$; while :; do echo more; done", tmp_path, LONG, stop=lambda said: "more" in said)
    assert (ended.status, ended.timed_out) == (None, False)
    with watch:
        assert watch.all_ended()


def test_what_the_listener_raises_is_raised_and_the_program_ended(tmp_path: Path) -> None:
    before = list_descendants(os.getpid())

    def fail(_data: bytes) -> bool:
        raise LookupError("not what I wanted")

    with pytest.raises(LookupError, match="not what I wanted"):
        asyncio.run(run(shell("echo; sleep 300", tmp_path, LONG), fail, fail))
    assert eventually(lambda: list_descendants(os.getpid()) <= before)


@pytest.mark.parametrize("others", [False, True])
def test_whoever_is_cancelled_leaves_nothing(tmp_path: Path, others: bool) -> None:
    script = "sleep 300 & echo $$ $!; wait"

    async def cancelled() -> ProcessWatch:
        told: asyncio.Future[str] = asyncio.get_running_loop().create_future()
        program = shell(script, tmp_path, LONG, starts_others=others)
        task = asyncio.ensure_future(run(program, lambda data: told.set_result(data.decode()), lambda _: None))
        watch = ProcessWatch(map(int, (await told).split()))
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        return watch

    with asyncio.run(cancelled()) as watch:
        assert watch.all_ended()


def test_whoever_is_cancelled_while_it_starts_leaves_nothing(tmp_path: Path) -> None:
    before = list_descendants(os.getpid())

    async def cancelled_at_once() -> None:
        tasks = [asyncio.ensure_future(run(shell("sleep 300", tmp_path, LONG), print, print)) for _ in range(5)]
        await asyncio.sleep(0)  # each has asked a thread to start its program
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        while not list_descendants(os.getpid()) <= before:  # noqa: ASYNC110 - nobody announces it
            await asyncio.sleep(0.01)

    asyncio.run(asyncio.wait_for(cancelled_at_once(), TIMEOUT_SECONDS))


@pytest.mark.slow
@pytest.mark.parametrize("others", ["others", "alone"])
def test_a_server_that_is_killed_leaves_nothing(others: str) -> None:
    script = "sleep 300 & echo $$ $!; wait"
    with subprocess.Popen([sys.executable, "-c", SERVER, others, script], stdout=subprocess.PIPE) as server:
        assert server.stdout is not None
        processes = list_descendants(server.pid) | set(map(int, server.stdout.readline().split()))
        with ProcessWatch(processes - {server.pid}) as watch:
            server.kill()
            assert watch.all_ended()


# --- what it may do -------------------------------------------------------------------------------------------------


@WITH_LANDLOCK
def test_a_program_reads_only_what_it_is_meant_to(tmp_path: Path) -> None:
    inside, outside = tmp_path / "inside", tmp_path / "outside"
    inside.mkdir()
    (inside / "link").symlink_to(outside)
    (inside / "file").write_text("mine")
    outside.write_text("secret")
    readable = [str(inside), "/bin", "/usr", "/lib", "/lib64", "/etc/ld.so.cache"]
    script = "cat file link ../outside; echo x > file; cat file"
    ended, words = heard(Program([SHELL, "-c", script], inside, PATH, TIMEOUT_SECONDS, readable))
    assert "secret" not in words
    assert words.count("Permission denied") == 3
    assert words.count("mine") == 2
    assert ended.status == 0


@WITH_LANDLOCK
def test_what_confines_the_program_does_not_confine_the_server(tmp_path: Path) -> None:
    outside = tmp_path / "outside"
    outside.write_text("mine")
    here = tmp_path / "here"
    here.mkdir()

    async def confined_and_afterwards() -> str:
        program = Program(["/bin/true"], here, {}, TIMEOUT_SECONDS, [str(here), "/bin", "/usr", "/lib", "/lib64"])
        await run(program, lambda _: None, lambda _: None)
        return await asyncio.to_thread(outside.read_text)

    assert asyncio.run(confined_and_afterwards()) == outside.read_text() == "mine"
    assert threading.active_count() < 10


@pytest.mark.slow
def test_memory_is_bounded(tmp_path: Path) -> None:
    hungry = [sys.executable, "-c", "import time; time.sleep(0.5); x = b'x' * (1 << 30)"]
    words = OutputTail()
    program = Program(hungry, tmp_path, PATH, LONG, memory_bytes=256 << 20)
    assert asyncio.run(run(program, words, words)).status == 1
    assert "MemoryError" in str(words)
