"""Rate limiting of failed authentication attempts by address.

A token that was accepted from an address before is still accepted while the address is limited, so that an attacker
cannot lock out others behind the same address. All other tokens, valid or not, are rejected until the limit expires.
"""

import time
from collections import deque
from collections.abc import Callable
from ipaddress import IPv6Address, ip_address, ip_network
from typing import Any, Final

from onetool.transports.http.errors import ApiError

MAX_FAILURES: Final = 20
WINDOW_SECONDS: Final = 60.0
MAX_ADDRESSES: Final = 10_000
MAX_KNOWN_TOKENS: Final = 10_000
IPV6_PREFIX_BITS: Final = 64  # one host usually controls a whole /64 network


class AuthThrottle:
    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._failed: dict[str, deque[float]] = {}
        self._known: dict[tuple[str, str], None] = {}

    def check(self, address: str, token_hash: str) -> None:
        """Raise an ApiError if the address has too many failures."""
        network = _get_network(address)
        failed = self._failed.get(network)
        if failed is None:
            return
        if self._clock() - failed[-1] > WINDOW_SECONDS:
            del self._failed[network]
        elif (
            len(failed) == MAX_FAILURES
            and self._clock() - failed[0] < WINDOW_SECONDS
            and (network, token_hash) not in self._known
        ):
            raise ApiError("rate_limited", "too many failed attempts from this address: retry in one minute")

    def record_failure(self, address: str, token_hash: str) -> None:
        """Record a failed attempt. With too many addresses, the least recent one is dropped."""
        network = _get_network(address)
        self._known.pop((network, token_hash), None)
        times = self._failed.pop(network, None) or deque(maxlen=MAX_FAILURES)
        times.append(self._clock())
        self._failed[network] = times
        _trim(self._failed, MAX_ADDRESSES)

    def record_success(self, address: str, token_hash: str) -> None:
        self._known[_get_network(address), token_hash] = None
        _trim(self._known, MAX_KNOWN_TOKENS)


def _trim(entries: dict[Any, Any], max_entries: int) -> None:
    while len(entries) > max_entries:
        del entries[next(iter(entries))]


def _get_network(address: str) -> str:
    try:
        found = ip_address(address)
    except ValueError:
        return address
    if isinstance(found, IPv6Address) and found.ipv4_mapped is None:
        bare = str(found).partition("%")[0]
        return str(ip_network((bare, IPV6_PREFIX_BITS), strict=False))
    return address
