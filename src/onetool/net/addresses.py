"""Public IP addresses: those of hosts on the internet.

The ranges are listed here, because `ipaddress.is_global` differs between Python versions and
includes multicast and translated addresses. An IPv6 address that embeds an IPv4 address is public
if the embedded address is.
"""

from collections.abc import Iterator
from ipaddress import IPv4Address, IPv6Address, IPv6Network, ip_address, ip_network

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
