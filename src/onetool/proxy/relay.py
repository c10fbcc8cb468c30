"""What passes between a server and the client of one call beside arguments and value, for what is published directly.

A door puts a `Relay` into the context of its call. A server of 2026 gives a question as its result; one of before
asks in the middle of a call, and says not of which: it is passed on when it can only be meant for one client. Whether
a client can be asked at all is known to the door.
"""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from typing import Any, Self

from onetool.context import ToolContext
from onetool.errors import ToolError

RELAY = "relay"  # of ToolContext.metadata
DECLARED = "onetool/clientCapabilities"  # in what we send ourselves; a server never sees it
MOST_ROUNDS = 20
PAUSE_SECONDS = 0.1  # before a server is asked again that only wants to be
HURRY_SECONDS = 10.0  # for which one client's question may keep the calls of others waiting
LONGEST_CALL = 24 * 3600.0  # for the SDK, which cannot stop its clock; ours does while a person thinks
LEVELS = ("debug", "info", "notice", "warning", "error", "critical", "alert", "emergency")
Ask = Callable[[Any], Awaitable[Any]]  # a request of a server; gives the answer of the client, or an error as data
Progress = Callable[[float, float | None, str | None], Awaitable[None]]


@dataclass(slots=True, eq=False)
class Relay:
    """`result` and `error` are what the server gave, as it gave it."""

    client: object  # the same for all calls of one client
    ask: Ask
    log: Callable[[Any], Awaitable[None]]
    progress: Progress | None = None
    capabilities: Mapping[str, Any] = field(default_factory=dict)
    log_level: str | None = None
    takes_questions: bool = False  # as results; who does, asks again and brings the answers
    input_responses: Any = None
    request_state: str | None = None
    result: Any = None
    error: Any = None
    _clock: asyncio.Timeout | None = None
    _seconds: float = 0.0
    _asking: set["asyncio.Future[Any]"] = field(default_factory=set)

    @property
    def meta(self) -> dict[str, Any]:
        """What a request says about this client."""
        from mcp_types import LOG_LEVEL_META_KEY

        wanted = {LOG_LEVEL_META_KEY: self.log_level} if self.log_level else {}
        return {DECLARED: dict(self.capabilities), **wanted}

    async def exchange(self, send: Callable[..., Awaitable[Any]], seconds: float) -> Any:
        """Send, and bring what is asked for, until there is a result. A person may take as long as they like."""
        async with self._timed(seconds):
            result = await send(input_responses=self.input_responses, request_state=self.request_state)
            for _ in range(MOST_ROUNDS):
                if self.takes_questions or not is_question(result):
                    break
                answers = {key: await self.asked(each) for key, each in (result.input_requests or {}).items()}
                if not answers:
                    await asyncio.sleep(PAUSE_SECONDS)
                result = await send(input_responses=answers or None, request_state=result.request_state)
        if is_question(result) and not self.takes_questions:
            raise ToolError(f"it has asked {MOST_ROUNDS} times, and asks again")
        self.result = result
        return result

    async def asked(self, request: Any) -> Any:
        """The client's answer; raises the error that it gave instead."""
        from mcp import MCPError
        from mcp_types import ErrorData

        answer = await self.answered(request)
        if isinstance(answer, ErrorData):
            raise MCPError.from_error_data(answer)
        return answer

    async def answered(self, request: Any) -> Any:
        """The answer, or an error as data: that of the client, or that others wait and there is none yet."""
        self._set_clock(None)
        asking = asyncio.ensure_future(self.ask(request))
        self._asking.add(asking)
        try:
            await asyncio.wait((asking,))
            return _unanswered("others wait, and nobody has answered") if asking.cancelled() else asking.result()
        finally:
            asking.cancel()
            self._asking.discard(asking)
            self._rewind()

    def hurry(self) -> None:
        """Others wait: who is still being asked has no more time."""
        for asking in self._asking:
            asking.cancel()

    async def told(self, progress: float, total: float | None, message: str | None) -> None:
        """A server that tells how far it is has not stopped."""
        self._rewind()
        if self.progress is not None:
            await self.progress(progress, total, message)

    @asynccontextmanager
    async def _timed(self, seconds: float) -> AsyncIterator[None]:
        async with asyncio.timeout(seconds) as self._clock:
            self._seconds = seconds
            yield

    def _rewind(self) -> None:
        self._set_clock(asyncio.get_running_loop().time() + self._seconds)

    def _set_clock(self, when: float | None) -> None:
        if self._clock is not None:
            with suppress(RuntimeError):  # its time is over already
                self._clock.reschedule(when)


def relay_of(context: ToolContext) -> Relay | None:
    found = context.metadata.get(RELAY)
    return found if isinstance(found, Relay) else None


def is_question(result: Any) -> bool:
    return getattr(result, "result_type", None) == "input_required"


class Relays:
    """The calls that are under way on one connection; those of which nobody can be asked are None.

    A question that may be of either of two clients waits until it can only be one's. After the first that had to, the
    clients take turns, so that it comes to no more of them; who is asked and does not answer keeps nobody waiting long.
    """

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds
        self._under_way: list[Relay | None] = []
        self._waiting = 0  # questions that wait for their client to be known
        self._take_turns = False
        self._changed = asyncio.Event()
        self._level: str | None = None

    @asynccontextmanager
    async def under_way(self, relay: Relay | None) -> AsyncIterator[None]:
        if self._take_turns:
            await self._turn_of(_client(relay))
        self._under_way.append(relay)
        try:
            yield
        finally:
            self._under_way.remove(relay)
            self._change()

    async def _turn_of(self, client: object) -> None:
        async with asyncio.timeout(self._seconds):
            hurrying = asyncio.get_running_loop().call_later(min(HURRY_SECONDS, self._seconds / 2), self._hurry)
            try:
                while self._clients - {client}:
                    await self._changed.wait()
            finally:
                hurrying.cancel()

    def _hurry(self) -> None:
        for relay in self._under_way:
            if relay is not None:
                relay.hurry()

    @property
    def _clients(self) -> set[object]:
        return {_client(each) for each in self._under_way}

    def _change(self) -> None:
        self._changed.set()
        self._changed = asyncio.Event()

    def needs_level(self, relay: Relay) -> str | None:
        """The level that a server of before 2026 is to be told now: the lowest that anybody wanted."""
        wanted = relay.log_level
        if wanted is None or (self._level is not None and LEVELS.index(self._level) <= LEVELS.index(wanted)):
            return None
        self._level = wanted
        return wanted

    @property
    def callbacks(self) -> dict[str, Any]:
        """For the SDK's client. What it can do is said by each request, as far as that can be."""
        import mcp_types as mcp

        able = mcp.SamplingCapability(context=mcp.SamplingContextCapability(), tools=mcp.SamplingToolsCapability())
        return {
            "sampling_callback": lambda _context, params: self._answered(mcp.CreateMessageRequest(params=params)),
            "sampling_capabilities": able,
            "elicitation_callback": lambda _context, params: self._answered(mcp.ElicitRequest(params=params)),
            "list_roots_callback": lambda _context: self._answered(mcp.ListRootsRequest()),
            "logging_callback": self._logged,
        }

    async def _logged(self, params: Any) -> None:
        """Not worth waiting for: what is nobody's for sure is lost."""
        relay = self._whose()
        if relay is not None:
            await relay.log(params)

    async def _answered(self, request: Any) -> Any:
        relay = await self._when_clear() if len(self._clients) > 1 else self._whose()
        if relay is None:
            return _unanswered(f"there is nobody to ask ({request.method})")
        return await relay.answered(request)

    def _whose(self) -> Relay | None:
        """One of the calls, where all are of one client; nobody is shown a question that may be another's."""
        return self._under_way[-1] if len(self._clients) == 1 else None

    async def _when_clear(self) -> Relay | None:
        """None where it will never be: everybody who could have asked is waiting for an answer."""
        self._take_turns = True
        self._waiting += 1
        self._change()
        try:
            async with asyncio.timeout(self._seconds):
                while (relay := self._whose()) is None and self._waiting < len(self._under_way):
                    await self._changed.wait()
        except TimeoutError:
            return None
        finally:
            self._waiting -= 1
        return relay


def _unanswered(message: str) -> Any:
    from mcp_types import INVALID_REQUEST, ErrorData

    return ErrorData(code=INVALID_REQUEST, message=message)


def _client(relay: Relay | None) -> object:
    return None if relay is None else relay.client


class Stream:
    """A stream of messages that another one is behind."""

    def __init__(self, stream: Any) -> None:
        self._stream = stream

    async def __aenter__(self) -> Self:
        await self._stream.__aenter__()
        return self

    async def __aexit__(self, *error: object) -> None:
        await self._stream.__aexit__(*error)

    async def aclose(self) -> None:
        await self._stream.aclose()


class Declaring(Stream):
    """A stream of messages to a server, in which each request says what its own client can do.

    A server of before 2026 is told once for all, and so not of roots: those of one client are no other's.
    """

    async def send(self, message: Any) -> None:
        params = getattr(message.message, "params", None)
        if isinstance(params, dict):
            _declare(message.message.method, params)
        await self._stream.send(message)


def _declare(method: str, params: dict[str, Any]) -> None:
    from mcp_types import CLIENT_CAPABILITIES_META_KEY

    if method == "initialize":
        params["capabilities"].pop("roots", None)
    meta = params.get("_meta")
    if isinstance(meta, dict):
        declared = meta.pop(DECLARED, {})
        if CLIENT_CAPABILITIES_META_KEY in meta:
            meta[CLIENT_CAPABILITIES_META_KEY] = declared
