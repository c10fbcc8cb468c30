"""Send requests: check the target, follow redirects, checking each of them, and read the response.

This imports the HTTP library, so it is only imported with the first request.
"""

import functools
import time
from contextlib import aclosing
from dataclasses import dataclass, replace

import anyio
import httpcore2
from anyio.to_thread import run_sync as run_in_thread

from onetool.errors import ConfigError, NetworkError
from onetool.net import transport
from onetool.net.hosts import HostRules
from onetool.net.messages import EVENT_STREAM, ReadStream, Resolve, Response
from onetool.net.outgoing import REDIRECT_STATUSES, OutgoingRequest
from onetool.net.response_body import decode_chunks, find_unsupported, get_encodings, read_body, too_large_error
from onetool.net.transport import OwnPorts
from onetool.net.urls import Target
from onetool.util.text import pluralize

SWITCHING_PROTOCOLS = 101
SUCCESS = 2  # the first digit of the status
STATUSES_WITHOUT_BODY = frozenset({204, 304})


@dataclass(frozen=True, slots=True)
class RequestLimits:
    """Limits and rules for a request and its redirects."""

    rules: tuple[HostRules, ...]
    max_bytes: int
    max_redirects: int
    secret_query: frozenset[str]
    read_stream: ReadStream | None = None

    def check_target(self, target: Target) -> None:
        for rules in self.rules:
            rules.check_target(target)

    @property
    def private_advice(self) -> str:
        """Advice to allow private addresses; empty if they are allowed."""
        limited = (rules.private_advice for rules in self.rules if not rules.allow_private_addresses)
        return next(limited, "")

    def find_location(self, response: Response) -> str | None:
        """Return the target of a redirect to follow, or None."""
        return response.header("location") if self.max_redirects and response.status in REDIRECT_STATUSES else None


class Sender:
    """The connection pools of a client, and the loop that follows redirects."""

    def __init__(self, resolve: Resolve, own_ports: OwnPorts = tuple) -> None:
        self._resolve = resolve
        self._own_ports = own_ports
        self._pool_lock = anyio.Lock()
        self._pools: dict[tuple[str, str], httpcore2.AsyncConnectionPool] = {}

    async def close(self) -> None:
        pools = list(self._pools.values())
        self._pools = {}
        with anyio.CancelScope(shield=True):
            for pool in pools:
                await pool.aclose()

    async def send(self, outgoing: OutgoingRequest, limits: RequestLimits) -> Response:
        started = time.perf_counter()
        redirects = 0
        while True:
            limits.check_target(outgoing.target)
            try:
                response = await self._send_once(outgoing, limits)
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
                raise NetworkError(f"{outgoing.name}: more than {pluralize(redirects, 'redirect')}", reason="redirects")
            outgoing = outgoing.redirect(response.status, location)
            redirects = redirects + 1

    async def _send_once(self, outgoing: OutgoingRequest, limits: RequestLimits) -> Response:
        """Send one request and read the response. The body of a redirect that is followed is not read."""
        pool = await self._get_pool(outgoing.target.scheme, limits.private_advice)
        with transport.convert_errors(outgoing.name):
            async with aclosing(await transport.send(pool, outgoing)) as raw:
                headers = tuple((name.decode("ascii", "replace"), _decode_header(value)) for name, value in raw.headers)
                response = Response(raw.status, headers, b"", outgoing.target.redact(limits.secret_query), 0.0)
                if response.status == SWITCHING_PROTOCOLS:
                    raise NetworkError(
                        f"{outgoing.name}: the server switched protocols, which is not supported", reason="protocol"
                    )
                if limits.find_location(response) is not None:
                    return response
                if limits.read_stream and response.status // 100 == SUCCESS and response.media_type == EVENT_STREAM:
                    chunks = decode_chunks(raw.aiter_stream(), get_encodings(headers), limits.max_bytes)
                    async with aclosing(chunks):
                        await limits.read_stream(chunks)
                    return response
                has_body = outgoing.method != "HEAD" and response.status not in STATUSES_WITHOUT_BODY
                length = response.header("content-length") or ""
                if has_body and length.isdecimal() and int(length[:20]) > limits.max_bytes:
                    raise too_large_error(limits.max_bytes)
                encodings = get_encodings(headers)
                body = await read_body(raw.aiter_stream(), encodings, limits.max_bytes)
                return replace(response, body=body, compression=find_unsupported(encodings) if body else "")

    async def _get_pool(self, scheme: str, private_advice: str) -> httpcore2.AsyncConnectionPool:
        """Return the pool. Requests limited to public addresses have their own, so that they share no connection."""
        key = (scheme, private_advice)
        async with self._pool_lock:
            if key not in self._pools:
                open_pool = functools.partial(
                    transport.open_pool, self._resolve, scheme, private_advice=private_advice, own_ports=self._own_ports
                )
                try:
                    self._pools[key] = await run_in_thread(open_pool)
                except OSError as error:
                    raise ConfigError(f"cannot read the TLS certificates of this machine: {error}") from None
            return self._pools[key]


def _decode_header(value: bytes) -> str:
    try:
        return value.decode("utf-8")
    except UnicodeDecodeError:
        return value.decode("latin-1")
