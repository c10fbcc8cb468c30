"""Rate limiting of failed authentication attempts by address.

A token that was accepted from an address before is still accepted while the address is limited, so that an attacker
cannot lock out others behind the same address. All other tokens, valid or not, are rejected until the limit expires.

Replicas count failures together, in their store. A replica asks it about each token of an address once.
"""

import time
from collections import deque
from collections.abc import Callable
from ipaddress import IPv6Address, ip_address, ip_network
from typing import Any, Final, TypeVar

import anyio.to_thread

from onetool.errors import StorageError
from onetool.state.storage import SharedCounters
from onetool.transports.http.errors import ApiError
from onetool.transports.http.tokens import STORE_AWAY

MAX_FAILURES: Final = 20
WINDOW_SECONDS: Final = 60.0
ACCEPTED_SECONDS: Final = 30 * 86_400.0  # for which replicas know that a token was accepted from an address
MAX_ADDRESSES: Final = 10_000
MAX_KNOWN_TOKENS: Final = 10_000
IPV6_PREFIX_BITS: Final = 64  # one host usually controls a whole /64 network
FAILED, ACCEPTED = "failed sign-in ", "accepted sign-in "
T = TypeVar("T")


class AuthThrottle:
    def __init__(
        self,
        clock: Callable[[], float] = time.monotonic,
        shared: Callable[[], SharedCounters | None] = lambda: None,
    ) -> None:
        self._clock, self._shared = clock, shared
        self._failed: dict[str, deque[float]] = {}
        self._limited: dict[str, float] = {}  # until when, as the store said
        self._known: dict[tuple[str, str], None] = {}

    async def record_failure(self, address: str, token_hash: str) -> None:
        """Count a failed attempt. Raise an ApiError if the address has too many."""
        network = _get_network(address)
        is_known = self._known.pop((network, token_hash), "") is None  # it was accepted until now
        shared = self._shared()
        if shared is None:
            is_limited = not self._count_failure(network)
        else:
            is_limited = self._clock() < self._limited.get(network, 0.0) or not await self._count(shared, network)
        if is_limited and not is_known:
            raise _limited_error()

    async def record_success(self, address: str, token_hash: str) -> None:
        """Remember an accepted token. Raise an ApiError if it is a new one and the address has too many failures."""
        network = _get_network(address)
        if (network, token_hash) in self._known:
            return
        shared = self._shared()
        if shared is None:
            is_limited = self._is_limited(network)
        else:
            is_limited = await _wait_for(_is_limited_everywhere, shared, network, token_hash)
        if is_limited:
            raise _limited_error()
        self._known[network, token_hash] = None
        _trim(self._known, MAX_KNOWN_TOKENS)

    async def _count(self, shared: SharedCounters, network: str) -> bool:
        """Count a failure in the store, unless there are too many: then it is not asked until some are forgotten."""
        seconds = await _wait_for(shared.take, FAILED + network, MAX_FAILURES, WINDOW_SECONDS)
        if seconds > 0:
            self._limited[network] = self._clock() + seconds
            _trim(self._limited, MAX_ADDRESSES)
        return seconds == 0

    def _is_limited(self, network: str) -> bool:
        failed = self._failed.get(network)
        return failed is not None and len(failed) == MAX_FAILURES and self._clock() - failed[0] < WINDOW_SECONDS

    def _count_failure(self, network: str) -> bool:
        """Count a failure, unless there are too many. With too many addresses, the least recent one is dropped."""
        if self._is_limited(network):
            return False
        times = self._failed.pop(network, None) or deque(maxlen=MAX_FAILURES)
        times.append(self._clock())
        self._failed[network] = times
        _trim(self._failed, MAX_ADDRESSES)
        return True


def _is_limited_everywhere(shared: SharedCounters, network: str, token_hash: str) -> bool:
    """Return whether the address has too many failures on all replicas, and none has accepted the token from it."""
    accepted = f"{ACCEPTED}{network} {token_hash}"
    if shared.count(FAILED + network, WINDOW_SECONDS) >= MAX_FAILURES and not shared.count(accepted, ACCEPTED_SECONDS):
        return True
    shared.take(accepted, 1, ACCEPTED_SECONDS / 2)  # it is renewed, while the token is in use
    return False


async def _wait_for(function: Callable[..., T], *arguments: Any) -> T:
    """Ask the store in a thread. Without it, nobody is accepted: an attacker could have any number of attempts."""
    try:
        return await anyio.to_thread.run_sync(function, *arguments)
    except StorageError as error:
        raise ApiError("busy", f"cannot check tokens: {error.message}", {"reason": STORE_AWAY}) from None


def _limited_error() -> ApiError:
    return ApiError("rate_limited", "too many failed attempts from this address: retry in one minute")


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
