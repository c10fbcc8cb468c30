"""Read and decompress response bodies up to a limit.

The limit applies to the compressed and to the decompressed size. More than one layer of compression is rejected: a few
bytes could keep the layers busy without producing output.
"""

import zlib
from collections.abc import AsyncIterable, Callable, Iterable, Iterator, Sequence
from typing import Final, Protocol

from onetool.errors import NetworkError

PIECE: Final = 1 << 18
FILES: Final = 10_000  # members of a gzip stream; empty ones take time and never reach the size limit
GZIP, ZLIB, RAW = zlib.MAX_WBITS | 16, zlib.MAX_WBITS, -zlib.MAX_WBITS
ZLIB_METHOD, ZLIB_CHECK = 8, 31  # identify the two-byte header of a zlib stream


class Decoder(Protocol):
    def feed(self, data: bytes) -> Iterator[bytes]: ...
    def end(self) -> None: ...


async def read(stream: AsyncIterable[bytes], encodings: Sequence[str], limit: int) -> bytes:
    decoder = decoder_for(encodings)
    body, received = bytearray(), 0
    async for chunk in stream:
        received += len(chunk)
        for piece in decoder.feed(chunk):
            body += piece
            if len(body) > limit:
                raise too_large(limit)
        if received > limit:
            raise too_large(limit)
    if received:
        decoder.end()
    return bytes(body)


def too_large(limit: int) -> NetworkError:
    return NetworkError(
        f"response larger than {limit:,} bytes",
        reason="too_large",
        limit=limit,
        hint="raise http.maxResponseBytes in onetool.yaml",
    )


def get_encodings(headers: Iterable[tuple[str, str]]) -> list[str]:
    values = (value for name, value in headers if name.lower() == "content-encoding")
    words = (word.strip().lower() for value in values for word in value.split(","))
    return [word for word in words if word not in {"", "identity"}]


def decoder_for(encodings: Sequence[str]) -> Decoder:
    """Return the decoder. An encoding that was not requested is not decoded; the headers name it."""
    if len(encodings) > 1:
        raise NetworkError("invalid response: it is compressed more than once", reason="protocol")
    known: dict[str, Callable[[], Decoder]] = {"gzip": Gzip, "x-gzip": Gzip, "deflate": Deflate}
    return known.get("".join(encodings), Plain)()


class Plain:
    def feed(self, data: bytes) -> Iterator[bytes]:
        yield data

    def end(self) -> None:
        """Accept the end: uncompressed data may end anywhere."""


class Gzip:
    """A decoder for concatenated gzip members, as the format allows. Trailing data is ignored."""

    def __init__(self) -> None:
        self._file = zlib.decompressobj(GZIP)
        self._is_missing, self._is_over = True, False  # whether a member is incomplete, and whether the rest is ignored
        self._files = 1

    def feed(self, data: bytes) -> Iterator[bytes]:
        while data and not self._is_over:
            try:
                for piece in _inflate(self._file, data):
                    self._is_missing = True
                    yield piece
            except zlib.error:
                if self._is_missing:
                    raise _damaged() from None
                self._is_over = True
            data = self._file.unused_data
            if self._file.eof:
                self._file, self._is_missing, self._files = zlib.decompressobj(GZIP), False, self._files + 1
                if self._files > FILES:
                    raise _damaged()

    def end(self) -> None:
        if self._is_missing:
            raise _damaged()


class Deflate:
    """A decoder for deflate data with the zlib header, or without it, as some servers send it."""

    def __init__(self) -> None:
        self._start = b""
        self._data: zlib._Decompress | None = None

    def feed(self, data: bytes) -> Iterator[bytes]:
        if self._data is None:
            self._start += data
            if len(self._start) < 2:  # noqa: PLR2004 - bytes of the header
                return
            data = self._start
            is_zlib = data[0] & 0x0F == ZLIB_METHOD and int.from_bytes(data[:2], "big") % ZLIB_CHECK == 0
            self._data = zlib.decompressobj(ZLIB if is_zlib else RAW)
        if self._data.eof:
            return
        try:
            yield from _inflate(self._data, data)
        except zlib.error:
            raise _damaged() from None

    def end(self) -> None:
        if self._data is None or not self._data.eof:
            raise _damaged()


def _inflate(file: "zlib._Decompress", data: bytes) -> Iterator[bytes]:
    while piece := file.decompress(data, PIECE):
        yield piece
        data = file.unconsumed_tail


def _damaged() -> NetworkError:
    return NetworkError("invalid response: the compressed body is damaged or truncated", reason="protocol")
