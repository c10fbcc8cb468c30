"""Persistent connections to addresses that were resolved once and checked.

A host name is resolved here only, and the connection uses the address that was checked; TLS and the
Host header use the name. This imports the HTTP library, so it is only imported with the first
request.

The size limit applies to the compressed and to the decompressed body. More than one layer of
compression is rejected: a few bytes could keep the layers busy without producing output.
"""

import logging
import os
import socket
import ssl
import zlib
from collections.abc import (
    AsyncGenerator,
    AsyncIterable,
    AsyncIterator,
    Callable,
    Collection,
    Iterable,
    Iterator,
)
from contextlib import aclosing, contextmanager
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import anyio
import httpcore2
import httpx2  # noqa: F401 - `hosts` parses URLs with it
from anyio.to_thread import run_sync as run_in_thread

from onetool.errors import ConfigError, NetworkError
from onetool.net.client import EVENT_STREAM, IDEMPOTENT_METHODS, Request, Resolve, Response
from onetool.net.hosts import parse_address, require_public

if TYPE_CHECKING:
    from onetool.net.client import RequestLimits

OwnPorts = Callable[[], Collection[int]]  # of OneTool's own HTTP servers; it may block
MAX_CONNECTIONS = 256
MAX_IDLE_CONNECTIONS = 32
IDLE_SECONDS = 4.0  # many servers close idle connections after five
CHUNK_BYTES = 256 << 10  # of a request body
CONNECT_SECONDS = 5.0  # for an address that is not the last one to try
HEADERS_TOO_LARGE = 431
SWITCHING_PROTOCOLS = 101
SUCCESS = 2  # the first digit of the status
STATUSES_WITHOUT_BODY = frozenset({204, 304})
MAX_ERROR_CHARS = 300  # characters of an error that may repeat what a server sent
DECOMPRESSED_BYTES = 1 << 18
MAX_GZIP_MEMBERS = 10_000  # empty members take time and never reach the size limit
GZIP = zlib.MAX_WBITS | 16
GZIP_ENCODINGS = frozenset({"gzip", "x-gzip"})
ENCODINGS = GZIP_ENCODINGS | {"deflate"}
# identify the two-byte header of a zlib stream
ZLIB_METHOD = 8
ZLIB_CHECK = 31


def silence_http_libraries() -> None:
    """Keep URLs and headers, which may contain secrets, out of library logs."""
    for name in ("httpx2", "httpcore2"):
        logging.getLogger(name).setLevel(logging.WARNING)


class Connections:
    """A client's connection pools.

    Requests limited to public addresses share no connection with others.
    """

    def __init__(self, resolve: Resolve, own_ports: OwnPorts = tuple) -> None:
        silence_http_libraries()
        self._resolve = resolve
        self._own_ports = own_ports
        self._pool_lock = anyio.Lock()
        self._pools: dict[tuple[str, str], httpcore2.AsyncConnectionPool] = {}

    async def close(self) -> None:
        pools = list(self._pools.values())
        self._pools = {}
        with anyio.CancelScope(shield=True):
            for pool in pools:
                await pool.aclose()

    async def send(self, request: Request, limits: "RequestLimits") -> Response:
        """Send one request and read the response.

        The body of a redirect that is followed is not read.
        """
        pool = await self._get_pool(request.target.scheme, limits.private_advice)
        with _convert_errors(request.label):
            async with aclosing(await _send(pool, request)) as raw:
                headers = tuple(
                    (name.decode("ascii", "replace"), _decode_header(value))
                    for name, value in raw.headers
                )
                response = Response(
                    raw.status, headers, b"", request.target.redact(request.secret_query), 0.0
                )
                if response.status == SWITCHING_PROTOCOLS:
                    problem = "the server switched protocols, which is not supported"
                    raise NetworkError(f"{request.label}: {problem}", reason="protocol")
                if limits.find_location(response) is not None:
                    return response
                encoding = get_encoding(headers)
                if (
                    limits.read_stream
                    and response.status // 100 == SUCCESS
                    and response.media_type == EVENT_STREAM
                ):
                    async with aclosing(
                        decode_chunks(raw.aiter_stream(), encoding, limits.max_bytes)
                    ) as chunks:
                        await limits.read_stream(chunks)
                    return response
                has_body = request.method != "HEAD" and response.status not in STATUSES_WITHOUT_BODY
                length = response.header("content-length") or ""
                if has_body and length.isdecimal() and int(length[:20]) > limits.max_bytes:
                    raise too_large_error(limits.max_bytes)
                body = await read_body(raw.aiter_stream(), encoding, limits.max_bytes)
                return replace(
                    response,
                    body=body,
                    compression=encoding if body and encoding not in ENCODINGS else "",
                )

    async def _get_pool(self, scheme: str, private_advice: str) -> httpcore2.AsyncConnectionPool:
        key = (scheme, private_advice)
        async with self._pool_lock:
            if key not in self._pools:
                try:  # certificates are read from disk
                    context = None
                    if scheme == "https":
                        context = await run_in_thread(httpcore2.default_ssl_context)
                except OSError as error:
                    raise ConfigError(
                        f"cannot read the TLS certificates of this machine: {error}"
                    ) from None
                backend = CheckedBackend(
                    self._resolve, private_advice=private_advice, own_ports=self._own_ports
                )
                self._pools[key] = httpcore2.AsyncConnectionPool(
                    ssl_context=context,
                    max_connections=MAX_CONNECTIONS,
                    max_keepalive_connections=MAX_IDLE_CONNECTIONS,
                    keepalive_expiry=IDLE_SECONDS,
                    network_backend=backend,
                )
            return self._pools[key]


async def _send(pool: httpcore2.AsyncConnectionPool, request: Request) -> httpcore2.Response:
    """Send a request and return the response, which the caller reads and closes.

    A server may close a kept connection just as it is reused. Idempotent requests are then sent
    again.
    """
    target = request.target
    url = httpcore2.URL(
        scheme=target.scheme, host=target.host, port=target.port, target=target.path
    )
    while True:
        events: set[str] = set()

        async def record_event(event: str, _details: object, events: set[str] = events) -> None:
            events.add(event)

        sent = httpcore2.Request(
            request.method,
            url,
            headers=request.encode_headers(),
            content=_iter_chunks(request.content or b""),
            extensions={"trace": record_event},
        )
        try:
            return await pool.handle_async_request(sent)
        except (httpcore2.RemoteProtocolError, httpcore2.ReadError, httpcore2.WriteError):
            if (
                "connection.connect_tcp.started" in events
                or request.method not in IDEMPOTENT_METHODS
            ):
                raise


async def _iter_chunks(content: bytes) -> AsyncIterator[bytes]:
    """Yield a request body in chunks: the event loop copies what the network cannot take."""
    for start in range(0, len(content), CHUNK_BYTES):
        yield content[start : start + CHUNK_BYTES]


class CheckedBackend(httpcore2.AsyncNetworkBackend):
    """A network backend that connects only to allowed addresses.

    `private_advice` says how to allow private addresses; they are allowed if it is empty.
    """

    def __init__(
        self, resolve: Resolve, *, private_advice: str, own_ports: OwnPorts = tuple
    ) -> None:
        self._resolve = resolve
        self._private_advice = private_advice
        self._own_ports = own_ports
        self._network = httpcore2.AnyIOBackend()

    async def connect_tcp(
        self,
        host: str,
        port: int,
        timeout: (float | None) = None,  # noqa: ARG002, ASYNC109 - the deadline of the whole request holds
        local_address: str | None = None,  # noqa: ARG002
        socket_options: Iterable[Any] | None = None,  # noqa: ARG002
    ) -> httpcore2.AsyncNetworkStream:
        addresses = (
            [host] if parse_address(host) is not None else list(await self._resolve(host, port))
        )
        if not addresses:
            raise httpcore2.ConnectError(f"no address found for {host}")
        if self._private_advice:
            require_public(host, addresses, self._private_advice)
        # That server would treat a request from this machine as its owner's.
        if any(map(_is_local, addresses)) and port in await run_in_thread(self._own_ports):
            raise NetworkError(
                f"{host}:{port} is not allowed: it is a OneTool server on this machine",
                reason="address_not_allowed",
                host=host,
            )
        for address in addresses[:-1]:
            try:
                return _close_if_cancelled(
                    await self._network.connect_tcp(address, port, timeout=CONNECT_SECONDS)
                )
            except (httpcore2.ConnectError, httpcore2.ConnectTimeout):
                continue
        return _close_if_cancelled(await self._network.connect_tcp(addresses[-1], port))


def _is_local(address: str) -> bool:
    """Return whether a connection to the address stays on this machine."""
    parsed = parse_address(address)
    parsed = getattr(parsed, "ipv4_mapped", None) or parsed
    if parsed is None or parsed.is_loopback or parsed.is_unspecified:
        return parsed is not None
    try:  # only local addresses can be bound
        is_ipv6 = parsed.version == 6  # noqa: PLR2004 - the version of IP
        family = socket.AF_INET6 if is_ipv6 else socket.AF_INET
        with socket.socket(family, socket.SOCK_DGRAM) as probe:
            probe.bind((str(parsed), 0))
    except OSError:
        return False
    return True


def _close_if_cancelled(stream: httpcore2.AsyncNetworkStream) -> httpcore2.AsyncNetworkStream:
    """Close the connection if its TLS handshake is cancelled; the library leaves it open."""
    start_tls = stream.start_tls

    async def start(*args: Any, **named: Any) -> httpcore2.AsyncNetworkStream:
        try:
            return await start_tls(*args, **named)
        except BaseException:
            with anyio.CancelScope(shield=True):
                await stream.aclose()
            raise

    stream.start_tls = start  # type: ignore[method-assign]
    return stream


@contextmanager
def _convert_errors(name: str) -> Iterator[None]:
    """Convert library errors to NetworkError.

    Only the reason `connect` means that nothing was sent.
    """
    try:
        yield
    except (httpcore2.ConnectError, httpcore2.ConnectTimeout) as error:
        raise NetworkError(
            f"{name}: cannot connect: {_describe_error(error)}", reason="connect"
        ) from None
    except httpcore2.RemoteProtocolError as error:
        if getattr(_find_cause(error), "error_status_hint", None) == HEADERS_TOO_LARGE:
            raise NetworkError(f"{name}: response headers too large", reason="too_large") from None
        raise NetworkError(f"{name}: {_describe_error(error)}", reason="protocol") from None
    except (httpcore2.ProtocolError, httpcore2.NetworkError, httpcore2.TimeoutException) as error:
        raise NetworkError(
            f"{name}: connection lost: {_describe_error(error)}", reason="protocol"
        ) from None


def _find_cause(error: BaseException) -> BaseException:
    """Return the original error, which the library wraps and passes as an argument."""
    inner = error.__cause__ or next(iter(error.args), None)
    return _find_cause(inner) if isinstance(inner, BaseException) else error


def _describe_error(error: Exception) -> str:
    cause = _find_cause(error)
    if isinstance(cause, OSError) and not isinstance(cause, ssl.SSLError) and cause.errno:
        return os.strerror(cause.errno)
    text = (cause.strerror if isinstance(cause, OSError) else None) or str(cause)
    return text.rstrip(".")[:MAX_ERROR_CHARS] or "connection closed"


def _decode_header(value: bytes) -> str:
    try:
        return value.decode("utf-8")
    except UnicodeDecodeError:
        return value.decode("latin-1")


# --- Response bodies ------------------------------------------------------------------------------


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
    """Yield the decompressed chunks up to the limit; what follows is not read."""
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
    """Return a response's compression, or an empty string."""
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
        while piece := self._decompressor.decompress(data, DECOMPRESSED_BYTES):
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
