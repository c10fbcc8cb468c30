"""Extension tools in workers: lifecycle, settings, secrets and permissions."""

import os
import textwrap
from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import anyio
import pytest
from tests.cells_support import NIGHTLY
from tests.support import (
    PROGRAM,
    TIMEOUT_SECONDS,
    Connection,
    ProcessWatch,
    RawClient,
    connect,
    eventually,
    get_texts,
    list_descendants,
)
from tests.workers_support import (
    HEADER,
    Workers,
    is_alive,
    open_workers,
    uv_environment,
    write_pack,
)

from onetool.settings.trust import trust
from onetool.util.context import CallClient, Result
from onetool_child.confine import landlock_version

MANY = 1000 if NIGHTLY else 200
PID = "import os\ndef pid(): return os.getpid()\n"
WAITS = """
    import asyncio, os, pathlib, time
    def pid(): return os.getpid()
    def wait(folder: str, mine: str) -> str:
        pathlib.Path(folder, mine).touch()
        while not pathlib.Path(folder, "go").exists():
            time.sleep(0.01)
        return VERSION
    VERSION = "old"
    """


@pytest.fixture(scope="module")
def all_packs(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Workers]:
    with open_workers(tmp_path_factory.mktemp("home")) as opened:
        yield opened


def has_problem(packs: Workers, text: str) -> bool:
    return any(text in problem for problem in packs.value("ot.health")["problems"])


def rewrite_in_place(file: Path, old: str, new: str) -> None:
    """Write a change that keeps length, inode and time stamp."""
    status = file.stat()
    text = file.read_text("utf-8")
    assert len(old) == len(new)
    with file.open("r+", encoding="utf-8") as opened:
        opened.write(text.replace(old, new))
    os.utime(file, ns=(status.st_atime_ns, status.st_mtime_ns))


# --- one worker, many calls -----------------------------------------------------------------------


def test_every_pack_has_one_worker_process(all_packs: Workers) -> None:
    all_packs.write("one", PID)
    all_packs.write("two", PID)
    pids = [all_packs.value("one.pid") for _ in range(5)]
    assert len({*pids, os.getpid(), all_packs.value("two.pid")}) == 3


def test_a_run_can_call_extension_tools(all_packs: Workers) -> None:
    all_packs.write(
        "plain", 'def double(number: int) -> int:\n    """Twice."""\n    return 2 * number\n'
    )
    assert all_packs.app.data("[plain.double(n) for n in range(4)]") == [0, 2, 4, 6]
    assert "plain.double() requires 'number'" in all_packs.app.failure("plain.double()")


def test_calls_to_one_worker_run_concurrently(all_packs: Workers) -> None:
    all_packs.write(
        "barrier",
        """
        import asyncio, threading
        together, met = threading.Barrier(20), []
        def in_threads(): return together.wait(20) >= 0
        async def on_the_loop():
            met.append(1)
            while len(met) < 20:
                await asyncio.sleep(0.01)
            return True
        """,
    )
    for function in ("in_threads", "on_the_loop"):
        calls = [all_packs.start(f"barrier.{function}") for _ in range(20)]
        assert all(call.result(30).unwrap() for call in calls)


def test_concurrent_calls_of_four_workers_get_their_own_results(all_packs: Workers) -> None:
    for number in range(4):
        all_packs.write(
            f"quarter{number}",
            """
            import asyncio, os, time
            def quick(token: int): return [os.getpid(), token]
            def slow(token: int):
                time.sleep(token % 7 / 1000)
                return [os.getpid(), token]
            async def waiting(token: int):
                await asyncio.sleep(token % 5 / 1000)
                return [os.getpid(), token]
            def nested(token: int): return ot.call("machine.now") and [os.getpid(), token]
            def large(token: int): return [os.getpid(), token, "x" * (token * 100)][:2]
            def failing(token: int): raise ValueError(f"{os.getpid()} {token}")
            """,
        )
    results = all_packs.app.portal.call(make_many_calls, all_packs)
    answers = [parse_result(result) for result in results]
    assert [token for _, token in answers] == list(range(MANY))
    assert [len({pid for pid, _ in answers[number::4]}) for number in range(4)] == [1, 1, 1, 1]
    assert len({pid for pid, _ in answers}) == 4


async def make_many_calls(all_packs: Workers) -> list[Result]:
    functions = ("quick", "slow", "waiting", "nested", "large", "failing", "quick")
    onetool, results = all_packs.app.onetool, [Result(ok=False)] * MANY

    async def call(token: int) -> None:
        name = f"quarter{token % 4}.{functions[token % 7]}"
        results[token] = await onetool.bus.call_tool(name, {"token": token}, onetool.context())

    async with anyio.create_task_group() as group:
        for token in range(MANY):
            group.start_soon(call, token)
    return results


def parse_result(result: Result) -> tuple[int, int]:
    pid, token = result.value if result.ok else map(int, str(result.error).split())
    return pid, token


# --- hot reload -----------------------------------------------------------------------------------


def test_a_touch_keeps_the_worker_and_a_change_replaces_it(all_packs: Workers) -> None:
    file = all_packs.write("edited", PID + "def version(): return 1\n")
    before = all_packs.value("edited.pid")
    os.utime(file, (1, 1))
    assert all_packs.value("edited.pid") == before
    all_packs.write("edited", PID + "def version(): return 1\n")
    assert all_packs.value("edited.pid") == before
    all_packs.write("edited", PID + "def version(): return 2\ndef more(): return 'more'\n")
    assert all_packs.value("edited.version") == 2
    assert all_packs.value("edited.more") == "more"
    assert all_packs.value("edited.pid") != before
    assert eventually(lambda: not is_alive(before))


def test_a_change_with_the_same_time_and_size_is_detected_by_inode(all_packs: Workers) -> None:
    file = all_packs.write("disguised", "def version(): return 1\n")
    assert all_packs.value("disguised.version") == 1
    stamp = file.stat().st_mtime_ns
    other = file.with_name("other")
    other.write_text("def version(): return 2\n", encoding="utf-8")
    os.utime(other, ns=(stamp, stamp))
    other.replace(file)
    assert all_packs.value("disguised.version") == 2


def test_a_change_with_the_same_inode_is_detected_by_a_reload(all_packs: Workers) -> None:
    file = all_packs.write("sly", PID + "def version(): return 1\n")
    steady = all_packs.write("steady", PID)
    assert all_packs.value("sly.version") == 1
    before = all_packs.value("steady.pid")
    rewrite_in_place(file, "return 1", "return 2")
    rewrite_in_place(steady, "pid", "pid")
    all_packs.value("ot.reload")
    assert all_packs.value("sly.version") == 2
    assert all_packs.value("steady.pid") == before


def test_active_calls_finish_with_the_old_code(all_packs: Workers, tmp_path: Path) -> None:
    all_packs.write("moving", WAITS)
    before = all_packs.value("moving.pid")
    calls = [
        all_packs.start("moving.wait", folder=str(tmp_path), mine=f"old{number}")
        for number in range(3)
    ]
    assert eventually(lambda: len(list(tmp_path.iterdir())) == 3)
    all_packs.write("moving", WAITS.replace('"old"', '"new"'))
    late = all_packs.start("moving.wait", folder=str(tmp_path), mine="late")
    assert eventually((tmp_path / "late").exists)
    assert all_packs.value("moving.pid") != before
    assert is_alive(before)
    (tmp_path / "go").touch()
    assert [call.result(TIMEOUT_SECONDS).unwrap() for call in (*calls, late)] == [
        "old",
        "old",
        "old",
        "new",
    ]
    assert eventually(lambda: not is_alive(before))


@pytest.mark.parametrize("how", ["delete", "rename"])
def test_deleting_a_file_removes_its_tools_but_active_calls_finish(
    all_packs: Workers, tmp_path: Path, how: str
) -> None:
    pack = f"going{how}"
    file = all_packs.write(pack, WAITS)
    before = all_packs.value(f"{pack}.pid")
    call = all_packs.start(f"{pack}.wait", folder=str(tmp_path), mine="mine")
    assert eventually((tmp_path / "mine").exists)
    file.unlink() if how == "delete" else file.rename(file.with_name("other_tools.py"))
    assert "ToolNotFound" in all_packs.error(f"{pack}.pid")
    (tmp_path / "go").touch()
    assert call.result(TIMEOUT_SECONDS).unwrap() == "old"
    assert eventually(lambda: not is_alive(before))
    all_packs.write(pack, PID)
    assert all_packs.is_well(f"{pack}.pid")


def test_a_syntax_error_is_reported_with_its_line_until_it_is_fixed(
    all_packs: Workers, tmp_path: Path
) -> None:
    file = all_packs.write("slip", WAITS)
    call = all_packs.start("slip.wait", folder=str(tmp_path), mine="mine")
    assert eventually((tmp_path / "mine").exists)
    all_packs.write("slip", "def pid(:\n")
    assert f"{file}, line 1" in all_packs.error("slip.pid")
    assert f"{file}, line 1" in all_packs.app.failure("slip.pid()")
    assert eventually(lambda: has_problem(all_packs, str(file)))
    (tmp_path / "go").touch()
    assert call.result(TIMEOUT_SECONDS).unwrap() == "old"
    all_packs.write("slip", PID)
    assert all_packs.is_well("slip.pid")
    assert eventually(lambda: not has_problem(all_packs, str(file)))


def test_a_change_during_a_start_leaves_one_worker(all_packs: Workers, tmp_path: Path) -> None:
    slow = f"""
        import os, pathlib, time
        pathlib.Path({str(tmp_path)!r}, str(os.getpid())).touch()
        time.sleep(0.5)
        def pid(): return os.getpid()
        """
    all_packs.write("restless", slow)
    early = [all_packs.start("restless.pid") for _ in range(5)]
    assert eventually(lambda: list(tmp_path.iterdir()))
    all_packs.write("restless", slow + "    # changed\n")
    last = all_packs.value("restless.pid")
    assert all(call.result(TIMEOUT_SECONDS).ok for call in early)
    started = {int(file.name) for file in tmp_path.iterdir()}
    assert eventually(lambda: {pid for pid in started if is_alive(pid)} == {last})


def test_deleting_a_file_during_a_start_removes_its_tools(
    all_packs: Workers, tmp_path: Path
) -> None:
    file = all_packs.write(
        "brief",
        f"""
        import pathlib, time
        pathlib.Path({str(tmp_path / "mark")!r}).touch()
        time.sleep(0.3)
        def f(): return 1
        """,
    )
    call = all_packs.start("brief.f")
    assert eventually((tmp_path / "mark").exists)
    file.unlink()
    assert "ToolNotFound" in all_packs.error("brief.f")
    assert call.result(TIMEOUT_SECONDS).unwrap() == 1


# --- idle -----------------------------------------------------------------------------------------


def test_an_idle_worker_stops_and_the_next_call_starts_a_new_one(tmp_path: Path) -> None:
    with open_workers(tmp_path, "workers: {idle_timeout: 0.3}") as opened:
        opened.write(
            "idle", PID + "import time\ndef long():\n    time.sleep(1)\n    return os.getpid()\n"
        )
        before = opened.value("idle.pid")
        assert eventually(lambda: not is_alive(before))
        assert "stopped" in opened.value("ot.health")["workers"]["idle"]
        assert (
            opened.value("idle.long") != before
        )  # a worker with a long call in flight is not idle


@pytest.mark.slow
def test_every_call_restarts_the_idle_timeout(tmp_path: Path) -> None:
    with open_workers(tmp_path, "workers: {idle_timeout: 2}") as opened:
        opened.write("busy", PID)
        opened.write("lazy", PID)
        lazy, pids = opened.value("lazy.pid"), {opened.value("busy.pid")}
        while is_alive(lazy):  # without calls the busy worker would have stopped, too
            pids.add(opened.value("busy.pid"))
            opened.app.portal.call(anyio.sleep, 0.05)
        assert len(pids) == 1


# --- secrets and settings -------------------------------------------------------------------------

REPORTS_ENVIRONMENT = "import os\ndef tell(): return [dict(os.environ), ot.settings, os.getpid()]\n"


def write_secrets(directory: Path, text: str) -> None:
    directory.mkdir(parents=True, exist_ok=True)
    file = directory / "secrets.yaml"
    file.write_text(textwrap.dedent(text), encoding="utf-8")
    file.chmod(0o600)


def configure(directory: Path, text: str) -> None:
    (directory / "onetool.yaml").write_text(textwrap.dedent(text), encoding="utf-8")


def test_a_pack_gets_only_its_own_secrets_and_settings(tmp_path: Path) -> None:
    write_secrets(tmp_path / ".onetool", "MINE: aaaa-1111\nYOURS: bbbb-2222\nNOBODYS: cccc-3333\n")
    settings = """
        tools:
          mine: {secrets: [MINE], colour: red, deep: {list: [1, 2]}}
          yours: {secrets: [YOURS, MISSING], colour: blue}
        """
    outside = {
        "SERVER_TOKEN": "dddd-4444",
        "UV_INDEX_X_PASSWORD": "eeee-5555",
        "UV_PUBLISH_TOKEN": "ffff-6666",
    }
    with open_workers(tmp_path, settings, env=outside) as opened:
        for pack, header in (("mine", ""), ("yours", HEADER), ("neither", "")):
            opened.write(pack, REPORTS_ENVIRONMENT, header)
        seen = {pack: opened.value(f"{pack}.tell") for pack in ("mine", "yours", "neither")}
    assert seen["mine"][1] == {"colour": "red", "deep": {"list": [1, 2]}}
    assert seen["yours"][1] == {"colour": "blue"}
    assert seen["neither"][1] == {}
    secrets = {pack: find_secrets(environment) for pack, (environment, _, _) in seen.items()}
    assert secrets == {"mine": {"MINE"}, "yours": {"YOURS"}, "neither": set()}


def find_secrets(environment: dict[str, str]) -> set[str]:
    names = {
        "MINE",
        "YOURS",
        "NOBODYS",
        "MISSING",
        "SERVER_TOKEN",
        "UV_INDEX_X_PASSWORD",
        "UV_PUBLISH_TOKEN",
    }
    return names & environment.keys()


def test_the_command_line_of_a_worker_contains_no_secrets_or_settings(tmp_path: Path) -> None:
    write_secrets(tmp_path / ".onetool", "TOKEN: aaaa-1111\n")
    with open_workers(tmp_path, "tools: {quiet: {secrets: [TOKEN], colour: vermilion}}") as opened:
        opened.write("quiet", PID)
        line = Path(f"/proc/{opened.value('quiet.pid')}/cmdline").read_bytes()
    assert b"vermilion" not in line
    assert b"aaaa-1111" not in line


def test_a_reload_restarts_workers_with_changed_settings_or_secrets(tmp_path: Path) -> None:
    directory = tmp_path / ".onetool"
    write_secrets(directory, "TOKEN: aaaa-1111\n")
    with open_workers(
        tmp_path, "tools: {a: {colour: red}, b: {secrets: [TOKEN]}, c: {colour: red}}"
    ) as opened:
        for pack in "abc":
            opened.write(pack, REPORTS_ENVIRONMENT)
        before = {pack: opened.value(f"{pack}.tell") for pack in "abc"}
        configure(directory, "tools: {a: {colour: blue}, b: {secrets: [TOKEN]}, c: {colour: red}}")
        write_secrets(directory, "TOKEN: bbbb-2222\n")
        opened.value("ot.reload")
        after = {pack: opened.value(f"{pack}.tell") for pack in "abc"}
        assert after["a"][1] == {"colour": "blue"}
        assert after["b"][0]["TOKEN"] == "bbbb-2222"
        assert after["c"][2] == before["c"][2]
        assert eventually(lambda: not is_alive(before["a"][2]) and not is_alive(before["b"][2]))


def test_a_reload_does_not_interrupt_active_calls(tmp_path: Path) -> None:
    with open_workers(tmp_path, "tools: {calm: {colour: red}}") as opened:
        opened.write("calm", WAITS)
        call = opened.start("calm.wait", folder=str(tmp_path), mine="mine")
        assert eventually((tmp_path / "mine").exists)
        configure(opened.folder, "tools: {calm: {colour: blue}}")
        opened.value("ot.reload")
        (tmp_path / "go").touch()
        assert call.result(TIMEOUT_SECONDS).unwrap() == "old"


# --- ot.call --------------------------------------------------------------------------------------

CALLER = """
    import asyncio, contextvars, threading
    from ot import call, ToolError
    kept = []
    def through(name: str, args: dict = {}): return ot.call(name, **args)
    async def from_async(name: str): return await asyncio.to_thread(call, name)
    def caught(name: str):
        try:
            ot.call(name)
        except ToolError as error:
            return [type(error).__name__, str(error), error.fields]
    def in_own_thread(name: str):
        said = []
        def work():
            try: ot.call(name)
            except ToolError as error: said.append(str(error))
        thread = threading.Thread(target=work)
        thread.start()
        thread.join()
        return said
    def keep(): kept.append(contextvars.copy_context())
    def use_kept(name: str): return kept.pop().run(caught, name)
    def down(levels: int): return "bottom" if levels == 0 else ot.call("caller.down", levels=levels - 1)
    """
WRITING = 'permissions = ["write"]\ndef scribble(): return "scribbled"\n'
AGENTS = "agents: {reader: {permissions: [read]}, writer: {permissions: [read, write]}}"


@pytest.fixture(scope="module")
def caller(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Workers]:
    with open_workers(
        tmp_path_factory.mktemp("home"), AGENTS + "\ntools: {deep: {timeout: 20}}\n"
    ) as opened:
        opened.write("caller", CALLER)
        opened.write("writing", WRITING)
        yield opened


def test_nested_calls_have_the_permissions_of_the_original_caller(caller: Workers) -> None:
    through = partial(caller.app.call, "caller.through", {"name": "writing.scribble"})
    assert through(agent="writer").unwrap() == "scribbled"
    message = str(through(agent="reader").error)
    assert message.startswith("Tool requires write permission but agent only has [read]")
    twice = {"name": "caller.through", "args": {"name": "writing.scribble"}}
    assert not caller.app.call("caller.through", twice, agent="reader").ok
    assert caller.app.call("caller.through", twice, agent="writer").unwrap() == "scribbled"


def test_errors_of_nested_calls_keep_type_message_and_fields(caller: Workers) -> None:
    kind, message, fields = caller.app.call(
        "caller.caught", {"name": "writing.scribble"}, "reader"
    ).unwrap()
    assert kind == "PermissionDenied"
    assert "write permission" in message
    assert fields == {"required": ["write"], "granted": ["read"]}
    assert caller.value("caller.caught", name="no.such")[0] == "ToolNotFound"


def test_async_tools_can_make_nested_calls(caller: Workers) -> None:
    assert "T" in str(caller.value("caller.from_async", name="machine.now"))


def test_a_nested_call_outside_of_a_call_is_rejected(caller: Workers) -> None:
    assert (
        "only available during a call"
        in caller.value("caller.in_own_thread", name="machine.now")[0]
    )
    caller.value("caller.keep")
    assert "has already ended" in caller.value("caller.use_kept", name="machine.now")[1]


def test_a_worker_can_call_itself_through_the_server(caller: Workers) -> None:
    assert caller.value("caller.down", levels=25) == "bottom"


def test_a_worker_can_call_itself_100_levels_deep(caller: Workers) -> None:
    caller.write("deep", CALLER.replace("caller.down", "deep.down"))
    assert caller.value("deep.down", levels=100) == "bottom"


def test_fifty_concurrent_calls_can_each_call_the_same_worker(caller: Workers) -> None:
    caller.write(
        "wide",
        """
        import threading
        together = threading.Barrier(50)
        def meet(): return together.wait(20) >= 0
        def through(name: str): return ot.call(name)
        """,
    )
    calls = [caller.start("wide.through", name="wide.meet") for _ in range(50)]
    assert all(call.result(30).unwrap() for call in calls)


# --- cancellation ---------------------------------------------------------------------------------

CANCELLABLE = """
    import asyncio, os, pathlib, time
    def pid(): return os.getpid()
    def sync(folder: str):
        pathlib.Path(folder, "begun").touch()
        try:
            while True: time.sleep(0.01)
        finally:
            pathlib.Path(folder, "cancelled").touch()
    async def on_loop(folder: str):
        pathlib.Path(folder, "begun").touch()
        try:
            await asyncio.sleep(1000)
        except asyncio.CancelledError:
            pathlib.Path(folder, "cancelled").touch()
            raise
    def nested(folder: str): return ot.call("cancel.on_loop", folder=folder)
    def nested_sync(folder: str): return ot.call("cancel.sync", folder=folder)
    """


@pytest.mark.parametrize("function", ["sync", "on_loop", "nested", "nested_sync"])
def test_cancelling_a_run_cancels_its_calls_in_the_worker(
    all_packs: Workers, tmp_path: Path, function: str
) -> None:
    all_packs.write("cancel", CANCELLABLE)
    before = all_packs.value("cancel.pid")
    run = all_packs.app.start(f"cancel.{function}({str(tmp_path)!r})")
    assert eventually((tmp_path / "begun").exists)
    run.cancel()
    assert eventually((tmp_path / "cancelled").exists)
    assert all_packs.value("cancel.pid") == before


@pytest.fixture
def home(tmp_path: Path) -> Path:
    write_pack(tmp_path / ".onetool", "cancel", CANCELLABLE)
    return tmp_path


def start_run(wire: RawClient, code: str, mark: Path) -> int:
    ident = wire.ask("tools/call", {"name": "run", "arguments": {"command": code}})
    assert eventually(mark.exists, 30)
    return ident


@pytest.mark.parametrize("function", ["sync", "on_loop"])
def test_a_cancellation_by_the_client_reaches_the_worker(home: Path, function: str) -> None:
    with RawClient(home) as wire:
        ident = start_run(wire, f"cancel.{function}({str(home)!r})", home / "begun")
        wire.send(
            {"jsonrpc": "2.0", "method": "notifications/cancelled", "params": {"requestId": ident}}
        )
        assert eventually((home / "cancelled").exists)
        assert "result" in wire.run("cancel.pid()")


def test_all_processes_end_when_the_client_disconnects(home: Path) -> None:
    with RawClient(home) as wire:
        start_run(wire, f"cancel.sync({str(home)!r})", home / "begun")
        with ProcessWatch(list_descendants(wire.process.pid)) as processes:
            wire.hang_up()
            assert processes.all_ended()


ESCAPES = """
    import os, subprocess, time
    def flee(mark: str):
        subprocess.Popen(["sleep", "1000"])
        subprocess.Popen(["sleep", "1000"], start_new_session=True)
        if os.fork() == 0:
            os.setsid()
            if os.fork() == 0:
                open(mark, "w").close()
                time.sleep(1000)
            os._exit(0)
        time.sleep(1000)
    """


@pytest.mark.parametrize("header", ["", HEADER], ids=["python", "uv"])
def test_all_processes_end_when_the_server_is_killed(tmp_path: Path, header: str) -> None:
    write_pack(tmp_path / ".onetool", "escapes", ESCAPES, header)
    command = [
        "env",
        *(f"{name}={value}" for name, value in uv_environment().items() if name != "HOME"),
        PROGRAM,
    ]
    with RawClient(tmp_path, command) as wire:
        start_run(wire, f"escapes.flee({str(tmp_path / 'mark')!r})", tmp_path / "mark")
        descendants = list_descendants(wire.process.pid)
        assert len(descendants) >= 7
        with ProcessWatch(descendants) as processes:
            wire.process.kill()
            assert processes.all_ended()


# --- the sandbox of a pack ------------------------------------------------------------------------

needs_landlock = pytest.mark.skipif(landlock_version() < 1, reason="this kernel has no Landlock")
REACHES = """
    import os, pathlib, socket, subprocess, sys, tempfile, urllib.request
    import json, ssl, sqlite3, email
    def read(path: str): return pathlib.Path(path).read_text()
    def write(path: str): return pathlib.Path(path).write_text("written")
    def listed(path: str): return os.listdir(path)
    def by_program(path: str): return subprocess.run(["cat", path], capture_output=True, text=True).stdout
    def written_by_program(path: str): return subprocess.run(["sh", "-c", f"echo x > {path}"]).returncode
    def connect(port: int): socket.create_connection(("127.0.0.1", port), 5).close()
    def datagram(): return socket.socket(socket.AF_INET, socket.SOCK_DGRAM).fileno()
    def by_python(code: str): return subprocess.run([sys.executable, "-c", code], capture_output=True).returncode
    def signal(pid: int): os.kill(pid, 0)
    """


@pytest.fixture(scope="module")
def sandboxed(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Workers]:
    home = tmp_path_factory.mktemp("home")
    (home / "open").mkdir()
    (home / "work").mkdir()
    (home / "secret").write_text("hidden", encoding="utf-8")
    (home / "open" / "known").write_text("shown", encoding="utf-8")
    settings = f"""
        tools:
          fenced: {{sandbox: {{allowed_paths: [{home / "open"}]}}}}
          online: {{sandbox: {{allowed_paths: ["~/open"]}}, permissions: [network]}}
          at_home: {{sandbox: {{}}}}
          free: {{sandbox: {{enabled: false}}}}
          impossible: {{sandbox: {{denied_patterns: ["*.key"]}}}}
        """
    with open_workers(home, settings, cwd=home / "work") as opened:
        for pack in ("fenced", "online", "at_home", "free", "impossible", "unfenced"):
            opened.write(pack, REACHES, HEADER if pack == "fenced" else "")
        yield opened


@needs_landlock
def test_a_sandboxed_pack_reads_and_writes_only_allowed_paths(sandboxed: Workers) -> None:
    home = sandboxed.folder.parent
    assert sandboxed.value("fenced.read", path=f"{home}/open/known") == "shown"
    assert sandboxed.value("fenced.write", path=f"{home}/open/new") == len("written")
    for function, path in (
        ("read", "secret"),
        ("write", "new"),
        ("write", "open/../new"),
        ("listed", ".onetool"),
    ):
        assert "PermissionError" in sandboxed.error(f"fenced.{function}", path=f"{home}/{path}")
    (home / "open" / "link").symlink_to(home / "secret")
    assert "PermissionError" in sandboxed.error("fenced.read", path=f"{home}/open/link")
    assert not (home / "new").exists()


@needs_landlock
def test_child_processes_of_a_sandboxed_pack_are_sandboxed(sandboxed: Workers) -> None:
    home = sandboxed.folder.parent
    assert sandboxed.value("fenced.by_program", path=f"{home}/open/known") == "shown"
    assert sandboxed.value("fenced.by_program", path=f"{home}/secret") == ""
    assert sandboxed.value("fenced.written_by_program", path=f"{home}/new") != 0
    assert sandboxed.value("fenced.by_python", code=f"open({str(home / 'secret')!r})") != 0
    assert sandboxed.value("fenced.by_python", code="import socket; socket.socket()") != 0
    assert sandboxed.value("fenced.by_python", code="pass") == 0


@needs_landlock
def test_a_sandboxed_pack_has_network_only_with_permission(sandboxed: Workers) -> None:
    import socket

    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        assert "PermissionError" in sandboxed.error("fenced.connect", port=port)
        assert "PermissionError" in sandboxed.error("fenced.datagram")
        assert sandboxed.is_well("online.connect", port=port)
        assert "PermissionError" in sandboxed.error(
            "online.read", path=f"{sandboxed.folder.parent}/secret"
        )


@needs_landlock
def test_a_sandboxed_pack_cannot_signal_its_server(sandboxed: Workers) -> None:
    assert "PermissionError" in sandboxed.error("fenced.signal", pid=os.getpid())
    assert sandboxed.is_well("unfenced.signal", pid=os.getpid())


@needs_landlock
def test_a_sandbox_without_paths_allows_the_working_directory(sandboxed: Workers) -> None:
    home = sandboxed.folder.parent
    assert sandboxed.is_well("at_home.write", path=f"{home}/work/new")
    assert "PermissionError" in sandboxed.error("at_home.read", path=f"{home}/secret")


def test_a_pack_is_sandboxed_only_if_its_settings_say_so(sandboxed: Workers) -> None:
    for pack in ("free", "unfenced"):
        assert sandboxed.value(f"{pack}.read", path=f"{sandboxed.folder.parent}/secret") == "hidden"


def test_an_unsupported_sandbox_setting_is_rejected(sandboxed: Workers) -> None:
    assert "denied_patterns is not supported" in sandboxed.error("impossible.listed", path="/")


# --- environments ---------------------------------------------------------------------------------


def test_an_environment_is_created_in_the_background_and_logged(tmp_path: Path) -> None:
    with open_workers(tmp_path) as opened:
        opened.write("ahead", "import six\ndef version(): return six.__version__\n", HEADER)
        opened.app.portal.call(opened.app.onetool.discover)
        assert eventually(lambda: list((opened.folder / "environments").glob("*.path")), 60)
        assert eventually(lambda: '"worker.environment"' in opened.log)
        assert opened.value("ot.health")["workers"]["ahead"] == "not started"
        assert opened.value("ahead.version")[0].isdigit()


def test_a_caller_that_waits_for_uv_gets_progress(tmp_path: Path) -> None:
    messages: list[str] = []
    with open_workers(tmp_path) as opened:
        opened.write("fresh", "import six\ndef name(): return six.__name__\n", HEADER)
        onetool = opened.app.onetool
        context = replace(onetool.context(), client=CallClient(progress=messages.append))
        result: Result = opened.app.portal.call(onetool.bus.call_tool, "fresh.name", {}, context)
    assert result.unwrap() == "six"
    assert messages[-1] == "fresh: starting"


def test_a_failed_environment_is_reported_with_the_output_of_uv(tmp_path: Path) -> None:
    with open_workers(tmp_path, env={"UV_OFFLINE": "1"}) as opened:
        opened.write(
            "wrong", "def f(): return 1\n", HEADER.replace("six", "no-such-package-at-all")
        )
        message = opened.error("wrong.f")
    assert "no-such-package-at-all" in message


@pytest.mark.slow
def test_progress_reports_what_a_run_waits_for(tmp_path: Path) -> None:
    write_pack(
        tmp_path / ".onetool", "slow", "import time\ntime.sleep(2.5)\ndef f(): return 'ready'\n"
    )
    reports: list[Any] = []
    with connect(tmp_path) as connection:
        assert get_texts(run_with_progress(connection, "slow.f()", reports)) == ["ready"]
    assert any("slow: starting" in str(message) for message in reports)


def run_with_progress(connection: Connection, command: str, reports: list[Any]) -> Any:
    async def report(progress: float, total: float | None, message: str | None) -> None:  # noqa: ARG001 - signature of the SDK
        reports.append(message)

    call = partial(connection.client.call_tool, progress_callback=report)
    return connection.portal.call(call, "run", {"command": command})


# --- trust ----------------------------------------------------------------------------------------


def test_a_new_file_in_a_trusted_project_needs_trust_again(tmp_path: Path) -> None:
    project = tmp_path / "project"
    own = project / ".onetool"
    write_pack(own, "first", PID)
    (tmp_path / ".onetool").mkdir()
    trust(own, tmp_path / ".onetool")
    with open_workers(tmp_path, cwd=project) as opened:
        before = opened.value("first.pid")
        write_pack(own, "second", f"open({str(tmp_path / 'ran')!r}, 'w')\n{PID}")
        assert "ToolNotFound" in opened.error("second.pid")
        assert "NameError" in opened.app.failure("second.pid()")
        assert eventually(lambda: has_problem(opened, "onetool trust"))
        assert not (tmp_path / "ran").exists()
        assert opened.value("first.pid") == before
        trust(own, tmp_path / ".onetool")
        assert opened.is_well("second.pid")
        assert eventually(lambda: not has_problem(opened, "onetool trust"))
        assert opened.value("first.pid") == before
        opened.write("third", PID)  # in the user directory
        assert opened.is_well("third.pid")


def test_an_untrusted_project_runs_no_code(tmp_path: Path) -> None:
    project = tmp_path / "project"
    write_pack(project / ".onetool", "cloned", f"open({str(tmp_path / 'ran')!r}, 'w')\n{PID}")
    with open_workers(tmp_path, cwd=project) as opened:
        assert "ToolNotFound" in opened.error("cloned.pid")
    assert not (tmp_path / "ran").exists()
