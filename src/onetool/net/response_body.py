"""Read and decompress response bodies up to a limit.

The limit applies to the compressed and to the decompressed size. More than one layer of compression
is rejected: a few bytes could keep the layers busy without producing output.
"""

import zlib
from collections.abc import AsyncGenerator, AsyncIterable, Iterable, Iterator

from onetool.errors import NetworkError

CHUNK_BYTES = 1 << 18
MAX_GZIP_MEMBERS = 10_000  # empty members take time and never reach the size limit
GZIP = zlib.MAX_WBITS | 16
GZIP_ENCODINGS = frozenset({"gzip", "x-gzip"})
ENCODINGS = GZIP_ENCODINGS | {"deflate"}
# identify the two-byte header of a zlib stream
ZLIB_METHOD = 8
ZLIB_CHECK = 31


async def read_body(stream: AsyncIterable[bytes], encoding: str, limit: int) -> bytes:
    decoder = Decoder(encoding)
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
    if received and not decoder.is_complete:
        raise _damaged_error()
    return bytes(body)


async def decode_chunks(
    stream: AsyncIterable[bytes], encoding: str, limit: int
) -> AsyncGenerator[bytes, None]:
    """Yield the decompressed chunks of a stream, up to the limit; the rest is not read."""
    decoder = Decoder(encoding)
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


def get_encoding(headers: Iterable[tuple[str, str]]) -> str:
    """Return the compression of a response, or an empty string."""
    values = (value for name, value in headers if name.lower() == "content-encoding")
    names = (name.strip().lower() for value in values for name in value.split(","))
    encodings = [name for name in names if name not in {"", "identity"}]
    if len(encodings) > 1:
        raise NetworkError("invalid response: it is compressed more than once", reason="protocol")
    return "".join(encodings)


class Decoder:
    """A decoder for gzip, with concatenated members as the format allows, and for deflate.

    Some servers send deflate data without the zlib header. Data after the end is ignored. An
    encoding that was not requested is not decoded; the headers name it. The library reads only one
    gzip member and accepts a truncated one.
    """

    def __init__(self, encoding: str) -> None:
        self._encoding = encoding
        self._header = b""
        self._decompressor: zlib._Decompress | None = None
        self._is_finished = False  # the rest is ignored
        self._member_count = 0
        self.is_complete = encoding not in ENCODINGS

    def feed(self, data: bytes) -> Iterator[bytes]:
        if self._encoding not in ENCODINGS:
            yield data
            return
        if self._decompressor is None:
            self._header += data
            if len(self._header) < 2:  # noqa: PLR2004 - bytes of the header
                return
            data = self._header
            self._decompressor = zlib.decompressobj(self._choose_format())
        while data and not self._is_finished:
            try:
                yield from self._inflate(data)
            except zlib.error:
                if not self.is_complete:
                    raise _damaged_error() from None
                self._is_finished = True
            data = self._decompressor.unused_data
            if self._decompressor.eof:
                self._end_member()

    def _choose_format(self) -> int:
        if self._encoding in GZIP_ENCODINGS:
            return GZIP
        has_header = (
            self._header[0] & 0x0F == ZLIB_METHOD
            and int.from_bytes(self._header[:2], "big") % ZLIB_CHECK == 0
        )
        return zlib.MAX_WBITS if has_header else -zlib.MAX_WBITS

    def _inflate(self, data: bytes) -> Iterator[bytes]:
        assert self._decompressor is not None
        while piece := self._decompressor.decompress(data, CHUNK_BYTES):
            self.is_complete = False
            yield piece
            data = self._decompressor.unconsumed_tail

    def _end_member(self) -> None:
        self.is_complete = True
        self._is_finished = self._encoding not in GZIP_ENCODINGS
        self._decompressor = zlib.decompressobj(GZIP)
        self._member_count += 1
        if self._member_count == MAX_GZIP_MEMBERS:
            raise _damaged_error()


def _damaged_error() -> NetworkError:
    return NetworkError(
        "invalid response: the compressed body is damaged or truncated", reason="protocol"
    )
