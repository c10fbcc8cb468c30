"""What becomes of a request: it is checked, sent, redirected and checked again, and its answer read.

This loads the HTTP library, so that it is imported when something is sent.
"""

import functools
import time
from contextlib import aclosing
from dataclasses import dataclass
from typing import Final

import anyio
import anyio.to_thread
import httpcore2

from ot.errors import ConfigError, NetworkError
from ot.net import transport
from ot.net.bodies import encodings_of, read, too_large
from ot.net.exchange import Resolve, Response
from ot.net.hosts import HostRules
from ot.net.outgoing import REDIRECTS, Outgoing
from ot.net.own_servers import OwnPorts
from ot.net.urls import Target

UPGRADED: Final = 101
WITHOUT_A_BODY: Final = frozenset({204, 304})
Headers = tuple[tuple[str, str], ...]


@dataclass(frozen=True, slots=True)
class Terms:
    """What holds for a request and for all that it is redirected to."""

    rules: tuple[HostRules, ...]
    max_bytes: int
    redirects: int
    secret_query: frozenset[str]

    def admit(self, target: Target) -> None:
        for rules in self.rules:
            rules.admit(target)

    @property
    def public_only(self) -> bool:
        return not all(rules.allow_private_addresses for rules in self.rules)

    def location(self, status: int, headers: Headers) -> str | None:
        """Where to go on to, if anywhere."""
        return _first(headers, "location") if self.redirects and status in REDIRECTS else None


class Sender:
    def __init__(self, resolve: Resolve, own_ports: OwnPorts = tuple) -> None:
        self._resolve, self._own_ports = resolve, own_ports
        self._opening = anyio.Lock()
        self._pools: dict[tuple[str, bool], httpcore2.AsyncConnectionPool] = {}

    async def close(self) -> None:
        pools, self._pools = list(self._pools.values()), {}
        with anyio.CancelScope(shield=True):
            for pool in pools:
                await pool.aclose()

    async def follow(self, outgoing: Outgoing, terms: Terms) -> Response:
        started, follows = time.perf_counter(), 0
        while True:
            terms.admit(outgoing.target)
            try:
                status, headers, body = await self._exchange(outgoing, terms)
            except NetworkError as error:
                raise _after(follows, error) from None
            location = terms.location(status, headers)
            if location is None:
                shown = outgoing.target.shown(terms.secret_query)
                return Response(status, headers, body, shown, time.perf_counter() - started)
            if follows == terms.redirects:
                raise NetworkError(f"{outgoing.name}: more than {follows} redirects", reason="redirects")
            outgoing, follows = outgoing.redirected(status, location), follows + 1

    async def _exchange(self, outgoing: Outgoing, terms: Terms) -> tuple[int, Headers, bytes]:
        """One request and its answer; the body of a redirect that will be followed is nobody's business."""
        pool = await self._pool(outgoing.target.scheme, terms.public_only)
        with transport.explained(outgoing.name):
            async with aclosing(await transport.answered(pool, outgoing)) as response:
                status = response.status
                headers = tuple((name.decode("ascii", "replace"), _text(value)) for name, value in response.headers)
                if status == UPGRADED:
                    raise NetworkError(f"{outgoing.name} wants to speak another protocol", reason="protocol")
                if terms.location(status, headers) is not None:
                    return status, headers, b""
                _refuse_announced(outgoing, status, headers, terms.max_bytes)
                encodings = encodings_of(value for name, value in headers if name.lower() == "content-encoding")
                return status, headers, await read(response.aiter_stream(), encodings, terms.max_bytes)

    async def _pool(self, scheme: str, public_only: bool) -> httpcore2.AsyncConnectionPool:
        """Kept apart, so that who may reach public addresses only never meets a connection to another."""
        key = (scheme, public_only)
        async with self._opening:
            if key not in self._pools:
                opening = functools.partial(
                    transport.open_pool, self._resolve, scheme, public_only=public_only, own_ports=self._own_ports
                )
                try:
                    self._pools[key] = await anyio.to_thread.run_sync(opening)
                except OSError as error:
                    raise ConfigError(f"The certificates of this machine cannot be read: {error}") from None
            return self._pools[key]


def _after(follows: int, error: NetworkError) -> NetworkError:
    """Once a request has been answered, even by a redirect, it is not one of which nothing was sent."""
    if follows and error.fields.get("reason") == "connect":
        return NetworkError(f"After a redirect: {error.message}", **{**error.fields, "reason": "redirects"})
    return error


def _refuse_announced(outgoing: Outgoing, status: int, headers: Headers, limit: int) -> None:
    """What says of itself that it is too large is not waited for."""
    length = _first(headers, "content-length") or ""
    has_body = outgoing.method != "HEAD" and status not in WITHOUT_A_BODY
    if has_body and length.isdecimal() and int(length[:20]) > limit:
        raise too_large(limit)


def _first(headers: Headers, wanted: str) -> str | None:
    return next((value for name, value in headers if name.lower() == wanted), None)


def _text(value: bytes) -> str:
    try:
        return value.decode("utf-8")
    except UnicodeDecodeError:
        return value.decode("latin-1")
