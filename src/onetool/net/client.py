"""The client that everybody shares: to an allowed host, at an allowed address, in a given time, up to a given size.

Nothing is kept between requests but connections: no cookies, no credentials. Neither proxies nor passwords are taken
from the environment. How a request is sent is in `sending`, which is loaded with the first.
"""

import importlib
import socket
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Final

import anyio
import anyio.to_thread

from onetool.errors import NetworkError, ToolTimeout
from onetool.net.exchange import Request, Resolve, Response
from onetool.net.hosts import HostRules

if TYPE_CHECKING:
    from onetool.net.sending import Sender
    from onetool.net.transport import OwnPorts

SENDING: Final = "onetool.net.sending"
MAX_REDIRECTS: Final = 10
LOOKUPS: Final = 32


class Net:
    """`resolve` gives the addresses of a host; tests bring their own. `own_ports` are those of OneTool's servers."""

    def __init__(self, rules: HostRules, *, resolve: Resolve | None = None, own_ports: "OwnPorts" = tuple) -> None:
        self.rules, self._own_ports = rules, own_ports
        self._resolve = resolve or self._look_up
        self._lookups = anyio.CapacityLimiter(LOOKUPS)
        self._sender: Sender | None = None
        self._requests, self._is_closed = 0, False

    async def send(
        self,
        request: Request,
        *,
        timeout: float,  # noqa: ASYNC109 - for everything together, redirects too
        max_bytes: int,
        follow_redirects: bool = True,
        rules: HostRules | None = None,
    ) -> Response:
        """`rules` can only narrow: a URL must be allowed by them and by those of this Net."""
        if SENDING not in sys.modules:  # it takes a moment to import, and the loop is everybody's
            await anyio.to_thread.run_sync(importlib.import_module, SENDING)
        from onetool.net.outgoing import Outgoing
        from onetool.net.sending import Terms

        outgoing = Outgoing.of(request)
        asked = (self.rules,) if rules is None else (self.rules, rules)
        terms = Terms(asked, max_bytes, MAX_REDIRECTS if follow_redirects else 0, request.secret_query)
        async with self._sending() as sender:
            with anyio.move_on_after(timeout):
                return await sender.follow(outgoing, terms)
        raise ToolTimeout(f"{outgoing.name} did not answer within {timeout:g} s", timeout_ms=round(timeout * 1000))

    async def close(self) -> None:
        """At once, or when what is under way has ended: that goes on by the rules it began with."""
        self._is_closed = True
        if self._sender is not None and not self._requests:
            await self._sender.close()

    @asynccontextmanager
    async def _sending(self) -> AsyncIterator["Sender"]:
        from onetool.net.sending import Sender

        sender = self._sender = self._sender or Sender(self._resolve, self._own_ports)
        self._requests += 1
        try:
            yield sender
        finally:
            self._requests -= 1
            if self._is_closed and not self._requests:
                await sender.close()

    async def _look_up(self, host: str, port: int) -> list[str]:
        def look_up() -> list[str]:
            found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
            return list(dict.fromkeys(str(entry[4][0]) for entry in found))

        try:
            return await anyio.to_thread.run_sync(look_up, abandon_on_cancel=True, limiter=self._lookups)
        except (OSError, UnicodeError):
            raise NetworkError(f"Host {host} is not known: there is no address of it", reason="connect") from None
