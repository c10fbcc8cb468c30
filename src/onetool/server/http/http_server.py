"""The HTTP server: binding the port, serving, and shutting down gracefully.

uvicorn serves the connections. It neither logs to the terminal nor handles signals.
A non-loopback address is served only with tokens and a complete sandbox.
"""

import asyncio
import errno
import socket
import sys
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager, suppress
from functools import partial

import uvicorn

from onetool.app import OneTool
from onetool.errors import ToolError
from onetool.runs.cells import FULL_SANDBOX, is_isolated
from onetool.server.http.asgi_app import Neighbors, build, create_live_tokens
from onetool.server.http.auth import STOPPING, AuthMiddleware
from onetool.server.http.request_checks import MAX_HEAD_BYTES, Bind
from onetool.server.http.timeouts import MAX_CONNECTIONS, ConnectionLimiter, TimeoutProtocol
from onetool.server.logging_bridge import forward_logging
from onetool.server.settings_watcher import watching
from onetool.util.deadline import on_stop_signal
from onetool.util.running_servers import is_loopback
from onetool_child.confine import limit_malloc_arenas

if sys.platform != "win32":
    import resource

GRACE_SECONDS = 10
IDLE_SECONDS = 75
CANCEL_SECONDS = 1.0
BACKLOG = 1024
WANTED_OPEN_FILES = 8192
TICKS_PER_SECOND = 10  # of uvicorn's main loop
Ready = Callable[[Bind], None]


class HttpServer:
    """An HTTP server. The constructor binds the port."""

    def __init__(
        self, app: OneTool, host: str, port: int, neighbors: Neighbors | None = None
    ) -> None:
        self._app = app
        self._neighbors = neighbors
        self._socket = _open_socket(host, port)
        self.bind = Bind(host, self._socket.getsockname()[1])
        self._server: _Server | None = None
        self._limiter = ConnectionLimiter(min(MAX_CONNECTIONS, _raise_file_limit() // 2))

    @property
    def has_connections(self) -> bool:
        return len(self._limiter) > 0

    async def run(self, ready: Ready = lambda _bind: None, *, handle_signals: bool = True) -> None:
        """Serve until `stop`, then until open requests end or GRACE_SECONDS pass."""
        with closing(self._socket):
            limiter = self._limiter
            tokens = create_live_tokens(self._app)
            asgi_app = build(self._app, self.bind, tokens, self._neighbors)
            self._server = _Server(
                self._config(asgi_app, limiter), limiter, lambda: ready(self.bind)
            )
            port = self.bind.port
            listening_ports = self._app.own_ports.listening
            listening_ports.add(port)  # tools must not send requests to the server that they run in
            try:
                with forward_logging(self._app.log, "http.server", "uvicorn.error"):
                    watched = watching(
                        self._app,
                        tokens.narrow,
                        asgi_app.end_revoked,
                        url=self.bind.url,
                        port=port,
                        handle_signals=handle_signals,
                    )
                    self._app.runs.continue_paused()
                    async with watched:
                        await self._server.serve([self._socket])
                        await self._server.cancel_pending()
            finally:
                listening_ports.discard(port)

    def _config(self, asgi_app: AuthMiddleware, limiter: ConnectionLimiter) -> uvicorn.Config:
        return uvicorn.Config(
            asgi_app,
            http=partial(TimeoutProtocol, limiter=limiter),  # type: ignore[arg-type]
            ws="none",
            lifespan="off",
            log_config=None,
            access_log=False,
            server_header=False,
            proxy_headers=False,  # X-Forwarded-For does not authenticate anyone
            backlog=BACKLOG,
            h11_max_incomplete_event_size=MAX_HEAD_BYTES,
            timeout_keep_alive=IDLE_SECONDS,
            timeout_graceful_shutdown=GRACE_SECONDS,
        )

    def stop(self) -> None:
        """Shut down gracefully; the second call shuts down immediately."""
        if self._server is not None:
            self._server.force_exit = self._server.should_exit
            self._server.should_exit = True


async def serve_http(app: OneTool, host: str, port: int, ready: Ready) -> None:
    """Serve until SIGINT or SIGTERM."""
    limit_malloc_arenas()  # with one arena per thread, unused memory grows by megabytes a minute
    await check_exposure(app, Bind(host, port))
    server = HttpServer(app, host, port)
    with on_stop_signal(server.stop):
        await server.run(ready)


# --- non-loopback addresses -----------------------------------------------------------------------


async def check_exposure(app: OneTool, bind: Bind) -> None:
    """Raise if other machines could reach a server without tokens or without a complete sandbox."""
    names = app.settings.auth.allowed_hosts
    if bind.is_loopback and not names:
        return
    host, option = (
        (names[0], "auth.allowed_hosts")
        if bind.is_loopback
        else (bind.host or "all requests", "--host")
    )
    if not create_live_tokens(app).keys() and not app.settings.auth.issuers:
        raise ToolError(
            f"cannot serve {host} without authentication: no tokens exist",
            hint=(
                f"create a token with `onetool token create NAME`, or remove {option} to serve this"
                " machine only"
            ),
        )
    if app.settings.execution.isolation == "off":
        return
    active = (await app.cells.probe())["sandbox"].split("+")
    missing = [layer for layer in FULL_SANDBOX if layer not in active]
    if not is_isolated(active):
        raise ToolError(
            f"cannot serve {host}: the sandbox is incomplete on this machine (missing:"
            f" {', '.join(missing)})",
            hint=(
                f"remove {option} to serve this machine only, or, if you trust everyone who has a"
                " token, set execution: {isolation: off} in onetool.yaml"
            ),
        )


# --- uvicorn and its socket -----------------------------------------------------------------------


class _Server(uvicorn.Server):
    def __init__(
        self, config: uvicorn.Config, limiter: ConnectionLimiter, on_ready: Callable[[], None]
    ) -> None:
        super().__init__(config)
        self._limiter = limiter
        self._on_ready = on_ready
        self._stopping = asyncio.Event()

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        self.lifespan.state[STOPPING] = self._stopping
        await super().startup(sockets)
        self._on_ready()

    async def on_tick(self, counter: int) -> bool:
        if counter % TICKS_PER_SECOND == 0:
            self._limiter.close_expired()
        return await super().on_tick(counter)

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        self._stopping.set()
        await super().shutdown(sockets)

    async def cancel_pending(self) -> None:
        """Cancel the requests that did not end in time.

        Requests that wait for a thread are abandoned.
        """
        for task in self.server_state.tasks:
            task.cancel()
        if self.server_state.tasks:
            await asyncio.wait(self.server_state.tasks, timeout=CANCEL_SECONDS)


def _open_socket(host: str, port: int) -> socket.socket:
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    try:
        listener = socket.create_server((host.strip("[]"), port), family=family, backlog=BACKLOG)
    except (OSError, OverflowError) as error:
        raise _bind_error(host, port, error) from None
    address = listener.getsockname()[0]
    if Bind(host, port).is_loopback and not is_loopback(
        address
    ):  # the hosts file may map localhost to any address
        listener.close()
        raise ToolError(
            f"{host} resolves to {address}, which is not a loopback address",
            hint="use --host 127.0.0.1",
        )
    # The loop does this only for its own sockets.
    listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return listener


def _raise_file_limit() -> int:
    """Raise the limit of open files if possible and return it.

    Each connection is a file; 1024 is a common limit.
    """
    if sys.platform == "win32":
        return WANTED_OPEN_FILES
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    limit = WANTED_OPEN_FILES if hard == resource.RLIM_INFINITY else min(WANTED_OPEN_FILES, hard)
    if soft == resource.RLIM_INFINITY or soft >= limit:
        return WANTED_OPEN_FILES
    with suppress(OSError, ValueError):
        resource.setrlimit(resource.RLIMIT_NOFILE, (limit, hard))
        return limit
    return soft


def _bind_error(host: str, port: int, error: Exception) -> ToolError:
    number = error.errno if isinstance(error, OSError) else None
    if number == errno.EADDRINUSE:
        hint = "use a free port with `onetool serve --http --port 0`"
        return ToolError(f"cannot listen on {host}: port {port} is in use", hint=hint)
    if number == errno.EACCES:
        hint = "use an unprivileged port with `onetool serve --http --port 8765`"
        return ToolError(f"cannot listen on {host}: no permission to use port {port}", hint=hint)
    if isinstance(error, OverflowError):
        return ToolError(f"invalid port {port} (expected 0-65535)")
    reason = getattr(error, "strerror", None) or str(error)
    hint = "use --host 127.0.0.1 to serve this machine only"
    return ToolError(f"cannot listen on {host}, port {port}: {reason}", hint=hint)
