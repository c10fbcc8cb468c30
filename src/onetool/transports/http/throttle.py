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
ONE_HOUSEHOLD: Final = 64  # bits: one host usually controls a whole /64 network


class AuthThrottle:
    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._failed: dict[str, deque[float]] = {}
        self._known: dict[tuple[str, str], None] = {}

    def check(self, address: str, shown: str) -> None:
        """Raise an ApiError if the address has too many failures. `shown` is the hash of the token."""
        place = _place(address)
        failed = self._failed.get(place)
        if failed is None:
            return
        if self._clock() - failed[-1] > WINDOW_SECONDS:
            del self._failed[place]
        elif (
            len(failed) == MAX_FAILURES
            and self._clock() - failed[0] < WINDOW_SECONDS
            and (place, shown) not in self._known
        ):
            raise ApiError("rate_limited", "too many failed attempts from this address: retry in one minute")

    def record_failure(self, address: str, shown: str) -> None:
        """Record a failed attempt. With too many addresses, the least recent one is dropped."""
        place = _place(address)
        self._known.pop((place, shown), None)
        times = self._failed.pop(place, None) or deque(maxlen=MAX_FAILURES)
        times.append(self._clock())
        self._failed[place] = times
        _shorten(self._failed, MAX_ADDRESSES)

    def record_success(self, address: str, shown: str) -> None:
        self._known[_place(address), shown] = None
        _shorten(self._known, MAX_KNOWN_TOKENS)


def _shorten(kept: dict[Any, Any], most: int) -> None:
    while len(kept) > most:
        del kept[next(iter(kept))]


def _place(address: str) -> str:
    try:
        found = ip_address(address)
    except ValueError:
        return address
    if isinstance(found, IPv6Address) and found.ipv4_mapped is None:
        bare = str(found).partition("%")[0]
        return str(ip_network((bare, ONE_HOUSEHOLD), strict=False))
    return address
