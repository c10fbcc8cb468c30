"""Collect the bytes of a message. A message over the limit is read to its end and discarded."""

import json
import re

END_BYTES = 512  # kept at both ends of a message, where the id is
ID = rb'"id"\s*:\s*(\d{1,18}|"[^"\\]{1,100}")'
VERSION = rb'"jsonrpc"\s*:\s*"2\.0"'
ID_FIRST = re.compile(rb"\s*\{\s*(?:" + VERSION + rb"\s*,\s*)?" + ID)
ID_LAST = re.compile(ID + rb"\s*(?:,\s*" + VERSION + rb"\s*)?\}\s*\Z")


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
        return (
            data,
            (
                f"the message has {size} bytes, the limit is {self._limit}"
                if size > self._limit
                else None
            ),
        )


def find_id(message: bytes) -> int | str | None:
    """Return the id of an unparsed message, if it is at one of its ends."""
    found = ID_FIRST.match(message[:END_BYTES]) or ID_LAST.search(message[-END_BYTES:])
    return None if found is None else json.loads(found[1])
