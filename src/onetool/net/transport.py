"""Connections: kept alive, and each one made to an address that was looked up once and found to be allowed.

The name is resolved here and nowhere else; the very address that was checked is connected to, while TLS and the
header Host go on using the name. This module loads the HTTP library, so it is imported when something is sent.
"""

import os
import socket
import ssl
from collections.abc import Callable, Collection, Iterable, Iterator
from contextlib import contextmanager
from typing import Any, Final

import anyio
import anyio.to_thread
import httpcore2
import httpx2  # noqa: F401 - `urls` takes URLs apart with it

from onetool.errors import NetworkError
from onetool.net.addresses import parsed
from onetool.net.exchange import Resolve
from onetool.net.hosts import require_public
from onetool.net.outgoing import IDEMPOTENT, Outgoing

OwnPorts = Callable[[], Collection[int]]  # of OneTool's own HTTP servers; it may block
CONNECTIONS: Final = 256
IDLE_CONNECTIONS: Final = 32
IDLE_SECONDS: Final = 4.0  # many servers hang up after five, and a request may not meet that
CONNECT_SECONDS: Final = 5.0  # for one address, where there are more to try
HEADERS_TOO_LARGE: Final = 431
WORDS: Final = 300  # of an error that may repeat what a server sent


def open_pool(
    resolve: Resolve, scheme: str, *, public_only: bool, own_ports: OwnPorts = tuple
) -> httpcore2.AsyncConnectionPool:
    """Blocks: certificates are read from disk."""
    return httpcore2.AsyncConnectionPool(
        ssl_context=httpcore2.default_ssl_context() if scheme == "https" else None,
        max_connections=CONNECTIONS,
        max_keepalive_connections=IDLE_CONNECTIONS,
        keepalive_expiry=IDLE_SECONDS,
        network_backend=CheckedBackend(resolve, public_only=public_only, own_ports=own_ports),
    )


async def answered(pool: httpcore2.AsyncConnectionPool, request: Outgoing) -> httpcore2.Response:
    """A response whose body is still to be read, and which is to be closed.

    A server may hang up on a kept connection at the very moment it is used again. What may be sent twice then is.
    """
    target, content = request.target, request.content or b""
    url = httpcore2.URL(scheme=target.scheme, host=target.host, port=target.port, target=target.path)
    while True:
        events: set[str] = set()

        async def note(event: str, _details: object, events: set[str] = events) -> None:
            events.add(event)

        sent = httpcore2.Request(
            request.method, url, headers=request.raw_headers(), content=content, extensions={"trace": note}
        )
        try:
            return await pool.handle_async_request(sent)
        except (httpcore2.RemoteProtocolError, httpcore2.ReadError, httpcore2.WriteError):
            if "connection.connect_tcp.started" in events or request.method not in IDEMPOTENT:
                raise


class CheckedBackend(httpcore2.AsyncNetworkBackend):
    def __init__(self, resolve: Resolve, *, public_only: bool, own_ports: OwnPorts = tuple) -> None:
        self._resolve, self._public_only, self._own_ports = resolve, public_only, own_ports
        self._network = httpcore2.AnyIOBackend()

    async def connect_tcp(
        self,
        host: str,
        port: int,
        timeout: float | None = None,  # noqa: ARG002, ASYNC109 - the deadline of the whole request holds
        local_address: str | None = None,  # noqa: ARG002
        socket_options: Iterable[Any] | None = None,  # noqa: ARG002
    ) -> httpcore2.AsyncNetworkStream:
        addresses = [host] if parsed(host) is not None else list(await self._resolve(host, port))
        if not addresses:
            raise httpcore2.ConnectError(f"there is no address of {host}")
        if self._public_only:
            require_public(host, addresses)
        # A request from this machine counts as its owner's there.
        if any(map(_is_local, addresses)) and port in await anyio.to_thread.run_sync(self._own_ports):
            raise NetworkError(
                f"{host}:{port} is a OneTool server on this machine: tools cannot send requests to it",
                reason="address_not_allowed",
                host=host,
            )
        for address in addresses[:-1]:
            try:
                return _closed_if_cancelled(await self._network.connect_tcp(address, port, timeout=CONNECT_SECONDS))
            except (httpcore2.ConnectError, httpcore2.ConnectTimeout):
                continue
        return _closed_if_cancelled(await self._network.connect_tcp(addresses[-1], port))


def _is_local(address: str) -> bool:
    """Return whether a connection to the address stays on this machine."""
    found = parsed(address)
    found = getattr(found, "ipv4_mapped", None) or found
    if found is None or found.is_loopback or found.is_unspecified:
        return found is not None
    try:  # only an address of this machine can be bound to
        with socket.socket(socket.AF_INET6 if found.version == 6 else socket.AF_INET, socket.SOCK_DGRAM) as probe:  # noqa: PLR2004
            probe.bind((str(found), 0))
    except OSError:
        return False
    return True


def _closed_if_cancelled(stream: httpcore2.AsyncNetworkStream) -> httpcore2.AsyncNetworkStream:
    """Close the connection also when whoever waits for its handshake is cancelled; the library leaves it open."""
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
def explained(name: str) -> Iterator[None]:
    """Errors of the library as ours. Only `connect` tells that nothing has been sent."""
    try:
        yield
    except (httpcore2.ConnectError, httpcore2.ConnectTimeout) as error:
        raise NetworkError(f"{name}: no connection: {_words(error)}", reason="connect") from None
    except httpcore2.RemoteProtocolError as error:
        if getattr(_origin(error), "error_status_hint", None) == HEADERS_TOO_LARGE:
            raise NetworkError(f"{name}: the headers of the response are too large", reason="too_large") from None
        raise NetworkError(f"{name}: {_words(error)}", reason="protocol") from None
    except (httpcore2.ProtocolError, httpcore2.NetworkError, httpcore2.TimeoutException) as error:
        raise NetworkError(f"{name}: the connection broke: {_words(error)}", reason="protocol") from None


def _origin(error: BaseException) -> BaseException:
    """What the library wrapped: it hands the original on as an argument."""
    inner = error.__cause__ or next(iter(error.args), None)
    return _origin(inner) if isinstance(inner, BaseException) else error


def _words(error: Exception) -> str:
    cause = _origin(error)
    if isinstance(cause, OSError) and not isinstance(cause, ssl.SSLError) and cause.errno:
        return os.strerror(cause.errno)
    text = (cause.strerror if isinstance(cause, OSError) else None) or str(cause)
    return text.rstrip(".")[:WORDS] or "it was closed"
