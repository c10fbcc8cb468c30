"""The shared HTTP client: requests to allowed hosts and addresses, with a timeout and a size limit.

Only connections are kept between requests: no cookies, no credentials. Proxies and passwords are
not read from the environment. `transport` imports the HTTP library, so it is only imported with the
first request.
"""

import importlib
import socket
import sys
import time
from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import anyio
from anyio.to_thread import run_sync as run_in_thread

from onetool.errors import NetworkError, ToolTimeout
from onetool.net.hosts import HostRules
from onetool.net.messages import REDIRECT_STATUSES, ReadStream, Request, Resolve, Response
from onetool.util.text import pluralize

if TYPE_CHECKING:
    from onetool.net.transport import Connections, OwnPorts

TRANSPORT_MODULE = "onetool.net.transport"
MAX_REDIRECTS = 10
MAX_LOOKUPS = 32


@dataclass(frozen=True, slots=True)
class RequestLimits:
    """Limits and rules for a request and its redirects."""

    rules: tuple[HostRules, ...]
    max_bytes: int
    max_redirects: int
    read_stream: ReadStream | None = None

    @property
    def private_advice(self) -> str:
        """Advice to allow private addresses; empty if they are allowed."""
        limited = (
            rules.private_advice for rules in self.rules if not rules.allow_private_addresses
        )
        return next(limited, "")

    def find_location(self, response: Response) -> str | None:
        """Return the target of a redirect to follow, or None."""
        return (
            response.header("location")
            if self.max_redirects and response.status in REDIRECT_STATUSES
            else None
        )


class Net:
    """The HTTP client.

    `resolve` returns the addresses of a host, `own_ports` the ports of OneTool's own servers.
    """

    def __init__(
        self, rules: HostRules, *, resolve: Resolve | None = None, own_ports: "OwnPorts" = tuple
    ) -> None:
        self.rules = rules
        self._own_ports = own_ports
        self._resolve = resolve or self._resolve_host
        self._lookup_limiter = anyio.CapacityLimiter(MAX_LOOKUPS)
        self._connections: Connections | None = None
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

        `read_stream` reads a successful response that is an event stream; it then has an empty
        body.
        """
        if (
            TRANSPORT_MODULE not in sys.modules
        ):  # importing takes long enough to block the event loop
            await run_in_thread(importlib.import_module, TRANSPORT_MODULE)
        request = request.complete()
        redirects = MAX_REDIRECTS if follow_redirects else 0
        limits = RequestLimits((self.rules, *rules), max_bytes, redirects, read_stream)
        self._requests += 1
        try:
            with anyio.move_on_after(timeout):
                return await self._send(request, limits)
        finally:
            self._requests -= 1
            if self._is_closed:
                await self.close()
        raise ToolTimeout(
            f"{request.label} timed out after {timeout:g} s", timeout_ms=round(timeout * 1000)
        )

    async def close(self) -> None:
        """Close the connections, or let the requests in flight finish under their rules and close
        them then.
        """
        self._is_closed = True
        if self._connections is not None and not self._requests:
            await self._connections.close()

    async def _send(self, request: Request, limits: RequestLimits) -> Response:
        """Send the request and follow redirects, each of which is checked like the first request."""
        from onetool.net.transport import Connections

        connections = self._connections = self._connections or Connections(
            self._resolve, self._own_ports
        )
        started = time.perf_counter()
        redirects = 0
        while True:
            for rules in limits.rules:
                rules.check_target(request.target)
            try:
                response = await connections.send(request, limits)
            except NetworkError as error:
                # `connect` means that nothing was sent, which is not true after a redirect.
                if not redirects or error.fields.get("reason") != "connect":
                    raise
                fields = {**error.fields, "reason": "redirects"}
                raise NetworkError(f"after a redirect: {error.message}", **fields) from None
            location = limits.find_location(response)
            if location is None:
                return replace(response, seconds=time.perf_counter() - started)
            if redirects == limits.max_redirects:
                raise NetworkError(
                    f"{request.label}: more than {pluralize(redirects, 'redirect')}",
                    reason="redirects",
                )
            request = request.redirect(response.status, location)
            redirects = redirects + 1

    async def _resolve_host(self, host: str, port: int) -> list[str]:
        def look_up() -> list[str]:
            infos = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
            return list(dict.fromkeys(str(info[4][0]) for info in infos))

        try:
            return await run_in_thread(
                look_up, abandon_on_cancel=True, limiter=self._lookup_limiter
            )
        except (OSError, UnicodeError):
            raise NetworkError(
                f"cannot resolve host {host}: no address found", reason="connect"
            ) from None
