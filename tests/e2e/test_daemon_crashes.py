"""The daemon is killed, stopped, replaced or idle, and so are its clients: nothing hangs, is done
twice or is left.
"""

import json
import os
import random
import shutil
import signal
import subprocess
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any, Self

import pytest
import yaml
from tests.cells_support import NIGHTLY
from tests.daemon_support import (
    CLIENT,
    DaemonHome,
    ask,
    fill_backlog,
    list_commands,
    make_installation,
    open_daemon_home,
    open_socket,
    send_request,
    text_of,
)
from tests.proxy_support import hostile_server
from tests.support import TIMEOUT_SECONDS, ProcessWatch, RawClient, eventually, list_descendants
from tests.workers_support import write_pack

from onetool.processes.stdio_bridge import SILENCE_SECONDS

LAB = """
import os, time
from pathlib import Path
from onetool import Context

FILE = Path(__file__).parents[3] / "lines.txt"

def append(text: str, slow: float = 0) -> str:
    with FILE.open("a") as file:
        file.write(text + "\\n")
    time.sleep(slow)
    return text

def ask(question: str, ctx: Context) -> object:
    schema = {"type": "object", "properties": {"name": {"type": "string"}}, "required": ["name"]}
    return ctx.ask(question, schema)

def process() -> int:
    return os.getpid()
"""
CLIENTS = 10
IDLE_ROUNDS = 50 if NIGHTLY else 5
INTERRUPTED = {"type": "interrupted", "retryable": True}
PERSON: dict[str, Any] = {"capabilities": {"elicitation": {}}}


@pytest.fixture(scope="module")
def lab() -> Iterator[DaemonHome]:
    """Return a home whose daemon a test may kill."""
    with open_daemon_home() as found:
        write_pack(found.home / ".onetool", "lab", LAB)
        yield found


def read_lines(lab: DaemonHome) -> list[str]:
    file = lab.home / "lines.txt"
    return file.read_text("utf-8").splitlines() if file.exists() else []


def start_run(client: RawClient, code: str) -> int:
    return client.ask("tools/call", {"name": "run", "arguments": {"command": code}})


def receive_response(client: RawClient, ident: object) -> dict[str, Any]:
    while (message := client.receive()).get("id") != ident or "method" in message:
        pass
    return message


def is_interrupted(answer: dict[str, Any]) -> bool:
    if "error" not in answer:
        return False
    assert answer["error"]["data"] == INTERRUPTED, answer
    return True


# --- the daemon is killed -------------------------------------------------------------------------


def test_ten_clients_survive_a_killed_daemon_and_nothing_happens_twice(lab: DaemonHome) -> None:
    with ExitStack() as stack:
        clients = [stack.enter_context(lab.client()) for _ in range(CLIENTS)]
        first = lab.daemon
        runs = [
            start_run(each, f"lab.append(text='{n}', slow=60)") for n, each in enumerate(clients)
        ]
        assert eventually(lambda: len(read_lines(lab)) >= 3)
        lab.kill()
        killed = time.monotonic()
        answers = [receive_response(each, run) for each, run in zip(clients, runs, strict=True)]
        assert all(map(is_interrupted, answers))
        after = [start_run(each, f"lab.append(text='again {n}')") for n, each in enumerate(clients)]
        for client, run in zip(clients, after, strict=True):
            assert not receive_response(client, run)["result"]["isError"]
        seconds = time.monotonic() - killed
        assert lab.daemon != first
        assert seconds < 20  # generous: the machine may be busy
    counts = Counter(read_lines(lab))
    assert max(counts.values()) == 1
    assert {f"again {n}" for n in range(CLIENTS)} <= set(counts)


def test_a_question_of_a_killed_daemon_is_cancelled_and_its_late_answer_is_ignored(
    lab: DaemonHome,
) -> None:
    with lab.client(hello=PERSON) as client:
        run = start_run(client, "lab.ask(question='old')")
        question = client.receive()
        assert question["method"] == "elicitation/create"
        lab.kill()
        messages = [client.receive(), client.receive()]
        assert {"jsonrpc": "2.0", "id": run}.items() <= messages[0].items()
        assert is_interrupted(messages[0])
        assert messages[1]["method"] == "notifications/cancelled"
        assert messages[1]["params"]["requestId"] == question["id"]
        run = start_run(client, "lab.ask(question='new')")
        second = client.receive()
        assert "new" in second["params"]["message"]
        assert second["id"] != question["id"]
        for ident, name in ((question["id"], "late"), (second["id"], "Ada")):
            result = {"action": "accept", "content": {"name": name}}
            client.send({"jsonrpc": "2.0", "id": ident, "result": result})
        assert json.loads(text_of(receive_response(client, run))) == {"name": "Ada"}


def test_a_new_daemon_can_cancel_its_question(lab: DaemonHome) -> None:
    """Requests of a later daemon have ids of their own; cancellations must use them too."""
    with lab.client(hello=PERSON) as client:
        lab.kill()
        run = start_run(client, "lab.ask(question='who')")
        question = client.receive()
        client.send(
            {"jsonrpc": "2.0", "method": "notifications/cancelled", "params": {"requestId": run}}
        )
        cancelled = client.receive()
        while cancelled.get("method") != "notifications/cancelled":
            cancelled = client.receive()
        assert cancelled["params"]["requestId"] == question["id"]
        assert text_of(client.run("1 + 1")) == "2"


def test_the_log_level_survives_a_killed_daemon(lab: DaemonHome) -> None:
    with lab.client(hello={"clientInfo": {"name": "named", "version": "1"}}) as client:
        client.request("logging/setLevel", {"level": "error"})
        client.request("tools/list")
        lab.kill()
        assert text_of(client.run("1 + 1")) == "2"
        client.request("tools/list")
        assert [each["name"] for each in lab.status()["clients"]] == ["named"]


@pytest.mark.parametrize("mode", ["auto", "legacy"])
def test_the_client_of_the_sdk_continues_with_a_new_daemon(lab: DaemonHome, mode: str) -> None:
    with lab.connect(mode=mode) as client:
        assert not client.run("1").is_error
        run = client.start("import time\ntime.sleep(60)")
        time.sleep(0.2)
        lab.kill()
        with pytest.raises(Exception, match="ended before it answered"):
            run.result(20)
        assert not client.run("1").is_error


def test_a_daemon_killed_while_it_starts_is_started_again(lab: DaemonHome) -> None:
    lab.stop()
    client = lab.client()
    assert eventually(lambda: lab.daemons)
    os.kill(lab.daemon, signal.SIGKILL)
    with client:
        assert text_of(client.run("1 + 1")) == "2"
        assert lab.daemon


START_AND_KILL = """
import os, signal, sys, time
import onetool.processes.daemon_connection as client
from onetool.cli.start import main as start_command

start = client._start

def start_and_kill(listener, path):
    client._start = start
    start(listener, path)
    while True:
        for pid in filter(str.isdigit, os.listdir("/proc")):
            try:
                words = open(f"/proc/{pid}/cmdline").read().split("\\0")
            except OSError:
                continue
            if "onetool.server.daemon" in words and path in words:
                handle = os.pidfd_open(int(pid))
                signal.pidfd_send_signal(handle, signal.SIGKILL)
                while not client.wait_for(handle, "POLLIN", 10):
                    pass
                return

client._start = start_and_kill
sys.exit(start_command())
"""


def test_a_daemon_that_ends_before_its_client_connects_is_started_again(lab: DaemonHome) -> None:
    lab.stop()
    with lab.client(command=(CLIENT[0], "-c", START_AND_KILL)) as client:
        assert text_of(client.run("1 + 1")) == "2"
        assert client.process.pid in {each["pid"] for each in lab.status()["clients"]}


def test_a_daemon_killed_during_the_handshake_is_started_again(lab: DaemonHome) -> None:
    with lab.client():
        first = lab.daemon
        os.kill(first, signal.SIGSTOP)
        client = lab.client()
        time.sleep(0.15)
        os.kill(first, signal.SIGKILL)
        with client:
            assert text_of(client.run("1 + 1")) == "2"
            assert lab.daemon != first


def test_a_daemon_killed_before_it_answers_initialize_is_replaced(lab: DaemonHome) -> None:
    with lab.client():
        client = lab.client()
        assert eventually(
            lambda: client.process.pid in {each["pid"] for each in lab.status()["clients"]}
        )
        lab.pause()
        hello = {
            "protocolVersion": "2025-06-18",
            "capabilities": {},
            "clientInfo": {"name": "wire", "version": "1"},
        }
        ident = client.ask("initialize", hello)
        time.sleep(0.05)
        lab.kill()
        assert receive_response(client, ident)["result"]["serverInfo"]["name"] == "onetool"
        client.send({"jsonrpc": "2.0", "method": "notifications/initialized"})
        assert text_of(client.run("1 + 1")) == "2"
        client.hang_up()
        client.process.wait()


# --- a client is killed ---------------------------------------------------------------------------


def test_a_killed_client_leaves_nothing(lab: DaemonHome) -> None:
    directory = lab.home / "killed"
    directory.mkdir()
    (directory / "settings.yaml").write_text(
        yaml.safe_dump({"servers": {"echo": hostile_server("echo")}}), encoding="utf-8"
    )
    with lab.client() as other:
        other.run("1")
        before = list_descendants(lab.daemon)
        with lab.client(directory, "--config", "settings.yaml") as client:
            assert text_of(client.run("[echo.echo(text='x'), lab.process() > 0]")) == '["x",true]'
            start_run(
                client, "import os, time\nlab.append(text=f'cell {os.getpid()}')\ntime.sleep(60)"
            )
            assert eventually(
                lambda: any(line.startswith("cell ") for line in read_lines(lab)[-1:])
            )
            cell = int(read_lines(lab)[-1].removeprefix("cell "))
            (application,) = [
                each for each in lab.applications() if each["directory"] == str(directory)
            ]
            assert (application["servers"], application["workers"]) == (["echo"], ["lab"])
            idle_cells = {
                pid
                for pid, words in list_commands()
                if any("onetool_child.zygote" in word for word in words)
            }
            with ProcessWatch(
                list_descendants(lab.daemon) - before - idle_cells | {cell}
            ) as started:
                client.process.kill()
                assert started.all_ended()
        assert str(directory) not in {each["directory"] for each in lab.applications()}
        assert text_of(other.run("1 + 1")) == "2"


# --- the daemon is stopped ------------------------------------------------------------------------


def test_a_stopped_daemon_is_started_by_the_next_request(lab: DaemonHome) -> None:
    with lab.client() as client:
        first = lab.daemon
        run = start_run(client, "import time\ntime.sleep(60)")
        time.sleep(0.2)
        with ProcessWatch(list_descendants(first)) as processes:
            assert ask(lab.sockets[0], {"kind": "stop"})["ok"]
            assert processes.all_ended()
        assert is_interrupted(receive_response(client, run))
        time.sleep(0.2)
        assert (lab.daemons, lab.sockets) == ([], [])
        assert text_of(client.run("1 + 1")) == "2"
        assert lab.daemon != first


def test_a_daemon_that_stops_before_it_answers_initialize_is_replaced(lab: DaemonHome) -> None:
    with lab.client(), ExitStack() as stack:
        clients = [stack.enter_context(Unconnected(lab)) for _ in range(3)]
        known = {each.client.process.pid for each in clients}
        assert eventually(lambda: known <= {each["pid"] for each in lab.status()["clients"]})
        lab.pause()
        with open_socket(lab.sockets[0]) as connection:
            send_request(connection, {"kind": "stop"})
            idents = [each.initialize() for each in clients]
            time.sleep(0.05)
            os.kill(lab.daemon, signal.SIGCONT)
            for each, ident in zip(clients, idents, strict=True):
                assert "result" in receive_response(each.client, ident)


class Unconnected:
    """A client that has not sent `initialize`."""

    def __init__(self, lab: DaemonHome, command: Sequence[str] = CLIENT) -> None:
        self.client = lab.client(command=command)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.client.hang_up()
        self.client.process.wait()

    def initialize(self) -> int:
        hello = {
            "protocolVersion": "2025-06-18",
            "capabilities": {},
            "clientInfo": {"name": "late", "version": "1"},
        }
        return self.client.ask("initialize", hello)


def test_sighup_reloads_and_ends_nothing(lab: DaemonHome) -> None:
    with lab.client() as client, lab.client() as other:
        first = lab.daemon
        assert client.run("moment()")["result"]["isError"]
        lab.configure("aliases: {moment: machine.now}\n")
        client.process.send_signal(signal.SIGHUP)
        assert eventually(lambda: not other.run("moment()")["result"]["isError"])
        assert not client.run("moment()")["result"]["isError"]
        ask(lab.sockets[0], {"kind": "stop"})
        assert eventually(lambda: not lab.daemons)
        client.process.send_signal(signal.SIGHUP)  # there is nothing to reload
        assert text_of(client.run("1 + 1")) == "2"
        assert lab.daemon != first
    (lab.home / ".onetool" / "onetool.yaml").unlink()


# --- SIGSTOP --------------------------------------------------------------------------------------


def test_a_stopped_client_stops_nobody_and_fills_no_memory(lab: DaemonHome) -> None:
    with lab.client() as stopped, lab.client() as other:
        other.run("1")
        before = read_resident_bytes(lab.daemon)
        stopped.process.send_signal(signal.SIGSTOP)
        try:
            for _ in range(60):
                start_run(stopped, "print('x' * 900_000)")
            for number in range(20):
                assert text_of(other.run(f"{number} + 1")) == str(number + 1)
                time.sleep(0.05)
            assert read_resident_bytes(lab.daemon) - before < 60 << 20
        finally:
            stopped.process.send_signal(signal.SIGCONT)
        stopped.process.kill()


def read_resident_bytes(process: int) -> int:
    return int(Path(f"/proc/{process}/statm").read_text(encoding="ascii").split()[1]) * os.sysconf(
        "SC_PAGESIZE"
    )


@pytest.mark.sampled(2)
@pytest.mark.parametrize("is_full", [False, True], ids=["free", "full backlog"])
def test_a_new_client_does_not_wait_for_a_stopped_daemon(lab: DaemonHome, is_full: bool) -> None:
    with lab.client(), ExitStack() as stack:
        lab.pause()
        if is_full:
            fill_backlog(lab.sockets[0], stack)
        started = time.monotonic()
        with lab.client() as client:
            assert text_of(client.run("1 + 1")) == "2"
            assert time.monotonic() - started < 10
            assert len(lab.daemons) == 1
            assert "the shared server does not respond; this client has a server" in read_errors(
                lab
            )
        lab.stop()


def test_a_connected_client_gets_an_answer_from_a_stopped_daemon(lab: DaemonHome) -> None:
    """Each request gets a response, is executed at most once, and the next ones are answered by
    another server.
    """
    with lab.client() as client:
        text_of(client.run("lab.append(text='before')"))
        lab.pause()
        runs = [start_run(client, f"lab.append(text='{name}')") for name in ("first", "second")]
        messages = [receive_response(client, run) for run in runs]
        assert all(map(is_interrupted, messages))
        assert "does not respond" in messages[0]["error"]["message"]
        assert text_of(client.run("lab.append(text='after')")) == "after"
        os.kill(lab.daemon, signal.SIGCONT)
        with lab.client() as other:
            assert text_of(other.run("lab.append(text='other')")) == "other"
        counts = Counter(read_lines(lab))
        assert counts["after"] == counts["other"] == 1
        assert max(counts["first"], counts["second"]) <= 1
    assert "Hint: end the shared server with `onetool daemon stop`" in read_errors(lab)


def test_a_client_sends_much_to_a_stopped_daemon(lab: DaemonHome) -> None:
    """The client waits until the daemon reads, and still finds out that it does not."""
    with lab.client() as client:
        lab.pause()
        run = start_run(client, f"len('{'x' * 900_000}')")
        assert is_interrupted(receive_response(client, run))
        assert text_of(client.run("1 + 1")) == "2"
        lab.stop()


def test_a_long_run_is_not_lost_because_the_daemon_is_silent(lab: DaemonHome) -> None:
    with lab.client() as client:
        assert (
            text_of(client.run(f"import time\ntime.sleep({SILENCE_SECONDS + 2})\n'done'")) == "done"
        )
        assert client.process.pid in {each["pid"] for each in lab.status()["clients"]}


def test_a_command_that_a_stopped_daemon_received_is_executed_once(lab: DaemonHome) -> None:
    with lab.client():
        lab.pause()
        command = [*CLIENT, "run", "lab.append(text='command', slow=1)"]
        with subprocess.Popen(
            command,
            cwd=lab.home,
            env=lab.environment(),
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        ) as running:
            assert eventually(lambda: "command" in read_lines(lab))
            os.kill(lab.daemon, signal.SIGCONT)
            output, errors = running.communicate(timeout=TIMEOUT_SECONDS)
        assert output == "command\n"
        assert "the shared server does not respond; this command runs without it" in errors
        lab.status()
        assert read_lines(lab).count("command") == 1


def test_a_command_ends_if_the_daemon_is_stopped_meanwhile(lab: DaemonHome) -> None:
    with lab.client():
        command = [*CLIENT, "run", "lab.append(text='halted', slow=60)"]
        with subprocess.Popen(
            command,
            cwd=lab.home,
            env=lab.environment(),
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        ) as running:
            assert eventually(lambda: "halted" in read_lines(lab))
            lab.pause()
            _, errors = running.communicate(timeout=TIMEOUT_SECONDS)
        assert running.returncode == 1
        assert "the shared server does not respond; the command may have been carried out" in errors
        lab.stop()


@pytest.mark.parametrize("is_full", [False, True], ids=["free", "full backlog"])
def test_a_stopped_daemon_can_be_ended_and_no_other(lab: DaemonHome, is_full: bool) -> None:
    with open_daemon_home() as neighbor, neighbor.client(), lab.client(), ExitStack() as stack:
        first = lab.daemon
        os.kill(first, signal.SIGSTOP)
        if is_full:
            fill_backlog(lab.sockets[0], stack)
        other = neighbor.daemon
        status = run_daemon_command(lab, "status")
        assert (
            "the shared server does not respond\nHint: `onetool daemon stop` ends it"
            in status.stderr
        )
        with ProcessWatch(list_descendants(first)) as processes:
            stopped = run_daemon_command(lab, "stop")
            assert (
                stopped.stdout
                == f"Stopped the shared server (process {first}), which did not respond.\n"
            )
            assert processes.all_ended()
        assert neighbor.daemon == other


def run_daemon_command(lab: DaemonHome, action: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [*CLIENT, "daemon", action],
        cwd=lab.home,
        env=lab.environment(),
        capture_output=True,
        text=True,
        timeout=TIMEOUT_SECONDS,
        check=False,
    )


def read_errors(lab: DaemonHome) -> str:
    """Return what clients in the home directory have written to standard error."""
    return (lab.home / "stderr").read_text("utf-8")


# --- the assistant closes its input ---------------------------------------------------------------


def test_nothing_is_written_after_the_end_of_input(lab: DaemonHome) -> None:
    """An assistant that ends has closed its reader, and the client of the SDK fails if a message
    arrives.
    """
    with lab.client() as client:
        start_run(client, "lab.append(text='closed', slow=60)")
        assert eventually(lambda: "closed" in read_lines(lab))
        assert close_input(client) == b""


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGSTOP], ids=["killed", "stopped"])
def test_nothing_is_written_about_a_daemon_that_ends_after_the_input(
    lab: DaemonHome, number: signal.Signals
) -> None:
    with lab.client() as client:
        lab.pause()
        start_run(client, "1 + 1")
        client.ask("resources/list")
        assert client.process.stdin is not None
        client.process.stdin.close()
        os.kill(lab.daemon, number)
        assert close_input(client) == b""
    lab.stop()


def close_input(client: RawClient) -> bytes:
    """Close the input of the client process and return what it writes until it ends."""
    assert client.process.stdin is not None
    assert client.process.stdout is not None
    client.process.stdin.close()
    written = client.process.stdout.read()
    assert client.process.wait(TIMEOUT_SECONDS) == 0
    return written


# --- idle and upgraded daemons --------------------------------------------------------------------


def test_an_idle_daemon_ends_with_all_its_processes() -> None:
    with open_daemon_home("daemon: {idle: 0.2}\n") as lab:
        write_pack(lab.home / ".onetool", "lab", LAB)
        with lab.client() as client:
            client.run("lab.process()")
            processes = ProcessWatch(list_descendants(lab.daemon))
        left = time.monotonic()
        with processes:
            assert processes.all_ended()
        assert time.monotonic() - left < 4
        assert (lab.daemons, lab.sockets) == ([], [])


@pytest.mark.nightly
def test_clients_that_connect_when_an_idle_daemon_ends_are_served() -> None:
    """The copy of the program checks fifty times a second whether it is idle, and some clients meet
    its end.
    """
    with open_daemon_home("daemon: {idle: 0.3}\n") as lab:
        edits = {
            "daemon/daemon.py": ("CHECK_SECONDS: Final = 1.0", "CHECK_SECONDS: Final = 0.02"),
            "daemon/applications.py": (
                "LINGER_SECONDS: Final = 1.0",
                "LINGER_SECONDS: Final = 0.01",
            ),
        }
        command = make_installation(lab.runtime.parent / "copy", edits)
        daemons: set[int] = set()
        for number in range(4 * IDLE_ROUNDS):
            if number >= IDLE_ROUNDS and len(daemons) > 1:
                break
            with ExitStack() as stack:
                clients = []
                for _ in range(CLIENTS):
                    clients.append(stack.enter_context(Unconnected(lab, command)))
                    time.sleep(random.uniform(0, 0.03))
                idents = [each.initialize() for each in clients]
                for each, ident in zip(clients, idents, strict=True):
                    assert "result" in receive_response(each.client, ident)
                daemons.update(lab.daemons)
            time.sleep(
                random.uniform(0.2, 0.32)
            )  # some clients come before it is idle, some at its end, some later
        assert len(daemons) > 1


def test_an_upgraded_program_starts_its_own_daemon_and_the_old_one_drains() -> None:
    with open_daemon_home() as lab:
        write_pack(lab.home / ".onetool", "lab", LAB)
        command = make_installation(lab.runtime.parent / "copy")
        version = lab.runtime.parent / "copy" / "src" / "onetool" / "util" / "version.py"
        with lab.client(command=command) as old:
            first = lab.daemon
            old.run("1")
            os.utime(version)
            assert eventually(lambda: "daemon.drain" in lab.log, 5)
            with lab.client(command=command) as new:
                assert text_of(new.run("1 + 1")) == "2"
                assert len(lab.daemons) == 2
                # the old daemon still starts processes for its client
                for _ in range(2):
                    assert text_of(old.run("lab.append(text='x')\n'done'")) == "done"
        assert eventually(lambda: first not in lab.daemons, 5)
        assert len(lab.daemons) == 1


def test_a_client_whose_program_was_removed_answers_every_request() -> None:
    with open_daemon_home() as lab:
        command = make_installation(lab.runtime.parent / "copy")
        with lab.client(command=command) as client:
            shutil.rmtree(lab.runtime.parent / "copy")
            lab.kill()
            for _ in range(2):
                assert is_interrupted(client.run("1"))
