"""The HTTP server while it runs: from a socket of its own to a stop that lets what is under way come to its end.

uvicorn does the talking. It neither logs to the terminal nor hears signals: both are the business of who started us.
An address that others can reach is not served without tokens, nor without anything that confines their code.
"""

import asyncio
import contextlib
import errno
import os
import signal
import socket
import sys
from collections.abc import Callable, Iterator
from functools import partial
from typing import Final

import anyio
import uvicorn

from onetool.app import OneTool
from onetool.errors import ToolError
from onetool.faces.http.gate import MOST_HEAD, STOPPING, Bind, Gate, is_loopback
from onetool.faces.http.keys import Keys
from onetool.faces.http.patience import MOST_CONNECTIONS, Crowd, PatientProtocol
from onetool.faces.http.server import build, live_tokens
from onetool.faces.log import forwarded
from onetool.faces.settings_watcher import Hooks, watching
from onetool.runner.cells import FULL_SANDBOX
from onetool_child.confine import one_malloc_arena

if sys.platform != "win32":
    import resource

GRACE_SECONDS: Final = 10
IDLE_SECONDS: Final = 75
LAST_SECONDS: Final = 1.0
BACKLOG: Final = 1024
ENOUGH_FILES: Final = 8192
TICKS_A_SECOND: Final = 10  # of uvicorn's own clock
Ready = Callable[[Bind], None]


class HttpServer:
    """`bind` is where it listens; the port is taken as soon as this exists."""

    def __init__(self, app: OneTool, host: str, port: int) -> None:
        self._app = app
        self._socket = _taken(host, port)
        self.bind = Bind(host, self._socket.getsockname()[1])
        self._server: _Server | None = None

    async def run(self, ready: Ready) -> None:
        """Until `stop`, and then until what is under way has ended, or its time is over."""
        with contextlib.closing(self._socket):
            crowd = Crowd(min(MOST_CONNECTIONS, _room_for_files() // 2))
            tokens = live_tokens(self._app)
            gate = build(self._app, self.bind, tokens)
            self._server = _Server(self._config(gate, crowd), crowd, lambda: ready(self.bind))
            hooks = Hooks(on_change=tokens.narrow, on_tick=gate.end_revoked)
            port, own_ports = self.bind.port, self._app.listening_ports
            own_ports.add(port)  # tools must not send requests to the server that they run in
            try:
                with forwarded(self._app.log, "http.server", "uvicorn.error"):
                    async with watching(self._app, url=self.bind.url, port=port, hooks=hooks):
                        await self._server.serve([self._socket])
                        await self._server.end_the_rest()
            finally:
                own_ports.discard(port)

    def _config(self, gate: Gate, crowd: Crowd) -> uvicorn.Config:
        return uvicorn.Config(
            gate,
            http=partial(PatientProtocol, crowd=crowd),  # type: ignore[arg-type]
            ws="none",
            lifespan="off",
            log_config=None,
            access_log=False,
            server_header=False,
            proxy_headers=False,  # whoever sends X-Forwarded-For does not say who they are
            backlog=BACKLOG,
            h11_max_incomplete_event_size=MOST_HEAD,
            timeout_keep_alive=IDLE_SECONDS,
            timeout_graceful_shutdown=GRACE_SECONDS,
        )

    def stop(self) -> None:
        """Once is patient; twice waits for nobody."""
        if self._server is not None:
            self._server.force_exit = self._server.should_exit
            self._server.should_exit = True


async def serve_http(app: OneTool, host: str, port: int, ready: Ready) -> None:
    """Serve until somebody types Ctrl+C or the machine says that it is time."""
    one_malloc_arena()  # with one for each thread, the memory that lies idle in them grows by megabytes a minute
    await refuse_strangers(app, Bind(host, port))
    server = HttpServer(app, host, port)
    with anyio.open_signal_receiver(signal.SIGINT, signal.SIGTERM) as signals:
        async with anyio.create_task_group() as group:

            async def heed_signals() -> None:
                async for _ in signals:
                    server.stop()

            group.start_soon(heed_signals)
            await server.run(ready)
            group.cancel_scope.cancel()


# --- an address that others can reach ------------------------------------------------------------------------------


async def refuse_strangers(app: OneTool, bind: Bind) -> None:
    """Raises where others could come in without a token, or could run code that nothing confines."""
    names = app.settings.auth.allowed_hosts
    if bind.is_loopback and not names:
        return
    where, alone = (names[0], "auth.allowed_hosts") if bind.is_loopback else (bind.host, "--host")
    if not Keys(app.settings.auth.tokens, os.environ):
        raise ToolError(
            f"others could call your tools at {where}, and there is no token that they would need; leave {alone} "
            "out to serve this machine alone, or type `onetool token create NAME` to make a token"
        )
    if app.settings.execution.isolation == "off":
        return
    told = (await app.cells.probe())["sandbox"].split("+")
    missing = [layer for layer in FULL_SANDBOX if layer not in told]
    if missing:
        raise ToolError(
            f"others could run code at {where}, and on this machine {' and '.join(missing)} would not confine it; "
            f"leave {alone} out to serve this machine alone, or, if you trust everybody who has a token, put "
            "execution: {isolation: off} into onetool.yaml"
        )


# --- what is under uvicorn -----------------------------------------------------------------------------------------


class _Server(uvicorn.Server):
    def __init__(self, config: uvicorn.Config, crowd: Crowd, ready: Callable[[], None]) -> None:
        super().__init__(config)
        self._crowd, self._ready, self._stopping = crowd, ready, asyncio.Event()

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        self.lifespan.state[STOPPING] = self._stopping
        await super().startup(sockets)
        self._ready()

    async def on_tick(self, counter: int) -> bool:
        if counter % TICKS_A_SECOND == 0:
            self._crowd.look()
        return await super().on_tick(counter)

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        self._stopping.set()
        await super().shutdown(sockets)

    async def end_the_rest(self) -> None:
        """What has not come to its end in time. Whoever waits for a thread is not waited for."""
        for task in self.server_state.tasks:
            task.cancel()
        if self.server_state.tasks:
            await asyncio.wait(self.server_state.tasks, timeout=LAST_SECONDS)


def _taken(host: str, port: int) -> socket.socket:
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    try:
        taken = socket.create_server((host.strip("[]"), port), family=family, backlog=BACKLOG)
    except (OSError, OverflowError) as error:
        raise ToolError(_why_not(host, port, error)) from None
    address = taken.getsockname()[0]
    if Bind(host, port).is_loopback and not is_loopback(address):  # a table of hosts may say anything
        taken.close()
        raise ToolError(f"{host} is {address} on this machine, which others can reach; use --host 127.0.0.1")
    taken.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)  # asyncio does so only for sockets that it made itself
    return taken


def _room_for_files() -> int:
    """How many files may be open, once we have asked for more: each connection is one, and 1024 is a common limit."""
    if sys.platform == "win32":
        return ENOUGH_FILES
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = ENOUGH_FILES if hard == resource.RLIM_INFINITY else min(ENOUGH_FILES, hard)
    if soft == resource.RLIM_INFINITY or soft >= wanted:
        return ENOUGH_FILES
    with contextlib.suppress(OSError, ValueError):
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
        return wanted
    return soft


def _why_not(host: str, port: int, error: Exception) -> str:
    number = error.errno if isinstance(error, OSError) else None
    if number == errno.EADDRINUSE:
        return f"port {port} of {host} is in use; type `onetool serve --http --port 0` for one that is free"
    if number == errno.EACCES:
        return f"port {port} needs rights that you do not have; type `onetool serve --http --port 8765`"
    if isinstance(error, OverflowError):
        return f"{port} is no port; ports are numbers from 0 to 65535"
    reason = getattr(error, "strerror", None) or str(error)
    return f"cannot listen on {host}, port {port}: {reason}. `--host 127.0.0.1` is this machine alone"
