"""The applications of the daemon: one for each working directory, settings file, published tools
and environment.
"""

import asyncio
import hashlib
import json
import os
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from contextlib import AsyncExitStack, asynccontextmanager, closing
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

from onetool.app import OneTool
from onetool.errors import ToolError
from onetool.server.daemon.handshake import ClientRequest, NotServed
from onetool.server.fair_queue import Bounds, FairQueue
from onetool.server.mcp.exposed_tools import check as check_exposed
from onetool.server.mcp.mcp_server import OneToolServer
from onetool.server.settings_watcher import watching
from onetool.settings.model import Settings, needs_own_application
from onetool.sources.extensions.environments import PASSED_VARIABLES
from onetool.util.background import BackgroundTasks
from onetool_child.json_types import JsonObject

BOUNDS = Bounds(total=128, per_agent=64, waiting=100_000)  # runs of all clients, and of each client
LINGER_SECONDS = 1.0  # after its last client, because the next command may follow at once
PREFIXES = ("ONETOOL_", "OT_", "UV_")
NOT_KEPT = frozenset({"ONETOOL_TOKEN", "ONETOOL_STANDALONE"})  # for the command line only
_DIGEST_KEY = os.urandom(16)  # so that a digest says nothing about a secret


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
    """Options that the clients of an application share: directory, settings file and published
    tools.
    """

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
        return [each.describe() for each in self._open if each.is_open]

    def list_apps(self) -> list[OneTool]:
        return [each.app for each in self._open if each.is_open]

    def on_open(self, listener: Callable[[OneTool], object]) -> None:
        """Call the function for each application, open or opened later."""
        self._listeners.append(listener)
        for app in self.list_apps():
            listener(app)

    @asynccontextmanager
    async def use(
        self, request: ClientRequest, options: ClientOptions
    ) -> AsyncIterator[ClientApplication]:
        """Yield the application for a client, which is opened if needed and closed after its last
        client.
        """
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
            each for each in self._open if each.options == options and each not in checked
        ]:
            checked.add(application := unchecked[0])
            await asyncio.wait(
                [application.opening]
            )  # which variables matter is known once it is open
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
            *(each.app.live_settings.apply() for each in self._open), return_exceptions=True
        )
