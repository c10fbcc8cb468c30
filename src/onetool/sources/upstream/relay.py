"""Relay a server's requests, progress and logs to a call's client, for published tools.

A transport puts a `Relay` into the context of its call. A server of protocol 2026 returns a request
as its result; an older one sends it during a call without naming the call, so it is relayed when
only one client can be meant.
"""

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from typing import Any, Self

from onetool.errors import ToolError
from onetool.util.context import Foreign, ToolContext
from onetool_child.interface import MAX_LOG_CHARS, MAX_PROGRESS_CHARS
from onetool_child.json_types import JsonMapping, JsonObject

RELAY_KEY = "relay"  # key of ToolContext.metadata
DECLARED_KEY = "onetool/clientCapabilities"  # internal key of requests; removed before sending
MAX_ROUNDS = 20
PAUSE_SECONDS = 0.1  # before a request without questions is repeated
MAX_DELAY_SECONDS = 10.0  # that the question of one client may delay the calls of others
MAX_CALL_SECONDS = (
    24 * 3600.0
)  # for the SDK, whose timeout cannot be paused; ours pauses while a person answers
LEVELS = ("debug", "info", "notice", "warning", "error", "critical", "alert", "emergency")
Ask = Callable[[Any], Awaitable[Any]]  # request of a server -> response of the client or ErrorData
Progress = Callable[[float, float | None, str | None], Awaitable[None]]


async def _refuse(request: Any) -> Any:
    return _error_data(f"no client can handle {request.method}")


async def _ignore(_params: Any) -> None:
    """Drop a log message."""


@dataclass(slots=True, eq=False)
class Relay:
    """One call's client, by default none.

    `result` and `error` are the response of the server, unchanged.
    """

    client: object = None  # the same for all calls of one client
    ask: Ask = _refuse
    log: Callable[[Any], Awaitable[None]] = _ignore
    progress: Progress | None = None
    capabilities: JsonMapping = field(default_factory=dict)
    log_level: str | None = None
    takes_questions: bool = False  # as results; such a client repeats the call with the answers
    input_responses: Any = None
    request_state: str | None = None
    resume_with: str = ""  # the state of a question about approvals, which outlives this process
    result: Any = None
    error: Any = None
    is_untrusted: bool = False  # whether a value came from an untrusted source
    _clock: asyncio.Timeout | None = None
    _seconds: float = 0.0
    _questions: set["asyncio.Future[Any]"] = field(default_factory=set)

    @property
    def meta(self) -> JsonObject:
        """The request metadata for this client."""
        from mcp_types import LOG_LEVEL_META_KEY

        level = {LOG_LEVEL_META_KEY: self.log_level} if self.log_level else {}
        return {DECLARED_KEY: dict(self.capabilities), **level}

    async def exchange(self, send: Callable[..., Awaitable[Any]], seconds: float) -> Any:
        """Send the request and answer questions until there is a result.

        Waiting for a person does not time out.
        """
        try:
            async with asyncio.timeout(seconds) as self._clock:
                self._seconds = seconds
                self.result = await self._send_until_answered(send)
        except Exception as error:
            self.error = error
            raise
        return self.result

    async def _send_until_answered(self, send: Callable[..., Awaitable[Any]]) -> Any:
        result = await send(input_responses=self.input_responses, request_state=self.request_state)
        rounds = 0
        while is_question(result) and not self.takes_questions:
            if rounds == MAX_ROUNDS:
                raise ToolError(f"the server requested input more than {MAX_ROUNDS} times")
            rounds += 1
            requests = result.input_requests or {}
            responses = {
                key: await self._ask_or_raise(request) for key, request in requests.items()
            }
            if not responses:
                await asyncio.sleep(PAUSE_SECONDS)
            result = await send(
                input_responses=responses or None, request_state=result.request_state
            )
        return result

    async def _ask_or_raise(self, request: Any) -> Any:
        from mcp import MCPError
        from mcp_types import ErrorData

        response = await self.ask_client(request)
        if isinstance(response, ErrorData):
            raise MCPError.from_error_data(response)
        return response

    async def ask_client(self, request: Any) -> Any:
        """Return the client's response, or ErrorData, also if others interrupted the question."""
        self._set_clock(None)
        question = asyncio.ensure_future(self.ask(request))
        self._questions.add(question)
        try:
            await asyncio.wait((question,))
            if question.cancelled():
                return _error_data("no response in time; other clients are waiting")
            return question.result()
        finally:
            question.cancel()
            self._questions.discard(question)
            self._restart_timeout()

    def record_foreign(self, foreign: Foreign) -> None:
        self.is_untrusted |= foreign.is_untrusted

    def cancel_questions(self) -> None:
        """Cancel open questions, because other clients wait."""
        for question in self._questions:
            question.cancel()

    async def report_progress(
        self, progress: float, total: float | None, message: str | None
    ) -> None:
        """Pass progress to the client and restart the timeout."""
        self._restart_timeout()
        if self.progress is not None:
            await self.progress(progress, total, message and message[:MAX_PROGRESS_CHARS])

    def _restart_timeout(self) -> None:
        self._set_clock(asyncio.get_running_loop().time() + self._seconds)

    def _set_clock(self, when: float | None) -> None:
        if self._clock is not None:
            with suppress(RuntimeError):  # already expired
                self._clock.reschedule(when)


def get_relay(context: ToolContext) -> Relay | None:
    relay = context.metadata.get(RELAY_KEY)
    return relay if isinstance(relay, Relay) else None


def is_question(result: Any) -> bool:
    return getattr(result, "result_type", None) == "input_required"


class Relays:
    """The calls in flight on one connection.

    A question that could belong to several clients waits until only one is left. After that has
    happened once, clients take turns, so that it does not happen again. A client that does not
    answer delays others for a short time only.
    """

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds
        self._in_flight: list[Relay] = []
        self._waiting = 0  # questions whose client is not known yet
        self._take_turns = False
        self._changed = asyncio.Event()
        self._level: str | None = None

    @asynccontextmanager
    async def track(self, relay: Relay) -> AsyncIterator[None]:
        if self._take_turns:
            await self._wait_for_turn(relay.client)
        self._in_flight.append(relay)
        try:
            yield
        finally:
            self._in_flight.remove(relay)
            self._change()

    async def _wait_for_turn(self, client: object) -> None:
        async with asyncio.timeout(self._seconds):
            cancelling = asyncio.get_running_loop().call_later(
                min(MAX_DELAY_SECONDS, self._seconds / 2), self._cancel_questions
            )
            try:
                while self._clients - {client}:
                    await self._changed.wait()
            finally:
                cancelling.cancel()

    def _cancel_questions(self) -> None:
        for relay in self._in_flight:
            relay.cancel_questions()

    @property
    def _clients(self) -> set[object]:
        return {relay.client for relay in self._in_flight}

    def _change(self) -> None:
        self._changed.set()
        self._changed = asyncio.Event()

    def choose_level(self, relay: Relay) -> str | None:
        """Return the lowest log level that clients want, for a pre-2026 server, or None."""
        level = relay.log_level
        if level is None or (
            self._level is not None and LEVELS.index(self._level) <= LEVELS.index(level)
        ):
            return None
        self._level = level
        return level

    @property
    def callbacks(self) -> JsonObject:
        """The SDK client's callbacks.

        Where possible, each request declares the capabilities of its client.
        """
        import mcp_types as mcp

        sampling = mcp.SamplingCapability(
            context=mcp.SamplingContextCapability(), tools=mcp.SamplingToolsCapability()
        )
        return {
            "sampling_callback": lambda _context, params: self._relay_request(
                mcp.CreateMessageRequest(params=params)
            ),
            "sampling_capabilities": sampling,
            "elicitation_callback": lambda _context, params: self._relay_request(
                mcp.ElicitRequest(params=params)
            ),
            "list_roots_callback": lambda _context: self._relay_request(mcp.ListRootsRequest()),
            "logging_callback": self._relay_log,
        }

    async def _relay_log(self, params: Any) -> None:
        """Relay a log message, at most its first characters; drop it if its client is not known."""
        if (relay := self._only_client()) is None:
            return
        text = params.data if isinstance(params.data, str) else json.dumps(params.data)
        if len(text) > MAX_LOG_CHARS:
            params = params.model_copy(update={"data": text[:MAX_LOG_CHARS]})
        await relay.log(params)

    async def _relay_request(self, request: Any) -> Any:
        relay = await self._wait_for_client() if len(self._clients) > 1 else self._only_client()
        return await (relay or Relay()).ask_client(request)

    def _only_client(self) -> Relay | None:
        """Return a call if one client made all calls in flight: only it may see a question."""
        return self._in_flight[-1] if len(self._clients) == 1 else None

    async def _wait_for_client(self) -> Relay | None:
        """Wait until only one client is left.

        Return None if that cannot happen, because all calls wait for answers.
        """
        self._take_turns = True
        self._waiting += 1
        self._change()
        try:
            async with asyncio.timeout(self._seconds):
                while (relay := self._only_client()) is None and self._waiting < len(
                    self._in_flight
                ):
                    await self._changed.wait()
        except TimeoutError:
            return None
        finally:
            self._waiting -= 1
        return relay


def _error_data(message: str) -> Any:
    from mcp_types import INVALID_REQUEST, ErrorData

    return ErrorData(code=INVALID_REQUEST, message=message)


class WrappedStream:
    """A message stream that wraps another one."""

    def __init__(self, stream: Any) -> None:
        self._stream = stream

    async def __aenter__(self) -> Self:
        await self._stream.__aenter__()
        return self

    async def __aexit__(self, *error: object) -> None:
        await self._stream.__aexit__(*error)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)


class DeclaringStream(WrappedStream):
    """A message stream to a server: each request declares its client's capabilities.

    A server before 2026 gets them once per connection, without roots: these differ between clients.
    """

    async def send(self, message: Any) -> None:
        params = getattr(message.message, "params", None)
        if isinstance(params, dict):
            _declare(message.message.method, params)
        await self._stream.send(message)


def _declare(method: str, params: JsonObject) -> None:
    from mcp_types import CLIENT_CAPABILITIES_META_KEY

    if method == "initialize":
        params["capabilities"].pop("roots", None)
    meta = params.get("_meta")
    if isinstance(meta, dict):
        declared = meta.pop(DECLARED_KEY, {})
        if CLIENT_CAPABILITIES_META_KEY in meta:
            meta[CLIENT_CAPABILITIES_META_KEY] = declared
