"""The handshake of clients, and the applications of the daemon.

There is one for each working directory, settings file, published tools and environment.
"""

import asyncio
import errno
import hashlib
import json
import os
import select
import socket
import stat
import sys
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from contextlib import AsyncExitStack, asynccontextmanager, closing, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, NamedTuple

from onetool.app import OneTool
from onetool.errors import ToolError
from onetool.processes.daemon_connection import PROTOCOL, describe_installation, get_peer
from onetool.server.fair_queue import Bounds, FairQueue
from onetool.server.mcp.exposed_tools import check as check_exposed
from onetool.server.mcp.mcp_server import OneToolServer
from onetool.server.settings_watcher import watching
from onetool.settings.model import Settings, needs_own_application
from onetool.sources.extensions.environments import PASSED_VARIABLES
from onetool.util.tasks import BackgroundTasks
from onetool.util.version import __version__
from onetool_child.json_types import JsonObject

BOUNDS = Bounds(total=128, per_agent=64, waiting=100_000)  # runs of all clients, and of each client
LINGER_SECONDS = 1.0  # after its last client, because the next command may follow at once
PREFIXES = ("ONETOOL_", "OT_", "UV_")
NOT_KEPT = frozenset({"ONETOOL_TOKEN", "ONETOOL_STANDALONE"})  # for the command line only
_DIGEST_KEY = os.urandom(16)  # so that a digest says nothing about a secret
MAX_REQUEST_BYTES = 8 << 20  # the environment, and code from standard input
REQUEST_SECONDS = 10.0
READ_BYTES = 1 << 16
NAMESPACES = ("cgroup", "ipc", "mnt", "net", "pid", "user", "uts")
# Lines of /proc/PID/status. In a container, all processes have a seccomp filter; one that has more
# is confined more.
CONFINEMENT = ("Uid:", "Gid:", "Groups:", "Cap", "NoNewPrivs:", "Seccomp")
PEER_HANDLE = 77  # SO_PEERPIDFD, since Linux 6.5
Kind = Literal["stdio", "command", "status", "disconnect", "stop", "drain"]


class NotServed(Exception):
    """The daemon cannot serve this client, which then runs without it."""


@dataclass(frozen=True, slots=True)
class ClientRequest:
    """Request of a client: the service that it wants, and where it runs."""

    kind: Kind
    pid: int
    directory: Path
    argv: tuple[str, ...] = ()
    environment: dict[str, str] = field(default_factory=dict, repr=False)
    stdin: str | None = field(default=None, repr=False)
    terminals: frozenset[int] = frozenset()  # which of the standard streams 1 and 2 are terminals
    columns: int = 80


async def receive_request(connection: socket.socket) -> ClientRequest:
    """Read the request of a new client. Raise NotServed if it must run without the daemon."""
    pid, user = get_peer(connection)
    if user != os.getuid():
        raise NotServed("another user")
    handle = _open_peer(connection, pid)
    try:
        async with asyncio.timeout(REQUEST_SECONDS):
            data, directory = await _receive(connection)
        try:
            request = _read_request(data, pid, await asyncio.to_thread(_find_path, directory))
        finally:
            os.close(directory)
        _check_confinement(pid, handle)
    except (TimeoutError, OSError, ValueError):
        raise NotServed("no valid request") from None
    finally:
        os.close(handle)
    return request


def _open_peer(connection: socket.socket, pid: int) -> int:
    """Return a handle of the process that connected. Raise NotServed if it has ended."""
    try:
        data = connection.getsockopt(socket.SOL_SOCKET, PEER_HANDLE, 4)
        return int.from_bytes(data, sys.byteorder)
    except OSError as error:
        if error.errno != errno.ENOPROTOOPT:
            raise NotServed("its process has ended") from None
    try:
        return os.pidfd_open(pid)  # an older kernel
    except OSError:
        raise NotServed("its process has ended") from None


async def _receive(connection: socket.socket) -> tuple[Any, int]:
    """Return the message, and the working directory's descriptor that came with its first bytes."""
    loop = asyncio.get_running_loop()
    readable = asyncio.Event()
    loop.add_reader(connection, readable.set)
    try:
        await readable.wait()
    finally:
        loop.remove_reader(connection)
    data, descriptors, _, _ = socket.recv_fds(connection, READ_BYTES, 1)
    if len(descriptors) != 1:
        for descriptor in descriptors:
            os.close(descriptor)
        raise ValueError("no working directory")
    request = bytearray(data)
    try:
        while not request.endswith(b"\n") and len(request) <= MAX_REQUEST_BYTES and data:
            request += (data := await loop.sock_recv(connection, READ_BYTES))
        return json.loads(request), descriptors[0]
    except BaseException:
        os.close(descriptors[0])
        raise


def _find_path(directory: int) -> Path:
    """Return the path of an open directory. Raise if the path leads elsewhere."""
    path = Path(f"/proc/self/fd/{directory}").readlink()
    status = os.fstat(directory)
    try:
        if stat.S_ISDIR(status.st_mode) and os.path.samestat(path.stat(), status):
            return path
    except OSError:
        pass
    raise NotServed("its working directory is not the one of its path")


def _read_request(data: Any, pid: int, directory: Path) -> ClientRequest:
    try:
        if data["protocol"] != PROTOCOL:
            raise NotServed("another protocol")
        request = ClientRequest(
            data["kind"],
            pid,
            directory,
            tuple(map(str, data.get("argv") or ())),
            {str(name): str(value) for name, value in (data.get("env") or {}).items()},
            data.get("stdin"),
            frozenset(map(int, data.get("terminals") or ())),
            int(data.get("columns") or 80),
        )
    except (TypeError, KeyError, AttributeError, ValueError):
        raise NotServed("no valid request") from None
    return request


def _check_confinement(pid: int, handle: int) -> None:
    """Raise if the client and the daemon are confined in different ways.

    What was read is that of the client only if its process still runs: else its process ID may be
    that of another.
    """
    try:
        if _read_confinement(pid) != _read_confinement("self"):
            raise NotServed("it has other namespaces or privileges")
    except OSError:
        raise NotServed("its namespaces cannot be read") from None
    if select.select([handle], [], [], 0)[0]:
        raise NotServed("its process has ended")


def _read_confinement(pid: int | str) -> tuple[object, ...]:
    process = Path(f"/proc/{pid}")
    root = (process / "root").stat()
    status = (process / "status").read_text(encoding="ascii", errors="replace").splitlines()
    namespaces = [str((process / "ns" / name).readlink()) for name in NAMESPACES]
    return (
        *namespaces,
        str((process / "root").readlink()),
        root.st_dev,
        root.st_ino,
        _read_label(process),
        *(line for line in status if line.startswith(CONFINEMENT)),
    )


def _read_label(process: Path) -> bytes:
    """Return the label of a security module, such as an AppArmor profile.

    Without such a module there is none.
    """
    try:
        return (process / "attr" / "current").read_bytes()
    except OSError:
        return b""


async def send_reply(connection: socket.socket, reply: JsonObject) -> None:
    """Answer the request of a client. A client that is gone is ignored."""
    base = {"installation": describe_installation(), "pid": os.getpid(), "version": __version__}
    with suppress(OSError):
        await asyncio.get_running_loop().sock_sendall(
            connection, json.dumps({**base, **reply}).encode() + b"\n"
        )


class ClientEnvironment(Mapping[str, str]):
    """Client environment variables: worker defaults, `ONETOOL_*`, and names used in settings.

    It records which other names are read until `close`, and forgets the rest then. Iterating never
    shows other names.
    """

    def __init__(self, variables: Mapping[str, str]) -> None:
        self._variables = dict(variables)
        self._names = {name for name in variables if is_always_kept(name)}
        self._is_open = True

    def __getitem__(self, name: str) -> str:
        if self._is_open:
            self._names.add(name)
        return self._variables[name]

    def __iter__(self) -> Iterator[str]:
        return iter([name for name in self._names if name in self._variables])

    def __len__(self) -> int:
        return sum(name in self._variables for name in self._names)

    def close(self, settings: Settings) -> None:
        """Forget all variables that nothing has read and no token needs."""
        self._names.update(token.token_env for token in settings.auth.tokens if token.token_env)
        self._is_open = False
        self._variables = {
            name: value for name, value in self._variables.items() if name in self._names
        }

    def matches(self, variables: Mapping[str, str]) -> bool:
        """Return whether a client with these variables can use the same application."""
        kept = {name for name in variables if is_always_kept(name)} | self._names
        values = {name: variables[name] for name in kept if name in variables}
        return values == self._variables

    @property
    def digest(self) -> str:
        """A short text that is equal for equal environments of one daemon."""
        data = json.dumps(sorted(self._variables.items())).encode()
        return hashlib.blake2b(data, key=_DIGEST_KEY, digest_size=6).hexdigest()


def is_always_kept(name: str) -> bool:
    return name not in NOT_KEPT and (name in PASSED_VARIABLES or name.startswith(PREFIXES))


class ClientOptions(NamedTuple):
    """Options that clients of an application share: directory, settings file, published tools."""

    directory: Path
    config_file: Path | None = None
    exposed: tuple[str, ...] = ()


@dataclass(eq=False, slots=True)
class ClientApplication:
    """An application and its clients."""

    options: ClientOptions
    environment: ClientEnvironment
    app: OneTool
    stack: AsyncExitStack
    server: OneToolServer | None = None
    opening: asyncio.Future[None] = field(default_factory=asyncio.Future)  # until it is open
    clients: int = 0
    is_open: bool = False
    is_shared: bool = True  # else it belongs to one client
    closing: asyncio.TimerHandle | None = None

    def suits(self, environment: Mapping[str, str]) -> bool:
        """Return whether a client with these options and variables can share it."""
        return self.is_open and self.is_shared and self.environment.matches(environment)

    def describe(self) -> JsonObject:
        servers = self.app.servers.connected_names
        workers = self.app.extensions.states
        return {
            "directory": str(self.options.directory),
            "clients": self.clients,
            "servers": servers,
            "workers": sorted(name for name, state in workers.items() if state == "running"),
            "digest": self.environment.digest,
        }


class Applications:
    """The open applications. `make_app` creates one for the settings files of a client."""

    def __init__(self, make_app: Callable[..., OneTool]) -> None:
        self._make_app = make_app
        self._queue = FairQueue(lambda: BOUNDS)
        self._open: list[ClientApplication] = []
        self._closing = BackgroundTasks()
        self._listeners: list[Callable[[OneTool], object]] = []
        self.settings: Settings | None = None  # of the last application that was opened

    def describe(self) -> list[JsonObject]:
        return [running.describe() for running in self._open if running.is_open]

    def list_apps(self) -> list[OneTool]:
        return [running.app for running in self._open if running.is_open]

    def on_open(self, listener: Callable[[OneTool], object]) -> None:
        """Call the function for each application, open or opened later."""
        self._listeners.append(listener)
        for app in self.list_apps():
            listener(app)

    @asynccontextmanager
    async def use(
        self, request: ClientRequest, options: ClientOptions
    ) -> AsyncIterator[ClientApplication]:
        """Yield the client's application: opened if needed, and closed after its last client."""
        application = await self._find(request, options) or self._create(request, options)
        application.clients += 1
        if application.closing is not None:
            application.closing.cancel()
            application.closing = None
        try:
            await asyncio.shield(application.opening)
            if not application.app.settings.daemon.shared:
                raise NotServed("daemon.shared is false")
            yield application
        finally:
            self._release(application)

    async def _find(
        self, request: ClientRequest, options: ClientOptions
    ) -> ClientApplication | None:
        """Return the application that the client can share.

        None was created since the last one was checked.
        """
        checked: set[ClientApplication] = set()
        while unchecked := [
            running
            for running in self._open
            if running.options == options and running not in checked
        ]:
            checked.add(application := unchecked[0])
            # Which variables matter is known once it is open.
            await asyncio.wait([application.opening])
            if application in self._open and application.suits(request.environment):
                return application
        return None

    def _release(self, application: ClientApplication) -> None:
        application.clients -= 1
        if not application.clients and application in self._open:
            loop = asyncio.get_running_loop()
            application.closing = loop.call_later(LINGER_SECONDS, self._close_later, application)

    def _create(self, request: ClientRequest, options: ClientOptions) -> ClientApplication:
        environment = ClientEnvironment(request.environment)
        app = self._make_app(
            options.config_file, environment=environment, working_dir=options.directory
        )
        application = ClientApplication(options, environment, app, AsyncExitStack())
        self._open.append(application)
        application.opening = asyncio.ensure_future(self._start(application))
        return application

    async def _start(self, application: ClientApplication) -> None:
        app = application.app
        try:
            await application.stack.enter_async_context(app)
            app.exposed = application.options.exposed
            application.is_shared = not needs_own_application(app.settings)
            await check_exposed(app)
            app.runs.continue_paused()
            await application.stack.enter_async_context(watching(app, handle_signals=False))
            server = OneToolServer(app, forwards_logging=False, queue=self._queue)
            application.server = application.stack.enter_context(closing(server))
        except BaseException as error:
            self._open.remove(application)
            await application.stack.aclose()
            if isinstance(error, ToolError):  # the client reports it
                raise NotServed(str(error)) from None
            raise
        application.environment.close(app.settings)
        application.is_open = True
        self.settings = app.settings
        for listener in self._listeners:
            listener(app)

    def _close_later(self, application: ClientApplication) -> None:
        self._open.remove(application)
        self._closing.start(self._close(application))

    async def _close(self, application: ClientApplication) -> None:
        await asyncio.wait([application.opening])
        await application.stack.aclose()

    async def close(self) -> None:
        """Close all applications."""
        for application in list(self._open):
            if application.closing is not None:
                application.closing.cancel()
            self._close_later(application)
        await self._closing.wait()

    async def reload(self) -> None:
        """Read the settings of all applications again."""
        await asyncio.gather(
            *(running.app.live_settings.apply() for running in self._open), return_exceptions=True
        )
