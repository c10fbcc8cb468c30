"""Validated outgoing requests, and what of them is sent to the target of a redirect.

Headers with credentials and request bodies are only sent to the origin (scheme, host and port) they were given for.
"""

import dataclasses
import re
from dataclasses import dataclass
from typing import Final, Self

from onetool.errors import ArgumentError, NetworkError
from onetool.net.exchange import OUTGOING, Request
from onetool.net.urls import Target, parse_target
from onetool.version import __version__

TOKEN: Final = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]+")
FORBIDDEN_IN_VALUES: Final = re.compile("[\x00-\x08\x0a-\x1f\x7f\ud800-\udfff]")
OURS: Final = frozenset(
    {
        *("connection", "content-length", "expect", "host", "keep-alive"),
        *(OUTGOING.lower(), "proxy-connection", "te", "trailer", "transfer-encoding", "upgrade"),
    }
)
CREDENTIALS: Final = frozenset({"authorization", "cookie", "proxy-authorization"})
IDEMPOTENT: Final = frozenset({"GET", "HEAD", "OPTIONS", "PUT", "DELETE"})
METHODS_NOT_SENT: Final = frozenset({"CONNECT", "TRACE"})
DEFAULTS: Final = (
    ("Accept", "*/*"),
    ("Accept-Encoding", "gzip, deflate"),
    ("User-Agent", f"onetool/{__version__}"),
)
SEE_OTHER: Final = 303
AS_GET: Final = frozenset({301, 302, SEE_OTHER})
REDIRECTS: Final = AS_GET | {307, 308}
WITH_A_BODY: Final = frozenset({"POST", "PUT", "PATCH"})
Header = tuple[str, str]


@dataclass(frozen=True, slots=True)
class Outgoing:
    method: str
    target: Target
    headers: tuple[Header, ...]
    content: bytes | None
    credentials: frozenset[str]

    @classmethod
    def of(cls, request: Request) -> Self:
        headers = tuple(_validate(name, value) for name, value in request.headers)
        given = {name.lower() for name, _ in headers}
        missing = tuple(header for header in DEFAULTS if header[0].lower() not in given)
        content = b"" if request.content is None and request.method.upper() in WITH_A_BODY else request.content
        credentials = CREDENTIALS | request.credentials
        return cls(_method(request.method), parse_target(request.url), (*headers, *missing), content, credentials)

    @property
    def name(self) -> str:
        return f"{self.method} {self.target.origin}"

    def raw_headers(self) -> list[tuple[bytes, bytes]]:
        length = [] if self.content is None else [("Content-Length", str(len(self.content)))]
        words = [("Host", self.target.authority), (OUTGOING, "1"), *self.headers, *length]
        return [(name.encode("ascii"), value.encode("utf-8")) for name, value in words]

    def redirected(self, status: int, location: str) -> Self:
        target = self.target.joined(location)
        following = dataclasses.replace(self._repeat(status), target=target)
        if target.origin == self.target.origin:
            return following
        if following.content:
            raise NetworkError(
                f"{self.name} was redirected to {target.origin}: a request body is not sent to another origin",
                reason="redirects",
                hint=f"send the request to {target.origin} directly",
            )
        kept = tuple(header for header in following.headers if header[0].lower() not in self.credentials)
        return dataclasses.replace(following, headers=kept)

    def _repeat(self, status: int) -> Self:
        """Return the request to repeat. As in browsers, some redirects turn it into a GET."""
        if self.method == "HEAD" or status not in (AS_GET if self.method == "POST" else {SEE_OTHER}):
            return self
        headers = tuple(header for header in self.headers if not header[0].lower().startswith("content-"))
        return dataclasses.replace(self, method="GET", headers=headers, content=None)


def _method(method: str) -> str:
    word = method.upper()
    if not TOKEN.fullmatch(word) or word in METHODS_NOT_SENT:
        raise ArgumentError(f"invalid method {method[:20]!r}: expected GET, POST, PUT, PATCH, DELETE or HEAD")
    return word


def _validate(name: str, value: str) -> Header:
    """Validate a header. Errors never contain its value, which may be secret."""
    if not TOKEN.fullmatch(name):
        raise ArgumentError(f"invalid header name {name[:100]!r}: expected letters, digits and -")
    if name.lower() in OURS:
        raise ArgumentError(f"header {name} cannot be set: OneTool sets it")
    if FORBIDDEN_IN_VALUES.search(value):
        raise ArgumentError(f"invalid value of header {name}: it contains a line break or control character")
    return name, value.strip(" \t")
