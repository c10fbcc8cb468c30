"""Rate limiting of failed authentication attempts by address.

A token that was accepted from an address before is still accepted while the address is limited, so
that an attacker cannot lock out others behind the same address. All other tokens, valid or not, are
rejected until the limit expires.

Replicas count failures together. A replica asks about each token of an address once.
"""

import time
from collections.abc import Callable
from ipaddress import IPv6Address, ip_address, ip_network
from typing import Any, TypeVar

from anyio.to_thread import run_sync as run_in_thread

from onetool.errors import StorageError
from onetool.server.http.errors import ApiError
from onetool.server.http.live_tokens import STORE_AWAY
from onetool.state.counters import Counters
from onetool.util.bounded_dict import BoundedDict
from onetool.util.clock_watch import Clock

MAX_FAILURES = 20
WINDOW_SECONDS = 60.0
ACCEPTED_SECONDS = (
    30 * 86_400.0
)  # for which replicas know that a token was accepted from an address
MAX_ADDRESSES = 10_000
MAX_ACCEPTED = 10_000
IPV6_PREFIX_BITS = 64  # one host usually controls a whole /64 network
FAILED = "failed sign-in "
ACCEPTED = "accepted sign-in "
T = TypeVar("T")


class AuthThrottle:
    """The failed attempts of all addresses, in `counters`."""

    def __init__(self, counters: Callable[[], Counters], clock: Clock = time.monotonic) -> None:
        self._get_counters = counters
        self._clock = clock
        self._limited: BoundedDict[str, float] = BoundedDict(
            MAX_ADDRESSES
        )  # until when, as the counters said
        self._accepted: BoundedDict[tuple[str, str], None] = BoundedDict(MAX_ACCEPTED)

    async def record_failure(self, address: str, token_hash: str) -> None:
        """Count a failed attempt. Raise an ApiError if the address has too many."""
        network = _get_network(address)
        was_accepted = self._accepted.pop((network, token_hash), "") is None
        is_limited = self._clock() < self._limited.get(network, 0.0) or not await self._count(
            network
        )
        if is_limited and not was_accepted:
            raise _limited_error()

    async def record_success(self, address: str, token_hash: str) -> None:
        """Remember an accepted token.

        Raise an ApiError if it is a new one and the address has too many failures.
        """
        network = _get_network(address)
        if (network, token_hash) in self._accepted:
            return
        if await _wait_for(_is_limited, self._get_counters(), network, token_hash):
            raise _limited_error()
        self._accepted[network, token_hash] = None

    async def _count(self, network: str) -> bool:
        """Count a failure, unless there are too many: then the counters are not asked until some
        are forgotten.
        """
        take = self._get_counters().take
        seconds = await _wait_for(take, FAILED + network, MAX_FAILURES, WINDOW_SECONDS)
        if seconds > 0:
            self._limited[network] = self._clock() + seconds
        return seconds == 0


def _is_limited(counters: Counters, network: str, token_hash: str) -> bool:
    """Return whether the address has too many failures, and no replica has accepted the token from
    it.
    """
    accepted = f"{ACCEPTED}{network} {token_hash}"
    if counters.count(FAILED + network, WINDOW_SECONDS) >= MAX_FAILURES and not counters.count(
        accepted, ACCEPTED_SECONDS
    ):
        return True
    counters.take(accepted, 1, ACCEPTED_SECONDS / 2)  # it is renewed, while the token is in use
    return False


async def _wait_for(function: Callable[..., T], *arguments: Any) -> T:
    """Ask the store in a thread.

    Without it, nobody is accepted: an attacker could have any number of attempts.
    """
    try:
        return await run_in_thread(function, *arguments)
    except StorageError as error:
        raise ApiError(
            "busy", f"cannot check tokens: {error.message}", {"reason": STORE_AWAY}
        ) from None


def _limited_error() -> ApiError:
    return ApiError(
        "rate_limited", "too many failed attempts from this address: retry in one minute"
    )


def _get_network(address: str) -> str:
    try:
        found = ip_address(address)
    except ValueError:
        return address
    if isinstance(found, IPv6Address) and found.ipv4_mapped is None:
        bare = str(found).partition("%")[0]
        return str(ip_network((bare, IPV6_PREFIX_BITS), strict=False))
    return address
