"""A live connection to an MCP server: an SDK client in a separate task.

Applications may share a connection that relays no requests of the server to clients. The last
stderr output of the server is kept for error messages. `session` decides when to connect.
"""

import asyncio
import importlib
import logging
from collections.abc import AsyncIterator, Callable
from contextlib import (
    AbstractAsyncContextManager,
    AsyncExitStack,
    nullcontext,
    suppress,
)
from typing import TYPE_CHECKING, Any, Protocol
from urllib.parse import urlsplit

import anyio
from anyio.to_thread import run_sync as run_in_thread

from onetool.errors import NetworkError, ToolError, ToolTimeout
from onetool.processes.supervised import SharedProcess
from onetool.settings.model import Server
from onetool.settings.programs import start_seconds
from onetool.sources.upstream.relay import DeclaringStream, Relay, Relays, WrappedStream
from onetool.sources.upstream.stdio import (
    MAX_ITEMS,
    MAX_UPSTREAM_BYTES,
    MissingProgram,
    ServerLaunch,
    error_response,
    has_too_many_items,
    stdio_streams,
)
from onetool.util.version import __version__
from onetool_child.json_types import JsonMapping

if TYPE_CHECKING:
    from onetool.net.oauth.token_source import TokenSource
    from onetool.sources.upstream.http_client import BearerAuth

STDERR_SECONDS = 0.5  # to read the last output of a lost process
REACH_SECONDS = 2.0
CLOSE_SECONDS = 8.0
MAX_PAGES = 500  # of one list
MAX_LIST_BYTES = 64 << 20
CHANGE_KINDS = {
    "notifications/tools/list_changed": "tools",
    "notifications/prompts/list_changed": "prompts",
    "notifications/resources/list_changed": "resources",
    "notifications/resources/updated": "resource",
}
QUESTIONS = frozenset({"sampling/createMessage", "elicitation/create", "roots/list"})


class ConnectionUser(Protocol):
    """A connection user, with its own name for the server."""

    name: str

    def on_change(self, kind: str, uri: str, /) -> None:
        """Handle a change, by kind (tools, prompts, resources or resource) and resource URI."""

    def on_lost(self, connection: "Connection", /) -> None: ...


class Connection(SharedProcess[ConnectionUser]):
    """A connection to one server. Each of its users calls `open`, and `release` afterwards."""

    def __init__(
        self,
        server: Server,
        launch: ServerLaunch,
        source: "TokenSource | None" = None,
        *,
        is_relayed: bool = False,
    ) -> None:
        super().__init__()
        self.is_offered = not is_relayed
        self.relays = Relays(server.timeout) if is_relayed else None
        self.checking: asyncio.Future[None] | None = (
            None  # whether the server responds, after a call timed out
        )
        self.loss = ""  # why it was given up, as a part of an error message
        self.client: Any = None
        self._server = server
        self._launch = launch
        self._source = source
        self._auth: BearerAuth | None = None
        self._subscriptions: dict[str, asyncio.Task[None]] = {}  # by URI; the key of lists is empty
        self._leave = asyncio.Event()
        self._task: asyncio.Task[None] | None = None

    @property
    def is_over(self) -> bool:
        return self._leave.is_set() or (self._task is not None and self._task.done())

    async def open(self, user: ConnectionUser) -> None:
        """Connect, once for all users, or raise why that failed.

        The user releases the connection in both cases.
        """
        if self._task is None:
            self._task = asyncio.ensure_future(self._run())
        seconds = start_seconds(self._server)
        try:
            async with asyncio.timeout(seconds) as clock:
                await asyncio.shield(self._ready)
        except Exception as error:  # noqa: BLE001 - any error is the reason for the failure
            if not clock.expired():
                raise await self._make_connect_error(error, user) from None
            self.is_offered = False
            reason = f"{user.name} did not respond within {seconds:g} s"
            raise await self.build_error(ToolTimeout, reason, user) from None

    async def release(self, user: ConnectionUser, *, at_once: bool = False) -> None:
        """Stop using the connection: this user's calls fail. The last user closes it."""
        self.users.interrupt(user)
        self.users.discard(user)
        if not self.users:
            await self.close(at_once=at_once)

    def give_up(self, user: ConnectionUser) -> None:
        """Treat a server that does not respond as lost, except for users with calls in flight."""
        self.is_offered = False
        for other in self.users:
            if other is user or not self.users.is_calling(other):
                other.on_lost(self)

    async def close(self, *, at_once: bool = False) -> None:
        """Close the connection.

        `at_once` kills the process, which otherwise gets two seconds to exit.
        """
        self._leave.set()
        if self._task is None:
            return
        if at_once and self._process is not None:
            self._process.kill()
        if not self._ready.done():
            self._task.cancel()
            self._fail(ConnectionAbortedError("it was closed"))
        with suppress(TimeoutError, asyncio.CancelledError):
            await asyncio.wait_for(asyncio.shield(self._task), CLOSE_SECONDS)

    async def is_reachable(self) -> bool:
        """Return whether the server answers; between requests, a lost network goes unnoticed."""
        if self.is_over or self._server.url is None:
            return not self.is_over
        address = urlsplit(self._server.url)
        port = address.port or (443 if address.scheme == "https" else 80)
        with suppress(OSError, TimeoutError):
            async with (
                asyncio.timeout(REACH_SECONDS),
                await anyio.connect_tcp(str(address.hostname), port),
            ):
                return True
        return False

    async def _run(self) -> None:
        await load_sdk()
        from mcp import Client
        from mcp_types import Implementation

        # The SDK logs a traceback for every line that is not a message; some servers print hundreds
        # of them.
        logger = logging.getLogger("mcp.client")
        if not logger.handlers:
            logger.addHandler(logging.NullHandler())
        try:
            async with AsyncExitStack() as stack:
                reader, writer = await self._open_streams(stack)
                if self.relays is not None:
                    writer = DeclaringStream(writer)
                streams: Any = (
                    _WatchedStream(reader, self._on_received, self._on_stream_end),
                    writer,
                )
                client = Client(
                    nullcontext(streams),
                    message_handler=self._on_message,
                    client_info=Implementation(name="onetool", version=__version__),
                    read_timeout_seconds=start_seconds(
                        self._server
                    ),  # calls have their own timeout
                    cache=None,
                    **(self.relays.callbacks if self.relays is not None else {}),
                )
                await stack.enter_async_context(client)
                # The SDK validates on the event loop, in a time that the schema and the patterns of
                # the server decide.
                setattr(client.session, "validate_tool_result", _accept_result)  # noqa: B010 - a method of the SDK
                stack.callback(self._unsubscribe)
                subscribed = self._subscribe(client)
                if self.relays is not None:  # clients must not miss changes from now on
                    await subscribed.wait()
                self.client = client
                self._ready.set_result(None)
                await self._leave.wait()
        except Exception as error:  # noqa: BLE001 - any error is the reason for the failure
            if not self._ready.done():
                self._leave.set()
                self._fail(innermost(error))

    # --- errors and output ------------------------------------------------------------------------

    async def _make_connect_error(self, error: BaseException, user: ConnectionUser) -> ToolError:
        if isinstance(error, ToolError):
            return error
        if self._auth is not None and self._auth.failure is not None:
            return self._auth.failure
        if isinstance(error, MissingProgram):
            return missing_program(user.name, str(error))
        kind = NetworkError if self._server.url else ToolError
        return await self.build_error(
            kind, f"cannot connect to {user.name}: {describe_error(error)}", user
        )

    async def build_error(
        self, kind: type[ToolError], reason: str, user: ConnectionUser
    ) -> ToolError:
        """Return an error with the server's output; `summary` is the reason only."""
        return kind(f"{reason}{await self.read_last_output(user)}", summary=reason)

    async def read_last_output(self, user: ConnectionUser) -> str:
        """Return what the server printed since the last call began, to end a message."""
        if self._process is not None and self.is_over:
            await asyncio.wait([self._process.ended], timeout=STDERR_SECONDS)
        return self.get_output(user).sentence.rstrip("\n")

    # --- requests ---------------------------------------------------------------------------------

    @property
    def is_modern(self) -> bool:
        from mcp_types.version import MODERN_PROTOCOL_VERSIONS

        return self.client.protocol_version in MODERN_PROTOCOL_VERSIONS

    def take_turn(self, relay: Relay) -> AbstractAsyncContextManager[None]:
        """Wait until the server's questions in this call can be related to its client."""
        return nullcontext() if self.relays is None else self.relays.track(relay)

    async def list_all(self, part: str) -> list[Any]:
        """Return all pages in a list, such as tools; stop if a cursor repeats."""
        from mcp import MCPError

        items: list[Any] = []
        size = 0
        cursors: list[str | None] = [None]
        async with asyncio.timeout(self._server.timeout):
            while len(cursors) <= MAX_PAGES:
                try:
                    page = await getattr(self.client, f"list_{part}")(cursor=cursors[-1])
                except MCPError:
                    if (
                        part == "resource_templates"
                    ):  # servers with resources need not list templates
                        break
                    raise
                items += getattr(page, part)
                size += len(page.model_dump_json())
                if len(items) > MAX_ITEMS or size > MAX_LIST_BYTES:
                    raise ToolError(
                        f"the list has more than {MAX_ITEMS} items or {MAX_LIST_BYTES >> 20} MiB"
                    )
                if not page.next_cursor or page.next_cursor in cursors:
                    break
                cursors.append(page.next_cursor)
        return items

    async def set_log_level(self, relay: Relay) -> None:
        """Lower a pre-2026 server's log level; newer ones get it with each request."""
        from mcp_types import SetLevelRequest, SetLevelRequestParams

        if self.relays is None or self.is_modern or self.client.server_capabilities.logging is None:
            return
        level = self.relays.choose_level(relay)
        if level is not None:
            params = SetLevelRequestParams.model_validate({"level": level})
            await self._send_legacy(SetLevelRequest(params=params))

    async def watch(self, uri: str) -> None:
        """Subscribe to resource changes."""
        from mcp_types import SubscribeRequest, SubscribeRequestParams

        if self.is_modern:
            await self._listen(self.client, uri, resource_subscriptions=[uri]).wait()
        else:
            await self._send_legacy(SubscribeRequest(params=SubscribeRequestParams(uri=uri)))

    async def unwatch(self, uri: str) -> None:
        from mcp_types import UnsubscribeRequest, UnsubscribeRequestParams

        if self.is_modern:
            self._subscriptions.pop(uri).cancel()
        else:
            await self._send_legacy(UnsubscribeRequest(params=UnsubscribeRequestParams(uri=uri)))

    async def _send_legacy(self, request: Any) -> None:
        """Send a request that 2026 protocols lack and that the SDK deprecates."""
        from mcp_types import EmptyResult

        await self.client.session.send_request(request, EmptyResult)

    # --- notifications ----------------------------------------------------------------------------

    async def _on_message(self, message: Any) -> None:
        """Handle a notification.

        Protocols of 2026 deliver them here too while a subscription is open.
        """
        kind = CHANGE_KINDS.get(getattr(message, "method", ""))
        if kind is not None:
            for user in self.users:
                user.on_change(kind, str(getattr(message.params, "uri", "")))

    def _subscribe(self, client: Any) -> asyncio.Event:
        """Subscribe to list changes.

        Protocols of 2026 require it; older servers notify all clients.
        """
        kinds = ("tools", "prompts", "resources") if self.relays is not None else ("tools",)
        changes = {}
        for kind in kinds:
            if getattr(getattr(client.server_capabilities, kind), "list_changed", False):
                changes[f"{kind}_list_changed"] = True
        return self._listen(client, "", **changes)

    def _unsubscribe(self) -> None:
        for task in self._subscriptions.values():
            task.cancel()

    def _listen(self, client: Any, name: str, **changes: Any) -> asyncio.Event:
        """Open a subscription; the event is set when it is open, or cannot be opened."""
        subscribed = asyncio.Event()
        self._subscriptions[name] = asyncio.ensure_future(
            _keep_subscribed(client, subscribed, changes)
        )
        return subscribed

    def _on_received(self, message: Any) -> None:
        """Stop offering the connection after the server has asked a client for something."""
        result = getattr(message, "result", None)
        is_input_required = (
            isinstance(result, dict) and result.get("resultType") == "input_required"
        )
        if is_input_required or getattr(message, "method", None) in QUESTIONS:
            self.is_offered = False

    def _on_stream_end(self) -> None:
        """Handle the stream's end; report a loss unless the connection was closed."""
        is_lost = self.client is not None and not self._leave.is_set()
        self._leave.set()
        if is_lost:
            for user in self.users:
                user.on_lost(self)

    # --- transports -------------------------------------------------------------------------------

    async def _open_streams(self, stack: AsyncExitStack) -> tuple[Any, Any]:
        """Return message streams from and to the server."""
        server = self._server
        if server.url is None:
            self._process, reader, writer = await stack.enter_async_context(
                stdio_streams(self._launch)
            )
            return reader, writer
        from onetool.sources.upstream.http_client import BearerAuth, http_client, tls_context

        await run_in_thread(tls_context)  # before a client needs it on the event loop
        self._auth = None if self._source is None else BearerAuth(self._source)
        headers = dict(server.headers)
        if server.transport == "sse":
            from mcp.client.sse import sse_client

            return await stack.enter_async_context(
                sse_client(
                    server.url,
                    headers,
                    timeout=server.timeout,
                    httpx_client_factory=http_client,
                    auth=self._auth,
                )
            )
        from mcp.client.streamable_http import streamable_http_client

        client = await stack.enter_async_context(http_client(headers, auth=self._auth))
        return await stack.enter_async_context(
            streamable_http_client(
                server.url, http_client=client, max_sse_event_size=2 * MAX_UPSTREAM_BYTES
            )
        )


class _WatchedStream(WrappedStream):
    """A message stream that reports each message, and its end."""

    def __init__(
        self, stream: Any, on_received: Callable[[Any], None], on_end: Callable[[], None]
    ) -> None:
        super().__init__(stream)
        self._on_received = on_received
        self._on_end = on_end

    def __aiter__(self) -> AsyncIterator[Any]:
        return self

    async def __anext__(self) -> Any:
        try:
            message = _limit_items(await self._stream.__anext__())
        except Exception:
            self._on_end()
            raise
        self._on_received(getattr(message, "message", None))
        return message


def _limit_items(message: Any) -> Any:
    """Return the message, or an error in its place if the SDK would take too long to validate it."""
    from mcp.shared.message import SessionMessage
    from mcp_types import jsonrpc_message_adapter

    response: Any = getattr(message, "message", None)
    if not has_too_many_items(getattr(response, "result", None)):
        return message
    reason = f"the message has a list with more than {MAX_ITEMS} items"
    return SessionMessage(
        jsonrpc_message_adapter.validate_python(error_response(response.id, reason))
    )


async def _accept_result(_name: str, _result: Any) -> None:
    """Let the bus validate results."""


async def _keep_subscribed(client: Any, subscribed: asyncio.Event, changes: JsonMapping) -> None:
    """Keep a subscription open. Changes arrive as notifications, as from older servers."""
    try:
        with suppress(Exception):  # the server has no subscriptions, or the connection was lost
            if changes:
                async with client.listen(**changes) as subscription:
                    subscribed.set()
                    async for _ in subscription:
                        pass
    finally:
        subscribed.set()


async def load_sdk() -> None:
    """Import the SDK in a thread: it takes half a second, which would block the event loop."""
    await run_in_thread(importlib.import_module, "mcp")


def missing_program(name: str, program: str) -> ToolError:
    """Return the error for a server whose program is not installed."""
    hint = f"install {program}, or fix servers.{name}.command"
    return ToolError(f"cannot start {name}: program {program!r} not found", hint=hint)


def innermost(error: BaseException) -> BaseException:
    """Return the first exception inside nested exception groups."""
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    return error


def describe_error(error: BaseException) -> str:
    error = innermost(error)
    return str(error) or type(error).__name__
