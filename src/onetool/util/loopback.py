"""The hosts that are always this machine."""

from ipaddress import ip_address


def is_loopback(host: str) -> bool:
    """Return whether this is `localhost` or a loopback address, also in brackets or as an
    IPv4-mapped one.
    """
    if host == "localhost":
        return True
    try:
        address = ip_address(host.strip("[]"))
    except ValueError:
        return False
    mapped = getattr(address, "ipv4_mapped", None)
    return bool((mapped or address).is_loopback)
