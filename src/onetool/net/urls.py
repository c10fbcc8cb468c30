"""Parsed URLs. Each URL is parsed once, so that the checked parts are those that are used.

Hosts are normalized: lower case, international names in ASCII, no trailing dot, addresses as
`ipaddress` writes them. Notations that only some programs read as an address are rejected.
"""

import re
from dataclasses import dataclass
from typing import Any
from urllib.parse import unquote_plus

from onetool.errors import NetworkError
from onetool.net.addresses import parse_address
from onetool.util.redact import REDACTED
from onetool.util.text import quote

DEFAULT_PORTS = {"http": 80, "https": 443}
MAX_PORT = 65535
MAX_HOST_CHARS = 253
LABEL = r"(?!-)[a-z0-9_-]{1,63}(?<!-)"
HOST_NAME = re.compile(rf"{LABEL}(\.{LABEL})*")
ENDS_WITH_NUMBER = re.compile(r"(.*\.)?([0-9]+|0x[0-9a-f]*)")
MAX_SHOWN_CHARS = 100


@dataclass(frozen=True, slots=True)
class Target:
    """A parsed URL: the target of a request."""

    scheme: str
    host: str
    port: int
    path: str  # with the query

    @property
    def authority(self) -> str:
        """The value of the Host header."""
        host = f"[{self.host}]" if ":" in self.host else self.host
        return host if self.port == DEFAULT_PORTS[self.scheme] else f"{host}:{self.port}"

    @property
    def origin(self) -> str:
        """The origin. Errors show no more of a URL, because paths and queries may contain secrets."""
        return f"{self.scheme}://{self.authority}"

    def join(self, location: str) -> "Target":
        """Return the target of a redirect."""
        return _to_target(_parse(location, base=f"{self.origin}{self.path}"))

    def redact(self, secret_query: frozenset[str]) -> str:
        """Return the URL with the values of secret parameters redacted."""
        path, mark, query = self.path.partition("?")
        pairs = [pair.partition("=") for pair in query.split("&")]
        parts = (
            f"{key}={REDACTED}" if unquote_plus(key) in secret_query else f"{key}{sign}{value}"
            for key, sign, value in pairs
        )
        return f"{self.origin}{path}{mark}{'&'.join(parts)}"


def parse_target(url: str) -> Target:
    return _to_target(_parse(url))


def split_host_port(text: str) -> tuple[str, int | None]:
    """Split `example.com`, `example.com:8080`, `[::1]:8080` or `::1`; the host is normalized."""
    if parse_address(text) is not None:
        return _normalize_host(text), None
    url = _parse(
        f"any://{text}"
    )  # a scheme without a default port, so that an explicit port is not dropped
    if set(text) & set("/@?#"):
        raise _host_error(f"invalid host {quote(text, MAX_SHOWN_CHARS)}")
    return _normalize_host(url.raw_host.decode("ascii")), _check_port(url.port)


def _parse(url: str, base: str | None = None) -> Any:
    import httpx2

    try:
        return httpx2.URL(url) if base is None else httpx2.URL(base).join(url)
    except (httpx2.InvalidURL, ValueError):  # the message of the library may contain a password
        raise NetworkError(
            "invalid URL: check its host and port, and remove line breaks and other control"
            " characters",
            reason="protocol",
        ) from None


def _to_target(url: Any) -> Target:
    if url.scheme not in DEFAULT_PORTS:
        raise NetworkError("invalid URL: it must start with https:// or http://", reason="protocol")
    if url.userinfo:
        raise _host_error(
            "invalid URL: it contains a user name or password; use the Authorization header instead"
        )
    host = _normalize_host(url.raw_host.decode("ascii"))
    return Target(
        url.scheme,
        host,
        _check_port(url.port) or DEFAULT_PORTS[url.scheme],
        url.raw_path.decode("ascii"),
    )


def _check_port(port: int | None) -> int | None:
    if port is not None and not 0 < port <= MAX_PORT:
        raise _host_error(f"invalid port (expected 1-{MAX_PORT})")
    return port


def _normalize_host(host: str) -> str:
    name = host.lower().removesuffix(".")
    address = parse_address(name)
    if address is not None and "%" not in name:
        return str(address)
    if not name:
        raise _host_error("invalid URL: no host (expected a URL like https://example.com/path)")
    if ENDS_WITH_NUMBER.fullmatch(name):
        raise _host_error(
            f"host {_truncate(name)} is not allowed: expected an IPv4 address with four numbers,"
            " like 192.0.2.1"
        )
    if not HOST_NAME.fullmatch(name) or len(name) > MAX_HOST_CHARS:
        raise _host_error(f"host {_truncate(name)} is not allowed: not a valid host name")
    return name


def _host_error(message: str) -> NetworkError:
    return NetworkError(message, reason="host_not_allowed")


def _truncate(text: str) -> str:
    return text if len(text) <= MAX_SHOWN_CHARS else f"{text[:MAX_SHOWN_CHARS]}…"
