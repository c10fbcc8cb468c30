"""What becomes of a request: it is checked, sent, redirected and checked again, and its answer read.

This loads the HTTP library, so that it is imported when something is sent.
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
from onetool.net.bodies import encodings_of, read, too_large
from onetool.net.exchange import Resolve, Response
from onetool.net.hosts import HostRules
from onetool.net.outgoing import REDIRECTS, Outgoing
from onetool.net.transport import OwnPorts
from onetool.net.urls import Target

UPGRADED: Final = 101
WITHOUT_A_BODY: Final = frozenset({204, 304})


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

    def location(self, response: Response) -> str | None:
        """Where to go on to, if anywhere."""
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
                # Once a request has been answered, even by a redirect, it is not one of which nothing was sent.
                if not follows or error.fields.get("reason") != "connect":
                    raise
                fields = {**error.fields, "reason": "redirects"}
                raise NetworkError(f"After a redirect: {error.message}", **fields) from None
            location = terms.location(response)
            if location is None:
                return replace(response, seconds=time.perf_counter() - started)
            if follows == terms.redirects:
                raise NetworkError(f"{outgoing.name}: more than {follows} redirects", reason="redirects")
            outgoing, follows = outgoing.redirected(response.status, location), follows + 1

    async def _exchange(self, outgoing: Outgoing, terms: Terms) -> Response:
        """One request and its answer; the body of a redirect that will be followed is nobody's business."""
        pool = await self._pool(outgoing.target.scheme, terms.public_only)
        with transport.explained(outgoing.name):
            async with aclosing(await transport.answered(pool, outgoing)) as answer:
                headers = tuple((name.decode("ascii", "replace"), _text(value)) for name, value in answer.headers)
                response = Response(answer.status, headers, b"", outgoing.target.shown(terms.secret_query), 0.0)
                if response.status == UPGRADED:
                    raise NetworkError(f"{outgoing.name} wants to speak another protocol", reason="protocol")
                if terms.location(response) is not None:
                    return response
                has_body = outgoing.method != "HEAD" and response.status not in WITHOUT_A_BODY
                length = response.header("content-length") or ""
                if has_body and length.isdecimal() and int(length[:20]) > terms.max_bytes:
                    raise too_large(terms.max_bytes)
                return replace(response, body=await read(answer.aiter_stream(), encodings_of(headers), terms.max_bytes))

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


def _text(value: bytes) -> str:
    try:
        return value.decode("utf-8")
    except UnicodeDecodeError:
        return value.decode("latin-1")
