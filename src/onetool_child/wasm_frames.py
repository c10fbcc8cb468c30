"""Frames between the server and the process of a WebAssembly sandbox: kind, size and bytes.

The process runs several sandboxes, one after the other. Frames separate what belongs to a run,
whatever its code sends.
"""

from __future__ import annotations

import struct

TYPE_CHECKING = False  # importing `typing` would slow down the start
if TYPE_CHECKING:
    from collections.abc import Callable

HEADER = struct.Struct(">cI")
MAX_FRAME_BYTES = 1 << 30  # of the server, which the process trusts
MAX_FORWARDED_BYTES = 1 << 16
# The process is prepared for sandboxes; a run begins, and the frame has its scratch directory;
# data; a clean end.
PREPARED = b"P"
BEGIN = b"B"
DATA = b"D"
END = b"E"


def encode_frame(kind: bytes, data: bytes = b"") -> bytes:
    return HEADER.pack(kind, len(data)) + data


class FrameReader:
    """Split a stream of bytes into frames. Raise ValueError if one is too large."""

    def __init__(
        self, on_frame: Callable[[bytes, bytes], None], max_bytes: int = MAX_FRAME_BYTES
    ) -> None:
        self._on_frame = on_frame
        self._max_bytes = max_bytes
        self._buffer = bytearray()

    def feed(self, data: bytes) -> None:
        self._buffer += data
        while len(self._buffer) >= HEADER.size:
            kind, size = HEADER.unpack_from(self._buffer)
            if size > self._max_bytes:
                raise ValueError(f"a frame has {size} bytes")
            end = HEADER.size + size
            if len(self._buffer) < end:
                return
            content = bytes(self._buffer[HEADER.size : end])
            del self._buffer[:end]
            self._on_frame(kind, content)
