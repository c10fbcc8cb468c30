"""A live connection to an MCP server: a client of the SDK in a separate task.

Applications may share a connection that relays no requests of the server to clients. The last stderr output of the
server is kept for error messages. `connection_manager` decides when to connect.
"""

import asyncio
import importlib
import logging
import os
import sys
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from contextlib import AsyncExitStack, asynccontextmanager, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self
from urllib.parse import urlsplit

import anyio.to_thread

import onetool_child
from onetool.children.process import Process
from onetool.children.shared import Users
from onetool.config.model import Server
from onetool.config.programs import start_seconds
from onetool.errors import NetworkError, ToolError, ToolTimeout
from onetool.proxy.message_limits import MAX_ITEMS, MAX_UPSTREAM_BYTES, error_response, has_too_many_items
from onetool.proxy.relay import DeclaringStream, Relays, WrappedStream
from onetool.proxy.server_launch import ServerLaunch
from onetool.proxy.stdio import stdio_streams
from onetool.util.version import __version__

if TYPE_CHECKING:
    from onetool.oauth.bearer_auth import BearerAuth
    from onetool.oauth.token_source import TokenSource

STDERR_SECONDS = 0.5  # to read the last output of a lost process
REACH_SECONDS = 2.0
CLOSE_SECONDS = 8.0
GUARD_FILE = Path(onetool_child.__file__).with_name("guard.py")
CHANGE_KINDS = {
    "notifications/tools/list_changed": "tools",
    "notifications/prompts/list_changed": "prompts",
    "notifications/resources/list_changed": "resources",
    "notifications/resources/updated": "resource",
}
QUESTIONS = frozenset({"sampling/createMessage", "elicitation/create", "roots/list"})
OnChange = Callable[[str, str], None]  # kind (tools, prompts, resources or resource), and the URI of a resource


@dataclass(frozen=True, slots=True, eq=False)
class ConnectionUser:
    """An application that uses a connection, and its name for the server."""

    name: str
    on_change: OnChange
    on_lost: Callable[["Connection"], None]


class Connection:
    """A connection to one server. Each of its users calls `open`, and `release` afterwards."""

    def __init__(
        self, server: Server, launch: ServerLaunch, source: "TokenSource | None" = None, *, is_relayed: bool = False
    ) -> None:
        self._server, self._launch, self._source = server, launch, source
        self._auth: BearerAuth | None = None
        self.users: Users[ConnectionUser] = Users(self._clear_output)
        self.is_offered = not is_relayed
        self.relays = Relays(server.timeout) if is_relayed else None
        self._subscriptions: dict[str, asyncio.Task[None]] = {}  # by URI; the key of lists is empty
        self._leave = asyncio.Event()
        self._ready: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._task: asyncio.Task[None] | None = None
        self._process: Process | None = None
        self._is_lost = False
        self.checking: asyncio.Future[None] | None = None  # whether the server responds, after a call timed out
        self.loss = ""  # why it was given up, as a part of an error message
        self.client: Any = None

    @property
    def is_over(self) -> bool:
        return self._is_lost or self._leave.is_set() or (self._task is not None and self._task.done())

    async def open(self, user: ConnectionUser) -> None:
        """Connect, once for all users, or raise why that failed. The user releases the connection in both cases."""
        if self._task is None:
            self._task = asyncio.ensure_future(self._run())
        try:
            async with asyncio.timeout(start_seconds(self._server)) as clock:
                await asyncio.shield(self._ready)
        except Exception as error:  # noqa: BLE001 - any error is the reason for the failure
            if not clock.expired():
                raise await self._connect_error(error, user) from None
            self.is_offered = False
            reason = f"{user.name} did not respond within {start_seconds(self._server):g} s"
            raise await self.build_error(ToolTimeout, reason, user) from None

    async def release(self, user: ConnectionUser, *, at_once: bool = False) -> None:
        """Stop using the connection: calls of this user fail. The last user closes it."""
        self.users.interrupt(user)
        self.users.discard(user)
        if not self.users:
            await self.close(at_once=at_once)

    def give_up(self, user: ConnectionUser) -> None:
        """Treat a server that does not respond as lost, except for other users with a call in flight."""
        self.is_offered = False
        for each in self.users:
            if each is user or not self.users.is_calling(each):
                each.on_lost(self)

    async def close(self, *, at_once: bool = False) -> None:
        """Close the connection. `at_once` kills the process, which otherwise gets two seconds to exit."""
        self._leave.set()
        if self._task is None:
            return
        if at_once and self._process is not None:
            self._process.kill()
        if not self._ready.done():
            self._task.cancel()
            self._ready.set_exception(ConnectionAbortedError("it was closed"))
            self._ready.exception()  # mark it as retrieved
        with suppress(TimeoutError, asyncio.CancelledError):
            await asyncio.wait_for(asyncio.shield(self._task), CLOSE_SECONDS)

    async def build_error(self, kind: type[ToolError], reason: str, user: ConnectionUser) -> ToolError:
        """Return the error for this reason with the output of the server; `summary` is the reason only."""
        return kind(f"{reason}{await self.stderr_tail(user)}", summary=reason)

    async def stderr_tail(self, user: ConnectionUser) -> str:
        """Return what the server printed since the last call started, as the end of an error message.

        It is empty if the output could be about calls of other applications.
        """
        if self._process is None:
            return ""
        if self.is_over:
            await asyncio.wait([self._process.ended], timeout=STDERR_SECONDS)
        return self._process.printed.sentence.rstrip("\n") if self.users.may_read_output(user) else ""

    def read_output(self, user: ConnectionUser) -> str:
        """Return the last lines that the server printed; empty if they could be about calls of other applications."""
        is_readable = self._process is not None and self.users.may_read_output(user)
        return self._process.printed.tail if is_readable and self._process is not None else ""

    def _clear_output(self) -> None:
        """Discard the output so far, which is not related to the next call."""
        if self._process is not None:
            self._process.printed.clear()

    async def is_reachable(self) -> bool:
        """Return whether the server is reachable; a lost network connection is not noticed between requests."""
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

    async def _run(self) -> None:
        await load_sdk()
        from mcp import Client
        from mcp_types import Implementation

        # The SDK logs a traceback for every line that is not a message; some servers print hundreds of them.
        logger = logging.getLogger("mcp.client")
        if not logger.handlers:
            logger.addHandler(logging.NullHandler())
        try:
            async with AsyncExitStack() as stack:
                client = Client(
                    self._open_streams(await self._open_transport(stack)),
                    message_handler=self._on_message,
                    client_info=Implementation(name="onetool", version=__version__),
                    read_timeout_seconds=start_seconds(self._server),  # calls have their own timeout
                    **(self.relays.callbacks if self.relays is not None else {}),
                )
                await stack.enter_async_context(client)
                # The SDK validates on the event loop, in a time that the schema and the patterns of the server decide.
                setattr(client.session, "validate_tool_result", _accept_result)  # noqa: B010 - a method of the SDK
                with self._subscribe(client) as subscribed:
                    if self.relays is not None:  # clients must not miss changes from now on
                        await subscribed.wait()
                    self.client = client
                    self._ready.set_result(None)
                    await self._leave.wait()
        except Exception as error:  # noqa: BLE001 - any error is the reason for the failure
            if not self._ready.done():
                self._is_lost = True
                self._ready.set_exception(innermost(error))
                self._ready.exception()  # mark it as retrieved

    async def _connect_error(self, error: BaseException, user: ConnectionUser) -> ToolError:
        if isinstance(error, ToolError):
            return error
        if self._auth is not None and self._auth.failure is not None:
            return self._auth.failure
        if isinstance(error, _MissingProgram):
            return missing_program(user.name, str(error))
        kind = NetworkError if self._server.url else ToolError
        reason = f"cannot connect to {user.name}: {str(error) or type(error).__name__}"
        return await self.build_error(kind, reason, user)

    # --- notifications --------------------------------------------------------------------------------------------

    async def _on_message(self, message: Any) -> None:
        """Handle a notification. Protocols of 2026 deliver them here too while a subscription is open."""
        kind = CHANGE_KINDS.get(getattr(message, "method", ""))
        if kind is not None:
            for user in self.users:
                user.on_change(kind, str(getattr(message.params, "uri", "")))

    @contextmanager
    def _subscribe(self, client: Any) -> Iterator[asyncio.Event]:
        """Subscribe to list changes. Protocols of 2026 require it; older servers notify all clients."""
        capabilities = client.server_capabilities
        kinds = ("tools", "prompts", "resources") if self.relays is not None else ("tools",)
        announced = [kind for kind in kinds if getattr(getattr(capabilities, kind), "list_changed", False)]
        try:
            yield self._listen(client, "", **{f"{kind}_list_changed": True for kind in announced})
        finally:
            for task in self._subscriptions.values():
                task.cancel()

    def _listen(self, client: Any, name: str, **to: Any) -> asyncio.Event:
        """Open a subscription; the event is set when it is open, or cannot be opened."""
        subscribed = asyncio.Event()
        task = self._subscriptions[name] = asyncio.ensure_future(_keep_subscribed(client, subscribed, to))
        task.add_done_callback(lambda done: done.cancelled() or done.exception())
        task.add_done_callback(lambda _: subscribed.set())
        return subscribed

    @property
    def is_modern(self) -> bool:
        from mcp_types.version import MODERN_PROTOCOL_VERSIONS

        return self.client.protocol_version in MODERN_PROTOCOL_VERSIONS

    async def watch(self, uri: str) -> None:
        """Subscribe to changes of a resource."""
        if self.is_modern:
            await self._listen(self.client, uri, resource_subscriptions=[uri]).wait()
            return
        from mcp_types import EmptyResult, SubscribeRequest, SubscribeRequestParams

        await self.client.session.send_request(SubscribeRequest(params=SubscribeRequestParams(uri=uri)), EmptyResult)

    async def unwatch(self, uri: str) -> None:
        if self.is_modern:
            self._subscriptions.pop(uri).cancel()
            return
        from mcp_types import EmptyResult, UnsubscribeRequest, UnsubscribeRequestParams

        request = UnsubscribeRequest(params=UnsubscribeRequestParams(uri=uri))
        await self.client.session.send_request(request, EmptyResult)

    @asynccontextmanager
    async def _open_streams(self, transport: Any) -> AsyncIterator[tuple[Any, Any]]:
        async with transport as (reader, writer):
            yield (
                _WatchedStream(reader, self._on_received, self._on_stream_end),
                DeclaringStream(writer) if self.relays is not None else writer,
            )

    def _on_received(self, message: Any) -> None:
        """Do not offer the connection to more applications after the server has asked a client for something."""
        result = getattr(message, "result", None)
        is_input_required = isinstance(result, dict) and result.get("resultType") == "input_required"
        if is_input_required or getattr(message, "method", None) in QUESTIONS:
            self.is_offered = False

    def _on_stream_end(self) -> None:
        """Handle the end of the stream; report a loss unless the connection was closed."""
        self._is_lost = True
        if not self._leave.is_set() and self.client is not None:
            for user in self.users:
                user.on_lost(self)
        self._leave.set()

    # --- transports -------------------------------------------------------------------------------------------------

    async def _open_transport(self, stack: AsyncExitStack) -> Any:
        server = self._server
        if server.url is None:
            return self._open_stdio()
        from onetool.proxy.http_limits import http_client, tls_context

        await anyio.to_thread.run_sync(tls_context)  # before a client needs it on the event loop
        auth = self._auth = self._make_auth()
        if server.transport == "sse":
            from mcp.client.sse import sse_client

            return sse_client(
                server.url,
                headers=dict(server.headers),
                timeout=server.timeout,
                httpx_client_factory=http_client,
                auth=auth,
            )
        from mcp.client.streamable_http import streamable_http_client

        http = await stack.enter_async_context(http_client(dict(server.headers), auth=auth))
        return streamable_http_client(server.url, http_client=http, max_sse_event_size=2 * MAX_UPSTREAM_BYTES)

    def _make_auth(self) -> "BearerAuth | None":
        from onetool.oauth.bearer_auth import BearerAuth

        return None if self._source is None else BearerAuth(self._source)

    @asynccontextmanager
    async def _open_stdio(self) -> AsyncIterator[Any]:
        from mcp.client.stdio import get_default_environment

        launch = self._launch
        if not await anyio.to_thread.run_sync(launch.has_program):
            raise _MissingProgram(launch.command[0])
        guard = [sys.executable, "-I", "-S", str(GUARD_FILE)] if hasattr(os, "fork") else []
        async with stdio_streams(
            [*guard, *launch.command],
            self._on_started,
            env={**get_default_environment(), **launch.environment},
            cwd=await anyio.to_thread.run_sync(launch.prepare_directory),
            guarded=bool(guard),
        ) as streams:
            yield streams

    def _on_started(self, process: Process) -> None:
        self._process = process


class _MissingProgram(Exception):
    """The program of the server is not installed. The message is its name."""


class _WatchedStream(WrappedStream):
    """A stream of messages that reports each of them, and its end."""

    def __init__(self, stream: Any, on_received: Callable[[Any], None], on_end: Callable[[], None]) -> None:
        super().__init__(stream)
        self._on_received, self._on_end = on_received, on_end

    @property
    def last_context(self) -> Any:
        return getattr(self._stream, "last_context", None)

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> Any:
        try:
            message = _limit_items(await self._stream.__anext__())
        except Exception:
            self._on_end()
            raise
        self._on_received(getattr(message, "message", None))
        return message

    async def receive(self) -> Any:
        return await self._stream.receive()


def _limit_items(message: Any) -> Any:
    """Return the message, or an error in its place if the SDK would take too long to validate it."""
    from mcp.shared.message import SessionMessage
    from mcp_types import jsonrpc_message_adapter

    response: Any = getattr(message, "message", None)
    if not has_too_many_items(getattr(response, "result", None)):
        return message
    reason = f"the message has a list with more than {MAX_ITEMS} items"
    return SessionMessage(jsonrpc_message_adapter.validate_python(error_response(response.id, reason)))


async def _accept_result(_name: str, _result: Any) -> None:
    """Leave the validation of results to the bus."""


async def _keep_subscribed(client: Any, subscribed: asyncio.Event, to: Mapping[str, Any]) -> None:
    """Keep a subscription open. Changes arrive as notifications, as from older servers."""
    from mcp import MCPError
    from mcp.client.subscriptions import ListenNotSupportedError, SubscriptionLost

    with suppress(ListenNotSupportedError, SubscriptionLost, MCPError, TimeoutError):
        if to:
            async with client.listen(**to) as changes:
                subscribed.set()
                async for _ in changes:
                    pass


async def load_sdk() -> None:
    """Import the SDK in a thread: it takes half a second, which would block the event loop."""
    await anyio.to_thread.run_sync(importlib.import_module, "mcp")


def missing_program(name: str, program: str) -> ToolError:
    """Return the error for a server whose program is not installed."""
    hint = f"install {program}, or fix servers.{name}.command"
    return ToolError(f"cannot start {name}: program {program!r} not found", hint=hint)


def innermost(error: BaseException) -> BaseException:
    """Return the first exception inside of nested exception groups."""
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    return error
