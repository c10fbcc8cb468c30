"""OneTool as an ASGI application, alone or mounted in an application of FastAPI or Starlette.

It is what `onetool serve --http` serves: MCP, the REST API and the admin UI, with the same
authentication.
"""

import asyncio
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from contextvars import Context
from pathlib import Path
from typing import Any

from starlette.types import ASGIApp, Receive, Scope, Send

from onetool.app import OneTool
from onetool.errors import ToolError
from onetool.server.http.asgi_app import build, create_live_tokens
from onetool.server.http.auth import STOPPING
from onetool.server.http.errors import ApiError
from onetool.server.http.http_server import check_exposure
from onetool.server.http.request_checks import Bind
from onetool.server.mcp import exposed_tools
from onetool.server.settings_watcher import watching
from onetool.settings.model import Settings
from onetool.settings.settings_reader import validate_settings

ANY_ADDRESS = Bind("", 0)  # not a loopback address, so every request needs a token


def asgi(
    settings: Settings | Mapping[str, Any] | None = None,
    *,
    folder: Path | None = None,
    config_file: Path | None = None,
    expose: Sequence[str] = (),
    require_token: bool = False,
) -> "AsgiApp":
    """Return OneTool as an ASGI application: `app.mount("/onetool", onetool.asgi())`.

    Without `settings`, it reads the settings files of this machine, or `config_file`. `folder` is
    the data directory for given settings. `expose` are tools, packs or servers to publish as MCP
    tools, in addition to `run`.

    Requests from this machine need no token, like with `onetool serve --http`. All others do. With
    `require_token`, every request needs one: set it if something on this machine passes on
    connections of others without saying so.
    """
    validated = validate_settings(settings) if isinstance(settings, Mapping) else settings

    def open_app() -> OneTool:
        if validated is None:
            return OneTool.from_files(config_file)
        return OneTool(validated, folder=folder)

    return AsgiApp(open_app, tuple(expose), ANY_ADDRESS if require_token else None)


class AsgiApp:
    """An ASGI application that opens OneTool with the server's lifespan or the first request.

    A mounted application gets no lifespan events. It closes with the event loop, or with the
    lifespan of the outer application if that has one: `FastAPI(lifespan=mounted.lifespan)`.
    """

    def __init__(
        self, open_app: Callable[[], OneTool], expose: tuple[str, ...], bind: Bind | None
    ) -> None:
        self._open_app = open_app
        self._expose = expose
        self._bind = bind
        self._running: _Running | None = None

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan":
            await self._handle_lifespan(receive, send)
            return
        running = await self._start()
        await running.handle({**scope, **_strip_prefix(scope)}, receive, send)

    @asynccontextmanager
    async def lifespan(self, _outer: object = None) -> AsyncIterator[None]:
        """Keep OneTool open until the block ends.

        It has the signature of `lifespan=` of FastAPI and Starlette.
        """
        running = await self._start()
        try:
            yield
        finally:
            await running.stop()

    async def _start(self) -> "_Running":
        if self._running is None or not self._running.is_usable:
            self._running = _Running(self._open_app(), self._expose, self._bind)
        await self._running.wait_until_ready()
        return self._running

    async def _handle_lifespan(self, receive: Receive, send: Send) -> None:
        await receive()
        try:
            running = await self._start()
        except Exception as error:  # noqa: BLE001 - the server reports it and exits
            await send({"type": "lifespan.startup.failed", "message": str(error)})
            return
        await send({"type": "lifespan.startup.complete"})
        await receive()
        await running.stop()
        await send({"type": "lifespan.shutdown.complete"})


class _Running:
    """OneTool on the running event loop.

    One task opens and closes it, also if the loop ends without a lifespan.
    """

    def __init__(self, app: OneTool, expose: tuple[str, ...], bind: Bind | None) -> None:
        self._app = app
        self._bind = bind
        self._exposed_hosts = set[str]()
        app.exposed = expose
        self._stopping = asyncio.Event()
        self._ready = asyncio.Event()
        self._inner: ASGIApp
        # In an empty context: it must not keep the variables of the first request.
        self._task = asyncio.get_running_loop().create_task(self._run(), context=Context())

    @property
    def is_usable(self) -> bool:
        return not self._task.done() and self._task.get_loop() is asyncio.get_running_loop()

    async def wait_until_ready(self) -> None:
        """Wait until OneTool is open; raise if that fails."""
        ready = asyncio.ensure_future(self._ready.wait())
        try:
            await asyncio.wait((ready, self._task), return_when=asyncio.FIRST_COMPLETED)
        finally:
            ready.cancel()
        if not self._ready.is_set():
            await self._task

    async def stop(self) -> None:
        self._stopping.set()
        await asyncio.wait((self._task,))

    async def handle(self, scope: Scope, receive: Receive, send: Send) -> None:
        host, port = scope.get("server") or ("", None)
        if port is not None:
            # Tools must not send requests to the server that they run in.
            self._app.own_ports.listening.add(port)
        try:
            await self._check_address(Bind(str(host), port or 0))
        except ToolError as error:
            if scope["type"] == "http":
                await ApiError("forbidden", error.message, hint=error.hint).response(
                    scope, receive, send
                )
            else:
                await send({"type": "websocket.close", "code": 1008})
            return
        # Its own: the outer application must not set the agent.
        scope["state"] = {STOPPING: self._stopping}
        await self._inner(scope, receive, send)

    async def _check_address(self, bind: Bind) -> None:
        """Raise if the connection comes from outside and OneTool must not be served there."""
        if not bind.is_loopback and bind.host not in self._exposed_hosts:
            await check_exposure(self._app, bind)
            self._exposed_hosts = {*list(self._exposed_hosts)[:100], bind.host}

    async def _run(self) -> None:
        async with self._app as app:
            await check_exposure(app, self._bind or Bind("127.0.0.1", 0))
            if app.exposed:
                await exposed_tools.check(app)
            tokens = create_live_tokens(app)
            inner = self._inner = build(app, self._bind, tokens)
            app.runs.continue_paused()
            async with watching(app, tokens.narrow, inner.end_revoked, handle_signals=False):
                self._ready.set()
                await self._stopping.wait()


def _strip_prefix(scope: Scope) -> dict[str, str]:
    """Return the path below the prefix under which the application is mounted."""
    path = scope["path"]
    prefix = scope.get("root_path", "").rstrip("/")
    is_below = prefix and (path == prefix or path.startswith(f"{prefix}/"))
    return {"path": (path[len(prefix) :] or "/") if is_below else path, "root_path": ""}
