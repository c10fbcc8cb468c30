"""The shared HTTP client: requests to allowed hosts and addresses, with a timeout and a size limit.

Only connections are kept between requests: no cookies, no credentials. Proxies and passwords are not read from the
environment. `sending` sends requests; it is imported with the first one.
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
    """The HTTP client. `resolve` returns the addresses of a host, `own_ports` the ports of OneTool's own servers."""

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
        timeout: float,  # noqa: ASYNC109 - for the whole request with its redirects
        max_bytes: int,
        follow_redirects: bool = True,
        rules: HostRules | None = None,
    ) -> Response:
        """Send a request. A URL must be allowed by `rules` and by the rules of this client."""
        if SENDING not in sys.modules:  # importing takes long enough to block the event loop
            await anyio.to_thread.run_sync(importlib.import_module, SENDING)
        from onetool.net.outgoing import Outgoing
        from onetool.net.sending import Terms

        outgoing = Outgoing.of(request)
        asked = (self.rules,) if rules is None else (self.rules, rules)
        terms = Terms(asked, max_bytes, MAX_REDIRECTS if follow_redirects else 0, request.secret_query)
        async with self._sending() as sender:
            with anyio.move_on_after(timeout):
                return await sender.follow(outgoing, terms)
        raise ToolTimeout(f"{outgoing.name} timed out after {timeout:g} s", timeout_ms=round(timeout * 1000))

    async def close(self) -> None:
        """Close the connections, or let the requests in flight finish under their rules and close them then."""
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
            raise NetworkError(f"cannot resolve host {host}: no address found", reason="connect") from None
