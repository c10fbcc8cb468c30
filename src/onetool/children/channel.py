"""The server's end of the line protocol of cells and workers: JSON-RPC 2.0, one object a line, both directions.

It never trusts what it reads. Every message is measured before it is parsed (`onetool_child.messages`), and a message
over a limit, or one that is not JSON-RPC, ends the conversation. A child that sends much is read slowly (`Pace`). The
channel starts no process and knows nothing of runs; `on_request`, `on_notify` and `on_piece` say what the other end
may send.
"""

import asyncio
from collections.abc import Awaitable, Callable, Iterable
from itertools import chain
from typing import Any, Protocol

import anyio.to_thread

from onetool._tool import Result
from onetool.children.pace import Pace
from onetool.util.raw_json import RawJson
from onetool_child import messages
from onetool_child.data import encode
from onetool_child.errors import describe, error_type, message_of, restore

MAX_MESSAGES = 200_000  # each costs the server a little, and no run that ends well needs so many
AT_ONCE = 32  # requests of the other end that are answered at a time; more are not even read
BURST, BURST_REST_SECONDS = 8, 0.001  # requests that are begun in one go, and the rest after as many
ROOM_SECONDS = 0.01
MAX_UNSENT_BYTES = 16 << 20  # answers that the other end has not read, after which it gets no more for now
LARGE = 20_000  # characters or items: better encoded by a thread
MAX_ITEMS_AT_ONCE = 1_000  # of a list, encoded in one call, which holds the interpreter lock
TEXTS = frozenset({"type", "class", "message"})  # of an error
NO_MESSAGE = "it sent something that is no message"
OnRequest = Callable[[str, dict[str, Any]], Awaitable[Result]]
OnNotify = Callable[[str, dict[str, Any]], None]
OnPiece = Callable[[str, bytes], None]


class Reading(Protocol):
    """Where the lines come from: it can be told to wait."""

    def pause_reading(self) -> None: ...
    def resume_reading(self) -> None: ...


class ChannelClosed(Exception):
    """The other end is gone, or was cut off; the text says why where it is known."""


class Channel(asyncio.Protocol):
    """`at_once` and `messages` bound what a child may ask for; None is no bound.

    A child that lives long is not bounded by the number of its messages, and one whose calls lead back to itself needs
    many at once: what is not read is not answered either.
    """

    def __init__(
        self,
        on_request: OnRequest,
        on_notify: OnNotify,
        on_piece: OnPiece,
        *,
        at_once: int = AT_ONCE,
        messages: int | None = MAX_MESSAGES,
    ) -> None:
        self._on_request, self._on_notify, self._on_piece = on_request, on_notify, on_piece
        self._at_once, self._max_messages = at_once, messages
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
        self._begun = 0  # requests, since there was a rest
        self._is_paused = False
        self._resting: asyncio.TimerHandle | None = None
        self._transport: asyncio.WriteTransport | None = None
        self._reading: Reading
        self.closed: asyncio.Future[str] = asyncio.get_running_loop().create_future()
        self.is_unread = False  # whether the other end was gone before it had read all that was sent

    # --- asyncio.Protocol ---------------------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.WriteTransport)
        self._transport = transport

    def reads_from(self, transport: Reading) -> None:
        self._reading = transport

    def data_received(self, data: bytes) -> None:
        self._buffer += data
        self._take_messages()

    def _take_messages(self) -> None:
        """Handle what has been received, until it is enough for now."""
        self._begun = 0
        while not self._is_paused and not self.closed.done():
            started = self._pace.now()
            try:
                received = self._next()
                if received is None:
                    return
                self._handle(*received)
            except messages.TooLarge as error:
                self.close(str(error))
            except (ValueError, TypeError, LookupError, AttributeError, RecursionError):
                self.close(NO_MESSAGE)
            else:
                self._rest(self._pace.charge(started, 0 if received[0] else len(received[1])))

    def _next(self) -> tuple[str, bytes] | None:
        """Return the kind and the bytes of the next piece, or a line, whose kind is empty."""
        while self._piece is None:
            end = self._buffer.find(b"\n", self._searched)
            if max(end, len(self._buffer) if end < 0 else 0) > messages.MAX_MESSAGE_BYTES:
                raise messages.TooLarge(f"it sent more than {messages.MAX_MESSAGE_BYTES} bytes in one message")
            if end < 0:
                self._searched = len(self._buffer)
                return None
            self._searched = 0
            line = self._cut(end + 1)[:-1]
            if not line.startswith(messages.PIECE):
                return "", line
            self._piece = messages.piece_header(line)
        kind, size = self._piece
        if len(self._buffer) < size:
            return None
        self._piece = None
        return kind, self._cut(size)

    def _cut(self, size: int) -> bytes:
        data = bytes(self._buffer[:size])
        del self._buffer[:size]
        return data

    def _rest(self, seconds: float) -> None:
        """Read nothing for so long: other children, and requests, come first."""
        if seconds > 0 and self._resting is None and not self.closed.done():
            self._resting = asyncio.get_running_loop().call_later(seconds, self._end_rest)
            self._pause()

    def _end_rest(self) -> None:
        self._resting = None
        self._resume()

    def _pause(self) -> None:
        if not self._is_paused:
            self._is_paused = True
            self._reading.pause_reading()

    def _resume(self) -> None:
        if self._is_paused and self._resting is None and len(self._tasks) < self._at_once and not self.closed.done():
            self._is_paused = False
            self._reading.resume_reading()
            self._take_messages()

    def connection_lost(self, exc: Exception | None) -> None:
        self.close("" if exc is None else str(exc))

    # --- talking ------------------------------------------------------------------------------------------------

    def request(self, method: str, params: dict[str, Any]) -> asyncio.Future[Any]:
        self.last_id += 1
        answer = asyncio.get_running_loop().create_future()
        if self.closed.done():
            answer.set_exception(ChannelClosed(self.closed.result()))
            return answer
        self._waiting[self.last_id] = answer
        self._write(_line({"id": self.last_id, "method": method, "params": params}))
        return answer

    def is_owed(self, ident: int) -> bool:
        """Whether a request has not been answered, even where nobody waits for that any more."""
        return ident in self._waiting and not self.closed.done()

    def notify(self, method: str, params: dict[str, Any]) -> None:
        self._write(_line({"method": method, "params": params}))

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
        if self._resting is not None:
            self._resting.cancel()
        if self._transport is not None and not self._transport.is_closing():
            self._transport.abort()

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
                raise messages.TooLarge(f"it sent arguments with more than {messages.MAX_ARGUMENT_BYTES} bytes")
        else:
            self._on_piece(kind, data)

    def _dispatch(self, message: dict[str, Any], size: int) -> None:
        if "method" not in message:
            self._settle(self._waiting[message["id"]], message)
            del self._waiting[message["id"]]
            self.last_bytes = size  # of the last answer: what is sent behind it must not make it look small
        elif "id" in message:
            if type(message["id"]) is not int:
                raise TypeError("the id of a request must be an integer")
            self._put_strings(message)
            task = asyncio.ensure_future(self._respond(message["id"], message["method"], message["params"]))
            self._tasks.add(task)
            task.add_done_callback(self._answered)
            self._begun += 1
            if self._begun >= BURST:
                self._rest(BURST_REST_SECONDS)
            if len(self._tasks) >= self._at_once:
                self._pause()
        else:
            self._on_notify(message["method"], message["params"])

    def _put_strings(self, message: dict[str, Any]) -> None:
        """Put the long strings of a request, which came ahead of it, in their places."""
        if self._strings or "strings" in message:
            text = self._strings.decode(*messages.UTF8)
            self._strings.clear()
            messages.put_strings(message["params"], message["strings"], text)

    def _answered(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        self._resume()

    def _settle(self, answer: asyncio.Future[Any], message: dict[str, Any]) -> None:
        if answer.done():
            return
        if "error" in message:
            answer.set_exception(RemoteError(dict(message["error"]["data"])))
        else:
            answer.set_result(message["result"])

    async def _respond(self, ident: object, method: str, params: dict[str, Any]) -> None:
        # An end that does not read what it asked for keeps nobody but itself waiting.
        while self.unsent > MAX_UNSENT_BYTES and not self.closed.done():  # noqa: ASYNC110 - no transport of both tells
            await asyncio.sleep(ROOM_SECONDS)
        try:
            result = await self._on_request(method, params)
        except (KeyError, TypeError, ValueError):  # it lacks what it needs; tools' errors are in the result
            self.close(NO_MESSAGE)
            return
        except Exception as unforeseen:  # noqa: BLE001 - whoever asked would wait for ever
            result = Result(ok=False, error=unforeseen)
        for frame in await _answer(ident, result):
            self._write(frame)


async def _answer(ident: object, result: Result) -> Iterable[bytes]:
    if result.error is not None:
        return [_failure(ident, result.error)]
    if isinstance(result.value, RawJson):
        frames = (messages.frame(ident, piece) for piece in result.value.pieces)
        return chain(frames, [_line({"id": ident, "pieces": "text" if result.value.or_text else "json"})])
    message = {"id": ident, "result": result.value}
    try:
        if isinstance(result.value, str | list | dict) and len(result.value) > LARGE:
            return [await anyio.to_thread.run_sync(_large_line, ident, result.value)]
        return [_line(message)]
    except Exception as no_data:  # noqa: BLE001 - whatever the methods of an object raise that a tool gave
        return [_failure(ident, no_data)]


def _failure(ident: object, error: BaseException) -> bytes:
    kind = {"type": error_type(error), "class": type(error).__name__, "message": message_of(error)}
    try:
        return _error_line(ident, describe(error))
    except Exception:  # noqa: BLE001 - it has fields that are no data
        return _error_line(ident, kind)


def _error_line(ident: object, detail: dict[str, Any]) -> bytes:
    return _line({"id": ident, "error": {"code": -32000, "message": detail["message"], "data": detail}})


def _line(message: dict[str, Any]) -> bytes:
    return encode({"jsonrpc": "2.0", **message}).encode("ascii") + b"\n"


def _large_line(ident: object, value: Any) -> bytes:
    """Encode a large result. A list is encoded in parts: other threads get their turn after each."""
    if not isinstance(value, list):
        return _line({"id": ident, "result": value})
    parts = (value[start : start + MAX_ITEMS_AT_ONCE] for start in range(0, len(value), MAX_ITEMS_AT_ONCE))
    items = ",".join(encode(part)[1:-1] for part in parts)
    return f'{{"jsonrpc":"2.0","id":{encode(ident)},"result":[{items}]}}\n'.encode("ascii")


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
