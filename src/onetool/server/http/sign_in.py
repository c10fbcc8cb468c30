"""Sign-in to the admin UI: OpenID Connect's code flow with PKCE, state and nonce.

The browser that starts a sign-in gets a cookie, and only that browser can finish it. The ID token
proves who signed in; access and refresh tokens are not kept. The session ends when the ID token
expires.
"""

import hmac
import secrets
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from functools import partial
from typing import NamedTuple

from anyio.to_thread import run_sync as run_in_thread
from starlette.requests import Request
from starlette.responses import RedirectResponse, Response
from starlette.routing import Route

from onetool.errors import ToolError
from onetool.net.oauth.credential import Credential
from onetool.net.oauth.discovery import Discovered, ServerMetadata
from onetool.net.oauth.token_requests import TokenRequests
from onetool.server.http.auth import CALLBACK_PATH, SIGN_IN_PATH
from onetool.server.http.errors import ApiError
from onetool.server.http.issuers import IssuerDirectory
from onetool.server.http.jwt_verifier import JwtVerifier
from onetool.server.http.live_tokens import RequestCredential
from onetool.server.http.request_checks import Bind, find_base_url, read_bind
from onetool.server.http.sessions import BrowserSessions
from onetool.settings.access import Auth, Issuer, OAuth
from onetool.util.logging import Log
from onetool_child.json_types import JsonObject

MAX_PARAMETER_CHARS = 4096
SEE_OTHER = 303
REASONS = {"forbidden": "no-agent", "not_found": "expired"}  # by the code of an error


class _PendingSignIn(NamedTuple):
    """The facts of a sign-in, which its state contains."""

    issuer: str
    client_id: str
    base_url: str
    nonce: str
    verifier: str


class _SignInFailed(Exception):
    """A sign-in failed. `reason` is shown by the admin UI, `detail` is logged."""

    def __init__(self, reason: str, detail: str) -> None:
        super().__init__(detail)
        self.reason = reason


@dataclass(frozen=True, slots=True)
class BrowserSignIn:
    """Sign-ins of browsers.

    What belongs to one is in its state, which is sealed, and valid once for ten minutes.
    """

    settings: Callable[[], Auth]
    bind: Bind | None
    directory: IssuerDirectory
    jwts: JwtVerifier
    sessions: BrowserSessions
    log: Log

    def routes(self) -> Iterator[Route]:
        yield Route(SIGN_IN_PATH, self.start)
        yield Route(CALLBACK_PATH, self.finish)

    async def start(self, request: Request) -> Response:
        """Send the browser to the issuer."""
        entry = self._find_entry(request.query_params.get("issuer"))
        base_url = find_base_url(
            request.scope, self.bind or read_bind(request.scope), self.settings().public_url
        )
        if base_url is None:
            raise ApiError(
                "invalid",
                "the URL of this server is unknown",
                hint="set auth.public_url in onetool.yaml",
            )
        nonce = secrets.token_urlsafe(32)
        verifier = secrets.token_urlsafe(32)
        pending = _PendingSignIn(entry.issuer, entry.client_id or "", base_url, nonce, verifier)
        begin = partial(
            self.sessions.begin_sign_in,
            pending._asdict(),
            is_secure=base_url.startswith("https://"),
        )
        async with self._open_client(entry, base_url) as (metadata, _, client):
            cookie, state = await run_in_thread(begin)
            target = metadata.build_sign_in_url(client, state, verifier, nonce)
        return RedirectResponse(target, SEE_OTHER, {"set-cookie": cookie})

    @asynccontextmanager
    async def _open_client(
        self, entry: Issuer, base_url: str
    ) -> AsyncIterator[tuple[ServerMetadata, TokenRequests, Credential]]:
        """Yield the issuer, its HTTP client, and the credential for a new sign-in."""
        metadata = await self.directory.get_metadata(entry.issuer)
        if not (metadata.authorization_endpoint and metadata.token_endpoint):
            raise ApiError(
                "issuer_unavailable",
                f"the issuer {entry.issuer} does not support sign-in in a browser",
            )
        settings = OAuth(
            client_id=entry.client_id, client_secret=entry.client_secret, issuer=entry.issuer
        )
        scope = " ".join(dict.fromkeys(("openid", *entry.scopes)))
        async with self.directory.connect(entry.issuer) as http:
            requests = TokenRequests(http, settings)
            client = await requests.register(
                Discovered(metadata, scope=scope), base_url + CALLBACK_PATH
            )
            yield metadata, requests, client

    def _find_entry(self, issuer: str | None, client_id: str | None = None) -> Issuer:
        for entry in self.settings().issuers:
            if (
                entry.client_id
                and issuer in {None, entry.issuer}
                and client_id in {None, entry.client_id}
            ):
                return entry
        raise ApiError(
            "not_found",
            "no issuer for sign-in",
            hint="set client_id in auth.issuers in onetool.yaml",
        )

    async def finish(self, request: Request) -> Response:
        """Check the issuer's answer, and redirect the browser with a one-time code or a reason."""
        state = request.query_params.get("state", "")
        base_url = ""
        try:
            facts, is_bound = await run_in_thread(self.sessions.end_sign_in, state, request.headers)
            base_url = "" if facts is None else facts["base_url"]
            credential = await self._check_answer(request, _restore(facts, is_bound=is_bound))
        except _SignInFailed as error:
            self.log.event("auth.sign_in", level="WARNING", status="error", text=str(error))
            return RedirectResponse(f"{base_url}/#/sign-in/{error.reason}", SEE_OTHER)
        self.log.event("auth.sign_in", status="ok", actor=credential.actor, agent=credential.agent)
        code = await run_in_thread(self.sessions.create_code, credential, request.headers)
        # The code is in the fragment, which browsers neither send to servers nor pass on.
        return RedirectResponse(f"{base_url}/#/code/{code}", SEE_OTHER)

    async def _check_answer(self, request: Request, pending: _PendingSignIn) -> RequestCredential:
        try:
            entry = self._find_entry(pending.issuer, pending.client_id)
            async with self._open_client(entry, pending.base_url) as (metadata, requests, client):
                code = metadata.read_code(request.query_params)[:MAX_PARAMETER_CHARS]
                answer = await requests.exchange_code(client, code, pending.verifier)
            if not answer.id_token:
                raise _SignInFailed("failed", "the issuer sent no ID token")
            return await self._check_id_token(entry, pending, answer.id_token)
        except ApiError as error:
            reason = REASONS.get(error.code, "failed")
            raise _SignInFailed(reason, error.message) from None
        except ToolError as error:
            reason = "denied" if "error" in request.query_params else "failed"
            raise _SignInFailed(reason, error.message) from None

    async def _check_id_token(
        self, entry: Issuer, pending: _PendingSignIn, id_token: str
    ) -> RequestCredential:
        client_id = pending.client_id
        claims = await self.jwts.verify(id_token, entry.issuer, entry.algorithms, [client_id])
        nonce = claims.get("nonce")
        if not isinstance(nonce, str) or not hmac.compare_digest(
            nonce.encode(), pending.nonce.encode()
        ):
            raise _SignInFailed("failed", "the ID token has another nonce")
        # With other clients; `azp` names the one that asked.
        is_shared = claims["aud"] not in (client_id, [client_id])
        if claims.get("azp", "" if is_shared else client_id) != client_id:
            raise _SignInFailed("failed", "the ID token is for another client")
        entries = [
            other
            for other in self.settings().issuers
            if (other.issuer, other.client_id) == (entry.issuer, client_id)
        ]
        return self.jwts.find_agent(claims, entries)


def _restore(facts: JsonObject | None, *, is_bound: bool) -> _PendingSignIn:
    if facts is None:
        raise _SignInFailed("expired", "unknown or expired state")
    if not is_bound:
        raise _SignInFailed("expired", "the sign-in was started by another browser")
    return _PendingSignIn(*(facts[name] for name in _PendingSignIn._fields))
