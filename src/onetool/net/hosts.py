"""URLs, public addresses and the allow-list of hosts. An empty list allows none.

Each URL is parsed once, so that the checked parts are those that are used. Hosts are normalized:
lower case, international names in ASCII, no trailing dot, addresses as `ipaddress` writes them.
Notations that only some programs read as an address are rejected.

A pattern is a host, `*.example.com` for every subdomain of example.com but not the domain itself,
or `*`; with a port, it allows that port only. Listing a private address does not allow it: that
needs `allow_private_addresses`.

Public addresses are those of hosts on the internet. Their ranges are listed here, because
`ipaddress.is_global` differs between Python versions and includes multicast and translated
addresses. An IPv6 address that embeds an IPv4 address is public if the embedded address is.
"""

import json
import re
import socket
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import lru_cache
from ipaddress import IPv4Address, IPv6Address, IPv6Network, ip_address, ip_network
from typing import Any, NamedTuple
from urllib.parse import unquote_plus

from onetool.errors import ConfigError, NetworkError
from onetool.util.context import ToolContext
from onetool.util.redact import REDACTED
from onetool.util.text import quote

HOSTS_PLACEHOLDER = "HOSTS"
PRIVATE_ADVICE = (
    "To allow private addresses, add this to onetool.yaml: http: {allowPrivateAddresses: true}"
)
DEFAULT_PORTS = {"http": 80, "https": 443}
MAX_PORT = 65535
MAX_HOST_CHARS = 253
LABEL = r"(?!-)[a-z0-9_-]{1,63}(?<!-)"
HOST_NAME = re.compile(rf"{LABEL}(\.{LABEL})*")
ENDS_WITH_NUMBER = re.compile(r"(.*\.)?([0-9]+|0x[0-9a-f]*)")
MAX_SHOWN_CHARS = 100
NON_PUBLIC_NETWORKS = tuple(
    map(
        ip_network,
        (
            "0.0.0.0/8",  # this machine
            "10.0.0.0/8",  # private
            "100.64.0.0/10",  # shared address space of providers (CGNAT)
            "127.0.0.0/8",  # loopback
            "168.63.129.16/32",  # platform services of Azure
            "169.254.0.0/16",  # link-local, cloud metadata services
            "172.16.0.0/12",  # private
            "192.0.0.0/24",  # protocols
            "192.0.2.0/24",  # documentation
            "192.88.99.0/24",  # 6to4 relays (deprecated)
            "192.168.0.0/16",  # private
            "198.18.0.0/15",  # benchmarks
            "198.51.100.0/24",  # documentation
            "203.0.113.0/24",  # documentation
            "224.0.0.0/4",  # multicast
            "240.0.0.0/4",  # reserved, and broadcast
            "2001::/23",  # protocols
            "2001:db8::/32",  # documentation
            "3fff::/20",  # documentation
        ),
    )
)
GLOBAL_IPV6 = IPv6Network("2000::/3")
NAT64 = IPv6Network("64:ff9b::/96")


# --- Addresses ------------------------------------------------------------------------------------


def parse_address(text: str) -> IPv4Address | IPv6Address | None:
    """Return the address in canonical notation, or None for names and other notations."""
    try:
        return ip_address(text)
    except ValueError:
        return None


def is_public(text: str) -> bool:
    address = parse_address(text.partition("%")[0])
    return address is not None and _is_public(address)


def _is_public(address: IPv4Address | IPv6Address) -> bool:
    if isinstance(address, IPv6Address):
        if embedded := list(_iterate_embedded(address)):
            return all(map(_is_public, embedded))
        if address not in GLOBAL_IPV6:
            return False
    return not any(address in network for network in NON_PUBLIC_NETWORKS)


def _iterate_embedded(address: IPv6Address) -> Iterator[IPv4Address]:
    """Yield the IPv4 addresses that packets to this address are sent to."""
    if address.ipv4_mapped is not None:
        yield address.ipv4_mapped
    if address.sixtofour is not None:
        yield address.sixtofour
    if address.teredo is not None:
        yield from address.teredo
    if address in NAT64:
        yield IPv4Address(int(address) & 0xFFFFFFFF)


# --- URLs -----------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Target:
    """A parsed URL, to which a request goes."""

    scheme: str
    host: str
    port: int
    path: str  # with the query

    @property
    def authority(self) -> str:
        """The value for the Host header."""
        host = f"[{self.host}]" if ":" in self.host else self.host
        return host if self.port == DEFAULT_PORTS[self.scheme] else f"{host}:{self.port}"

    @property
    def origin(self) -> str:
        """The origin. Errors show no more of a URL, because paths and queries may contain secrets."""
        return f"{self.scheme}://{self.authority}"

    def join(self, location: str) -> "Target":
        """Return the redirect target."""
        return _to_target(_parse(location, base=f"{self.origin}{self.path}"))

    def redact(self, secret_query: frozenset[str]) -> str:
        """Return the URL with redacted secret parameters."""
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


# --- Rules ----------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class HostRules:
    """The hosts that requests may reach, and whether they may have private addresses.

    The advice says how to allow a host, or private addresses.
    """

    allowed_hosts: tuple[str, ...] = ()
    allow_private_addresses: bool = False
    advice: str = (
        f"To allow it, add this to onetool.yaml: http: {{allowedHosts: [{HOSTS_PLACEHOLDER}]}}"
    )
    private_advice: str = PRIVATE_ADVICE

    @classmethod
    def for_url(cls, url: str, *, allow_private_addresses: bool) -> "HostRules":
        """Allow only the host of a URL that the user named.

        An address or `localhost` may therefore be private.
        """
        target = parse_target(url)
        is_local = target.host == "localhost" or parse_address(target.host) is not None
        return cls((target.authority,), allow_private_addresses=is_local or allow_private_addresses)

    @classmethod
    def for_agent(cls, context: ToolContext) -> "tuple[HostRules, ...]":
        """Return the agent's rules, which narrow the general ones; None without a host list."""
        if context.hosts is None:
            return ()
        setting = f"agents: {{{context.agent_id}: {{hosts: [{HOSTS_PLACEHOLDER}]}}}}"
        advice = context.explain_setting(setting, "hosts")
        return (cls(context.hosts, allow_private_addresses=True, advice=advice),)

    def check(self, url: str) -> None:
        """Raise unless the URL is allowed. The address of a host name is checked when connecting."""
        self.check_target(parse_target(url))

    def check_target(self, target: Target) -> None:
        if not any(_parse_pattern(text).matches(target) for text in self.allowed_hosts):
            raise NetworkError(
                self._format_rejection(target), reason="host_not_allowed", host=target.host
            )
        if parse_address(target.host) is not None and not self.allow_private_addresses:
            require_public(target.host, [target.host], self.private_advice)

    def _format_rejection(self, target: Target) -> str:
        hosts = [*self.allowed_hosts, target.authority]
        items = (
            host if host[0].isalnum() and ":" not in host else json.dumps(host, ensure_ascii=False)
            for host in hosts
        )
        advice = self.advice.replace(HOSTS_PLACEHOLDER, ", ".join(items))
        is_port_rejected = any(
            _parse_pattern(text).matches_host(target.host) for text in self.allowed_hosts
        )
        port = f" on port {target.port}" if is_port_rejected else ""
        return f"host {target.host} is not allowed{port}. {advice}"


ANY_HOST = HostRules(
    ("*",), allow_private_addresses=True
)  # for clients whose requests have rules of their own


def require_public(host: str, addresses: Iterable[str], advice: str = PRIVATE_ADVICE) -> None:
    """Raise unless all addresses are public, because any of them may be used."""
    private = next((address for address in addresses if not is_public(address)), None)
    if private is None:
        return
    subject = (
        f"address {host}" if private == host else f"host {host} has the address {private}, which"
    )
    raise NetworkError(
        f"{subject} is not public. {advice}",
        reason="address_not_allowed",
        host=host,
    )


class HostPattern(NamedTuple):
    host: str
    matches_subdomains: bool
    port: int | None

    def matches(self, target: Target) -> bool:
        return self.port in {None, target.port} and self.matches_host(target.host)

    def matches_host(self, host: str) -> bool:
        if self.matches_subdomains:
            return host.endswith(f".{self.host}") and parse_address(host) is None
        return self.host in {"*", host}


def covers_host(pattern: str, entry: str) -> bool:
    """Return whether a pattern allows every host that another pattern allows."""
    outer = _parse_pattern(pattern)
    inner = _parse_pattern(entry)
    if outer.port not in {None, inner.port}:
        return False
    if outer.matches_subdomains == inner.matches_subdomains and outer.host == inner.host:
        return True
    is_wide_enough = outer.matches_subdomains or outer.host == "*" or not inner.matches_subdomains
    return is_wide_enough and outer.matches_host(inner.host)


def find_private_address(pattern: str) -> str | None:
    """Return an address of the host that is not public, or None. Blocks while the name is resolved."""
    host = _parse_pattern(pattern).host
    try:
        answers = socket.getaddrinfo(host, None, type=socket.SOCK_STREAM)
    except (OSError, UnicodeError):  # no such host
        return None
    return next(
        (str(address[0]) for *_, address in answers if not is_public(str(address[0]))), None
    )


@lru_cache(maxsize=4096)
def _parse_pattern(text: str) -> HostPattern:
    try:
        return _split_pattern(text.strip())
    except NetworkError:
        raise ConfigError(
            f"invalid host {quote(text)} in allowedHosts: expected example.com, *.example.com,"
            " example.com:8080 or *"
        ) from None


def _split_pattern(text: str) -> HostPattern:
    if text == "*" or text.startswith("*:"):
        return HostPattern("*", matches_subdomains=False, port=split_host_port(f"any{text[1:]}")[1])
    name = text.removeprefix("*.")
    host, port = split_host_port(name)
    if name != text and parse_address(host) is not None:
        raise NetworkError("an IP address has no subdomains", reason="host_not_allowed")
    return HostPattern(host, matches_subdomains=name != text, port=port)
