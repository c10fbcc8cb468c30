"""The shared HTTP client: requests to allowed hosts and addresses, with a timeout and a size limit.

Only connections are kept between requests: no cookies, no credentials. Headers with credentials and
request bodies are only sent to the origin (scheme, host and port) they are meant for. Proxies and
passwords are not read from the environment. `transport` imports the HTTP library, so it is only
imported with the first request.
"""

import codecs
import datetime as dt
import importlib
import json
import re
import socket
import sys
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from email.utils import parsedate_to_datetime
from functools import cached_property
from typing import TYPE_CHECKING, Self

import anyio
from anyio.to_thread import run_sync as run_in_thread

from onetool.errors import ArgumentError, NetworkError, ToolTimeout
from onetool.net.hosts import HostRules, Target, parse_target
from onetool.util.text import pluralize, quote
from onetool.util.version import __version__
from onetool_child.json_types import JsonObject
from onetool_child.messages import has_few_values

if TYPE_CHECKING:
    from onetool.net.transport import Connections, OwnPorts

TRANSPORT_MODULE = "onetool.net.transport"
MAX_REDIRECTS = 10
MAX_LOOKUPS = 32
# Prefixes of the supported codecs. Other codecs of Python take quadratic time, or are not text
# encodings.
CHARSET_PREFIXES = (
    "utf-8", "utf-16", "utf-32", "ascii", "iso8859", "cp", "koi8", "mac-",
    "gb", "big5", "euc_", "shift_jis", "iso2022", "tis-620",
)  # fmt: skip
CHARSET_PATTERN = r"""(?i);[ \t]*charset[ \t]*=[ \t]*["']?([A-Za-z0-9_.:-]{1,40})"""
# Every request of a tool has this header, so that a OneTool server recognizes it.
OUTGOING_HEADER = "OneTool-Outgoing"
TOKEN = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]+")
FORBIDDEN_IN_VALUES = re.compile("[\x00-\x08\x0a-\x1f\x7f\ud800-\udfff]")
RESERVED_HEADERS = frozenset(
    {
        "connection", "content-length", "expect", "host", "keep-alive",
        *(OUTGOING_HEADER.lower(), "proxy-connection", "te", "trailer", "transfer-encoding", "upgrade"),
    }
)  # fmt: skip
CREDENTIAL_HEADERS = frozenset({"authorization", "cookie", "proxy-authorization"})
IDEMPOTENT_METHODS = frozenset({"GET", "HEAD", "OPTIONS", "PUT", "DELETE"})
FORBIDDEN_METHODS = frozenset({"CONNECT", "TRACE"})
DEFAULT_HEADERS = (
    ("Accept", "*/*"),
    ("Accept-Encoding", "gzip, deflate"),
    ("User-Agent", f"onetool/{__version__}"),
)
SEE_OTHER = 303
GET_REDIRECT_STATUSES = frozenset({301, 302, SEE_OTHER})
REDIRECT_STATUSES = GET_REDIRECT_STATUSES | {307, 308}
METHODS_WITH_BODY = frozenset({"POST", "PUT", "PATCH"})
MAX_RETRY_DIGITS = 9  # more digits would exceed any timeout
EVENT_STREAM = "text/event-stream"
# Reads the body of an event stream as far as it wants.
ReadStream = Callable[[AsyncIterator[bytes]], Awaitable[None]]
Resolve = Callable[[str, int], Awaitable[Sequence[str]]]  # host and port -> addresses


# --- Messages -------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Request:
    """A request. `credentials` are lower-case header names that only the origin gets.

    The values of `secret_query`, which are parameters, are never shown.
    """

    method: str
    url: str
    headers: Sequence[tuple[str, str]] = ()
    content: bytes | None = None
    credentials: frozenset[str] = frozenset()
    secret_query: frozenset[str] = frozenset()

    @cached_property
    def target(self) -> Target:
        return parse_target(self.url)

    @property
    def label(self) -> str:
        return f"{self.method} {self.target.origin}"

    def complete(self) -> Self:
        """Return the validated request with the headers that all requests have."""
        headers = [_validate(name, value) for name, value in self.headers]
        names = {name.lower() for name, _ in headers}
        headers += [header for header in DEFAULT_HEADERS if header[0].lower() not in names]
        method = self.method.upper()
        if not TOKEN.fullmatch(method) or method in FORBIDDEN_METHODS:
            expected = "expected GET, POST, PUT, PATCH, DELETE or HEAD"
            raise ArgumentError(f"invalid method {quote(self.method, 20)}: {expected}")
        content = b"" if self.content is None and method in METHODS_WITH_BODY else self.content
        credentials = CREDENTIAL_HEADERS | self.credentials
        return replace(
            self, method=method, headers=headers, content=content, credentials=credentials
        )

    def encode_headers(self) -> list[tuple[bytes, bytes]]:
        length = [] if self.content is None else [("Content-Length", str(len(self.content)))]
        headers = [("Host", self.target.authority), (OUTGOING_HEADER, "1"), *self.headers, *length]
        return [(name.encode("ascii"), value.encode("utf-8")) for name, value in headers]

    def redirect(self, status: int, location: str) -> Self:
        """Return the request to send to a redirect target.

        As in browsers, some redirects turn it into a GET.
        """
        target = self.target.join(location)
        request = replace(self, url=f"{target.origin}{target.path}")
        headers = list(self.headers)
        if self.method != "HEAD" and status in (
            GET_REDIRECT_STATUSES if self.method == "POST" else {SEE_OTHER}
        ):
            headers = [header for header in headers if not header[0].lower().startswith("content-")]
            request = replace(request, method="GET", content=None)
        if target.origin != self.target.origin:
            if request.content:
                raise NetworkError(
                    f"{self.label} was redirected to {target.origin}: a request body is not sent to"
                    " another origin",
                    reason="redirects",
                    hint=f"send the request to {target.origin} directly",
                )
            headers = [header for header in headers if header[0].lower() not in self.credentials]
        return replace(request, headers=headers)


@dataclass(frozen=True, slots=True)
class Response:
    status: int
    headers: tuple[tuple[str, str], ...]
    body: bytes
    url: str
    seconds: float
    compression: str = ""  # of the body, if it is not supported

    def header(self, name: str) -> str | None:
        """Return the first header with this lower-case name."""
        return next((value for key, value in self.headers if key.lower() == name), None)

    @property
    def media_type(self) -> str:
        return (self.header("content-type") or "").partition(";")[0].strip().lower()

    @property
    def charset(self) -> str:
        """The codec that Content-Type names if it is a text encoding, else UTF-8."""
        match = re.search(CHARSET_PATTERN, self.header("content-type") or "")
        return _find_codec(match[1] if match else "")

    def text(self) -> str:
        """Return the body as text. Invalid bytes are replaced; it never raises."""
        return self.body.decode(self.charset, "replace")

    def parse_retry_after(self, now: dt.datetime | None = None) -> float:
        """Return the Retry-After seconds, from a number or a date; 0 without one."""
        text = (self.header("retry-after") or "").strip()
        if text.isascii() and text.isdecimal():
            return float(text[:MAX_RETRY_DIGITS])
        try:
            date = parsedate_to_datetime(text)
            wait = date.replace(tzinfo=date.tzinfo or dt.UTC) - (now or dt.datetime.now(dt.UTC))
        except (TypeError, ValueError, IndexError, OverflowError):
            return 0.0
        return max(0.0, wait.total_seconds())

    def parse_object(self) -> JsonObject | None:
        """Return the body if it is a JSON object, or None. One with very many values is not parsed."""
        text = self.text()
        try:
            data = json.loads(text) if has_few_values(text) else None
        except (ValueError, RecursionError):
            return None
        return data if isinstance(data, dict) else None


def _find_codec(name: str) -> str:
    try:
        codec = codecs.lookup(name).name
    except (LookupError, ValueError):
        codec = "utf-8"
    return "utf-8-sig" if codec == "utf-8" or not codec.startswith(CHARSET_PREFIXES) else codec


def _validate(name: str, value: str) -> tuple[str, str]:
    """Validate a header. Errors never contain its value, which may be secret."""
    if not TOKEN.fullmatch(name):
        raise ArgumentError(
            f"invalid header name {quote(name, 100)}: expected letters, digits and -"
        )
    if name.lower() in RESERVED_HEADERS:
        raise ArgumentError(f"header {name} cannot be set: OneTool sets it")
    if FORBIDDEN_IN_VALUES.search(value):
        raise ArgumentError(
            f"invalid value of header {name}: it contains a line break or control character"
        )
    return name, value.strip(" \t")


# --- Client ---------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class RequestLimits:
    """Limits and rules for a request and its redirects."""

    rules: tuple[HostRules, ...]
    max_bytes: int
    max_redirects: int
    read_stream: ReadStream | None = None

    @property
    def private_advice(self) -> str:
        """Advice to allow private addresses; empty if they are allowed."""
        limited = (
            rules.private_advice for rules in self.rules if not rules.allow_private_addresses
        )
        return next(limited, "")

    def find_location(self, response: Response) -> str | None:
        """Return the redirect target to follow, or None."""
        if not self.max_redirects or response.status not in REDIRECT_STATUSES:
            return None
        return response.header("location")


class Net:
    """The HTTP client.

    `resolve` returns the addresses of a host, `own_ports` the ports of OneTool's own servers.
    """

    def __init__(
        self, rules: HostRules, *, resolve: Resolve | None = None, own_ports: "OwnPorts" = tuple
    ) -> None:
        self.rules = rules
        self._own_ports = own_ports
        self._resolve = resolve or self._resolve_host
        self._lookup_limiter = anyio.CapacityLimiter(MAX_LOOKUPS)
        self._connections: Connections | None = None
        self._requests = 0
        self._is_closed = False

    async def send(
        self,
        request: Request,
        *,
        timeout: float,  # noqa: ASYNC109 - for the whole request with its redirects
        max_bytes: int,
        follow_redirects: bool = True,
        rules: Iterable[HostRules] = (),
        read_stream: ReadStream | None = None,
    ) -> Response:
        """Send a request. A URL must be allowed by all `rules` and by those of this client.

        `read_stream` reads a successful response that is an event stream; it then has an empty
        body.
        """
        if (
            TRANSPORT_MODULE not in sys.modules
        ):  # importing takes long enough to block the event loop
            await run_in_thread(importlib.import_module, TRANSPORT_MODULE)
        request = request.complete()
        redirects = MAX_REDIRECTS if follow_redirects else 0
        limits = RequestLimits((self.rules, *rules), max_bytes, redirects, read_stream)
        self._requests += 1
        try:
            with anyio.move_on_after(timeout):
                return await self._send(request, limits)
        finally:
            self._requests -= 1
            if self._is_closed:
                await self.close()
        raise ToolTimeout(
            f"{request.label} timed out after {timeout:g} s", timeout_ms=round(timeout * 1000)
        )

    async def close(self) -> None:
        """Close the connections, after the requests in flight."""
        self._is_closed = True
        if self._connections is not None and not self._requests:
            await self._connections.close()

    async def _send(self, request: Request, limits: RequestLimits) -> Response:
        """Send the request and follow redirects, checking each like the first request."""
        from onetool.net.transport import Connections

        connections = self._connections = self._connections or Connections(
            self._resolve, self._own_ports
        )
        started = time.perf_counter()
        redirects = 0
        while True:
            for rules in limits.rules:
                rules.check_target(request.target)
            try:
                response = await connections.send(request, limits)
            except NetworkError as error:
                # `connect` means that nothing was sent, which is not true after a redirect.
                if not redirects or error.fields.get("reason") != "connect":
                    raise
                fields = {**error.fields, "reason": "redirects"}
                raise NetworkError(f"after a redirect: {error.message}", **fields) from None
            location = limits.find_location(response)
            if location is None:
                return replace(response, seconds=time.perf_counter() - started)
            if redirects == limits.max_redirects:
                raise NetworkError(
                    f"{request.label}: more than {pluralize(redirects, 'redirect')}",
                    reason="redirects",
                )
            request = request.redirect(response.status, location)
            redirects = redirects + 1

    async def _resolve_host(self, host: str, port: int) -> list[str]:
        def look_up() -> list[str]:
            infos = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
            return list(dict.fromkeys(str(info[4][0]) for info in infos))

        try:
            return await run_in_thread(
                look_up, abandon_on_cancel=True, limiter=self._lookup_limiter
            )
        except (OSError, UnicodeError):
            raise NetworkError(
                f"cannot resolve host {host}: no address found", reason="connect"
            ) from None
