"""Sign-in requests.

Authorization servers and their documents are hostile until proven otherwise.

A URL must be https; plain http is accepted between a server on loopback and an authorization server
on loopback. No redirect is followed, and size and time are limited. Private addresses are reached
only if the server itself has the same host, or is on loopback too, or if the settings allow private
addresses.
"""

import json
from typing import Any

from onetool.errors import NetworkError
from onetool.net import HostRules, Net, Request, Response
from onetool.net.hosts import Target, parse_target
from onetool.util.running_servers import is_loopback

MAX_DOCUMENT_BYTES = 256 << 10
TIMEOUT_SECONDS = 15.0
FORM = ("Content-Type", "application/x-www-form-urlencoded")
ACCEPT = ("Accept", "application/json")
HELLO = {
    "protocolVersion": "2025-11-25",
    "capabilities": {},
    "clientInfo": {"name": "onetool", "version": "1"},
}
# Requests that find out whether an MCP server wants a token. Some servers accept one of these
# without a token.
PROBES = (
    {"jsonrpc": "2.0", "id": 1, "method": "tools/list", "params": {}},
    {"jsonrpc": "2.0", "id": 1, "method": "initialize", "params": HELLO},
)


class GuardedHttp:
    """Sends sign-in requests to one target."""

    def __init__(self, net: Net, url: str, *, allow_private_addresses: bool = False) -> None:
        self._net = net
        self._allow_private_addresses = allow_private_addresses
        self._home = parse_target(url)
        if self._home.scheme != "https" and not is_loopback(self._home.host):
            raise NetworkError(
                f"cannot sign in to {self._home.origin}: its URL is plain http, so everybody on the"
                " network could read the token",
                hint="use https; plain http is possible on loopback only",
                reason="host_not_allowed",
            )

    def check_url(self, url: str, source: str) -> Target:
        """Return the parsed URL.

        Raise if it must not be requested or opened; `source` is the field that has it.
        """
        try:
            target = parse_target(url)
        except NetworkError as error:
            raise NetworkError(
                f"{source} is not a valid URL: {error.message}", reason="host_not_allowed"
            ) from None
        if target.scheme != "https" and not self._is_local(target):
            raise NetworkError(
                f"{source} is {target.origin}, which is not https: it is not requested",
                reason="host_not_allowed",
            )
        return target

    def _is_local(self, target: Target) -> bool:
        """Return whether both the target and the server itself are on loopback."""
        return is_loopback(target.host) and is_loopback(self._home.host)

    async def get(self, url: str, source: str) -> Response:
        return await self.send(Request("GET", url, (ACCEPT,)), source)

    async def post_json(
        self, url: str, body: Any, source: str, headers: tuple[tuple[str, str], ...] = ()
    ) -> Response:
        content = json.dumps(body).encode()
        sent = (
            ("Content-Type", "application/json"),
            ("Accept", "application/json, text/event-stream"),
            *headers,
        )
        return await self.send(Request("POST", url, sent, content), source)

    async def send(self, request: Request, source: str) -> Response:
        target = self.check_url(request.url, source)
        private = (
            self._allow_private_addresses
            or target.host == self._home.host
            or self._is_local(target)
        )
        rules = HostRules((target.authority,), allow_private_addresses=private)
        return await self._net.send(
            request,
            timeout=TIMEOUT_SECONDS,
            max_bytes=MAX_DOCUMENT_BYTES,
            follow_redirects=False,
            rules=(rules,),
        )
