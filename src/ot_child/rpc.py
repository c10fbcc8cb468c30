"""JSON-RPC 2.0 over a pair of descriptors: one object a line, ids, both directions, any thread.

This is the child's end, blocking and with threads; the server's end is `ot.children.channel`. There is no reader
thread: whoever waits for an answer reads, and hands what belongs to others over to them. So one call from one
thread costs a write and a read, nothing else.
"""

from __future__ import annotations

import contextlib
import json
import os
import threading

from ot_child.errors import ArgumentError, restore

TYPE_CHECKING = False  # to load `typing` takes a worker longer than all of its own modules
if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from typing import Any

READ_SIZE = 1 << 16
LONGEST_MESSAGE = 8 << 20  # of a child; more crosses in pieces, so that the server is not held up by one message


class ConnectionLost(Exception):
    """The other end is gone."""


class Peer:
    def __init__(self, reader: int, writer: int, encode: Callable[[Any], str] = json.dumps) -> None:
        self._reader, self._writer, self._encode = reader, writer, encode
        self._buffer = bytearray()
        self._last_id = 0
        self._answers: dict[int, dict[str, Any]] = {}
        self._reading = False
        self._state = threading.Condition(threading.Lock())
        self.writing = threading.Lock()

    def use(self, reader: int, writer: int) -> None:
        """Talk over these descriptors; for a peer that was made before they were known."""
        self._reader, self._writer = reader, writer

    @contextlib.contextmanager
    def alone(self, result: str) -> Iterator[None]:
        """For a rehearsal: the next request goes nowhere and is answered with this."""
        writer, self._writer = self._writer, os.open(os.devnull, os.O_WRONLY)
        self._buffer += b'{"jsonrpc":"2.0","id":%d,"result":%s}\n' % (self._last_id + 1, result.encode())
        try:
            yield
        finally:
            os.close(self._writer)
            self._writer = writer

    def request(self, method: str, params: dict[str, Any]) -> Any:
        """Ask the other end and wait; its error is raised here."""
        with self._state:
            self._last_id += 1
            ident = self._last_id
        line = self._encode({"jsonrpc": "2.0", "id": ident, "method": method, "params": params})
        if len(line) > LONGEST_MESSAGE:
            raise ArgumentError(
                f"the arguments have {len(line)} bytes, the limit is {LONGEST_MESSAGE}; pass less at once"
            )
        self.send_line(line)
        answer = self._answer_to(ident)
        if "error" in answer:
            raise restore(answer["error"].get("data") or answer["error"])
        return answer.get("result")

    def notify(self, method: str, params: dict[str, Any]) -> None:
        self.send_line(self._encode({"jsonrpc": "2.0", "method": method, "params": params}))

    def send_line(self, line: str) -> None:
        left = memoryview(line.encode("ascii") + b"\n")
        with self.writing:
            while left:
                left = left[os.write(self._writer, left) :]

    def receive(self) -> dict[str, Any]:
        """The next message from the other end."""
        searched = 0
        while (end := self._buffer.find(b"\n", searched)) < 0:
            searched = len(self._buffer)
            chunk = os.read(self._reader, READ_SIZE)
            if not chunk:
                raise ConnectionLost
            self._buffer += chunk
        line = bytes(self._buffer[:end])
        del self._buffer[: end + 1]
        message: dict[str, Any] = json.loads(line)
        return message

    def _answer_to(self, ident: int) -> dict[str, Any]:
        while True:
            with self._state:
                while self._reading and ident not in self._answers:
                    self._state.wait()
                if ident in self._answers:
                    return self._answers.pop(ident)
                self._reading = True
            self._read_one()

    def _read_one(self) -> None:
        message: dict[str, Any] = {}
        try:
            message = self.receive()
        finally:
            with self._state:
                self._reading = False
                if "id" in message:
                    self._answers[message["id"]] = message
                self._state.notify_all()
