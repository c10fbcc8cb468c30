"""Helpers for all tests: OneTool in this process, its command line, and two kinds of MCP client.

Nothing is mocked: cells and processes are real, and the MCP client is the official one. Tests are
plain functions; asynchronous code runs in the event loop of a portal thread. Every process has its
own home directory.
"""

import asyncio
import gc
import json
import math
import os
import select
import subprocess
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future, wait
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Self, TypeVar

from anyio.from_thread import BlockingPortal, start_blocking_portal
from mcp import Client, StdioServerParameters
from mcp.client.stdio import stdio_client
from mcp_types import CallToolResult, ListToolsResult, TextContent, Tool
from tests import forked_program

from onetool import tool
from onetool.app import OneTool
from onetool.runs.answer import Answer
from onetool.runs.run_output import RunOutput
from onetool.settings.model import Settings
from onetool.sources.extensions.environments import make_uv_environment
from onetool.util.context import Caller, Result
from onetool.util.logging import Log

T = TypeVar("T")
PROGRAM = forked_program.PROGRAM
THREE_LINES = """\
import time
for _ in range(3):
    print(time.time())
    time.sleep(0.5)
'done'
"""
ISOLATION = os.environ.get("ONETOOL_TEST_ISOLATION", "auto")  # the option --isolation of pytest
ISOLATION_ENVIRONMENT = {} if ISOLATION == "auto" else {"ONETOOL_EXECUTION__ISOLATION": ISOLATION}
TIMEOUT_SECONDS = 40.0  # generous, because the machine may be busy


# --- OneTool in this process ----------------------------------------------------------------------


@dataclass(frozen=True)
class App:
    portal: BlockingPortal
    onetool: OneTool

    def run(
        self, command: object, *, agent: str = "default", output: RunOutput | None = None
    ) -> Answer:
        return self.portal.call(self.onetool.runs.run, command, Caller(agent), output)

    def start(self, command: str) -> Future[Answer]:
        return self.portal.start_task_soon(self.onetool.run, command)

    def value(self, command: str) -> str:
        answer = self.run(command)
        assert not answer.is_error, answer.text
        return answer.blocks[-1]

    def data(self, code: str) -> Any:
        """Return the value of the last line of the code as JSON data."""
        before, line_break, last = code.rpartition("\n")
        return json.loads(self.value(f"{before}{line_break}[{last}]"))[0]

    def failure(self, command: str) -> str:
        answer = self.run(command)
        assert answer.is_error, answer.text
        return answer.blocks[-1]

    def call(
        self, name: str, params: Mapping[str, Any] | None = None, agent: str = "default"
    ) -> Result:
        result: Result = self.portal.call(
            self.onetool.bus.call_tool, name, params, self.onetool.context(agent)
        )
        return result


@contextmanager
def open_app(
    settings: Mapping[str, Any] | None = None, tools: Iterable[object] = (), log: Log | None = None
) -> Iterator[App]:
    """Open OneTool with these settings and tools, in a temporary directory and, by default, without
    a log.
    """
    with TemporaryDirectory() as folder, start_blocking_portal("asyncio") as portal:
        execution = {"isolation": ISOLATION, **(settings or {}).get("execution", {})}
        valid = Settings.model_validate({**(settings or {}), "execution": execution})
        onetool = OneTool(valid, folder=Path(folder), log=log or Log())
        with portal.wrap_async_context_manager(onetool) as app:
            for tool in tools:
                app.bus.register_tool(tool)
            yield App(portal, app)


# --- OneTool in a separate process ----------------------------------------------------------------


def environment(home: Path) -> dict[str, str]:
    """Return the environment of a process, with its own home and temporary directories.

    The settings of uv are passed on, and its cache is shared by all tests. Tests of the daemon
    start it themselves.
    """
    scratch_directory(home).mkdir(parents=True, exist_ok=True)
    cache = os.environ.get("UV_CACHE_DIR") or str(Path("~/.cache/uv").expanduser())
    own = {"HOME": str(home), "TMPDIR": str(scratch_directory(home)), "UV_CACHE_DIR": cache}
    return {
        **make_uv_environment(os.environ),
        **own,
        **ISOLATION_ENVIRONMENT,
        "ONETOOL_STANDALONE": "1",
    }


def scratch_directory(home: Path) -> Path:
    return home / "tmp"


def configure(home: Path, text: str) -> None:
    file = home / ".onetool" / "onetool.yaml"
    file.parent.mkdir(parents=True, exist_ok=True)
    new = file.with_suffix(".new")  # so that a server never reads a part of it
    new.write_text(text, encoding="utf-8")
    new.replace(file)


def run_cli(home: Path, *arguments: str, **variables: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [PROGRAM, *arguments],
        cwd=home,
        env={**environment(home), **variables},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        encoding="utf-8",
        timeout=60,
        check=False,
    )


@dataclass(frozen=True)
class Connection:
    """The official client, connected to a server that it started."""

    portal: BlockingPortal
    client: Client
    home: Path
    server: int = 0  # process ID; 0 if it is not a child of this process

    def run(self, command: object) -> CallToolResult:
        return self.call("run", {"command": command})

    def call(self, name: str, arguments: dict[str, Any] | None) -> CallToolResult:
        result: CallToolResult = self.portal.call(self.client.call_tool, name, arguments)
        return result

    def tools(self) -> list[Tool]:
        listed: ListToolsResult = self.portal.call(self.client.list_tools)
        return listed.tools

    def start(self, command: str) -> Future[CallToolResult]:
        return self.portal.start_task_soon(self.client.call_tool, "run", {"command": command})


@contextmanager
def connect(
    home: Path,
    mode: str = "auto",
    command: Sequence[str] = (PROGRAM,),
    env: Mapping[str, str] | None = None,
    **options: Any,
) -> Iterator[Connection]:
    """Start a server and connect to it.

    `auto` uses the protocol of 2026, `legacy` starts with a handshake.

    `options` are those of the client, such as its callbacks.
    """
    variables = dict(env or environment(home))
    server = StdioServerParameters(
        command=command[0], args=list(command[1:]), env=variables, cwd=home
    )
    with (
        (home / "stderr").open("a", encoding="utf-8") as errors,
        start_blocking_portal("asyncio") as portal,
    ):
        client = Client(stdio_client(server, errors), mode=mode, **options)
        manager = portal.wrap_async_context_manager(client)
        forked_program.start_server()  # a child process too
        before = list_children(os.getpid())
        manager.__enter__()
        (process,) = list_children(os.getpid()) - before
        try:
            yield Connection(portal, client, home, process)
        finally:  # otherwise the client wraps errors of tests in nested exception groups
            manager.__exit__(None, None, None)


def get_texts(result: CallToolResult) -> list[str]:
    """Return the texts of a result, which must contain nothing else."""
    assert all(isinstance(block, TextContent) for block in result.content), result.content
    return [block.text for block in result.content if isinstance(block, TextContent)]


# A neighbor that waits for its WebAssembly sandbox also counts what threads of the server do in the
# meantime.
MAX_DELAY_SECONDS = 0.25 if ISOLATION == "auto" else 1.0
NEIGHBOR_PAUSE_SECONDS = (
    0.01  # without pauses, neighbors take most of the processor time of some tests
)


def run_attack(client: Connection, code: str) -> str:
    """Run the code and return its answer. Meanwhile, a neighbor must never wait for long."""
    return "\n".join(get_texts(run_beside_neighbor(client, client.start(code))))


def run_beside_neighbor(client: Connection, attacking: Future[T]) -> T:
    """Return the result of a call.

    Meanwhile, a neighbor must never wait for long (longer on a slow machine).
    """
    return watch_neighbor(client.server, attacking, lambda: get_texts(client.run("1 + 1")) == ["2"])


class NeighborDelayed(AssertionError):
    """A neighbor waited too long. `conftest.py` measures the whole test again, as noise only adds."""


def watch_neighbor(process: int, attacking: Future[T], ask: Callable[[], bool]) -> T:
    """Return the result of a call.

    Until it ends, a neighbor asks again and again, with short pauses.
    """
    delays: list[float] = []
    while not delays or not wait([attacking], NEIGHBOR_PAUSE_SECONDS).done:
        delays.append(measure_delay(process, ask))
    if max(delays) >= MAX_DELAY_SECONDS and max(delays) >= measure_loop():
        raise NeighborDelayed(delays)
    return attacking.result()


def measure_delay(process: int, ask: Callable[[], bool]) -> float:
    """Return how long a neighbor waits for its answer, which must be right.

    On a busy machine, it is the processor time of the server instead: unlike a clock, that does not
    count what else the machine does, but it counts what other threads of the server do on another
    core.
    """
    started = time.perf_counter()
    processor_started = cpu_seconds(process)
    assert ask()
    return min(time.perf_counter() - started, cpu_seconds(process) - processor_started)


def measure_loop() -> float:
    """Return the processor time of five million steps in Python: 0.4 s on a fast machine, 0.8 s on
    a busy one.
    """
    started = time.thread_time()
    total = 0
    for step in range(5_000_000):
        total += step
    return time.thread_time() - started


@contextmanager
def without_collections() -> Iterator[None]:
    """Disable the garbage collector, which takes longer the more objects other tests have left, in
    any thread.
    """
    gc.disable()
    try:
        yield
    finally:
        gc.enable()


def measure_seconds(work: Callable[[], object], enough: float = 0.0, times: int = 3) -> float:
    """Return the processor time that the work takes in this thread: the least of several
    measurements.

    Whatever disturbs a measurement only adds to it. The first one that is below `enough` ends them.
    """
    least = math.inf
    with without_collections():
        for _ in range(times):
            started = time.thread_time()
            work()
            least = min(least, time.thread_time() - started)
            if least < enough:
                break
    return least


def is_within(seconds: float, act: Callable[[], object], times: int = 3) -> bool:
    """Return whether an action of other processes takes less than this time, in one of several
    attempts.

    A busy machine delays attempts, but not always all of them.
    """
    for _ in range(times):
        started = time.monotonic()
        act()
        if time.monotonic() - started < seconds:
            return True
    return False


def cpu_seconds(process: int) -> float:
    """Return the CPU time that all threads of a process have used."""
    fields = (
        Path(f"/proc/{process}/stat")
        .read_text(encoding="ascii", errors="replace")
        .rpartition(")")[2]
        .split()
    )
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def list_children(process: int) -> set[int]:
    """Return the child processes of a process that have not been reaped."""
    return {child for child, parent in _parents() if parent == process}


class RawClient:
    """A client that writes raw messages to the pipes of a server, to send what no proper client
    would send.
    """

    def __init__(
        self,
        home: Path,
        command: Sequence[str] = (PROGRAM,),
        env: Mapping[str, str] | None = None,
        hello: Mapping[str, Any] | None = None,
    ) -> None:
        self._hello = hello or {}
        self._stderr = (home / "stderr").open("ab")
        self.process = subprocess.Popen(
            command,
            cwd=home,
            env=dict(env or environment(home)),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._stderr,
        )
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self._to, self._from = self.process.stdin, self.process.stdout
        self._unread = b""
        self._last_id = 0

    def __enter__(self) -> Self:
        client = {"name": "wire", "version": "1"}
        hello = {
            "protocolVersion": "2025-06-18",
            "capabilities": {},
            "clientInfo": client,
            **self._hello,
        }
        self.request("initialize", hello)
        self.send({"jsonrpc": "2.0", "method": "notifications/initialized"})
        return self

    def __exit__(self, *_: object) -> None:
        self.hang_up()
        try:
            self.process.wait(TIMEOUT_SECONDS)
        finally:
            self.process.kill()
            self.process.wait()

    def hang_up(self) -> None:
        """Disconnect like a client that was killed."""
        for pipe in (self._to, self._from, self._stderr):
            pipe.close()

    def send(self, message: Mapping[str, Any] | bytes) -> None:
        line = message if isinstance(message, bytes) else json.dumps(message).encode()
        self._to.write(line + b"\n")
        self._to.flush()

    def receive(self, seconds: float = TIMEOUT_SECONDS) -> dict[str, Any]:
        """Return the next message of the server."""
        deadline = time.monotonic() + seconds
        while b"\n" not in self._unread:
            ready, _, _ = select.select([self._from], [], [], max(0.0, deadline - time.monotonic()))
            assert ready, "the server did not answer"
            chunk = os.read(self._from.fileno(), 1 << 16)
            assert chunk, "the server hung up"
            self._unread += chunk
        line, _, self._unread = self._unread.partition(b"\n")
        message: dict[str, Any] = json.loads(line)
        return message

    def ask(self, method: str, params: Mapping[str, Any] | None = None) -> int:
        """Send a request without waiting for the response. Return its ID."""
        self._last_id += 1
        self.send(
            {"jsonrpc": "2.0", "id": self._last_id, "method": method, "params": dict(params or {})}
        )
        return self._last_id

    def request(self, method: str, params: Mapping[str, Any] | None = None) -> dict[str, Any]:
        """Send a request and return its response. Late responses to other requests are ignored."""
        ident = self.ask(method, params)
        while (answer := self.receive()).get("id") != ident:
            assert "id" in answer, answer
        return answer

    def run(self, command: object) -> dict[str, Any]:
        return self.request("tools/call", {"name": "run", "arguments": {"command": command}})


# --- processes ------------------------------------------------------------------------------------


def eventually(
    check: Callable[[], object], seconds: float = TIMEOUT_SECONDS, *, pause: float = 0.005
) -> bool:
    """Return whether the check becomes true in time, for changes that another process makes."""
    deadline = time.monotonic() + seconds
    while not check():
        if time.monotonic() > deadline:
            return False
        time.sleep(pause)
    return True


async def advance_time(seconds: float) -> None:
    """Advance the clock of this event loop, and let its timers expire."""
    loop = asyncio.get_running_loop()
    before = loop.time
    setattr(loop, "time", lambda: before() + seconds)  # noqa: B010 - of this loop only
    await asyncio.sleep(0.1)


def list_descendants(process: int) -> set[int]:
    """Return the process and all its descendants."""
    parents = dict(_parents())
    found = {process}
    while more := {child for child, parent in parents.items() if parent in found} - found:
        found |= more
    return found


def _parents() -> Iterator[tuple[int, int]]:
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                stat = (entry / "stat").read_text(encoding="ascii", errors="replace")
            except OSError:  # it has just ended
                continue
            yield int(entry.name), int(stat.rpartition(")")[2].split()[1])


class ProcessWatch:
    """Handles of processes, which tell whether these have ended even if their process IDs are
    reused.
    """

    def __init__(self, processes: Iterable[int]) -> None:
        self._handles = [handle for process in processes for handle in _handle(process)]

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        for handle in self._handles:
            os.close(handle)

    def all_ended(self) -> bool:
        return all(select.select([handle], [], [], TIMEOUT_SECONDS)[0] for handle in self._handles)


def _handle(process: int) -> list[int]:
    try:
        return [os.pidfd_open(process)]
    except ProcessLookupError:  # it has ended already
        return []


# --- tools ----------------------------------------------------------------------------------------


def make_tool(name: str) -> Any:
    """Return a tool without arguments and value."""

    @tool(name)
    def nothing() -> None:
        """Do nothing."""

    return nothing


@tool("sample.give")
def give(value: Any = None) -> Any:
    """Return the value."""
    return value


@tool("sample.search")
def search(query: str, count: int = 5) -> dict[str, Any]:
    """Return the query and the count."""
    return {"query": query, "count": count}
