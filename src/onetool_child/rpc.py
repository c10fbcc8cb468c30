"""JSON-RPC 2.0 over a pair of descriptors, in both directions and from any thread; see `messages`
for the framing.

This is the child's end, which blocks; the server's end is `onetool.processes.channel`. There is no
reader thread: a thread that waits for an answer reads, and hands over the answers of other threads.
A call from one thread costs one write and one read.
"""

from __future__ import annotations

import json
import os
import threading
from contextlib import contextmanager

from onetool_child import messages
from onetool_child.errors import ArgumentError, ToolError, describe, restore

TYPE_CHECKING = False  # importing `typing` would double the start-up time of a worker
if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator
    from typing import Any

    from onetool_child.json_types import JsonObject

READ_BYTES = 1 << 16


class ConnectionLost(Exception):
    """The other end is gone."""


class Peer:
    def __init__(self, reader: int, writer: int, encode: Callable[[Any], str] = json.dumps) -> None:
        self._reader = reader
        self._writer = writer
        self._encode = encode
        self._buffer = bytearray()
        self._pieces: dict[str, list[bytes]] = {}  # of incomplete answers
        self._last_id = 0
        self._answers: dict[int, JsonObject] = {}
        self._reading = False
        self.unanswered = 0  # requests that a thread waits for
        self.on_answer: Callable[[JsonObject], None] | None = (
            None  # called in the thread that made the request
        )
        self._state = threading.Condition(threading.Lock())
        self.writing = threading.Lock()

    def connect(self, reader: int, writer: int) -> None:
        """Use these descriptors; for a peer that was created before they were known."""
        self._reader = reader
        self._writer = writer

    @contextmanager
    def disconnected(self, result: str) -> Iterator[None]:
        """Discard the next request and answer it with this result, for a rehearsal."""
        writer = self._writer
        self._writer = os.open(os.devnull, os.O_WRONLY)
        self._buffer += b'{"jsonrpc":"2.0","id":%d,"result":%s}\n' % (
            self._last_id + 1,
            result.encode(),
        )
        try:
            yield
        finally:
            os.close(self._writer)
            self._writer = writer

    def request(self, method: str, params: JsonObject) -> Any:
        """Send a request, wait for the answer and return its result or raise its error."""
        with self._state:
            self._last_id += 1
            ident = self._last_id
        self._send_request({"jsonrpc": "2.0", "id": ident, "method": method, "params": params})
        answer = self._wait_for_answer(ident)
        if "error" in answer:
            raise restore(answer["error"].get("data") or answer["error"])
        return answer.get("result")

    def _send_request(self, request: JsonObject) -> None:
        """Send a request as one message, after its long strings if it is too large."""
        line = self._encode(request)
        if len(line) > messages.MAX_ARGUMENT_BYTES:
            limit = messages.MAX_ARGUMENT_BYTES
            raise ArgumentError(
                f"the arguments have {len(line)} bytes, the limit is {limit}; pass less at once"
            )
        if messages.fits(line):
            self.send_line(line)
            return
        text = ""
        if messages.has_few_values(line):
            request = json.loads(line)
            places, text = messages.take_strings(request["params"])
            line = self._encode({**request, "strings": places})
        if not messages.fits(line):
            raise ArgumentError(
                "the arguments are too large: apart from long strings, at most"
                f" {messages.MAX_VALUES} values and {messages.MAX_MESSAGE_BYTES} bytes of JSON can"
                " be passed at once; pass less, or pass a string"
            )
        self.send_pieces(messages.STRINGS, messages.split_text(text), line)

    def notify(self, method: str, params: JsonObject) -> None:
        self.send_line(self._encode({"jsonrpc": "2.0", "method": method, "params": params}))

    def send_line(self, line: str) -> None:
        with self.writing:
            self._write(line.encode("ascii") + b"\n")

    def send_pieces(self, kind: object, pieces: Iterable[bytes], line: str | None = None) -> None:
        """Send raw bytes that the other end does not parse, followed by a line."""
        with self.writing:
            for piece in pieces:
                self._write(messages.frame(kind, piece))
            if line is not None:
                self._write(line.encode("ascii") + b"\n")

    def _write(self, data: bytes) -> None:
        left = memoryview(data)
        while left:
            left = left[os.write(self._writer, left) :]

    def receive(self) -> JsonObject:
        """Return the next message from the other end."""
        while (line := self._read_line()).startswith(messages.PIECE):
            kind, size = messages.parse_piece_header(line)
            self._pieces.setdefault(kind, []).append(self._read_bytes(size))
        message: JsonObject = json.loads(line)
        return self._parse_pieces(message) if "pieces" in message else message

    def _parse_pieces(self, message: JsonObject) -> JsonObject:
        """Parse a large result, which the server forwarded without parsing it."""
        text = b"".join(self._pieces.pop(str(message["id"]), ()))
        try:
            return {**message, "result": json.loads(text)}
        except (ValueError, RecursionError):
            if message["pieces"] == "text":
                return {**message, "result": text.decode("utf-8", "replace")}
            error = ToolError("the tool returned a result that is not valid JSON")
            return {**message, "error": {"data": describe(error)}}

    def _read_line(self) -> bytes:
        searched = 0
        while (end := self._buffer.find(b"\n", searched)) < 0:
            searched = len(self._buffer)
            self._read_more()
        line = bytes(self._buffer[:end])
        del self._buffer[: end + 1]
        return line

    def _read_bytes(self, size: int) -> bytes:
        while len(self._buffer) < size:
            self._read_more()
        data = bytes(self._buffer[:size])
        del self._buffer[:size]
        return data

    def _read_more(self) -> None:
        chunk = os.read(self._reader, READ_BYTES)
        if not chunk:
            raise ConnectionLost
        self._buffer += chunk

    def _wait_for_answer(self, ident: int) -> JsonObject:
        with self._state:
            self.unanswered += 1
        while True:
            with self._state:
                while self._reading and ident not in self._answers:
                    self._state.wait()
                if ident in self._answers:
                    answer = self._answers.pop(ident)
                    if self.on_answer is not None:
                        self.on_answer(answer)
                    self.unanswered -= 1
                    return answer
                self._reading = True
            self._read_one()

    def _read_one(self) -> None:
        message: JsonObject = {}
        try:
            message = self.receive()
        finally:
            with self._state:
                self._reading = False
                if "id" in message:
                    self._answers[message["id"]] = message
                self._state.notify_all()
