"""The allow-list of hosts. An empty list allows none.

A pattern is a host, `*.example.com` for every subdomain of example.com but not the domain itself, or `*`; with a port,
it allows that port only. Listing a private address does not allow it: that needs `allow_private_addresses`.
"""

import functools
import json
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final, NamedTuple

from onetool.errors import ConfigError, NetworkError
from onetool.net.addresses import is_public, parsed
from onetool.net.urls import Target, host_and_port, parse_target

HOSTS: Final = "HOSTS"


@dataclass(frozen=True, slots=True)
class HostRules:
    allowed_hosts: tuple[str, ...] = ()
    allow_private_addresses: bool = False
    setting: str = f"http: {{allowedHosts: [{HOSTS}]}}"  # the setting that allows a host

    def check(self, url: str) -> None:
        """Raise unless the URL is allowed. The address of a host name is checked when connecting."""
        self.admit(parse_target(url))

    def admit(self, target: Target) -> None:
        if not any(_pattern(text).admits(target) for text in self.allowed_hosts):
            raise NetworkError(self._refusal(target), reason="host_not_allowed", host=target.host)
        if parsed(target.host) is not None and not self.allow_private_addresses:
            require_public(target.host, [target.host])

    def _refusal(self, target: Target) -> str:
        hosts = [*self.allowed_hosts, target.authority]
        quoted = (
            host if host[0].isalnum() and ":" not in host else json.dumps(host, ensure_ascii=False) for host in hosts
        )
        line = self.setting.replace(HOSTS, ", ".join(quoted))
        is_port_alone = any(_pattern(text).names(target.host) for text in self.allowed_hosts)
        at_port = f" on port {target.port}" if is_port_alone else ""
        return f"host {target.host} is not allowed{at_port}. To allow it, add this to onetool.yaml: {line}"


def require_public(host: str, addresses: Iterable[str]) -> None:
    """Raise unless all addresses are public, because any of them may be used."""
    private = next((address for address in addresses if not is_public(address)), None)
    if private is None:
        return
    where = f"address {host}" if private == host else f"host {host} has the address {private}, which"
    raise NetworkError(
        f"{where} is not public. To allow private addresses, add this to onetool.yaml: "
        "http: {allowPrivateAddresses: true}",
        reason="address_not_allowed",
        host=host,
    )


class Pattern(NamedTuple):
    host: str
    is_parent: bool
    port: int | None

    def admits(self, target: Target) -> bool:
        return self.port in {None, target.port} and self.names(target.host)

    def names(self, host: str) -> bool:
        if self.is_parent:
            return host.endswith(f".{self.host}") and parsed(host) is None
        return self.host in {"*", host}


@functools.lru_cache(maxsize=4096)
def _pattern(text: str) -> Pattern:
    try:
        return _read(text.strip())
    except NetworkError:
        raise ConfigError(
            f"invalid host {text!r} in allowedHosts: expected example.com, *.example.com, example.com:8080 or *"
        ) from None


def _read(text: str) -> Pattern:
    if text == "*" or text.startswith("*:"):
        return Pattern("*", is_parent=False, port=host_and_port(f"any{text[1:]}")[1])
    name = text.removeprefix("*.")
    host, port = host_and_port(name)
    if name != text and parsed(host) is not None:
        raise NetworkError("an IP address has no subdomains", reason="host_not_allowed")
    return Pattern(host, is_parent=name != text, port=port)
