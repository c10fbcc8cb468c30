"""An upstream server's session with one sign-in: connect, list tools, disconnect when idle.

`Supervised` starts the connection once for all callers, delays attempts after a failure and
reconnects after a loss. The tools are listed after each connect, before anything is called.
"""

import asyncio
import math
import time
from collections import Counter
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager, suppress
from functools import partial
from typing import TYPE_CHECKING, Any

from anyio.to_thread import run_sync as run_in_thread

from onetool.errors import NetworkError, PermissionDenied, SignInRequired, ToolError, ToolTimeout
from onetool.net.oauth.credential import collect_failures
from onetool.processes.supervised import CallInterrupted, Supervised
from onetool.sources.upstream.checked_tools import CheckedTools
from onetool.sources.upstream.connection import Connection, describe_error, innermost
from onetool.sources.upstream.definitions import (
    NEVER_FAILED,
    Definition,
    Definitions,
    check_schemas,
)
from onetool.util.problem import DISABLED, Problem
from onetool.util.tasks import BackgroundTasks

if TYPE_CHECKING:
    from onetool.net.oauth.token_source import TokenSource
    from onetool.sources.upstream.upstream import Upstream

LISTED_IDLE_SECONDS = 10.0  # idle time of a server that has only listed its tools
MIN_RESPONSE_SECONDS = 0.9  # with less time to respond, a server has not failed
ALIVE_SECONDS = 5.0  # for a server to respond to anything after a call timed out


class UpstreamSession:
    """A session: disabled, idle, discovering, connected, disconnected or waiting for a sign-in.

    It is one user of its connection, which other applications may use too. `tools` are those of the
    last list, from the server or the cache; until there is one (`is_known`), they may be those of
    another session.
    """

    def __init__(self, upstream: "Upstream", source: "TokenSource | None") -> None:
        self.upstream = upstream
        self.name = upstream.name
        self.server = upstream.server
        self.source = source  # of the token of its requests
        self.tools = CheckedTools()
        self.raw_tools: Mapping[
            str, Any
        ] = {}  # of a published server, as the SDK returned them, by name
        self.is_known = False
        self.last_failure = NEVER_FAILED  # to list the tools, in any process
        self.listing: asyncio.Future[None] | None = None  # in the background, while it runs
        self.watched: Counter[str] = Counter()  # number of subscribers by URI
        # without requests, until it disconnects; more once it is used for more than listing
        self.idle_seconds = 0.0
        self._supervised = Supervised(
            upstream.name, self._open, self._disconnect, self._get_idle_timeout
        )
        self._log = partial(upstream.services.log, "proxy.connect", server=upstream.name)
        self._tasks = BackgroundTasks(lambda error: self._log(status="error", text=str(error)))
        self._listing_lock = asyncio.Lock()
        self._installing_lock = asyncio.Lock()
        self._is_outdated = (
            False  # whether the server has announced changes since the last listing began
        )
        self._last_connection: Connection | None = None  # also after it was closed, for its output

    # --- state ------------------------------------------------------------------------------------

    @property
    def state(self) -> str:
        if not self.server.enabled:
            return "disabled"
        if self._supervised.live is not None:
            return "connected"
        if isinstance(self._supervised.failure, SignInRequired):
            return "sign_in_required"
        if self.listing is not None and not self.is_known:
            return "discovering"
        return "disconnected" if self.failure else "idle"

    @property
    def failure(self) -> str:
        """The reason for the last failure to connect, in any process; empty without one."""
        if self._supervised.failure is not None:
            return self._supervised.failure.message
        return "" if self.last_failure.is_interrupted else self.last_failure.reason

    @property
    def problem(self) -> Problem:
        """The reason why the server has no tools."""
        failure = self._supervised.failure
        if failure is not None:
            code = failure.type if isinstance(failure, SignInRequired) else ""
            return Problem(failure.message, failure.hint, code=code)
        if not self.server.enabled:
            return Problem(self.failure or self._disabled_message, code=DISABLED)
        waiting = "it has not responded yet; retry in a moment"
        if self.is_known:
            waiting = f"{self.name} has no tools"
        return Problem(self.failure or waiting)

    @property
    def _disabled_message(self) -> str:
        return (
            f"{self.name} is disabled; set servers.{self.name}.enabled in onetool.yaml to enable it"
        )

    @property
    def why_unlisted(self) -> str:
        """A short reason why its tools are not listed."""
        if not self.server.enabled:
            return "disabled"
        if self.listing is not None:
            return "starting"
        if isinstance(self._supervised.failure, SignInRequired):
            return f"not signed in: {self._supervised.failure.fields['command']}"
        prefix = "failed: " if self.failure else ""
        return (
            f"{prefix}{self.last_failure.summary}; next attempt in"
            f" {self._get_listing_delay():.0f} s"
        )

    @property
    def output(self) -> str:
        """The last lines that the server printed to standard error."""
        return "" if self._last_connection is None else self._last_connection.get_output(self).tail

    @property
    def may_try(self) -> bool:
        return self._supervised.wait_seconds == 0

    def is_due(self, *, keeps_running: bool) -> bool:
        """Return whether to list the server now.

        A process that keeps running retries immediately if the last attempt was only interrupted.
        """
        if self.is_known or self.listing is not None or not (self.server.enabled and self.may_try):
            return False
        return (
            keeps_running and self.last_failure.is_interrupted
        ) or self._get_listing_delay() == 0

    def _get_listing_delay(self) -> float:
        """Return the seconds until the next attempt to list the server."""
        return self.last_failure.wait_seconds(self.upstream.lists.clock())

    async def check_alive(self) -> None:
        """Update the state: check whether the server is still reachable."""
        connection = self._supervised.live
        if connection is not None and not await connection.is_reachable():
            connection.give_up(self)

    # --- connecting -------------------------------------------------------------------------------

    async def connect(
        self, progress: Callable[[str], None] | None = None, *, only_list: bool = False
    ) -> Connection:
        """Return the live connection; connect if there is none, once for all callers.

        With `only_list` the server is stopped as soon as it has listed its tools.
        """
        connection = self._supervised.live
        if connection is not None and connection.checking is not None:
            await asyncio.wait([connection.checking])
        if self._supervised.live is None:
            if self.server.enabled:
                await self.notice_sign_in()
                await self._require_sign_in()
            if progress is not None:
                progress(f"{self.name}: connecting")
        self._prepare_start(only_list=only_list)
        return await self._supervised.get()

    async def start(self) -> None:
        """Connect on request: skip the back-off and use the normal idle timeout."""
        self._supervised.retry_now()
        await self.connect()
        self.idle_seconds = math.inf

    async def notice_sign_in(self) -> None:
        """Allow the next attempt at once if somebody has signed in since the last one."""
        if self.source is not None and isinstance(self._supervised.failure, SignInRequired):
            credential = await self.source.read()
            if credential is not None and credential.access_token:
                self._supervised.retry_now()

    async def _require_sign_in(self) -> None:
        """Raise at once if nobody has signed in."""
        if self.source is not None and not self.source.identity.target.is_optional:
            await self.source.get()

    def begin(self, *, only_list: bool = False) -> asyncio.Task[Connection]:
        """Start to connect, unless that is in progress. Raise if the server is disabled or not due."""
        self._prepare_start(only_list=only_list)
        return self._supervised.begin()

    def _prepare_start(self, *, only_list: bool) -> None:
        if not only_list:
            self.idle_seconds = max(self.idle_seconds, LISTED_IDLE_SECONDS)
        if not self.server.enabled:
            raise ToolError(self._disabled_message)
        failure = self._supervised.failure
        if failure is not None and not self.may_try and self._supervised.starting is None:
            message = f"{failure.message} (next attempt in {self._supervised.wait_seconds:.0f} s)"
            raise type(failure)(message, **failure.fields)

    async def _open(self) -> Connection:
        """Connect and list the tools. A failure is recorded for other processes."""
        began = time.monotonic()
        await self._require_sign_in()
        connection = self._last_connection = self.upstream.get_connection(self.source)
        connection.users.add(self)
        try:
            await connection.open(self)
            await self._list_tools(connection)
        except ToolError as error:
            self._log(status="error", text=error.message)
            if not isinstance(
                error, SignInRequired
            ):  # a sign-in ends it at once, also in other processes
                await self._record_failure(
                    error.message, str(error.fields.get("summary") or error.message)
                )
            self._tasks.start(connection.release(self, at_once=True))
            raise
        except asyncio.CancelledError:
            seconds = time.monotonic() - began
            if seconds >= MIN_RESPONSE_SECONDS:
                await self._record_failure(
                    f"no response within {seconds:.1f} s", is_interrupted=True
                )
            await connection.release(self, at_once=True)
            raise
        self._log(status="ok", duration_ms=round((time.monotonic() - began) * 1000, 3))
        self.idle_seconds = min(self.idle_seconds, LISTED_IDLE_SECONDS)
        if self.watched:
            self._tasks.start(self._restore_watches(connection))
        return connection

    async def _record_failure(
        self, reason: str, summary: str = "", *, is_interrupted: bool = False
    ) -> None:
        if not self.is_known:
            put = self.upstream.lists.put_failure
            record = partial(put, self.upstream.key, reason, summary, is_interrupted=is_interrupted)
            self.last_failure = await run_in_thread(record)

    # --- disconnecting ----------------------------------------------------------------------------

    def _get_idle_timeout(self, connection: Connection) -> float | None:
        is_used = connection.users.is_calling(self) or self.watched
        return None if is_used else min(self.idle_seconds, self.server.idle_timeout)

    def _disconnect(self, connection: Connection) -> None:
        self.idle_seconds = 0.0
        self._tasks.start(connection.release(self))

    def disconnect_unrelayed(self) -> None:
        """Disconnect if the connection cannot relay server requests to clients."""
        connection = self._supervised.live
        if (
            connection is not None
            and connection.relays is None
            and not connection.users.is_calling(self)
        ):
            self._supervised.release()
            self._tasks.start(connection.release(self))

    def on_lost(self, connection: Connection) -> None:
        """Handle a lost connection. The next call may reconnect immediately."""
        failure = NetworkError(f"connection to {self.name} lost")
        if self._supervised.lose(connection, failure):
            self._tasks.start(self._record_output(connection, failure))

    async def _record_output(self, connection: Connection, failure: ToolError) -> None:
        failure_with_output = await connection.build_error(NetworkError, failure.message, self)
        if self._supervised.failure is failure:
            self._supervised.failure = failure_with_output
        self._log(status="error", text=failure_with_output.message)
        await connection.release(self)
        if self.watched:  # a client waits for changes
            with suppress(ToolError):
                await self.connect()

    async def stop(self) -> None:
        """Disconnect. Calls in flight fail, and the next call connects again."""
        self.idle_seconds = 0.0
        waiting = [task for task in (self.listing, self._supervised.starting) if task is not None]
        for task in waiting:
            task.cancel()
        if waiting:
            await asyncio.wait(waiting)
        connection = self._supervised.release()
        if connection is not None:
            await connection.release(self)

    async def close(self) -> None:
        await self.stop()
        await self._tasks.wait()

    # --- requests ---------------------------------------------------------------------------------

    @asynccontextmanager
    async def request(self, subject: str, connection: Connection) -> AsyncIterator[None]:
        """Send a request in this block.

        Whatever the SDK and its transports raise becomes a ToolError.
        """
        try:
            with collect_failures() as failures:
                async with connection.users.track(self):
                    yield
        except Exception as error:  # noqa: BLE001 - see above
            if failures:
                raise failures[-1] from None
            raise await self._make_request_error(subject, innermost(error), connection) from None
        finally:
            self._supervised.last_use = asyncio.get_running_loop().time()

    async def _make_request_error(
        self, subject: str, error: BaseException, connection: Connection
    ) -> ToolError:
        """Return the error for a failed request. Errors that tools report are not handled here."""
        from mcp_types import CONNECTION_CLOSED, REQUEST_TIMEOUT

        code = getattr(error, "code", None)
        if connection.is_over or code == CONNECTION_CLOSED or isinstance(error, CallInterrupted):
            output = await connection.read_last_output(self)
            self.on_lost(connection)
            message = f"connection to {self.name} lost during {subject}{connection.loss}{output}"
            return NetworkError(f"{message}. The next call reconnects.")
        if code == REQUEST_TIMEOUT or isinstance(error, TimeoutError):
            if connection.checking is None or connection.checking.done():
                connection.checking = self._tasks.start(
                    self._disconnect_if_stuck(connection, subject)
                )
            return ToolTimeout(
                f"{subject} timed out after {self.server.timeout:g} s and was cancelled"
            )
        return ToolError(f"{subject}: {describe_error(error)}")

    async def _disconnect_if_stuck(self, connection: Connection, subject: str) -> None:
        """Close the connection if the server does not respond at all.

        The next call waits for this, and restarts it.
        """
        try:
            async with asyncio.timeout(min(ALIVE_SECONDS, self.server.timeout)):
                await connection.client.list_tools()
        except Exception:  # noqa: BLE001 - see above
            if not connection.is_over:
                connection.loss = f": it did not respond after {subject} timed out"
                connection.give_up(self)
                self._tasks.start(connection.release(self))

    # --- tools ------------------------------------------------------------------------------------

    def get_definition(self, tool: str) -> Definition:
        if tool in self.tools.rejected:
            raise PermissionDenied(self.tools.rejected[tool], tool=tool)
        if tool not in self.tools.offered:
            raise ToolError(
                f"{self.name} no longer has the tool {tool}",
                hint=f"ot.tools(pattern='{self.name}.') lists its tools",
            )
        return self.tools.offered[tool]

    async def load_cached(self) -> None:
        """Load the cached tool list without starting the server."""
        lists = self.upstream.lists
        definitions = await run_in_thread(lists.get, self.upstream.key)
        if definitions is not None:
            self.last_failure = NEVER_FAILED
            await self._install(definitions, is_cached=True)
        else:
            failure = await run_in_thread(lists.get_failure, self.upstream.key)
            self.last_failure = failure or self.last_failure

    def start_listing(self, slots: asyncio.Semaphore) -> None:
        """Connect in the background to learn the tools, then disconnect."""
        if self.listing is None:
            self.listing = self._tasks.start(self._list_in_background(slots))

    async def _list_in_background(self, slots: asyncio.Semaphore) -> None:
        try:
            async with slots:
                if not self.is_known and self.may_try:
                    await asyncio.wait((self.begin(only_list=True),))
        finally:
            self.listing = None

    async def _list_tools(self, connection: Connection) -> None:
        async with self._listing_lock:
            self._is_outdated = False
            try:
                with collect_failures() as failures:
                    tools = await connection.list_all("tools")
            except Exception as error:  # noqa: BLE001 - see above
                if failures:
                    raise failures[-1] from None
                message = f"cannot list the tools of {self.name}: {describe_error(error)}"
                raise await connection.build_error(ToolError, message, self) from None
            await self._install(await run_in_thread(self._cache_definitions, tools))
            # Not earlier: a definition is published only after it was compared with its pin.
            self.raw_tools = (
                {tool.name: tool for tool in tools} if self.upstream.is_published else {}
            )

    def _cache_definitions(self, tools: list[Any]) -> Definitions:
        definitions = tuple(check_schemas(Definition.from_sdk(tool)) for tool in tools)
        self.upstream.lists.put(self.upstream.key, definitions)
        return definitions

    async def _install(self, definitions: Definitions, *, is_cached: bool = False) -> None:
        """Install tools for these definitions. A cached list never replaces one from the server."""
        async with self._installing_lock:
            is_new = definitions != self.tools.definitions
            if self.is_known and (is_cached or not is_new):
                return
            await self.upstream.install(self, definitions)
        self.last_failure = NEVER_FAILED
        if is_new:
            self.upstream.report_change("tools", "")

    async def reinstall(self) -> None:
        """Install the tools again from the same definitions, because the pins have changed."""
        async with self._installing_lock:
            if self.is_known:
                await self.upstream.install(self, self.tools.definitions)

    # --- changes and subscriptions ----------------------------------------------------------------

    def on_change(self, kind: str, uri: str) -> None:
        """Handle a change. Changed tools are listed first, then reported."""
        if kind != "tools":
            self.upstream.report_change(kind, uri)
        elif (connection := self._supervised.live) is not None and not self._is_outdated:
            self._is_outdated = True  # until the next listing begins, which covers further changes
            self._tasks.start(self._list_tools(connection))

    async def watch(self, uri: str) -> None:
        """Report changes in this resource, until `unwatch`."""
        connection = await self.connect()
        self.watched[uri] += 1
        if self.watched[uri] == 1:
            try:
                await self._send_watch(connection, uri)
            except ToolError:
                self._remove_watcher(uri)
                raise

    async def unwatch(self, uri: str) -> None:
        self._remove_watcher(uri)
        connection = self._supervised.live
        if uri not in self.watched and connection is not None:
            with suppress(ToolError):
                async with self.request(uri, connection):
                    await connection.unwatch(uri)

    def _remove_watcher(self, uri: str) -> None:
        self.watched[uri] -= 1
        if not self.watched[uri]:
            del self.watched[uri]

    async def _restore_watches(self, connection: Connection) -> None:
        for uri in list(self.watched):
            with suppress(ToolError):
                await self._send_watch(connection, uri)

    async def _send_watch(self, connection: Connection, uri: str) -> None:
        async with self.request(uri, connection):
            await connection.watch(uri)
