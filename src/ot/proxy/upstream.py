"""One configured server: connected when it is called, left when it is idle, tried again when it was gone.

It is the backend of its tools. What it offers is asked anew each time it is connected.
"""

import asyncio
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import anyio.to_thread

from ot.config.model import Server
from ot.context import ToolContext
from ot.errors import NetworkError, ToolError, ToolTimeout
from ot.proxy import content
from ot.proxy.connection import Connection
from ot.proxy.definitions import Definition, Lists, key_of
from ot.tool import Tool

FIRST_WAIT, LONGEST_WAIT = 1.0, 60.0


class Upstream:
    def __init__(
        self,
        name: str,
        server: Server,
        *,
        lists: Lists,
        environment: Mapping[str, str],
        cwd: Path,
        keep: Callable[[bytes, str, str], str],
        on_change: Callable[["Upstream"], None],
        log: Callable[..., None],
    ) -> None:
        self.name, self.server, self.key = name, server, key_of(server)
        self._lists, self._environment, self._cwd = lists, environment, cwd
        self._keep, self._on_change, self._log = keep, on_change, log
        self._connection: Connection | None = None
        self._opening = asyncio.Lock()
        self._in_flight, self._last_call = 0, 0.0
        self._failure: ToolError | None = None
        self._failures, self._next_try = 0, 0.0
        self._tasks: set[asyncio.Task[Any]] = set()
        self.definitions: Mapping[str, Definition] = {}
        self.is_known = False

    @property
    def state(self) -> str:
        """Now, not when somebody last looked."""
        if not self.server.enabled:
            return "disabled"
        if self._connection is not None and not self._connection.is_over:
            return "connected"
        return "disconnected" if self._failure is not None else "idle"

    @property
    def failure(self) -> str | None:
        return self._failure.message if self._failure is not None else None

    async def recall(self) -> None:
        """Take up the list of the last time, without starting anything."""
        known = await anyio.to_thread.run_sync(self._lists.read, self.key)
        if known is not None:
            self._know(known)

    # --- calls --------------------------------------------------------------------------------------------------

    async def invoke(self, tool: Tool, args: Mapping[str, Any], context: ToolContext) -> Any:
        definition = self.definitions[tool.name.removeprefix(f"{self.name}.")]
        client = await self.client(context.progress)
        self._in_flight += 1
        try:
            result = await client.call_tool(
                definition.name,
                dict(args),
                read_timeout_seconds=self.server.timeout,
                progress_callback=_progress(self.name, context.progress),
            )
        except Exception as error:  # noqa: BLE001 - the SDK and its transports raise what they like
            raise await self._failed(tool.name, error) from None
        finally:
            self._in_flight -= 1
            self._last_call = asyncio.get_running_loop().time()
        kept = partial(self._keep_for, context.agent_id)
        return await anyio.to_thread.run_sync(content.value_of, result, definition, kept)

    def _keep_for(self, agent: str, data: bytes, mime_type: str) -> str:
        return self._keep(data, mime_type, agent)

    async def list_resources(self, context: ToolContext) -> list[dict[str, Any]]:
        client = await self.client(context.progress)
        return [_plain(each) for each in await _all(client.list_resources, "resources")]

    async def read_resource(self, uri: str, context: ToolContext) -> Any:
        client = await self.client(context.progress)
        found = await self._asked(uri, client.read_resource(uri))
        kept = partial(self._keep_for, context.agent_id)
        parts = [content.resource(each, kept) for each in found.contents]
        return parts[0] if len(parts) == 1 else parts

    async def list_prompts(self, context: ToolContext) -> list[dict[str, Any]]:
        client = await self.client(context.progress)
        return [_plain(each) for each in await _all(client.list_prompts, "prompts")]

    async def get_prompt(self, name: str, arguments: Mapping[str, str], context: ToolContext) -> dict[str, Any]:
        client = await self.client(context.progress)
        return _plain(await self._asked(name, client.get_prompt(name, dict(arguments))))

    async def _asked(self, what: str, question: Any) -> Any:
        try:
            return await question
        except Exception as error:  # noqa: BLE001 - see above
            raise await self._failed(what, error) from None

    async def client(self, progress: Callable[[str], None] | None = None) -> Any:
        """The connected client; connects where there is none."""
        if self._connection is not None and not self._connection.is_over:
            return self._connection.client
        async with self._opening:
            if self._connection is None or self._connection.is_over:
                self._refuse_for_now()
                if progress is not None:
                    progress(f"{self.name}: connecting")
                await self._open()
        assert self._connection is not None
        return self._connection.client

    async def _failed(self, name: str, error: BaseException) -> Exception:
        """What went wrong between us and the server; what the tool itself reports is no matter of this."""
        from mcp import MCPError

        while isinstance(error, BaseExceptionGroup):
            error = error.exceptions[0]
        words = self._connection.last_words if self._connection is not None else ""
        if isinstance(error, MCPError) and "timed out" in str(error).lower():
            return ToolTimeout(f"{name} took longer than {self.server.timeout:g} s")
        if isinstance(error, MCPError) and "closed" not in str(error).lower():
            return ToolError(f"{name}: {error}")
        await self._drop()
        return NetworkError(f"{self.name} went away in the middle of {name}{words}. The next call connects anew.")

    # --- the connection -----------------------------------------------------------------------------------------------

    def _refuse_for_now(self) -> None:
        seconds = self._next_try - asyncio.get_running_loop().time()
        if self._failure is not None and seconds > 0:
            raise ToolError(f"{self._failure.message} (The next try is in {seconds:.0f} s.)")

    async def _open(self) -> None:
        loop = asyncio.get_running_loop()
        began = loop.time()
        connection = Connection(self.name, self.server, self._environment, self._cwd, self._list_changed)
        try:
            await connection.open()
            self._connection = connection
            await self._ask_for_tools()
        except ToolError as error:
            self._log("proxy.connect", server=self.name, status="error", text=error.message)
            self._failure, self._next_try = error, loop.time() + min(LONGEST_WAIT, FIRST_WAIT * 2**self._failures)
            self._failures += 1
            raise
        self._failure, self._failures, self._last_call = None, 0, loop.time()
        self._log("proxy.connect", server=self.name, status="ok", duration_ms=round((loop.time() - began) * 1000, 3))
        self._leave_when_idle(connection)

    async def _ask_for_tools(self) -> None:
        assert self._connection is not None
        try:
            tools = await _all(partial(self._connection.client.list_tools, cache_mode="bypass"), "tools")
        except Exception as error:  # noqa: BLE001 - see above
            raise ToolError(f"{self.name} does not tell its tools: {error}") from None
        definitions = tuple(map(Definition.of, tools))
        await anyio.to_thread.run_sync(self._lists.write, self.key, definitions)
        self._know(definitions)

    def _know(self, definitions: tuple[Definition, ...]) -> None:
        self.is_known = True
        found = {each.name: each for each in definitions}
        if found != self.definitions:
            self.definitions = found
            self._on_change(self)

    def _list_changed(self) -> None:
        self._in_background(self._ask_for_tools())

    def _leave_when_idle(self, connection: Connection) -> None:
        loop = asyncio.get_running_loop()
        left = self._last_call + self.server.idle_timeout - loop.time()
        if connection.is_over:
            return
        if self._in_flight or left > 0:
            again = left if left > 0 else self.server.idle_timeout
            loop.call_later(again, self._leave_when_idle, connection)
            return
        self._in_background(self._drop())

    async def _drop(self) -> None:
        connection, self._connection = self._connection, None
        if connection is not None:
            await connection.close()

    async def close(self) -> None:
        await self._drop()
        for task in list(self._tasks):
            task.cancel()

    def _in_background(self, coroutine: Any) -> None:
        task = asyncio.ensure_future(coroutine)
        self._tasks.add(task)
        task.add_done_callback(self._done)

    def _done(self, task: "asyncio.Task[Any]") -> None:
        self._tasks.discard(task)
        if not task.cancelled() and task.exception() is not None:
            self._log("proxy.connect", server=self.name, status="error", text=str(task.exception()))


async def _all(ask: Any, part: str) -> list[Any]:
    """Every page of a list."""
    found: list[Any] = []
    cursor = None
    while True:
        page = await ask(cursor=cursor)
        found += getattr(page, part)
        cursor = page.next_cursor
        if not cursor:
            return found


def _plain(model: Any) -> dict[str, Any]:
    data: dict[str, Any] = model.model_dump(mode="json", by_alias=True, exclude_none=True)
    return data


def _progress(name: str, tell: Callable[[str], None] | None) -> Any:
    if tell is None:
        return None

    async def told(progress: float, total: float | None, message: str | None) -> None:
        done = f"{progress:g} of {total:g}" if total else f"{progress:g}"
        tell(f"{name}: {message or done}")

    return told
