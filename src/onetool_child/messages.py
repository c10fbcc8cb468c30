"""Framing and limits of messages between the server and its child processes.

A line is one JSON-RPC message. A line `=KIND SIZE` announces a piece: SIZE raw bytes that follow it
and that are not parsed on the way. Both ends use this module, so that the sender knows what the
receiver accepts.
"""

from __future__ import annotations

import gc
import json

TYPE_CHECKING = False  # importing `typing` would double the start-up time of a worker
if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator
    from typing import Any

MAX_MESSAGE_BYTES = 1 << 20
MAX_VALUES = 120_000  # per message; parsing time depends on the number of values
MAX_PIECE_BYTES = 1 << 18
MAX_ARGUMENT_BYTES = 8 << 20
MIN_STRING_CHARS = 1024  # shorter strings stay in the message
COUNT_CHUNK_BYTES = 1 << 16  # counted at a time
GC_BYTES = 1 << 14  # the garbage collector costs more than parsing a message of many small lists
PIECE = b"="
STRINGS = "strings"  # the kind of the pieces with the long strings of the next request
# prefix of the kind of the pieces of an image, audio or a file; the id of the call or run follows
MEDIA = "media-"
UTF8 = ("utf-8", "surrogatepass")
_UNCOUNTED = bytes(code for code in range(256) if code not in b'"[{,')


class TooLarge(ValueError):
    """The message is over a limit."""


def count_values(chunks: Iterable[bytes], limit: int = MAX_VALUES) -> int:
    """Count commas and opening brackets outside strings, up to `limit`."""
    values = quotes = 0
    escaping = b""
    for chunk in chunks:
        text = escaping + chunk
        if b"\\" in text:
            complete = text.rstrip(b"\\")
            escaping = text[len(complete) :]
            text = complete.replace(b"\\\\", b"").replace(b'\\"', b"")
        else:
            escaping = b""
        parts = text.translate(None, _UNCOUNTED).split(b'"')
        values += sum(map(len, parts[quotes % 2 :: 2]))
        quotes += len(parts) - 1
        if values > limit or quotes > 4 * limit:
            return max(values, limit + 1)
    return values


def has_few_values(text: bytes | str) -> bool:
    """Return whether the JSON has at most MAX_VALUES values."""
    if len(text) <= MAX_VALUES:
        return True
    chunks = split_text(text) if isinstance(text, str) else split_bytes(text, COUNT_CHUNK_BYTES)
    return count_values(chunks) <= MAX_VALUES


def check_size(line: bytes) -> None:
    """Raise TooLarge if the line is over a limit of messages."""
    if len(line) > MAX_MESSAGE_BYTES:
        raise TooLarge(f"it sent more than {MAX_MESSAGE_BYTES} bytes in one message")
    if not has_few_values(line):
        raise TooLarge(f"it sent more than {MAX_VALUES} values in one message")


def fits(line: str) -> bool:
    """Return whether the other end accepts the line as one message."""
    if len(line) <= MAX_VALUES and line.isascii():
        return True
    try:
        check_size(line.encode(*UTF8))
    except TooLarge:
        return False
    return True


def parse(line: bytes) -> Any:
    """Parse a message of the other end; raise TooLarge before parsing if it is too large."""
    check_size(line)
    return json.loads(line) if len(line) < GC_BYTES else parse_without_gc(json.loads, line)


def parse_without_gc(parse: Callable[[bytes], Any], data: bytes) -> Any:
    """Parse without the garbage collector, which would visit every new list repeatedly."""
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        return parse(data)
    finally:
        if was_enabled:
            gc.enable()


# --- pieces ---------------------------------------------------------------------------------------


def split_bytes(data: bytes, size: int = MAX_PIECE_BYTES) -> Iterator[bytes]:
    return (data[start : start + size] for start in range(0, len(data), size))


def split_text(text: str) -> Iterator[bytes]:
    """Encode a text as pieces that are each valid UTF-8; a character has at most four bytes."""
    size = MAX_PIECE_BYTES // 4
    return (text[start : start + size].encode(*UTF8) for start in range(0, len(text), size))


def frame(kind: object, data: bytes) -> bytes:
    return b"%s%s %d\n%s" % (PIECE, str(kind).encode("ascii"), len(data), data)


def parse_piece_header(line: bytes) -> tuple[str, int]:
    """Return the kind and the size of the piece that this line announces."""
    kind, _, size = line[1:].decode("ascii").partition(" ")
    if not size.isdigit() or len(size) > len(str(MAX_PIECE_BYTES)) or int(size) > MAX_PIECE_BYTES:
        raise TooLarge(f"it sent a piece with more than {MAX_PIECE_BYTES} bytes")
    return kind, int(size)


# --- long strings ---------------------------------------------------------------------------------


def take_strings(value: Any) -> tuple[list[list[Any]], str]:
    """Move long strings out of the data.

    Return the path and length of each, and all of them as one text.

    The data is changed in place; each string is replaced by an empty one.
    """
    places: list[list[Any]] = []
    texts: list[str] = []
    unseen: list[tuple[Any, list[Any]]] = [(value, [])]
    while unseen:
        container, path = unseen.pop()
        for key, item in list(
            container.items() if isinstance(container, dict) else enumerate(container)
        ):
            if isinstance(item, str) and len(item) >= MIN_STRING_CHARS:
                places.append([[*path, key], len(item)])
                texts.append(item)
                container[key] = ""
            elif isinstance(item, dict | list):
                unseen.append((item, [*path, key]))
    return places, "".join(texts)


def put_strings(value: Any, places: list[list[Any]], text: str) -> None:
    """Undo `take_strings`. Raise LookupError, TypeError or ValueError if the places are wrong."""
    start = 0
    for path, length in places:
        container = value
        for key in path[:-1]:
            container = container[key]
        if container[path[-1]] != "" or not 0 <= length <= len(text) - start:
            raise ValueError("no placeholder for this string")
        container[path[-1]] = text[start : start + length]
        start += length
