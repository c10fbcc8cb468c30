"""One live MCP server: a client of the SDK that is entered, used and left in a task of its own.

What the server prints on its error stream is kept for whoever asks why it is gone. When to connect, and what to do
once it is gone, is decided in `upstream`.
"""

import asyncio
import importlib
import logging
import os
import sys
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from contextlib import AsyncExitStack, asynccontextmanager, contextmanager, suppress
from pathlib import Path
from typing import Any, Self
from urllib.parse import urlsplit

import anyio.to_thread

import onetool_child
from onetool.children.process import Process
from onetool.config.model import Server
from onetool.errors import NetworkError, ToolError, ToolTimeout
from onetool.proxy.bounds import MAX_ITEMS, MAX_UPSTREAM_BYTES, error_answer, has_too_many_items
from onetool.proxy.launch import Launch
from onetool.proxy.relay import Declaring, Relays, Stream
from onetool.proxy.stdio import stdio_streams
from onetool.version import __version__

LAST_WORDS_SECONDS = 0.5  # for what a process that is gone has printed to be read
REACH_SECONDS = 2.0
CLOSE_SECONDS = 8.0
GUARD = Path(onetool_child.__file__).with_name("guard.py")
CHANGES = {
    "notifications/tools/list_changed": "tools",
    "notifications/prompts/list_changed": "prompts",
    "notifications/resources/list_changed": "resources",
    "notifications/resources/updated": "resource",
}
Changed = Callable[[str, str], None]  # what: tools, prompts, resources or one resource, and its address


class Connection:
    def __init__(
        self,
        name: str,
        server: Server,
        launch: Launch,
        *,
        on_change: Changed,
        on_lost: Callable[["Connection"], None],
        is_relayed: bool = False,
    ) -> None:
        self._name, self._server, self._launch = name, server, launch
        self._on_change, self._on_lost = on_change, on_lost
        self.relays = Relays(server.timeout) if is_relayed else None
        self._listening: dict[str, asyncio.Task[None]] = {}  # by the resource; all else has no name
        self._leave = asyncio.Event()
        self._ready: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        self._task: asyncio.Task[None] | None = None
        self._process: Process | None = None
        self._is_lost = False
        self.client: Any = None

    @property
    def is_over(self) -> bool:
        return self._is_lost or self._leave.is_set() or (self._task is not None and self._task.done())

    async def open(self) -> None:
        """Raises what keeps it from being connected. Whoever opened it closes it, also after that."""
        self._task = asyncio.ensure_future(self._live())
        try:
            async with asyncio.timeout(self._server.timeout):
                self.client = await asyncio.shield(self._ready)
        except TimeoutError:
            reason = f"{self._name} did not answer within {self._server.timeout:g} s"
            raise await self.explained(ToolTimeout, reason) from None

    async def close(self, *, at_once: bool = False) -> None:
        """End the connection. `at_once` kills a process that would otherwise get two seconds to exit."""
        self._leave.set()
        if self._task is None:
            return
        if at_once and self._process is not None:
            self._process.kill()
        if not self._ready.done():
            self._task.cancel()
        with suppress(TimeoutError, asyncio.CancelledError):
            await asyncio.wait_for(asyncio.shield(self._task), CLOSE_SECONDS)

    async def explained(self, kind: type[ToolError], reason: str) -> ToolError:
        """Return the error for this reason, with what the server has printed; `summary` is the reason alone."""
        return kind(f"{reason}{await self.last_words()}", summary=reason)

    async def last_words(self) -> str:
        """What it has printed since the last call began, as the end of a sentence."""
        if self._process is None:
            return ""
        if self.is_over:
            await asyncio.wait([self._process.ended], timeout=LAST_WORDS_SECONDS)
        return self._process.printed.sentence.rstrip("\n")

    def forget_printed(self) -> None:
        """What was printed so far has nothing to do with the next call."""
        if self._process is not None:
            self._process.printed.clear()

    async def is_there(self) -> bool:
        """Whether it is, now: between two requests nothing tells that a server on the network has gone."""
        if self.is_over or self._server.url is None:
            return not self.is_over
        address = urlsplit(self._server.url)
        port = address.port or (443 if address.scheme == "https" else 80)
        try:
            async with asyncio.timeout(REACH_SECONDS):
                _, writer = await asyncio.open_connection(address.hostname, port)
        except (OSError, TimeoutError):
            return False
        writer.close()
        return True

    async def _live(self) -> None:
        await load_sdk()
        from mcp import Client
        from mcp_types import Implementation

        # The SDK logs a traceback for every line that is no message; some servers print hundreds of them.
        logger = logging.getLogger("mcp.client")
        if not logger.handlers:
            logger.addHandler(logging.NullHandler())
        try:
            async with AsyncExitStack() as stack:
                client = Client(
                    self._streams(await self._transport(stack)),
                    message_handler=self._message,
                    client_info=Implementation(name="onetool", version=__version__),
                    read_timeout_seconds=self._server.timeout,
                    **(self.relays.callbacks if self.relays is not None else {}),
                )
                await stack.enter_async_context(client)
                with self._hearing(client) as heard:
                    if self.relays is not None:  # what changes from now on is somebody's business
                        await heard.wait()
                    self._ready.set_result(client)
                    await self._leave.wait()
        except Exception as error:  # noqa: BLE001 - whatever it is, it is why there is no connection
            if not self._ready.done():
                self._is_lost = True
                self._ready.set_exception(await self._refused(error))
                self._ready.exception()  # nobody may be waiting for it

    async def _refused(self, error: BaseException) -> ToolError:
        error = innermost(error)
        if isinstance(error, ToolError):
            return error
        kind = NetworkError if self._server.url else ToolError
        return await self.explained(kind, f"{self._name} cannot be reached: {str(error) or type(error).__name__}")

    # --- what it says by itself -----------------------------------------------------------------------------------

    async def _message(self, message: Any) -> None:
        """In both eras; who listens, in that of 2026, only holds the line."""
        what = CHANGES.get(getattr(message, "method", ""))
        if what is not None:
            self._on_change(what, str(getattr(message.params, "uri", "")))

    @contextmanager
    def _hearing(self, client: Any) -> Iterator[asyncio.Event]:
        """Servers of 2026 tell changes to those who listen, older ones to everybody."""
        able = client.server_capabilities
        kinds = ("tools", "prompts", "resources") if self.relays is not None else ("tools",)
        told = [kind for kind in kinds if getattr(getattr(able, kind), "list_changed", False)]
        try:
            yield self._listen(client, "", **{f"{kind}_list_changed": True for kind in told})
        finally:
            for listening in self._listening.values():
                listening.cancel()

    def _listen(self, client: Any, name: str, **to: Any) -> asyncio.Event:
        """Begin to; the event tells when it has begun, or cannot."""
        heard = asyncio.Event()
        listening = self._listening[name] = asyncio.ensure_future(_listened(client, heard, to))
        listening.add_done_callback(lambda done: done.cancelled() or done.exception())
        listening.add_done_callback(lambda _: heard.set())
        return heard

    @property
    def is_modern(self) -> bool:
        from mcp_types.version import MODERN_PROTOCOL_VERSIONS

        return self.client.protocol_version in MODERN_PROTOCOL_VERSIONS

    async def watch(self, uri: str) -> None:
        """Have changes of this resource told."""
        if self.is_modern:
            await self._listen(self.client, uri, resource_subscriptions=[uri]).wait()
            return
        from mcp_types import EmptyResult, SubscribeRequest, SubscribeRequestParams

        await self.client.session.send_request(SubscribeRequest(params=SubscribeRequestParams(uri=uri)), EmptyResult)

    async def unwatch(self, uri: str) -> None:
        if self.is_modern:
            self._listening.pop(uri).cancel()
            return
        from mcp_types import EmptyResult, UnsubscribeRequest, UnsubscribeRequestParams

        request = UnsubscribeRequest(params=UnsubscribeRequestParams(uri=uri))
        await self.client.session.send_request(request, EmptyResult)

    @asynccontextmanager
    async def _streams(self, transport: Any) -> AsyncIterator[tuple[Any, Any]]:
        async with transport as (reader, writer):
            yield _Watched(reader, self._lost), Declaring(writer) if self.relays is not None else writer

    def _lost(self) -> None:
        """There is nothing more to come. That is news only where nobody had left."""
        self._is_lost = True
        if not self._leave.is_set() and self.client is not None:
            self._on_lost(self)
        self._leave.set()

    # --- transports -------------------------------------------------------------------------------------------------

    async def _transport(self, stack: AsyncExitStack) -> Any:
        server = self._server
        if server.url is None:
            return self._stdio()
        from onetool.proxy.http_bounds import http_client, tls_context

        await anyio.to_thread.run_sync(tls_context)  # before a client needs it on the event loop
        if server.transport == "sse":
            from mcp.client.sse import sse_client

            return sse_client(
                server.url, headers=dict(server.headers), timeout=server.timeout, httpx_client_factory=http_client
            )
        from mcp.client.streamable_http import streamable_http_client

        http = await stack.enter_async_context(http_client(dict(server.headers)))
        return streamable_http_client(server.url, http_client=http, max_sse_event_size=2 * MAX_UPSTREAM_BYTES)

    @asynccontextmanager
    async def _stdio(self) -> AsyncIterator[Any]:
        from mcp.client.stdio import get_default_environment

        launch = self._launch
        if not await anyio.to_thread.run_sync(launch.has_program):
            raise missing_program(self._name, launch.command[0])
        guard = [sys.executable, "-I", "-S", str(GUARD)] if hasattr(os, "fork") else []
        async with stdio_streams(
            [*guard, *launch.command],
            self._started,
            env={**get_default_environment(), **launch.environment},
            cwd=await anyio.to_thread.run_sync(launch.prepared_directory),
            guarded=bool(guard),
        ) as streams:
            yield streams

    def _started(self, process: Process) -> None:
        self._process = process


class _Watched(Stream):
    """A stream of messages that tells when there are no more."""

    def __init__(self, stream: Any, on_end: Callable[[], None]) -> None:
        super().__init__(stream)
        self._on_end = on_end

    @property
    def last_context(self) -> Any:
        return getattr(self._stream, "last_context", None)

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> Any:
        try:
            return _with_few_items(await self._stream.__anext__())
        except Exception:
            self._on_end()
            raise

    async def receive(self) -> Any:
        return await self._stream.receive()


def _with_few_items(message: Any) -> Any:
    """Return the message, or an error in its place if the SDK would be busy with it for long."""
    from mcp.shared.message import SessionMessage
    from mcp_types import jsonrpc_message_adapter

    given: Any = getattr(message, "message", None)
    if not has_too_many_items(getattr(given, "result", None)):
        return message
    reason = f"the message has a list with more than {MAX_ITEMS} items"
    return SessionMessage(jsonrpc_message_adapter.validate_python(error_answer(given.id, reason)))


async def _listened(client: Any, heard: asyncio.Event, to: Mapping[str, Any]) -> None:
    """What is told arrives as a message, like in older servers: here is only the line."""
    from mcp import MCPError
    from mcp.client.subscriptions import ListenNotSupportedError, SubscriptionLost

    with suppress(ListenNotSupportedError, SubscriptionLost, MCPError, TimeoutError):
        if to:
            async with client.listen(**to) as changes:
                heard.set()
                async for _ in changes:
                    pass


async def load_sdk() -> None:
    """Import the SDK in a thread: it takes half a second, for which the event loop goes on."""
    await anyio.to_thread.run_sync(importlib.import_module, "mcp")


def missing_program(name: str, program: str) -> ToolError:
    """Return the error for a server whose program is not there."""
    hint = f"install {program}, or correct servers.{name}.command"
    return ToolError(f"{name} cannot be started: there is no program {program!r}", hint=hint)


def innermost(error: BaseException) -> BaseException:
    """What happened, out of the groups into which task groups put it."""
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    return error
