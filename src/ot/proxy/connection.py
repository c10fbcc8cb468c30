"""One live MCP server: a client of the SDK that is entered, used and left in a task of its own.

What the server prints on its error stream is kept for whoever asks why it is gone.
"""

import asyncio
import os
import sys
from collections.abc import Awaitable, Callable, Mapping
from contextlib import AsyncExitStack, suppress
from pathlib import Path
from typing import Any

import ot_child
from ot.config.model import Server
from ot.errors import NetworkError, ToolError, ToolTimeout

WORDS_KEPT, WORDS_SHOWN = 4000, 1500
CLOSE_SECONDS = 8.0
GUARD = Path(ot_child.__file__).with_name("guard.py")


class Connection:
    def __init__(
        self,
        name: str,
        server: Server,
        environment: Mapping[str, str],
        cwd: Path,
        on_list_changed: Callable[[], None],
    ) -> None:
        self._name, self._server, self._environment, self._cwd = name, server, environment, cwd
        self._on_list_changed = on_list_changed
        self._leave = asyncio.Event()
        self._ready: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        self._task: asyncio.Task[None] | None = None
        self._words = ""
        self.client: Any = None

    @property
    def is_over(self) -> bool:
        return self._task is not None and self._task.done()

    async def open(self) -> None:
        """Raises what keeps it from being connected."""
        self._task = asyncio.ensure_future(self._live())
        try:
            async with asyncio.timeout(self._server.timeout):
                self.client = await asyncio.shield(self._ready)
        except TimeoutError:
            await self.close()
            words = self.last_words
            raise ToolTimeout(f"{self._name} did not answer within {self._server.timeout:g} s{words}") from None

    async def close(self) -> None:
        self._leave.set()
        if self._task is None:
            return
        if not self._ready.done():
            self._task.cancel()
        with suppress(TimeoutError, asyncio.CancelledError):
            await asyncio.wait_for(asyncio.shield(self._task), CLOSE_SECONDS)

    @property
    def last_words(self) -> str:
        words = self._words.strip()[-WORDS_SHOWN:]
        return f". It last printed:\n{words}" if words else ""

    async def _live(self) -> None:
        from mcp import Client

        async with AsyncExitStack() as stack:
            try:
                transport = await self._transport(stack)
                client = Client(transport, message_handler=self._message, client_info=_client_info())
                self._ready.set_result(await stack.enter_async_context(client))
            except Exception as error:  # noqa: BLE001 - whatever it is, it is why there is no connection
                if not self._ready.done():
                    self._ready.set_exception(self._refused(error))
                    self._ready.exception()  # nobody may be waiting for it
                return
            await self._leave.wait()

    def _refused(self, error: BaseException) -> ToolError:
        while isinstance(error, BaseExceptionGroup):
            error = error.exceptions[0]
        kind = NetworkError if self._server.url else ToolError
        return kind(f"{self._name} cannot be reached: {str(error) or type(error).__name__}{self.last_words}")

    async def _message(self, message: Any) -> None:
        if getattr(message, "method", "") == "notifications/tools/list_changed":
            self._on_list_changed()

    # --- transports -------------------------------------------------------------------------------------------------

    async def _transport(self, stack: AsyncExitStack) -> Any:
        server = self._server
        if server.url is None:
            return self._stdio(stack)
        if server.transport == "sse":
            from mcp.client.sse import sse_client

            return sse_client(server.url, headers=dict(server.headers), timeout=server.timeout)
        from mcp.client.streamable_http import streamable_http_client
        from mcp.shared._httpx_utils import create_mcp_http_client

        http = await stack.enter_async_context(create_mcp_http_client(headers=dict(server.headers)))
        return streamable_http_client(server.url, http_client=http)

    def _stdio(self, stack: AsyncExitStack) -> Any:
        from mcp import StdioServerParameters
        from mcp.client.stdio import stdio_client

        reader, writer = os.pipe()
        errors = stack.enter_context(os.fdopen(writer, "w", encoding="utf-8"))
        self._listen(reader, stack)
        server = self._server
        command = [str(server.command), *server.args]
        guarded = [sys.executable, "-I", "-S", str(GUARD), *command] if hasattr(os, "fork") else command
        cwd = self._cwd / Path(server.cwd).expanduser() if server.cwd else self._cwd
        env = {**self._environment, **server.env}
        return stdio_client(StdioServerParameters(command=guarded[0], args=guarded[1:], env=env, cwd=cwd), errors)

    def _listen(self, reader: int, stack: AsyncExitStack) -> None:
        loop = asyncio.get_running_loop()
        os.set_blocking(reader, False)

        def read() -> None:
            with suppress(BlockingIOError):
                data = os.read(reader, 1 << 16)
                if data:
                    self._words = (self._words + data.decode(errors="replace"))[-WORDS_KEPT:]
                else:
                    loop.remove_reader(reader)

        loop.add_reader(reader, read)
        stack.callback(os.close, reader)
        stack.callback(loop.remove_reader, reader)


def _client_info() -> Any:
    from mcp_types import Implementation

    from ot.version import __version__

    return Implementation(name="onetool", version=__version__)


OnChange = Callable[[], Awaitable[None]]
