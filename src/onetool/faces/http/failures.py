"""Wrong tokens, counted by where they come from, so that nobody can go on guessing.

Who has been let in before is let in still: one who guesses must not shut the door to others at the same address. A
token that nobody has shown there before, right or wrong, has to wait, or the waiting would slow no guess.
"""

import time
from collections import deque
from collections.abc import Callable
from ipaddress import IPv6Address, ip_address, ip_network
from typing import Any, Final

from onetool.faces.http.errors import ApiError

MOST_FAILURES: Final = 20
WINDOW_SECONDS: Final = 60.0
MOST_ADDRESSES: Final = 10_000
MOST_KNOWN: Final = 10_000
ONE_HOUSEHOLD: Final = 64  # bits: whoever has one address of IPv6 has all that begin with these


class Failures:
    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._failed: dict[str, deque[float]] = {}
        self._known: dict[tuple[str, str], None] = {}

    def check(self, address: str, shown: str) -> None:
        """Raises a refusal where too many have failed; `shown` is the hash of the token."""
        place = _place(address)
        failed = self._failed.get(place)
        if failed is None:
            return
        if self._clock() - failed[-1] > WINDOW_SECONDS:
            del self._failed[place]
        elif (
            len(failed) == MOST_FAILURES
            and self._clock() - failed[0] < WINDOW_SECONDS
            and (place, shown) not in self._known
        ):
            raise ApiError("rate_limited", "too many wrong tokens came from this address; wait a minute")

    def failed(self, address: str, shown: str) -> None:
        """The one that has been quiet for longest is forgotten where there are too many."""
        place = _place(address)
        self._known.pop((place, shown), None)
        times = self._failed.pop(place, None) or deque(maxlen=MOST_FAILURES)
        times.append(self._clock())
        self._failed[place] = times
        _shorten(self._failed, MOST_ADDRESSES)

    def passed(self, address: str, shown: str) -> None:
        self._known[_place(address), shown] = None
        _shorten(self._known, MOST_KNOWN)


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
