"""Failures of workers: they are contained and reported, and the next call works."""

import os
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.extensions_support import HEADER, configure, open_app_in, write_pack
from tests.support import TIMEOUT_SECONDS, eventually
from tests.workers_support import Workers, is_alive, open_workers

from onetool.runs.run_output import ClientChannel, RunOutput

SETTINGS = """
    workers: {call_timeout: 30}
    tools:
      looping: {timeout: 0.4}
      sleeping: {timeout: 0.4}
      stopped: {timeout: 0.4}
      deaf: {timeout: 8}
"""


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("home")


@pytest.fixture(scope="module")
def all_packs(home: Path) -> Iterator[Workers]:
    with open_workers(home, SETTINGS) as opened:
        yield opened


# --- crashes --------------------------------------------------------------------------------------

CRASHES = {
    "status 3": "os._exit(3)",
    "SIGKILL": "os.kill(os.getpid(), signal.SIGKILL)",
    "SIGSEGV": "os.kill(os.getpid(), signal.SIGSEGV)",
    "SIGABRT": "os.abort()",
    "SIGTERM": "os.killpg(0, signal.SIGTERM)",
}


@pytest.mark.parametrize("reason", CRASHES)
def test_a_crash_is_reported_with_output_and_the_next_call_works(
    all_packs: Workers, reason: str
) -> None:
    pack = reason.lower().replace(" ", "_")
    all_packs.write(
        pack,
        f"""
        import os, signal, sys
        def pid(): return os.getpid()
        def crash():
            print("on the brink", file=sys.stderr)
            {CRASHES[reason]}
        """,
    )
    before = all_packs.value(f"{pack}.pid")
    message = all_packs.error(f"{pack}.crash")
    assert f"{pack}.crash failed" in message
    assert reason in message
    assert "on the brink" in message
    assert not is_alive(before)
    assert all_packs.value(f"{pack}.pid") != before


def test_a_crash_fails_only_the_active_calls_of_its_worker(
    all_packs: Workers, tmp_path: Path
) -> None:
    waits = """
        import os, pathlib, time
        def wait(folder: str, mine: str):
            pathlib.Path(folder, mine).touch()
            while not pathlib.Path(folder, "go").exists():
                time.sleep(0.01)
            return mine
        def crash(): os._exit(1)
        """
    all_packs.write("doomed", waits)
    all_packs.write("bystander", waits)
    names = {f"{pack}{number}": pack for pack in ("doomed", "bystander") for number in range(3)}
    calls = {
        name: all_packs.start(f"{pack}.wait", folder=str(tmp_path), mine=name)
        for name, pack in names.items()
    }
    assert eventually(lambda: all((tmp_path / name).exists() for name in names))
    all_packs.error("doomed.crash")
    for name in ("doomed0", "doomed1", "doomed2"):
        assert "failed" in str(calls[name].result(TIMEOUT_SECONDS).error)
    (tmp_path / "go").touch()
    for name in ("bystander0", "bystander1", "bystander2"):
        assert calls[name].result(TIMEOUT_SECONDS).unwrap() == name


def test_a_worker_that_is_killed_during_a_call_is_replaced(
    all_packs: Workers, tmp_path: Path
) -> None:
    all_packs.write(
        "target",
        """
        import os, pathlib, time
        def pid(): return os.getpid()
        def long(mark: str):
            pathlib.Path(mark).touch()
            time.sleep(1000)
        """,
    )
    victim = all_packs.value("target.pid")
    call = all_packs.start("target.long", mark=str(tmp_path / "mark"))
    assert eventually((tmp_path / "mark").exists)
    os.kill(victim, 9)
    assert "SIGKILL" in str(call.result(TIMEOUT_SECONDS).error)
    assert all_packs.value("target.pid") != victim


def test_health_reports_that_a_worker_ended(all_packs: Workers) -> None:
    all_packs.write(
        "mortal", "import os\ndef pid(): return os.getpid()\ndef crash(): os._exit(1)\n"
    )
    all_packs.value("mortal.pid")
    assert eventually(lambda: all_packs.value("ot.health")["workers"].get("mortal") == "running")
    all_packs.error("mortal.crash")
    assert eventually(lambda: all_packs.value("ot.health")["workers"]["mortal"].startswith("ended"))


# --- hangs ----------------------------------------------------------------------------------------


def test_an_endless_loop_is_interrupted_at_the_timeout(all_packs: Workers) -> None:
    all_packs.write(
        "looping",
        """
        import os
        def pid(): return os.getpid()
        def loop():
            while True: pass
        """,
    )
    before = all_packs.value("looping.pid")
    assert all_packs.error("looping.loop") == "ToolTimeout: looping.loop took longer than 0.4 s"
    assert all_packs.value("looping.pid") == before


@pytest.mark.parametrize("pack", ["sleeping", "stopped"])
def test_a_worker_that_cannot_be_interrupted_is_replaced(all_packs: Workers, pack: str) -> None:
    hang = {
        "sleeping": "time.sleep(1000)",
        "stopped": "os.kill(os.getpid(), signal.SIGSTOP); time.sleep(1000)",
    }[pack]
    all_packs.write(
        pack,
        f"""
        import os, signal, time
        def pid(): return os.getpid()
        def hang(): {hang}
        """,
    )
    pids: list[int] = []
    for _ in range(3):  # a busy machine delays some attempts
        pids.append(all_packs.value(f"{pack}.pid"))
        assert "ToolTimeout" in all_packs.error(f"{pack}.hang")
        started = time.monotonic()
        assert all_packs.value(f"{pack}.pid") not in pids  # the next call
        if (seconds := time.monotonic() - started) < 1.5:
            break
    assert seconds < 1.5  # it does not wait for the old worker to end
    assert eventually(lambda: not any(map(is_alive, pids)))


@pytest.mark.nightly
def test_a_worker_that_never_reads_is_replaced(all_packs: Workers) -> None:
    all_packs.write(
        "deaf",
        """
        import os, signal
        def pid(): return os.getpid()
        def stop(): os.kill(os.getpid(), signal.SIGSTOP)
        def take(text: str): return len(text)
        """,
    )
    before = all_packs.value("deaf.pid")
    calls = [all_packs.start("deaf.stop")]
    assert eventually(lambda: "T (stopped)" in Path(f"/proc/{before}/status").read_text("utf-8"))
    calls += [all_packs.start("deaf.take", text="x" * (8 << 20)) for _ in range(12)]
    message = [str(call.result(60).error) for call in calls]
    assert sum("took longer" in text for text in message) in {8, 9, 10}
    # A call that arrived after the first timeout waited for the next worker instead.
    assert sum("is not reading" in text or text == "None" for text in message) >= 3
    assert eventually(lambda: all_packs.app.call("deaf.take", {"text": "abc"}).value == 3)
    assert eventually(lambda: not is_alive(before))


# --- messages on the pipe -------------------------------------------------------------------------

WRITE_TO_ALL = """
import os, time
def pid(): return os.getpid()
def write(text: str, times: int = 1):
    for descriptor in range(256):
        try:
            os.set_blocking(descriptor, True)
            for _ in range(times):
                os.write(descriptor, text.encode())
        except OSError:
            pass
    if text.endswith("\\n"):  # an incomplete message is noticed with the next one
        time.sleep(1000)
"""
GARBAGE = {
    "text": "garbage\n",
    "an unrequested response": '{"jsonrpc":"2.0","id":987654321,"result":{"value":1}}\n',
    "a list": "[]\n",
    "numbers": "1\n",
    "an invalid request": '{"jsonrpc":"2.0","id":1,"method":"call","params":{}}\n',
    "half a message": '{"jsonrpc":',
    "a deeply nested message": "[" * 100_000 + "\n",
}


@pytest.mark.parametrize("kind", GARBAGE)
def test_garbage_on_every_descriptor_fails_only_the_call(all_packs: Workers, kind: str) -> None:
    pack = f"garbage{list(GARBAGE).index(kind)}"
    all_packs.write(pack, WRITE_TO_ALL)
    before = all_packs.value(f"{pack}.pid")
    assert "failed" in all_packs.error(f"{pack}.write", text=GARBAGE[kind])
    assert eventually(lambda: not is_alive(before))
    assert all_packs.value(f"{pack}.pid") != before


def test_an_endless_message_is_rejected(all_packs: Workers) -> None:
    all_packs.write("endless", WRITE_TO_ALL)
    message = all_packs.error("endless.write", text="x" * (1 << 20), times=40)
    assert "bytes in one message" in message
    assert all_packs.is_well("endless.pid")


def test_a_worker_that_closes_its_pipes_fails_one_call_only(all_packs: Workers) -> None:
    all_packs.write(
        "closing",
        """
        import os
        def pid(): return os.getpid()
        def close_all(): os.closerange(3, 4096)
        def close_one(number: int): os.close(number)
        """,
    )
    assert "failed" in all_packs.error("closing.close_all")
    for number in (3, 4, 5):
        all_packs.app.call("closing.close_one", {"number": number})
        assert eventually(lambda: all_packs.is_well("closing.pid"))


def test_a_worker_responds_without_its_standard_descriptors(all_packs: Workers) -> None:
    all_packs.write(
        "bare",
        """
        import os, sys
        def pid(): return os.getpid()
        def close_them():
            os.closerange(0, 3)
            sys.stdout = sys.stderr = None
            return "closed"
        def fail(): raise ValueError("all the same")
        """,
    )
    assert all_packs.value("bare.close_them") == "closed"
    assert "ValueError: all the same" in all_packs.error("bare.fail")
    assert all_packs.is_well("bare.pid")


def test_printed_output_is_logged_and_never_reaches_the_protocol(all_packs: Workers) -> None:
    all_packs.write(
        "chatty",
        """
        import logging, os, subprocess, sys
        print("at import")
        def talk(times: int):
            for number in range(times):
                print('{"jsonrpc":"2.0","id":1,"result":{"value":"forged"}}')
                print(number, file=sys.stderr)
                os.write(1, b"raw\\n")
            subprocess.run(["echo", "from a child"], check=True)
            os.system("echo from a shell")
            logging.getLogger("x").warning("logged äöü")
            return times
        """,
    )
    assert all_packs.value("chatty.talk", times=5000) == 5000
    for text in ("at import", "from a child", "from a shell", "logged äöü", "4999"):
        assert eventually(lambda text=text: text in all_packs.log), text  # type: ignore[misc]


def test_endless_output_is_truncated_in_the_log_and_in_memory(all_packs: Workers) -> None:
    all_packs.write(
        "flood",
        """
        import os
        def flood(megabytes: int):
            for _ in range(megabytes):
                os.write(2, b"x" * (1 << 20))
            print("done")
            return "done"
        """,
    )
    before = measure_megabytes()
    assert all_packs.value("flood.flood", megabytes=400) == "done"
    assert measure_megabytes() - before < 100
    assert eventually(
        lambda: (
            all_packs.is_well("flood.flood", megabytes=0) and "characters omitted]" in all_packs.log
        )
    )


def measure_megabytes() -> int:
    pages = int(Path("/proc/self/statm").read_text("ascii").split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE") >> 20


# --- sizes ----------------------------------------------------------------------------------------


@pytest.mark.nightly
def test_large_arguments_and_results_are_supported(all_packs: Workers) -> None:
    all_packs.write(
        "large",
        """
        import os
        def pid(): return os.getpid()
        def give(size: int): return {"text": '"' * size, "end": True}
        def take(text: str): return len(text)
        """,
    )
    before = all_packs.value("large.pid")
    given = all_packs.value("large.give", size=12 << 20)
    assert (len(given["text"]), given["end"]) == (12 << 20, True)
    assert all_packs.value("large.take", text="ä" * (10 << 20)) == 10 << 20
    assert all_packs.value("large.pid") == before


@pytest.mark.slow
def test_a_result_over_the_limit_is_rejected_and_the_worker_keeps_running(
    all_packs: Workers,
) -> None:
    all_packs.write(
        "giant",
        """
        import os
        def pid(): return os.getpid()
        def give(): return "x" * 200_000_000
        """,
    )
    before = all_packs.value("giant.pid")
    assert "the result has 200000002 bytes, the limit is 104857600" in all_packs.error("giant.give")
    assert all_packs.value("giant.pid") == before


def test_errors_of_any_size_and_type_are_reported(all_packs: Workers) -> None:
    all_packs.write(
        "odd",
        """
        import os
        class Mute(Exception):
            def __str__(self): raise SystemExit("no")
        def pid(): return os.getpid()
        def long(): raise ValueError("long " * 10_000_000)
        def mute(): raise Mute
        def fields(): raise ot.ToolError("with fields", one=object(), two={1, 2}, three=float("nan"))
        def broken():
            error = ot.ToolError("no fields")
            error.fields = 7
            raise error
        def leave(): raise SystemExit(4)
        def interrupt(): raise KeyboardInterrupt
        def circular():
            value = []
            value.append(value)
            return value
        def unshowable():
            class No:
                def __str__(self): raise ValueError("cannot be shown")
            return No()
        """,
    )
    before = all_packs.value("odd.pid")
    assert len(all_packs.error("odd.long")) < 2_000_000
    assert "Mute" in all_packs.error("odd.mute")
    assert "with fields" in all_packs.error("odd.fields")
    assert "no fields" in all_packs.error("odd.broken")
    assert "SystemExit: 4" in all_packs.error("odd.leave")
    assert "KeyboardInterrupt" in all_packs.error("odd.interrupt")
    assert "refers to itself" in all_packs.error("odd.circular")
    assert "cannot be shown" in all_packs.error("odd.unshowable")
    assert all_packs.value("odd.pid") == before


# --- processes and threads that tools leave behind ------------------------------------------------


def test_a_forked_child_that_returns_sends_no_second_result(all_packs: Workers) -> None:
    all_packs.write(
        "forking",
        """
        import os
        def pid(): return os.getpid()
        def fork(): return "child" if os.fork() == 0 else "parent"
        """,
    )
    before = all_packs.value("forking.pid")
    assert [all_packs.value("forking.fork") for _ in range(5)] == ["parent"] * 5
    assert [all_packs.value("forking.pid") for _ in range(20)] == [before] * 20


ESCAPES = """
import atexit, os, subprocess, sys, threading, time

def own() -> int:
    return os.getpid()

def child() -> int:
    return subprocess.Popen(["sleep", "1000"]).pid

def session() -> int:
    return subprocess.Popen(["sleep", "1000"], start_new_session=True).pid

def daemon() -> int:
    reader, writer = os.pipe()
    if os.fork() == 0:
        os.setsid()
        if os.fork() == 0:
            os.write(writer, str(os.getpid()).encode())
            os.closerange(0, 256)
            time.sleep(1000)
        os._exit(0)
    return int(os.read(reader, 100))

def thread() -> int:
    threading.Thread(target=time.sleep, args=(1000,)).start()
    return os.getpid()

def exit_handler() -> int:
    atexit.register(time.sleep, 1000)
    return os.getpid()

def stop_all() -> None:
    os.killpg(0, 19)
    time.sleep(1000)  # another thread may be the one that takes the signal

def crash() -> None:
    os._exit(1)
"""
LEFT_BEHIND = ("own", "child", "session", "daemon", "thread", "exit_handler")


def test_child_processes_end_when_their_worker_crashes(all_packs: Workers) -> None:
    all_packs.write("leaving", ESCAPES)
    left = {function: all_packs.value(f"leaving.{function}") for function in LEFT_BEHIND}
    assert all(map(is_alive, left.values()))
    all_packs.error("leaving.crash")
    assert eventually(lambda: not any(map(is_alive, left.values()))), left


def test_child_processes_end_when_their_worker_is_replaced(all_packs: Workers) -> None:
    all_packs.write("replaced", ESCAPES)
    left = {function: all_packs.value(f"replaced.{function}") for function in LEFT_BEHIND}
    all_packs.write("replaced", ESCAPES + "\n# changed\n")
    assert all_packs.value("replaced.own") != left["own"]
    assert eventually(lambda: not any(map(is_alive, left.values()))), left


def test_child_processes_of_workers_end_when_the_server_closes(tmp_path: Path) -> None:
    with open_workers(tmp_path, "tools: {escapes: {timeout: 0.4}}") as opened:
        opened.write("escapes", ESCAPES)
        left = {function: opened.value(f"escapes.{function}") for function in LEFT_BEHIND}
        assert "ToolTimeout" in opened.error("escapes.stop_all")
    assert not any(map(is_alive, left.values())), left


def test_exit_handlers_run_when_a_worker_is_stopped(tmp_path: Path) -> None:
    with open_workers(tmp_path) as opened:
        opened.write(
            "polite",
            """
            import atexit, pathlib
            def register(mark: str): atexit.register(pathlib.Path(mark).touch)
            """,
        )
        opened.value("polite.register", mark=str(tmp_path / "mark"))
        assert not (tmp_path / "mark").exists()
    assert (tmp_path / "mark").exists()


# --- starts that fail -----------------------------------------------------------------------------

AT_IMPORT = {
    "raise ValueError('not today')": "ValueError: not today",
    "raise SystemExit('not today')": "SystemExit: not today",
    "import no_such_module": '# dependencies = ["no_such_module"]',
    "ot.call('machine.now')": "ot.call is only available during a call",
    "import os, sys; print('last words', file=sys.stderr); os._exit(5)": "last words",
    "import os; os._exit(5)": "ended with status 5 at import",
    "import os; os.kill(os.getpid(), 9)": "ended with SIGKILL at import",
    "import os; os.closerange(3, 256)": "cannot load",
}


def count_logged_starts(all_packs: Workers, pack: str) -> int:
    return sum(
        '"worker.start"' in line and f'"{pack}"' in line for line in all_packs.log.splitlines()
    )


@pytest.mark.parametrize("code", AT_IMPORT)
def test_a_failure_at_import_is_reported_until_the_file_changes(
    all_packs: Workers, code: str
) -> None:
    pack = f"stillborn{list(AT_IMPORT).index(code)}"
    all_packs.write(pack, f"def f(): return 1\n{code}\n")
    first = all_packs.error(f"{pack}.f")
    assert AT_IMPORT[code] in first
    assert "next attempt" in all_packs.error(f"{pack}.f")
    assert eventually(
        lambda: all_packs.value("ot.health")["workers"].get(pack, "").startswith("failed")
    )
    assert eventually(lambda: count_logged_starts(all_packs, pack) == 1)
    all_packs.write(pack, "def f(): return 2\n")
    assert all_packs.value(f"{pack}.f") == 2


def test_restarts_back_off_and_the_same_reason_is_logged_once(
    all_packs: Workers, tmp_path: Path
) -> None:
    mark = tmp_path / "mark"
    all_packs.write(
        "again",
        f"""
        with open({str(mark)!r}, "a") as file: file.write("x")
        raise ValueError("never")
        def f(): return 1
        """,
    )
    for _ in range(20):
        all_packs.error("again.f")
    assert mark.read_text("ascii") in {"x", "xx"}  # a second has passed on a busy machine
    assert eventually(lambda: "in 2 s" in all_packs.error("again.f"))
    assert mark.read_text("ascii") == "xx"
    assert all_packs.is_well("ot.health")
    assert eventually(lambda: count_logged_starts(all_packs, "again"))
    assert count_logged_starts(all_packs, "again") == 1


def test_a_start_over_the_timeout_is_ended(tmp_path: Path) -> None:
    with open_workers(tmp_path, "workers: {start_timeout: 1}") as opened:
        opened.write(
            "slow",
            f"""
            import os, pathlib, time
            pathlib.Path({str(tmp_path / "pid")!r}).write_text(str(os.getpid()))
            print("still thinking")
            time.sleep(1000)
            def f(): return 1
            """,
        )
        message = opened.error("slow.f")
        assert "slow was not ready within 1 s" in message
        assert "still thinking" in message
        process = int((tmp_path / "pid").read_text("ascii"))
        assert eventually(lambda: not is_alive(process))


def test_waiting_for_an_environment_is_limited_by_the_start_timeout(
    tmp_path: Path, silent_index: str
) -> None:
    configure(tmp_path / ".onetool", "workers: {start_timeout: 1}")
    write_pack(tmp_path / ".onetool" / "tools", "waits", f"{HEADER}def f(): return 1\n")
    variables = {
        **os.environ,
        "UV_CACHE_DIR": str(tmp_path / "uv"),
        "UV_DEFAULT_INDEX": silent_index,
    }
    events: list[tuple[str, object]] = []
    output = RunOutput(
        ClientChannel(listener=lambda event, function: events.append((event, function)))
    )
    with open_app_in(tmp_path, environment=variables) as app:
        answer = app.run("waits.f()", output=output)
        assert app.value("1 + 1") == "2"
    assert "the environment of waits was not ready within 1 s" in answer.text
    assert ("progress", "waits: uv is preparing the environment") in events


def test_calls_during_a_slow_start_wait_for_one_worker(all_packs: Workers, tmp_path: Path) -> None:
    mark = tmp_path / "mark"
    all_packs.write(
        "tardy",
        f"""
        import os, time
        with open({str(mark)!r}, "a") as file: file.write("x")
        time.sleep(0.5)
        def pid(): return os.getpid()
        """,
    )
    calls = [all_packs.start("tardy.pid") for _ in range(20)]
    assert len({call.result(TIMEOUT_SECONDS).unwrap() for call in calls}) == 1
    assert mark.read_text("ascii") == "x"


def test_the_last_of_two_functions_with_the_same_name_is_used(all_packs: Workers) -> None:
    all_packs.write("twice", "def f(a: int): return 'first'\ndef f(b: str = 'x'): return 'last'\n")
    assert all_packs.value("twice.f", b="y") == "last"
