"""The daemon: accepts clients, finds their applications, and ends when nobody needs it.

A client is an assistant over stdio, a command, or a question about the daemon itself. One task
serves each.
"""

import argparse
import asyncio
import json
import os
import platform
import signal
import socket
import time
import traceback
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from onetool.app import OneTool
from onetool.cli.remote import STDERR, STDOUT, NotRemote, RemoteOutput, execute
from onetool.cli.serve import HOST, PORT, add_arguments, relax_collector
from onetool.errors import ToolError
from onetool.processes.daemon_connection import (
    BACKLOG,
    CONFIRMATION,
    DISCONNECTED,
    LISTENER,
    STOPPED,
    describe_installation,
)
from onetool.runs.parts import SharedProcesses
from onetool.server.daemon.applications import (
    Applications,
    ClientEnvironment,
    ClientOptions,
    ClientRequest,
    NotServed,
    receive_request,
    send_reply,
)
from onetool.server.logging_bridge import CurrentLog
from onetool.server.mcp.client_identity import LocalClient, current_client
from onetool.server.mcp.mcp_server import forward_sdk_logging, serve_connection
from onetool.server.stdio import socket_streams
from onetool.settings.model import Daemon
from onetool.settings.paths import FOLDER
from onetool.util.logging import Log
from onetool.util.tasks import BackgroundTasks
from onetool_child.json_types import JsonObject

if TYPE_CHECKING:
    from onetool.server.http.http_server import HttpServer

CHECK_SECONDS = 1.0
LOG_FILE = "daemon.log"
MAX_FRAME_CHARS = 1 << 20
STREAMS = {STDOUT: "out", STDERR: "err"}


@dataclass(eq=False, slots=True, kw_only=True)
class ConnectedClient(LocalClient):
    """A client that is served."""

    request: ClientRequest
    since: float = field(default_factory=time.time)
    is_disconnected: bool = False  # by a person; it does not come back

    def describe(self) -> JsonObject:
        request = self.request
        name = " ".join(("onetool", *request.argv[:1])) if request.kind == "command" else self.name
        fields = {
            "pid": request.pid,
            "name": name,
            "directory": str(request.directory),
            "kind": request.kind,
        }
        times = {"since": round(self.since, 3), "last_call": round(self.last_call, 3) or None}
        return {"id": self.session, **fields, "agent": self.agent, **times}


class DaemonHttp:
    """An HTTP server with its own application, for the user's settings and home directory."""

    def __init__(self, applications: Applications, shared: SharedProcesses, log: Log) -> None:
        self._applications = applications
        self._shared = shared
        self._log = log
        self._serving: asyncio.Task[None] | None = None
        self._server: HttpServer | None = None

    def start(self, environment: Mapping[str, str]) -> None:
        """Start with the environment of the first client. Further calls do nothing while it runs."""
        if self._serving is None or self._serving.done():
            self._serving = asyncio.ensure_future(self._serve(ClientEnvironment(environment)))

    async def stop(self) -> None:
        """Stop at once; requests that are being answered are cancelled."""
        if self._serving is not None:
            self._serving.cancel()
            await asyncio.gather(self._serving, return_exceptions=True)

    @property
    def has_connections(self) -> bool:
        return self._server is not None and self._server.has_connections

    @property
    def url(self) -> str:
        return self._server.bind.url if self._server is not None else ""

    async def _serve(self, environment: ClientEnvironment) -> None:
        from onetool.server.http.http_server import check_exposure

        try:
            app = OneTool.from_files(
                environment=environment, working_dir=Path.home(), shared=self._shared
            )
            async with app:
                environment.close(app.settings)
                server = self._bind(app)
                await check_exposure(app, server.bind)
                self._server = server
                self._log.event("daemon.http", text=f"listening on {self.url}")
                await server.run(handle_signals=False)
        except ToolError as error:
            self._log.event("daemon.http", level="ERROR", text=str(error))
        finally:
            self._server = None

    def _bind(self, app: OneTool) -> "HttpServer":
        """Bind the usual port, or another one if it is in use."""
        from onetool.server.http.http_server import HttpServer

        try:
            return HttpServer(app, HOST, PORT, self._applications)
        except ToolError:
            return HttpServer(app, HOST, 0, self._applications)


class DaemonServer:
    """The shared server of a user."""

    def __init__(self, listener: socket.socket, path: Path, log: Log) -> None:
        self._listener = listener
        self._path = path
        self._log = log
        self._inode = path.stat().st_ino
        self._installation = describe_installation()
        self._shared = SharedProcesses()
        self._applications = Applications(partial(OneTool.from_files, shared=self._shared))
        self._clients: dict[asyncio.Task[None], ConnectedClient] = {}
        self._connections = BackgroundTasks()
        self._http = DaemonHttp(self._applications, self._shared, log)
        self._started = time.time()
        self._idle_since = time.monotonic()
        self._ended = asyncio.Event()

    async def serve(self) -> None:
        """Serve clients until there are none for a while, or a signal or a request ends it."""
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, self._ended.set)
        loop.add_signal_handler(
            signal.SIGHUP, lambda: asyncio.ensure_future(self._applications.reload())
        )
        accepting = asyncio.ensure_future(self._accept())
        checking = asyncio.ensure_future(self._check())
        self._log.event("daemon.start", pid=os.getpid(), socket=str(self._path))
        try:
            await self._ended.wait()
        finally:
            accepting.cancel()
            checking.cancel()
            self._stop_listening()
            await self._http.stop()
            self._connections.cancel()
            await self._connections.wait()
            await self._applications.close()
            await self._shared.close()
            self._log.event("daemon.stop", pid=os.getpid())

    async def _accept(self) -> None:
        loop = asyncio.get_running_loop()
        while self._listener.fileno() >= 0:
            try:
                connection, _ = await loop.sock_accept(self._listener)
            except (
                OSError
            ) as error:  # too many open files: those who wait are served when there are fewer
                self._log.event("daemon.accept", level="ERROR", text=str(error))
                await asyncio.sleep(CHECK_SECONDS)
                continue
            self._connections.start(self._serve_connection(connection))

    async def _check(self) -> None:
        """End the daemon if it is idle.

        After an upgrade or the loss of its socket, new clients start another one.
        """
        while True:
            await asyncio.sleep(CHECK_SECONDS)
            if self._clients or self._http.has_connections:
                self._idle_since = time.monotonic()
            is_idle = (
                time.monotonic() - self._idle_since >= self._settings.idle
                or self._listener.fileno() < 0
            )
            if is_idle and not self._connections:
                self._ended.set()
            if self._listener.fileno() >= 0 and not self._is_current():
                self._log.event("daemon.drain", text="the program or the socket was replaced")
                self._stop_listening()

    def _is_current(self) -> bool:
        try:
            return (
                self._path.stat().st_ino == self._inode
                and describe_installation() == self._installation
            )
        except OSError:
            return False

    @property
    def _settings(self) -> Daemon:
        latest = self._applications.settings
        return latest.daemon if latest is not None else Daemon()

    def _stop_listening(self) -> None:
        """Accept no more clients; those that are connected stay."""
        if self._listener.fileno() < 0:
            return
        with suppress(OSError):
            if self._path.stat().st_ino == self._inode:
                self._path.unlink()
        asyncio.get_running_loop().remove_reader(self._listener)  # its number may be reused at once
        self._listener.close()

    # --- clients ----------------------------------------------------------------------------------

    async def _serve_connection(self, connection: socket.socket) -> None:
        connection.setblocking(False)
        try:
            request = await receive_request(connection)
            await self._serve_client(connection, request)
        except NotServed as error:
            self._log.event("daemon.refused", text=str(error))
            await send_reply(connection, {"ok": False, "reason": str(error)})
        except OSError as error:  # the client is gone
            self._log.event(
                "daemon.client", level="WARNING", text=f"{type(error).__name__}: {error}"
            )
        except Exception as error:  # noqa: BLE001 - other clients must not suffer
            # Without the message, which may contain a secret.
            where = "".join(traceback.format_tb(error.__traceback__))
            self._log.event(
                "daemon.client", level="ERROR", error_type=type(error).__name__, text=where
            )
            await send_reply(connection, {"ok": False, "reason": "internal error"})
        finally:
            connection.close()

    async def _serve_client(self, connection: socket.socket, request: ClientRequest) -> None:
        if request.kind in {"stdio", "command"}:
            task = asyncio.current_task()
            assert task is not None
            client = self._clients[task] = ConnectedClient(request=request)
            try:
                serve = self._serve_stdio if request.kind == "stdio" else self._run_command
                await serve(connection, client)
            finally:
                del self._clients[task]
        elif request.kind == "status":
            await send_reply(connection, {"ok": True, **self.describe()})
        elif request.kind == "disconnect":
            await send_reply(
                connection, {"ok": True, "disconnected": self._disconnect(request.argv)}
            )
        elif request.kind == "stop":
            await send_reply(connection, {"ok": True})
            self._ended.set()
        else:
            raise NotServed(f"unknown request {request.kind!r}")

    async def _serve_stdio(self, connection: socket.socket, client: ConnectedClient) -> None:
        options = ClientOptions(client.request.directory, *parse_serve(client.request.argv))
        async with self._applications.use(client.request, options) as application:
            app = application.app
            if app.settings.daemon.http:
                self._http.start(client.request.environment)
            client.request.environment.clear()  # the application has what it needs
            try:
                if app.config_error is None and not await app.live_settings.is_current():
                    await app.live_settings.apply(unasked=True)
            except ToolError as error:  # the client reports it
                raise NotServed(str(error)) from None
            await send_reply(connection, {"ok": True})
            current_client.set(client)
            with CurrentLog.use(app.log):
                connect = partial(
                    socket_streams, connection, get_last_line=partial(self._get_last_line, client)
                )
                assert application.server is not None
                await serve_connection(app, application.server, connect)

    async def _run_command(self, connection: socket.socket, client: ConnectedClient) -> None:
        async with self._applications.use(
            client.request, ClientOptions(client.request.directory)
        ) as application:
            await send_reply(connection, {"ok": True})
            with CurrentLog.use(application.app.log):
                await run_command(application.app, connection, client.request)

    def _get_last_line(self, client: ConnectedClient) -> bytes:
        if client.is_disconnected:
            return DISCONNECTED + b"\n"
        return STOPPED + b"\n" if self._ended.is_set() else b""

    def _disconnect(self, ids: Sequence[str]) -> list[str]:
        """Disconnect the clients with these IDs and return those that were connected."""
        clients = [
            (task, client) for task, client in self._clients.items() if client.session in ids
        ]
        for task, client in clients:
            client.is_disconnected = True
            task.cancel()
        return [client.session for _, client in clients]

    def describe(self) -> JsonObject:
        return {
            "started_at": round(self._started, 3),
            "idle": self._settings.idle,
            "http": self._http.url,
            "python": platform.python_version(),
            "clients": [client.describe() for client in self._clients.values()],
            "applications": self._applications.describe(),
            "shared": self._shared.describe(),
            "log": str(Path.home() / FOLDER / "logs" / LOG_FILE),
        }


def main(path: str) -> int:
    """Run the daemon with the listening socket that the client has passed."""
    log = Log(Path.home() / FOLDER / "logs" / LOG_FILE)
    listener = socket.socket(fileno=LISTENER)
    listener.set_inheritable(False)
    listener.setblocking(False)
    listener.listen(BACKLOG)  # names this process as the peer of those who connect from now on
    relax_collector()

    async def serve() -> None:
        with forward_sdk_logging(CurrentLog(log)):
            await DaemonServer(listener, Path(path), log).serve()

    try:
        asyncio.run(serve())
    finally:
        log.close()
    return 0


# --- commands that run in the daemon --------------------------------------------------------------


def parse_serve(arguments: Sequence[str]) -> tuple[Path | None, tuple[str, ...]]:
    """Return the settings file and the published names of a client over stdio.

    Raise NotServed for anything else.
    """
    parser = argparse.ArgumentParser(add_help=False, exit_on_error=False)
    parser.add_argument("--config", type=Path)
    add_arguments(parser)
    given = arguments[1:] if arguments[:1] == ("serve",) else arguments
    try:
        options, rest = parser.parse_known_args(given)
    except (argparse.ArgumentError, SystemExit):
        raise NotServed("unknown arguments") from None
    if rest or options.http or options.host or options.port or options.standalone:
        raise NotServed("unknown arguments")
    return options.config, tuple(options.expose)


async def run_command(app: OneTool, connection: socket.socket, request: ClientRequest) -> None:
    """Run a command and send its output, then its exit status.

    A client that disconnects cancels it.

    Nothing runs before the client confirms that it still waits: it may have run the command itself.
    """
    reader, writer = await asyncio.open_connection(sock=connection)
    if await reader.read(1) != CONFIRMATION:
        writer.close()
        return

    def send(message: JsonObject) -> None:
        writer.write(json.dumps(message).encode() + b"\n")

    def send_text(stream: int, text: str) -> None:
        for start in range(0, len(text), MAX_FRAME_CHARS):
            send({STREAMS[stream]: text[start : start + MAX_FRAME_CHARS]})

    output = RemoteOutput(send_text, request.terminals, request.environment, request.columns)
    running = asyncio.ensure_future(execute(app, list(request.argv), output, request.stdin))
    gone = asyncio.ensure_future(reader.read(1))
    try:
        await asyncio.wait([running, gone], return_when=asyncio.FIRST_COMPLETED)
        if running.done():
            try:
                send({"exit": running.result()})
            except NotRemote:
                send({"here": True})
        await writer.drain()
    finally:
        for task in (running, gone):
            task.cancel()
        await asyncio.gather(running, gone, return_exceptions=True)
        writer.close()
        with suppress(OSError):
            await writer.wait_closed()
