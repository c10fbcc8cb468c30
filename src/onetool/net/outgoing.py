"""Validated outgoing requests, and what of them is sent to the target of a redirect.

Headers with credentials and request bodies are only sent to the origin (scheme, host and port) they are meant for.
"""

import dataclasses
import re
from dataclasses import dataclass
from typing import Self

from onetool.errors import ArgumentError, NetworkError
from onetool.net.messages import OUTGOING_HEADER, Request
from onetool.net.urls import Target, parse_target
from onetool.util.text import quote
from onetool.util.version import __version__

TOKEN = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]+")
FORBIDDEN_IN_VALUES = re.compile("[\x00-\x08\x0a-\x1f\x7f\ud800-\udfff]")
RESERVED_HEADERS = frozenset(
    {
        *("connection", "content-length", "expect", "host", "keep-alive"),
        *(OUTGOING_HEADER.lower(), "proxy-connection", "te", "trailer", "transfer-encoding", "upgrade"),
    }
)
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
HeaderPair = tuple[str, str]


@dataclass(frozen=True, slots=True)
class OutgoingRequest:
    method: str
    target: Target
    headers: tuple[HeaderPair, ...]
    content: bytes | None
    credentials: frozenset[str]

    @classmethod
    def from_request(cls, request: Request) -> Self:
        headers = tuple(_validate(name, value) for name, value in request.headers)
        names = {name.lower() for name, _ in headers}
        missing = tuple(header for header in DEFAULT_HEADERS if header[0].lower() not in names)
        content = b"" if request.content is None and request.method.upper() in METHODS_WITH_BODY else request.content
        credentials = CREDENTIAL_HEADERS | request.credentials
        return cls(
            _normalize_method(request.method), parse_target(request.url), (*headers, *missing), content, credentials
        )

    @property
    def name(self) -> str:
        return f"{self.method} {self.target.origin}"

    def encode_headers(self) -> list[tuple[bytes, bytes]]:
        length = [] if self.content is None else [("Content-Length", str(len(self.content)))]
        headers = [("Host", self.target.authority), (OUTGOING_HEADER, "1"), *self.headers, *length]
        return [(name.encode("ascii"), value.encode("utf-8")) for name, value in headers]

    def redirect(self, status: int, location: str) -> Self:
        """Return the request to send to the target of a redirect."""
        target = self.target.join(location)
        next_request = dataclasses.replace(self._adapt_method(status), target=target)
        if target.origin == self.target.origin:
            return next_request
        if next_request.content:
            raise NetworkError(
                f"{self.name} was redirected to {target.origin}: a request body is not sent to another origin",
                reason="redirects",
                hint=f"send the request to {target.origin} directly",
            )
        kept = tuple(header for header in next_request.headers if header[0].lower() not in self.credentials)
        return dataclasses.replace(next_request, headers=kept)

    def _adapt_method(self, status: int) -> Self:
        """Return the request to repeat. As in browsers, some redirects turn it into a GET."""
        if self.method == "HEAD" or status not in (GET_REDIRECT_STATUSES if self.method == "POST" else {SEE_OTHER}):
            return self
        headers = tuple(header for header in self.headers if not header[0].lower().startswith("content-"))
        return dataclasses.replace(self, method="GET", headers=headers, content=None)


def _normalize_method(method: str) -> str:
    name = method.upper()
    if not TOKEN.fullmatch(name) or name in FORBIDDEN_METHODS:
        raise ArgumentError(f"invalid method {quote(method, 20)}: expected GET, POST, PUT, PATCH, DELETE or HEAD")
    return name


def _validate(name: str, value: str) -> HeaderPair:
    """Validate a header. Errors never contain its value, which may be secret."""
    if not TOKEN.fullmatch(name):
        raise ArgumentError(f"invalid header name {quote(name, 100)}: expected letters, digits and -")
    if name.lower() in RESERVED_HEADERS:
        raise ArgumentError(f"header {name} cannot be set: OneTool sets it")
    if FORBIDDEN_IN_VALUES.search(value):
        raise ArgumentError(f"invalid value of header {name}: it contains a line break or control character")
    return name, value.strip(" \t")
