"""Run OneTool as a program with the targets that hostile code may want to reach.

`tests.cells_support.Arena` controls it by lines of JSON on standard input and output, so that the
tests can observe the effects of a run on this process from outside. It has two apps with different
timeouts, because most attacks end immediately and some never do.
"""

import asyncio
import contextlib
import functools
import json
import os
import socket
import sys
import threading
import time
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any

from tests.e2e import demo_pack
from tests.e2e.missing_layers import pretend_that_this_kernel_has_no

from onetool.app import OneTool
from onetool.core.python_backend import function_tool
from onetool.runs.cells import Cells
from onetool.runs.launch import SpawnLauncher
from onetool.settings.load import Loaded
from onetool.settings.model import Settings
from onetool.settings.paths import Directories
from onetool_child.confine import landlock_version

OTHER_SECRET = "a-secret-of-the-configuration"
PROBE = (
    '[echo("alive"), len("abc"), __import__("json").dumps([1]), __import__("sys").stdout is not'
    " None]"
)
PROBE_ANSWER = '["alive",3,"[1]",true]'
HUNG_SECONDS = 20  # beyond the timeout, for a busy machine
MEMORY = ("VmRSS", "VmHWM")
MAX_CONCURRENT = {"brief": 8, "patient": 4}
MAX_SANDBOXES = 2  # starting one takes much processor time


class Listeners:
    """Listeners that send the sentinel to every client and count connections."""

    def __init__(self, name: str) -> None:
        self.hits = 0
        tcp = socket.create_server(("127.0.0.1", 0))
        self.port: int = tcp.getsockname()[1]
        abstract = socket.socket(socket.AF_UNIX)
        abstract.bind(f"\0{name}")
        abstract.listen()
        for listener in (tcp, abstract):
            threading.Thread(target=self._serve, args=[listener], daemon=True).start()

    def _serve(self, listener: socket.socket) -> None:
        while True:
            connection, _ = listener.accept()
            self.hits += 1
            with connection, contextlib.suppress(OSError):
                connection.sendall(demo_pack.API_KEY.encode())


class Arena:
    def __init__(self, setup: dict[str, Any], answers: int) -> None:
        self._setup, self._answers = setup, answers
        self._folder = Path(setup["folder"])
        self._listeners = Listeners(setup["abstract"])
        self._inherited = os.open(self._folder / "sentinel_inherited", os.O_RDONLY)
        os.set_inheritable(self._inherited, True)
        self._apps: dict[str, OneTool] = {}
        self._tasks: dict[str, asyncio.Task[None]] = {}
        self._turns: dict[str, asyncio.Semaphore] = {}
        self._complaints: list[str] = []

    async def serve(self) -> None:
        asyncio.get_running_loop().set_exception_handler(self._complain)
        async with contextlib.AsyncExitStack() as stack:
            for name, seconds in self._setup["timeouts"].items():
                self._apps[name] = await stack.enter_async_context(self._app(seconds))
                count = (
                    MAX_SANDBOXES if self._setup["isolation"] == "wasm" else MAX_CONCURRENT[name]
                )
                self._turns[name] = asyncio.Semaphore(count)
            self._send({"id": "hello", "port": self._listeners.port})
            await self._read_orders()

    def _app(self, seconds: float) -> OneTool:
        execution = {
            "timeout": seconds,
            "isolation": self._setup["isolation"],
            **self._setup["execution"],
        }
        settings = Settings.model_validate(
            {"aliases": {"echo": "demo.echo"}, "execution": execution}
        )
        directories = Directories(working_dir=self._folder, user=Path.home() / ".onetool")
        loaded = Loaded(settings, {"OTHER": OTHER_SECRET}, (), (), directories)
        spawned = self._setup["launcher"] == "spawned"
        make = functools.partial(Cells, make_launcher=SpawnLauncher) if spawned else Cells
        app = OneTool(read=lambda: loaded, make_cells=make)
        for name, function in demo_pack.TOOLS.items():
            app.bus.register_tool(function_tool(function, f"demo.{name}"))
        return app

    async def _read_orders(self) -> None:
        reader = asyncio.StreamReader(limit=1 << 30)
        protocol = asyncio.StreamReaderProtocol(reader)
        await asyncio.get_running_loop().connect_read_pipe(lambda: protocol, sys.stdin.buffer)
        commands: dict[str, Callable[[dict[str, Any]], Coroutine[Any, Any, dict[str, Any]]]] = {
            "run": self._run,
            "attempt": self._attempt,
            "facts": self._facts,
            "cancel": self._cancel,
        }
        while line := await reader.readline():
            order = json.loads(line)
            task = asyncio.create_task(self._execute(order, commands[order["do"]]))
            self._tasks[order["id"]] = task
            task.add_done_callback(functools.partial(self._forget, order["id"]))

    def _forget(self, ident: str, _task: asyncio.Task[None]) -> None:
        del self._tasks[ident]

    async def _execute(
        self,
        order: dict[str, Any],
        command: Callable[[dict[str, Any]], Coroutine[Any, Any, dict[str, Any]]],
    ) -> None:
        try:
            answer = await command(order)
        except asyncio.CancelledError:
            answer = {"raised": "cancelled"}
        self._send({"id": order["id"], **answer})

    def _send(self, message: dict[str, Any]) -> None:
        left = memoryview(json.dumps(message).encode() + b"\n")
        while left:
            left = left[os.write(self._answers, left) :]

    # --- commands ---------------------------------------------------------------------------------

    async def _run(self, order: dict[str, Any]) -> dict[str, Any]:
        app, started = self._apps[order["app"]], time.monotonic()
        try:
            async with asyncio.timeout(self._setup["timeouts"][order["app"]] + HUNG_SECONDS):
                answer = await app.run(order["code"])
        except TimeoutError:
            return {"raised": "hung", "seconds": time.monotonic() - started}
        except Exception as error:  # noqa: BLE001 - the tests check whether it raises
            return {"raised": repr(error), "seconds": time.monotonic() - started}
        seconds = time.monotonic() - started
        shown = {
            "blocks": [block[: order["shown"]] for block in answer.blocks],
            "length": len(answer.text),
        }
        return {**shown, "is_error": answer.is_error, "error": answer.error, "seconds": seconds}

    async def _attempt(self, order: dict[str, Any]) -> dict[str, Any]:
        """Run the code, then another run that must not be affected."""
        async with self._turns[order["app"]]:
            answer = await self._run(order)
            probe = await self._run({**order, "app": "patient", "code": PROBE})
        return {**answer, "probe": "\n".join(probe.get("blocks", [])) or probe["raised"]}

    async def _facts(self, _order: dict[str, Any]) -> dict[str, Any]:
        memory = _read_memory()
        return {
            "user": os.geteuid(),
            "hits": self._listeners.hits,
            "echoed": len(demo_pack.ECHOED),
            "descriptors": len(os.listdir("/proc/self/fd")),  # noqa: PTH208 - of this process only
            "memory_kb": memory["VmRSS"],
            "peak_kb": memory["VmHWM"],
            "complaints": self._complaints,
        }

    async def _cancel(self, order: dict[str, Any]) -> dict[str, Any]:
        if order["of"] in self._tasks:
            self._tasks[order["of"]].cancel()
        return {}

    def _complain(self, _loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        self._complaints.append(f"{context.get('message')}: {context.get('exception')!r}")


def _read_memory() -> dict[str, int]:
    lines = Path("/proc/self/status").read_text(encoding="ascii").splitlines()
    facts = dict(line.split(":", 1) for line in lines)
    return {name: int(facts[name].split()[0]) for name in MEMORY}


def main(text: str) -> None:
    setup: dict[str, Any] = json.loads(text)
    pretend_that_this_kernel_has_no(setup["lacking"])
    landlock_version.cache_clear()  # a forked process has the value of its parent
    answers = os.dup(1)
    os.dup2(2, 1)
    asyncio.run(Arena(setup, answers).serve())


if __name__ == "__main__":
    main(sys.argv[1])
