"""What tests of several folders stand on: an open OneTool, its command line, and both kinds of MCP client.

Everything is real: real cells, real processes, the official client. Tests are plain functions; whatever is
asynchronous happens in the loop of a portal's thread. Every process lives in a home folder of its own.
"""

import asyncio
import json
import os
import select
import subprocess
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Self

from anyio.from_thread import BlockingPortal, start_blocking_portal
from mcp import Client, StdioServerParameters
from mcp.client.stdio import stdio_client
from mcp_types import CallToolResult, ListToolsResult, TextContent, Tool
from tests import forked_program

from onetool import tool
from onetool._tool import Result
from onetool.app import OneTool
from onetool.config.model import Settings
from onetool.extensions.environments import make_uv_environment
from onetool.logging import Log
from onetool.runner.answer import Answer, Journal

PROGRAM = forked_program.PROGRAM
THREE_LINES = """\
import time
for _ in range(3):
    print(time.time())
    time.sleep(0.5)
'done'
"""
PATIENCE = 40.0  # for what happens at once on an idle machine, and is waited for on a busy one


# --- OneTool in this process -------------------------------------------------------------------------------


@dataclass(frozen=True)
class App:
    portal: BlockingPortal
    onetool: OneTool

    def run(self, command: object, *, agent: str = "default", journal: Journal | None = None) -> Answer:
        return self.portal.call(partial(self.onetool.run, command, agent=agent, journal=journal))

    def start(self, command: str) -> Future[Answer]:
        return self.portal.start_task_soon(self.onetool.run, command)

    def value(self, command: str) -> str:
        answer = self.run(command)
        assert not answer.is_error, answer.text
        return answer.blocks[-1]

    def data(self, code: str) -> Any:
        """The value of the code's last line as data, whatever it would have looked like."""
        before, line_break, last = code.rpartition("\n")
        return json.loads(self.value(f"{before}{line_break}[{last}]"))[0]

    def failure(self, command: str) -> str:
        answer = self.run(command)
        assert answer.is_error, answer.text
        return answer.blocks[-1]

    def call(self, name: str, params: Mapping[str, Any] | None = None, agent: str = "default") -> Result:
        result: Result = self.portal.call(self.onetool.bus.call_tool, name, params, self.onetool.context(agent))
        return result


@contextmanager
def opened(
    settings: Mapping[str, Any] | None = None, tools: Iterable[object] = (), log: Log | None = None
) -> Iterator[App]:
    """A OneTool with these settings and tools. It writes no log unless one is given, and forgets all it kept."""
    with TemporaryDirectory() as folder, start_blocking_portal("asyncio") as portal:
        onetool = OneTool(Settings.model_validate(settings or {}), folder=Path(folder), log=log or Log())
        with portal.wrap_async_context_manager(onetool) as app:
            for tool in tools:
                app.bus.register_tool(tool)
            yield App(portal, app)


# --- OneTool in a process of its own -----------------------------------------------------------------------


def environment(home: Path) -> dict[str, str]:
    """All that the process knows of this machine: the home is its own, and so is the folder for scratch.

    What uv needs to reach its index is passed on, and packages are fetched once for all tests.
    """
    scratch_of(home).mkdir(parents=True, exist_ok=True)
    cache = os.environ.get("UV_CACHE_DIR") or str(Path("~/.cache/uv").expanduser())
    own = {"HOME": str(home), "TMPDIR": str(scratch_of(home)), "UV_CACHE_DIR": cache}
    return {**make_uv_environment(os.environ), **own}


def scratch_of(home: Path) -> Path:
    return home / "tmp"


def configure(home: Path, text: str) -> None:
    file = home / ".onetool" / "onetool.yaml"
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(text, encoding="utf-8")


def command_line(home: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [PROGRAM, *arguments],
        cwd=home,
        env=environment(home),
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
    server: int = 0  # its process, where it is a process of ours

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
def connected(home: Path, mode: str = "auto", command: Sequence[str] = (PROGRAM,)) -> Iterator[Connection]:
    """`auto` speaks the protocol of 2026, `legacy` begins with the handshake of the years before."""
    server = StdioServerParameters(command=command[0], args=list(command[1:]), env=environment(home), cwd=home)
    with (home / "stderr").open("a", encoding="utf-8") as errors, start_blocking_portal("asyncio") as portal:
        client = Client(stdio_client(server, errors), mode=mode)
        manager = portal.wrap_async_context_manager(client)
        forked_program.start_server()  # which is a child too
        before = children_of(os.getpid())
        manager.__enter__()
        (process,) = children_of(os.getpid()) - before
        try:
            yield Connection(portal, client, home, process)
        finally:  # the client would wrap what a test raises into groups of groups
            manager.__exit__(None, None, None)


def blocks(result: CallToolResult) -> list[str]:
    """The texts of an answer; whatever else may stand in an answer does not stand in ours."""
    assert all(isinstance(block, TextContent) for block in result.content), result.content
    return [block.text for block in result.content if isinstance(block, TextContent)]


def attack(client: Connection, code: str, max_delay: float = 0.25) -> str:
    """Run the code and return its answer. Meanwhile, a neighbor must never wait for long.

    The delay is the processor time that the server spends between a question of the neighbor and the answer: unlike
    a clock, it does not count what else the machine does.
    """
    attacking = client.start(code)
    delays: list[float] = []
    while not attacking.done() or not delays:
        started = cpu_seconds(client.server)
        assert blocks(client.run("1 + 1")) == ["2"]
        delays.append(cpu_seconds(client.server) - started)
    assert max(delays) < max_delay, delays
    return "\n".join(blocks(attacking.result()))


def cpu_seconds(process: int) -> float:
    """The processor time that all threads of the process have used."""
    fields = Path(f"/proc/{process}/stat").read_text(encoding="ascii", errors="replace").rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def children_of(process: int) -> set[int]:
    """The processes that this one started, and that nobody has waited for yet."""
    return {child for child, parent in _parents() if parent == process}


class Wire:
    """A server at the end of two pipes and nothing in between: for what no proper client would send."""

    def __init__(self, home: Path, command: Sequence[str] = (PROGRAM,)) -> None:
        self._stderr = (home / "stderr").open("ab")
        self.process = subprocess.Popen(
            command,
            cwd=home,
            env=environment(home),
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
        hello = {"protocolVersion": "2025-06-18", "capabilities": {}, "clientInfo": client}
        self.request("initialize", hello)
        self.send({"jsonrpc": "2.0", "method": "notifications/initialized"})
        return self

    def __exit__(self, *_: object) -> None:
        self.hang_up()
        try:
            self.process.wait(PATIENCE)
        finally:
            self.process.kill()
            self.process.wait()

    def hang_up(self) -> None:
        """Be gone, as a client that was killed is gone."""
        for pipe in (self._to, self._from, self._stderr):
            pipe.close()

    def send(self, message: Mapping[str, Any] | bytes) -> None:
        line = message if isinstance(message, bytes) else json.dumps(message).encode()
        self._to.write(line + b"\n")
        self._to.flush()

    def receive(self, seconds: float = PATIENCE) -> dict[str, Any]:
        """The next message of the server."""
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
        """Send a request and do not wait; its id."""
        self._last_id += 1
        self.send({"jsonrpc": "2.0", "id": self._last_id, "method": method, "params": dict(params or {})})
        return self._last_id

    def request(self, method: str, params: Mapping[str, Any] | None = None) -> dict[str, Any]:
        """Ask and wait. Late answers to others are passed over; nothing else may come before the answer."""
        ident = self.ask(method, params)
        while (answer := self.receive()).get("id") != ident:
            assert "id" in answer, answer
        return answer

    def run(self, command: object) -> dict[str, Any]:
        return self.request("tools/call", {"name": "run", "arguments": {"command": command}})


# --- processes ---------------------------------------------------------------------------------------------


def eventually(check: Callable[[], object], seconds: float = PATIENCE) -> bool:
    """Whether it becomes true: for what another process does and nobody announces."""
    deadline = time.monotonic() + seconds
    while not check():
        if time.monotonic() > deadline:
            return False
        time.sleep(0.005)
    return True


async def let_time_pass(seconds: float) -> None:
    """Make the timers of this event loop expire that much sooner, and let them."""
    loop = asyncio.get_running_loop()
    before = loop.time
    setattr(loop, "time", lambda: before() + seconds)  # noqa: B010 - of this loop only
    await asyncio.sleep(0.1)


def family(process: int) -> set[int]:
    """The process and all that it and its children started."""
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
            except OSError:  # it ended while we looked
                continue
            yield int(entry.name), int(stat.rpartition(")")[2].split()[1])


class Watch:
    """Some processes, to be asked whether they have ended. No other can take their number meanwhile."""

    def __init__(self, processes: Iterable[int]) -> None:
        self._handles = [handle for process in processes for handle in _handle(process)]

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        for handle in self._handles:
            os.close(handle)

    def all_ended(self) -> bool:
        return all(select.select([handle], [], [], PATIENCE)[0] for handle in self._handles)


def _handle(process: int) -> list[int]:
    try:
        return [os.pidfd_open(process)]
    except ProcessLookupError:  # it has ended already
        return []


# --- tools -------------------------------------------------------------------------------------------------


@tool("sample.give")
def give(value: Any = None) -> Any:
    """Whatever it was given."""
    return value


@tool("sample.search")
def search(query: str, count: int = 5) -> dict[str, Any]:
    """What it was asked for."""
    return {"query": query, "count": count}
