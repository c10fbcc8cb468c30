"""The SDK's HTTP client: response limits, and tokens in requests.

Responses are checked before the SDK reads them. A token is added to each request, and replaced if
the server rejects it. A failed sign-in must not raise here, because the SDK would close the
connection: it is recorded for the caller instead.
"""

import asyncio
import ssl
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Iterator
from dataclasses import replace
from functools import cache

import httpx2

from onetool.errors import SignInRequired, ToolError
from onetool.net.client import EVENT_STREAM
from onetool.net.oauth.credential import record_failure
from onetool.net.oauth.discovery import read_challenge
from onetool.net.oauth.token_source import TokenSource
from onetool.net.transport import silence_http_libraries
from onetool.processes.channel import Collector, Pace
from onetool.sources.upstream.stdio import MAX_UPSTREAM_BYTES, MIN_CHARGED_BYTES, admit
from onetool_child.messages import TooLarge

MAX_EVENT_LINES = 1000
CONNECT_SECONDS = 30
READ_SECONDS = 300  # a server may hold a stream of events open
UNAUTHORIZED = 401
FORBIDDEN = 403
MAX_SCOPE_CHARS = 300


@cache
def tls_context() -> ssl.SSLContext:
    """Return the shared TLS context. The first call blocks: certificates are read from disk."""
    return httpx2.create_ssl_context()


def http_client(
    headers: dict[str, str] | None = None,
    timeout: httpx2.Timeout | None = None,
    auth: httpx2.Auth | None = None,
) -> httpx2.AsyncClient:
    """Return a client for the SDK with limited responses. Blocks as `tls_context` does."""
    silence_http_libraries()
    return httpx2.AsyncClient(
        # A compressed body could be a thousand times as large after decompression.
        headers={**(headers or {}), "accept-encoding": "identity"},
        timeout=timeout or httpx2.Timeout(CONNECT_SECONDS, read=READ_SECONDS),
        auth=auth,
        verify=tls_context(),
        event_hooks={"response": [_limit_response]},
    )


async def _limit_response(response: httpx2.Response) -> None:
    assert isinstance(response.stream, httpx2.AsyncByteStream)
    if response.headers.get("content-encoding", "identity") != "identity":
        response.stream = _CompressedBody(response.stream)
    elif response.headers.get("content-type", "").lower().startswith(EVENT_STREAM):
        response.stream = _EventStream(response.stream)
    else:
        response.stream = _Body(response.stream)


class _Body(httpx2.AsyncByteStream):
    """A response body that is one message."""

    def __init__(self, stream: httpx2.AsyncByteStream) -> None:
        self._stream = stream

    async def __aiter__(self) -> AsyncIterator[bytes]:
        collector = Collector(MAX_UPSTREAM_BYTES)
        async for chunk in self._stream:
            collector.add(chunk)
        try:
            yield admit(*collector.take())
        except TooLarge as error:
            raise httpx2.StreamError(str(error)) from None

    async def aclose(self) -> None:
        await self._stream.aclose()


class _CompressedBody(_Body):
    """A compressed response, rejected when read: a failed request ends the connection."""

    def __aiter__(self) -> AsyncIterator[bytes]:
        raise httpx2.StreamError(
            "the server sent a compressed response despite Accept-Encoding: identity"
        )


class _EventStream(_Body):
    """A response body that is an event stream with one message each."""

    async def __aiter__(self) -> AsyncIterator[bytes]:
        splitter = _EventSplitter()
        pace = Pace()
        async for chunk in self._stream:
            try:
                events = list(splitter.add(chunk))
            except TooLarge as error:
                raise httpx2.SSEError(str(error)) from None
            for event in events:
                pause = pace.charge(pace.now(), max(len(event), MIN_CHARGED_BYTES))
                yield event
                if pause:
                    await asyncio.sleep(pause)


class _EventSplitter:
    """Split chunks into complete events, and check each event."""

    def __init__(self) -> None:
        self._collector = Collector(MAX_UPSTREAM_BYTES)
        self._unread = b""  # the end of the last chunk, which may be a part of a line end

    def add(self, chunk: bytes) -> Iterator[bytes]:
        text = self._unread + chunk
        self._unread = b"\r" if text.endswith(b"\r") else b""
        text = text.removesuffix(b"\r").replace(b"\r\n", b"\n").replace(b"\r", b"\n")
        *ends, start = text.split(b"\n\n")
        for end in ends:
            self._collector.add(end)
            yield _admit_event(*self._collector.take())
        if start.endswith(b"\n"):
            self._unread = b"\n" + self._unread
        self._collector.add(start.removesuffix(b"\n"))


def _admit_event(event: bytes, problem: str | None) -> bytes:
    if event.count(b"\n") > MAX_EVENT_LINES:
        raise TooLarge(f"the server sent an event with more than {MAX_EVENT_LINES} lines")
    data = b"\n".join(
        line[len(b"data:") :] for line in event.split(b"\n") if line.startswith(b"data:")
    )
    admitted = admit(data, problem)
    return (event if admitted is data else b"data: " + admitted) + b"\n\n"


# --- Tokens ---------------------------------------------------------------------------------------


class BearerAuth(httpx2.Auth):
    """Adds an identity's token. `failure` is the last error, for requests that no call makes."""

    def __init__(self, source: TokenSource) -> None:
        self._source = source
        self.failure: ToolError | None = None

    async def async_auth_flow(
        self, request: httpx2.Request
    ) -> AsyncGenerator[httpx2.Request, httpx2.Response]:
        identity = self._source.identity
        token, error = await _try(self._source.get())
        if isinstance(error, SignInRequired) and identity.target.is_optional:
            error = None
        response = yield _add_token(request, token)
        if response.status_code == UNAUTHORIZED and token:
            token, error = await _try(self._source.replace(token))
            if token:
                response = yield _add_token(request, token)
        challenge = response.headers.get("www-authenticate", "")
        if response.status_code == UNAUTHORIZED and (
            token or error or identity.target.accepts_sign_in(challenge)
        ):
            reason = f"{identity.label} rejected the token of the sign-in" if token else ""
            self._record(error or identity.require_sign_in(reason))
        elif response.status_code == FORBIDDEN:
            await self._handle_missing_scope(challenge)

    async def _handle_missing_scope(self, challenge: str) -> None:
        """Remember the scope for the next sign-in: only a person can grant it."""
        if read_challenge(challenge, "error") != "insufficient_scope":
            return
        scope = (read_challenge(challenge, "scope") or "")[:MAX_SCOPE_CHARS]
        await self._source.update(lambda credential: replace(credential, missing_scope=scope))
        identity = self._source.identity
        needed = f" (scope {scope})" if scope.isprintable() and scope else ""
        self._record(
            identity.require_sign_in(f"the call needs more permissions at {identity.label}{needed}")
        )

    def _record(self, error: ToolError) -> None:
        self.failure = error
        record_failure(error)


async def _try(work: Awaitable[str]) -> tuple[str, ToolError | None]:
    """Return a token, or an empty one and the error."""
    try:
        return await work, None
    except ToolError as error:
        return "", error


def _add_token(request: httpx2.Request, token: str) -> httpx2.Request:
    if token:
        request.headers["authorization"] = f"Bearer {token}"
    return request
