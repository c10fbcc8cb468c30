"""The server side of JSON-RPC 2.0 with cells and workers: in both directions, by lines.

Input is not trusted. The size of every message is checked before it is parsed
(`onetool_child.messages`), and a message over a limit, or one that is not JSON-RPC, closes the
channel. A child that sends much is read slowly: it may use about half of the event loop (`Pace`).
The channel starts no process and knows nothing about runs: the callbacks handle what it receives.
"""

import asyncio
import json
import re
import time
from collections.abc import Awaitable, Callable, Iterable
from dataclasses import dataclass, field
from itertools import chain
from typing import Any, Protocol

from anyio.to_thread import run_sync as run_in_thread

from onetool.util.context import Result
from onetool.util.large_data import RawJson
from onetool_child import messages
from onetool_child.data import encode
from onetool_child.errors import describe, error_type, get_message, restore
from onetool_child.json_types import JsonMapping, JsonObject

MAX_MESSAGES = 200_000  # each costs the server a little, and no legitimate run needs that many
MAX_CONCURRENT_REQUESTS = 32  # of the other end; more are not read
# requests that are started without a pause, and the pause after them
MAX_BURST = 8
BURST_PAUSE_SECONDS = 0.001
UNSENT_POLL_SECONDS = 0.01
MAX_UNSENT_BYTES = 16 << 20  # responses that the other end has not read; then no more are written
LARGE_VALUE_LENGTH = 20_000  # characters or items; larger values are encoded in a thread
MAX_ITEMS_AT_ONCE = 1_000  # of a list, encoded in one call, which holds the interpreter lock
ERROR_STRINGS = frozenset({"type", "class", "message"})  # of an error
INVALID_MESSAGE = "it sent an invalid message"
OnRequest = Callable[[str, JsonObject], Awaitable[Result]]
OnNotify = Callable[[str, JsonObject], None]
OnPiece = Callable[[str, bytes], None]
SLICE_SECONDS = 0.005  # of work for one child before others get their turn
JSON_BYTES_PER_SECOND = 20 << 20  # handling a message costs time too, after it was parsed
END_BYTES = 512  # kept at both ends of a message, where the id is
ID = rb'"id"\s*:\s*(\d{1,18}|"[^"\\]{1,100}")'
VERSION = rb'"jsonrpc"\s*:\s*"2\.0"'
ID_FIRST = re.compile(rb"\s*\{\s*(?:" + VERSION + rb"\s*,\s*)?" + ID)
ID_LAST = re.compile(ID + rb"\s*(?:,\s*" + VERSION + rb"\s*)?\}\s*\Z")


class Reading(Protocol):
    """A transport whose reading can be paused."""

    def pause_reading(self) -> None: ...
    def resume_reading(self) -> None: ...


class ChannelClosed(Exception):
    """The channel is closed. The message says why, if that is known."""


@dataclass(frozen=True, slots=True)
class Reply(Result):
    """A result with more message members, which tell the child about the run."""

    members: JsonMapping = field(default_factory=dict)


class Channel(asyncio.Protocol):
    """A JSON-RPC connection to a child.

    `at_once` and `messages` limit its requests; None means no limit.

    A long-lived child has no limit for the number of its messages. A child whose calls may lead
    back to itself needs many concurrent requests, because a request that is not read is not
    answered.
    """

    def __init__(
        self,
        on_request: OnRequest,
        on_notify: OnNotify,
        on_piece: OnPiece,
        *,
        at_once: int = MAX_CONCURRENT_REQUESTS,
        messages: int | None = MAX_MESSAGES,
    ) -> None:
        self._on_request = on_request
        self._on_notify = on_notify
        self._on_piece = on_piece
        self._at_once = at_once
        self._max_messages = messages
        self._buffer = bytearray()
        self._searched = 0
        self._piece: tuple[str, int] | None = None  # kind and size of the piece that comes next
        self._strings = bytearray()  # of the next request
        self._received = 0
        self.last_bytes = 0
        self.last_id = 0  # of the last request
        self._waiting: dict[int, asyncio.Future[Any]] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self._pace = Pace()
        self._started_requests = 0  # requests since the last pause
        self._is_paused = False
        self._pause_timer: asyncio.TimerHandle | None = None
        self._transport: asyncio.WriteTransport | None = None
        self._reading: Reading
        self.closed: asyncio.Future[str] = asyncio.get_running_loop().create_future()
        self.is_unread = False  # whether the other end closed before it read everything

    # --- asyncio.Protocol -------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.WriteTransport)
        self._transport = transport

    def reads_from(self, transport: Reading) -> None:
        self._reading = transport

    def data_received(self, data: bytes) -> None:
        self._buffer += data
        self._handle_messages()

    def _handle_messages(self) -> None:
        """Handle received messages until reading is paused."""
        self._started_requests = 0
        while not self._is_paused and not self.closed.done():
            started = self._pace.now()
            try:
                received = self._next_message()
                if received is None:
                    return
                self._handle(*received)
            except messages.TooLarge as error:
                self.close(str(error))
            except (ValueError, TypeError, LookupError, AttributeError, RecursionError):
                self.close(INVALID_MESSAGE)
            else:
                self._pause_for(self._pace.charge(started, 0 if received[0] else len(received[1])))

    def _next_message(self) -> tuple[str, bytes] | None:
        """Return the next piece as kind and bytes, or a line with an empty kind."""
        while self._piece is None:
            end = self._buffer.find(b"\n", self._searched)
            if max(end, len(self._buffer) if end < 0 else 0) > messages.MAX_MESSAGE_BYTES:
                raise messages.TooLarge(
                    f"it sent more than {messages.MAX_MESSAGE_BYTES} bytes in one message"
                )
            if end < 0:
                self._searched = len(self._buffer)
                return None
            self._searched = 0
            line = self._take_bytes(end + 1)[:-1]
            if not line.startswith(messages.PIECE):
                return "", line
            self._piece = messages.parse_piece_header(line)
        kind, size = self._piece
        if len(self._buffer) < size:
            return None
        self._piece = None
        return kind, self._take_bytes(size)

    def _take_bytes(self, size: int) -> bytes:
        data = bytes(self._buffer[:size])
        del self._buffer[:size]
        return data

    def _pause_for(self, seconds: float) -> None:
        """Stop reading for some seconds, so that other children and requests get their turn."""
        if seconds > 0 and self._pause_timer is None and not self.closed.done():
            self._pause_timer = asyncio.get_running_loop().call_later(seconds, self._end_pause)
            self._pause()

    def _end_pause(self) -> None:
        self._pause_timer = None
        self._resume()

    def _pause(self) -> None:
        if not self._is_paused:
            self._is_paused = True
            self._reading.pause_reading()

    def _resume(self) -> None:
        if (
            self._is_paused
            and self._pause_timer is None
            and len(self._tasks) < self._at_once
            and not self.closed.done()
        ):
            self._is_paused = False
            self._reading.resume_reading()
            self._handle_messages()

    def connection_lost(self, exc: Exception | None) -> None:
        self.close("" if exc is None else str(exc))

    # --- requests and responses -------------------------------------------------------------------

    def request(self, method: str, params: JsonObject) -> asyncio.Future[Any]:
        self.last_id += 1
        answer = asyncio.get_running_loop().create_future()
        if self.closed.done():
            answer.set_exception(ChannelClosed(self.closed.result()))
            return answer
        self._waiting[self.last_id] = answer
        self._write(_encode_line({"id": self.last_id, "method": method, "params": params}))
        return answer

    def is_unanswered(self, ident: int) -> bool:
        """Return whether a request is unanswered, even if its caller no longer waits."""
        return ident in self._waiting and not self.closed.done()

    def notify(self, method: str, params: JsonObject) -> None:
        self._write(_encode_line({"method": method, "params": params}))

    @property
    def unsent(self) -> int:
        """Bytes that the other end has not read yet."""
        return self._transport.get_write_buffer_size() if self._transport is not None else 0

    @property
    def busy(self) -> bool:
        """Whether a request to the other end is unanswered."""
        return any(not answer.done() for answer in self._waiting.values())

    def close(self, reason: str = "") -> None:
        """Close the channel. Pending requests fail with ChannelClosed and the reason."""
        if self.closed.done():
            return
        self.closed.set_result(reason)
        for answer in self._waiting.values():
            if not answer.done():
                answer.set_exception(ChannelClosed(reason))
        for task in self._tasks:
            task.cancel()
        if self._pause_timer is not None:
            self._pause_timer.cancel()
        if self._transport is not None and not self._transport.is_closing():
            self._transport.abort()
        del (
            self._on_request,
            self._on_notify,
            self._on_piece,
        )  # nothing calls them now; their owner has this channel

    def _write(self, line: bytes) -> None:
        if self._transport is not None and not self.closed.done():
            self._transport.write(line)

    def _handle(self, kind: str, data: bytes) -> None:
        self._received += 1
        if self._max_messages is not None and self._received > self._max_messages:
            raise messages.TooLarge(f"it sent more than {self._max_messages} messages")
        if not kind:
            self._dispatch(messages.parse(data), len(data))
        elif kind == messages.STRINGS:
            self._strings += data
            if len(self._strings) > messages.MAX_ARGUMENT_BYTES:
                raise messages.TooLarge(
                    f"it sent arguments with more than {messages.MAX_ARGUMENT_BYTES} bytes"
                )
        else:
            self._on_piece(kind, data)

    def _dispatch(self, message: JsonObject, size: int) -> None:
        if "method" not in message:
            self._resolve(self._waiting[message["id"]], message)
            del self._waiting[message["id"]]
            self.last_bytes = size  # of the last response, not of later messages
        elif "id" in message:
            if type(message["id"]) is not int:
                raise TypeError("the id of a request must be an integer")
            self._put_strings(message)
            task = asyncio.ensure_future(
                self._respond(message["id"], message["method"], message["params"])
            )
            self._tasks.add(task)
            task.add_done_callback(self._handle_answered)
            self._started_requests += 1
            if self._started_requests >= MAX_BURST:
                self._pause_for(BURST_PAUSE_SECONDS)
            if len(self._tasks) >= self._at_once:
                self._pause()
        else:
            self._on_notify(message["method"], message["params"])

    def _put_strings(self, message: JsonObject) -> None:
        """Insert a request's long strings, which were sent before it."""
        if self._strings or "strings" in message:
            text = self._strings.decode(*messages.UTF8)
            self._strings.clear()
            messages.put_strings(message["params"], message["strings"], text)

    def _handle_answered(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        self._resume()

    def _resolve(self, answer: asyncio.Future[Any], message: JsonObject) -> None:
        if answer.done():
            return
        if "error" in message:
            answer.set_exception(RemoteError(dict(message["error"]["data"])))
        else:
            answer.set_result(message["result"])

    async def _respond(self, ident: object, method: str, params: JsonObject) -> None:
        # A child that does not read its responses only delays itself.
        while self.unsent > MAX_UNSENT_BYTES and not self.closed.done():  # noqa: ASYNC110 - not all transports have an event for it
            await asyncio.sleep(UNSENT_POLL_SECONDS)
        try:
            result = await self._on_request(method, params)
        except (
            KeyError,
            TypeError,
            ValueError,
        ):  # invalid parameters; errors of tools are in the result
            self.close(INVALID_MESSAGE)
            return
        except Exception as error:  # noqa: BLE001 - the other end would wait forever
            result = Result(ok=False, error=error)
        members = {"id": ident, **result.members} if isinstance(result, Reply) else {"id": ident}
        for frame in await _encode_result(members, result):
            self._write(frame)
        if result.error is not None:
            result.error.__traceback__ = None  # its frames refer to the error


async def _encode_result(members: JsonObject, result: Result) -> Iterable[bytes]:
    if result.error is not None:
        return [_encode_failure(members, result.error)]
    if isinstance(result.value, RawJson):
        frames = (messages.frame(members["id"], piece) for piece in result.value.pieces)
        return chain(
            frames,
            [_encode_line({**members, "pieces": "text" if result.value.or_text else "json"})],
        )
    try:
        if isinstance(result.value, str | list | dict) and len(result.value) > LARGE_VALUE_LENGTH:
            return [await run_in_thread(_encode_large, members, result.value)]
        return [_encode_line({**members, "result": result.value})]
    except Exception as error:  # noqa: BLE001 - objects of tools may raise anything
        return [_encode_failure(members, error)]


def _encode_failure(members: JsonObject, error: BaseException) -> bytes:
    kind = {"type": error_type(error), "class": type(error).__name__, "message": get_message(error)}
    try:
        return _encode_error(members, describe(error))
    except Exception:  # noqa: BLE001 - its fields cannot be serialized
        return _encode_error(members, kind)


def _encode_error(members: JsonObject, detail: JsonObject) -> bytes:
    return _encode_line(
        {**members, "error": {"code": -32000, "message": detail["message"], "data": detail}}
    )


def _encode_line(message: JsonObject) -> bytes:
    return encode({"jsonrpc": "2.0", **message}).encode("ascii") + b"\n"


def _encode_large(members: JsonObject, value: Any) -> bytes:
    """Encode a large result.

    A list is encoded in parts, so that other threads get the interpreter lock.
    """
    if not isinstance(value, list):
        return _encode_line({**members, "result": value})
    parts = (
        value[start : start + MAX_ITEMS_AT_ONCE]
        for start in range(0, len(value), MAX_ITEMS_AT_ONCE)
    )
    items = ",".join(encode(part)[1:-1] for part in parts)
    return _encode_line({**members, "result": []})[: -len("]}\n")] + f"{items}]}}\n".encode("ascii")


class RemoteError(Exception):
    """An error response: `data` is its content, `original` the exception restored from it."""

    def __init__(self, data: JsonObject) -> None:
        super().__init__(str(data.get("message", "")))
        # The other end may send anything; these must be strings.
        texts = {key: str(value) for key, value in data.items() if key in ERROR_STRINGS}
        self.data = {**data, **texts}

    @property
    def original(self) -> Exception:
        return restore(self.data)


# --- Pace -----------------------------------------------------------------------------------------


class Pace:
    """Compute the pause after each message, so that a child that sends much is read slowly."""

    def __init__(self) -> None:
        self._until = 0.0
        self.now = time.perf_counter

    def charge(self, started: float, json_bytes: int) -> float:
        """Charge the work since `started`; return the seconds to pause, 0 below one slice."""
        now = self.now()
        self._until = (
            max(self._until, started) + 2 * (now - started) + json_bytes / JSON_BYTES_PER_SECOND
        )
        ahead = self._until - now
        return ahead if ahead > SLICE_SECONDS else 0.0


# --- Messages over a limit ------------------------------------------------------------------------


class Collector:
    """Collect a message up to `limit` bytes; keep only both ends if it is larger."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._data = bytearray()
        self._size = 0

    def add(self, data: bytes) -> None:
        self._size += len(data)
        self._data += data
        if self._size > self._limit:
            del self._data[END_BYTES:-END_BYTES]

    def take(self) -> tuple[bytes, str | None]:
        """Return the message, and the problem with its size or None; start the next message."""
        data = bytes(self._data)
        size = self._size
        self._data = bytearray()
        self._size = 0
        if size > self._limit:
            return data, f"the message has {size} bytes, the limit is {self._limit}"
        return data, None


def find_id(message: bytes) -> int | str | None:
    """Return an unparsed message's id, if it is at one end."""
    match = ID_FIRST.match(message[:END_BYTES]) or ID_LAST.search(message[-END_BYTES:])
    return None if match is None else json.loads(match[1])
