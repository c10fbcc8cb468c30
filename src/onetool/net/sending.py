"""Send requests: check the target, follow redirects, checking each of them, and read the response.

This imports the HTTP library, so it is only imported with the first request.
"""

import functools
import time
from contextlib import aclosing
from dataclasses import dataclass, replace
from typing import Final

import anyio
import anyio.to_thread
import httpcore2

from onetool.errors import ConfigError, NetworkError
from onetool.net import transport
from onetool.net.bodies import get_encodings, read, too_large
from onetool.net.exchange import Resolve, Response
from onetool.net.hosts import HostRules
from onetool.net.outgoing import REDIRECTS, Outgoing
from onetool.net.transport import OwnPorts
from onetool.net.urls import Target

UPGRADED: Final = 101
WITHOUT_A_BODY: Final = frozenset({204, 304})


@dataclass(frozen=True, slots=True)
class Terms:
    """Limits and rules for a request and its redirects."""

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

    def location(self, response: Response) -> str | None:
        """Return the URL that a redirect to follow leads to, or None."""
        return response.header("location") if self.redirects and response.status in REDIRECTS else None


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
                response = await self._exchange(outgoing, terms)
            except NetworkError as error:
                # `connect` means that nothing was sent, which is not true after a redirect.
                if not follows or error.fields.get("reason") != "connect":
                    raise
                fields = {**error.fields, "reason": "redirects"}
                raise NetworkError(f"after a redirect: {error.message}", **fields) from None
            location = terms.location(response)
            if location is None:
                return replace(response, seconds=time.perf_counter() - started)
            if follows == terms.redirects:
                raise NetworkError(f"{outgoing.name}: more than {follows} redirects", reason="redirects")
            outgoing, follows = outgoing.redirected(response.status, location), follows + 1

    async def _exchange(self, outgoing: Outgoing, terms: Terms) -> Response:
        """Send one request and read the response. The body of a redirect that is followed is not read."""
        pool = await self._pool(outgoing.target.scheme, terms.public_only)
        with transport.convert_errors(outgoing.name):
            async with aclosing(await transport.send(pool, outgoing)) as answer:
                headers = tuple((name.decode("ascii", "replace"), _text(value)) for name, value in answer.headers)
                response = Response(answer.status, headers, b"", outgoing.target.shown(terms.secret_query), 0.0)
                if response.status == UPGRADED:
                    raise NetworkError(
                        f"{outgoing.name}: the server switched protocols, which is not supported", reason="protocol"
                    )
                if terms.location(response) is not None:
                    return response
                has_body = outgoing.method != "HEAD" and response.status not in WITHOUT_A_BODY
                length = response.header("content-length") or ""
                if has_body and length.isdecimal() and int(length[:20]) > terms.max_bytes:
                    raise too_large(terms.max_bytes)
                return replace(
                    response, body=await read(answer.aiter_stream(), get_encodings(headers), terms.max_bytes)
                )

    async def _pool(self, scheme: str, public_only: bool) -> httpcore2.AsyncConnectionPool:
        """Return the pool. Requests limited to public addresses have their own, so that they share no connection."""
        key = (scheme, public_only)
        async with self._opening:
            if key not in self._pools:
                opening = functools.partial(
                    transport.open_pool, self._resolve, scheme, public_only=public_only, own_ports=self._own_ports
                )
                try:
                    self._pools[key] = await anyio.to_thread.run_sync(opening)
                except OSError as error:
                    raise ConfigError(f"cannot read the TLS certificates of this machine: {error}") from None
            return self._pools[key]


def _text(value: bytes) -> str:
    try:
        return value.decode("utf-8")
    except UnicodeDecodeError:
        return value.decode("latin-1")
