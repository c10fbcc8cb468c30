"""The shared server: starts, memory, processes, round trips and crashes, with one client and with
ten.

Beside it: the same program with one process for each client (`--standalone`), the bare SDK server,
and FastMCP in an environment that uv creates.
"""

import contextlib
import json
import os
import pwd
import signal
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack
from functools import partial
from pathlib import Path

from benchmarks.lib import (
    BARE_SDK,
    ONETOOL,
    SERVERS,
    TIMEOUT_SECONDS,
    Client,
    Command,
    Row,
    WrongAnswer,
    get_result,
    get_text,
    interleave,
    memory,
    tree,
)
from benchmarks.roundtrip import call_after_pause, split_calls

from onetool.processes.daemon_client import STANDALONE

CLIENTS = 10
UPSTREAM_SERVERS = 8
IN_FLIGHT = 64
CALLS_IN_FLIGHT = 256
CALLS = 20
MAX_ROUNDS = 3  # for what hardly varies, or takes long
QUIET_SECONDS = 1.5
IDLE_SECONDS = 3
FASTMCP = "fastmcp>=4"
STANDALONE_SERVER: Command = (*ONETOOL, "serve", "--standalone")
SLEEPER = "import time\ntime.sleep(30)"


def measure(rounds: int) -> list[Row]:
    with use_shared_server(), tempfile.TemporaryDirectory() as folder:
        fastmcp: Command = (install_fastmcp(Path(folder)), SERVERS / "fastmcp_echo.py")
        some = min(rounds, MAX_ROUNDS)
        return [
            *measure_starts(rounds, fastmcp),
            *measure_round_trips(rounds, fastmcp),
            *measure_throughput(some, fastmcp),
            measure_command(rounds),
            *measure_memory(some),
            *measure_processes(),
            *measure_crash(some),
        ]


@contextlib.contextmanager
def use_shared_server() -> Iterator[None]:
    """Let clients share a server of a home directory of its own. Stop it at the end."""
    before = dict(os.environ)
    with tempfile.TemporaryDirectory(
        prefix="otb-", dir="/tmp"
    ) as folder:  # the path of a socket must be short
        os.environ.pop(STANDALONE, None)
        os.environ["XDG_RUNTIME_DIR"] = folder
        try:
            yield
        finally:
            stop_daemon()
            os.environ.clear()
            os.environ.update(before)


def install_fastmcp(folder: Path) -> Path:
    """Return the interpreter of a new environment with FastMCP."""
    environment = {
        **os.environ,
        "HOME": pwd.getpwuid(os.getuid()).pw_dir,
    }  # uv keeps its cache there
    for command in (
        ("venv", "--python", sys.executable, "."),
        ("pip", "install", "--python", ".", FASTMCP),
    ):
        subprocess.run(["uv", *command, "--quiet"], check=True, cwd=folder, env=environment)
    return folder / "bin" / "python"


# --- the daemon -----------------------------------------------------------------------------------


def read_status() -> dict[str, object]:
    found = subprocess.run(
        [*ONETOOL, "daemon", "status", "--json"], check=True, capture_output=True
    ).stdout
    status: dict[str, object] = json.loads(found)
    return status


def find_daemon() -> int:
    pid = read_status()["pid"]
    if not isinstance(pid, int):
        raise WrongAnswer("no shared server is running")
    return pid


def stop_daemon() -> None:
    subprocess.run([*ONETOOL, "daemon", "stop"], check=True, capture_output=True)


def list_tree(clients: list[Client]) -> list[int]:
    """Return the processes of the daemon and of its clients."""
    return [*tree(find_daemon()), *(pid for client in clients for pid in tree(client.pid))]


# --- rows -----------------------------------------------------------------------------------------


def measure_starts(rounds: int, fastmcp: Command) -> list[Row]:
    with Client(ONETOOL) as first:  # keeps the server running
        first.open()
        contestants: Mapping[str, Callable[[], float]] = {
            "warm": partial(time_start, ONETOOL),
            "standalone": partial(time_start, STANDALONE_SERVER),
            "sdk": partial(time_start, BARE_SDK),
            "fastmcp": partial(time_start, fastmcp),
        }
        found = interleave(rounds, contestants)
    stop_daemon()
    against: Mapping[str, Callable[[], float]] = {
        "cold": time_cold_start,
        "sdk": partial(time_start, BARE_SDK),
    }
    cold = interleave(min(rounds, 5), against)
    return [
        Row(
            "start to tools/list, shared server up, against the SDK server",
            found["warm"],
            found["sdk"],
            target=0.12,
        ),
        Row(
            "start to tools/list, shared server not up, against the SDK",
            cold["cold"],
            cold["sdk"],
            target=1.4,
        ),
        Row("the same, standalone", found["standalone"], found["sdk"]),
        Row("the same, FastMCP", found["fastmcp"], found["sdk"]),
    ]


def time_start(command: Command) -> float:
    with Client(command) as client:
        client.open()
        return (time.perf_counter() - client.spawned) * 1e3


def time_cold_start() -> float:
    found = time_start(ONETOOL)
    stop_daemon()
    return found


def measure_round_trips(rounds: int, fastmcp: Command) -> list[Row]:
    commands = {
        "shared": ONETOOL,
        "standalone": STANDALONE_SERVER,
        "sdk": BARE_SDK,
        "fastmcp": fastmcp,
    }
    with ExitStack() as stack:
        clients = {
            name: stack.enter_context(Client(command)).open() for name, command in commands.items()
        }
        contestants = {
            name: partial(call_after_pause, client, "1+1") for name, client in clients.items()
        }
        samples = interleave(rounds * CALLS, contestants)
    found = {
        name: [statistics.median(some) for some in split_calls(values)]
        for name, values in samples.items()
    }
    return [
        Row(
            "run(1+1) through the shared server, against standalone",
            found["shared"],
            found["standalone"],
            target=1.1,
        ),
        Row("the same, against an echo of the SDK server", found["shared"], found["sdk"]),
        Row("the same, against an echo of FastMCP", found["shared"], found["fastmcp"]),
    ]


def measure_throughput(rounds: int, fastmcp: Command) -> list[Row]:
    commands = {"shared": ONETOOL, "standalone": STANDALONE_SERVER, "fastmcp": fastmcp}
    with ExitStack() as stack:
        clients = {
            name: stack.enter_context(Client(command)).open() for name, command in commands.items()
        }
        found = interleave(
            rounds, {name: partial(time_calls, client) for name, client in clients.items()}
        )
    rates = {name: [1e3 / each for each in samples] for name, samples in found.items()}
    return [
        Row(
            f"runs per second, {IN_FLIGHT} in flight, against standalone",
            rates["shared"],
            rates["standalone"],
            "/s",
        ),
        Row("the same, against echoes of FastMCP", rates["shared"], rates["fastmcp"], "/s"),
    ]


def time_calls(client: Client) -> float:
    """Return the milliseconds per call with a constant number of calls in flight."""
    started, sent = time.perf_counter(), 0
    for _ in range(IN_FLIGHT):
        client.send_call("1+1")
        sent += 1
    for _ in range(CALLS_IN_FLIGHT):
        get_text(get_result(client.receive()))
        if sent < CALLS_IN_FLIGHT:
            client.send_call("1+1")
            sent += 1
    return (time.perf_counter() - started) / CALLS_IN_FLIGHT * 1e3


def measure_command(rounds: int) -> Row:
    with Client(ONETOOL) as client:
        client.open().call("1+1")
        found = interleave(
            rounds,
            {
                "ours": partial(time_command, (*ONETOOL, "run", "1+1"), b"2\n"),
                "python": partial(time_command, (sys.executable, "-c", "pass"), b""),
            },
        )
    return Row(
        "onetool run '1+1', shared server up, against python -c pass",
        found["ours"],
        found["python"],
        target=5,
    )


def time_command(command: Command, right: bytes) -> float:
    started = time.perf_counter()
    found = subprocess.run(command, check=True, capture_output=True).stdout
    if found != right:
        raise WrongAnswer(f"{command!r} printed {found!r}")
    return (time.perf_counter() - started) * 1e3


def measure_memory(rounds: int) -> list[Row]:
    contestants = {
        "ten": partial(measure_share, CLIENTS, None),
        "one": partial(measure_share, 1, None),
        "ten projects": partial(measure_share, CLIENTS, Path.cwd()),
    }
    found = interleave(rounds, contestants)
    alone = interleave(1, {"standalone": measure_standalone_share})["standalone"]
    return [
        Row(
            f"memory (PSS) with {CLIENTS} clients, against one",
            found["ten"],
            found["one"],
            "MB",
            target=1.7,
        ),
        Row("the same, each in its own directory", found["ten projects"], found["one"], "MB"),
        Row("the same, standalone", alone, found["one"][:1], "MB"),
    ]


def measure_share(count: int, projects: Path | None) -> float:
    """Return the proportional share of memory of the daemon and its clients after one run each."""
    with open_clients(count, ONETOOL, projects) as clients:
        time.sleep(QUIET_SECONDS)
        share = sum_share(list_tree(clients))
    stop_daemon()
    return share


def measure_standalone_share() -> float:
    with open_clients(CLIENTS, STANDALONE_SERVER) as clients:
        time.sleep(QUIET_SECONDS)
        return sum_share([pid for client in clients for pid in tree(client.pid)])


def sum_share(pids: list[int]) -> float:
    return sum(memory(pid).share for pid in pids)


@contextlib.contextmanager
def open_clients(
    count: int, command: Command, projects: Path | None = None
) -> Iterator[list[Client]]:
    """Open clients that have made one run, in this directory or each in a directory of its own."""
    here = Path.cwd()
    with ExitStack() as stack:
        clients = []
        for number in range(count):
            if projects is not None:
                directory = projects / f"project{number}"
                directory.mkdir(exist_ok=True)
                os.chdir(directory)
            clients.append(stack.enter_context(Client(command)).open())
            os.chdir(here)
            if clients[-1].call("1+1") != "2":
                raise WrongAnswer("run(1+1) is not 2")
        yield clients


def measure_processes() -> list[Row]:
    """Count the processes of ten clients with eight upstream servers, and what is left when all
    clients are gone.
    """
    settings = Path.home() / ".onetool" / "onetool.yaml"
    settings.parent.mkdir(exist_ok=True)
    server = f"command: {BARE_SDK[0]}, args: [{BARE_SDK[1]}, '{{}}']"
    lines = [f"  s{number}: {{{server.format(number)}}}" for number in range(UPSTREAM_SERVERS)]
    settings.write_text("\n".join([f"daemon: {{idle: {IDLE_SECONDS}}}", "servers:", *lines, ""]))
    calls = "\n".join(f"s{number}.echo(text='x')" for number in range(UPSTREAM_SERVERS))
    try:
        with open_clients(CLIENTS, ONETOOL) as clients:
            for client in clients:
                client.call(calls)
            found = list_tree(clients)
            upstream = sum(str(BARE_SDK[1]) in read_command(pid) for pid in found)
        time.sleep(IDLE_SECONDS + 2)
        left = sum(Path(f"/proc/{pid}").exists() for pid in found)
    finally:
        settings.unlink()
    guards = sum("guard" in read_command(pid) for pid in found)
    what = f"{CLIENTS} clients and {UPSTREAM_SERVERS} upstream servers"
    return [
        Row(f"{what}: processes of upstream servers, with their guards", [upstream], unit=""),
        Row(
            f"{what}: all other processes, without the clients",
            [len(found) - upstream - guards - CLIENTS],
            unit="",
        ),
        Row(
            f"processes 2 s after the last client and daemon.idle ({IDLE_SECONDS} s)",
            [left],
            unit="",
            target=0,
        ),
    ]


def read_command(pid: int) -> str:
    with contextlib.suppress(OSError):
        return Path(f"/proc/{pid}/cmdline").read_text()
    return ""


def measure_crash(rounds: int) -> list[Row]:
    """Kill the daemon under ten clients with calls in flight, and time until each client has made
    another run.
    """
    seconds, unanswered = [], 0
    for _ in range(rounds):
        with open_clients(CLIENTS, ONETOOL) as clients:
            calls = [client.send_call(SLEEPER) for client in clients]
            time.sleep(QUIET_SECONDS)
            os.kill(find_daemon(), signal.SIGKILL)
            killed = time.perf_counter()
            ends: list[float] = []
            threads = [
                threading.Thread(target=recover, args=(client, call, ends))
                for client, call in zip(clients, calls, strict=True)
            ]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join(TIMEOUT_SECONDS)
            unanswered += CLIENTS - len(ends)
            seconds.append(max(ends, default=killed + TIMEOUT_SECONDS) - killed)
        stop_daemon()
    return [
        Row(
            f"shared server killed under {CLIENTS} clients: calls without an answer",
            [unanswered],
            unit="",
            target=0,
        ),
        Row(
            "the same: until the next call of the last client is answered",
            seconds,
            unit="s",
            target=2,
        ),
    ]


def recover(client: Client, call: int, ends: list[float]) -> None:
    """Receive the error for the call in flight, then make another one."""
    while (message := client.receive()).get("id") != call:
        pass
    if message["error"]["data"]["type"] != "interrupted" or client.call("1+1") != "2":
        raise WrongAnswer(json.dumps(message))
    ends.append(time.perf_counter())
