"""The allow-list of hosts. An empty list allows none.

A pattern is a host, `*.example.com` for every subdomain of example.com but not the domain itself,
or `*`; with a port, it allows that port only. Listing a private address does not allow it: that
needs `allow_private_addresses`.
"""

import json
import socket
from collections.abc import Iterable
from dataclasses import dataclass
from functools import lru_cache
from typing import NamedTuple

from onetool.errors import ConfigError, NetworkError
from onetool.net.addresses import is_public, parse_address
from onetool.net.urls import Target, parse_target, split_host_port
from onetool.util.context import ToolContext
from onetool.util.text import quote

HOSTS_PLACEHOLDER = "HOSTS"
PRIVATE_ADVICE = (
    "To allow private addresses, add this to onetool.yaml: http: {allowPrivateAddresses: true}"
)


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
        """Return the rules of the agent, which narrow those of the settings; nothing if it has no
        list of hosts.
        """
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
