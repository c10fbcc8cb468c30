"""Read and decompress response bodies up to a limit.

The limit applies to the compressed and to the decompressed size. More than one layer of compression is rejected: a few
bytes could keep the layers busy without producing output.
"""

import zlib
from collections.abc import AsyncGenerator, AsyncIterable, Callable, Iterable, Iterator, Sequence
from typing import Protocol

from onetool.errors import NetworkError

CHUNK_BYTES = 1 << 18
MAX_GZIP_MEMBERS = 10_000  # empty members take time and never reach the size limit
GZIP = zlib.MAX_WBITS | 16
ZLIB = zlib.MAX_WBITS
RAW = -zlib.MAX_WBITS
# identify the two-byte header of a zlib stream
ZLIB_METHOD = 8
ZLIB_CHECK = 31


class Decoder(Protocol):
    def feed(self, data: bytes) -> Iterator[bytes]: ...
    def finish(self) -> None: ...


async def read_body(stream: AsyncIterable[bytes], encodings: Sequence[str], limit: int) -> bytes:
    decoder = get_decoder(encodings)
    body = bytearray()
    received = 0
    async for chunk in stream:
        received += len(chunk)
        for piece in decoder.feed(chunk):
            body += piece
            if len(body) > limit:
                raise too_large_error(limit)
        if received > limit:
            raise too_large_error(limit)
    if received:
        decoder.finish()
    return bytes(body)


async def decode_chunks(
    stream: AsyncIterable[bytes], encodings: Sequence[str], limit: int
) -> AsyncGenerator[bytes, None]:
    """Yield the decompressed chunks of a stream, up to the limit; the rest is not read."""
    decoder = get_decoder(encodings)
    total = 0
    async for chunk in stream:
        for piece in decoder.feed(chunk):
            yield piece[: limit - total]
            total += len(piece)
            if total >= limit:
                return


def too_large_error(limit: int) -> NetworkError:
    return NetworkError(
        f"response larger than {limit:,} bytes",
        reason="too_large",
        limit=limit,
        hint="raise http.maxResponseBytes in onetool.yaml",
    )


def get_encodings(headers: Iterable[tuple[str, str]]) -> list[str]:
    values = (value for name, value in headers if name.lower() == "content-encoding")
    names = (name.strip().lower() for value in values for name in value.split(","))
    return [name for name in names if name not in {"", "identity"}]


def get_decoder(encodings: Sequence[str]) -> Decoder:
    """Return the decoder. An encoding that was not requested is not decoded; the headers name it."""
    if len(encodings) > 1:
        raise NetworkError("invalid response: it is compressed more than once", reason="protocol")
    return DECODERS.get("".join(encodings), PlainDecoder)()


def find_unsupported(encodings: Sequence[str]) -> str:
    """Return the encoding that is not decoded, or an empty string."""
    return next((encoding for encoding in encodings if encoding not in DECODERS), "")


class PlainDecoder:
    def feed(self, data: bytes) -> Iterator[bytes]:
        yield data

    def finish(self) -> None:
        """Accept the end: uncompressed data may end anywhere."""


class GzipDecoder:
    """A decoder for concatenated gzip members, as the format allows. Trailing data is ignored."""

    def __init__(self) -> None:
        self._member = zlib.decompressobj(GZIP)
        self._is_incomplete = True
        self._is_finished = False  # the rest is ignored
        self._member_count = 1

    def feed(self, data: bytes) -> Iterator[bytes]:
        while data and not self._is_finished:
            try:
                for piece in _inflate(self._member, data):
                    self._is_incomplete = True
                    yield piece
            except zlib.error:
                if self._is_incomplete:
                    raise _damaged_error() from None
                self._is_finished = True
            data = self._member.unused_data
            if self._member.eof:
                self._member = zlib.decompressobj(GZIP)
                self._is_incomplete = False
                self._member_count = self._member_count + 1
                if self._member_count > MAX_GZIP_MEMBERS:
                    raise _damaged_error()

    def finish(self) -> None:
        if self._is_incomplete:
            raise _damaged_error()


class DeflateDecoder:
    """A decoder for deflate data with the zlib header, or without it, as some servers send it."""

    def __init__(self) -> None:
        self._header = b""
        self._decompressor: zlib._Decompress | None = None

    def feed(self, data: bytes) -> Iterator[bytes]:
        if self._decompressor is None:
            self._header += data
            if len(self._header) < 2:  # noqa: PLR2004 - bytes of the header
                return
            data = self._header
            is_zlib = data[0] & 0x0F == ZLIB_METHOD and int.from_bytes(data[:2], "big") % ZLIB_CHECK == 0
            self._decompressor = zlib.decompressobj(ZLIB if is_zlib else RAW)
        if self._decompressor.eof:
            return
        try:
            yield from _inflate(self._decompressor, data)
        except zlib.error:
            raise _damaged_error() from None

    def finish(self) -> None:
        if self._decompressor is None or not self._decompressor.eof:
            raise _damaged_error()


def _inflate(decompressor: "zlib._Decompress", data: bytes) -> Iterator[bytes]:
    while piece := decompressor.decompress(data, CHUNK_BYTES):
        yield piece
        data = decompressor.unconsumed_tail


DECODERS: dict[str, Callable[[], Decoder]] = {
    "gzip": GzipDecoder,
    "x-gzip": GzipDecoder,
    "deflate": DeflateDecoder,
}


def _damaged_error() -> NetworkError:
    return NetworkError("invalid response: the compressed body is damaged or truncated", reason="protocol")
