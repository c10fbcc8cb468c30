"""The server's end of the line protocol of cells and workers: JSON-RPC 2.0, one object a line, both directions.

It never trusts what it reads: a line over the limit, or one that is no JSON-RPC, ends the conversation. It starts
no process and knows nothing of runs; `on_request` and `on_notify` say what the other end may ask.
"""

import asyncio
import json
from collections.abc import Awaitable, Callable
from typing import Any, Protocol

import anyio.to_thread

from ot.tool import Result
from ot_child.data import encode
from ot_child.errors import describe, error_type, message_of, restore

MOST_MESSAGES = 200_000  # each costs the server a little, and nothing that ends well needs so many
AT_ONCE = 32  # requests of the other end that are answered at a time; more are not even read
ROOM_SECONDS = 0.01
LARGE = 20_000  # characters or items: better encoded by a thread
TEXTS = frozenset({"type", "class", "message"})  # of an error
NO_MESSAGE = "it sent something that is no message"
OnRequest = Callable[[str, dict[str, Any]], Awaitable[Result]]
OnNotify = Callable[[str, dict[str, Any]], None]


class Reading(Protocol):
    """Where the lines come from: it can be told to wait."""

    def pause_reading(self) -> None: ...
    def resume_reading(self) -> None: ...


class ChannelClosed(Exception):
    """The other end is gone, or was cut off; the text says why where it is known."""


class Channel(asyncio.Protocol):
    """`limit` bounds a message; `at_once` and `messages` what a child may ask for, None without end.

    A child that lives long is not bounded by its messages, and one whose calls lead back to itself needs many at once:
    what is not read is not answered either.
    """

    def __init__(
        self,
        limit: int,
        on_request: OnRequest,
        on_notify: OnNotify,
        *,
        at_once: int = AT_ONCE,
        messages: int | None = MOST_MESSAGES,
    ) -> None:
        self._limit, self._on_request, self._on_notify = limit, on_request, on_notify
        self._at_once, self._most = at_once, messages
        self._buffer = bytearray()
        self._searched = 0
        self._taken = 0
        self.last_bytes = 0
        self._last_id = 0
        self._waiting: dict[int, asyncio.Future[Any]] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self._is_paused = False
        self._transport: asyncio.WriteTransport | None = None
        self._reading: Reading
        self.closed: asyncio.Future[str] = asyncio.get_running_loop().create_future()

    # --- asyncio.Protocol ---------------------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.WriteTransport)
        self._transport = transport

    def reads_from(self, transport: Reading) -> None:
        self._reading = transport

    def data_received(self, data: bytes) -> None:
        self._buffer += data
        self._take_lines()

    def _take_lines(self) -> None:
        while not self._is_paused and (end := self._buffer.find(b"\n", self._searched)) >= 0:
            line = bytes(self._buffer[:end])
            del self._buffer[: end + 1]
            self._searched = 0
            if not self._take(line):
                return
        if self._is_paused:
            return
        self._searched = len(self._buffer)
        if self._searched > self._limit:
            self.close(f"it sent more than {self._limit} bytes in one message")

    def connection_lost(self, exc: Exception | None) -> None:
        self.close("" if exc is None else str(exc))

    # --- talking ------------------------------------------------------------------------------------------------

    def request(self, method: str, params: dict[str, Any]) -> asyncio.Future[Any]:
        self._last_id += 1
        answer = asyncio.get_running_loop().create_future()
        if self.closed.done():
            answer.set_exception(ChannelClosed(self.closed.result()))
            return answer
        self._waiting[self._last_id] = answer
        self._send({"id": self._last_id, "method": method, "params": params})
        return answer

    @property
    def last_id(self) -> int:
        """The number of the last request."""
        return self._last_id

    def is_owed(self, ident: int) -> bool:
        """Whether a request has not been answered, even where nobody waits for that any more."""
        return ident in self._waiting and not self.closed.done()

    def notify(self, method: str, params: dict[str, Any]) -> None:
        self._send({"method": method, "params": params})

    @property
    def unsent(self) -> int:
        """Bytes that the other end has not read yet."""
        return self._transport.get_write_buffer_size() if self._transport is not None else 0

    @property
    def busy(self) -> bool:
        """Whether an answer is still owed to this end."""
        return any(not answer.done() for answer in self._waiting.values())

    def close(self, reason: str = "") -> None:
        """End the conversation; whoever waits for an answer learns why."""
        if self.closed.done():
            return
        self.closed.set_result(reason)
        for answer in self._waiting.values():
            if not answer.done():
                answer.set_exception(ChannelClosed(reason))
        for task in self._tasks:
            task.cancel()
        if self._transport is not None and not self._transport.is_closing():
            self._transport.abort()

    def _send(self, message: dict[str, Any]) -> None:
        self._write(_line(message))

    def _write(self, line: bytes) -> None:
        if self._transport is not None and not self.closed.done():
            self._transport.write(line)

    def _take(self, line: bytes) -> bool:
        self._taken += 1
        if self._most is not None and self._taken > self._most:
            self.close(f"it sent more than {self._most} messages")
            return False
        try:
            self._dispatch(json.loads(line), len(line))
        except (ValueError, TypeError, KeyError, AttributeError, RecursionError):
            self.close(NO_MESSAGE)
        return not self.closed.done()

    def _dispatch(self, message: dict[str, Any], size: int) -> None:
        if "method" not in message:
            self._settle(self._waiting[message["id"]], message)
            del self._waiting[message["id"]]
            self.last_bytes = size  # of the last answer: what is sent behind it must not make it look small
        elif "id" in message:
            task = asyncio.ensure_future(self._respond(message["id"], message["method"], message["params"]))
            self._tasks.add(task)
            task.add_done_callback(self._answered)
            if len(self._tasks) >= self._at_once:
                self._is_paused = True
                self._reading.pause_reading()
        else:
            self._on_notify(message["method"], message["params"])

    def _answered(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if self._is_paused and not self.closed.done():
            self._is_paused = False
            self._reading.resume_reading()
            self._take_lines()

    def _settle(self, answer: asyncio.Future[Any], message: dict[str, Any]) -> None:
        if answer.done():
            return
        if "error" in message:
            answer.set_exception(RemoteError(dict(message["error"]["data"])))
        else:
            answer.set_result(message["result"])

    async def _respond(self, ident: object, method: str, params: dict[str, Any]) -> None:
        await self._room()
        try:
            result = await self._on_request(method, params)
        except (KeyError, TypeError, ValueError):  # it lacks what it needs; tools' errors are in the result
            self.close(NO_MESSAGE)
            return
        except Exception as unforeseen:  # noqa: BLE001 - whoever asked would wait for ever
            result = Result(ok=False, error=unforeseen)
        self._write(await _answer(ident, result))

    async def _room(self) -> None:
        """An end that does not read what it asked for keeps nobody but itself waiting."""
        while self.unsent > self._limit and not self.closed.done():  # noqa: ASYNC110 - no transport of both tells
            await asyncio.sleep(ROOM_SECONDS)


async def _answer(ident: object, result: Result) -> bytes:
    if result.error is not None:
        return _failure(ident, result.error)
    message = {"id": ident, "result": result.value}
    try:
        return await anyio.to_thread.run_sync(_line, message) if _is_large(result.value) else _line(message)
    except Exception as no_data:  # noqa: BLE001 - whatever the methods of an object raise that a tool gave
        return _failure(ident, no_data)


def _failure(ident: object, error: BaseException) -> bytes:
    kind = {"type": error_type(error), "class": type(error).__name__, "message": message_of(error)}
    try:
        return _error_line(ident, describe(error))
    except Exception:  # noqa: BLE001 - it has fields that are no data
        return _error_line(ident, kind)


def _error_line(ident: object, detail: dict[str, Any]) -> bytes:
    return _line({"id": ident, "error": {"code": -32000, "message": detail["message"], "data": detail}})


def _is_large(value: Any) -> bool:
    return isinstance(value, str | list | dict) and len(value) > LARGE


def _line(message: dict[str, Any]) -> bytes:
    return encode({"jsonrpc": "2.0", **message}).encode("ascii") + b"\n"


class RemoteError(Exception):
    """The other end answered with an error: `data` is what it said, `original` the exception made of it."""

    def __init__(self, data: dict[str, Any]) -> None:
        super().__init__(str(data.get("message", "")))
        # These are texts, whatever the other end has made of them.
        texts = {key: str(value) for key, value in data.items() if key in TEXTS}
        self.data = {**data, **texts}

    @property
    def original(self) -> Exception:
        return restore(self.data)
