"""A web server for tests, on loopback, with well-behaved and hostile pages.

It records its requests.

It implements HTTP over asyncio in its own thread, because a proper server could not misbehave.
`PAGES` are its pages; tests add others with `site.pages[path] = page`. With a `Certificate` it uses
TLS.
"""

import asyncio
import datetime as dt
import gzip
import ipaddress
import json
import ssl
import threading
import zlib
from collections.abc import Awaitable, Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final
from urllib.parse import parse_qs, urlsplit

from anyio.from_thread import start_blocking_portal
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

BLOCK: Final = b"\0" * (1 << 16)


@dataclass(frozen=True)
class ReceivedRequest:
    method: str
    path: str
    query: Mapping[str, list[str]]
    headers: tuple[tuple[str, str], ...]
    body: bytes

    def header(self, name: str) -> str | None:
        """Return all values of a header in one line. The name is lower case."""
        values = [value for key, value in self.headers if key.lower() == name]
        return ", ".join(values) if values else None

    @property
    def argument(self) -> str:
        """The last part of the path, as in /status/404."""
        return self.path.rpartition("/")[2]


Page = Callable[[ReceivedRequest, asyncio.StreamWriter], Awaitable[None]]


@dataclass
class Site:
    """A running web server. `requests` are the requests in order of arrival."""

    scheme: str
    port: int
    pages: dict[str, Page]
    requests: list[ReceivedRequest] = field(default_factory=list)
    names: list[str | None] = field(default_factory=list)  # requested by TLS clients (SNI)
    connections: int = 0
    open_connections: int = 0
    asked: threading.Event = field(default_factory=threading.Event)
    hung_up: threading.Event = field(
        default_factory=threading.Event
    )  # a client disconnected before the response

    def url(self, path: str = "/echo", host: str = "127.0.0.1") -> str:
        return f"{self.scheme}://{host}:{self.port}{path}"

    @property
    def last(self) -> ReceivedRequest:
        return self.requests[-1]

    def page(self, received: ReceivedRequest) -> Page:
        known = self.pages.get(received.path) or self.pages.get(
            received.path.rpartition("/")[0] + "/"
        )
        known = known or self.pages.get(f"/{received.path.split('/')[1]}/**")
        return known or _missing


@contextmanager
def serve_site(certificate: "Certificate | None" = None, host: str = "127.0.0.1") -> Iterator[Site]:
    with start_blocking_portal("asyncio") as portal:
        site = Site("https" if certificate else "http", 0, dict(PAGES))
        tls = None if certificate is None else certificate.context(site.names)
        serving = _Serving(site)
        server = portal.call(_start, serving, host, tls)
        site.port = server.sockets[0].getsockname()[1]
        try:
            yield site
        finally:
            portal.call(serving.stop, server)


async def _start(serving: "_Serving", host: str, tls: ssl.SSLContext | None) -> asyncio.Server:
    return await asyncio.start_server(serving.connected, host, 0, ssl=tls, limit=1 << 20)


class _Serving:
    def __init__(self, site: Site) -> None:
        self._site = site
        self._tasks: set[asyncio.Task[None]] = set()

    async def connected(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._tasks.add(task)
        self._site.connections += 1
        self._site.open_connections += 1
        try:
            with suppress(
                ConnectionError, asyncio.IncompleteReadError, ssl.SSLError, asyncio.CancelledError
            ):
                while await self._answer(reader, writer):
                    pass
        finally:
            self._site.open_connections -= 1
            self._tasks.discard(task)
            writer.transport.abort()

    async def _answer(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> bool:
        received = await _read_request(reader)
        self._site.requests.append(received)
        self._site.asked.set()
        page = asyncio.ensure_future(self._site.page(received)(received, writer))
        gone = asyncio.ensure_future(reader.read(1))
        try:
            done, _ = await asyncio.wait({page, gone}, return_when=asyncio.FIRST_COMPLETED)
            if page not in done or isinstance(page.exception(), ConnectionError):
                self._site.hung_up.set()
                return False
            await page
        finally:
            for task in (page, gone):
                task.cancel()
                with suppress(asyncio.CancelledError, ConnectionError, ssl.SSLError):
                    await task
        await writer.drain()
        return not writer.is_closing()

    async def stop(self, server: asyncio.Server) -> None:
        server.close()
        for task in list(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)


async def _read_request(reader: asyncio.StreamReader) -> ReceivedRequest:
    head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1")
    first, *lines = head.rstrip("\r\n").split("\r\n")
    method, target, _version = first.split(" ")
    headers = tuple(
        (name, value.strip()) for name, _, value in (line.partition(":") for line in lines)
    )
    length = next((int(value) for name, value in headers if name.lower() == "content-length"), 0)
    parts = urlsplit(target)
    body = await reader.readexactly(length)
    return ReceivedRequest(
        method, parts.path, parse_qs(parts.query, keep_blank_values=True), headers, body
    )


# --- answers --------------------------------------------------------------------------------------


def send_response(
    writer: asyncio.StreamWriter,
    body: bytes = b"",
    *headers: tuple[str, str],
    status: int = 200,
    length: bool = True,
) -> None:
    """Write a response. Without a length, it ends with the connection."""
    lines = [f"HTTP/1.1 {status} x", *(f"{name}: {value}" for name, value in headers)]
    lines += [f"Content-Length: {len(body)}"] if length else ["Connection: close"]
    writer.write("\r\n".join([*lines, "", ""]).encode("utf-8") + body)
    if not length:
        writer.close()


async def _echo(received: ReceivedRequest, writer: asyncio.StreamWriter) -> None:
    seen = {
        "method": received.method,
        "path": received.path,
        "query": received.query,
        "headers": [[name.lower(), value] for name, value in received.headers],
        "body": received.body.decode("utf-8", "replace"),
    }
    body = b"" if received.method == "HEAD" else json.dumps(seen).encode()
    send_response(writer, body, ("Content-Type", "application/json"))


async def _missing(_read_request: ReceivedRequest, writer: asyncio.StreamWriter) -> None:
    send_response(writer, b"page not found", ("Content-Type", "text/plain"), status=404)


async def _status(received: ReceivedRequest, writer: asyncio.StreamWriter) -> None:
    send_response(
        writer,
        received.argument.encode(),
        ("Content-Type", "text/plain"),
        status=int(received.argument),
    )


async def _redirects(received: ReceivedRequest, writer: asyncio.StreamWriter) -> None:
    """/redirects/3 leads to /echo in three steps."""
    left = int(received.argument) - 1
    send_response(writer, b"", ("Location", f"/redirects/{left}" if left else "/echo"), status=302)


async def _redirect_to(received: ReceivedRequest, writer: asyncio.StreamWriter) -> None:
    """/redirect-to?url=…&status=307."""
    status = int(received.query.get("status", ["302"])[0])
    send_response(writer, b"over there", ("Location", received.query["url"][0]), status=status)


async def _loop(_read_request: ReceivedRequest, writer: asyncio.StreamWriter) -> None:
    send_response(writer, b"", ("Location", "/loop"), status=302)


async def _bytes(received: ReceivedRequest, writer: asyncio.StreamWriter) -> None:
    """/bytes/1000, with a length."""
    send_response(
        writer, b"\0" * int(received.argument), ("Content-Type", "application/octet-stream")
    )


async def _stream(received: ReceivedRequest, writer: asyncio.StreamWriter) -> None:
    """/stream/1000: as many bytes in chunks, without a length."""
    writer.write(b"HTTP/1.1 200 x\r\nTransfer-Encoding: chunked\r\n\r\n")
    left = int(received.argument)
    while left > 0:
        chunk = BLOCK[:left]
        writer.write(b"%x\r\n%b\r\n" % (len(chunk), chunk))
        await writer.drain()
        left -= len(chunk)
    writer.write(b"0\r\n\r\n")


async def _gzip(received: ReceivedRequest, writer: asyncio.StreamWriter) -> None:
    """/gzip/1000: as many bytes of text, compressed."""
    body = gzip.compress(b"a" * int(received.argument))
    send_response(writer, body, ("Content-Type", "text/plain"), ("Content-Encoding", "gzip"))


async def _bomb(received: ReceivedRequest, writer: asyncio.StreamWriter) -> None:
    """/bomb/1000: as many mebibytes of zeros, compressed while they are sent."""
    writer.write(b"HTTP/1.1 200 x\r\nContent-Encoding: gzip\r\nConnection: close\r\n\r\n")
    packer = zlib.compressobj(9, zlib.DEFLATED, zlib.MAX_WBITS | 16)
    for _ in range(int(received.argument) * 16):
        writer.write(packer.compress(BLOCK))
        await writer.drain()
    writer.write(packer.flush())
    writer.close()


async def _drip_head(_read_request: ReceivedRequest, writer: asyncio.StreamWriter) -> None:
    """Send headers that never end, a byte at a time."""
    writer.write(b"HTTP/1.1 200 x\r\nX: ")
    await _drip(writer)


async def _drip_body(_read_request: ReceivedRequest, writer: asyncio.StreamWriter) -> None:
    writer.write(b"HTTP/1.1 200 x\r\nContent-Length: 1000000\r\n\r\n")
    await _drip(writer)


async def _drip(writer: asyncio.StreamWriter) -> None:
    while True:
        writer.write(b".")
        await writer.drain()
        await asyncio.sleep(0.01)


async def _never(_read_request: ReceivedRequest, _writer: asyncio.StreamWriter) -> None:
    await asyncio.Event().wait()


async def _headers(received: ReceivedRequest, writer: asyncio.StreamWriter) -> None:
    """/headers/1000: as many headers."""
    send_response(
        writer, b"", *((f"X-{number}", "v" * 100) for number in range(int(received.argument)))
    )


async def _continue(_read_request: ReceivedRequest, writer: asyncio.StreamWriter) -> None:
    """Send 100 Continue forever."""
    while True:
        writer.write(b"HTTP/1.1 100 Continue\r\n\r\n" * 100)
        await writer.drain()


async def _hang_up(_read_request: ReceivedRequest, writer: asyncio.StreamWriter) -> None:
    writer.close()


async def _cut(_read_request: ReceivedRequest, writer: asyncio.StreamWriter) -> None:
    """Send less than the declared length."""
    writer.write(b"HTTP/1.1 200 x\r\nContent-Length: 100\r\n\r\nhalf")
    writer.close()


async def _garbage(_read_request: ReceivedRequest, writer: asyncio.StreamWriter) -> None:
    writer.write(b"\x16\x03\x01 this is not HTTP\r\n\r\n")
    writer.close()


async def _cookies(_read_request: ReceivedRequest, writer: asyncio.StreamWriter) -> None:
    send_response(writer, b"", ("Set-Cookie", "a=1; Path=/"), ("Set-Cookie", "b=2; Path=/"))


PAGES: Final[dict[str, Page]] = {
    "/echo": _echo,
    "/status/": _status,
    "/redirects/": _redirects,
    "/redirect-to": _redirect_to,
    "/loop": _loop,
    "/bytes/": _bytes,
    "/stream/": _stream,
    "/gzip/": _gzip,
    "/bomb/": _bomb,
    "/drip-head": _drip_head,
    "/drip-body": _drip_body,
    "/never": _never,
    "/headers/": _headers,
    "/continue": _continue,
    "/hang-up": _hang_up,
    "/cut": _cut,
    "/garbage": _garbage,
    "/cookies": _cookies,
}


def page(body: bytes, *headers: tuple[str, str], status: int = 200) -> Page:
    """Return a page with this fixed response."""

    async def show(_read_request: ReceivedRequest, writer: asyncio.StreamWriter) -> None:
        send_response(writer, body, *headers, status=status)

    return show


# --- TLS ------------------------------------------------------------------------------------------


class Certificate:
    """A self-signed certificate for these names; clients have to trust `file`."""

    def __init__(self, folder: Path, *names: str) -> None:
        self.file = folder / "certificate.pem"
        key = ec.generate_private_key(ec.SECP256R1())
        self._key = folder / "key.pem"
        self._key.write_bytes(
            key.private_bytes(
                serialization.Encoding.PEM,
                serialization.PrivateFormat.PKCS8,
                serialization.NoEncryption(),
            )
        )
        self.file.write_bytes(_sign(key, names).public_bytes(serialization.Encoding.PEM))

    def context(self, asked_for: list[str | None]) -> ssl.SSLContext:
        """Return the context of a server. Names that clients request are appended to `asked_for`."""
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(self.file, self._key)

        def note(_socket: object, name: str | None, _context: ssl.SSLContext) -> None:
            asked_for.append(name)

        context.sni_callback = note
        return context


def _sign(key: ec.EllipticCurvePrivateKey, names: tuple[str, ...]) -> x509.Certificate:
    subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "a test")])
    now = dt.datetime.now(dt.UTC)
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(subject)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - dt.timedelta(days=1))
        .not_valid_after(now + dt.timedelta(days=1))
        .add_extension(x509.SubjectAlternativeName([*map(_to_general_name, names)]), critical=False)
        .add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
        .sign(key, hashes.SHA256())
    )


def _to_general_name(name: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ipaddress.ip_address(name))
    except ValueError:
        return x509.DNSName(name)
