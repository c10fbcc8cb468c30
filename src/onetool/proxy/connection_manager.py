"""Connection management for one configured server: connect on demand, disconnect when idle, reconnect after a loss.

The tools are listed after each connect, before anything is called. `upstream` sends the requests.
"""

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable, Mapping
from contextlib import nullcontext, suppress
from functools import partial
from typing import TYPE_CHECKING, Any

import anyio.to_thread

from onetool.children.shared import CallInterrupted, SharedPool
from onetool.children.supervised import Supervised
from onetool.config.model import Server
from onetool.errors import NetworkError, SignInRequired, ToolError, ToolTimeout
from onetool.oauth.failures import collect_failures
from onetool.problem import DISABLED, Problem
from onetool.proxy.connection import Connection, ConnectionUser, OnChange, innermost
from onetool.proxy.definitions import Definition, Failure, cache_key, check_schemas, identify_origin
from onetool.proxy.message_limits import MAX_ITEMS
from onetool.proxy.relay import Relay
from onetool.proxy.server_launch import ServerLaunch
from onetool.storage import MediaStorage, ToolListStorage
from onetool.util.background_tasks import BackgroundTasks

if TYPE_CHECKING:
    from onetool.oauth.token_source import TokenSource

LISTED_IDLE_SECONDS = 10.0  # idle time of a server that has only listed its tools
MIN_RESPONSE_SECONDS = 0.9  # with less time to respond, a server has not failed
ALIVE_SECONDS = 5.0  # for a server to respond to anything after a call timed out
MAX_PAGES, MAX_LIST_BYTES = 500, 64 << 20  # of one list


class ConnectionManager:
    """The connection to one server. `install` creates its tools and sets `definitions`, `offered` and `is_known`.

    With `shared`, other applications may use the same connection.
    """

    def __init__(
        self,
        name: str,
        server: Server,
        *,
        lists: ToolListStorage,
        launch: ServerLaunch,
        media: Callable[[], MediaStorage],
        install: Callable[[tuple[Definition, ...]], Awaitable[None]],
        log: Callable[..., None],
        shared: SharedPool[Connection] | None = None,
        source: "TokenSource | None" = None,
    ) -> None:
        self.name, self.server, self.key = name, server, cache_key(server)
        self.origin = identify_origin(server)
        self.source = source  # of the token of its requests
        self._lists, self._launch, self._shared = lists, launch, shared
        self._user = ConnectionUser(name, self._on_changed, self._on_lost)
        self._media, self._install, self._log = media, install, log
        self._supervised = Supervised(name, self._open, self._disconnect, self._idle_timeout)
        self._listing_lock, self._installing_lock = asyncio.Lock(), asyncio.Lock()
        self._in_flight, self._was_called, self._is_outdated = 0, False, False
        self._last: Connection | None = None  # also after it was closed, for its output
        self._recorded: Failure | None = None  # the last failed attempt in any process
        self._is_wanted = False  # whether the connection is needed for more than listing
        self.listing: asyncio.Future[None] | None = None  # the background listing, while it runs
        self._tasks = BackgroundTasks(lambda error: log("proxy.connect", server=name, status="error", text=str(error)))
        self._watched: Counter[str] = Counter()  # number of subscribers by URI
        self.on_change: OnChange | None = None  # set by a transport that publishes this server
        self.raw_tools: Mapping[str, Any] = {}  # its tools as the SDK returned them, by name
        self.definitions: tuple[Definition, ...] = ()
        self.offered: Mapping[str, Definition] = {}  # by the name of the tool
        self.rejected: Mapping[str, str] = {}  # tools that cannot be called, and why
        self.is_known = False

    # --- state ----------------------------------------------------------------------------------------------------

    @property
    def state(self) -> str:
        if not self.server.enabled:
            return "disabled"
        if self._live is not None:
            return "connected"
        if isinstance(self._supervised.failure, SignInRequired):
            return "sign_in_required"
        if self.listing is not None and not self.is_known:
            return "discovering"
        return "disconnected" if self.failure is not None else "idle"

    @property
    def failure(self) -> str | None:
        """The reason why the last attempt to connect failed, in this process or another one."""
        if self._supervised.failure is not None:
            return self._supervised.failure.message
        return self._recorded.reason if self._recorded is not None and not self._recorded.is_interrupted else None

    @property
    def problem(self) -> Problem:
        """The reason why the server has no tools."""
        waiting = f"{self.name} has no tools" if self.is_known else "it has not responded yet; retry in a moment"
        reason = self.failure or (waiting if self.server.enabled else self._disabled_message)
        failure = self._supervised.failure
        code = failure.type if isinstance(failure, SignInRequired) else "" if self.server.enabled else DISABLED
        return Problem(reason, failure.hint if failure is not None else "", code=code)

    @property
    def _disabled_message(self) -> str:
        return f"{self.name} is disabled; set servers.{self.name}.enabled in onetool.yaml to enable it"

    @property
    def attempts(self) -> int:
        """The number of consecutive failed listings."""
        return self._recorded.count if self._recorded is not None else 0

    def is_due(self, *, keeps_running: bool) -> bool:
        """Return whether to list the server now.

        A process that keeps running retries immediately if the last attempt was only interrupted.
        """
        if self.is_known or self.listing is not None or not (self.server.enabled and self.may_try):
            return False
        recorded = self._recorded
        return recorded is None or (keeps_running and recorded.is_interrupted) or not self.retry_seconds

    @property
    def retry_seconds(self) -> float:
        """The seconds until the next attempt to list the server."""
        return self._recorded.wait_seconds(self._lists.clock()) if self._recorded is not None else 0.0

    @property
    def why_unlisted(self) -> str:
        """A short reason why its tools are not listed."""
        if not self.server.enabled:
            return "disabled"
        if self.listing is not None:
            return "starting"
        if isinstance(self._supervised.failure, SignInRequired):
            return f"not signed in: {self._supervised.failure.fields['command']}"
        prefix = "" if self.failure is None else "failed: "
        if self._recorded is not None:
            reason = self._recorded.summary
        else:
            failure = self._supervised.failure
            reason = _summary(failure) if failure is not None else "not started yet"
        return f"{prefix}{reason}; next attempt in {self.retry_seconds:.0f} s"

    @property
    def _live(self) -> Connection | None:
        return self._supervised.live

    @property
    def may_try(self) -> bool:
        return self._supervised.wait_seconds == 0

    async def check_alive(self) -> None:
        """Update the state: check whether the server is still reachable."""
        connection = self._live
        if connection is not None and not await connection.is_reachable():
            connection.give_up(self._user)

    def publish(self, on_change: OnChange) -> None:
        """Relay requests and changes of the server to clients from now on. A connection without relays is closed."""
        self.on_change = on_change
        if (connection := self._live) is not None and connection.relays is None and not self._in_flight:
            self._supervised.release()
            self._tasks.start(connection.release(self._user))

    async def load_cached(self) -> None:
        """Load the cached tool list without starting the server."""
        known, failure = await anyio.to_thread.run_sync(self._load_files)
        if known is not None:
            await self._install_definitions(known, is_cached=True)
        self._recorded = (failure or self._recorded) if known is None else None

    def _load_files(self) -> tuple[tuple[Definition, ...] | None, Failure | None]:
        known = self._lists.get(self.key)
        return known, self._lists.get_failure(self.key) if known is None else None

    # --- listing in the background ------------------------------------------------------------------------------------

    def start_listing(self, slots: asyncio.Semaphore) -> None:
        """Connect in the background to learn the tools, then disconnect."""
        self.listing = self._tasks.start(self._list(slots))

    async def _list(self, slots: asyncio.Semaphore) -> None:
        try:
            async with slots:
                if not self.is_known and self.may_try:
                    await asyncio.wait((self.begin(only_list=True),))
        finally:
            self.listing = None

    # --- requests -----------------------------------------------------------------------------------------------------

    async def _request(
        self, subject: str, ask: Callable[[], Awaitable[Any]], connection: Connection, relay: Relay | None = None
    ) -> Any:
        self._in_flight += 1
        failures: list[ToolError] = []
        try:
            with collect_failures(failures) if self.source is not None else nullcontext():
                async with connection.users.track(self._user):
                    return await ask()
        except Exception as error:  # noqa: BLE001 - the SDK and its transports raise anything
            if relay is not None:
                relay.error = innermost(error)
            if failures:
                raise failures[-1] from None
            raise await self._request_error(subject, innermost(error), connection) from None
        finally:
            self._in_flight -= 1
            self._supervised.last_use = asyncio.get_running_loop().time()

    async def _request_error(self, subject: str, error: BaseException, connection: Connection) -> ToolError:
        """Return the error for a failed request. Errors that tools report are not handled here."""
        from mcp_types import CONNECTION_CLOSED, REQUEST_TIMEOUT

        code = getattr(error, "code", None)
        if connection.is_over or code == CONNECTION_CLOSED or isinstance(error, CallInterrupted):
            output = await connection.stderr_tail(self._user)
            self._on_lost(connection)
            message = f"connection to {self.name} lost during {subject}{connection.loss}{output}"
            return NetworkError(f"{message}. The next call reconnects.")
        if code == REQUEST_TIMEOUT or isinstance(error, TimeoutError):
            if connection.checking is None or connection.checking.done():
                connection.checking = self._tasks.start(self._disconnect_if_stuck(connection, subject))
            return ToolTimeout(f"{subject} timed out after {self.server.timeout:g} s and was cancelled")
        return ToolError(f"{subject}: {str(error) or type(error).__name__}")

    async def _disconnect_if_stuck(self, connection: Connection, subject: str) -> None:
        """Close the connection if the server does not respond at all. The next call waits for this, and restarts it."""
        try:
            async with asyncio.timeout(min(ALIVE_SECONDS, self.server.timeout)):
                await connection.client.list_tools(cache_mode="bypass")
        except Exception:  # noqa: BLE001 - see above
            if not connection.is_over:
                connection.loss = f": it did not respond after {subject} timed out"
                connection.give_up(self._user)
                self._tasks.start(connection.release(self._user))

    # --- subscriptions ----------------------------------------------------------------------------------------------

    async def watch(self, uri: str) -> None:
        """Call `on_change` when this resource changes, until `unwatch`."""
        connection = await self.connection()
        self._watched[uri] += 1
        if self._watched[uri] == 1:
            try:
                await self._request(uri, partial(connection.watch, uri), connection)
            except ToolError:
                self._remove_watcher(uri)
                raise

    async def unwatch(self, uri: str) -> None:
        if self._remove_watcher(uri) and (connection := self._live) is not None:
            with suppress(ToolError):
                await self._request(uri, partial(connection.unwatch, uri), connection)

    def is_watching(self, uri: str) -> bool:
        return uri in self._watched

    def _remove_watcher(self, uri: str) -> bool:
        """Remove a subscriber; return whether it was the last."""
        self._watched[uri] -= 1
        is_last = self._watched[uri] <= 0
        if is_last:
            del self._watched[uri]
        return is_last

    async def _restore_watches(self, connection: Connection) -> None:
        for uri in list(self._watched):
            with suppress(ToolError):
                await self._request(uri, partial(connection.watch, uri), connection)

    # --- the connection -----------------------------------------------------------------------------------------------

    async def connection(self, progress: Callable[[str], None] | None = None, *, only_list: bool = False) -> Connection:
        """Return the live connection; connect if there is none, once for all callers.

        With `only_list` the server is stopped as soon as it has listed its tools.
        """
        if (live := self._live) is not None and live.checking is not None:
            await asyncio.wait([live.checking])
        if (live := self._live) is not None:
            return live
        await self._check_sign_in()
        if progress is not None:
            progress(f"{self.name}: connecting")
        self.begin(only_list=only_list)
        return await self._supervised.get()

    async def _check_sign_in(self) -> None:
        """Raise at once if nobody has signed in."""
        if self.source is not None and self.server.enabled:
            await self.notice_sign_in()
            if not self.source.identity.target.is_optional:
                await self.source.get()

    async def notice_sign_in(self) -> None:
        """Allow the next attempt at once if somebody has signed in since the last one."""
        if self.source is not None and isinstance(self._supervised.failure, SignInRequired):
            found = await self.source.read()
            if found is not None and found[1].access_token:
                self._supervised.retry_now()

    def begin(self, *, only_list: bool = False) -> "asyncio.Task[Connection]":
        """Start to connect, unless that is in progress. Raise if the server is disabled or not due."""
        self._is_wanted |= not only_list
        if not self.server.enabled:
            raise ToolError(self._disabled_message)
        failure = self._supervised.failure
        if failure is not None and not self.may_try and self._supervised.starting is None:
            message = f"{failure.message} (next attempt in {self._supervised.wait_seconds:.0f} s)"
            raise type(failure)(message, **failure.fields)
        return self._supervised.begin()

    async def _open(self) -> Connection:
        began = asyncio.get_running_loop().time()
        if self.source is not None and not self.source.identity.target.is_optional:
            await self.source.get()
        connection = self._last = self._get_connection()
        connection.users.add(self._user)
        try:
            await connection.open(self._user)
            await self._list_tools(connection)
        except ToolError as error:
            self._log("proxy.connect", server=self.name, status="error", text=error.message)
            if not isinstance(error, SignInRequired):  # a sign-in ends it at once, also in other processes
                await self._record(error.message, _summary(error))
            self._tasks.start(connection.release(self._user, at_once=True))
            raise
        except asyncio.CancelledError:
            seconds = asyncio.get_running_loop().time() - began
            if seconds >= MIN_RESPONSE_SECONDS:
                await self._record(f"no response within {seconds:.1f} s", is_interrupted=True)
            await connection.release(self._user, at_once=True)
            raise
        seconds = asyncio.get_running_loop().time() - began
        self._log("proxy.connect", server=self.name, status="ok", duration_ms=round(seconds * 1000, 3))
        self._was_called = False
        if self._watched:
            self._tasks.start(self._restore_watches(connection))
        return connection

    def _get_connection(self) -> Connection:
        """Return a new connection, or one of another application. Questions of a server to clients are never shared."""
        is_relayed = self.on_change is not None
        make = partial(Connection, self.server, self._launch, self.source, is_relayed=is_relayed)
        if self._shared is None or is_relayed or not self.server.is_shared:
            return make()
        identity = None if self.source is None else self.source.identity
        return self._shared.get((self.server, self._launch, identity), make)

    async def _record(self, reason: str, summary: str = "", *, is_interrupted: bool = False) -> None:
        """Record for other processes why there is no list."""
        if not self.is_known:
            write = partial(self._lists.put_failure, self.key, reason, summary, is_interrupted=is_interrupted)
            self._recorded = await anyio.to_thread.run_sync(write)

    async def _list_tools(self, connection: Connection) -> None:
        ask = partial(connection.client.list_tools, cache_mode="bypass")
        async with self._listing_lock:
            self._is_outdated = False
            failures: list[ToolError] = []
            try:
                with collect_failures(failures):
                    tools = await self._list_all(ask, "tools")
            except Exception as error:  # noqa: BLE001 - see above
                if failures:
                    raise failures[-1] from None
                reason = innermost(error)
                message = f"cannot list the tools of {self.name}: {str(reason) or type(reason).__name__}"
                raise await connection.build_error(ToolError, message, self._user) from None
            definitions = await anyio.to_thread.run_sync(self._cache_definitions, tools)
            await self._install_definitions(definitions)
            # Not earlier: a definition is published only after it was compared with its pin.
            self.raw_tools = {each.name: each for each in tools} if self.on_change is not None else {}

    async def _list_all(self, ask: Any, part: str, *, optional: bool = False) -> list[Any]:
        """Return all pages of a list, within the timeout of the server."""
        async with asyncio.timeout(self.server.timeout):
            return await list_all_pages(ask, part, optional=optional)

    def _cache_definitions(self, tools: list[Any]) -> tuple[Definition, ...]:
        definitions = tuple(check_schemas(Definition.from_sdk(each)) for each in tools)
        self._lists.put(self.key, definitions)
        return definitions

    async def _install_definitions(self, definitions: tuple[Definition, ...], *, is_cached: bool = False) -> None:
        """Install the tools of these definitions. A cached list never replaces one from the server."""
        async with self._installing_lock:
            if self.is_known and (is_cached or definitions == self.definitions):
                return
            is_new = definitions != self.definitions
            await self._install(definitions)
        self._recorded = None
        if is_new:
            self._report_change("tools", "")

    async def reinstall(self) -> None:
        """Install the tools again from the same definitions, because the pins have changed."""
        async with self._installing_lock:
            if self.is_known:
                await self._install(self.definitions)

    def _on_changed(self, kind: str, uri: str) -> None:
        """Handle a change. Changed tools are listed first, then reported."""
        if kind != "tools":
            self._report_change(kind, uri)
        elif (connection := self._live) is not None and not self._is_outdated:
            self._is_outdated = True  # until the next listing begins, which covers further changes
            self._tasks.start(self._list_tools(connection))

    def _report_change(self, kind: str, uri: str) -> None:
        if self.on_change is not None:
            self.on_change(kind, uri)

    def _on_lost(self, connection: Connection) -> None:
        """Handle a lost connection. The next call may reconnect immediately."""
        failure = NetworkError(f"connection to {self.name} lost")
        if self._supervised.lose(connection, failure):
            self._tasks.start(self._record_output(connection, failure))

    async def _record_output(self, connection: Connection, failure: ToolError) -> None:
        failure_with_output = await connection.build_error(NetworkError, failure.message, self._user)
        if self._supervised.failure is failure:
            self._supervised.failure = failure_with_output
        self._log("proxy.connect", server=self.name, status="error", text=failure_with_output.message)
        await connection.release(self._user)
        if self._watched:  # a client waits for changes
            with suppress(ToolError):
                await self.connection()

    def _disconnect(self, connection: Connection) -> None:
        self._is_wanted = False
        self._tasks.start(connection.release(self._user))

    def _idle_timeout(self, _connection: Connection) -> float | None:
        """Return the idle timeout, which is shorter if the server has only listed its tools."""
        if self._in_flight or self._watched:
            return None
        unused = LISTED_IDLE_SECONDS if self._is_wanted else 0.0
        return self.server.idle_timeout if self._was_called else min(unused, self.server.idle_timeout)

    @property
    def output(self) -> str:
        """The last lines that the server printed to standard error."""
        return "" if self._last is None else self._last.read_output(self._user)

    async def start(self) -> None:
        """Connect because a person asks for it: at once after a failure, and for as long as after a call."""
        self._supervised.retry_now()
        await self.connection()
        self._was_called = True

    async def stop(self) -> None:
        """Disconnect. Calls in flight fail, and the next call connects again."""
        self._is_wanted = False
        if (starting := self._supervised.starting) is not None:
            starting.cancel()
            await asyncio.wait([starting])
        if (connection := self._supervised.release()) is not None:
            await connection.release(self._user)

    async def close(self) -> None:
        connection = self._supervised.release()
        waiting = [task for task in (self.listing, self._supervised.starting) if task is not None]
        for task in waiting:
            task.cancel()
        if connection is not None:
            await connection.release(self._user)
        if waiting:
            await asyncio.wait(waiting)
        await self._tasks.wait()


async def list_all_pages(ask: Any, part: str, *, optional: bool = False) -> list[Any]:
    """Return all pages of a list; stop if a cursor repeats. Raise if the list is too large."""
    from mcp import MCPError

    found: list[Any] = []
    size = 0
    seen: set[str | None] = set()
    cursor = None
    while cursor not in seen and len(seen) < MAX_PAGES:
        seen.add(cursor)
        try:
            page = await ask(cursor=cursor)
        except MCPError:
            if optional:
                break
            raise
        found += getattr(page, part)
        size += len(page.model_dump_json())
        if len(found) > MAX_ITEMS or size > MAX_LIST_BYTES:
            raise ToolError(f"the list has more than {MAX_ITEMS} items or {MAX_LIST_BYTES >> 20} MiB")
        if not (cursor := page.next_cursor):
            break
    return found


def _summary(error: ToolError) -> str:
    """Return the reason without the output of the server."""
    return str(error.fields.get("summary") or error.message)
