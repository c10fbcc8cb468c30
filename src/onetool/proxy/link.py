"""The way to one configured server: connected when it is needed, left when it is idle, tried again when it was gone.

What it offers is asked anew each time it is connected, before anything is called. What is asked of it then is the
business of `upstream`.
"""

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable, Mapping
from contextlib import suppress
from functools import partial
from typing import Any

import anyio.to_thread

from onetool.children.supervised import Supervised
from onetool.config.model import Server
from onetool.errors import NetworkError, OutputInvalid, ToolError, ToolTimeout
from onetool.problem import Problem
from onetool.proxy.connection import Changed, Connection, innermost
from onetool.proxy.definitions import Definition, Failure, key_of, sound
from onetool.proxy.launch import Launch
from onetool.proxy.relay import Relay
from onetool.storage import MediaStorage, ToolListStorage
from onetool.util.background_tasks import BackgroundTasks

LISTED_SECONDS = 10.0  # that a server stays which was only asked what it has
FAIR_SECONDS = 0.9  # a server that had less time to answer is not to blame
ALIVE_SECONDS = 5.0  # for a server that let a call wait to answer anything at all
MOST_PAGES = 500


class Link:
    """`install` makes tools of definitions and sets `definitions`, `offered`, `refused` and `is_known`, in one step."""

    def __init__(
        self,
        name: str,
        server: Server,
        *,
        lists: ToolListStorage,
        launch: Launch,
        media: Callable[[], MediaStorage],
        install: Callable[[tuple[Definition, ...]], Awaitable[None]],
        log: Callable[..., None],
    ) -> None:
        self.name, self.server, self.key = name, server, key_of(server)
        self._lists, self._launch = lists, launch
        self._media, self._install, self._log = media, install, log
        self._supervised = Supervised(name, self._open, self._leave, self._idle)
        self._asking, self._installing = asyncio.Lock(), asyncio.Lock()
        self._in_flight, self._was_called = 0, False
        self._recorded: Failure | None = None  # the last failed attempt of any process
        self._is_wanted = False  # whether anybody needs the connection for more than its list
        self.listing: asyncio.Future[None] | None = None  # the background listing, while it lasts
        self._tasks = BackgroundTasks(lambda error: log("proxy.connect", server=name, status="error", text=str(error)))
        self._watched: Counter[str] = Counter()  # resources, and how many want to be told of their changes
        self.on_news: Changed | None = None  # told of what has changed, by a door that publishes this server
        self.told: Mapping[str, Any] = {}  # its tools in all their words, by their own names, once it was connected
        self.definitions: tuple[Definition, ...] = ()
        self.offered: Mapping[str, Definition] = {}  # by the name of the tool
        self.refused: Mapping[str, str] = {}  # tools that are not to be called, and why
        self.is_known = False

    # --- how it is ------------------------------------------------------------------------------------------------

    @property
    def state(self) -> str:
        if not self.server.enabled:
            return "disabled"
        if self._live is not None:
            return "connected"
        if self.listing is not None and not self.is_known:
            return "discovering"
        return "disconnected" if self.failure is not None else "idle"

    @property
    def failure(self) -> str | None:
        """Why the last attempt to connect failed, in this process or in another one."""
        if self._supervised.failure is not None:
            return self._supervised.failure.message
        return self._recorded.reason if self._recorded is not None and not self._recorded.is_interrupted else None

    @property
    def problem(self) -> Problem:
        """Why it has no tools."""
        waiting = f"{self.name} offers no tools" if self.is_known else "it has not answered yet; try again in a moment"
        reason = self.failure or (waiting if self.server.enabled else self._disabled)
        failure = self._supervised.failure
        return Problem(reason, failure.hint if failure is not None else "")

    @property
    def _disabled(self) -> str:
        return f"{self.name} is disabled; servers.{self.name}.enabled in onetool.yaml enables it"

    @property
    def attempts(self) -> int:
        """How often in a row listing has failed."""
        return self._recorded.count if self._recorded is not None else 0

    def is_due(self, *, keeps_running: bool) -> bool:
        """Return whether to list the server now.

        A process that keeps running retries at once what only the end of another process interrupted.
        """
        if self.is_known or self.listing is not None or not (self.server.enabled and self.may_try):
            return False
        recorded = self._recorded
        return recorded is None or (keeps_running and recorded.is_interrupted) or not self.retry_seconds

    @property
    def retry_seconds(self) -> float:
        """Seconds until the next attempt to list the server."""
        return self._recorded.wait_seconds(self._lists.clock()) if self._recorded is not None else 0.0

    @property
    def why_unlisted(self) -> str:
        """Why its tools are not listed, in a few words."""
        if not self.server.enabled:
            return "disabled"
        if self.listing is not None:
            return "starting"
        what = "" if self.failure is None else "failed: "
        if self._recorded is not None:
            reason = self._recorded.summary
        else:
            failure = self._supervised.failure
            reason = _summary(failure) if failure is not None else "not started yet"
        return f"{what}{reason}; next attempt in {self.retry_seconds:.0f} s"

    @property
    def _live(self) -> Connection | None:
        return self._supervised.live

    @property
    def may_try(self) -> bool:
        return self._supervised.wait_seconds == 0

    async def look(self) -> None:
        """Have the state be that of this moment."""
        connection = self._live
        if connection is not None and not await connection.is_there():
            self._lost(connection)

    def publish(self, on_news: Changed) -> None:
        """From now on for clients that can be asked, and want to be told what is new. Without them it is left first."""
        self.on_news = on_news
        if (connection := self._live) is not None and connection.relays is None and not self._in_flight:
            self._supervised.release()
            self._tasks.start(connection.close())

    async def recall(self) -> None:
        """Take up the list of the last time, without starting anything."""
        known, failure = await anyio.to_thread.run_sync(self._read)
        if known is not None:
            await self._know(known, is_cached=True)
        self._recorded = (failure or self._recorded) if known is None else None

    def _read(self) -> tuple[tuple[Definition, ...] | None, Failure | None]:
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

    # --- asking -------------------------------------------------------------------------------------------------------

    async def _asked(
        self, what: str, ask: Callable[[], Awaitable[Any]], connection: Connection, relay: Relay | None = None
    ) -> Any:
        if not self._in_flight:
            connection.forget_printed()
        self._in_flight += 1
        try:
            return await ask()
        except Exception as error:  # noqa: BLE001 - the SDK and its transports raise what they like
            if relay is not None:
                relay.error = innermost(error)
            raise await self._failed(what, innermost(error), connection) from None
        finally:
            self._in_flight -= 1
            self._supervised.last_use = asyncio.get_running_loop().time()

    async def _failed(self, what: str, error: BaseException, connection: Connection) -> ToolError:
        """What went wrong between us and the server; what the tool itself reports is no matter of this."""
        from mcp_types import CONNECTION_CLOSED, REQUEST_TIMEOUT

        code = getattr(error, "code", None)
        if connection.is_over or code == CONNECTION_CLOSED:
            words = await connection.last_words()
            self._lost(connection)
            return NetworkError(f"{self.name} went away in the middle of {what}{words}. The next call connects anew.")
        if code == REQUEST_TIMEOUT or isinstance(error, TimeoutError):
            self._tasks.start(self._leave_if_stuck(connection))
            return ToolTimeout(f"{what} took longer than {self.server.timeout:g} s; it was cancelled")
        if isinstance(error, RuntimeError) and "structured content" in str(error):  # the SDK's check
            return OutputInvalid(f"{what} gave a value that does not fit its own schema: {str(error).splitlines()[0]}")
        return ToolError(f"{what}: {str(error) or type(error).__name__}")

    async def _leave_if_stuck(self, connection: Connection) -> None:
        """A slow tool is its own matter; a server that answers nothing is started anew at the next call."""
        try:
            async with asyncio.timeout(min(ALIVE_SECONDS, self.server.timeout)):
                await connection.client.list_tools(cache_mode="bypass")
        except Exception:  # noqa: BLE001 - see above
            if not connection.is_over:
                self._lost(connection)
                await connection.close()

    # --- being told of changes --------------------------------------------------------------------------------------

    async def watch(self, uri: str) -> None:
        """Have `on_news` told when this resource changes; for as long as it is not taken back."""
        connection = await self.connection()
        self._watched[uri] += 1
        if self._watched[uri] == 1:
            try:
                await self._asked(uri, partial(connection.watch, uri), connection)
            except ToolError:
                self._forget(uri)
                raise

    async def unwatch(self, uri: str) -> None:
        if self._forget(uri) and (connection := self._live) is not None:
            with suppress(ToolError):
                await self._asked(uri, partial(connection.unwatch, uri), connection)

    def _forget(self, uri: str) -> bool:
        """Whether nobody wants to be told of it any more."""
        self._watched[uri] -= 1
        is_last = self._watched[uri] <= 0
        if is_last:
            del self._watched[uri]
        return is_last

    async def _watch_again(self, connection: Connection) -> None:
        for uri in list(self._watched):
            with suppress(ToolError):
                await self._asked(uri, partial(connection.watch, uri), connection)

    # --- the connection -----------------------------------------------------------------------------------------------

    async def connection(self, progress: Callable[[str], None] | None = None, *, only_list: bool = False) -> Connection:
        """Return the live connection; connect if there is none, once for everybody who waits.

        With `only_list` the server is stopped as soon as it has listed its tools.
        """
        if (live := self._live) is not None:
            return live
        if progress is not None:
            progress(f"{self.name}: connecting")
        self.begin(only_list=only_list)
        return await self._supervised.get()

    def begin(self, *, only_list: bool = False) -> "asyncio.Task[Connection]":
        """Start to connect, unless that is under way. Raises where it makes no sense at the moment."""
        self._is_wanted |= not only_list
        if not self.server.enabled:
            raise ToolError(self._disabled)
        failure = self._supervised.failure
        if failure is not None and not self.may_try and self._supervised.starting is None:
            message = f"{failure.message} (The next try is in {self._supervised.wait_seconds:.0f} s.)"
            raise type(failure)(message, **failure.fields)
        return self._supervised.begin()

    async def _open(self) -> Connection:
        began = asyncio.get_running_loop().time()
        connection = Connection(
            self.name,
            self.server,
            self._launch,
            on_change=self._changed,
            on_lost=self._lost,
            is_relayed=self.on_news is not None,
        )
        try:
            await connection.open()
            await self._ask_for_tools(connection)
        except ToolError as error:
            self._log("proxy.connect", server=self.name, status="error", text=error.message)
            await self._record(error.message, _summary(error))
            self._tasks.start(connection.close(at_once=True))
            raise
        except asyncio.CancelledError:
            seconds = asyncio.get_running_loop().time() - began
            if seconds >= FAIR_SECONDS:
                await self._record(f"no answer within {seconds:.1f} s", is_interrupted=True)
            await connection.close(at_once=True)
            raise
        seconds = asyncio.get_running_loop().time() - began
        self._log("proxy.connect", server=self.name, status="ok", duration_ms=round(seconds * 1000, 3))
        self._was_called = False
        if self._watched:
            self._tasks.start(self._watch_again(connection))
        return connection

    async def _record(self, reason: str, summary: str = "", *, is_interrupted: bool = False) -> None:
        """Tell other processes why there is no list."""
        if not self.is_known:
            write = partial(self._lists.put_failure, self.key, reason, summary, is_interrupted=is_interrupted)
            self._recorded = await anyio.to_thread.run_sync(write)

    async def _ask_for_tools(self, connection: Connection) -> None:
        ask = partial(connection.client.list_tools, cache_mode="bypass")
        async with self._asking:
            try:
                async with asyncio.timeout(self.server.timeout):
                    tools = await every_page(ask, "tools")
            except Exception as error:  # noqa: BLE001 - see above
                reason = innermost(error)
                what = f"{self.name} does not tell its tools: {str(reason) or type(reason).__name__}"
                raise await connection.explained(ToolError, what) from None
            self.told = {each.name: each for each in tools} if self.on_news is not None else {}
            definitions = await anyio.to_thread.run_sync(self._kept, tools)
            await self._know(definitions)

    def _kept(self, tools: list[Any]) -> tuple[Definition, ...]:
        definitions = tuple(sound(Definition.of(each)) for each in tools)
        self._lists.put(self.key, definitions)
        return definitions

    async def _know(self, definitions: tuple[Definition, ...], *, is_cached: bool = False) -> None:
        """Have the tools of these definitions. A cached list never replaces what the server has told."""
        async with self._installing:
            if self.is_known and (is_cached or definitions == self.definitions):
                return
            is_new = definitions != self.definitions
            await self._install(definitions)
        self._recorded = None
        if is_new:
            self._news("tools", "")

    async def install_again(self) -> None:
        """Make the tools anew of the same definitions, because the pins have changed."""
        async with self._installing:
            if self.is_known:
                await self._install(self.definitions)

    def _changed(self, what: str, uri: str) -> None:
        """Of tools there is news once they are known."""
        if what != "tools":
            self._news(what, uri)
        elif (connection := self._live) is not None:
            self._tasks.start(self._ask_for_tools(connection))

    def _news(self, what: str, uri: str) -> None:
        if self.on_news is not None:
            self.on_news(what, uri)

    def _lost(self, connection: Connection) -> None:
        """It went away by itself. The next call may try at once: it has worked before."""
        failure = NetworkError(f"{self.name} went away")
        if self._supervised.lose(connection, failure):
            self._tasks.start(self._remember_words(connection, failure))

    async def _remember_words(self, connection: Connection, failure: ToolError) -> None:
        told = await connection.explained(NetworkError, failure.message)
        if self._supervised.failure is failure:
            self._supervised.failure = told
        self._log("proxy.connect", server=self.name, status="error", text=told.message)
        await connection.close()
        if self._watched:  # somebody waits for what it has to tell
            with suppress(ToolError):
                await self.connection()

    def _leave(self, connection: Connection) -> None:
        self._is_wanted = False
        self._tasks.start(connection.close())

    def _idle(self, _connection: Connection) -> float | None:
        """Return how long it may be idle; less if it was only asked what it has."""
        if self._in_flight or self._watched:
            return None
        unused = LISTED_SECONDS if self._is_wanted else 0.0
        return self.server.idle_timeout if self._was_called else min(unused, self.server.idle_timeout)

    async def close(self) -> None:
        connection = self._supervised.release()
        waiting = [task for task in (self.listing, self._supervised.starting) if task is not None]
        for task in waiting:
            task.cancel()
        if connection is not None:
            await connection.close()
        if waiting:
            await asyncio.wait(waiting)
        await self._tasks.wait()


async def every_page(ask: Any, part: str, *, optional: bool = False) -> list[Any]:
    """Every page of a list, as long as there is something new on them."""
    from mcp import MCPError

    found: list[Any] = []
    seen: set[str | None] = set()
    cursor = None
    while cursor not in seen and len(seen) < MOST_PAGES:
        seen.add(cursor)
        try:
            page = await ask(cursor=cursor)
        except MCPError:
            if optional:
                break
            raise
        found += getattr(page, part)
        if not (cursor := page.next_cursor):
            break
    return found


def _summary(error: ToolError) -> str:
    """Return why it failed, without what the server has printed."""
    return str(error.fields.get("summary") or error.message)
