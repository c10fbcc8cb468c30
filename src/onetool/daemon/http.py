"""The HTTP transport of the daemon, with `daemon.http: true`: its owner sees what all clients do."""

import asyncio
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from onetool.app import OneTool
from onetool.cli.serve import HOST, PORT
from onetool.daemon.applications import Applications
from onetool.daemon.environment import ClientEnvironment
from onetool.errors import ToolError
from onetool.logging import Log
from onetool.parts import SharedProcesses

if TYPE_CHECKING:
    from onetool.transports.http.http_server import HttpServer


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
        from onetool.transports.http.http_server import check_exposure

        try:
            app = OneTool.from_files(environment=environment, working_dir=Path.home(), shared=self._shared)
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
        from onetool.transports.http.http_server import HttpServer

        try:
            return HttpServer(app, HOST, PORT, self._applications)
        except ToolError:
            return HttpServer(app, HOST, 0, self._applications)
