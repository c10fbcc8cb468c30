"""Checks of the request head before authentication, and the throttle for failed attempts."""

import re
import time
from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass
from functools import lru_cache
from ipaddress import IPv4Network, IPv6Address, IPv6Network, ip_address, ip_network
from typing import Any, TypeVar

from anyio.to_thread import run_sync as run_in_thread
from starlette.datastructures import Headers
from starlette.types import Scope

from onetool.errors import StorageError
from onetool.net.client import OUTGOING_HEADER
from onetool.net.hosts import parse_address
from onetool.server.http.errors import ApiError
from onetool.server.http.live_tokens import STORE_AWAY
from onetool.state.counters import Counters
from onetool.util.bounded_dict import BoundedDict
from onetool.util.clock_watch import Clock
from onetool.util.running_servers import is_loopback

MAX_HEAD_BYTES = 16 << 10
LOCAL_NAMES = frozenset({"localhost", "127.0.0.1", "[::1]"})
HOST_PATTERN = re.compile(
    r"(\[[0-9a-f:.]+\]|[a-z0-9._-]+)(?::[0-9]{1,5})?", re.ASCII | re.IGNORECASE
)
# Headers that clients do not send themselves: they show that a proxy, or a tool of OneTool,
# forwarded the request.
PROXY_HEADERS = frozenset(
    {
        "cdn-loop", "client-ip", "forwarded", "max-forwards", "surrogate-capability", "true-client-ip", "via",
        "x-backend-server", "x-host", "x-request-start", "x-rewrite-url", "x-scheme", "x-served-by", "x-url-scheme",
        *(OUTGOING_HEADER.lower(),),
    }
)  # fmt: skip
PROXY_HEADER_PREFIXES = (
    "akamai-", "cf-", "cloudfront-", "fastly-", "fly-", "forwarded-", "incap-", "ngrok-", "proxy-", "remote-",
    "ssl-", "tailscale-", "x-akamai", "x-amz-cf-", "x-amzn-", "x-appengine", "x-arr-", "x-azure", "x-bluecoat",
    "x-cache", "x-cdn", "x-client-cert", "x-client-ip", "x-clientip", "x-cloud", "x-cluster", "x-edge", "x-envoy",
    "x-forward", "x-goog", "x-haproxy", "x-heroku", "x-iinfo", "x-istio", "x-kong", "x-nf-", "x-nginx",
    "x-original", "x-originating", "x-proxy", "x-railway", "x-real", "x-remote", "x-squid", "x-ssl", "x-sucuri",
    "x-traefik", "x-varnish", "x-vercel", "x-wap", "x-zscaler",
)  # fmt: skip
# Headers of clients, which may contain version numbers and addresses.
CLIENT_HEADERS = frozenset(
    {"authorization", "cookie", "host", "last-event-id", "origin", "referer", "user-agent"}
)
CLIENT_HEADER_PREFIXES = ("accept", "if-", "mcp-", "sec-")
ADDRESS_PATTERN = re.compile(
    r"(?<![A-Za-z0-9./])(?:[0-9]{1,3}(?:\.[0-9]{1,3}){3}(?!\.?[A-Za-z0-9])|[0-9A-Fa-f:]{3,39}(?![A-Za-z0-9:]))",
    re.ASCII,
)
ADDRESS_LIST_PATTERN = re.compile(r"[0-9a-f:.,;=\[\]\"'\sfor]{2,}", re.ASCII | re.IGNORECASE)
MAX_FAILURES = 20
WINDOW_SECONDS = 60.0
# For which replicas know that a token was accepted from an address.
ACCEPTED_SECONDS = 30 * 86_400.0
MAX_ADDRESSES = 10_000
MAX_ACCEPTED = 10_000
IPV6_PREFIX_BITS = 64  # one host usually controls a whole /64 network
FAILED = "failed sign-in "
ACCEPTED = "accepted sign-in "
T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Bind:
    """The address that the server listens on."""

    host: str
    port: int

    @property
    def is_loopback(self) -> bool:
        return is_loopback(self.host)

    @property
    def url(self) -> str:
        host = f"[{self.host}]" if ":" in self.host and not self.host.startswith("[") else self.host
        return f"http://{host}:{self.port}"


def read_bind(scope: Scope) -> Bind:
    """Return the address of the connection; without one (a Unix socket), requests need a token."""
    host, port = scope.get("server") or ("", None)
    return Bind(str(host), port or 0)


def is_local_name(name: str, bind: Bind) -> bool:
    """Tell whether this is a name of the local machine. Other names come from a proxy."""
    return name in LOCAL_NAMES or name == bind.host.lower()


def find_base_url(scope: Scope, bind: Bind, public_url: str | None) -> str | None:
    """Return the server's URL: from the settings, or on loopback from the Host header."""
    if public_url is not None:
        return public_url.rstrip("/")
    host = Headers(scope=scope).get("host", "").lower()
    match = HOST_PATTERN.fullmatch(host)
    return (
        f"http://{host}" if match and bind.is_loopback and is_local_name(match[1], bind) else None
    )


def check_head(headers: Headers, scope: Scope) -> None:
    """Check the framing and size of the head.

    Without this, a head in one packet could have any size.
    """
    if "transfer-encoding" in headers and "content-length" in headers:
        # two lengths for one body allow request smuggling through a proxy: close the connection
        message = "conflicting headers: send either Transfer-Encoding or Content-Length, not both"
        raise ApiError("invalid", message, headers={"connection": "close"})
    fields = sum(len(name) + len(value) + len(b": \r\n") for name, value in scope["headers"])
    if (
        fields + len(scope.get("raw_path", b"")) + len(scope.get("query_string", b""))
        > MAX_HEAD_BYTES
    ):
        raise ApiError(
            "too_large",
            f"path, query and headers exceed {MAX_HEAD_BYTES} bytes",
            {"limit": MAX_HEAD_BYTES},
        )
    if scope.get("http_version", "1.1") not in {"1.0", "1.1"}:
        raise ApiError("invalid", "unsupported HTTP version: expected HTTP/1.1")


def check_origin(headers: Headers, scope: Scope) -> None:
    """Reject cross-origin requests."""
    host = headers["host"].lower()
    origins = headers.getlist("origin")
    if origins and (
        len(origins) > 1 or origins[0].lower() not in {f"http://{host}", f"https://{host}"}
    ):
        raise ApiError("forbidden", "cross-origin request rejected (Origin header)")
    sites = headers.getlist("sec-fetch-site")
    # following a link shows the response to the user, not to the other site
    is_link = (
        headers.get("sec-fetch-mode") == "navigate" and headers.get("sec-fetch-dest") == "document"
    )
    if not all(site in {"same-origin", "none"} for site in sites) and not (
        is_link and scope["method"] == "GET"
    ):
        raise ApiError("forbidden", "cross-origin request rejected (Sec-Fetch-Site header)")


def check_path(scope: Scope) -> None:
    """Reject paths that proxies and servers could interpret differently."""
    path = scope["path"]
    if b"%2f" in scope.get("raw_path", b"").lower():
        raise ApiError("invalid", "invalid path: encoded slashes (%2F) are not allowed")
    if any(character < " " for character in path):
        raise ApiError("invalid", "invalid path: control characters are not allowed")
    if not path.startswith("/"):
        raise ApiError(
            "invalid", "invalid path: it must begin with '/' (this server is not a proxy)"
        )
    if any(part in {".", ".."} for part in path.split("/")):
        raise ApiError("invalid", "invalid path: '.' and '..' segments are not allowed")


def find_client_address(headers: Headers, peer: str, trusted_proxies: Collection[str]) -> str:
    """Return the client's address: the peer, or the last one before the trusted proxies.

    Only what a trusted proxy added to X-Forwarded-For counts; what is before that, anybody could
    have sent.
    """
    if not trusted_proxies:
        return peer
    forwarded = ",".join(headers.getlist("x-forwarded-for")).split(",")
    networks = [ip_network(text) for text in trusted_proxies]
    address = peer
    for text in reversed(forwarded):
        sender = _remove_port(text.strip())
        if not _is_in_networks(address, networks) or parse_address(sender) is None:
            break
        address = sender
    return address


def _is_in_networks(text: str, networks: Iterable[IPv4Network | IPv6Network]) -> bool:
    address = parse_address(text)
    mapped = getattr(address, "ipv4_mapped", None) or address
    return mapped is not None and any(mapped in network for network in networks)


def find_proxy_header(headers: Headers) -> str | None:
    """Return the name of a header that shows that a proxy forwarded the request, if there is one.

    Any other header with an IP address in its value counts too: unknown proxies report the sender
    that way.
    """
    for name, value in headers.items():
        is_client_header = name in CLIENT_HEADERS or name.startswith(CLIENT_HEADER_PREFIXES)
        if _is_proxy_header(name) or (not is_client_header and _contains_address(value)):
            return name
    return None


@lru_cache(maxsize=1024)
def _is_proxy_header(name: str) -> bool:
    return name in PROXY_HEADERS or name.startswith(PROXY_HEADER_PREFIXES)


def _contains_address(value: str) -> bool:
    if any(_is_address(match[0]) for match in ADDRESS_PATTERN.finditer(value)):
        return True
    if not ADDRESS_LIST_PATTERN.fullmatch(value):
        return False
    return any(
        _is_address(part.lower().strip().removeprefix("for=").strip("\"'"))
        for part in re.split("[,;]", value)
    )


def _is_address(text: str) -> bool:
    """Tell whether the text is an address, such as 192.0.2.1:8080 or [2001:db8::1]:443."""
    return parse_address(_remove_port(text)) is not None


def _remove_port(text: str) -> str:
    bare = text[1:].partition("]")[0] if text.startswith("[") else text
    return bare.rpartition(":")[0] if bare.count(":") == 1 else bare


# --- throttle -------------------------------------------------------------------------------------


class AuthThrottle:
    """The failed attempts of all addresses, in `counters`."""

    def __init__(self, counters: Callable[[], Counters], clock: Clock = time.monotonic) -> None:
        self._get_counters = counters
        self._clock = clock
        # Until when, as the counters said.
        self._limited: BoundedDict[str, float] = BoundedDict(MAX_ADDRESSES)
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
        """Count a failure; after too many, rely on memory until some are forgotten."""
        take = self._get_counters().take
        seconds = await _wait_for(take, FAILED + network, MAX_FAILURES, WINDOW_SECONDS)
        if seconds > 0:
            self._limited[network] = self._clock() + seconds
        return seconds == 0


def _is_limited(counters: Counters, network: str, token_hash: str) -> bool:
    """Return whether an address failed too often and no replica accepted a token from it."""
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
        parsed = ip_address(address)
    except ValueError:
        return address
    if isinstance(parsed, IPv6Address) and parsed.ipv4_mapped is None:
        bare = str(parsed).partition("%")[0]
        return str(ip_network((bare, IPV6_PREFIX_BITS), strict=False))
    return address
