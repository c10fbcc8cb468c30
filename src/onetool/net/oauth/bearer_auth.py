"""Tokens in requests to an upstream server: one is added to each request, and replaced if the
server rejects it.

A failed sign-in must not raise here, because the SDK would close the connection: it is recorded for
the caller instead.
"""

from collections.abc import AsyncGenerator, Awaitable
from dataclasses import replace

import httpx2

from onetool.errors import SignInRequired, ToolError
from onetool.net.oauth.discovery import read_challenge
from onetool.net.oauth.failures import record_failure
from onetool.net.oauth.token_source import TokenSource

UNAUTHORIZED = 401
FORBIDDEN = 403
MAX_SCOPE_CHARS = 300


class BearerAuth(httpx2.Auth):
    """Adds the token of an identity. `failure` is the last error, for requests that no call makes."""

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
