"""Limits of what an upstream server sends, checked before the SDK parses it.

Parsing and validating hold up everybody else, and their time follows the number of values. A message over a limit is
replaced by an error that answers the same request, so that one call fails and the connection survives.
"""

import json
import re
from typing import Any

from ot_child.messages import COUNTED_BYTES, MAX_VALUES, TooLarge, count_values, split_bytes

MAX_UPSTREAM_BYTES = 8 << 20  # one message has no pieces, and pictures are large
MAX_ITEMS = 10_000  # in a list of a result, each of which the SDK validates on its own
MIN_CHARGED_BYTES = 1 << 12  # handling even a short message costs time
END_BYTES = 512  # at both ends of a message, where the id is
ID = rb'"id"\s*:\s*(\d{1,18}|"[^"\\]{1,100}")'
VERSION = rb'"jsonrpc"\s*:\s*"2\.0"'
ID_FIRST = re.compile(rb"\s*\{\s*(?:" + VERSION + rb"\s*,\s*)?" + ID)
ID_LAST = re.compile(ID + rb"\s*(?:,\s*" + VERSION + rb"\s*)?\}\s*\Z")


class Collector:
    """The bytes of one message as they come in; of a message that is too large, only both ends."""

    def __init__(self) -> None:
        self._data, self._size = bytearray(), 0

    def add(self, data: bytes) -> None:
        self._size += len(data)
        self._data += data
        if self._size > MAX_UPSTREAM_BYTES:
            del self._data[END_BYTES:-END_BYTES]

    def take(self) -> tuple[bytes, str | None]:
        """Return the message and what is wrong with its size; begin the next message."""
        data, size = bytes(self._data), self._size
        self._data, self._size = bytearray(), 0
        is_too_large = size > MAX_UPSTREAM_BYTES
        return data, f"the server sent {size} bytes, the limit is {MAX_UPSTREAM_BYTES}" if is_too_large else None


def admit(data: bytes, problem: str | None) -> bytes:
    """Return the message, or an error in its place. Raises TooLarge if the message answers no request."""
    if problem is None and len(data) > MAX_VALUES:
        count = count_values(split_bytes(data, COUNTED_BYTES))
        problem = f"the server sent more than {MAX_VALUES} values in one message" if count > MAX_VALUES else None
    if problem is None:
        return data
    found = ID_FIRST.match(data[:END_BYTES]) or ID_LAST.search(data[-END_BYTES:])
    if found is None:
        raise TooLarge(problem)
    return json.dumps(error_answer(json.loads(found[1]), problem)).encode()


def error_answer(ident: int | str, reason: str) -> dict[str, Any]:
    return {"jsonrpc": "2.0", "id": ident, "error": {"code": -32603, "message": reason}}


def has_too_many_items(result: Any) -> bool:
    return isinstance(result, dict) and any(
        isinstance(part, list) and len(part) > MAX_ITEMS for part in result.values()
    )
