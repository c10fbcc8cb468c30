"""The shared HTTP client: requests to allowed hosts and addresses, with a timeout and a size limit.

Only connections are kept between requests: no cookies, no credentials. Proxies and passwords are not read from the
environment. `sender` sends requests; it is imported with the first one.
"""

import importlib
import socket
import sys
from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING

import anyio
from anyio.to_thread import run_sync as run_in_thread

from onetool.errors import NetworkError, ToolTimeout
from onetool.net.hosts import HostRules
from onetool.net.messages import ReadStream, Request, Resolve, Response

if TYPE_CHECKING:
    from onetool.net.sender import Sender
    from onetool.net.transport import OwnPorts

SENDER_MODULE = "onetool.net.sender"
MAX_REDIRECTS = 10
MAX_LOOKUPS = 32


class Net:
    """The HTTP client. `resolve` returns the addresses of a host, `own_ports` the ports of OneTool's own servers."""

    def __init__(self, rules: HostRules, *, resolve: Resolve | None = None, own_ports: "OwnPorts" = tuple) -> None:
        self.rules = rules
        self._own_ports = own_ports
        self._resolve = resolve or self._resolve_host
        self._lookup_limiter = anyio.CapacityLimiter(MAX_LOOKUPS)
        self._sender: Sender | None = None
        self._requests = 0
        self._is_closed = False

    async def send(
        self,
        request: Request,
        *,
        timeout: float,  # noqa: ASYNC109 - for the whole request with its redirects
        max_bytes: int,
        follow_redirects: bool = True,
        rules: Iterable[HostRules] = (),
        read_stream: ReadStream | None = None,
    ) -> Response:
        """Send a request. A URL must be allowed by all `rules` and by those of this client.

        `read_stream` reads a successful response that is an event stream; it then has an empty body.
        """
        if SENDER_MODULE not in sys.modules:  # importing takes long enough to block the event loop
            await run_in_thread(importlib.import_module, SENDER_MODULE)
        from onetool.net.outgoing import OutgoingRequest
        from onetool.net.sender import RequestLimits

        outgoing = OutgoingRequest.from_request(request)
        redirects = MAX_REDIRECTS if follow_redirects else 0
        limits = RequestLimits((self.rules, *rules), max_bytes, redirects, request.secret_query, read_stream)
        async with self._use_sender() as sender:
            with anyio.move_on_after(timeout):
                return await sender.send(outgoing, limits)
        raise ToolTimeout(f"{outgoing.name} timed out after {timeout:g} s", timeout_ms=round(timeout * 1000))

    async def close(self) -> None:
        """Close the connections, or let the requests in flight finish under their rules and close them then."""
        self._is_closed = True
        if self._sender is not None and not self._requests:
            await self._sender.close()

    @asynccontextmanager
    async def _use_sender(self) -> AsyncIterator["Sender"]:
        from onetool.net.sender import Sender

        sender = self._sender = self._sender or Sender(self._resolve, self._own_ports)
        self._requests += 1
        try:
            yield sender
        finally:
            self._requests -= 1
            if self._is_closed and not self._requests:
                await sender.close()

    async def _resolve_host(self, host: str, port: int) -> list[str]:
        def look_up() -> list[str]:
            infos = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
            return list(dict.fromkeys(str(info[4][0]) for info in infos))

        try:
            return await run_in_thread(look_up, abandon_on_cancel=True, limiter=self._lookup_limiter)
        except (OSError, UnicodeError):
            raise NetworkError(f"cannot resolve host {host}: no address found", reason="connect") from None
