"""A URL taken apart once: what is checked is what is connected to and sent, because nothing parses it again.

Hosts have one spelling here: lower case, international names in their ASCII form, no dot at the end, addresses as
`ipaddress` writes them. Spellings that only some programs read as an address are refused.
"""

import re
from dataclasses import dataclass
from typing import Any, Final
from urllib.parse import unquote_plus

from onetool.errors import NetworkError
from onetool.net.addresses import parsed
from onetool.redact import REDACTED

DEFAULT_PORTS: Final = {"http": 80, "https": 443}
LAST_PORT: Final = 65535
LONGEST_NAME: Final = 253
LABEL: Final = r"(?!-)[a-z0-9_-]{1,63}(?<!-)"
NAME: Final = re.compile(rf"{LABEL}(\.{LABEL})*")
ENDS_IN_A_NUMBER: Final = re.compile(r"(.*\.)?([0-9]+|0x[0-9a-f]*)")
SHOWN: Final = 100


@dataclass(frozen=True, slots=True)
class Target:
    scheme: str
    host: str
    port: int
    path: str  # and what follows it

    @property
    def authority(self) -> str:
        """What the header Host says."""
        host = f"[{self.host}]" if ":" in self.host else self.host
        return host if self.port == DEFAULT_PORTS[self.scheme] else f"{host}:{self.port}"

    @property
    def origin(self) -> str:
        """Whom it belongs to. All that errors tell of a URL: paths and queries hold secrets."""
        return f"{self.scheme}://{self.authority}"

    def joined(self, location: str) -> "Target":
        """Where a redirect leads to."""
        return _target(_read(location, base=f"{self.origin}{self.path}"))

    def shown(self, secret_query: frozenset[str]) -> str:
        path, mark, query = self.path.partition("?")
        pairs = [pair.partition("=") for pair in query.split("&")]
        parts = (
            f"{key}={REDACTED}" if unquote_plus(key) in secret_query else f"{key}{sign}{value}"
            for key, sign, value in pairs
        )
        return f"{self.origin}{path}{mark}{'&'.join(parts)}"


def target_of(url: str) -> Target:
    return _target(_read(url))


def host_and_port(text: str) -> tuple[str, int | None]:
    """`example.com`, `example.com:8080`, `[::1]:8080` or `::1`; the host in its one spelling."""
    if parsed(text) is not None:
        return _proper(text), None
    url = _read(f"any://{text}")  # a scheme without a default port, so that a port that is given is seen
    if set(text) & set("/@?#"):
        raise _refused(f"{_cut(text)} is no host")
    return _proper(url.raw_host.decode("ascii")), _port(url.port)


def _read(url: str, base: str | None = None) -> Any:
    import httpx2

    try:
        return httpx2.URL(url) if base is None else httpx2.URL(base).join(url)
    except (httpx2.InvalidURL, ValueError):  # its words may repeat what stands where a password would
        raise NetworkError(
            "This is not a valid URL: look at its host and port, and for line breaks and other control characters",
            reason="protocol",
        ) from None


def _target(url: Any) -> Target:
    if url.scheme not in DEFAULT_PORTS:
        raise NetworkError("A URL must begin with https:// or http://", reason="protocol")
    if url.userinfo:
        raise _refused("A URL may not hold a user name or a password: send them in the header Authorization")
    host = _proper(url.raw_host.decode("ascii"))
    return Target(url.scheme, host, _port(url.port) or DEFAULT_PORTS[url.scheme], url.raw_path.decode("ascii"))


def _port(port: int | None) -> int | None:
    if port is not None and not 0 < port <= LAST_PORT:
        raise _refused(f"A port is a number from 1 to {LAST_PORT}")
    return port


def _proper(host: str) -> str:
    """The host in its one spelling."""
    name = host.lower().removesuffix(".")
    address = parsed(name)
    if address is not None and "%" not in name:
        return str(address)
    if not name:
        raise _refused("The URL names no host: write it like https://example.com/path")
    if ENDS_IN_A_NUMBER.fullmatch(name):
        raise _refused(f"Host {_cut(name)} is not allowed: write an address with its four numbers, like 192.0.2.1")
    if not NAME.fullmatch(name) or len(name) > LONGEST_NAME:
        raise _refused(f"Host {_cut(name)} is not allowed: this is no name of a host")
    return name


def _refused(message: str) -> NetworkError:
    return NetworkError(message, reason="host_not_allowed")


def _cut(text: str) -> str:
    return text if len(text) <= SHOWN else f"{text[:SHOWN]}…"
